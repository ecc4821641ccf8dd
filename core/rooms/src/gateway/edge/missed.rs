//! The calls `muster.positions` and `muster.gaps`: positions and gaps as clients over UDP see them.
//!
//! The client protocol carries a gap as `recovered` = false alone, so the ranges are kept until the client asks for them.

use muster_edge::Ticket;
use muster_transport::Micros;
use serde_json::{json, Value};

use super::{Edge, Missed};
use crate::gateway::room::Room;
use crate::ring::Arena;
use crate::wire::publish::Positions;
use crate::wire::{GapReason, StreamGap, StreamId};

/// Gaps that are kept for one client; the oldest make room.
const MISSED_MAX: usize = 32;

/// The gaps between a place and the head.
fn gaps_from(room: &Room, arena: &Arena, place: u64) -> Vec<StreamGap> {
    let entries = (place..room.ring.next()).filter_map(|at| room.ring.get(arena, at));
    let gaps = entries.filter(|entry| entry.gap && entry.reason() != GapReason::Ended);
    let gaps = gaps.filter_map(|entry| {
        Some(StreamGap {
            stream: room.sources().get(usize::from(entry.stream))?.stream,
            first: entry.offset,
            last: entry.sequence,
            reason: entry.reason(),
        })
    });
    gaps.take(MISSED_MAX).collect()
}

fn stream(stream: StreamId) -> Value {
    json!({"node": stream.node, "epoch": stream.epoch, "generation": stream.generation})
}

/// The answer to `muster.positions`.
pub(super) fn positions_told(positions: &Positions, epoch: &str, offset: u64) -> Value {
    let streams = positions.0.iter().map(|known| {
        let mut value = stream(known.stream);
        value["offset"] = known.offset.into();
        value
    });
    json!({"epoch": epoch, "offset": offset, "streams": streams.collect::<Vec<_>>()})
}

impl Edge {
    /// Notes what a client cannot have, which subscribes to a room again.
    pub(super) fn note_missed(&mut self, slot: u32, at: u32, place: u64, gaps: &[StreamGap]) {
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        let mut missed: Vec<_> = gaps.iter().copied().map(Some).collect();
        missed.extend(gaps_from(room, &self.arena, place).into_iter().map(Some));
        if missed.is_empty() {
            missed.push(None);
        }
        let name = room.name.clone();
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let kept = &mut conn.aside.get_or_insert_default().missed;
        for gap in missed {
            if kept.len() >= MISSED_MAX {
                kept.pop_front();
            }
            let room = name.clone();
            kept.push_back(Missed { room, gap });
        }
    }

    /// Tells a client the gaps of a room that it was not told before.
    pub(super) fn tell_missed(&mut self, now: Micros, slot: u32, ticket: Ticket, room: &str) {
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let missed = conn.aside.as_mut().map(|aside| &mut aside.missed);
        let mut told = std::collections::VecDeque::new();
        if let Some(missed) = missed {
            (told, *missed) = std::mem::take(missed)
                .into_iter()
                .partition::<std::collections::VecDeque<_>, _>(|missed| *missed.room == *room);
        }
        let gaps = told.iter().map(|missed| match missed.gap {
            None => json!({"reason": "unknown_position"}),
            Some(gap) => {
                let mut value = stream(gap.stream);
                value["first"] = gap.first.into();
                value["last"] = (gap.last != StreamGap::OPEN).then_some(gap.last).into();
                value["reason"] = gap.reason.name().into();
                value
            }
        });
        let text = json!({"gaps": gaps.collect::<Vec<_>>()}).to_string();
        if let Some(session) = conn.connection.session() {
            session.rpc(ticket, text.as_bytes());
        }
        self.sessions.settle(now, slot);
    }
}
