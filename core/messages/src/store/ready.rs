//! Due messages that no worker has, by topic.
//!
//! Owns: their order, the oldest time first, whenever they came. Must not know: claims, files.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::schedule::MessageId;
use crate::wheel::Millis;

/// 16 bytes a message. A push in the order of time, which is the usual one, moves nothing.
#[derive(Default)]
pub(crate) struct Ready {
    topics: HashMap<u32, BinaryHeap<Reverse<(Millis, MessageId)>>>,
}

impl Ready {
    /// `at`: when it fell due.
    pub fn push(&mut self, topic: u32, at: Millis, id: MessageId) {
        self.topics.entry(topic).or_default().push(Reverse((at, id)));
    }

    /// The message that fell due first.
    pub fn pop(&mut self, topic: u32) -> Option<(Millis, MessageId)> {
        self.topics.get_mut(&topic)?.pop().map(|Reverse(first)| first)
    }

    /// Topics with such messages.
    pub fn topics(&self) -> impl Iterator<Item = u32> + '_ {
        self.topics
            .iter()
            .filter(|(_, ids)| !ids.is_empty())
            .map(|(topic, _)| *topic)
    }

    pub fn len(&self) -> usize {
        self.topics.values().map(BinaryHeap::len).sum()
    }
}
