//! The join of a room at the gateway: its request, the reply, refusals and repeats.
//!
//! Owns whether the gateway knows this membership. Knows no message and no session.

use super::Answer;
use crate::client::joining::LOG_FULL_WAIT;
use muster_transport::Micros;

/// A membership at the gateway, or the request for one.
pub struct Join {
    /// Number of the request.
    pub request: u32,
    /// How much history the program requests.
    pub history: u32,
    /// The gateway's handle, while there is a membership.
    pub handle: Option<u32>,
    /// The gateway's handle of an earlier, cancelled join of this room while this join waits: the gateway already
    /// holds a membership.
    pub owed: Option<u32>,
    /// When a refused join is repeated.
    pub retry_at: Option<Micros>,
    /// How often in a row the join was refused.
    pub refusals: u32,
    /// The gateway owes a reply.
    asked: bool,
    /// Refused for good: the join is not repeated.
    refused: bool,
    /// The first reply: the number of messages of history, and whether that is all.
    given: Option<(u32, bool)>,
}

impl Join {
    pub(super) fn new(request: u32) -> Self {
        Join {
            request,
            history: 0,
            handle: None,
            owed: None,
            retry_at: None,
            refusals: 0,
            asked: false,
            refused: false,
            given: None,
        }
    }

    /// The first reply of a gateway: the number of messages of history, and whether that is all.
    pub fn given(&self) -> Option<(u32, bool)> {
        self.given
    }

    /// Whether the gateway owes a reply.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether the join was refused for good.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether a reply is still to come, to this request or to a later one.
    pub fn is_open(&self) -> bool {
        self.handle.is_none() && !self.refused
    }

    /// The request is in the log of the session, or found no space there.
    pub fn ask(&mut self, now: Micros, told: bool) {
        self.asked = told;
        self.retry_at = (!told).then_some(now + LOG_FULL_WAIT);
    }

    /// The gateway confirmed the join. Returns whether it had confirmed an earlier one.
    pub(super) fn answered(&mut self, answer: &Answer) -> bool {
        let again = self.given.is_some();
        self.given.get_or_insert((answer.history, answer.whole));
        self.handle = Some(answer.handle);
        (self.asked, self.owed) = (false, None);
        (self.retry_at, self.refusals) = (None, 0);
        again
    }

    /// The gateway refused the join until `at`.
    pub fn put_off(&mut self, at: Micros) {
        self.asked = false;
        self.retry_at = Some(at);
        self.refusals += 1;
    }

    /// The gateway refused the join for good.
    pub fn refuse(&mut self) {
        (self.asked, self.refused) = (false, true);
    }

    /// Whether the request is due again: once.
    pub fn take_retry(&mut self, now: Micros) -> bool {
        self.retry_at.take_if(|at| now >= *at).is_some()
    }

    /// The session is gone.
    pub(super) fn lost_session(&mut self) {
        self.handle = None;
        (self.asked, self.owed) = (false, None);
    }
}
