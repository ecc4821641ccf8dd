//! Publications of a room's places, built once for all members that stand at a place and take one form.
//!
//! Owns the built frames. A member's form is its encoding, the stream that its offsets are of, and if a number stands for the
//! channel's name. Bounded: when full, everything is forgotten; frames on their way keep their bytes.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

use muster_edge::protocol::{ClientInfo, Encoding, Publication};
use muster_edge::Frame;
use muster_transport::{KeyedState, Micros};

use super::Deltas;
use crate::command::SHARED_USER;
use crate::gateway::filtering::{Filtering, LOOKED_MAX};
use crate::gateway::latest::Standing;
use crate::gateway::room::Room;
use crate::headers;
use crate::name::DEFAULT_NAMESPACE;
use crate::ring::{Arena, Entry};
use crate::wire::room::{FIRST, HEADERS, LAST};
use crate::wire::GapReason;

/// Bytes of built frames that are kept: four rooms' worth of what the slowest members of each may share.
const BYTES: usize = 4 << 20;
/// Bytes of one frame, but for its last message.
const FRAME_BYTES: usize = 16 * 1024;
/// Places before a message's last chunk that are searched for its others.
const CHUNKS_WITHIN: u64 = 4_096;

/// How frames are built for a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Form {
    pub encoding: Encoding,
    /// The room's number of the stream that offsets are told of.
    pub stream: u8,
    /// A number stands for the channel's name.
    pub compact: bool,
    /// The client names a room of the default namespace without it.
    pub bare: bool,
    pub deltas: Deltas,
}

/// The news from one place on.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// Messages, and the place behind them.
    Messages(Frame, u64),
    /// No message ends before this place.
    Nothing(u64),
    /// Messages are lost at this place.
    Lost(GapReason),
    /// The stream that offsets are told of has ended, or another one begins.
    Another,
}

/// A room's key, a place, the number of a stream, and the rest of a form.
type Key = (u32, u64, u8, u8);

/// A frame that was built.
#[derive(Clone)]
struct Kept {
    frame: Frame,
    next: u64,
    /// Nothing can be added to it any more.
    whole: bool,
}

impl Kept {
    /// Whether it has all that a frame can have where the room's head is here.
    fn is_current(&self, head: u64) -> bool {
        self.whole || self.next >= head
    }
}

/// Built frames by (room, first place) and form.
pub(super) struct Built {
    index: HashMap<Key, Kept, KeyedState>,
    bytes: usize,
    /// The one that was given last: most members of a room are served one after the other, and want the same.
    last: Option<(Key, Kept)>,
    /// Frames that were built.
    pub built: u64,
}

/// A message with all of its chunks.
pub(super) struct Whole<'a> {
    /// The place of its last chunk.
    pub offset: u64,
    pub stream: u8,
    /// Its headers and its data, and where the data begins.
    bytes: Cow<'a, [u8]>,
    begins: usize,
    user: String,
    client: String,
}

impl Whole<'_> {
    /// As a client is told it whose offsets are of this stream.
    pub fn publication(&self, stream: u8) -> Publication<'_> {
        Publication {
            data: self.data(),
            tags: headers::decode(&self.bytes[..self.begins]).collect(),
            info: (!self.user.is_empty()).then(|| ClientInfo {
                user: self.user.as_str().into(),
                client: self.client.as_str().into(),
                ..ClientInfo::default()
            }),
            offset: if self.stream == stream { self.offset } else { 0 },
            ..Publication::default()
        }
    }

    /// The data as a client with this encoding holds it for deltas.
    pub fn held(&self, encoding: Option<Encoding>) -> Option<Vec<u8>> {
        encoding.map(|encoding| muster_edge::held(encoding, self.data()).0.into_owned())
    }

    /// As [`Whole::publication`], with this data in place of its own, if there is any, for a client that takes deltas.
    pub fn publication_as<'a>(&'a self, stream: u8, held: Option<&'a [u8]>) -> Publication<'a> {
        let publication = self.publication(stream);
        match held {
            None => publication,
            Some(data) => Publication {
                data,
                quoted: true,
                ..publication
            },
        }
    }

    fn data(&self) -> &[u8] {
        &self.bytes[self.begins..]
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// The name of a room of the default namespace, without it.
pub(super) fn bare(name: &str) -> &str {
    name.strip_prefix(DEFAULT_NAMESPACE)
        .and_then(|rest| rest.strip_prefix(':'))
        .unwrap_or(name)
}

/// How a client is named by the incarnation that it publishes under: all of one connection have the higher bits in common.
pub(super) fn client_name(incarnation: u64) -> String {
    format!("{:012x}", incarnation >> 16)
}

/// The content of one place, for a member whose offsets belong to `stream`.
pub(super) enum Stands<'a> {
    Message(Whole<'a>),
    /// A chunk of a message that goes on, or word that a stream of another owner has ended.
    Nothing,
    Lost(GapReason),
    Another,
    /// The room does not hold the place any more.
    Gone,
}

pub(super) fn stands<'a>(room: &Room, arena: &'a Arena, place: u64, stream: u8) -> Stands<'a> {
    let Some(entry) = room.ring.get(arena, place) else {
        return Stands::Gone;
    };
    if entry.gap {
        return match entry.reason() {
            GapReason::Ended if entry.stream == stream => Stands::Another,
            GapReason::Ended => Stands::Nothing,
            reason => Stands::Lost(reason),
        };
    }
    if entry.flags & LAST == 0 {
        return Stands::Nothing;
    }
    match whole(room, arena, place, &entry) {
        Some(data) => Stands::Message(message(&entry, data)),
        // Its beginning was announced as lost, or is too far back.
        None => Stands::Lost(GapReason::Unrepaired),
    }
}

fn message<'a>(entry: &Entry<'a>, bytes: Cow<'a, [u8]>) -> Whole<'a> {
    let (user, client) = match entry.publisher.user {
        SHARED_USER => (String::new(), String::new()),
        user => (user.to_string(), client_name(entry.publisher.incarnation)),
    };
    let begins = match entry.flags & HEADERS {
        0 => 0,
        _ => headers::split(&bytes).map_or(0, |(block, _)| block.len()),
    };
    Whole {
        offset: entry.offset,
        stream: entry.stream,
        bytes,
        begins,
        user,
        client,
    }
}

/// The data of a message whose last chunk stands at `place`.
fn whole<'a>(room: &Room, arena: &'a Arena, place: u64, last: &Entry<'a>) -> Option<Cow<'a, [u8]>> {
    if last.flags & FIRST != 0 {
        return Some(last.data.into());
    }
    let (mut chunks, mut wanted) = (vec![last.data], last.sequence.checked_sub(1)?);
    for at in (place.saturating_sub(CHUNKS_WITHIN)..place).rev() {
        let entry = room.ring.get(arena, at)?;
        if entry.gap || entry.publisher != last.publisher {
            continue;
        }
        if entry.sequence != wanted {
            return None;
        }
        chunks.push(entry.data);
        if entry.flags & FIRST != 0 {
            chunks.reverse();
            return Some(chunks.concat().into());
        }
        wanted = wanted.checked_sub(1)?;
    }
    None
}

/// The message before a place, if the room still holds it: what a client has got last that stands there.
fn last_before<'a>(room: &Room, arena: &'a Arena, place: u64, stream: u8) -> Option<Whole<'a>> {
    for at in (place.saturating_sub(CHUNKS_WITHIN)..place).rev() {
        match stands(room, arena, at, stream) {
            Stands::Message(whole) => return Some(whole),
            Stands::Nothing => {}
            Stands::Lost(_) | Stands::Another | Stands::Gone => return None,
        }
    }
    None
}

/// Whether a filter passes what is at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Passes {
    No,
    Yes,
    /// Enough was looked at.
    Later,
}

/// Whether a filter passes a message at a place, or the chunk of one. Gaps are for every member, and so are chunks without a
/// beginning.
pub(super) fn passes(room: &Room, arena: &Arena, place: u64, (filter, looked): (&Filtering, &Cell<usize>)) -> Passes {
    let entry = room.ring.get(arena, place).filter(|entry| !entry.gap);
    match entry.and_then(|entry| filter.judge(room, arena, place, &entry, looked)) {
        Some(false) => Passes::Yes,
        Some(true) | None => Passes::No,
    }
}

/// Messages for one frame, the place behind them, and whether no later one can be added.
struct Gathered<'a> {
    messages: Vec<Whole<'a>>,
    next: u64,
    full: bool,
}

/// The messages from a place on that fit into one frame; other news where there is none before it.
fn gather<'a>(
    room: &Room,
    arena: &'a Arena,
    place: u64,
    stream: u8,
    passes: impl Fn(u64) -> Passes,
) -> Result<Gathered<'a>, News> {
    let (mut messages, mut bytes, mut next, mut full) = (Vec::new(), 0, place, false);
    while next < room.ring.next() {
        match passes(next) {
            Passes::No => {}
            Passes::Yes => {
                next += 1;
                continue;
            }
            Passes::Later => break,
        }
        match stands(room, arena, next, stream) {
            Stands::Message(whole) => {
                bytes += whole.len();
                messages.push(whole);
                next += 1;
                if bytes >= FRAME_BYTES {
                    full = true;
                    break;
                }
            }
            Stands::Nothing => next += 1,
            // What was passed before is no part of the loss.
            Stands::Lost(_) | Stands::Another | Stands::Gone if next > place => {
                full = true;
                break;
            }
            Stands::Lost(reason) => return Err(News::Lost(reason)),
            Stands::Another => return Err(News::Another),
            Stands::Gone => return Err(News::Lost(GapReason::Slow)),
        }
    }
    Ok(Gathered { messages, next, full })
}

/// What a client gets that wants the latest message.
pub(super) struct Turn {
    /// The place behind those that were looked at, and how many of them are left out.
    pub next: u64,
    pub passed: u64,
    pub standing: Standing,
    pub frame: Option<Frame>,
    /// Its subscription goes on no further.
    pub ends: Option<News>,
}

impl Form {
    /// The number that stands for a room's name, if one does, and the name as the client has it.
    fn named(self, room: &Room, number: i64) -> (i64, &str) {
        let channel = match self.bare {
            true => bare(&room.name),
            false => &room.name,
        };
        (if self.compact { number } else { 0 }, channel)
    }
}

impl Built {
    pub fn new(seed: u64) -> Self {
        Built {
            index: HashMap::with_hasher(KeyedState::new(seed, !seed)),
            bytes: 0,
            last: None,
            built: 0,
        }
    }

    /// The news for members of this form from `place` on; `number` stands for the room's name.
    pub fn news(&mut self, room: &Room, arena: &Arena, number: i64, place: u64, form: Form) -> News {
        let head = room.ring.next();
        let encoding = u8::from(form.encoding == Encoding::Protobuf);
        let shape = encoding | u8::from(form.compact) << 1 | u8::from(form.bare) << 2 | (form.deltas as u8) << 3;
        let key = (room.frames, place, form.stream, shape);
        let last = self.last.as_ref().filter(|(of, _)| *of == key).map(|(_, kept)| kept);
        if let Some(kept) = last.filter(|kept| kept.is_current(head)) {
            return News::Messages(kept.frame.clone(), kept.next);
        }
        if let Some(kept) = self.index.get(&key).filter(|kept| kept.is_current(head)) {
            self.last = Some((key, kept.clone()));
            return News::Messages(kept.frame.clone(), kept.next);
        }
        let Gathered { messages, next, full } = match gather(room, arena, place, form.stream, |_| Passes::No) {
            Ok(gathered) => gathered,
            Err(news) => return news,
        };
        let (number, channel) = form.named(room, number);
        let publications = messages.iter().map(|message| message.publication(form.stream));
        let frame = match form.deltas {
            Deltas::No => {
                Frame::publications(form.encoding, channel, number, publications, usize::MAX).map(|(frame, _)| frame)
            }
            deltas => {
                let base = match deltas {
                    Deltas::Next => last_before(room, arena, place, form.stream),
                    _ => None,
                };
                let base = base.as_ref().map(|base| base.data());
                Frame::deltas(form.encoding, channel, number, base, publications)
            }
        };
        let Some(frame) = frame else {
            return News::Nothing(next);
        };
        self.built += 1;
        self.keep(key, &frame, next, full);
        News::Messages(frame, next)
    }

    /// The news for one member that has a filter, and the number of places that the filter passes. `looked`: at places, in this
    /// turn; it goes on in another one behind [`LOOKED_MAX`].
    pub fn filtered(
        &mut self,
        room: &Room,
        arena: &Arena,
        number: i64,
        place: u64,
        form: Form,
        (filter, looked): (&Filtering, &Cell<usize>),
    ) -> (News, u64) {
        let passed = Cell::new(0);
        let passes = |at| {
            if looked.get() > LOOKED_MAX {
                return Passes::Later;
            }
            let passes = passes(room, arena, at, (filter, looked));
            passed.set(passed.get() + u64::from(passes == Passes::Yes));
            passes
        };
        let Gathered { messages, next, .. } = match gather(room, arena, place, form.stream, passes) {
            Ok(gathered) => gathered,
            Err(news) => return (news, 0),
        };
        let (number, channel) = form.named(room, number);
        let publications = messages.iter().map(|message| message.publication(form.stream));
        let news = match Frame::publications(form.encoding, channel, number, publications, usize::MAX) {
            Some((frame, _)) => {
                self.built += 1;
                News::Messages(frame, next)
            }
            None => News::Nothing(next),
        };
        (news, passed.get())
    }

    /// What a client gets that wants the latest message and stands at a place.
    pub fn latest(
        &mut self,
        room: &Room,
        arena: &Arena,
        (number, form): (i64, Form),
        (place, now): (u64, Micros),
        mut standing: Standing,
        (filter, looked): (&Filtering, &Cell<usize>),
    ) -> Turn {
        let (mut next, mut passed, mut ends) = (place, 0, None);
        while next < room.ring.next() && looked.get() <= LOOKED_MAX {
            let entry = room.ring.get(arena, next);
            ends = match entry.as_ref().map(|entry| (entry.gap, entry.reason(), entry.stream)) {
                None => Some(News::Lost(GapReason::Slow)),
                Some((true, GapReason::Ended, stream)) => (stream == form.stream).then_some(News::Another),
                Some((true, reason, _)) => Some(News::Lost(reason)),
                Some((false, ..)) => None,
            };
            if ends.is_some() {
                break;
            }
            let ended = entry.is_some_and(|entry| !entry.gap && entry.flags & LAST != 0);
            passed += match ended && passes(room, arena, next, (filter, looked)) == Passes::No {
                true => u64::from(standing.newest.replace(next).is_some()),
                false => 1,
            };
            next += 1;
        }
        let mut frame = None;
        if let Some(at) = standing.newest.filter(|_| now >= standing.due_at) {
            (standing.newest, standing.due_at) = (None, now + standing.period);
            match stands(room, arena, at, form.stream) {
                Stands::Message(whole) => {
                    let (number, channel) = form.named(room, number);
                    let one = std::iter::once(whole.publication(form.stream));
                    let built = Frame::publications(form.encoding, channel, number, one, usize::MAX);
                    frame = built.map(|(frame, _)| frame);
                    self.built += 1;
                }
                Stands::Lost(reason) => ends = Some(News::Lost(reason)),
                Stands::Nothing | Stands::Another | Stands::Gone => ends = Some(News::Lost(GapReason::Slow)),
            }
        }
        Turn {
            next,
            passed,
            standing,
            frame,
            ends,
        }
    }

    fn keep(&mut self, key: Key, frame: &Frame, next: u64, whole: bool) {
        let len = frame.bytes().len();
        if self.bytes + len > BYTES {
            self.index.clear();
            self.bytes = 0;
        }
        self.bytes += len;
        let kept = Kept {
            frame: frame.clone(),
            next,
            whole,
        };
        if let Some(before) = self.index.insert(key, kept) {
            self.bytes -= before.frame.bytes().len();
        }
    }
}
