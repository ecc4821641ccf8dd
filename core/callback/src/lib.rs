//! HTTP callbacks in their own thread: batches of calls in, batches of results out.
//!
//! - Every call is signed by Standard Webhooks, and has one deadline from connecting to the last byte of the
//!   response.
//! - The calls of one group to one URL have their own queue, slots, circuit breaker and pause: a URL that is slow or
//!   fails delays no other one. An origin (scheme, host, port) has a token bucket, and a breaker that opens if it is
//!   unreachable. A call that its target can't take now returns [`Outcome::NotMade`], which is no attempt.
//! - Addresses are checked after name resolution, and only the checked address is connected to. Private ranges are
//!   refused unless allowed. Redirects are not followed. Only a bounded part of a response is read.
//!
//! Start from [`Caller`]. Must not know: messages, topics, retries; a call's number is the caller's.
#![forbid(unsafe_code)]

mod breaker;
mod caller;
mod client;
mod guard;
mod settings;
mod signature;
mod target;

pub use caller::{Caller, Settings};
pub use client::{Failure, Identity, Tls};
pub use guard::Guard;
pub use settings::CallSettings;
pub use signature::{verify, Secret, SecretError, Secrets};
pub use target::{Hold, Limits, Why};

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

/// A callback to make.
#[derive(Clone, Debug)]
pub struct Call {
    /// Returned with the result.
    pub number: u64,
    /// Calls of one group to one URL share a breaker and a pause.
    pub group: u64,
    /// `webhook-id`: the same for all attempts of a message, so that its target can drop repeats.
    pub id: String,
    /// `http` or `https`, without a user name.
    pub url: String,
    pub content_type: String,
    pub body: Bytes,
    /// Empty: the call is not signed.
    pub secrets: Arc<Secrets>,
    /// From the start of the call to the end of the response.
    pub timeout: Duration,
    /// The longest pause that the target may request by `Retry-After`.
    pub pause_max: Duration,
    /// Whether a successful result includes the response's body.
    pub keeps_answer: bool,
}

/// A target that gets no calls now, or only trials.
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

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub number: u64,
    pub outcome: Outcome,
    /// From the start of the call; zero if it was not made.
    pub took: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response with a status of 200 to 299.
    Delivered {
        status: u16,
        /// The beginning of the response's body, if the call keeps it.
        body: Bytes,
    },
    /// A response with another status, including redirects.
    Refused {
        status: u16,
        /// The pause requested by `Retry-After`, at most the call's `pause_max`.
        retry_after: Option<Duration>,
        /// The beginning of the response's body.
        body: Bytes,
    },
    /// No response. The target may have processed the call all the same.
    Failed(Failure),
    /// Not started: not an attempt.
    NotMade { why: Why, retry_in: Duration },
}
