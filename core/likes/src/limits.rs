//! The bounds of the engine and of its front.

/// Bytes of an item's key: a kind and an id of any site fit many times.
pub const KEY_BYTES_MAX: usize = 512;

/// Fields of one item. Each is one ranking more that a toggle may have to move the item in.
pub const ITEM_FIELDS_MAX: usize = 16;

/// Bytes of a field's name.
pub const FIELD_BYTES_MAX: usize = 64;

/// Newest likers kept per item: one row of pictures. 128 bytes an item.
pub const NEWEST_MAX: usize = 32;

/// Likers of an item in a sorted vector; beyond that a roaring bitmap. Vectors of up to this size took a third of the memory and half of the time of bitmaps.
pub const SMALL_MAX: usize = 4_096;

/// Dense ids in one segment of the log: 64 Ki, one container of a roaring bitmap.
pub const SEGMENT_IDS: u32 = 1 << 16;

/// Offsets of a `BITOP NOT`: each may become a user of its own.
pub const NOT_OFFSETS_MAX: u64 = SEGMENT_IDS as u64;

/// Items of one `BITOP`, `DEL` or `EXISTS`.
pub const KEYS_MAX: usize = 1_024;

/// Entries of one page of a ranking, or of a list of likers or items.
pub const PAGE_MAX: usize = 10_000;

/// Likers of an item, or items of a user, that one command may walk through: some 5 ms at 25 ns each. A node's loop stands as long.
pub const WALK_MAX: u64 = 200_000;

/// Likers of all items of one `BITOP` or `LIKE.BOTH` together: some 5 ms of set operations.
pub const COMBINED_MAX: u64 = 32_000_000;

/// Changed items that wait to be told, and deleted ones: 256 KiB, and the keys of the deleted.
pub const NEWS_MAX: usize = 65_536;
