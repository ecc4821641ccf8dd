//! The bytes of a segment: its header, its frames, and the groups of records in frames.
//!
//! Owns the layout and its checks. Knows no file, no owner and no order of writes.
//!
//! A segment is a header of [`HEADER_BYTES`], then frames one after another. A frame is one group of records and is
//! valid as a whole or not at all. All checksums are CRC32C and begin with the segment's salt: so the bytes of
//! another segment, or of a record that imitates a frame, are never valid.
//!
//! | frame at | bytes | |
//! |---|---|---|
//! | 0 | 4 | magic: records or seal |
//! | 4 | 4 | length of the payload in bytes |
//! | 8 | 8 | offset of the first record |
//! | 16 | 4 | number of records |
//! | 20 | 4 | CRC of bytes 0..20 |
//! | 24 | 4 | CRC of the payload |
//! | 28 | 4 | 0 |
//! | 32 | | payload: for each record its length (4) and its bytes; then zeros to a multiple of 8 |
//!
//! All numbers are little-endian.

/// Where a segment's frames begin: after one page, so that no write of a frame touches the header's page.
pub const HEADER_BYTES: u64 = 4_096;

/// Maximum bytes of records in one group, including 4 for each record's length: 4 MiB, 40 times the 102 KB of 512
/// records of 200 bytes.
pub const GROUP_BYTES_MAX: usize = 4 << 20;

/// The longest record: one that fills a group.
pub const RECORD_BYTES_MAX: usize = GROUP_BYTES_MAX - 4;

pub(crate) const FRAME_BYTES: usize = 32;
const ALIGN: usize = 8;
const RECORDS: u32 = u32::from_le_bytes(*b"MJr1");
const SEAL: u32 = u32::from_le_bytes(*b"MJs1");
const SEGMENT: &[u8; 8] = b"MusterJ1";
const HEADER_USED: usize = 64;

/// Identifies one segment: later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentName {
    /// The epoch of the owner that created it.
    pub epoch: u64,
    /// Increases by at least one from each segment to the next of a log.
    pub id: u64,
}

/// The content of a segment's first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub name: SegmentName,
    /// The previous segment, if the log had one when this one was created.
    pub before: Option<SegmentName>,
    /// The offset of the first record.
    pub first: u64,
    pub salt: u64,
}

impl Header {
    /// The whole page.
    pub fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; HEADER_BYTES as usize];
        page[..8].copy_from_slice(SEGMENT);
        let before = self.before.unwrap_or(SegmentName { epoch: 0, id: 0 });
        let numbers = [
            self.name.epoch,
            self.name.id,
            before.epoch,
            before.id,
            self.first,
            self.salt,
        ];
        for (to, number) in page[8..].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        page[56] = u8::from(self.before.is_some());
        let crc = crc32c::crc32c(&page[..HEADER_USED - 4]);
        page[HEADER_USED - 4..HEADER_USED].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// `None` if the bytes are no header or fail their checksum.
    pub fn decode(page: &[u8]) -> Option<Header> {
        let page = page.get(..HEADER_USED)?;
        if &page[..8] != SEGMENT || crc32c::crc32c(&page[..HEADER_USED - 4]) != u32_at(page, HEADER_USED - 4) {
            return None;
        }
        let before = SegmentName {
            epoch: u64_at(page, 24),
            id: u64_at(page, 32),
        };
        Some(Header {
            name: SegmentName {
                epoch: u64_at(page, 8),
                id: u64_at(page, 16),
            },
            before: (page[56] == 1).then_some(before),
            first: u64_at(page, 40),
            salt: u64_at(page, 48),
        })
    }
}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub first: u64,
    pub count: u32,
    pub payload_bytes: usize,
    pub payload_crc: u32,
    /// The owner closed the log here: everything before it is durable.
    pub seal: bool,
}

impl Frame {
    /// `None` if no frame of this segment begins here; does not check the payload.
    pub fn decode(head: &[u8], salt: u64) -> Option<Frame> {
        let head = head.get(..FRAME_BYTES)?;
        let magic = u32_at(head, 0);
        if (magic != RECORDS && magic != SEAL) || crc(salt, &head[..20]) != u32_at(head, 20) {
            return None;
        }
        let frame = Frame {
            first: u64_at(head, 8),
            count: u32_at(head, 16),
            payload_bytes: u32_at(head, 4) as usize,
            payload_crc: u32_at(head, 24),
            seal: magic == SEAL,
        };
        (frame.payload_bytes <= GROUP_BYTES_MAX && u32_at(head, 28) == 0).then_some(frame)
    }

    pub fn seal(first: u64, salt: u64) -> Vec<u8> {
        let mut bytes = vec![0; FRAME_BYTES];
        write_head(&mut bytes, SEAL, first, 0, salt);
        bytes
    }

    /// Bytes from the start of this frame to the next one.
    pub fn total_bytes(&self) -> u64 {
        padded(FRAME_BYTES + self.payload_bytes) as u64
    }

    /// Whether `payload` is intact.
    pub fn holds(&self, payload: &[u8], salt: u64) -> bool {
        payload.len() == self.payload_bytes
            && crc(salt, payload) == self.payload_crc
            && Records::new(self.first, payload).map_while(|_| Some(())).count() == self.count as usize
    }
}

/// Alignment of frames: a frame can only begin at a multiple of this from the start of the segment.
pub(crate) const FRAME_ALIGN: u64 = ALIGN as u64;

/// Whether the first four bytes are those of a frame: excludes nearly all positions before a checksum is computed.
pub(crate) fn begins_frame(bytes: &[u8]) -> bool {
    let magic = u32_at(bytes, 0);
    magic == RECORDS || magic == SEAL
}

/// Records that become durable together: all of them or none.
///
/// Built without the journal, in any thread, so that the next group can be filled while the last one is synced.
#[derive(Clone, Debug)]
pub struct Group {
    bytes: Vec<u8>,
    count: u32,
}

/// Why a record was refused: it would exceed [`RECORD_BYTES_MAX`] or [`GROUP_BYTES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushError {
    /// Append this group, then push into an empty one.
    #[error("group is full ({GROUP_BYTES_MAX} bytes)")]
    Full,
    /// No group can hold this record.
    #[error("record of {0} bytes is longer than {RECORD_BYTES_MAX}")]
    TooLong(usize),
}

impl Default for Group {
    fn default() -> Group {
        Group::new()
    }
}

impl Group {
    /// An empty group.
    pub fn new() -> Group {
        Group {
            bytes: vec![0; FRAME_BYTES],
            count: 0,
        }
    }

    /// Adds a record; returns its index in the group, from 0.
    pub fn push(&mut self, record: &[u8]) -> Result<u32, PushError> {
        self.push_parts(&[record])
    }

    /// Adds the concatenation of `parts` as one record.
    pub fn push_parts(&mut self, parts: &[&[u8]]) -> Result<u32, PushError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > RECORD_BYTES_MAX {
            return Err(PushError::TooLong(len));
        }
        if self.payload_bytes() + 4 + len > GROUP_BYTES_MAX {
            return Err(PushError::Full);
        }
        self.bytes.extend_from_slice(&(len as u32).to_le_bytes());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.count += 1;
        Ok(self.count - 1)
    }

    /// Number of records.
    pub fn len(&self) -> u32 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the records and their lengths.
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len() - FRAME_BYTES
    }

    /// Removes the records and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(FRAME_BYTES);
        self.count = 0;
    }

    /// The records, numbered from `first`.
    pub fn records(&self, first: u64) -> Records<'_> {
        Records::new(first, &self.bytes[FRAME_BYTES..])
    }

    /// Bytes that the frame takes in a segment.
    pub(crate) fn frame_bytes(&self) -> usize {
        padded(self.bytes.len())
    }

    /// Calls `write` with the frame; afterwards the group is unchanged.
    pub(crate) fn with_frame<R>(&mut self, first: u64, salt: u64, write: impl FnOnce(&[u8]) -> R) -> R {
        write_head(&mut self.bytes, RECORDS, first, self.count, salt);
        let unpadded = self.bytes.len();
        self.bytes.resize(padded(unpadded), 0);
        let result = write(&self.bytes);
        self.bytes.truncate(unpadded);
        result
    }
}

/// Records with their offsets, in order.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    next: u64,
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    pub(crate) fn new(first: u64, payload: &'a [u8]) -> Records<'a> {
        Records {
            next: first,
            rest: payload,
        }
    }

    /// Skips the records below `offset`.
    pub(crate) fn from(mut self, offset: u64) -> Records<'a> {
        while self.next < offset && self.next().is_some() {}
        self
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<(u64, &'a [u8])> {
        let len = u32::from_le_bytes(self.rest.get(..4)?.try_into().ok()?) as usize;
        let record = self.rest.get(4..4 + len)?;
        self.rest = &self.rest[4 + len..];
        self.next += 1;
        Some((self.next - 1, record))
    }
}

fn write_head(frame: &mut [u8], magic: u32, first: u64, count: u32, salt: u64) {
    let payload = (frame.len() - FRAME_BYTES) as u32;
    let payload_crc = crc(salt, &frame[FRAME_BYTES..]);
    frame[..4].copy_from_slice(&magic.to_le_bytes());
    frame[4..8].copy_from_slice(&payload.to_le_bytes());
    frame[8..16].copy_from_slice(&first.to_le_bytes());
    frame[16..20].copy_from_slice(&count.to_le_bytes());
    let head_crc = crc(salt, &frame[..20]);
    frame[20..24].copy_from_slice(&head_crc.to_le_bytes());
    frame[24..28].copy_from_slice(&payload_crc.to_le_bytes());
    frame[28..32].fill(0);
}

fn crc(salt: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), bytes)
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME: SegmentName = SegmentName { epoch: 3, id: 17 };

    fn frame(group: &mut Group, first: u64, salt: u64) -> Vec<u8> {
        group.with_frame(first, salt, <[u8]>::to_vec)
    }

    #[test]
    fn header_survives_encoding_and_one_changed_bit_invalidates_it() {
        for before in [None, Some(SegmentName { epoch: 3, id: 16 })] {
            let header = Header {
                name: NAME,
                before,
                first: 99,
                salt: 0xABCD,
            };
            let page = header.encode();
            assert_eq!(Header::decode(&page), Some(header));
            for bit in 0..HEADER_USED * 8 {
                let mut spoilt = page.clone();
                spoilt[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Header::decode(&spoilt), None, "bit {bit}");
            }
        }
        assert_eq!(Header::decode(&[0; 4_096]), None);
        assert_eq!(Header::decode(b"short"), None);
    }

    #[test]
    fn one_changed_bit_invalidates_a_frame() {
        let mut group = Group::new();
        group.push(b"one").unwrap();
        group.push(b"").unwrap();
        let whole = frame(&mut group, 7, 5);
        let valid = |bytes: &[u8]| {
            Frame::decode(bytes, 5).is_some_and(|head| {
                bytes
                    .get(FRAME_BYTES..FRAME_BYTES + head.payload_bytes)
                    .is_some_and(|payload| head.holds(payload, 5))
            })
        };
        assert!(valid(&whole));
        for bit in 0..(FRAME_BYTES + group.payload_bytes()) * 8 {
            let mut spoilt = whole.clone();
            spoilt[bit / 8] ^= 1 << (bit % 8);
            assert!(!valid(&spoilt), "bit {bit}");
        }
    }

    #[test]
    fn another_segments_frame_is_invalid() {
        let mut group = Group::new();
        group.push(b"one").unwrap();
        let bytes = frame(&mut group, 7, 5);
        assert!(Frame::decode(&bytes, 5).is_some());
        assert_eq!(Frame::decode(&bytes, 6), None);
    }

    #[test]
    fn group_refuses_long_records_unchanged() {
        let mut group = Group::new();
        let longest = vec![1; RECORD_BYTES_MAX];
        assert_eq!(
            group.push(&vec![1; RECORD_BYTES_MAX + 1]),
            Err(PushError::TooLong(RECORD_BYTES_MAX + 1))
        );
        assert_eq!(group.push(&longest), Ok(0));
        assert_eq!(group.push(b""), Err(PushError::Full));
        assert_eq!(group.records(0).count(), 1);
    }

    proptest! {
        #[test]
        fn group_survives_encoding(records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20), first in 0..u64::MAX / 2, salt: u64) {
            let mut group = Group::new();
            for record in &records {
                group.push(record).unwrap();
            }
            let bytes = frame(&mut group, first, salt);
            prop_assert_eq!(bytes.len() % ALIGN, 0);
            let head = Frame::decode(&bytes, salt).unwrap();
            prop_assert_eq!(head.total_bytes() as usize, bytes.len());
            let payload = &bytes[FRAME_BYTES..FRAME_BYTES + head.payload_bytes];
            prop_assert!(head.holds(payload, salt));
            let read: Vec<_> = Records::new(first, payload).map(|(offset, bytes)| (offset, bytes.to_vec())).collect();
            let written: Vec<_> = (first..).zip(records).collect();
            prop_assert_eq!(read, written);
        }
    }
}
