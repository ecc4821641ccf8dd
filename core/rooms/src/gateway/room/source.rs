//! One stream of a room: where it stands, what is held behind its hole, what is fetched of its past.

use super::super::GatewayCounters;
use super::{Lack, BACKFILL_STEP, BACKFILL_WAIT, HOLE_LOOK, PACE, TURN_AGAIN, TURN_WAIT};
use crate::asking::Asking;
use crate::wire::{GapReason, PublisherId, StreamGap, StreamId};
use muster_transport::Micros;
use std::collections::BTreeMap;

pub(super) struct Held {
    pub(super) came_at: Micros,
    pub(super) publisher: PublisherId,
    pub(super) sequence: u64,
    pub(super) flags: u8,
    pub(super) born: u32,
    pub(super) data: Box<[u8]>,
}

/// History wanted from the owner.
pub(super) struct Backfill {
    pub(super) from: u64,
    pub(super) until: Micros,
}

/// The place at which a member starts, or that history must come first.
pub enum Start {
    At {
        place: u64,
        gaps: Vec<StreamGap>,
        history: History,
    },
    Fetch(Lack),
}

/// The length of the history for a member that asked for the last messages, and whether it is as much as asked, or all.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct History {
    pub messages: u32,
    pub whole: bool,
}

/// A stream of the room, as far as this gateway is with it.
pub struct Source {
    pub stream: StreamId,
    /// The cluster that its broker is in.
    pub cluster: u16,
    /// The room says that the rest is lost or that there is none. The stream's owner may go on all the same.
    pub over: bool,
    /// The owner has not been told how far this is; and whether it will be.
    pub consumed_dirty: bool,
    pub consumed_queued: bool,
    /// The ring's first place that is this stream's, and the one after its last.
    pub(super) first_place: u64,
    pub(super) end_place: u64,
    /// The next wanted offset, the first in the ring, and the first one never mentioned.
    pub(super) next: u64,
    pub(super) low: u64,
    pub(super) known: u64,
    /// The first offset that its owner numbered when every broker knew of this gateway, as far as is known.
    pub(super) base: u64,
    /// The owner said that nothing follows from this offset on.
    pub(super) ends_at: Option<u64>,
    /// The reason with which its rest will be reported as lost, once held messages that wait for another broker's have
    /// had their turn.
    pub(super) ending: Option<GapReason>,
    /// The owner has no link.
    pub(super) away: bool,
    /// Its next message waits for another broker's, and came then.
    pub(super) waits: Option<Micros>,
    pub(super) held: BTreeMap<u64, Held>,
    pub(super) held_bytes: usize,
    pub(super) hole: Option<Hole>,
    pub(super) asking: Asking,
    /// When history is asked for again.
    pub(super) fetch_at: Micros,
    pub(super) backfill: Option<Backfill>,
}

/// A hole that is waited for. Time in which nobody asked, as this process stood still, does not count.
#[derive(Debug)]
pub(super) struct Hole {
    pub(super) waited: Micros,
    pub(super) looked_at: Micros,
}

impl Hole {
    pub(super) fn new(now: Micros) -> Self {
        Hole {
            waited: 0,
            looked_at: now,
        }
    }

    pub(super) fn look(&mut self, now: Micros) {
        self.waited += now.saturating_sub(self.looked_at).min(HOLE_LOOK);
        self.looked_at = now;
    }

    /// When it is to be looked at, so that all time counts.
    pub(super) fn deadline(&self, wait: Micros) -> Micros {
        self.looked_at + wait.saturating_sub(self.waited).min(HOLE_LOOK)
    }
}

/// The order by age of two streams of one node.
pub(super) fn age(stream: StreamId) -> (u32, u32) {
    (stream.epoch, stream.generation)
}

/// Why a stream is over, given another one of its node: one of the same life means that the room was forgotten and opened again.
pub(super) fn why_over(stream: StreamId, other: Option<StreamId>) -> GapReason {
    match other.is_some_and(|other| other.epoch == stream.epoch) {
        true => GapReason::Restarted,
        false => GapReason::OwnerLost,
    }
}

impl Source {
    pub(super) fn new(stream: StreamId, cluster: u16, next: u64, place: u64) -> Self {
        let mut asking = Asking::new(PACE);
        asking.restart(next);
        Source {
            stream,
            cluster,
            over: false,
            consumed_dirty: false,
            consumed_queued: false,
            first_place: place,
            end_place: place,
            next,
            low: next,
            known: next,
            base: next,
            ends_at: None,
            ending: None,
            away: false,
            waits: None,
            held: BTreeMap::new(),
            held_bytes: 0,
            hole: None,
            asking,
            fetch_at: 0,
            backfill: None,
        }
    }

    /// The first offset that the gateway does not have.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// Whether offsets are missing before the known head.
    pub(super) fn has_hole(&self) -> bool {
        self.waits.is_none() && self.next < self.known
    }

    /// More of it may come, as far as is known.
    pub fn is_live(&self) -> bool {
        !self.over && self.ending.is_none()
    }

    /// Whether nothing is known here of an offset, though the stream may go on.
    pub(super) fn is_ahead(&self, offset: u64) -> bool {
        !self.is_lost() && offset >= self.next.max(self.known)
    }

    /// Nothing more is expected of it, and its end is unknown: its rest is lost.
    pub(super) fn is_lost(&self) -> bool {
        self.over && self.ends_at.is_none()
    }

    /// The owner speaks of it as one that has not ended, or not any more.
    pub(super) fn goes_on(&mut self) {
        (self.over, self.ends_at) = (false, None);
    }

    /// Drops held messages at offsets before `until`.
    pub(super) fn drop_held(&mut self, counters: &mut GatewayCounters, until: u64) {
        let rest = self.held.split_off(&until);
        let dropped = std::mem::replace(&mut self.held, rest);
        self.held_bytes -= dropped.values().map(|held| held.data.len()).sum::<usize>();
        counters.dropped_held += dropped.len() as u64;
    }

    /// No member waits for history any more, so history without a place is dropped.
    pub(super) fn end_backfill(&mut self, counters: &mut GatewayCounters) {
        self.backfill = None;
        self.drop_held(counters, self.low);
    }

    /// Whether an offset came already, or is of before the ring and no join waits for it; counts it then.
    pub(super) fn had(&self, counters: &mut GatewayCounters, offset: u64) -> bool {
        if offset < self.low {
            let wanted = self.backfill.as_ref().is_some_and(|wanted| offset >= wanted.from);
            if !wanted {
                counters.dropped_unwanted += 1;
                return true;
            }
        }
        let had = (self.low..self.next).contains(&offset) || self.held.contains_key(&offset);
        counters.messages_duplicate += u64::from(had);
        had
    }

    pub(super) fn take_held(&mut self, offset: u64) -> Option<Held> {
        let held = self.held.remove(&offset)?;
        self.held_bytes -= held.data.len();
        Some(held)
    }

    /// The begin of the history that is fetched next.
    pub(super) fn step(&self, backfill: &Backfill) -> u64 {
        backfill.from.max(self.low.saturating_sub(BACKFILL_STEP))
    }

    /// Whether enough history has arrived: at least half a step, down to a place that stays while it is examined.
    pub(super) fn has_fetched(&self) -> bool {
        self.backfill.as_ref().is_none_or(|backfill| {
            const HALF: u64 = BACKFILL_STEP / 2;
            let here = self.low.saturating_sub(1) / HALF * HALF;
            let step = backfill.from.max(here.saturating_sub(HALF))..self.low;
            step.end - step.start == self.held.range(step).count() as u64
        })
    }

    /// Ranges of history that the owner is to be asked for now.
    pub(super) fn fetch(&mut self, now: Micros, rtt: Micros, ranges: usize) -> Vec<(u64, u64)> {
        let mut history = Vec::new();
        let Some(backfill) = self.backfill.as_ref().filter(|_| now >= self.fetch_at) else {
            return history;
        };
        self.fetch_at = now + PACE.again.max(2 * rtt.min(BACKFILL_WAIT / 8));
        let mut from = self.step(backfill);
        let held = self.held.range(from..self.low).map(|(offset, _)| *offset);
        for offset in held.chain([self.low]) {
            if offset > from && history.len() < ranges {
                history.push((from, offset - 1));
            }
            from = offset + 1;
        }
        history
    }

    /// When something is missing or overdue next.
    pub(super) fn deadline(&self, now: Micros, hole_wait: Micros) -> Option<Micros> {
        let hole = self.has_hole().then(|| match &self.hole {
            Some(hole) => self
                .asking
                .deadline()
                .map_or(u64::MAX, |at| at.max(now))
                .min(hole.deadline(hole_wait)),
            None => now + PACE.reorder,
        });
        let backfill = self
            .backfill
            .as_ref()
            .map(|backfill| backfill.until.min(self.fetch_at.max(now)));
        let turn = self.waits.map(|since| (since + TURN_WAIT).max(now + TURN_AGAIN));
        [hole, backfill, turn].into_iter().flatten().min()
    }
}
