//! HTTP callbacks in a thread of their own: batches of calls in, batches of answers out.
//!
//! - Every call is signed as Standard Webhooks says, and has one deadline from connecting to the answer's last byte.
//! - A target (scheme, host, port) has its own queue, concurrency, token bucket and breaker: one that is slow or down
//!   holds up no other. A call that its target can't take now comes back [`Outcome::NotMade`], which is no attempt.
//! - Addresses are checked after name resolution, and the checked address is the one that is connected to. Private
//!   ranges are refused unless allowed. Redirects are not followed. Of an answer, a bounded part is read.
//!
//! Start from [`Caller`]. Must not know: messages, topics, retries; a call's number is the caller's own.
#![forbid(unsafe_code)]

mod caller;
mod client;
mod guard;
mod signature;
mod target;

pub use caller::{Caller, Settings};
pub use client::{Failure, TlsRoots};
pub use guard::Guard;
pub use signature::{verify, Secret, SecretError, Secrets};
pub use target::{Limits, Why};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

/// A callback to make.
#[derive(Clone, Debug)]
pub struct Call {
    /// Comes back with the answer.
    pub number: u64,
    /// `webhook-id`: stays the same for all attempts of a message, so that its target takes it once.
    pub id: String,
    /// `http` or `https`, without a user name.
    pub url: String,
    pub content_type: String,
    pub body: Bytes,
    /// Empty: the call is not signed.
    pub secrets: Arc<Secrets>,
    /// From the beginning of the call to the end of the answer.
    pub timeout: Duration,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub number: u64,
    pub outcome: Outcome,
    /// From the beginning of the call; zero if it was not made.
    pub took: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered with a status of 200 to 299.
    Delivered { status: u16 },
    /// Answered with another status; redirects too.
    Refused {
        status: u16,
        /// What the target asked for by `Retry-After`, at most a day.
        retry_after: Option<Duration>,
        /// The beginning of the answer's body.
        body: Bytes,
    },
    /// Not answered. The target may have taken the call all the same.
    Failed(Failure),
    /// Not begun: not an attempt.
    NotMade { why: Why, retry_in: Duration },
}
