//! Bytes that a socket has not taken yet: shared ones as cursors, a stream's own as a copy.
//!
//! Owns: [`Owed`].

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::limits::VECTORS_MAX;

#[derive(Default)]
pub(crate) struct Owed {
    parts: VecDeque<Bytes>,
}

impl Owed {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Owes what is left of these bytes behind the first `sent`, of which it takes its part. `keep` makes them last.
    pub fn push(&mut self, bytes: &[u8], sent: &mut usize, keep: impl FnOnce(usize) -> Bytes) {
        let taken = bytes.len().min(*sent);
        *sent -= taken;
        if taken < bytes.len() {
            self.parts.push_back(keep(taken));
        }
    }

    /// Fills vectors with the next bytes.
    pub fn vectors<'a>(&'a self, vectors: &mut Vec<IoSlice<'a>>) {
        vectors.extend(self.parts.iter().take(VECTORS_MAX).map(|part| IoSlice::new(part)));
    }

    /// These many bytes are taken.
    pub fn advance(&mut self, mut count: usize) {
        while let Some(part) = self.parts.front_mut() {
            if part.len() > count {
                part.advance(count);
                return;
            }
            count -= part.len();
            self.parts.pop_front();
        }
    }
}
