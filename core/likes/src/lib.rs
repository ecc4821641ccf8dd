//! Likes: a deterministic state machine over log records, behind Redis's protocol.
//!
//! - [`Engine`] holds for each item the set of likers, the count, the newest likers and a modification number; for
//!   each user the items; and rankings overall and per field, by count and by windows of 1 h, 24 h and 7 d. It
//!   changes only by records in the order of their log, so a replay gives the same results.
//! - Leaderboards are apart: members with scores that the application sets, on the same rank structure.
//! - A user is erased by a job of many records, after which neither the state nor a file names the user.
//! - Users have 64-bit ids. Sets hold them as dense 32-bit ids, from segments that are records of the log.
//! - Neither reads a clock, a socket or a file: the owner passes in bytes and times, appends the records to its log
//!   and applies them once they are durable.
//!
//! Start from [`resp::Front`], which serves clients, and [`Engine`] and [`Record`] below it.
#![forbid(unsafe_code)]

mod boards;
mod cut;
mod engine;
mod erasing;
mod erasure;
mod export;
mod feed;
mod items;
mod keyed;
mod leaderboards;
mod likers;
mod limits;
mod ranking;
mod record;
pub mod resp;
mod rows;
mod snapshot;
mod trend;
mod users;

pub use engine::{Answer, ApplyError, ChangedItem, Engine, Options, Ranked, Row, RowLikes};
pub use erasure::{Erasure, Phase};
pub use export::{ExportCursor, Exported};
pub use feed::FeedEntry;
pub use leaderboards::{How, Scored, Ties};
pub use limits::{
    COMBINED_MAX, ERASED_KINDS_MAX, ERASE_CHANGES_MAX, ERASE_SLOTS_MAX, ERASURES_LISTED_MAX, ERASURES_MAX,
    FEED_ITEMS_MAX, FEED_NEWEST_MAX, FIELD_BYTES_MAX, ITEM_FIELDS_MAX, KEYS_MAX, KEY_BYTES_MAX, LEADERBOARDS_MAX,
    LEADERBOARD_MEMBERS_MAX, MEMBERS_MAX, MEMBER_BYTES_MAX, NEWEST_MAX, NEWS_MAX, NOT_OFFSETS_MAX, ONE_OF_MAX,
    PAGE_MAX, WALK_MAX,
};
pub use record::{BitOp, Record};
pub use rows::RowError;
pub use snapshot::RestoreError;
pub use trend::WINDOWS;
pub use users::Place;
