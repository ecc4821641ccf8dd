//! Frames that wait for the links that will carry them.
//!
//! Owns [`Mail`]: for each linked node a buffer of whole frames back to back, so that a frame costs a copy and no
//! allocation. A frame without a link, or beyond the bound, is dropped and counted: its sender repeats it by its own
//! timer. Knows only a frame's length and whether its kind elicits a status.

use std::collections::BTreeMap;

use crate::codec::Writer;
use crate::wire::frame::{FrameKinds, FRAME};

/// Maximum bytes that wait for one node: what a busy link sends in a second, plus a full state of presence.
pub const MAIL_BYTES_MAX: usize = 4 << 20;
/// Memory of an empty queue that stays allocated; more is freed.
const MAIL_KEPT: usize = 64 << 10;

/// The frames for one node.
#[derive(Default)]
struct Queue {
    /// Whole frames, starting at `front`.
    bytes: Vec<u8>,
    front: usize,
    frames: usize,
}

impl Queue {
    fn len(&self) -> usize {
        self.bytes.len() - self.front
    }

    fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Frees written bytes. Each byte is moved at most once each time that half of them left.
    fn trim(&mut self) {
        if self.front == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(MAIL_KEPT);
            self.front = 0;
        } else if self.front > self.bytes.len() / 2 {
            self.bytes.drain(..self.front);
            self.front = 0;
        }
    }
}

/// The result of [`Mail::fill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filled {
    pub any: bool,
    /// A status must cover the datagram.
    pub elicits: bool,
}

/// Queued frames, by the linked node that they are for.
#[derive(Default)]
pub struct Mail {
    queues: BTreeMap<u32, Queue>,
    /// Nodes whose queues became non-empty since the last [`Mail::begun`].
    begun: Vec<u32>,
    /// Frames written into datagrams.
    pub sent: u64,
    /// Frames dropped: their node has no link, or lost it.
    pub dropped_unlinked: u64,
    /// Frames dropped: the node's queue was full.
    pub dropped_full: u64,
}

impl Mail {
    /// The node is linked. Frames still queued from an earlier link go out on this one.
    pub fn open(&mut self, node: u32) {
        self.queues.entry(node).or_default();
    }

    /// The link to the node is lost: drops its queued frames.
    pub fn close(&mut self, node: u32) {
        let frames = self.queues.remove(&node).map_or(0, |queue| queue.frames);
        self.dropped_unlinked += frames as u64;
    }

    /// Queues a whole frame for a linked node. `false`: it is dropped.
    pub fn send(&mut self, node: u32, frame: &[u8]) -> bool {
        debug_assert_eq!(length(frame), Some(frame.len()), "one whole frame");
        let Some(queue) = self.queues.get_mut(&node) else {
            self.dropped_unlinked += 1;
            return false;
        };
        if queue.len() + frame.len() > MAIL_BYTES_MAX {
            self.dropped_full += 1;
            return false;
        }
        if queue.is_empty() {
            self.begun.push(node);
        }
        queue.frames += 1;
        queue.bytes.extend_from_slice(frame);
        true
    }

    /// Nodes that are linked, in the order of their numbers.
    pub fn linked(&self) -> impl Iterator<Item = u32> + '_ {
        self.queues.keys().copied()
    }

    pub fn is_linked(&self, node: u32) -> bool {
        self.queues.contains_key(&node)
    }

    /// Nodes whose queues became non-empty since the last call: their links need a turn.
    pub fn begun(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.begun.drain(..)
    }

    /// Whether anything is queued for a node.
    pub fn waits(&self, node: u32) -> bool {
        self.queues.get(&node).is_some_and(|queue| !queue.is_empty())
    }

    /// Number of queued frames.
    pub fn waiting(&self) -> usize {
        self.queues.values().map(|queue| queue.frames).sum()
    }

    /// Writes as many of a node's frames as fit. `kinds`: the frame kinds of its link.
    pub fn fill(&mut self, node: u32, writer: &mut Writer<'_>, kinds: FrameKinds) -> Filled {
        let mut filled = Filled::default();
        let Some(queue) = self.queues.get_mut(&node) else {
            return filled;
        };
        let rest = &queue.bytes[queue.front..];
        let mut end = 0;
        while let Some(len) = length(&rest[end..]).filter(|len| end + len <= writer.room()) {
            filled.elicits |= kinds.find(rest[end]).is_some_and(|kind| kinds.elicits(kind));
            end += len;
            queue.frames -= 1;
            self.sent += 1;
        }
        writer.put(&rest[..end]);
        filled.any = end > 0;
        queue.front += end;
        queue.trim();
        filled
    }
}

/// The length of the first frame, header included; `None`: there is none.
fn length(frames: &[u8]) -> Option<usize> {
    let head = frames.first_chunk::<FRAME>()?;
    Some(FRAME + usize::from(u16::from_le_bytes([head[2], head[3]])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::append;
    use crate::wire::FrameKind;

    const LOUD: FrameKind = FrameKind::new(40);
    const QUIET: FrameKind = FrameKind::new(41);
    const KINDS: FrameKinds = FrameKinds::TRANSPORT.with(&[LOUD], false).with(&[QUIET], true);

    fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; FRAME + body.len()];
        let mut writer = Writer::new(&mut bytes);
        assert!(append(&mut writer, kind, 0, |writer| !writer.put(body).full()));
        bytes
    }

    /// The frames in each datagram of this size, and whether a status must cover the datagram.
    fn left(mail: &mut Mail, size: usize) -> Vec<(Vec<u8>, bool)> {
        let mut all = Vec::new();
        loop {
            let mut bytes = vec![0; size];
            let mut writer = Writer::new(&mut bytes);
            let filled = mail.fill(7, &mut writer, KINDS);
            if !filled.any {
                return all;
            }
            all.push((writer.written().to_vec(), filled.elicits));
        }
    }

    #[test]
    fn frames_leave_whole_and_in_order_and_silent_ones_elicit_no_status() {
        let mut mail = Mail::default();
        mail.open(7);
        let (one, two, three) = (frame(QUIET, b"one"), frame(LOUD, b"two"), frame(QUIET, b"three"));
        for each in [&one, &two, &three] {
            assert!(mail.send(7, each));
        }
        assert_eq!(mail.begun().collect::<Vec<_>>(), [7], "told once");
        assert_eq!((mail.waiting(), mail.waits(7), mail.waits(8)), (3, true, false));
        let wanted = [([one, two].concat(), true), (three, false)];
        assert_eq!(left(&mut mail, 20), wanted);
        assert_eq!((mail.waiting(), mail.waits(7), mail.sent), (0, false, 3));
        assert!(mail.send(7, &frame(LOUD, b"")));
        assert_eq!(mail.begun().collect::<Vec<_>>(), [7], "and again once it was empty");
    }

    #[test]
    fn frames_without_a_link_or_beyond_the_bound_are_dropped_and_counted() {
        let mut mail = Mail::default();
        let long = frame(LOUD, &[0; 1_000]);
        assert!(!mail.send(7, &long));
        mail.open(7);
        let fits = MAIL_BYTES_MAX / long.len();
        (0..fits).for_each(|_| assert!(mail.send(7, &long)));
        assert!(!mail.send(7, &long));
        assert_eq!((mail.dropped_unlinked, mail.dropped_full), (1, 1));
        mail.open(7);
        assert_eq!(mail.waiting(), fits, "a newer link carries it");
        mail.close(7);
        assert_eq!((mail.dropped_unlinked, mail.waiting()), (1 + fits as u64, 0));
    }

    #[test]
    fn memory_of_sent_frames_is_reused_and_excess_is_freed() {
        let mut mail = Mail::default();
        mail.open(7);
        let each = frame(LOUD, &[0; 96]);
        for _ in 0..100_000 {
            mail.send(7, &each);
            mail.send(7, &each);
            let mut bytes = [0; 200];
            assert!(mail.fill(7, &mut Writer::new(&mut bytes), KINDS).any);
            assert!(mail.queues[&7].bytes.capacity() <= 400);
        }
        (0..10_000).for_each(|_| assert!(mail.send(7, &each)));
        assert_eq!(left(&mut mail, 1_000).len(), 1_000);
        assert!(mail.queues[&7].bytes.capacity() <= MAIL_KEPT);
    }
}
