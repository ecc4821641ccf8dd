//! Reads a whole log that may be damaged, and reports where, and which records are lost. Changes nothing, and needs
//! no owner.
//!
//! Owns how to continue after damage: at the segment's next intact frame, otherwise at the next segment. A log in use
//! is read up to what it had acknowledged at the start.

use crate::directory::{self, Acked};
use crate::format::{begins_frame, Frame, Header, Records, SegmentName, FRAME_ALIGN, FRAME_BYTES, HEADER_BYTES};
use crate::storage::SegmentFile;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Bytes searched at once for a frame behind a damaged one.
const SCAN_BYTES: usize = 1 << 20;

const NO_HEADER: &str = "the header is damaged, or another segment's: its records cannot be identified";

/// A damaged position in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The file's name in the folder.
    pub file: String,
    pub at: u64,
    pub text: String,
    /// The records lost by it.
    pub lost: Range<u64>,
}

/// The result of checking a log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// The offset of the oldest record, and the one after the newest.
    pub records: Range<u64>,
    /// All records below this are known to have been acknowledged.
    pub acked: Option<u64>,
    pub segments: usize,
    pub faults: Vec<Fault>,
}

struct Segment {
    name: SegmentName,
    header: Header,
    file: File,
}

/// Reads the log in folder `path`; calls `give` with the records of each intact group, in order.
pub fn check(path: impl AsRef<Path>, mut give: impl FnMut(Records<'_>)) -> io::Result<Checked> {
    let path = path.as_ref();
    let mut checked = Checked::default();
    checked.acked = marks(path, &mut checked)?;
    let names = match directory::scan_names(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(), // the folder is missing
        names => names?.0,
    };
    let segments = chain(path, names, &mut checked)?;
    checked.segments = segments.len();
    let Some(first) = segments.first() else {
        if let Some(acked) = checked.acked.filter(|&acked| acked > 0) {
            checked.fault("acked", 0, "no segment is left", 0..acked);
        }
        return Ok(checked);
    };
    let begin = first.header.first;
    if let Some(oldest) = checked.faults.iter_mut().rev().find(|fault| fault.text == NO_HEADER) {
        if oldest.file < file_name(first.name) {
            oldest.lost = 0..begin; // at most these: it may have been trimmed below
        }
    }
    let (mut next, mut end) = (begin, HEADER_BYTES);
    for (place, segment) in segments.iter().enumerate() {
        let after = segments.get(place + 1).map(|after| after.header.first);
        if segment.header.first > next {
            let lost = next..segment.header.first;
            checked.fault(
                &file_name(segment.name),
                0,
                "the records before this segment are missing",
                lost,
            );
            next = segment.header.first;
        }
        end = walk(segment, after, &mut next, &mut checked, &mut give)?;
    }
    checked.records = begin..next;
    if let Some(acked) = checked.acked.filter(|&acked| acked > next) {
        let last = segments.last().expect("one is there");
        let text = "the end is damaged or cut off";
        checked.fault(&file_name(last.name), end, text, next..acked);
    }
    Ok(checked)
}

impl Checked {
    fn fault(&mut self, file: &str, at: u64, text: &str, lost: Range<u64>) {
        self.faults.push(Fault {
            file: file.to_owned(),
            at,
            text: text.to_owned(),
            lost,
        });
    }
}

fn file_name(name: SegmentName) -> String {
    format!("{:016x}-{:016x}.segment", name.epoch, name.id)
}

/// Checks the small files; returns the offset below which records were acknowledged.
fn marks(path: &Path, checked: &mut Checked) -> io::Result<Option<u64>> {
    let opened = |name: &str| match File::open(path.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    };
    if let Some(owner) = opened("owner")? {
        if owner.metadata()?.len() > 0 && directory::read_number(&owner, 0)?.is_none() {
            checked.fault(
                "owner",
                0,
                "the epoch file is damaged; the newest segment's epoch is used",
                0..0,
            );
        }
    }
    let Some(acked) = opened("acked")? else { return Ok(None) };
    let said = Acked::places(&acked)?;
    for (place, said) in said.iter().enumerate() {
        let at = place as u64 * Acked::APART;
        let mut bytes = [0; 16];
        let read = SegmentFile::read_at(&acked, at, &mut bytes)?;
        if said.is_none() && read > 0 && bytes != [0; 16] {
            checked.fault(
                "acked",
                at,
                "one of two acknowledgement marks is damaged; the other one is used",
                0..0,
            );
        }
    }
    Ok(said.into_iter().flatten().max())
}

/// The segments of the log, oldest first: found from the newest backwards, skipping those that are missing or have no
/// header.
fn chain(path: &Path, mut names: Vec<SegmentName>, checked: &mut Checked) -> io::Result<Vec<Segment>> {
    names.sort_unstable();
    let mut found: Vec<Segment> = Vec::new();
    let mut wanted: Option<SegmentName> = None;
    let mut unknown = false; // its predecessor is unknown: the next older one is used
    for &name in names.iter().rev() {
        // A left-over segment of a fenced owner, which no later segment names.
        if wanted.is_some_and(|wanted| name > wanted) {
            continue;
        }
        if wanted.is_none() && !unknown && !found.is_empty() {
            break; // the first segment of the log has no predecessor
        }
        if wanted.is_some_and(|wanted| name < wanted) {
            checked.fault(
                &file_name(wanted.expect("it was just seen")),
                0,
                "the file is missing",
                0..0,
            );
        }
        let file = match File::open(path.join(file_name(name))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // trimmed in the meantime
            file => file?,
        };
        let mut page = vec![0; HEADER_BYTES as usize];
        let read = SegmentFile::read_at(&file, 0, &mut page)?;
        let header = Header::decode(&page[..read]).filter(|header| {
            let after = found.last().map(|after| after.header.first);
            header.name == name && after.is_none_or(|after| header.first <= after)
        });
        match header {
            Some(header) => {
                (wanted, unknown) = (header.before, false);
                found.push(Segment { name, header, file });
            }
            None => {
                checked.fault(&file_name(name), 0, NO_HEADER, 0..0);
                (wanted, unknown) = (None, true);
            }
        }
    }
    found.reverse();
    Ok(found)
}

/// Reads a segment; returns where its frames end.
fn walk(
    segment: &Segment,
    after: Option<u64>,
    next: &mut u64,
    checked: &mut Checked,
    give: &mut impl FnMut(Records<'_>),
) -> io::Result<u64> {
    let mut at = HEADER_BYTES;
    let mut bytes = Vec::new();
    loop {
        if after.is_some_and(|after| *next >= after) {
            return Ok(at);
        }
        match whole_frame(segment, at, *next, &mut bytes)? {
            Some(frame) if frame.seal => return Ok(at),
            Some(frame) => {
                give(Records::new(
                    frame.first,
                    &bytes[FRAME_BYTES..FRAME_BYTES + frame.payload_bytes],
                ));
                *next = frame.first + u64::from(frame.count);
                at += frame.total_bytes();
            }
            None => {
                let behind = next_frame(segment, at, *next, &mut bytes)?;
                let (until, resumes) = match (behind, after) {
                    (Some((at, first)), _) => (first, Some(at)),
                    (None, Some(after)) => (after, None),
                    (None, None) => return Ok(at), // the log's end: the acknowledged offset shows whether it is cut off
                };
                checked.fault(&file_name(segment.name), at, "records are damaged", *next..until);
                *next = until;
                match resumes {
                    Some(resumes) => at = resumes,
                    None => return Ok(at),
                }
            }
        }
    }
}

/// The frame at a byte if it is intact and its first record is `first` or later; then `bytes` holds its bytes.
fn whole_frame(segment: &Segment, at: u64, first: u64, bytes: &mut Vec<u8>) -> io::Result<Option<Frame>> {
    let salt = segment.header.salt;
    bytes.resize(FRAME_BYTES, 0);
    let read = SegmentFile::read_at(&segment.file, at, bytes)?;
    let frame = Frame::decode(&bytes[..read], salt).filter(|frame| frame.first == first);
    let Some(frame) = frame else { return Ok(None) };
    bytes.resize(frame.total_bytes() as usize, 0);
    let read = SegmentFile::read_at(&segment.file, at, bytes)?;
    let payload = bytes[..read].get(FRAME_BYTES..FRAME_BYTES + frame.payload_bytes);
    Ok(payload
        .is_some_and(|payload| frame.holds(payload, salt))
        .then_some(frame))
}

/// The position and first record of the next intact frame with later records.
fn next_frame(segment: &Segment, at: u64, after: u64, bytes: &mut Vec<u8>) -> io::Result<Option<(u64, u64)>> {
    let mut chunk = vec![0; SCAN_BYTES];
    let mut from = at + FRAME_ALIGN;
    loop {
        let read = SegmentFile::read_at(&segment.file, from, &mut chunk)?;
        let mut place = 0;
        while place + FRAME_BYTES <= read {
            let head = &chunk[place..place + FRAME_BYTES];
            if begins_frame(head) {
                if let Some(frame) = Frame::decode(head, segment.header.salt).filter(|frame| frame.first > after) {
                    let found = from + place as u64;
                    if frame.seal || whole_frame(segment, found, frame.first, bytes)?.is_some() {
                        return Ok(Some((found, frame.first)));
                    }
                }
            }
            place += FRAME_ALIGN as usize;
        }
        if read < chunk.len() {
            return Ok(None);
        }
        from += (SCAN_BYTES - FRAME_BYTES) as u64;
    }
}
