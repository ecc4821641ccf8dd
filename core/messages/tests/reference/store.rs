//! The store as two maps, with staged changes as a list.

use std::collections::BTreeMap;

use muster_messages::schedule::{Ahead, Change, Message, MessageId, Refusal, Step, Version};
use muster_messages::wheel::Millis;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Store {
    pub messages: BTreeMap<u64, (Message, Vec<u8>)>,
    pub ahead: BTreeMap<u64, Ahead>,
}

impl Store {
    /// `true` if the message is new.
    pub fn insert(&mut self, id: MessageId, due_at: Millis, expires_at: Millis, body: &[u8]) -> bool {
        if self.messages.contains_key(&id.0) {
            return false;
        }
        let mut message = Message::new(id, due_at, expires_at);
        if let Some(ahead) = self.ahead.remove(&id.0) {
            ahead.meet(&mut message);
        }
        self.messages.insert(id.0, (message, body.to_vec()));
        true
    }

    /// `Ok(None)`: requested ahead of the message.
    pub fn change(
        &mut self,
        now: Millis,
        id: MessageId,
        change: Change,
        expected: Option<Version>,
    ) -> Result<Option<Step>, Refusal> {
        if let Some((message, _)) = self.messages.get_mut(&id.0) {
            return message.apply(now, change, expected).map(Some);
        }
        if expected.is_some() {
            return Err(Refusal::Unknown);
        }
        let mut ahead = self.ahead.get(&id.0).copied().unwrap_or_default();
        ahead.ask(change)?;
        self.ahead.insert(id.0, ahead);
        Ok(None)
    }

    /// Messages that a claim would take or end.
    pub fn due(&self, now: Millis) -> Vec<MessageId> {
        let due = self
            .messages
            .values()
            .filter(|(message, _)| message.wake_at().is_some_and(|at| at <= now));
        due.map(|(message, _)| message.id).collect()
    }
}
