//! All rankings: overall and per field, by count and by window.
//!
//! Owns which items are in which ranking. Knows neither users nor records.
//!
//! An item is in the overall ranking, in the field named after its kind (the part of its key before the first colon),
//! and in the fields that the application gave it. A ranking's key is `rank` or `rank:FIELD`, then `@1h`, `@24h` or
//! `@7d` for a window.

use crate::items::{Item, Items};
use crate::leaderboards::window;
use crate::ranking::{Ranking, ScoreBits};
use crate::trend::WINDOWS;
use hashbrown::HashMap;

/// Rankings of a field: by count, and by each window.
const RANKINGS: usize = 1 + WINDOWS.len();

#[derive(Default)]
struct Board([Ranking; RANKINGS]);

#[derive(Default)]
struct Field {
    name: Box<[u8]>,
    /// May contain a slot twice, or one that has left.
    members: Vec<u32>,
    left: usize,
    board: Board,
}

#[derive(Default)]
pub(crate) struct Boards {
    overall: Board,
    fields: Vec<Field>,
    by_name: HashMap<Box<[u8]>, u32>,
}

/// Identifies one ranking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Which<'a> {
    field: Option<&'a [u8]>,
    /// 0: by count; otherwise 1 + the window.
    pub by: usize,
}

impl<'a> Which<'a> {
    /// `None` if `key` names no ranking.
    pub fn parse(key: &'a [u8]) -> Option<Which<'a>> {
        let rest = key.strip_prefix(b"rank")?;
        let (by, rest) = window(rest).map_or((0, rest), |(window, rest)| (1 + window, rest));
        match rest.split_first() {
            None => Some(Which { field: None, by }),
            Some((b':', field)) => Some(Which { field: Some(field), by }),
            Some(_) => None,
        }
    }
}

impl Boards {
    /// The number of a field; a new one if necessary.
    pub fn field(&mut self, name: &[u8]) -> u32 {
        if let Some(&field) = self.by_name.get(name) {
            return field;
        }
        let field = self.fields.len() as u32;
        self.fields.push(Field {
            name: name.into(),
            ..Field::default()
        });
        self.by_name.insert(name.into(), field);
        field
    }

    pub fn name(&self, field: u32) -> &[u8] {
        &self.fields[field as usize].name
    }

    /// Adds an item, whose fields are set, to its rankings.
    pub fn enter(&mut self, slot: u32, items: &Items) {
        let Some(item) = items.get(slot) else { return };
        for &field in &item.fields {
            self.fields[field as usize].members.push(slot);
        }
        self.touch(slot, items);
    }

    /// Called while the item still has its key and fields.
    pub fn leave(&mut self, slot: u32, items: &Items) {
        let Some(item) = items.get(slot) else { return };
        self.overall.each(|_, ranking| ranking.remove(slot, items));
        for &number in &item.fields {
            let field = &mut self.fields[number as usize];
            field.board.each(|_, ranking| ranking.remove(slot, items));
            field.left += 1;
            if field.left > field.members.len() / 2 {
                let stays = |&member: &u32| {
                    member != slot && items.get(member).is_some_and(|item| item.fields.contains(&number))
                };
                field.members.retain(stays);
                field.members.sort_unstable();
                field.members.dedup();
                field.left = 0;
            }
        }
    }

    /// An item's count or trends have changed.
    pub fn touch(&mut self, slot: u32, items: &Items) {
        let Some(item) = items.get(slot) else { return };
        self.overall
            .each(|by, ranking| ranking.touch(slot, items, |slot| score(items, slot, None, by)));
        for &field in &item.fields {
            let board = &mut self.fields[field as usize].board;
            board.each(|by, ranking| ranking.touch(slot, items, |slot| score(items, slot, Some(field), by)));
        }
    }

    /// Every score of a window has changed.
    pub fn drop_window(&mut self, window: usize) {
        self.overall.0[1 + window].drop_order();
        for field in &mut self.fields {
            field.board.0[1 + window].drop_order();
        }
    }

    pub fn len(&mut self, which: Which, items: &Items) -> usize {
        self.ask(which, items, |ranking, members, score| {
            ranking.len(items, members, score)
        })
        .unwrap_or(0)
    }

    pub fn rank(&mut self, which: Which, slot: u32, items: &Items) -> Option<usize> {
        self.ask(which, items, |ranking, members, score| {
            ranking.rank(slot, items, members, score)
        })
        .flatten()
    }

    pub fn above(&mut self, which: Which, wanted: (ScoreBits, &[u8]), items: &Items) -> usize {
        self.ask(which, items, |ranking, members, score| {
            ranking.above(wanted, items, members, score)
        })
        .unwrap_or(0)
    }

    pub fn page(&mut self, which: Which, from: usize, count: usize, items: &Items) -> Vec<(u32, ScoreBits)> {
        self.ask(which, items, |ranking, members, score| {
            ranking.page(from, count, items, members, score)
        })
        .unwrap_or_default()
    }

    /// The score of an item, if it is in the ranking.
    pub fn score(&self, which: Which, slot: u32, items: &Items) -> Option<ScoreBits> {
        let field = which.field.map(|name| self.by_name.get(name).copied());
        match field {
            Some(None) => None,
            field => score(items, slot, field.flatten(), which.by),
        }
    }

    fn ask<R>(
        &mut self,
        which: Which,
        items: &Items,
        answer: impl FnOnce(&mut Ranking, &mut dyn Iterator<Item = u32>, &dyn Fn(u32) -> Option<ScoreBits>) -> R,
    ) -> Option<R> {
        let by = which.by;
        let Some(name) = which.field else {
            let ranking = &mut self.overall.0[by];
            return Some(answer(ranking, &mut items.iter().map(|(slot, _)| slot), &|slot| {
                score(items, slot, None, by)
            }));
        };
        let number = *self.by_name.get(name)?;
        let field = &mut self.fields[number as usize];
        let members = &mut field.members.iter().copied();
        Some(answer(&mut field.board.0[by], members, &|slot| {
            score(items, slot, Some(number), by)
        }))
    }
}

impl Board {
    fn each(&mut self, mut run: impl FnMut(usize, &mut Ranking)) {
        for (by, ranking) in self.0.iter_mut().enumerate() {
            run(by, ranking);
        }
    }
}

/// Only items with at least one like are ranked.
fn score(items: &Items, slot: u32, field: Option<u32>, by: usize) -> Option<ScoreBits> {
    let item = items.get(slot)?;
    let takes_part = !item.derived && field.is_none_or(|field| item.fields.contains(&field));
    (takes_part && item.likers.len() > 0).then(|| score_bits(item, by))
}

fn score_bits(item: &Item, by: usize) -> ScoreBits {
    match by {
        0 => item.likers.len(),
        by => item.trends[by - 1].to_bits(),
    }
}
