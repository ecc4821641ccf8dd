//! Written frames that wait for a link's window, each with its session.
//!
//! Owns [`Queue`]: frames are stored back to back in reused blocks, so a frame costs neither an allocation nor cold
//! memory. Knows no link, and bounds nothing: the caller checks [`Queue::bytes`].

use std::collections::VecDeque;

use muster_transport::Writer;

/// Size of the blocks that frames are written into: longer than any frame, and within a processor's second-level
/// cache.
const BLOCK: usize = 64 * 1024;
/// Bytes that a frame costs besides its content.
const FRAME_COST: usize = 16;

struct Block {
    bytes: Box<[u8]>,
    /// Frames are in `first..next`.
    first: usize,
    next: usize,
}

/// A first-in, first-out queue of frames.
#[derive(Default)]
pub struct Queue {
    blocks: VecDeque<Block>,
    /// An empty block for the next frame that needs one.
    spare: Option<Block>,
    frames: VecDeque<(u64, u16)>,
    bytes: usize,
}

impl Queue {
    /// The cost of a frame of `len` bytes in [`Queue::bytes`].
    pub const fn cost(len: usize) -> usize {
        len + FRAME_COST
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Total cost of the waiting frames.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a frame of at most `len_max` bytes; `write` determines its length.
    #[inline]
    pub fn push(&mut self, session: u64, len_max: usize, write: impl FnOnce(&mut Writer<'_>)) {
        debug_assert!(len_max <= usize::from(u16::MAX) && len_max <= BLOCK);
        if self.blocks.back().is_none_or(|block| block.next + len_max > BLOCK) {
            let block = self.spare.take().unwrap_or_else(|| Block {
                bytes: vec![0; BLOCK].into_boxed_slice(),
                first: 0,
                next: 0,
            });
            self.blocks.push_back(block);
        }
        let Some(block) = self.blocks.back_mut() else { return };
        let mut writer = Writer::new(&mut block.bytes[block.next..block.next + len_max]);
        write(&mut writer);
        let len = writer.len();
        block.next += len;
        self.frames.push_back((session, len as u16));
        self.bytes += Self::cost(len);
    }

    /// The oldest frame, with its session.
    #[inline]
    pub fn front(&self) -> Option<(u64, &[u8])> {
        let (session, len) = *self.frames.front()?;
        let block = self.blocks.front()?;
        Some((session, &block.bytes[block.first..block.first + usize::from(len)]))
    }

    /// Removes the frame that [`Queue::front`] returns.
    #[inline]
    pub fn pop(&mut self) {
        let Some((_, len)) = self.frames.pop_front() else {
            return;
        };
        self.bytes -= Self::cost(usize::from(len));
        let Some(block) = self.blocks.front_mut() else { return };
        block.first += usize::from(len);
        if block.first < block.next {
            return;
        }
        (block.first, block.next) = (0, 0);
        if self.blocks.len() > 1 {
            self.spare = self.blocks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(steps in prop::collection::vec((any::<bool>(), 1usize..9_000), 1..400)) {
            let mut queue = Queue::default();
            let mut model: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
            for (step, (pop, len)) in steps.into_iter().enumerate() {
                if pop {
                    queue.pop();
                    model.pop_front();
                } else {
                    let frame = vec![step as u8; len];
                    queue.push(step as u64, len + step % 3, |writer| {
                        writer.put(&frame);
                    });
                    model.push_back((step as u64, frame));
                }
                let front = model.front().map(|(session, frame)| (*session, &frame[..]));
                prop_assert_eq!(queue.front(), front);
                prop_assert_eq!(queue.is_empty(), model.is_empty());
                prop_assert_eq!(queue.bytes(), model.iter().map(|(_, frame)| frame.len() + 16).sum::<usize>());
                let held: usize = model.iter().map(|(_, frame)| frame.len()).sum();
                prop_assert!(queue.blocks.len() <= 2 + held / (BLOCK - 9_000), "{} blocks", queue.blocks.len());
            }
        }
    }
}
