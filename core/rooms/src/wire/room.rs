//! Room blocks and their companions: heads, gaps, skips, repair requests.
//!
//! A *block* names its room, stream and first offset once; the messages in it are consecutive. A message's publisher is
//! named inline at its first message of the block and by one byte afterwards.

use muster_transport::{append, Frame, Reader, Writer, FRAME, HEADER, NUMBER_MAX};

use crate::wire::kinds;

use crate::wire::stream::{GapReason, PublisherId, StreamGap, StreamId};

/// First chunk of a message.
pub const FIRST: u8 = 1;
/// Last chunk of a message.
pub const LAST: u8 = 2;
/// Both: a message in one chunk.
pub const WHOLE: u8 = FIRST | LAST;
/// The message has [`headers`](crate::headers), which begin its first chunk. All of its chunks have this flag.
pub const HEADERS: u8 = 8;
/// The flags that a message keeps from its publisher to its members.
pub const KEPT: u8 = WHOLE | HEADERS;

/// Maximum number of publishers in one block; the next one starts a new block.
pub const BLOCK_PUBLISHERS: usize = 16;
/// Maximum number of messages in one block.
pub const BLOCK_MESSAGES: usize = 255;
/// Bytes of a message's own header.
pub const MESSAGE: usize = 6;
/// Bytes that name a publisher inline.
pub const PUBLISHER: usize = 24;
/// Bytes of a member block's own header, including the frame's.
pub const ROOM_BLOCK: usize = FRAME + 4 + 8 + StreamId::LEN + 8 + 1;
/// Bytes of a link block's own header, including the frame's.
pub const LINK_BLOCK: usize = FRAME + 8 + 4 + 8 + 8 + 1;
/// Data bytes of the longest message that fits into a member's datagram of `payload` bytes.
pub const fn message_max(payload: usize) -> usize {
    payload - HEADER - muster_transport::TAG - ROOM_BLOCK - PUBLISHER - MESSAGE
}
/// Flag of a link room frame whose messages are all too old for a live room's members.
pub const OLD: u8 = 1;
/// The offset of a link block's `base` in its frame.
pub const LINK_BASE_AT: usize = FRAME + 12;
/// The offset of the age in an aged block. The block is not longer than a member's, so its content fits there too.
pub const LINK_AGE_AT: usize = LINK_BLOCK - 1;
const _: () = assert!(LINK_BLOCK + 4 <= ROOM_BLOCK);
/// The offset of the age in an aged member block.
pub const ROOM_AGE_AT: usize = ROOM_BLOCK - 1;

/// One message of a block, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub publisher: PublisherId,
    pub sequence: u64,
    pub flags: u8,
    pub data: &'a [u8],
}

impl<'a> Message<'a> {
    /// The same without headers, for a peer that does not know them.
    pub fn plain(self) -> Self {
        if self.flags & HEADERS == 0 {
            return self;
        }
        let cut = |data: &'a [u8]| crate::headers::split(data).map_or(data, |(_, data)| data);
        Message {
            flags: self.flags & !HEADERS,
            data: if self.flags & FIRST != 0 {
                cut(self.data)
            } else {
                self.data
            },
            ..self
        }
    }
}

/// Appends consecutive messages to a frame body.
pub struct BlockWriter {
    publishers: [(PublisherId, u64); BLOCK_PUBLISHERS],
    named: usize,
    count: usize,
    count_at: usize,
}

impl BlockWriter {
    /// Begins after the block's header; `writer` is at the message count.
    pub fn begin(writer: &mut Writer<'_>) -> Self {
        let count_at = writer.len();
        writer.u8(0);
        BlockWriter {
            publishers: Default::default(),
            named: 0,
            count: 0,
            count_at,
        }
    }

    /// Appends one message; `false` if this block is full.
    pub fn push(&mut self, writer: &mut Writer<'_>, message: &Message<'_>) -> bool {
        if self.count == BLOCK_MESSAGES {
            return false;
        }
        let known = self.publishers[..self.named].iter().position(|(id, base)| {
            *id == message.publisher && message.sequence.wrapping_sub(*base) <= u64::from(u16::MAX)
        });
        let inline = if known.is_none() { PUBLISHER } else { 0 };
        if writer.room() < MESSAGE + inline + message.data.len() || (known.is_none() && self.named == BLOCK_PUBLISHERS)
        {
            return false;
        }
        let index = known.unwrap_or(self.named);
        if known.is_none() {
            self.publishers[index] = (message.publisher, message.sequence);
            self.named += 1;
        }
        let delta = (message.sequence - self.publishers[index].1) as u16;
        writer
            .u16(message.data.len() as u16)
            .u8(message.flags)
            .u8(index as u8)
            .u16(delta);
        if known.is_none() {
            writer
                .u64(message.publisher.user)
                .u64(message.publisher.incarnation)
                .u64(message.sequence);
        }
        writer.put(message.data);
        self.count += 1;
        true
    }

    /// Writes the count. Returns how many messages the block holds; 0 if not even its header fitted.
    pub fn finish(self, writer: &mut Writer<'_>) -> usize {
        if let Some(place) = writer.written().get_mut(self.count_at) {
            *place = self.count as u8;
        }
        self.count
    }
}

/// The messages of a received block.
pub struct BlockMessages<'a> {
    reader: Reader<'a>,
    publishers: [(PublisherId, u64); BLOCK_PUBLISHERS],
    named: usize,
    left: usize,
}

impl<'a> BlockMessages<'a> {
    fn new(mut reader: Reader<'a>) -> Option<Self> {
        let left = usize::from(reader.u8()?);
        Some(BlockMessages::of(left, reader.rest()))
    }

    /// The `count` messages in `bytes`; each publisher is named at its first message.
    pub fn of(count: usize, bytes: &'a [u8]) -> Self {
        BlockMessages {
            reader: Reader::new(bytes),
            publishers: Default::default(),
            named: 0,
            left: count,
        }
    }

    /// Messages that the block claims and has not yielded yet; bounded by [`BLOCK_MESSAGES`].
    pub fn left(&self) -> usize {
        self.left
    }

    /// The bytes of the remaining messages.
    pub fn bytes(&self) -> &'a [u8] {
        self.reader.rest()
    }
}

impl<'a> Iterator for BlockMessages<'a> {
    type Item = Message<'a>;

    /// The next message; a wrong length ends the block.
    #[inline]
    fn next(&mut self) -> Option<Message<'a>> {
        self.left = self.left.checked_sub(1)?;
        let mut parse = || {
            let len = usize::from(self.reader.u16()?);
            let flags = self.reader.u8()?;
            let index = usize::from(self.reader.u8()?);
            let delta = u64::from(self.reader.u16()?);
            if index == self.named && index < BLOCK_PUBLISHERS {
                let id = PublisherId {
                    user: self.reader.u64()?,
                    incarnation: self.reader.u64()?,
                };
                self.publishers[index] = (id, self.reader.number()?);
                self.named += 1;
            } else if index >= self.named {
                return None;
            }
            let (publisher, base) = self.publishers[index];
            Some(Message {
                publisher,
                sequence: base + delta,
                flags,
                data: self.reader.take(len)?,
            })
        };
        let message = parse();
        if message.is_none() {
            self.left = 0;
        }
        message
    }
}

/// A member block: consecutive places of a room, gateway to member.
pub struct RoomBlock<'a> {
    pub handle: u32,
    /// The place of the first message, assigned by the gateway; dense per gateway and room, gaps take a place too.
    pub index: u64,
    pub stream: StreamId,
    /// The owner's offset of the first message.
    pub offset: u64,
    /// Age of the messages in microseconds, if known.
    pub age: Option<u32>,
    pub messages: BlockMessages<'a>,
}

impl<'a> RoomBlock<'a> {
    #[inline]
    pub fn read(body: &'a [u8]) -> Option<Self> {
        Self::read_as(false, body)
    }

    /// Parses an aged block.
    pub fn read_aged(body: &'a [u8]) -> Option<Self> {
        Self::read_as(true, body)
    }

    #[inline]
    fn read_as(aged: bool, body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        Some(RoomBlock {
            handle: reader.u32()?,
            index: reader.number()?,
            stream: StreamId::read(&mut reader)?,
            offset: reader.number()?,
            age: if aged { Some(reader.u32()?) } else { None },
            messages: BlockMessages::new(reader)?,
        })
    }

    /// Begins the body of a member block; with an age, of an aged one.
    pub fn begin(
        writer: &mut Writer<'_>,
        handle: u32,
        index: u64,
        stream: StreamId,
        offset: u64,
        age: Option<u32>,
    ) -> BlockWriter {
        writer.u32(handle).u64(index);
        stream.write(writer);
        writer.u64(offset);
        if let Some(age) = age {
            writer.u32(age);
        }
        BlockWriter::begin(writer)
    }
}

/// A link block: consecutive offsets of a room's stream, broker to gateway. The stream's node and epoch are the link's.
pub struct LinkBlock<'a> {
    pub room: u64,
    pub generation: u32,
    /// The first offset that this gateway gets: where its interest began.
    pub base: u64,
    pub offset: u64,
    /// Age of the messages in microseconds, if known.
    pub age: Option<u32>,
    pub messages: BlockMessages<'a>,
}

impl<'a> LinkBlock<'a> {
    #[inline]
    pub fn read(body: &'a [u8]) -> Option<Self> {
        Self::read_as(false, body)
    }

    /// Parses an aged block.
    pub fn read_aged(body: &'a [u8]) -> Option<Self> {
        Self::read_as(true, body)
    }

    #[inline]
    fn read_as(aged: bool, body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        Some(LinkBlock {
            room: reader.u64()?,
            generation: reader.u32()?,
            base: reader.number()?,
            offset: reader.number()?,
            age: if aged { Some(reader.u32()?) } else { None },
            messages: BlockMessages::new(reader)?,
        })
    }

    /// Begins the body of a link block; with an age, of an aged one.
    pub fn begin(
        writer: &mut Writer<'_>,
        room: u64,
        generation: u32,
        base: u64,
        offset: u64,
        age: Option<u32>,
    ) -> BlockWriter {
        writer.u64(room).u32(generation).u64(base).u64(offset);
        if let Some(age) = age {
            writer.u32(age);
        }
        BlockWriter::begin(writer)
    }
}

/// A link block that a gateway passes on to another one: the same, with the node and the epoch of the broker in place of
/// `base`, so that it is as long.
pub struct RelayedBlock<'a> {
    pub broker: (u32, u32),
    /// Its `base` is 0: what the receiver gets of the room, its broker has told it.
    pub block: LinkBlock<'a>,
}

impl<'a> RelayedBlock<'a> {
    pub fn read(body: &'a [u8]) -> Option<Self> {
        Self::read_as(false, body)
    }

    /// Parses an aged block.
    pub fn read_aged(body: &'a [u8]) -> Option<Self> {
        Self::read_as(true, body)
    }

    fn read_as(aged: bool, body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let (room, generation) = (reader.u64()?, reader.u32()?);
        let broker = (reader.u32()?, reader.u32()?);
        let block = LinkBlock {
            room,
            generation,
            base: 0,
            offset: reader.number()?,
            age: if aged { Some(reader.u32()?) } else { None },
            messages: BlockMessages::new(reader)?,
        };
        Some(RelayedBlock { broker, block })
    }

    /// Makes one of the frame of a link block that came from this broker. An age becomes the time of birth, until the frame
    /// leaves. `None`: it is no link block.
    pub fn of(frame: &Frame<'_>, broker: (u32, u32), born: u32) -> Option<Box<[u8]>> {
        let kind = match frame.kind {
            kinds::LINK_ROOM | kinds::RELAYED_ROOM => kinds::RELAYED_ROOM,
            kinds::AGED_ROOM | kinds::AGED_RELAYED_ROOM => kinds::AGED_RELAYED_ROOM,
            _ => return None,
        };
        let mut bytes = Vec::with_capacity(FRAME + frame.body.len());
        bytes.extend_from_slice(&[kind.code(), frame.flags]);
        bytes.extend_from_slice(&(frame.body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(frame.body);
        let (node, epoch) = broker;
        bytes
            .get_mut(LINK_BASE_AT..LINK_BASE_AT + 4)?
            .copy_from_slice(&node.to_le_bytes());
        bytes
            .get_mut(LINK_BASE_AT + 4..LINK_BASE_AT + 8)?
            .copy_from_slice(&epoch.to_le_bytes());
        if kind == kinds::AGED_RELAYED_ROOM {
            bytes
                .get_mut(LINK_AGE_AT..LINK_AGE_AT + 4)?
                .copy_from_slice(&born.to_le_bytes());
        }
        Some(bytes.into())
    }
}

/// A place that holds a gap instead of a message, gateway to member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapPlace {
    pub handle: u32,
    pub index: u64,
    pub gap: StreamGap,
}

impl GapPlace {
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        Some(GapPlace {
            handle: reader.u32()?,
            index: reader.number()?,
            gap: StreamGap::read(&mut reader)?,
        })
    }

    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, kinds::GAP, 0, |writer| {
            writer.u32(self.handle).u64(self.index);
            self.gap.write(writer);
            true
        })
    }
}

/// Maximum number of places of one passed frame.
pub const PASSED_MAX: u32 = 4_096;

/// Consecutive places of a room whose messages, consecutive too, are not what a member's filter lets through. Nothing of
/// them is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    pub handle: u32,
    /// The place of the first message.
    pub index: u64,
    pub stream: StreamId,
    /// The owner's offset of the first message.
    pub offset: u64,
    /// How many messages, 1 to [`PASSED_MAX`].
    pub count: u32,
}

impl Passed {
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let passed = Passed {
            handle: reader.u32()?,
            index: reader.number()?,
            stream: StreamId::read(&mut reader)?,
            offset: reader.number()?,
            count: reader.u32()?,
        };
        let numbered = |first: u64| first <= NUMBER_MAX - u64::from(passed.count);
        let good = (1..=PASSED_MAX).contains(&passed.count) && numbered(passed.index) && numbered(passed.offset);
        good.then_some(passed)
    }

    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, kinds::PASSED, 0, |writer| {
            writer.u32(self.handle).u64(self.index);
            self.stream.write(writer);
            writer.u64(self.offset).u32(self.count);
            true
        })
    }

    /// The place behind it.
    pub fn end(&self) -> u64 {
        self.index.saturating_add(self.count.into())
    }

    /// The same without the places before `index`, which is one of it.
    pub fn from(&self, index: u64) -> Self {
        let before = index - self.index;
        Passed {
            index,
            offset: self.offset + before,
            count: self.count - before as u32,
            ..*self
        }
    }
}

/// Maximum number of streams that one skip or one set of positions can name.
pub const STREAMS_MAX: usize = 8;

/// What stands at the places from `index` to `end` is left out: older than a message that the member got, or not wanted. For each
/// stream the first offset that still follows (`u64::MAX`: nothing follows).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub handle: u32,
    pub index: u64,
    pub end: u64,
    pub resume: Vec<(StreamId, u64)>,
}

impl LeftOut {
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let (handle, index, end) = (reader.u32()?, reader.number()?, reader.number()?);
        let resume = read_resume(&mut reader)?;
        (index < end).then_some(LeftOut {
            handle,
            index,
            end,
            resume,
        })
    }

    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, kinds::LEFT_OUT, 0, |writer| {
            writer.u32(self.handle).u64(self.index).u64(self.end);
            write_resume(writer, &self.resume)
        })
    }
}

/// Streams with the first offset of each that follows.
fn read_resume(reader: &mut Reader<'_>) -> Option<Vec<(StreamId, u64)>> {
    let count = usize::from(reader.u8()?);
    if count > STREAMS_MAX {
        return None;
    }
    let mut resume = Vec::with_capacity(count);
    for _ in 0..count {
        resume.push((StreamId::read(reader)?, reader.number_or_open()?));
    }
    Some(resume)
}

/// `false`: too many.
fn write_resume(writer: &mut Writer<'_>, resume: &[(StreamId, u64)]) -> bool {
    writer.u8(resume.len() as u8);
    for (stream, next) in resume {
        stream.write(writer);
        writer.u64(*next);
    }
    resume.len() <= STREAMS_MAX
}

/// The member's cursor moved to `index`: every place below it that the member lacks is lost. For each stream that the
/// move skipped, the first offset that still follows (`u64::MAX`: nothing follows).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    pub handle: u32,
    pub index: u64,
    pub reason: GapReason,
    pub resume: Vec<(StreamId, u64)>,
}

impl Skip {
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let (handle, index, reason) = (reader.u32()?, reader.number()?, GapReason::from_u8(reader.u8()?)?);
        let resume = read_resume(&mut reader)?;
        Some(Skip {
            handle,
            index,
            reason,
            resume,
        })
    }

    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, kinds::SKIP, 0, |writer| {
            writer.u32(self.handle).u64(self.index).u8(self.reason as u8);
            write_resume(writer, &self.resume)
        })
    }
}

/// One room's head in a heads frame, gateway to member: the place after the last one sent.
pub const HEAD: usize = 12;

/// Iterates over a heads frame.
pub fn heads(body: &[u8]) -> impl Iterator<Item = (u32, u64)> + '_ {
    body.chunks_exact(HEAD).filter_map(|entry| {
        let mut reader = Reader::new(entry);
        Some((reader.u32()?, reader.number()?))
    })
}

/// Flag of a link heads frame for streams that have ended: another broker continues them.
pub const ENDED: u8 = 1;

/// Flag of a link heads frame that answers questions ([`write_link_question`]): `base` is the question's number, and `next` the
/// first offset that the broker had not numbered when it was asked, whether it has sent the others or not.
pub const NUMBERED: u8 = 2;

/// One room's head in a link heads frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHead {
    pub room: u64,
    pub generation: u32,
    pub base: u64,
    /// The offset after the last one sent.
    pub next: u64,
}

impl LinkHead {
    pub const LEN: usize = 28;

    /// States that the broker has nothing of a room: no stream has generation 0.
    pub fn nothing(room: u64) -> Self {
        LinkHead {
            room,
            generation: 0,
            base: 0,
            next: 0,
        }
    }

    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.u64(self.room).u32(self.generation).u64(self.base).u64(self.next);
    }

    pub fn read_all(body: &[u8]) -> impl Iterator<Item = LinkHead> + '_ {
        body.chunks_exact(Self::LEN).filter_map(|entry| {
            let mut reader = Reader::new(entry);
            Some(LinkHead {
                room: reader.u64()?,
                generation: reader.u32()?,
                base: reader.number()?,
                next: reader.number()?,
            })
        })
    }
}

/// One room's head in a relayed heads frame, of a gateway that passes the room on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayedHead {
    pub room: u64,
    pub stream: StreamId,
    /// The first offset that the gateway knows nothing of.
    pub next: u64,
}

impl RelayedHead {
    pub const LEN: usize = 28;

    pub fn write(&self, writer: &mut Writer<'_>) {
        let StreamId {
            node,
            epoch,
            generation,
        } = self.stream;
        writer
            .u64(self.room)
            .u32(generation)
            .u32(node)
            .u32(epoch)
            .u64(self.next);
    }

    pub fn read_all(body: &[u8]) -> impl Iterator<Item = RelayedHead> + '_ {
        body.chunks_exact(Self::LEN).filter_map(|entry| {
            let mut reader = Reader::new(entry);
            let (room, generation) = (reader.u64()?, reader.u32()?);
            Some(RelayedHead {
                room,
                stream: StreamId {
                    node: reader.u32()?,
                    epoch: reader.u32()?,
                    generation,
                },
                next: reader.number()?,
            })
        })
    }
}

/// A gateway's progress in a room's stream, gateway to broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    pub room: u64,
    pub generation: u32,
    /// The first offset that the gateway has not passed on.
    pub next: u64,
    /// In a paced room, the first offset that a member still needs from the gateway; 0 in a live one.
    pub kept: u64,
}

impl Consumed {
    pub const LEN: usize = 28;

    pub fn write(&self, writer: &mut Writer<'_>) {
        let writer = writer.u64(self.room).u32(self.generation);
        writer.u64(self.next).u64(self.kept);
    }

    pub fn read_all(body: &[u8]) -> impl Iterator<Item = Consumed> + '_ {
        body.chunks_exact(Self::LEN).filter_map(|entry| {
            let mut reader = Reader::new(entry);
            Some(Consumed {
                room: reader.u64()?,
                generation: reader.u32()?,
                next: reader.number()?,
                kept: reader.number()?,
            })
        })
    }
}

/// Maximum number of ranges in one repair request.
pub const REPAIR_RANGES: usize = 16;

/// Iterates over inclusive ranges at the end of a repair frame.
fn ranges<'a>(reader: &mut Reader<'a>) -> Option<impl Iterator<Item = (u64, u64)> + 'a> {
    let count = usize::from(reader.u8()?);
    let bytes = reader.rest();
    if count > REPAIR_RANGES || bytes.len() != count * 12 {
        return None;
    }
    Some(bytes.chunks_exact(12).filter_map(|entry| {
        let mut reader = Reader::new(entry);
        let first = reader.number()?;
        Some((first, first + u64::from(reader.u32()?)))
    }))
}

fn put_ranges(writer: &mut Writer<'_>, ranges: &[(u64, u64)]) {
    writer.u8(ranges.len() as u8);
    for (first, last) in ranges {
        writer.u64(*first).u32(u32::try_from(last - first).unwrap_or(u32::MAX));
    }
}

/// Parses a member's repair request: handle, the first missing place, and inclusive ranges of places.
pub fn read_repair(body: &[u8]) -> Option<(u32, u64, impl Iterator<Item = (u64, u64)> + '_)> {
    let mut reader = Reader::new(body);
    let (handle, next) = (reader.u32()?, reader.number()?);
    Some((handle, next, ranges(&mut reader)?))
}

/// Writes a member's repair request of at most [`REPAIR_RANGES`] ranges; without ranges, nothing below `next` is
/// missing anymore.
pub fn write_repair(writer: &mut Writer<'_>, handle: u32, next: u64, wanted: &[(u64, u64)]) -> bool {
    append(writer, kinds::REPAIR, 0, |writer| {
        writer.u32(handle).u64(next);
        put_ranges(writer, wanted);
        true
    })
}

/// Parses a gateway's repair request: room, generation, whether it is for history, and inclusive ranges of offsets.
pub fn read_link_repair(body: &[u8]) -> Option<(u64, u32, bool, impl Iterator<Item = (u64, u64)> + '_)> {
    let mut reader = Reader::new(body);
    let (room, generation, history) = (reader.u64()?, reader.u32()?, reader.u8()? != 0);
    Some((room, generation, history, ranges(&mut reader)?))
}

/// Writes a gateway's repair request of at most [`REPAIR_RANGES`] ranges. `history`: nothing is missing, but a
/// returning member wants earlier messages.
pub fn write_link_repair(
    writer: &mut Writer<'_>,
    room: u64,
    generation: u32,
    history: bool,
    wanted: &[(u64, u64)],
) -> bool {
    append(writer, kinds::LINK_REPAIR, 0, |writer| {
        writer.u64(room).u32(generation).u8(u8::from(history));
        put_ranges(writer, wanted);
        true
    })
}

/// Writes a gateway's question for the present state of a room. Its number, 1 or more, comes back in the answer, so that an
/// answer to an earlier question is not taken for it.
pub fn write_link_question(writer: &mut Writer<'_>, room: u64, number: u64) -> bool {
    write_link_repair(writer, room, 0, true, &[(number, number)])
}

/// Offsets below `first` of a stream are no longer available from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLost {
    pub room: u64,
    pub generation: u32,
    pub first: u64,
}

impl LinkLost {
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        Some(LinkLost {
            room: reader.u64()?,
            generation: reader.u32()?,
            first: reader.number()?,
        })
    }

    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, kinds::LINK_LOST, 0, |writer| {
            writer.u64(self.room).u32(self.generation).u64(self.first);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::Frames;
    use proptest::prelude::*;

    #[test]
    fn five_messages_of_200_bytes_fit_into_one_datagram() {
        let mut bytes = vec![0; 1200 - muster_transport::HEADER - 16];
        let mut writer = Writer::new(&mut bytes);
        let publisher = PublisherId {
            user: 7,
            incarnation: 9,
        };
        let stream = StreamId {
            node: 1,
            epoch: 2,
            generation: 3,
        };
        assert!(append(&mut writer, kinds::ROOM, 0, |writer| {
            let mut block = RoomBlock::begin(writer, 1, 1, stream, 1, None);
            for sequence in 1..=5 {
                assert!(block.push(
                    writer,
                    &Message {
                        publisher,
                        sequence,
                        flags: WHOLE,
                        data: &[b'x'; 200]
                    }
                ));
            }
            block.finish(writer) == 5
        }));
    }

    proptest! {
        #[test]
        fn a_block_survives_the_wire(
            messages in prop::collection::vec((0u64..20, 0u64..200_000, any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 0..60),
            age in any::<Option<u32>>(),
        ) {
            let mut bytes = [0; 1156];
            let mut writer = Writer::new(&mut bytes);
            let stream = StreamId { node: 1, epoch: 2, generation: 3 };
            let mut taken = Vec::new();
            let kind = if age.is_some() { kinds::AGED_MEMBER_ROOM } else { kinds::ROOM };
            append(&mut writer, kind, 0, |writer| {
                let mut block = RoomBlock::begin(writer, 5, 6, stream, 7, age);
                for (user, sequence, flags, data) in &messages {
                    let message = Message { publisher: PublisherId { user: *user, incarnation: 1 }, sequence: *sequence, flags: *flags, data };
                    if !block.push(writer, &message) {
                        break;
                    }
                    taken.push(message);
                }
                block.finish(writer);
                true
            });
            let len = writer.len();
            let frame = Frames::new(&bytes[..len], kinds::ALL).next().unwrap().unwrap();
            prop_assert!(age.is_none_or(|age| bytes[ROOM_AGE_AT..].starts_with(&age.to_le_bytes())));
            let block = if age.is_some() { RoomBlock::read_aged(frame.body) } else { RoomBlock::read(frame.body) };
            let block = block.unwrap();
            prop_assert_eq!((block.handle, block.index, block.stream, block.offset, block.age), (5, 6, stream, 7, age));
            prop_assert_eq!(block.messages.collect::<Vec<_>>(), taken);
        }

        #[test]
        fn any_bytes_read_as_a_bounded_block_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for block in [RoomBlock::read(&bytes), RoomBlock::read_aged(&bytes)].into_iter().flatten() {
                prop_assert!(block.messages.count() <= BLOCK_MESSAGES);
            }
            if let Some((_, _, ranges)) = read_repair(&bytes) {
                prop_assert!(ranges.count() <= REPAIR_RANGES);
            }
            let _ = (Skip::read(&bytes), GapPlace::read(&bytes), Passed::read(&bytes), LinkLost::read(&bytes));
            let _ = LeftOut::read(&bytes);
        }

        #[test]
        fn repair_requests_survive_the_wire(wanted in prop::collection::vec((0u64..1 << 40, 0u64..5000), 0..=16)) {
            let wanted: Vec<_> = wanted.into_iter().map(|(first, run)| (first, first + run)).collect();
            let mut bytes = [0; 400];
            let mut writer = Writer::new(&mut bytes);
            prop_assert!(write_repair(&mut writer, 9, 8, &wanted));
            let len = writer.len();
            let frame = Frames::new(&bytes[..len], kinds::ALL).next().unwrap().unwrap();
            let (handle, next, ranges) = read_repair(frame.body).unwrap();
            prop_assert_eq!((handle, next, ranges.collect::<Vec<_>>()), (9, 8, wanted));
        }
    }
}
