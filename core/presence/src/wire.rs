//! The frames of presence and unicast: bodies of the kinds in `kinds`.
//!
//! Owns these byte layouts (`tests/vectors/presence.json` has golden examples, `tests/reference/presence.py` parses
//! them too). Keeps no state: parsing gives borrowed views, writing appends to a [`Writer`]. Nothing is allocated by
//! a count from the sender: a list ends with its bytes.

use crate::device::Device;
use crate::event::{read_all, Entry, Event};
use crate::kinds;
use crate::limits::{BODY_BYTES_MAX, CHUNKS_MAX, FRAME_BYTES_MAX, PACKET_EVENTS_BYTES_MAX, RANGES_MAX};
use crate::version;
use muster_transport::{append, FrameKind, Reader, Writer};

/// Most frames are no longer than this.
const FRAME_BYTES_SHORT: usize = 256;

/// A gateway in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Origin {
    pub ap: u32,
    pub epoch: u32,
}

impl Origin {
    fn read(r: &mut Reader<'_>) -> Option<Origin> {
        Some(Origin {
            ap: r.u32()?,
            epoch: r.u32()?,
        })
    }

    fn write(self, w: &mut Writer<'_>) {
        w.u32(self.ap).u32(self.epoch);
    }
}

/// One shard of a division of users: those whose number modulo `of` is `index`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Shard {
    pub of: u16,
    pub index: u16,
}

impl Shard {
    /// The index of a user's shard among `of`; 0 if `of` is 0.
    pub fn index_of(user: u64, of: u16) -> u16 {
        user.checked_rem(u64::from(of)).unwrap_or(0) as u16
    }

    pub fn owns(self, user: u64) -> bool {
        Shard::index_of(user, self.of) == self.index
    }

    fn read(r: &mut Reader<'_>) -> Option<Shard> {
        let shard = Shard {
            of: r.u16()?,
            index: r.u16()?,
        };
        (shard.index < shard.of).then_some(shard)
    }

    fn write(self, w: &mut Writer<'_>) {
        w.u16(self.of).u16(self.index);
    }
}

/// Events of one packet, validated when they are parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Events<'a>(pub &'a [u8]);

impl Events<'_> {
    /// `None`: one is malformed.
    pub fn read(&self) -> Option<Vec<Event>> {
        read_all(self.0, Event::read)
    }
}

/// All events of one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report<'a> {
    pub origin: Origin,
    pub version: u64,
    pub events: Events<'a>,
}

/// One shard's events of one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share<'a> {
    /// The version of the shard map by which the packet was split (H9).
    pub map: u32,
    pub shard: Shard,
    pub origin: Origin,
    pub version: u64,
    pub events: Events<'a>,
}

/// Versions `first` to `last` have no events for the shard (H1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Empty {
    pub map: u32,
    pub shard: Shard,
    pub origin: Origin,
    pub first: u64,
    pub last: u64,
}

/// The newest version of a gateway, if no packet announced it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beat {
    pub origin: Origin,
    pub newest: u64,
}

/// Runs of versions, first and last.
pub type Ranges = Vec<(u64, u64)>;

/// Requests versions again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    pub transaction: u64,
    pub shard: Shard,
    pub origin: Origin,
    pub ranges: Ranges,
}

/// Some of the requested versions are older than `oldest`, or of another epoch than `origin`'s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooOld {
    pub transaction: u64,
    pub origin: Origin,
    pub oldest: u64,
    pub newest: u64,
}

/// Requests the full state of a shard, or chunks of the state of this transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FullAsk {
    pub transaction: u64,
    pub shard: Shard,
    pub ap: u32,
    /// Missing chunks; empty: the state from its start; [`FullAsk::HAS_ALL`]: the writer has the whole state.
    pub chunks: Ranges,
}

impl FullAsk {
    /// A chunk beyond the last that a state may have. A gateway that does not know this form sends nothing for it.
    pub const HAS_ALL: (u64, u64) = (CHUNKS_MAX as u64, CHUNKS_MAX as u64);

    /// Whether the writer confirms that it has the whole state.
    pub fn has_all(&self) -> bool {
        self.chunks == [FullAsk::HAS_ALL]
    }
}

/// One of `count` pieces of the state as of `version`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk<'a> {
    pub transaction: u64,
    pub origin: Origin,
    pub version: u64,
    pub index: u32,
    pub count: u32,
    pub entries: Entries<'a>,
}

/// Devices of one chunk, validated when they are parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entries<'a>(pub &'a [u8]);

impl Entries<'_> {
    /// `None`: one is malformed.
    pub fn read(&self) -> Option<Vec<Entry>> {
        read_all(self.0, Entry::read)
    }
}

/// The gateway already sends the maximum number of full states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    pub transaction: u64,
    pub origin: Origin,
    pub wait_ms: u32,
}

/// The session that came online by this event must end, because of a newer one elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Supersede {
    pub origin: Origin,
    pub user: u64,
    pub device: Device,
    pub version: u64,
    pub index: u16,
}

impl Supersede {
    /// The index that no event has: no session is to be closed, but the device was replaced by another one, and is to be refused for a
    /// while. A gateway of release 0.2 finds no such session, and ignores it.
    const BARS: u16 = u16::MAX;

    /// Says that a device is to be refused.
    pub fn bar(origin: Origin, user: u64, device: Device) -> Self {
        let (version, index) = (0, Supersede::BARS);
        Supersede {
            origin,
            user,
            device,
            version,
            index,
        }
    }

    pub fn is_bar(&self) -> bool {
        self.index == Supersede::BARS
    }
}

/// Identifies a message in one life of a sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct MessageId {
    pub server: u32,
    pub epoch: u32,
    pub sequence: u64,
}

impl MessageId {
    pub(crate) fn read(r: &mut Reader<'_>) -> Option<MessageId> {
        Some(MessageId {
            server: r.u32()?,
            epoch: r.u32()?,
            sequence: r.number()?,
        })
    }

    pub(crate) fn write(self, w: &mut Writer<'_>) {
        w.u32(self.server).u32(self.epoch).u64(self.sequence);
    }
}

/// A message to the devices of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unicast<'a> {
    pub id: MessageId,
    /// The sender's previous message to the same user, which this one must wait for; 0: none.
    pub after: u64,
    pub user: u64,
    /// `None`: all devices.
    pub device: Option<Device>,
    /// The message's remaining lifetime.
    pub expires_ms: u32,
    pub body: &'a [u8],
}

/// The outcome of a message on one device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Outcome {
    Delivered = 0,
    NotOnline = 1,
    Expired = 2,
    /// The device's gateway was lost before it answered: the device may have the message.
    Unknown = 3,
}

impl Outcome {
    pub const ALL: [Outcome; 4] = [
        Outcome::Delivered,
        Outcome::NotOnline,
        Outcome::Expired,
        Outcome::Unknown,
    ];

    pub fn from_u8(code: u8) -> Option<Outcome> {
        Outcome::ALL.into_iter().find(|outcome| *outcome as u8 == code)
    }
}

/// The outcomes of a message at one gateway: one for each of its known devices, or one without a device if none is
/// here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnicastAnswer {
    pub id: MessageId,
    pub ap: u32,
    pub outcomes: Vec<(Option<Device>, Outcome)>,
}

/// A node's site, and a writer's shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Here {
    /// From 1 on.
    pub site: u16,
    /// 0 and 0 on the wire if there is none.
    pub shard: Option<Shard>,
}

/// Any frame of presence or unicast, borrowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    Report(Report<'a>),
    Share(Share<'a>),
    Empty(Empty),
    Beat(Beat),
    Ask(Ask),
    TooOld(TooOld),
    FullAsk(FullAsk),
    Chunk(Chunk<'a>),
    Wait(Wait),
    Supersede(Supersede),
    Unicast(Unicast<'a>),
    /// Ends sessions instead of delivering a message. It waits for no predecessor.
    End(Unicast<'a>),
    UnicastAnswer(UnicastAnswer),
    Here(Here),
}

fn read_ranges(r: &mut Reader<'_>) -> Option<Ranges> {
    let read = |r: &mut Reader<'_>| {
        let (first, more) = (r.u64()?, r.u32()?);
        Some((first, first.wrapping_add(u64::from(more))))
    };
    let bytes = r.rest();
    if bytes.len() > RANGES_MAX * 12 {
        return None;
    }
    r.take(bytes.len())?;
    read_all(bytes, read)
}

/// `false`: a range is too long, or there are too many.
fn write_ranges(ranges: &[(u64, u64)], w: &mut Writer<'_>) -> bool {
    for (first, last) in ranges {
        let Ok(more) = u32::try_from(version::span(*first, *last).wrapping_sub(1)) else {
            return false;
        };
        w.u64(*first).u32(more);
    }
    ranges.len() <= RANGES_MAX
}

impl<'a> Message<'a> {
    /// `None`: malformed, or not a kind of presence.
    #[inline]
    pub fn read(kind: FrameKind, body: &'a [u8]) -> Option<Message<'a>> {
        let mut reader = Reader::new(body);
        let r = &mut reader;
        let message = match kind {
            kinds::REPORT => Message::Report(Report {
                origin: Origin::read(r)?,
                version: r.u64()?,
                events: Events(events(r)?),
            }),
            kinds::SHARE => Message::Share(Share {
                map: r.u32()?,
                shard: Shard::read(r)?,
                origin: Origin::read(r)?,
                version: r.u64()?,
                events: Events(events(r)?),
            }),
            kinds::EMPTY => Message::Empty(Empty {
                map: r.u32()?,
                shard: Shard::read(r)?,
                origin: Origin::read(r)?,
                first: r.u64()?,
                last: r.u64()?,
            }),
            kinds::BEAT => Message::Beat(Beat {
                origin: Origin::read(r)?,
                newest: r.u64()?,
            }),
            kinds::ASK => Message::Ask(Ask {
                transaction: r.u64()?,
                shard: Shard::read(r)?,
                origin: Origin::read(r)?,
                ranges: read_ranges(r)?,
            }),
            kinds::TOO_OLD => Message::TooOld(TooOld {
                transaction: r.u64()?,
                origin: Origin::read(r)?,
                oldest: r.u64()?,
                newest: r.u64()?,
            }),
            kinds::FULL_ASK => Message::FullAsk(FullAsk {
                transaction: r.u64()?,
                shard: Shard::read(r)?,
                ap: r.u32()?,
                chunks: read_ranges(r)?,
            }),
            kinds::CHUNK => Message::Chunk(chunk(r)?),
            kinds::WAIT => Message::Wait(Wait {
                transaction: r.u64()?,
                origin: Origin::read(r)?,
                wait_ms: r.u32()?,
            }),
            kinds::SUPERSEDE => Message::Supersede(Supersede {
                origin: Origin::read(r)?,
                user: r.u64()?,
                device: Device::read(r)?,
                version: r.u64()?,
                index: r.u16()?,
            }),
            kinds::UNICAST => Message::Unicast(unicast(r)?),
            kinds::END => Message::End(unicast(r).filter(|one| one.after == 0)?),
            kinds::UNICAST_ANSWER => Message::UnicastAnswer(UnicastAnswer {
                id: MessageId::read(r)?,
                ap: r.u32()?,
                outcomes: outcomes(r)?,
            }),
            kinds::HERE => Message::Here(here(r)?),
            _ => return None,
        };
        reader.is_empty().then_some(message)
    }

    pub fn kind(&self) -> FrameKind {
        match self {
            Message::Report(_) => kinds::REPORT,
            Message::Share(_) => kinds::SHARE,
            Message::Empty(_) => kinds::EMPTY,
            Message::Beat(_) => kinds::BEAT,
            Message::Ask(_) => kinds::ASK,
            Message::TooOld(_) => kinds::TOO_OLD,
            Message::FullAsk(_) => kinds::FULL_ASK,
            Message::Chunk(_) => kinds::CHUNK,
            Message::Wait(_) => kinds::WAIT,
            Message::Supersede(_) => kinds::SUPERSEDE,
            Message::Unicast(_) => kinds::UNICAST,
            Message::End(_) => kinds::END,
            Message::UnicastAnswer(_) => kinds::UNICAST_ANSWER,
            Message::Here(_) => kinds::HERE,
        }
    }

    /// Appends the frame; `false` and no change if it does not fit.
    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, self.kind(), 0, |w| self.write_body(w))
    }

    /// Calls `take` with the whole frame.
    pub fn encode<T>(&self, take: impl FnOnce(&[u8]) -> T) -> T {
        // Most are short, and clearing a kilobyte costs more than writing one of them.
        let mut short = [0; FRAME_BYTES_SHORT];
        let mut writer = Writer::new(&mut short);
        if self.write(&mut writer) {
            return take(writer.written());
        }
        let mut bytes = [0; FRAME_BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        let fits = self.write(&mut writer);
        assert!(fits, "a frame of ours is longer than FRAME_BYTES_MAX");
        take(writer.written())
    }

    /// The whole frame as a vector.
    pub fn to_frame(&self) -> Vec<u8> {
        self.encode(<[u8]>::to_vec)
    }

    fn write_body(&self, w: &mut Writer<'_>) -> bool {
        match self {
            Message::Report(report) => {
                report.origin.write(w);
                w.u64(report.version).put(report.events.0);
            }
            Message::Share(share) => {
                w.u32(share.map);
                share.shard.write(w);
                share.origin.write(w);
                w.u64(share.version).put(share.events.0);
            }
            Message::Empty(empty) => {
                w.u32(empty.map);
                empty.shard.write(w);
                empty.origin.write(w);
                w.u64(empty.first).u64(empty.last);
            }
            Message::Beat(beat) => {
                beat.origin.write(w);
                w.u64(beat.newest);
            }
            Message::Ask(ask) => {
                w.u64(ask.transaction);
                ask.shard.write(w);
                ask.origin.write(w);
                return write_ranges(&ask.ranges, w);
            }
            Message::TooOld(old) => {
                w.u64(old.transaction);
                old.origin.write(w);
                w.u64(old.oldest).u64(old.newest);
            }
            Message::FullAsk(ask) => {
                w.u64(ask.transaction);
                ask.shard.write(w);
                w.u32(ask.ap);
                return write_ranges(&ask.chunks, w);
            }
            Message::Chunk(chunk) => {
                w.u64(chunk.transaction);
                chunk.origin.write(w);
                w.u64(chunk.version).u32(chunk.index).u32(chunk.count);
                w.put(chunk.entries.0);
            }
            Message::Wait(wait) => {
                w.u64(wait.transaction);
                wait.origin.write(w);
                w.u32(wait.wait_ms);
            }
            Message::Supersede(one) => {
                one.origin.write(w);
                w.u64(one.user);
                one.device.write(w);
                w.u64(one.version).u16(one.index);
            }
            Message::Unicast(unicast) | Message::End(unicast) => write_unicast(unicast, w),
            Message::UnicastAnswer(answer) => {
                answer.id.write(w);
                w.u32(answer.ap);
                for (device, outcome) in &answer.outcomes {
                    write_device(device, w);
                    w.u8(*outcome as u8);
                }
            }
            Message::Here(here) => {
                let shard = here.shard.map_or((0, 0), |shard| (shard.of, shard.index));
                w.u16(here.site).u16(shard.0).u16(shard.1);
            }
        }
        true
    }
}

fn here(r: &mut Reader<'_>) -> Option<Here> {
    let (site, of, index) = (r.u16()?, r.u16()?, r.u16()?);
    let shard = match of {
        0 => None,
        of => Some(Shard { of, index }),
    };
    (site > 0 && (index < of || of + index == 0)).then_some(Here { site, shard })
}

fn events<'a>(r: &mut Reader<'a>) -> Option<&'a [u8]> {
    let len = r.rest().len();
    (len <= PACKET_EVENTS_BYTES_MAX).then(|| r.take(len)).flatten()
}

fn chunk<'a>(r: &mut Reader<'a>) -> Option<Chunk<'a>> {
    let chunk = Chunk {
        transaction: r.u64()?,
        origin: Origin::read(r)?,
        version: r.u64()?,
        index: r.u32()?,
        count: r.u32()?,
        entries: Entries(events(r)?),
    };
    (chunk.index < chunk.count && chunk.count <= CHUNKS_MAX).then_some(chunk)
}

fn unicast<'a>(r: &mut Reader<'a>) -> Option<Unicast<'a>> {
    let unicast = Unicast {
        id: MessageId::read(r)?,
        after: r.number()?,
        user: r.u64()?,
        device: Device::read_any(r)?,
        expires_ms: r.u32()?,
        body: r.take(r.rest().len())?,
    };
    let good = unicast.after < unicast.id.sequence && unicast.body.len() <= BODY_BYTES_MAX;
    good.then_some(unicast)
}

fn write_unicast(unicast: &Unicast<'_>, w: &mut Writer<'_>) {
    unicast.id.write(w);
    w.u64(unicast.after).u64(unicast.user);
    write_device(&unicast.device, w);
    w.u32(unicast.expires_ms).put(unicast.body);
}

pub(crate) fn write_device(device: &Option<Device>, w: &mut Writer<'_>) {
    match device {
        Some(device) => device.write(w),
        None => {
            w.u8(0);
        }
    }
}

fn outcomes(r: &mut Reader<'_>) -> Option<Vec<(Option<Device>, Outcome)>> {
    let bytes = r.take(r.rest().len())?;
    read_all(bytes, |r| Some((Device::read_any(r)?, Outcome::from_u8(r.u8()?)?)))
}
