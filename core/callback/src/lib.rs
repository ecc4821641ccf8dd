//! HTTP callbacks in a thread of their own: batches of calls in, batches of answers out.
//!
//! - Every call is signed as Standard Webhooks says, and has one deadline from connecting to the answer's last byte.
//! - The calls of one group to one URL have their own queue, places, breaker and pause: a URL that is slow or fails holds
//!   up no other one. An origin (scheme, host, port) has a token bucket, and a breaker that opens where it can't be
//!   connected to. A call that its target can't take now comes back [`Outcome::NotMade`], which is no attempt.
//! - Addresses are checked after name resolution, and the checked address is the one that is connected to. Private
//!   ranges are refused unless allowed. Redirects are not followed. Of an answer, a bounded part is read.
//!
//! Start from [`Caller`]. Must not know: messages, topics, retries; a call's number is the caller's own.
#![forbid(unsafe_code)]

mod breaker;
mod caller;
mod client;
mod guard;
mod signature;
mod target;

pub use caller::{Caller, Settings};
pub use client::{Failure, Identity, Tls};
pub use guard::Guard;
pub use signature::{verify, Secret, SecretError, Secrets};
pub use target::{Hold, Limits, Why};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

/// A callback to make.
#[derive(Clone, Debug)]
pub struct Call {
    /// Comes back with the answer.
    pub number: u64,
    /// Calls of one group to one URL share a breaker and a pause.
    pub group: u64,
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
    /// The longest pause that the target may ask for by `Retry-After`.
    pub pause_max: Duration,
    /// A good answer comes with its body.
    pub keeps_answer: bool,
}

/// A target that gets nothing now, or only trials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// `None`: the whole origin is held.
    pub group: Option<u64>,
    /// The URL, or the origin.
    pub url: String,
    pub hold: Hold,
    /// Zero: it is being tried.
    pub left: Duration,
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
    Delivered {
        status: u16,
        /// The beginning of the answer's body, if the call keeps it.
        body: Bytes,
    },
    /// Answered with another status; redirects too.
    Refused {
        status: u16,
        /// What the target asked for by `Retry-After`, at most the call's `pause_max`.
        retry_after: Option<Duration>,
        /// The beginning of the answer's body.
        body: Bytes,
    },
    /// Not answered. The target may have taken the call all the same.
    Failed(Failure),
    /// Not begun: not an attempt.
    NotMade { why: Why, retry_in: Duration },
}
