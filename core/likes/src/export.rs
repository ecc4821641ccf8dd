//! All that is known of one user, in pages: likes with their times, and entries in leaderboards.
//!
//! Owns the cursor of such a page. Reads only; a user's list may be rebuilt first, which changes no answer.

use crate::engine::Engine;
use crate::limits::{EXPORT_SLOTS_MAX, PAGE_MAX};
use crate::users::Place;

/// Where a page begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExportCursor {
    #[default]
    Begin,
    /// Behind this node of the user's list.
    List(Place),
    /// From this slot of an item on, where no lists of users are kept.
    Items(u32),
    /// From this slot of a leaderboard on.
    Leaderboards(u32),
}

/// One thing of a user.
#[derive(Clone, PartialEq, Debug)]
pub enum Exported<'a> {
    /// A like with its second since 1970, if that is known.
    Like {
        item: &'a [u8],
        at_s: Option<u32>,
    },
    Score {
        leaderboard: &'a [u8],
        score: f64,
    },
}

impl ExportCursor {
    /// Reads the form of [`ExportCursor::text`].
    pub fn parse(text: &[u8]) -> Option<ExportCursor> {
        let text = std::str::from_utf8(text).ok()?;
        let (kind, rest) = text.split_at_checked(1)?;
        let numbers = rest.split('.').map(|number| number.parse::<u32>().ok());
        let numbers: Vec<u32> = numbers.collect::<Option<_>>()?;
        match (kind, &numbers[..]) {
            ("b", [0]) => Some(ExportCursor::Begin),
            ("l", &[node, rebuilt, item, at_s]) => Some(ExportCursor::List(Place {
                node,
                rebuilt,
                item,
                at_s,
            })),
            ("i", &[slot]) => Some(ExportCursor::Items(slot)),
            ("s", &[slot]) => Some(ExportCursor::Leaderboards(slot)),
            _ => None,
        }
    }

    pub fn text(self) -> String {
        match self {
            ExportCursor::Begin => "b0".into(),
            ExportCursor::List(place) => format!("l{}.{}.{}.{}", place.node, place.rebuilt, place.item, place.at_s),
            ExportCursor::Items(slot) => format!("i{slot}"),
            ExportCursor::Leaderboards(slot) => format!("s{slot}"),
        }
    }
}

impl Engine {
    /// Up to `count` things of a user, and the cursor to continue with, `None` at the end. A page may be empty before the
    /// end. A like that exists during the whole export is returned.
    pub fn export(&mut self, user: u64, from: ExportCursor, count: usize) -> (Option<ExportCursor>, Vec<Exported<'_>>) {
        let count = count.clamp(1, PAGE_MAX);
        let dense = self.users.find(user);
        let from = match (from, dense) {
            (ExportCursor::Leaderboards(slot), _) => ExportCursor::Leaderboards(slot),
            (_, None) => ExportCursor::Leaderboards(0),
            (ExportCursor::Begin, Some(dense)) if self.options.items_by_user => {
                // Without items that the user likes no more, each item is in the list once.
                self.chain_will_change(dense);
                let items = &self.items;
                self.users.compact(dense, |slot| items.likes(slot, dense));
                ExportCursor::Begin
            }
            (ExportCursor::Begin | ExportCursor::List(_), _) if !self.options.items_by_user => ExportCursor::Items(0),
            (from, _) => from,
        };
        match (from, dense) {
            (ExportCursor::Begin | ExportCursor::List(_), Some(dense)) => {
                let behind = match from {
                    ExportCursor::List(place) => Some(place),
                    _ => None,
                };
                let (next, nodes) = self.users.list_behind(
                    dense,
                    behind,
                    EXPORT_SLOTS_MAX as usize,
                    |slot| self.items.likes(slot, dense),
                    count,
                );
                let liked = nodes.into_iter().map(|(slot, at_s)| Exported::Like {
                    item: self.items.key(slot),
                    at_s: (at_s > 0).then_some(at_s),
                });
                let next = next.map_or(ExportCursor::Leaderboards(0), ExportCursor::List);
                (Some(next), liked.collect())
            }
            (ExportCursor::Items(first), Some(dense)) => {
                let (mut slot, mut found) = (first, Vec::new());
                let end = first.saturating_add(EXPORT_SLOTS_MAX).min(self.items.slots());
                while slot < end && found.len() < count {
                    if self.items.likes(slot, dense) {
                        let item = self.items.key(slot);
                        found.push(Exported::Like { item, at_s: None });
                    }
                    slot += 1;
                }
                let next = match slot < self.items.slots() {
                    true => ExportCursor::Items(slot),
                    false => ExportCursor::Leaderboards(0),
                };
                (Some(next), found)
            }
            (ExportCursor::Leaderboards(first), _) => {
                let name = user.to_string();
                let (mut slot, mut found) = (first, Vec::new());
                let end = first.saturating_add(EXPORT_SLOTS_MAX).min(self.leaderboards.slots());
                while slot < end && found.len() < count {
                    let board = self.leaderboards.get(slot);
                    if let Some((board, score)) = board.and_then(|board| Some((board, board.score(name.as_bytes())?))) {
                        let leaderboard = &board.name[..];
                        found.push(Exported::Score { leaderboard, score });
                    }
                    slot += 1;
                }
                let next = (slot < self.leaderboards.slots()).then_some(ExportCursor::Leaderboards(slot));
                (next, found)
            }
            (_, None) => unreachable!("a user without a dense id has no likes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_their_text_and_nothing_else_is_one() {
        let place = Place {
            node: 1,
            rebuilt: 2,
            item: 3,
            at_s: u32::MAX,
        };
        for cursor in [
            ExportCursor::Begin,
            ExportCursor::List(place),
            ExportCursor::Items(7),
            ExportCursor::Leaderboards(0),
        ] {
            assert_eq!(ExportCursor::parse(cursor.text().as_bytes()), Some(cursor));
        }
        for text in ["", "b", "b1", "l1.2.3", "i-1", "i4294967296", "x0", "\u{e9}1", "s1.2"] {
            assert_eq!(ExportCursor::parse(text.as_bytes()), None, "{text}");
        }
    }
}
