//! Reads the whole store and proves that its parts agree.
//!
//! Owns: the checks. Must not know: how parts came to be as they are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use muster_journal::Storage;

use super::files::{FileName, Files};
use super::index::Place;
use super::op::{frame_head, read_frame_head, Kind, Op, FRAME_BYTES, OP_BYTES};
use super::Store;

/// What a scrub found. `faults` is empty for a store that is whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    pub messages: u64,
    pub operations: u64,
    pub bodies: u64,
    pub faults: Vec<String>,
}

impl<S: Storage, F: Files> Store<S, F> {
    /// Checks every operation and body against its checksum, every operation's body against the frame that it names,
    /// every frame against the operations, each hour's count of live messages, and the index against the files, both
    /// ways. Reads all files in this thread. Staged changes are left out.
    pub fn scrub(&self) -> io::Result<Scrubbed> {
        let mut found = Scrubbed::default();
        let mut places: HashMap<u64, (u32, u32)> = HashMap::new();
        for (number, hour) in &self.hours {
            let mut bytes = vec![0; hour.ops.len() as usize];
            hour.ops
                .read(self.files.as_ref(), FileName::Ops(*number), 0, &mut bytes)?;
            let mut last: BTreeMap<u64, (u32, Op)> = BTreeMap::new();
            let mut named: HashSet<(u64, u64, u32)> = HashSet::new();
            for (bytes, at) in bytes.chunks(OP_BYTES).zip(0..) {
                found.operations += 1;
                match Op::decode(bytes) {
                    None => found.faults.push(format!("hour {number:08x}: damaged operation {at}")),
                    Some(op) => {
                        if matches!(op.kind, Kind::Message(_)) {
                            named.insert((op.id.0, op.body_at, op.body_bytes));
                        }
                        last.insert(op.id.0, (at, op));
                    }
                }
            }
            let live = last.values().filter(|(_, op)| op.kind.is_live()).count();
            if live != hour.live as usize {
                found.faults.push(format!(
                    "hour {number:08x}: {live} live messages, {} counted",
                    hour.live
                ));
            }
            for (id, (at, op)) in last {
                if op.kind == Kind::Gone {
                    continue;
                }
                found.messages += 1;
                if let Some((other, _)) = places.insert(id, (*number, at)) {
                    found
                        .faults
                        .push(format!("message {id:016x} is in hours {other:08x} and {number:08x}"));
                }
            }
            let mut bytes = vec![0; hour.bodies.len() as usize];
            hour.bodies
                .read(self.files.as_ref(), FileName::Bodies(*number), 0, &mut bytes)?;
            let mut at = 0;
            while at < bytes.len() {
                let Some(head) = bytes.get(at..at + FRAME_BYTES) else {
                    found
                        .faults
                        .push(format!("hour {number:08x}: half a body at byte {at}"));
                    break;
                };
                let head: &[u8; FRAME_BYTES] = head.try_into().expect("its length was taken");
                let (id, body_bytes) = read_frame_head(head);
                let body = bytes.get(at + FRAME_BYTES..at + FRAME_BYTES + body_bytes as usize);
                if body.is_none_or(|body| frame_head(id, body) != *head) {
                    found
                        .faults
                        .push(format!("hour {number:08x}: damaged body at byte {at}"));
                    break;
                }
                if !named.remove(&(id.0, at as u64, body_bytes)) {
                    found
                        .faults
                        .push(format!("hour {number:08x}: no operation names the body at byte {at}"));
                }
                found.bodies += 1;
                at += FRAME_BYTES + body_bytes as usize;
            }
            for (id, at, _) in named {
                found
                    .faults
                    .push(format!("message {id:016x}: no body at byte {at} of hour {number:08x}"));
            }
        }
        if !self.rebuilding && self.index.len() != places.len() {
            found.faults.push(format!(
                "index has {} messages, files {}",
                self.index.len(),
                places.len()
            ));
        }
        for (id, place) in places {
            let id = crate::schedule::MessageId(id);
            let indexed = match self.index.get(id) {
                Some(Place::Near(at)) => Some((self.near.get(at).home, self.near.get(at).number)),
                Some(Place::Far { hour, op }) => Some((hour, op)),
                None if self.rebuilding => continue,
                None => None,
            };
            if indexed != Some(place) {
                found
                    .faults
                    .push(format!("message {:016x} is at {place:?}, indexed at {indexed:?}", id.0));
            }
        }
        Ok(found)
    }
}
