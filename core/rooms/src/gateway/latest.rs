//! Members that want at most so many messages of a room a second: the newest that they have not, and the last one in the end.
//!
//! Owns: the newest wanted message that such a member was not sent, when it may be sent, and the places that it was sent lately.
//! Must not know: sessions, links, filters. The member's cursor goes on at once whatever it is sent, so it holds up nobody, and
//! what leaves the ring meanwhile is left out.

use std::collections::VecDeque;

use muster_transport::{Micros, Writer};

use super::filtering::{View, Written};
use super::room::Room;
use super::GatewayCounters;
use crate::ring::{Arena, Entry};
use crate::wire::room::{LeftOut, Skip, FIRST, LAST};
use crate::wire::{GapReason, PublisherId};

/// Messages with several chunks that are on their way at once; of more the first ones are left out.
const OPEN_MAX: usize = 64;
/// An unfinished message holds up newer ones for this long: its chunks come together, or its publisher is gone.
const OPEN_FOR: Micros = 250_000;
/// Publishers whose last message is remembered: another owner may number a message again, which is no newer for that.
const HEARD_MAX: usize = 64;
/// Places that were sent and can be sent again: a second at most, with a message each.
const SENT_MAX: usize = 1_024;

/// A message by its publisher, and the places of its first and last chunk.
#[derive(Clone, Copy, Debug)]
struct Newest {
    publisher: PublisherId,
    first: u64,
    last: u64,
}

/// A wanted message whose last chunk has not come.
#[derive(Clone, Copy, Debug)]
struct Open {
    publisher: PublisherId,
    first: u64,
    /// The member was told of a place behind its first one: it cannot have it any more.
    late: bool,
}

/// What a member has of a room that it wants the latest of.
#[derive(Debug)]
pub struct Latest {
    room: u32,
    period: Micros,
    /// When the next message may be sent.
    due_at: Micros,
    /// The place behind those that the member was told of.
    told: u64,
    /// The place behind those that were looked at.
    seen: u64,
    newest: Option<Newest>,
    open: Vec<Open>,
    /// The sequence of the last message of each publisher heard lately, the latest last.
    heard: Vec<(PublisherId, u64)>,
    /// The last place behind the newest message where something was lost that may have been wanted.
    lost: Option<u64>,
    /// Places of a message that is being sent.
    sending: VecDeque<u64>,
    /// Places that were sent lately, in order.
    sent: VecDeque<u64>,
}

/// How a client of an edge stands, whose frames have whole messages and no places.
#[cfg(feature = "edge")]
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The place of the newest message that it was not sent.
    pub newest: Option<u64>,
    pub due_at: Micros,
    pub period: Micros,
}

#[cfg(feature = "edge")]
impl Latest {
    pub fn standing(&self) -> Standing {
        Standing {
            newest: self.newest.map(|newest| newest.last),
            due_at: self.due_at,
            period: self.period,
        }
    }

    pub fn stand(&mut self, standing: Standing) {
        let newest = |place| Newest {
            publisher: PublisherId::default(),
            first: place,
            last: place,
        };
        (self.newest, self.due_at) = (standing.newest.map(newest), standing.due_at);
    }
}

impl Latest {
    /// For a member that begins at a place.
    pub fn new(room: u32, period: Micros, place: u64) -> Self {
        Latest {
            room,
            period,
            due_at: 0,
            told: place,
            seen: place,
            newest: None,
            open: Vec::new(),
            heard: Vec::new(),
            lost: None,
            sending: VecDeque::new(),
            sent: VecDeque::new(),
        }
    }

    /// The place behind those that the member was told of.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Whether there are places that it was not told of and that no message is going to tell it of.
    pub fn is_untold(&self) -> bool {
        self.newest.is_none() && self.sending.is_empty() && self.lost.is_none() && self.told < self.limit()
    }

    /// The place up to which nothing is going to be sent.
    fn limit(&self) -> u64 {
        let open = self.open.iter().filter(|open| !open.late).map(|open| open.first);
        let newest = self.newest.iter().map(|newest| newest.first);
        open.chain(newest).chain(self.lost).fold(self.seen, u64::min)
    }

    /// Looks at the next place. `judge`: whether the message whose first chunk this is is wanted.
    pub fn look(&mut self, place: u64, entry: &Entry<'_>, judge: impl FnOnce() -> bool) {
        self.seen = place + 1;
        if entry.gap {
            if entry.reason() != GapReason::Ended {
                self.lost = Some(place);
            }
            return;
        }
        let known = self.open.iter().position(|open| open.publisher == entry.publisher);
        let of = match known {
            Some(at) if entry.flags & FIRST != 0 => {
                self.open.swap_remove(at); // it is never finished
                judge().then_some((place, false))
            }
            None if entry.flags & FIRST != 0 => judge().then_some((place, false)),
            Some(at) if entry.flags & LAST != 0 => {
                let open = self.open.swap_remove(at);
                Some((open.first, open.late))
            }
            _ => None,
        };
        let Some((first, late)) = of else { return };
        let publisher = entry.publisher;
        if entry.flags & LAST == 0 {
            if self.open.len() >= OPEN_MAX {
                let oldest = (0..self.open.len()).min_by_key(|at| self.open[*at].first);
                if let Some(at) = oldest {
                    self.open.swap_remove(at);
                }
            }
            self.open.push(Open { publisher, first, late });
        } else if self.is_news(publisher, entry.sequence) {
            let last = place;
            match late {
                true => self.lost = Some(place),
                false => (self.newest, self.lost) = (Some(Newest { publisher, first, last }), None),
            }
        }
    }

    /// Whether a message, by the sequence of its last chunk, is none that came before.
    fn is_news(&mut self, publisher: PublisherId, sequence: u64) -> bool {
        let known = self.heard.iter().rposition(|(known, _)| *known == publisher);
        let before = known.map(|at| self.heard.remove(at).1);
        if self.heard.len() >= HEARD_MAX {
            self.heard.remove(0);
        }
        self.heard
            .push((publisher, before.map_or(sequence, |before| before.max(sequence))));
        before.is_none_or(|before| sequence > before)
    }

    /// The ring goes on at a place: what was before is gone, looked at or not.
    pub fn gone_before(&mut self, place: u64) {
        if place > self.seen {
            self.seen = place;
            self.lost = Some(place - 1);
        }
        self.newest = self.newest.filter(|newest| newest.first >= place);
        self.open.retain(|open| open.first >= place);
    }

    /// When something is to be sent that cannot be now.
    pub fn wakes_at(&self, now: Micros) -> Option<Micros> {
        let waits = self.newest.is_some() || self.lost.is_some();
        // Past its time it waits for an unfinished message.
        let at = if self.due_at > now {
            self.due_at
        } else {
            now + OPEN_FOR / 4
        };
        waits.then_some(at)
    }

    /// Writes what is due. `due`: the member is to be told of all that it is left out of. [`Written::Full`]: no space for all.
    pub fn write(
        &mut self,
        view: &View<'_>,
        due: bool,
        writer: &mut Writer<'_>,
        counters: &mut GatewayCounters,
    ) -> Written {
        let View { room, arena, now, .. } = *view;
        if self.sending.is_empty() && now >= self.due_at && !self.waits_for_open(view) {
            self.begin(room, arena, now);
        }
        while let Some(place) = self.sending.front().copied() {
            if room.ring.get(arena, place).is_none() {
                // Overwritten while the member could take nothing.
                self.sending.clear();
                self.lost.get_or_insert(place);
                break;
            }
            if !self.tell_to(room, arena, place, writer, counters) {
                return Written::Full;
            }
            let Some(next) = view.frame(self.room, place, place + 1, writer) else {
                return Written::Full;
            };
            counters.messages_sent += 1;
            self.sent(place);
            self.told = next;
            self.sending.pop_front();
        }
        if self.newest.is_none() && now >= self.due_at {
            if let Some(place) = self.lost {
                if !self.tell_lost(view, place, writer, counters) {
                    return Written::Full;
                }
            }
        }
        self.open
            .iter_mut()
            .for_each(|open| open.late |= open.first < self.told);
        match due && !self.tell_to(room, arena, self.limit(), writer, counters) {
            true => Written::Full,
            false => Written::All,
        }
    }

    /// Whether what is to be sent waits for a message that began before it and may soon be whole.
    fn waits_for_open(&mut self, view: &View<'_>) -> bool {
        let View { room, arena, now, .. } = *view;
        let Some(last) = self.newest.map(|newest| newest.last).max(self.lost) else {
            return false;
        };
        let young = |place| room.ring.age(arena, now, place).is_some_and(|age| age < OPEN_FOR);
        self.open
            .iter()
            .any(|open| !open.late && open.first < last && young(open.first))
    }

    /// The newest message is sent from now on.
    fn begin(&mut self, room: &Room, arena: &Arena, now: Micros) {
        let Some(Newest { publisher, first, last }) = self.newest.take() else {
            return;
        };
        let of_it = |place: &u64| {
            let entry = room.ring.get(arena, *place);
            entry.is_some_and(|entry| !entry.gap && entry.publisher == publisher)
        };
        if room.ring.get(arena, first).is_none() {
            // It left the ring before its time.
            self.lost = self.lost.max(Some(last));
            return;
        }
        self.sending = (first..=last).filter(of_it).collect();
        self.due_at = now + self.period;
    }

    fn sent(&mut self, place: u64) {
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(place);
    }

    /// Tells that all before a place is left out that was not told. `false`: no space.
    fn tell_to(
        &mut self,
        room: &Room,
        arena: &Arena,
        end: u64,
        writer: &mut Writer<'_>,
        counters: &mut GatewayCounters,
    ) -> bool {
        if self.told >= end {
            return true;
        }
        if !self.left_out(room, arena, (self.told, end)).write(writer) {
            return false;
        }
        counters.messages_filtered += end - self.told;
        self.told = end;
        true
    }

    fn left_out(&self, room: &Room, arena: &Arena, (index, end): (u64, u64)) -> LeftOut {
        LeftOut {
            handle: self.room,
            index,
            end,
            resume: room.resume_at(arena, end),
        }
    }

    /// Tells of a loss behind the newest message. `false`: no space.
    fn tell_lost(
        &mut self,
        view: &View<'_>,
        place: u64,
        writer: &mut Writer<'_>,
        counters: &mut GatewayCounters,
    ) -> bool {
        let View { room, arena, .. } = *view;
        let is_gap = room.ring.get(arena, place).is_some_and(|entry| entry.gap);
        let told = match is_gap {
            true => {
                self.tell_to(room, arena, place, writer, counters)
                    && view.frame(self.room, place, place + 1, writer).is_some()
            }
            false => skip(room, arena, self.room, place + 1).write(writer),
        };
        if told {
            self.sent(place);
            self.told = self.told.max(place + 1);
            self.lost = None;
        }
        told
    }

    /// Writes one frame for places that the member asked for again: what it was sent there, or that it is left out of them.
    /// Returns the place behind it; `None`: no space.
    pub fn repair(&self, view: &View<'_>, (first, until): (u64, u64), writer: &mut Writer<'_>) -> Option<u64> {
        let View { room, arena, .. } = *view;
        let at = self.sent.partition_point(|place| *place < first);
        let next = self.sent.get(at).copied();
        if next == Some(first) {
            return match room.ring.get(arena, first) {
                Some(_) => view.frame(self.room, first, first + 1, writer),
                None => skip(room, arena, self.room, first + 1)
                    .write(writer)
                    .then_some(first + 1),
            };
        }
        let end = next.map_or(until, |next| next.min(until));
        self.left_out(room, arena, (first, end)).write(writer).then_some(end)
    }
}

/// Says that all before `index` is lost.
fn skip(room: &Room, arena: &Arena, handle: u32, index: u64) -> Skip {
    Skip {
        handle,
        index,
        reason: GapReason::Slow,
        resume: room.resume_at(arena, index),
    }
}
