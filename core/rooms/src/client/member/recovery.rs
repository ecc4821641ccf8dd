//! Whether a join continued the membership without loss.
//!
//! Owns what the gateway had when it answered, per stream. Knows no place and no item.

use crate::wire::publish::{Course, Positions};
use crate::wire::StreamId;

/// What the last join promised.
#[derive(Default)]
pub struct Recovery {
    /// Per stream, the first offset that the gateway had not yet when it answered.
    heads: Vec<(StreamId, u64)>,
    /// Everything before the heads, from this membership's position on, has arrived or still may.
    whole: bool,
    /// Messages delivered before the join.
    delivered: u64,
}

impl Recovery {
    /// The gateway confirmed a join with these streams and heads. `whole`: it continues the membership and lacks
    /// nothing. `delivered`: messages delivered before.
    pub(super) fn new(start: &Positions, heads: &[u64], whole: bool, delivered: u64) -> Self {
        let streams = start.0.iter().map(|start| start.stream);
        Recovery {
            heads: streams.zip(heads.iter().copied()).collect(),
            whole,
            delivered,
        }
    }

    /// Whether nothing of the membership is lost, up to what has arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether these positions have not reached a head.
    pub(super) fn is_behind(&self, positions: &Positions) -> bool {
        let behind = |(stream, head): &(StreamId, u64)| {
            let had = positions.of(*stream);
            // A stream that had ended there may have continued.
            had.is_none_or(|had| had.course != Course::Lost && had.offset + 1 < *head)
        };
        self.heads.iter().any(behind)
    }

    /// Whether the gateway had this message when it answered.
    pub(super) fn is_before_head(&self, stream: StreamId, offset: u64) -> bool {
        let mut heads = self.heads.iter();
        heads.any(|(known, head)| *known == stream && offset < *head)
    }

    /// Messages from `first` on are lost to the reader: some that the gateway had when it answered, or some before
    /// the first message. `delivered`: messages delivered so far.
    pub(super) fn note_lost(&mut self, stream: StreamId, first: u64, delivered: u64) {
        self.whole &= !self.is_before_head(stream, first) && self.delivered < delivered;
    }
}
