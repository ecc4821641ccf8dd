//! The messages of the near window, in memory by number.
//!
//! Owns: the slab and its free list. Must not know: the wheel, files.

use super::op::Op;
use crate::wheel::Token;

/// A message in memory: about 100 bytes, besides 32 in the wheel.
pub(crate) struct Near {
    pub op: Op,
    /// The hour whose files store it.
    pub home: u32,
    /// The number of its latest operation there.
    pub number: u32,
    /// Its entry in the wheel; `None` once it is due.
    pub token: Option<Token>,
}

#[derive(Default)]
pub(crate) struct Slab {
    entries: Vec<Option<Near>>,
    free: Vec<u32>,
}

impl Slab {
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Number of slots, including free ones.
    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    /// The messages in `count` slots.
    pub fn some(&self, from: usize, count: usize) -> impl Iterator<Item = &Near> {
        self.entries.iter().skip(from).take(count).flatten()
    }

    pub fn insert(&mut self, near: Near) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = Some(near);
                at
            }
            None => {
                self.entries.push(Some(near));
                self.entries.len() as u32 - 1
            }
        }
    }

    pub fn get(&self, at: u32) -> &Near {
        self.entries[at as usize]
            .as_ref()
            .expect("the index names entries that are there")
    }

    pub fn get_mut(&mut self, at: u32) -> &mut Near {
        self.entries[at as usize]
            .as_mut()
            .expect("the index names entries that are there")
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Near)> {
        (0..)
            .zip(&mut self.entries)
            .filter_map(|(at, near)| Some((at, near.as_mut()?)))
    }

    pub fn remove(&mut self, at: u32) -> Near {
        self.free.push(at);
        self.entries[at as usize]
            .take()
            .expect("the index names entries that are there")
    }

    /// Bytes of memory in use.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Option<Near>>() + self.free.capacity() * size_of::<u32>()
    }
}
