//! Due messages that no worker has, by topic.
//!
//! Owns: their order, oldest due time first, whenever they came. Must not know: claims, files.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::schedule::MessageId;
use crate::wheel::Millis;

/// 16 bytes per message. A push in order of time, the usual case, moves nothing.
#[derive(Default)]
pub(crate) struct Ready {
    topics: HashMap<u32, BinaryHeap<Reverse<(Millis, MessageId)>>>,
}

impl Ready {
    /// `at`: when it became due.
    pub fn push(&mut self, topic: u32, at: Millis, id: MessageId) {
        self.topics.entry(topic).or_default().push(Reverse((at, id)));
    }

    /// Takes the message that became due first.
    pub fn pop(&mut self, topic: u32) -> Option<(Millis, MessageId)> {
        self.topics.get_mut(&topic)?.pop().map(|Reverse(first)| first)
    }

    /// Topics with ready messages.
    pub fn topics(&self) -> impl Iterator<Item = u32> + '_ {
        self.topics
            .iter()
            .filter(|(_, ids)| !ids.is_empty())
            .map(|(topic, _)| *topic)
    }

    pub fn has(&self, topic: u32) -> bool {
        self.topics.get(&topic).is_some_and(|ids| !ids.is_empty())
    }

    pub fn clear(&mut self) {
        self.topics.clear();
    }

    pub fn len(&self) -> usize {
        self.topics.values().map(BinaryHeap::len).sum()
    }
}
