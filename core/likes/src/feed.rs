//! Pages of a feed: what a viewer sees beside each of many items.
//!
//! Owns one walk over the items, with the viewer looked up once. Changes nothing.

use crate::engine::Engine;
use crate::limits::FEED_NEWEST_MAX;

/// One item of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeedEntry {
    pub count: u64,
    /// Whether the viewer likes the item; `None` without a viewer.
    pub likes: Option<bool>,
    /// Newest first.
    pub newest: Vec<u64>,
}

impl Engine {
    /// The entry of each of `keys`, in their order, with at most `newest` likers, itself at most
    /// [`crate::FEED_NEWEST_MAX`]. An item that does not exist has no likes.
    pub fn feed<'a>(
        &'a self,
        keys: &'a [&'a [u8]],
        viewer: Option<u64>,
        newest: usize,
    ) -> impl ExactSizeIterator<Item = FeedEntry> + 'a {
        let dense = viewer.map(|viewer| self.users.find(viewer));
        let newest = newest.min(FEED_NEWEST_MAX);
        keys.iter().map(move |key| {
            let item = self.items.by_key(key);
            let likes = |dense: Option<u32>| item.zip(dense).is_some_and(|(item, dense)| item.likers.contains(dense));
            let likers = item.into_iter().flat_map(|item| item.newest.iter().rev());
            FeedEntry {
                count: item.map_or(0, |item| item.likers.len()),
                likes: dense.map(likes),
                newest: likers.take(newest).map(|&dense| self.users.id(dense)).collect(),
            }
        })
    }
}
