//! A topic, as a worker knows it.

use std::sync::Arc;
use std::time::Duration;

use muster_callback::Secrets;
use muster_messages::retry::RetryTable;

#[derive(Clone, Debug)]
pub struct Topic {
    /// Where a message goes that names no target of its own; may be empty.
    pub callback: String,
    pub secrets: Arc<Secrets>,
    /// Of one call, whole.
    pub timeout: Duration,
    pub retries: RetryTable,
    /// The longest pause that a target may ask for by `Retry-After`.
    pub pause_max: Duration,
}
