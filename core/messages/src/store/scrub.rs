//! Reads the whole store and checks that its parts agree.
//!
//! Owns: the checks of one hour's files, and which hour is next. Must not know: how parts came to be as they are.
//!
//! Files only grow, so everything in them at the start of a scrub stays: it is read hour by hour, in jobs, while the
//! store continues. The index changes meanwhile. If a message is not where its hour's file has it, the index must
//! point at an operation appended since.

use std::collections::{HashMap, HashSet};
use std::io;

use super::files::{FileName, Files};
use super::hour::{Hour, Tail};
use super::manifest::HourMark;
use super::op::{frame_head, read_frame_head, Kind, Op, BODY_BYTES_MAX, FRAME_BYTES, OP_BYTES};

/// Bytes read at once: 32,768 operations, or at least one body.
const CHUNK_BYTES: usize = 2 << 20;
const _: () = assert!(CHUNK_BYTES % OP_BYTES == 0 && CHUNK_BYTES >= FRAME_BYTES + BODY_BYTES_MAX);

/// Maximum number of faults that are described; all are counted.
const FAULTS_MAX: usize = 100;

/// The findings of a scrub. `faults` is empty for an intact store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    pub messages: u64,
    pub operations: u64,
    pub bodies: u64,
    /// The first ones.
    pub faults: Vec<String>,
    pub fault_count: u64,
}

impl Scrubbed {
    pub(crate) fn fault(&mut self, said: String) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(said);
        }
        self.fault_count += 1;
    }

    fn add(&mut self, more: Scrubbed) {
        self.messages += more.messages;
        self.operations += more.operations;
        self.bodies += more.bodies;
        self.fault_count += more.fault_count;
        let room = FAULTS_MAX - self.faults.len();
        self.faults.extend(more.faults.into_iter().take(room));
    }
}

/// An hour's files as they were at a mark.
pub(crate) struct HourPart {
    mark: HourMark,
    ops: Tail,
    bodies: Tail,
}

impl HourPart {
    pub fn of(hour: &Hour, mark: HourMark) -> HourPart {
        HourPart {
            mark,
            ops: hour.ops.until(u64::from(mark.ops) * OP_BYTES as u64),
            bodies: hour.bodies.until(mark.body_bytes),
        }
    }
}

/// The contents of an hour's files.
pub(crate) struct Read {
    pub hour: u32,
    found: Scrubbed,
    /// Messages of the hour, with the numbers of their latest operations.
    places: Vec<(u64, u32)>,
}

/// A scrub in progress.
pub(crate) struct Scrub {
    /// Hours as they were when it began, by number; those below `next` have been read.
    marks: Vec<HourMark>,
    next: usize,
    /// Messages in the index when it began. `None`: some were being forgotten.
    known: Option<usize>,
    found: Scrubbed,
    hour: u32,
    /// Locations not yet looked up in the index.
    places: Vec<(u64, u32)>,
    waits: bool,
}

impl Scrub {
    pub fn new(marks: Vec<HourMark>, known: Option<usize>) -> Scrub {
        Scrub {
            marks,
            next: 0,
            known,
            found: Scrubbed::default(),
            hour: 0,
            places: Vec::new(),
            waits: false,
        }
    }

    /// The next hour to read. `None`: one is being read or looked up, or none is left.
    pub fn next_mark(&mut self) -> Option<HourMark> {
        if self.waits || !self.places.is_empty() {
            return None;
        }
        let mark = self.marks.get(self.next).copied();
        self.next += usize::from(mark.is_some());
        self.waits = mark.is_some();
        mark
    }

    /// Skips the hour, which was forgotten since.
    pub fn pass_over(&mut self) {
        self.waits = false;
        self.known = None;
    }

    pub fn take(&mut self, read: Read) {
        self.waits = false;
        self.hour = read.hour;
        self.found.add(read.found);
        self.places = read.places;
    }

    /// Some locations to look up: the hour, and messages with their operations.
    pub fn some(&mut self, count: usize) -> (u32, Vec<(u64, u32)>) {
        let left = self.places.len().saturating_sub(count);
        (self.hour, self.places.split_off(left))
    }

    /// Whether the operation was appended since the scrub began.
    pub fn is_later(&self, hour: u32, op: u32) -> bool {
        let place = self.marks.binary_search_by_key(&hour, |mark| mark.hour);
        place.map_or(true, |place| op >= self.marks[place].ops)
    }

    pub fn fault(&mut self, said: String) {
        self.found.fault(said);
    }

    /// Takes the findings once everything is read and looked up.
    pub fn ended(&mut self) -> Option<Scrubbed> {
        if self.waits || !self.places.is_empty() || self.next < self.marks.len() {
            return None;
        }
        let mut found = std::mem::take(&mut self.found);
        if let Some(known) = self.known.filter(|known| *known as u64 != found.messages) {
            found.fault(format!("index has {known} messages, files {}", found.messages));
        }
        Some(found)
    }
}

/// Checks every operation and body of an hour against its checksum, every operation's body against its frame, every
/// frame against the operations, and the count of live messages.
pub(crate) fn read<F: Files>(files: &F, part: &HourPart) -> Read {
    let hour = part.mark.hour;
    let mut found = Scrubbed::default();
    let places = read_ops(files, part, &mut found).and_then(|(places, named)| {
        read_bodies(files, part, named, &mut found)?;
        Ok(places)
    });
    let places = places.unwrap_or_else(|error| {
        found.fault(format!("hour {hour:08x}: {error}"));
        Vec::new()
    });
    Read { hour, found, places }
}

/// A body that an operation refers to: id, position, length.
type Named = HashSet<(u64, u64, u32)>;

fn read_ops<F: Files>(files: &F, part: &HourPart, found: &mut Scrubbed) -> io::Result<(Vec<(u64, u32)>, Named)> {
    let hour = part.mark.hour;
    let mut last: HashMap<u64, (u32, Kind)> = HashMap::new();
    let mut named = Named::new();
    let mut chunk = vec![0; (part.ops.len() as usize).min(CHUNK_BYTES)];
    let (mut at, mut number) = (0, 0);
    while at < part.ops.len() {
        let bytes = chunk.len().min((part.ops.len() - at) as usize);
        part.ops.read(files, FileName::Ops(hour), at, &mut chunk[..bytes])?;
        for bytes in chunk[..bytes].chunks(OP_BYTES) {
            found.operations += 1;
            match Op::decode(bytes) {
                None => found.fault(format!("hour {hour:08x}: damaged operation {number}")),
                Some(op) => {
                    if matches!(op.kind, Kind::Message(_)) {
                        named.insert((op.id.0, op.body_at, op.body_bytes));
                    }
                    last.insert(op.id.0, (number, op.kind));
                }
            }
            number += 1;
        }
        at += bytes as u64;
    }
    let live = last.values().filter(|(_, kind)| kind.is_live()).count();
    if live != part.mark.live as usize {
        let counted = part.mark.live;
        found.fault(format!("hour {hour:08x}: {live} live messages, {counted} counted"));
    }
    let there = last.into_iter().filter(|(_, (_, kind))| *kind != Kind::Gone);
    let places: Vec<(u64, u32)> = there.map(|(id, (number, _))| (id, number)).collect();
    found.messages += places.len() as u64;
    Ok((places, named))
}

fn read_bodies<F: Files>(files: &F, part: &HourPart, mut named: Named, found: &mut Scrubbed) -> io::Result<()> {
    let (hour, end) = (part.mark.hour, part.bodies.len());
    let mut chunk = vec![0; (end as usize).min(CHUNK_BYTES)];
    let mut at = 0;
    while at < end {
        let bytes = chunk.len().min((end - at) as usize);
        part.bodies
            .read(files, FileName::Bodies(hour), at, &mut chunk[..bytes])?;
        let mut from = 0;
        // A frame cut off by the end of this chunk is the first one of the next.
        while let Some(head) = chunk[..bytes].get(from..from + FRAME_BYTES) {
            let head: &[u8; FRAME_BYTES] = head.try_into().expect("its length was taken");
            let (id, body_bytes) = read_frame_head(head);
            let until = from + FRAME_BYTES + body_bytes as usize;
            if until > bytes && body_bytes as usize <= BODY_BYTES_MAX && at + (until as u64) <= end {
                break;
            }
            let place = at + from as u64;
            let body = chunk[..bytes].get(from + FRAME_BYTES..until);
            if body.is_none_or(|body| frame_head(id, body) != *head) {
                // The start of the next frame is unknown.
                found.fault(format!(
                    "hour {hour:08x}: damaged body at byte {place}, later bodies not read"
                ));
                return Ok(());
            }
            if !named.remove(&(id.0, place, body_bytes)) {
                found.fault(format!(
                    "hour {hour:08x}: no operation refers to the body at byte {place}"
                ));
            }
            found.bodies += 1;
            from = until;
        }
        if from == 0 {
            found.fault(format!("hour {hour:08x}: incomplete body at byte {at}"));
            return Ok(());
        }
        at += from as u64;
    }
    for (id, at, _) in named {
        found.fault(format!("message {id:016x}: no body at byte {at} of hour {hour:08x}"));
    }
    Ok(())
}
