//! Rooms with news take turns: each gives one member after the other its due messages, until it has looked at all.
//!
//! Owns the order of rooms and of members. Knows neither sessions nor what is sent to them.

use std::collections::VecDeque;

use super::room::Room;
use crate::slots::Slots;

/// A room's part: whether it is in the queue, and how many members it still has to look at.
#[derive(Default)]
pub struct Round {
    queued: bool,
    /// The member that was looked at last, by its seat.
    at: usize,
    left: usize,
}

impl Round {
    /// A member has joined in the last seat. It is looked at in the round that is under way, which must not end one seat sooner
    /// for it.
    pub fn joined(&mut self) {
        self.left += usize::from(self.left > 0);
    }

    pub fn is_under_way(&self) -> bool {
        self.left > 0
    }

    #[inline]
    fn next(&mut self, members: &[u32]) -> Option<u32> {
        if self.left == 0 || members.is_empty() {
            return None;
        }
        self.left -= 1;
        self.at = if self.at + 1 >= members.len() { 0 } else { self.at + 1 };
        Some(members[self.at])
    }
}

/// The rooms with news.
#[derive(Default)]
pub(super) struct Rounds(VecDeque<u32>);

impl Rounds {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every member of a room is looked at once from now.
    pub fn begin(&mut self, at: u32, room: &mut Room) {
        let round = &mut room.round;
        round.left = room.members.len();
        if !round.queued && round.left > 0 {
            round.queued = true;
            self.0.push_back(at);
        }
    }

    /// The room of the last slice comes after those that have news since.
    pub fn rotate(&mut self) {
        if self.0.len() > 1 {
            self.0.rotate_left(1);
        }
    }

    /// The next member of the first room that still has to look at one.
    #[inline]
    pub fn next(&mut self, rooms: &mut Slots<u64, Room>) -> Option<u32> {
        loop {
            let at = self.0.front().copied()?;
            if let Some(room) = rooms.get_mut(at) {
                let next = room.round.next(&room.members);
                if next.is_some() {
                    return next;
                }
                room.round.queued = false;
            }
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::KeyedState;

    #[test]
    fn each_member_is_looked_at_once_a_round_and_rooms_go_one_after_the_other() {
        let (mut rooms, mut rounds) = (Slots::new(KeyedState::new(1, 2), 9), Rounds::default());
        for (id, members) in [(1, vec![1, 2, 3]), (2, vec![]), (3, vec![4, 5])] {
            let mut room = Box::new(Room::new(id, id, "live:room", false, 1));
            room.members = members;
            let at = rooms.add(id, room);
            rounds.begin(at, rooms.get_mut(at).expect("the room"));
        }
        assert_eq!(rounds.next(&mut rooms), Some(2));
        // One that joins has its turn too.
        let room = rooms.get_mut(0).expect("the room");
        room.members.push(6);
        room.round.joined();
        rounds.rotate();
        assert_eq!([(); 2].map(|()| rounds.next(&mut rooms)), [Some(5), Some(4)]);
        assert!(rooms.get_mut(0).is_some_and(|room| room.round.is_under_way()));
        let rest = [(); 4].map(|()| rounds.next(&mut rooms));
        assert_eq!((rest, rounds.is_empty()), ([Some(3), Some(6), Some(1), None], true));
        rounds.begin(0, rooms.get_mut(0).expect("the room"));
        assert_eq!(rounds.next(&mut rooms), Some(2), "it goes on behind the last");
    }
}
