//! A topic, as a worker knows it.

use std::sync::Arc;
use std::time::Duration;

use muster_callback::Secrets;
use muster_messages::retry::RetryTable;

#[derive(Clone, Debug)]
pub struct Topic {
    /// The target of messages that name none; may be empty.
    pub callback: String,
    pub secrets: Arc<Secrets>,
    /// The deadline of one whole call.
    pub timeout: Duration,
    pub retries: RetryTable,
    /// The longest pause that a target may request by `Retry-After`.
    pub pause_max: Duration,
}
