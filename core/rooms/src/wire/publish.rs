//! Publishing: messages on their way to the room's owner, and the acknowledgements on the way back.

use muster_transport::{append, Code, Micros, Reader, Writer, FRAME, HEADER, MISSING_RANGES_MAX};

use crate::headers;
use crate::wire::kinds;

use crate::limits::{CREDIT_BYTES, CREDIT_MESSAGES};
use crate::wire::room::{FIRST, HEADERS, STREAMS_MAX};
use crate::wire::stream::{PublisherId, StreamId};

/// Bytes of a client's publish frame in front of its messages.
pub const PUBLISH: usize = FRAME + 4 + 4 + 8 + 8 + 1;
/// Bytes of a proxy's publish frame in front of its messages.
pub const LINK_PUBLISH: usize = FRAME + 8 + 8 + 16 + 8 + 4 + 4 + 8 + 8 + 1;
/// Bytes of a published message's own header.
pub const PUBLISHED: usize = 3;
/// Maximum bytes of messages in a publish frame, so that a proxy can forward them in one datagram of `payload` bytes.
pub const fn publish_body_max(payload: usize) -> usize {
    payload - HEADER - muster_transport::TAG - LINK_PUBLISH
}
/// Flag of a published message, besides those of chunks: a caller waits for its acknowledgement, which must leave at
/// once.
pub const PROMPT: u8 = 4;
/// Maximum number of messages in one publish frame.
pub const PUBLISH_MESSAGES: usize = 255;

/// Messages of one publisher for one room, numbered from `first`.
#[derive(Clone, Copy, Debug)]
pub struct Publish<'a> {
    pub handle: u32,
    /// The publisher's clock, not 0; the acknowledgement of this frame echoes it.
    pub sent_at: u32,
    /// The publisher's lowest unacknowledged sequence.
    pub low: u64,
    pub first: u64,
    pub count: u8,
    /// The messages in wire format: length u16, flags u8, data.
    pub messages: &'a [u8],
}

impl<'a> Publish<'a> {
    pub fn read(body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        Some(Publish {
            handle: reader.u32()?,
            sent_at: reader.u32()?,
            low: reader.number()?,
            first: reader.number()?,
            count: reader.u8()?,
            messages: reader.rest(),
        })
    }

    /// Writes the frame with messages already in wire format.
    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, kinds::PUBLISH, 0, |writer| {
            writer
                .u32(self.handle)
                .u32(self.sent_at)
                .u64(self.low)
                .u64(self.first)
                .u8(self.count)
                .put(self.messages);
            true
        })
    }
}

/// The same frame between proxy and broker, with the publisher stamped by the proxy and fields that the owner echoes.
#[derive(Clone, Copy, Debug)]
pub struct LinkPublish<'a> {
    pub room: u64,
    /// The second half of the hash of the room's name.
    pub check: u64,
    pub publisher: PublisherId,
    /// The proxy's number for the session, echoed in the acknowledgement.
    pub session: u64,
    /// The proxy's handle of the room in that session, and the publisher's clock, echoed.
    pub handle: u32,
    pub sent_at: u32,
    pub low: u64,
    pub first: u64,
    pub count: u8,
    pub messages: &'a [u8],
    /// The proxy has no link to the room's owner: the receiver must number it.
    pub detour: bool,
    /// The age of the messages in microseconds, if the frame carries it.
    pub age: Option<u32>,
    /// The proxy's number of the room's namespace ([`Record::Namespace`]); 0: no settings.
    ///
    /// [`Record::Namespace`]: crate::wire::record::Record::Namespace
    pub namespace: u8,
}

/// Flag of a link publish frame sent to a broker that is not the room's owner.
pub const DETOUR: u8 = 1;
/// The flag bits from here on are the number of the room's namespace.
const NAMESPACE_AT: u8 = 1;
/// The offset of the age in an aged publish frame.
pub const PUBLISH_AGE_AT: usize = FRAME + 8 + 8 + 16 + 8 + 4 + 4 + 4;

impl<'a> LinkPublish<'a> {
    pub fn read(flags: u8, body: &'a [u8]) -> Option<Self> {
        Self::read_as(false, flags, body)
    }

    /// Parses an aged publish frame. It stores `low` as the distance below `first`, so that the age makes it no
    /// longer.
    pub fn read_aged(flags: u8, body: &'a [u8]) -> Option<Self> {
        Self::read_as(true, flags, body)
    }

    #[inline]
    fn read_as(aged: bool, flags: u8, body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let mut frame = LinkPublish {
            detour: flags & DETOUR != 0,
            namespace: flags >> NAMESPACE_AT,
            room: reader.u64()?,
            check: reader.u64()?,
            publisher: PublisherId {
                user: reader.u64()?,
                incarnation: reader.u64()?,
            },
            session: reader.u64()?,
            handle: reader.u32()?,
            sent_at: reader.u32()?,
            low: 0,
            first: 0,
            count: 0,
            messages: &[],
            age: None,
        };
        if aged {
            let behind = u64::from(reader.u32()?);
            frame.age = Some(reader.u32()?);
            frame.first = reader.number()?;
            frame.low = frame.first.checked_sub(behind)?;
        } else {
            frame.low = reader.number()?;
            frame.first = reader.number()?;
        }
        frame.count = reader.u8()?;
        frame.messages = reader.rest();
        Some(frame)
    }

    /// The distance of `low` below `first`, if an aged frame can hold it.
    fn behind(&self) -> Option<u32> {
        u32::try_from(self.first.checked_sub(self.low)?).ok()
    }

    /// Writes the frame; an aged one if there is an age that it can hold.
    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        let flags = self.namespace << NAMESPACE_AT | if self.detour { DETOUR } else { 0 };
        let aged = self.age.zip(self.behind());
        let kind = match aged {
            Some(_) => kinds::AGED_PUBLISH,
            None => kinds::LINK_PUBLISH,
        };
        append(writer, kind, flags, |writer| {
            writer
                .u64(self.room)
                .u64(self.check)
                .u64(self.publisher.user)
                .u64(self.publisher.incarnation)
                .u64(self.session);
            writer.u32(self.handle).u32(self.sent_at);
            match aged {
                Some((age, behind)) => writer.u32(behind).u32(age),
                None => writer.u64(self.low),
            };
            writer.u64(self.first).u8(self.count).put(self.messages);
            true
        })
    }
}

/// Iterates over published messages: flags and data.
pub fn published(messages: &[u8], count: u8) -> impl Iterator<Item = (u8, &[u8])> {
    let mut reader = Reader::new(messages);
    let mut left = count;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let len = usize::from(reader.u16()?);
        let flags = reader.u8()?;
        Some((flags, reader.take(len)?))
    })
}

/// The highest sequence; the rest is headroom for arithmetic.
pub const SEQUENCE_MAX: u64 = 1 << 61;

/// Whether these sequences are valid for a publisher: its lowest unacknowledged one and the first of a frame. They
/// begin at 1.
pub fn numbered(low: u64, first: u64) -> bool {
    let valid = 1..=SEQUENCE_MAX;
    valid.contains(&low) && valid.contains(&first)
}

/// All flags of exactly `count` messages that fit into members' datagrams of `payload` bytes and whose headers, if they
/// have any, are good. `None`: `messages` holds something else.
pub fn flags_of(messages: &[u8], count: u8, payload: usize) -> Option<u8> {
    let (mut len, mut seen, mut all) = (0, 0, 0);
    for (flags, data) in published(messages, count) {
        let bad = |flags: u8| flags & (FIRST | HEADERS) == FIRST | HEADERS && !headers::well_formed(data);
        if data.len() > crate::wire::room::message_max(payload) || bad(flags) {
            return None;
        }
        len += PUBLISHED + data.len();
        seen += 1;
        all |= flags;
    }
    (seen == count && len == messages.len()).then_some(all)
}

/// Maximum number of runs of positions in one acknowledgement.
pub const ACK_RUNS: usize = 16;
/// Maximum number of missing ranges in one acknowledgement.
pub const ACK_RANGES: usize = MISSING_RANGES_MAX;

/// The owner's state of a publisher's messages in a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    pub handle: u32,
    /// The clock of the frame that caused it; 0 if none did, or if another acknowledgement has echoed it. With the
    /// code `rate_limited`: the milliseconds before another try.
    pub echo: u32,
    pub code: Code,
    /// Every sequence up to here is numbered.
    pub cumulative: u64,
    /// The highest sequence numbered or held; nothing above it has been kept.
    pub highest: u64,
    /// Maximum number of messages and bytes that the publisher may have unacknowledged.
    pub credit_messages: u16,
    pub credit_bytes: u32,
    pub stream: StreamId,
    /// Sequences above `cumulative` that are missing below the highest held, inclusive.
    pub missing: Vec<(u64, u64)>,
    /// The offsets of sequences: (first sequence, first offset, count).
    pub runs: Vec<(u64, u64, u16)>,
}

impl Ack {
    /// Bytes of the longest acknowledgement between broker and proxy.
    pub const LEN_MAX: usize = Ack::len_of(ACK_RANGES, ACK_RUNS);

    const fn len_of(ranges: usize, runs: usize) -> usize {
        FRAME + 8 + 4 + 4 + 1 + 16 + 6 + StreamId::LEN + 2 + ranges * 12 + runs * 18
    }

    /// Refuses everything from `low` on with this reason.
    pub fn refusing(handle: u32, low: u64, code: Code) -> Self {
        Ack {
            handle,
            echo: 0,
            code,
            cumulative: low.saturating_sub(1),
            highest: low.saturating_sub(1),
            credit_messages: CREDIT_MESSAGES as u16,
            credit_bytes: CREDIT_BYTES as u32,
            stream: StreamId::default(),
            missing: vec![],
            runs: vec![],
        }
    }

    /// Refuses everything from `low` on because its user exceeds the rate, until `wait` has passed.
    pub fn putting_off(handle: u32, low: u64, wait: Micros) -> Self {
        Ack {
            echo: u32::try_from(wait.div_ceil(1_000)).unwrap_or(u32::MAX),
            ..Ack::refusing(handle, low, Code::RateLimited)
        }
    }

    /// How long a temporarily refused publisher must wait, if announced.
    pub fn wait(&self) -> Option<Micros> {
        (self.code == Code::RateLimited).then_some(Micros::from(self.echo) * 1_000)
    }

    /// Length of this acknowledgement between broker and proxy.
    pub fn link_len(&self) -> usize {
        Ack::len_of(self.missing.len(), self.runs.len())
    }

    fn read_from(reader: &mut Reader<'_>) -> Option<Self> {
        let mut ack = Ack {
            handle: reader.u32()?,
            echo: reader.u32()?,
            code: Code::from_u8(reader.u8()?),
            cumulative: reader.number()?,
            highest: reader.number()?,
            credit_messages: reader.u16()?,
            credit_bytes: reader.u32()?,
            stream: StreamId::read(reader)?,
            missing: Vec::new(),
            runs: Vec::new(),
        };
        let (ranges, runs) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
        if ranges > ACK_RANGES || runs > ACK_RUNS {
            return None;
        }
        for _ in 0..ranges {
            let first = reader.number()?;
            ack.missing.push((first, first + u64::from(reader.u32()?)));
        }
        for _ in 0..runs {
            ack.runs.push((reader.number()?, reader.number()?, reader.u16()?));
        }
        reader.is_empty().then_some(ack)
    }

    fn write_to(&self, writer: &mut Writer<'_>) {
        writer
            .u32(self.handle)
            .u32(self.echo)
            .u8(self.code as u8)
            .u64(self.cumulative)
            .u64(self.highest)
            .u16(self.credit_messages)
            .u32(self.credit_bytes);
        self.stream.write(writer);
        writer.u8(self.missing.len() as u8).u8(self.runs.len() as u8);
        for (first, last) in &self.missing {
            writer.u64(*first).u32(u32::try_from(last - first).unwrap_or(u32::MAX));
        }
        for (sequence, offset, count) in &self.runs {
            writer.u64(*sequence).u64(*offset).u16(*count);
        }
    }

    /// Reads a proxy's frame to a client.
    pub fn read(body: &[u8]) -> Option<Self> {
        Ack::read_from(&mut Reader::new(body))
    }

    /// Parses a broker's frame to a proxy: the session, and the acknowledgement's bytes to forward unchanged.
    pub fn read_link(body: &[u8]) -> Option<(u64, &[u8])> {
        let mut reader = Reader::new(body);
        let session = reader.u64()?;
        let rest = reader.rest();
        Ack::read(rest).map(|_| (session, rest))
    }

    /// Encodes a proxy's own acknowledgement to a client.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; Ack::LEN_MAX];
        let mut writer = Writer::new(&mut bytes);
        self.write_to(&mut writer);
        let len = writer.len();
        bytes.truncate(len);
        bytes
    }

    /// Writes the frame from broker to proxy.
    pub fn write_link(&self, writer: &mut Writer<'_>, session: u64) -> bool {
        debug_assert!(self.missing.len() <= ACK_RANGES && self.runs.len() <= ACK_RUNS);
        append(writer, kinds::LINK_ACK, 0, |writer| {
            writer.u64(session);
            self.write_to(writer);
            true
        })
    }

    /// Writes the frame from proxy to client.
    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, kinds::ACK, 0, |writer| {
            self.write_to(writer);
            true
        })
    }
}

/// The course of a stream, in the two highest bits of a position's offset.
const LOST: u64 = 1 << 63;
const ENDED: u64 = 1 << 62;

/// A member's knowledge of a stream beyond its offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Course {
    #[default]
    GoesOn,
    /// Another owner continues the room.
    Ended,
    /// The rest is lost, and its end is unknown.
    Lost,
}

/// A member's position in one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub stream: StreamId,
    /// Everything up to here was received, or announced as lost.
    pub offset: u64,
    pub course: Course,
}

/// Maximum number of streams of a room that a member remembers; those that continue stay longest. It names half of
/// them; what a gateway reports about the others is not new to it.
const REMEMBERED_MAX: usize = 2 * STREAMS_MAX;

/// A member's position in a room: the streams that it knows, newest last. Opaque to users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Positions(pub Vec<Position>);

impl Positions {
    /// Streams that continue, each with its last received offset.
    pub fn at(streams: impl IntoIterator<Item = (StreamId, u64)>) -> Self {
        let position = |(stream, offset)| Position {
            stream,
            offset,
            course: Course::GoesOn,
        };
        Positions(streams.into_iter().map(position).collect())
    }

    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let count = usize::from(reader.u8()?);
        if count > STREAMS_MAX {
            return None;
        }
        let mut positions = Vec::with_capacity(count);
        for _ in 0..count {
            let (stream, offset) = (StreamId::read(reader)?, reader.u64()?);
            let course = match offset & (LOST | ENDED) {
                0 => Course::GoesOn,
                ENDED => Course::Ended,
                LOST => Course::Lost,
                _ => return None,
            };
            positions.push(Position {
                stream,
                offset: offset & !(LOST | ENDED),
                course,
            });
        }
        Some(Positions(positions))
    }

    pub fn write(&self, writer: &mut Writer<'_>) {
        // If there are too many to name, streams that continue come first, then the newest.
        let mut over = self.0.len().saturating_sub(STREAMS_MAX);
        let ended = self.0.iter().filter(|known| known.course != Course::GoesOn).count();
        let mut live = over.saturating_sub(ended);
        let kept = self.0.iter().filter(|known| {
            let left = match known.course {
                Course::GoesOn => &mut live,
                _ => &mut over,
            };
            let drops = *left > 0;
            *left -= usize::from(drops);
            !drops
        });
        writer.u8(self.0.len().min(STREAMS_MAX) as u8);
        for position in kept {
            position.stream.write(writer);
            let course = match position.course {
                Course::GoesOn => 0,
                Course::Ended => ENDED,
                Course::Lost => LOST,
            };
            writer.u64(position.offset.min(ENDED - 1) | course);
        }
    }

    /// The position in `stream`, if known.
    pub fn of(&self, stream: StreamId) -> Option<Position> {
        self.0.iter().rev().find(|known| known.stream == stream).copied()
    }

    /// Notes that everything of `stream` up to `offset` was received or announced as lost, and that the stream
    /// continues. Returns whether that is new.
    pub fn advance(&mut self, stream: StreamId, offset: u64) -> bool {
        let position = self.entry(stream, offset);
        let news = offset > position.offset;
        if news {
            (position.offset, position.course) = (offset, Course::GoesOn);
        }
        news
    }

    /// Notes a new stream.
    pub fn begin(&mut self, position: Position) {
        *self.entry(position.stream, 0) = position;
    }

    /// Notes that `stream` ends before `first`, as far as known.
    pub fn end(&mut self, stream: StreamId, first: u64, course: Course) {
        let position = self.entry(stream, 0);
        position.offset = position.offset.max(first.saturating_sub(1));
        position.course = course;
    }

    /// Notes that `stream` goes on before `first`, whatever its position was: nobody ever numbered more of it.
    pub fn go_back(&mut self, stream: StreamId, first: u64) {
        let position = self.entry(stream, 0);
        (position.offset, position.course) = (first.saturating_sub(1), Course::GoesOn);
    }

    /// The position in `stream`. A new one may push out the oldest: first among those that do not continue.
    fn entry(&mut self, stream: StreamId, offset: u64) -> &mut Position {
        // It is nearly always the last one.
        let at = match self.0.iter().rposition(|known| known.stream == stream) {
            Some(at) => at,
            None => {
                if self.0.len() == REMEMBERED_MAX {
                    let over = self.0.iter().position(|known| known.course != Course::GoesOn);
                    self.0.remove(over.unwrap_or(0));
                }
                self.0.push(Position {
                    stream,
                    offset: offset.saturating_sub(1),
                    course: Course::GoesOn,
                });
                self.0.len() - 1
            }
        };
        &mut self.0[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::Frames;
    use proptest::prelude::*;

    #[test]
    fn more_streams_are_remembered_than_named_and_continuing_ones_longest() {
        let stream = |node| StreamId {
            node,
            epoch: 1,
            generation: 1,
        };
        let named = |positions: &Positions| {
            let mut bytes = [0; 256];
            let mut writer = Writer::new(&mut bytes);
            positions.write(&mut writer);
            let len = writer.len();
            let back = Positions::read(&mut Reader::new(&bytes[..len])).unwrap();
            back.0.iter().map(|known| known.stream.node).collect::<Vec<_>>()
        };
        let mut positions = Positions::at((1..=10).map(|node| (stream(node), 10)));
        assert_eq!(named(&positions), [3, 4, 5, 6, 7, 8, 9, 10], "the newest");
        positions.end(stream(5), 11, Course::Ended);
        assert_eq!(named(&positions), [2, 3, 4, 6, 7, 8, 9, 10]);
        for node in [1, 2, 3] {
            positions.end(stream(node), 11, Course::Lost);
        }
        assert_eq!(named(&positions), [3, 4, 5, 6, 7, 8, 9, 10]);
        (11..=20).for_each(|node| assert!(positions.advance(stream(node), 5)));
        let known: Vec<_> = positions.0.iter().map(|known| known.stream.node).collect();
        assert_eq!(
            known,
            [vec![4], (6..=20).collect()].concat(),
            "ended streams are forgotten first"
        );
    }

    proptest! {
        #[test]
        fn an_acknowledgement_survives_both_hops(
            handle: u32, echo: u32, cumulative in 0u64..1 << 62, session: u64,
            missing in prop::collection::vec((0u64..1 << 50, 0u64..1000), 0..=ACK_RANGES),
            runs in prop::collection::vec((0u64..1 << 62, 0u64..1 << 62, any::<u16>()), 0..=ACK_RUNS),
        ) {
            let missing = missing.into_iter().map(|(first, run)| (first, first + run)).collect();
            let stream = StreamId { node: 1, epoch: 2, generation: 3 };
            let ack = Ack { handle, echo, code: Code::NotReady, cumulative, highest: cumulative, credit_messages: 5, credit_bytes: 6, stream, missing, runs };
            let mut bytes = [0; Ack::LEN_MAX];
            let mut writer = Writer::new(&mut bytes);
            prop_assert!(ack.write_link(&mut writer, session));
            let len = writer.len();
            prop_assert_eq!(len, ack.link_len());
            let frame = Frames::new(&bytes[..len], kinds::ALL).next().unwrap().unwrap();
            let (back, rest) = Ack::read_link(frame.body).unwrap();
            prop_assert_eq!(back, session);
            prop_assert_eq!(Ack::read(rest), Some(ack));
        }

        #[test]
        fn any_bytes_read_as_publishing_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Ack::read(&bytes), Ack::read_link(&bytes), LinkPublish::read(0, &bytes), LinkPublish::read_aged(0, &bytes));
            if let Some(publish) = Publish::read(&bytes) {
                prop_assert!(published(publish.messages, publish.count).count() <= 255);
            }
        }
    }
}
