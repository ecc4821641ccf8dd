//! Whether this gateway is behind with most of its members. One member that is behind is slow, and a live room does not
//! wait for it. If most are, the gateway or its way out is slow, and publishers must wait.
//!
//! Looks at a few members of the rooms with reported progress. Owns their count.

use muster_transport::Micros;

use super::room::Room;
use crate::ring::Arena;

/// Members of one room that are looked at: their middle is told.
const SAMPLE: usize = 16;
/// Members examined in one [`SPAN`] while all is well, about 20 us of work; otherwise, as many as necessary.
const LOOKS_MAX: u32 = 512;
/// Fewer looks tell of single members, not of the gateway.
const LOOKS_MIN: u32 = 32;
/// How long the looks are counted before they are judged.
const SPAN: Micros = 50_000;
/// A member is behind if it lacks a message older than this.
const BEHIND: Micros = 30_000;

/// The looks of this span, and the result of the last one.
#[derive(Default)]
pub(super) struct Backlog {
    since: Micros,
    looks: u32,
    behind: u32,
    /// Most members are behind.
    most: bool,
    turn: usize,
}

impl Backlog {
    /// The members to look at, other ones each time.
    pub fn sample<'a>(&mut self, members: &'a [u32]) -> impl Iterator<Item = &'a u32> {
        self.turn = self.turn.wrapping_add(SAMPLE + 1);
        let looks = self.most || self.looks < LOOKS_MAX;
        let (first, count) = (self.turn, if looks { members.len().min(SAMPLE) } else { 0 });
        (0..count).map(move |at| &members[(first + at * (members.len() / count)) % members.len()])
    }

    /// Takes the places where the members that were looked at stand. The middle one, if most of the gateway's members are behind.
    pub fn note(&mut self, now: Micros, room: &Room, arena: &Arena, cursors: &mut [u64]) -> Option<u64> {
        let old = |place: u64| room.ring.age(arena, now, place).is_some_and(|age| age > BEHIND);
        self.looks += cursors.len() as u32;
        self.behind += cursors.iter().filter(|place| old(**place)).count() as u32;
        if now >= self.since + SPAN {
            self.most = self.looks >= LOOKS_MIN && self.behind * 2 > self.looks;
            (self.since, self.looks, self.behind) = (now, 0, 0);
        }
        if !self.most || cursors.is_empty() {
            return None;
        }
        let middle = cursors.len() / 2;
        Some(*cursors.select_nth_unstable(middle).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Entry;

    const MEMBERS: u64 = 40;

    /// The report on a room whose hundred messages came at once, if this many of its members have none of them.
    fn told(behind: u64, after: Micros) -> Option<u64> {
        let mut arena = Arena::new(1 << 20);
        let mut room = Room::new(1, 2, "live:room", false, 3);
        for offset in 1..=100 {
            let entry = Entry {
                offset,
                ..Entry::default()
            };
            room.ring.push(&mut arena, 0, &entry);
        }
        let (first, head) = (room.ring.first(), room.ring.next());
        let members: Vec<u32> = (0..MEMBERS as u32).collect();
        let mut backlog = Backlog::default();
        let mut last = None;
        for turn in 0..10 {
            let place = |member: &u32| if u64::from(*member) < behind { first + 1 } else { head };
            let mut cursors: Vec<u64> = backlog.sample(&members).map(place).collect();
            last = backlog.note(after + turn * 20_000, &room, &arena, &mut cursors);
        }
        last.map(|place| place - first)
    }

    #[test]
    fn a_gateway_that_is_behind_with_most_of_its_members_tells_where_the_middle_one_stands() {
        assert_eq!(told(30, 100_000), Some(1));
        assert_eq!(told(10, 100_000), None, "they are slow");
        assert_eq!(told(30, 0), Some(1), "after a while");
        assert_eq!(told(0, 100_000), None);
    }

    #[test]
    fn all_members_have_their_turn_to_be_looked_at() {
        let members: Vec<u32> = (0..MEMBERS as u32).collect();
        let mut backlog = Backlog::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let sample: Vec<u32> = backlog.sample(&members).copied().collect();
            assert_eq!(sample.len(), SAMPLE);
            seen.extend(sample);
        }
        assert_eq!(seen.len(), members.len());
        assert_eq!(backlog.sample(&[]).count(), 0);
        assert_eq!(backlog.sample(&[5]).collect::<Vec<_>>(), [&5]);
    }
}
