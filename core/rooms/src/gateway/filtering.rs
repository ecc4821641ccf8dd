//! Members with a filter: they get the messages that it lets through, and hear of the places of the others.
//!
//! Owns: a member's filter in a room, and the places that it passed and was not told of yet. `latest` has those of members that
//! want at most so many messages a second. Must not know: sessions, links. A member without a filter never comes here: it has the frames that all others share.

use std::cell::Cell;

use muster_transport::{Micros, Writer};

use super::fanout::{build, is_young, tell_age};
use super::latest::Latest;
#[cfg(feature = "edge")]
use super::latest::Standing;
use super::room::Room;
use super::{GatewayCounters, Joined};
use crate::filter::Filter;
use crate::headers;
use crate::ring::{Arena, Entry};
use crate::segments::Built;
use crate::wire::room::{Passed, BLOCK_MESSAGES, FIRST, HEADERS};

/// A member is told of the places that its filter passed after this time, so that a later join begins behind them.
pub const TOLD_AFTER: Micros = 250_000;
/// It is told sooner once there are this many, or they lie in this many runs.
const UNTOLD_MAX: u64 = 256;
const RUNS_MAX: usize = 8;
/// Places that are looked at for one member in one turn, about: some 0.1 ms.
pub const LOOKED_MAX: usize = 1_024;
/// Places that are looked at to count a member's history once: as many as its longest has.
pub const COUNTED_MAX: usize = 65_536;
/// Places that are looked through for the first chunk of a message: 64 chunks each of 64 publishers that send at once. A
/// chunk further behind is passed, so its message becomes a gap.
const CHUNKS_MAX: u64 = 4_096;

/// A member's filter in one room.
pub struct Filtering {
    pub room: u32,
    filter: Filter,
    /// Places that it passed and was not told of, in order.
    untold: Vec<Passed>,
    /// They are to be told in any case.
    pub due: bool,
    /// The time when they become due is noted.
    pub noted: bool,
    /// The member wants the latest message alone.
    latest: Option<Box<Latest>>,
}

/// A member's room as one turn sees it.
pub struct View<'a> {
    pub room: &'a Room,
    pub arena: &'a Arena,
    pub now: Micros,
    /// Half of the session's round trip.
    pub away: Micros,
    pub ages: bool,
    /// The member does not know headers.
    pub plain: bool,
    /// Places that were looked at.
    pub looked: Cell<usize>,
}

/// How far [`Filtering::write`] came.
#[derive(PartialEq, Eq, Debug)]
pub enum Written {
    /// All that there is.
    All,
    /// The next place cannot be read: it is lost to this member.
    Lost,
    /// The datagram is full.
    Full,
    /// Enough for one turn.
    Paused,
}

impl Filtering {
    /// For a member that begins at a place.
    pub fn new(room: u32, filter: Filter, place: u64) -> Self {
        let latest = |period| Box::new(Latest::new(room, period, place));
        Filtering {
            room,
            latest: filter.period().map(latest),
            filter,
            untold: Vec::new(),
            due: false,
            noted: false,
        }
    }

    /// Whether there are places that the member was not told of.
    pub fn is_untold(&self) -> bool {
        match &self.latest {
            Some(latest) => latest.is_untold(),
            None => !self.untold.is_empty(),
        }
    }

    /// The place behind those that the member was told of, or is with the next heads.
    pub fn told(&self, cursor: u64) -> u64 {
        self.latest.as_ref().map_or(cursor, |latest| latest.told())
    }

    /// Whether the member wants the latest message alone.
    pub fn is_latest(&self) -> bool {
        self.latest.is_some()
    }

    /// When the member is to get something that it could not now.
    pub fn wakes_at(&self, now: Micros) -> Option<Micros> {
        self.latest.as_ref()?.wakes_at(now)
    }

    /// How a client of an edge stands that wants the latest message.
    #[cfg(feature = "edge")]
    pub fn standing(&self) -> Option<Standing> {
        self.latest.as_ref().map(|latest| latest.standing())
    }

    /// It stands otherwise.
    #[cfg(feature = "edge")]
    pub fn stand(&mut self, standing: Standing) {
        if let Some(latest) = &mut self.latest {
            latest.stand(standing);
        }
    }

    /// Messages from a place on that the filter lets through, as far as [`COUNTED_MAX`] reaches.
    pub fn messages_from(&self, room: &Room, arena: &Arena, place: u64) -> u32 {
        let looked = Cell::new(0);
        let last = |place: &u64| {
            if looked.get() > COUNTED_MAX {
                return false;
            }
            let entry = room.ring.get(arena, *place).filter(|entry| !entry.gap);
            entry.is_some_and(|entry| {
                entry.flags & crate::wire::room::LAST != 0 && self.lets(room, arena, *place, &entry, &looked)
            })
        };
        let most = if self.latest.is_some() { 1 } else { usize::MAX };
        (place..room.ring.next()).filter(last).take(most).count() as u32
    }

    /// Whether the message at a place, or that which the chunk there belongs to, is wanted. A chunk whose message began before
    /// the ring is of no use to anybody.
    fn lets(&self, room: &Room, arena: &Arena, place: u64, entry: &Entry<'_>, looked: &Cell<usize>) -> bool {
        self.judge(room, arena, place, entry, looked).unwrap_or(false)
    }

    /// The same; `None`: its message began before the ring.
    pub fn judge(
        &self,
        room: &Room,
        arena: &Arena,
        place: u64,
        entry: &Entry<'_>,
        looked: &Cell<usize>,
    ) -> Option<bool> {
        let judge = |entry: &Entry<'_>| judge(&self.filter, entry);
        looked.set(looked.get() + 1);
        if entry.flags & FIRST != 0 {
            return Some(judge(entry));
        }
        let mut sequence = entry.sequence;
        for before in (place.saturating_sub(CHUNKS_MAX)..place).rev() {
            looked.set(looked.get() + 1);
            let chunk = room.ring.get(arena, before)?;
            if chunk.gap || chunk.publisher != entry.publisher {
                continue;
            }
            sequence = sequence.wrapping_sub(1);
            if chunk.sequence != sequence {
                return None;
            }
            if chunk.flags & FIRST != 0 {
                return Some(judge(&chunk));
            }
        }
        None
    }

    /// Notes a place that the filter passes. `false`: the member must be told of others first.
    fn pass(&mut self, room: &Room, entry: &Entry<'_>, place: u64) -> bool {
        let Some(stream) = room
            .sources()
            .get(usize::from(entry.stream))
            .map(|source| source.stream)
        else {
            return true;
        };
        if let Some(last) = self.untold.last_mut() {
            let count = u64::from(last.count);
            let follows = (last.stream, last.end(), last.offset + count) == (stream, place, entry.offset);
            if follows && count < UNTOLD_MAX {
                last.count += 1;
                return true;
            }
        }
        if self.untold.len() >= RUNS_MAX {
            return false;
        }
        self.untold.push(Passed {
            handle: self.room,
            index: place,
            stream,
            offset: entry.offset,
            count: 1,
        });
        true
    }

    /// Tells the member of what it passed. `false`: no space for all.
    pub fn tell(&mut self, writer: &mut Writer<'_>) -> bool {
        let told = self.untold.iter().take_while(|passed| passed.write(writer)).count();
        self.untold.drain(..told);
        self.due &= !self.untold.is_empty();
        self.untold.is_empty()
    }

    /// Writes what the member gets from its cursor on into a datagram.
    pub fn write(
        &mut self,
        view: &View<'_>,
        joined: &mut Joined,
        writer: &mut Writer<'_>,
        counters: &mut GatewayCounters,
    ) -> Written {
        let View {
            room,
            arena,
            ref looked,
            ..
        } = *view;
        if self.latest.is_some() {
            return self.write_latest(view, joined, writer, counters);
        }
        let head = room.ring.next();
        while joined.cursor < head {
            let place = joined.cursor;
            let Some(entry) = room.ring.get(arena, place) else {
                return Written::Lost;
            };
            if joined.cursor < room.oldest_for(place, joined.joined_at) {
                return Written::Lost;
            }
            if looked.get() > LOOKED_MAX {
                return Written::Paused;
            }
            let lets = entry.gap || self.lets(room, arena, place, &entry, looked);
            if !lets {
                if !self.pass(room, &entry, place) {
                    if !self.tell(writer) {
                        return Written::Full;
                    }
                    continue;
                }
                counters.messages_filtered += 1;
                joined.cursor += 1;
                continue;
            }
            if !self.tell(writer) {
                return Written::Full;
            }
            let until = self.run(view, place, head);
            let Some(next) = view.frame(self.room, place, until, writer) else {
                return Written::Full;
            };
            counters.messages_sent += next - place;
            joined.cursor = next;
        }
        let untold: u64 = self.untold.iter().map(|passed| u64::from(passed.count)).sum();
        let due = self.due || untold >= UNTOLD_MAX || joined.cursor <= joined.joined_at;
        match untold > 0 && due && !self.tell(writer) {
            true => Written::Full,
            false => Written::All,
        }
    }

    /// The same for a member that wants the latest message.
    fn write_latest(
        &mut self,
        view: &View<'_>,
        joined: &mut Joined,
        writer: &mut Writer<'_>,
        counters: &mut GatewayCounters,
    ) -> Written {
        let (Some(latest), filter) = (self.latest.as_deref_mut(), &self.filter) else {
            return Written::All;
        };
        let View {
            room,
            arena,
            ref looked,
            ..
        } = *view;
        while joined.cursor < room.ring.next() {
            if looked.get() > LOOKED_MAX {
                return Written::Paused;
            }
            looked.set(looked.get() + 1);
            let Some(entry) = room.ring.get(arena, joined.cursor) else {
                joined.cursor = room.ring.readable(arena, joined.cursor).max(joined.cursor + 1);
                latest.gone_before(joined.cursor);
                continue;
            };
            latest.look(joined.cursor, &entry, || judge(filter, &entry));
            joined.cursor += 1;
        }
        let due = self.due || latest.told() < joined.joined_at;
        let written = latest.write(view, due, writer, counters);
        self.due &= latest.is_untold();
        written
    }

    /// The end of the places from one on that the filter lets through, one of which it does.
    fn run(&self, view: &View<'_>, place: u64, head: u64) -> u64 {
        let View {
            room,
            arena,
            ref looked,
            ..
        } = *view;
        let wanted = |place: &u64| {
            let entry = room.ring.get(arena, *place);
            entry.is_some_and(|entry| !entry.gap && self.lets(room, arena, *place, &entry, looked))
        };
        let longest = head.min(place + BLOCK_MESSAGES as u64);
        place + 1 + (place + 1..longest).take_while(wanted).count() as u64
    }

    /// Writes one frame for places that the member asked for again, as the first of them wants it: messages, a gap, or that
    /// they are passed. Returns the place behind it; `None`: no space.
    pub fn repair(&self, view: &View<'_>, (first, until): (u64, u64), writer: &mut Writer<'_>) -> Option<u64> {
        let View {
            room,
            arena,
            ref looked,
            ..
        } = *view;
        if let Some(latest) = &self.latest {
            return latest.repair(view, (first, until), writer);
        }
        let entry = room.ring.get(arena, first)?;
        if entry.gap || self.lets(room, arena, first, &entry, looked) {
            return view.frame(self.room, first, self.run(view, first, until), writer);
        }
        let stream = room.sources().get(usize::from(entry.stream))?.stream;
        let same = |(place, offset): &(u64, u64)| {
            let next = room.ring.get(arena, *place);
            next.is_some_and(|next| {
                !next.gap
                    && (next.stream, next.offset) == (entry.stream, *offset)
                    && !self.lets(room, arena, *place, &next, looked)
            })
        };
        let longest = until.min(first + UNTOLD_MAX);
        let more = (first + 1..longest).zip(entry.offset + 1..).take_while(same).count();
        let passed = Passed {
            handle: self.room,
            index: first,
            stream,
            offset: entry.offset,
            count: 1 + more as u32,
        };
        passed.write(writer).then(|| first + u64::from(passed.count))
    }
}

/// Whether a filter lets a message through, by its first chunk.
fn judge(filter: &Filter, entry: &Entry<'_>) -> bool {
    let block = match entry.flags & HEADERS {
        0 => None,
        _ => headers::split(entry.data).map(|(block, _)| block),
    };
    filter.lets(entry.publisher, entry.sequence, block)
}

impl View<'_> {
    /// Writes one frame from a place on, which ends before `until`. Returns the place behind it; `None`: no space.
    pub fn frame(&self, handle: u32, place: u64, until: u64, writer: &mut Writer<'_>) -> Option<u64> {
        let View { room, arena, now, .. } = *self;
        let start = writer.len();
        let built = match self.ages && is_young(room, arena, now, place) {
            true => build::<true>(room, arena, handle, (place, until), true, self.plain, writer),
            false => build::<false>(room, arena, handle, (place, until), true, self.plain, writer),
        };
        let Built { next, .. } = built?;
        if self.ages {
            tell_age(writer, start, now, self.away);
        }
        Some(next)
    }
}
