//! The bounds of the engine and of its front.

/// Longest key of an item, in bytes: several times a kind and an id of any site.
pub const KEY_BYTES_MAX: usize = 512;

/// Maximum number of fields of one item. Each is one more ranking in which a toggle may have to move the item.
pub const ITEM_FIELDS_MAX: usize = 16;

/// Longest name of a field, in bytes.
pub const FIELD_BYTES_MAX: usize = 64;

/// Newest likers kept per item: one row of pictures. 128 bytes per item.
pub const NEWEST_MAX: usize = 32;

/// Maximum number of likers of an item in a sorted vector; beyond it, a roaring bitmap. Vectors of up to this size
/// took a third of the memory and half of the time of bitmaps.
pub const SMALL_MAX: usize = 4_096;

/// Dense ids in one segment of the log: 64 Ki, one container of a roaring bitmap.
pub const SEGMENT_IDS: u32 = 1 << 16;

/// Maximum number of offsets of a `BITOP NOT`: each may become a new user.
pub const NOT_OFFSETS_MAX: u64 = SEGMENT_IDS as u64;

/// Maximum number of items of one `BITOP`, `DEL` or `EXISTS`.
pub const KEYS_MAX: usize = 1_024;

/// Maximum number of entries of one page of a ranking, or of a list of likers or items.
pub const PAGE_MAX: usize = 10_000;

/// Maximum number of kinds that exclude one another: an item of each may change with one like.
pub const ONE_OF_MAX: usize = 16;

/// Maximum number of leaderboards: one without members takes some 400 bytes.
pub const LEADERBOARDS_MAX: usize = 1 << 20;

/// Maximum number of members of one leaderboard: some 100 bytes each, and 110 more for each order that is asked for. The
/// first rank of a full one sorts for about a second, for which the node's loop stands still: less than a lease.
pub const LEADERBOARD_MEMBERS_MAX: usize = 2_000_000;

/// Longest name of a member, in bytes.
pub const MEMBER_BYTES_MAX: usize = 512;

/// Maximum number of members that one command changes: its arguments have no more.
pub const MEMBERS_MAX: usize = 1_040;

/// Maximum number of items of one page of a feed: under 1 ms at ten likers each, for which the node's loop stands still.
pub const FEED_ITEMS_MAX: usize = 1_000;

/// Maximum number of newest likers of each item there: 10,000 of a page, as of [`PAGE_MAX`].
pub const FEED_NEWEST_MAX: usize = 10;

/// Maximum number of likers of an item, or items of a user, that one command may walk: some 5 ms at 25 ns each, for
/// which the node's loop stands still.
pub const WALK_MAX: u64 = 200_000;

/// Maximum number of likers of all items of one `BITOP` or `LIKE.BOTH` together: some 5 ms of set operations.
pub const COMBINED_MAX: u64 = 32_000_000;

/// Maximum number of changed items that wait to be reported, and of deleted ones: 256 KiB, plus the keys of the
/// deleted.
pub const NEWS_MAX: usize = 65_536;

/// Maximum number of erasures of users under way: each looks at every change's user.
pub const ERASURES_MAX: usize = 64;

/// Maximum number of erasures that have ended and are still listed: some 200 bytes each.
pub const ERASURES_LISTED_MAX: usize = 1_000;

/// Maximum number of kinds that an erasure counts apart; the likes of further ones are counted together.
pub const ERASED_KINDS_MAX: usize = 64;

/// Maximum number of slots that one step of an erasure goes through: some 2 ms at 100 ns each.
pub const ERASE_SLOTS_MAX: u32 = 16_384;

/// Maximum number of items and members that one step of an erasure changes: some 1 ms.
pub const ERASE_CHANGES_MAX: u32 = 128;

/// Maximum number of slots that one page of a user's data goes through.
pub const EXPORT_SLOTS_MAX: u32 = 16_384;
