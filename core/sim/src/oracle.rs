//! Expected results as plain maps and sets: published and acknowledged messages, and the messages of each member.
//!
//! Knows no machine. (sender, room, number) identifies a message and determines its content.

use std::collections::{BTreeMap, BTreeSet};

use muster_rooms::filter::Filter;
use muster_rooms::headers::encode;
use muster_rooms::wire::{GapReason, PublisherId, StreamGap, StreamId};
use muster_rooms::Item;
use muster_transport::Micros;

use crate::plan::Late;

pub struct Published {
    pub sender: u64,
    pub number: u64,
    pub len: usize,
    pub called_at: Micros,
    /// The position reported by its owner.
    pub acked: Option<(StreamId, u64)>,
    pub acked_at: Micros,
    /// Its sender died before it was acknowledged.
    pub forgotten: bool,
}

/// A gap as reported to a member, and the stream of the same owner that followed it.
#[derive(Debug)]
struct Announced {
    gap: StreamGap,
    followed_by: Option<StreamId>,
    /// The stream was in another state when the member's positions were right: offsets from there on, and before, may come again.
    sends_back: bool,
}

/// One membership, from join to leave.
#[derive(Debug)]
pub struct Membership {
    pub client: usize,
    pub room: usize,
    pub joined_at: Option<Micros>,
    /// From this time on every acknowledged message must be received or announced as lost.
    pub owed_from: Option<Micros>,
    pub left: bool,
    /// It gets only messages that this lets through.
    pub filter: Option<Filter>,
    /// The position of a stream that its member made up when it joined.
    pub forged: Option<(StreamId, u64)>,
    /// Messages published and acknowledged while its member was away.
    missed: Vec<usize>,
    /// The publishing time of its newest message.
    pub newest: Micros,
    /// Last number received of each life of each sender: an earlier life's messages may still be in transit.
    last: Lasts,
    /// The same for each stream.
    last_of: Few<(u64, u64, StreamKey), u64>,
    /// The same at the start of each stream: messages of that stream up to these are repeats.
    began: Vec<(StreamKey, Lasts)>,
    /// A bit per message.
    had: Vec<u64>,
    /// For each stream the last offset received, and the last announced as lost.
    offsets: Few<StreamKey, (u64, u64)>,
    gaps: Vec<Announced>,
    /// Number of gaps without an end that no stream of the same owner has followed yet.
    unfollowed: usize,
}

impl Membership {
    /// Whether its filter, if it has one, lets a message through. It names headers alone.
    fn wants(&self, message: &Published) -> bool {
        let lets = |filter: &Filter| {
            filter.lets(
                PublisherId::default(),
                0,
                Some(&headers_of(message.sender, message.number)),
            )
        };
        self.filter.as_ref().is_none_or(lets)
    }

    /// Whether it wants the latest message alone.
    pub fn is_latest(&self) -> bool {
        let rate = |filter: &Filter| filter.at_most_per_s();
        self.filter.as_ref().and_then(rate).is_some()
    }

    fn has(&self, message: usize) -> bool {
        self.had
            .get(message / 64)
            .is_some_and(|bits| bits >> (message % 64) & 1 == 1)
    }

    /// Whether later messages of its sender were received before the stream began.
    fn repeats(&self, stream: StreamId, message: &Published) -> bool {
        let life = (message.sender, message.number >> LIFE_BITS);
        let mut began = self.began.iter().filter(|(known, _)| *known == key(stream));
        began.any(|(_, last)| last.get(&life).is_some_and(|last| message.number <= last))
    }

    /// Whether something was announced as lost in a stream that carried later messages of the sender, before the last
    /// one there.
    fn lacked(&self, sender: u64, number: u64) -> bool {
        let (life, mut lasts) = (number >> LIFE_BITS, self.last_of.0.iter());
        lasts.any(|((of, its_life, stream), last)| {
            let ends = self.offsets.get(stream).map_or(0, |(last, _)| last);
            let mut gaps = self
                .gaps
                .iter()
                .map(|known| known.gap)
                .filter(|gap| key(gap.stream) == *stream);
            (*of, *its_life) == (sender, life) && *last > number && gaps.any(|gap| gap.first < ends)
        })
    }

    fn note_had(&mut self, message: usize) {
        if self.had.len() <= message / 64 {
            self.had.resize(message / 64 + 1, 0);
        }
        self.had[message / 64] |= 1 << (message % 64);
    }
}

/// A map of a handful of keys, of which the newest is used most.
#[derive(Clone, Debug)]
struct Few<K, V>(Vec<(K, V)>);

impl<K: PartialEq, V: Copy + Default> Few<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.0
            .iter()
            .rev()
            .find(|(known, _)| known == key)
            .map(|(_, value)| *value)
    }

    fn entry(&mut self, key: K) -> &mut V {
        let at = self.0.iter().rposition(|(known, _)| *known == key);
        let at = at.unwrap_or_else(|| {
            self.0.push((key, V::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

/// A message acknowledged this long before a join is known to its gateway, whatever was lost on the way.
const SETTLED: Micros = 1_000_000;

/// Shorter messages are never split.
const CHUNK_MIN: usize = 1_000;

/// Numbers below this belong to a sender's first life.
const LIFE_BITS: u32 = 20;

type StreamKey = (u32, u32, u32);
/// Numbers by sender and life.
type Lasts = Few<(u64, u64), u64>;

fn key(stream: StreamId) -> StreamKey {
    (stream.node, stream.epoch, stream.generation)
}

impl Announced {
    fn covers(&self, stream: StreamId, offset: u64) -> bool {
        let gap = &self.gap;
        let life = |stream: StreamId| (stream.node, stream.epoch);
        if self.sends_back && life(gap.stream) == life(stream) && stream.generation <= gap.stream.generation {
            return true; // numbered again before the broker learned what it had numbered
        }
        if gap.stream == stream {
            return gap.first <= offset && offset <= gap.last;
        }
        // A stream that ended without a report may have had successors that ended before any node here learned of
        // them.
        gap.last == StreamGap::OPEN
            && gap.stream.node == stream.node
            && key(gap.stream) < key(stream)
            && self.followed_by.is_none_or(|next| key(stream) < key(next))
    }
}

pub struct Oracle {
    /// By sender, room and the sender's life: messages in the order of their numbers, from 1 above the life's.
    published: BTreeMap<(u64, usize, u64), Vec<usize>>,
    /// By room: messages in the order in which they were published.
    by_room: BTreeMap<usize, Vec<usize>>,
    pub messages: Vec<Published>,
    pub memberships: Vec<Membership>,
    pub delivered: u64,
    pub delivered_datagrams: u64,
    pub gaps: u64,
    /// When a publisher's message may come after later ones because a room changed its owner, and how often that
    /// happened.
    late: Late,
    pub reordered: u64,
    /// Lives that began again, by node and epoch: they numbered offsets twice.
    returned: BTreeSet<(u32, u32)>,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A part of a message's content after its number: derived from all three, independently for each position.
fn word(sender: u64, room: usize, number: u64, at: usize) -> [u8; 8] {
    let seed = sender << 40 ^ (room as u64) << 32 ^ number;
    mix(seed.wrapping_add((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

/// The content of a message of this many bytes.
pub fn content(sender: u64, room: usize, number: u64, len: usize, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&number.to_le_bytes());
    for at in 0..len.div_ceil(8) {
        into.extend_from_slice(&word(sender, room, number, at));
    }
    into.truncate(len);
}

/// The headers of a message: every fifth has some, of different lengths.
pub fn headers_of(sender: u64, number: u64) -> Vec<u8> {
    if number % 5 != 0 {
        return Vec::new();
    }
    let (sender, value) = (sender.to_string(), "v".repeat((number % 40) as usize));
    encode([("sender", sender.as_str()), ("value", value.as_str())]).expect("good headers")
}

fn is_content(sender: u64, room: usize, number: u64, data: &[u8]) -> bool {
    let (first, rest) = data.split_at(data.len().min(8));
    let words = rest.chunks_exact(8);
    let (tail, last) = (words.remainder(), rest.len() / 8);
    *first == number.to_le_bytes()[..first.len()]
        && words
            .enumerate()
            .all(|(at, piece)| *piece == word(sender, room, number, at))
        && *tail == word(sender, room, number, last)[..tail.len()]
}

impl Oracle {
    pub fn new(late: Late) -> Self {
        Oracle {
            published: BTreeMap::new(),
            by_room: BTreeMap::new(),
            messages: Vec::new(),
            memberships: Vec::new(),
            delivered: 0,
            delivered_datagrams: 0,
            gaps: 0,
            late,
            reordered: 0,
            returned: BTreeSet::new(),
        }
    }

    /// The next number of `sender` in `room`. Each life of a sender counts from its own start, above the previous
    /// one.
    pub fn next_number(&self, sender: u64, room: usize, life: u64) -> u64 {
        let count = self.published.get(&(sender, room, life)).map_or(0, Vec::len);
        (life << LIFE_BITS) + count as u64 + 1
    }

    /// Notes a message accepted for publishing; its index in `messages`, plus one, is its ticket.
    pub fn note_published(&mut self, now: Micros, sender: u64, room: usize, number: u64, len: usize) {
        let all = self.published.entry((sender, room, number >> LIFE_BITS)).or_default();
        all.push(self.messages.len());
        self.by_room.entry(room).or_default().push(self.messages.len());
        self.messages.push(Published {
            sender,
            number,
            len,
            called_at: now,
            acked: None,
            acked_at: 0,
            forgotten: false,
        });
    }

    /// A broker has gone back to the beginning of this life.
    pub fn note_returned(&mut self, node: u32, epoch: u32) {
        self.returned.insert((node, epoch));
    }

    /// The sender died: its acknowledgements are no longer expected.
    pub fn forget(&mut self, sender: u64) {
        let lost = self
            .messages
            .iter_mut()
            .filter(|message| message.sender == sender && message.acked.is_none());
        lost.for_each(|message| message.forgotten = true);
    }

    pub fn note_acked(&mut self, now: Micros, ticket: u64, stream: StreamId, offset: u64) -> Result<(), String> {
        let message = (ticket as usize)
            .checked_sub(1)
            .and_then(|at| self.messages.get_mut(at));
        let Some(message) = message else {
            return Err(format!("an acknowledgement for ticket {ticket}, which nobody has"));
        };
        if offset == 0 {
            return Err(format!("message {} was acknowledged without an offset", message.number));
        }
        if message.acked.replace((stream, offset)).is_some() {
            return Err(format!("message {} was acknowledged twice", message.number));
        }
        message.acked_at = now;
        Ok(())
    }

    pub fn join(
        &mut self,
        client: usize,
        room: usize,
        owed_from: Option<Micros>,
        now: Micros,
        filter: Option<Filter>,
    ) -> usize {
        let since = owed_from.unwrap_or(now);
        let missed = self.of_room(room).filter(|(_, message)| {
            message.acked.is_some() && message.called_at > since && message.acked_at + SETTLED <= now
        });
        let missed = missed.map(|(at, _)| at).collect();
        self.memberships.push(Membership {
            client,
            room,
            missed,
            joined_at: None,
            owed_from,
            left: false,
            filter,
            forged: None,
            newest: 0,
            last: Few(Vec::new()),
            last_of: Few(Vec::new()),
            began: Vec::new(),
            had: Vec::new(),
            offsets: Few(Vec::new()),
            gaps: Vec::new(),
            unfollowed: 0,
        });
        self.memberships.len() - 1
    }

    /// A returning member was told that it missed nothing; `numbered`: how many messages the owner of its made-up position has
    /// numbered, if it made up one.
    pub fn believed(&self, at: usize, numbered: impl Fn(StreamId) -> Option<u64>) -> Result<(), String> {
        let membership = &self.memberships[at];
        match membership.forged {
            // A broker that went back may have numbered as much before that.
            Some((stream, _)) if self.returned.contains(&(stream.node, stream.epoch)) => Ok(()),
            Some((stream, offset)) if numbered(stream).is_some_and(|numbered| numbered < offset) => Err(format!(
                "client {} returned to room {} with offset {offset} of {stream:?}, which was never numbered, and was told that it missed nothing",
                membership.client, membership.room
            )),
            _ => Ok(()),
        }
    }

    /// A returning member was told that it missed nothing.
    pub fn recovered(&self, at: usize) -> Result<(), String> {
        let membership = &self.memberships[at];
        match membership
            .missed
            .iter()
            .find(|message| !membership.has(**message) && membership.wants(&self.messages[**message]))
            .filter(|_| !membership.is_latest())
        {
            None => Ok(()),
            Some(message) => Err(format!(
                "client {} returned to room {} and was told that it missed nothing, but number {} of {}, {:?}",
                membership.client,
                membership.room,
                self.messages[*message].number,
                self.messages[*message].sender,
                self.messages[*message].acked
            )),
        }
    }

    pub fn joined(&mut self, now: Micros, membership: usize) {
        let membership = &mut self.memberships[membership];
        membership.joined_at.get_or_insert(now);
        membership.owed_from.get_or_insert(now);
    }

    pub fn item(&mut self, at: usize, item: &Item, headers: &[u8], data: &[u8]) -> Result<(), String> {
        let membership = &mut self.memberships[at];
        let (client, room) = (membership.client, membership.room);
        let who = || format!("client {client} in room {room}");
        let (stream, offset, sender) = match *item {
            Item::Gap(gap) => {
                if gap.first > gap.last {
                    return Err(format!("{}: an empty gap {gap:?}", who()));
                }
                self.gaps += 1;
                let followed_by = None;
                let made_up = membership.forged.is_some_and(|(stream, _)| stream == gap.stream);
                let again = made_up || self.returned.contains(&(gap.stream.node, gap.stream.epoch));
                let sends_back = again && gap.reason == GapReason::Restarted && gap.last == StreamGap::OPEN;
                membership.unfollowed += usize::from(gap.last == StreamGap::OPEN);
                let (last, lost) = membership.offsets.entry(key(gap.stream));
                if sends_back {
                    *last = (*last).min(gap.first - 1);
                }
                // A chunk may be given up after later messages were received; all else is reported in order.
                if gap.first <= *last && gap.reason != GapReason::Unrepaired {
                    return Err(format!("{}: had up to {last}, and then {gap:?}", who()));
                }
                *lost = gap.last.max(*lost);
                membership.gaps.push(Announced {
                    gap,
                    followed_by,
                    sends_back,
                });
                return Ok(());
            }
            Item::Message {
                stream, offset, sender, ..
            } => (stream, offset, sender),
            Item::Command { .. } => return Ok(()), // `commands` checks these
        };
        if membership.unfollowed > 0 {
            for announced in membership
                .gaps
                .iter_mut()
                .filter(|known| known.gap.last == StreamGap::OPEN)
            {
                if announced.followed_by.is_none() && announced.gap.stream.node == stream.node {
                    announced.followed_by = Some(stream);
                    membership.unfollowed -= 1;
                }
            }
        }
        if membership.began.last().is_none_or(|(known, _)| *known != key(stream)) {
            membership.began.push((key(stream), membership.last.clone()));
        }
        let (last, lost) = membership.offsets.entry(key(stream));
        if offset <= *last {
            return Err(format!("{}: offset {offset} of {stream:?} after {last}", who()));
        }
        *last = offset;
        // A gap may cover later messages only if its stream's end was unknown, or if its owner is alive after all.
        let lives = |known: &&Announced| {
            known.sends_back || known.gap.last == StreamGap::OPEN && known.gap.reason == GapReason::OwnerLost
        };
        let mut gaps = membership.gaps.iter().filter(|known| offset <= *lost && !lives(known));
        if let Some(gap) = gaps.find(|known| known.gap.stream == stream && known.covers(stream, offset)) {
            return Err(format!(
                "{}: offset {offset} was announced as lost before: {:?}",
                who(),
                gap.gap
            ));
        }
        let number = if data.len() >= 8 {
            data[..8]
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        } else {
            let span = 1u64 << (8 * data.len());
            let low = data.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            let last = membership.last.get(&(sender, 0)).unwrap_or(0);
            last + 1 + (low + span - (last + 1) % span) % span
        };
        let (before, last_of) = (
            membership.last.get(&(sender, number >> LIFE_BITS)).unwrap_or(0),
            membership.last_of.entry((sender, number >> LIFE_BITS, key(stream))),
        );
        let late = number <= before;
        if number <= *last_of || late && self.late == Late::Never {
            return Err(format!("{}: number {number} of {sender} after {before}", who()));
        }
        *last_of = number;
        let (life, nth) = (number >> LIFE_BITS, (number & ((1 << LIFE_BITS) - 1)).wrapping_sub(1));
        let of_life = self.published.get(&(sender, room, life));
        let Some(known) = of_life.and_then(|all| all.get(nth as usize)).copied() else {
            return Err(format!("{}: number {number} of {sender} was never published", who()));
        };
        let message = &self.messages[known];
        let whole = data.len() == message.len && headers == headers_of(sender, number);
        if !whole || !is_content(sender, room, number, data) {
            return Err(format!(
                "{}: number {number} of {sender}: not what was published",
                who()
            ));
        }
        if !membership.wants(message) {
            return Err(format!(
                "{}: number {number} of {sender}: its filter passes that",
                who()
            ));
        }
        if membership.has(known) {
            return Err(format!("{}: number {number} of {sender} came twice", who()));
        }
        let owed = membership.owed_from.is_none_or(|from| message.called_at > from);
        if late && self.late == Late::OnceLost && owed && !membership.lacked(sender, number) {
            return Err(format!(
                "{}: number {number} of {sender} after {before}, and was not announced as lost",
                who()
            ));
        }
        self.reordered += u64::from(late);
        *membership.last.entry((sender, number >> LIFE_BITS)) = number.max(before);
        membership.newest = membership.newest.max(message.called_at);
        membership.note_had(known);
        self.delivered += 1;
        self.delivered_datagrams += 1 + data.len() as u64 / 1_100;
        Ok(())
    }

    /// Checks that each acknowledged message was received or announced as lost; without faults it must be received.
    /// Call when everything has settled. `is_over`: for a member and a stream with an unknown end, whether the
    /// owner's life is over.
    pub fn complete(
        &self,
        may_lose: impl Fn(&Membership) -> bool,
        is_over: impl Fn(usize, StreamId) -> bool,
    ) -> Result<(), String> {
        for (number, membership) in self.memberships.iter().enumerate() {
            if membership.left {
                continue;
            }
            let who = format!("client {} in room {}", membership.client, membership.room);
            let Some(owed_from) = membership.owed_from.filter(|_| membership.joined_at.is_some()) else {
                return Err(format!("{who}: the join never returned"));
            };
            if !may_lose(membership) {
                if let Some(gap) = membership.gaps.first() {
                    return Err(format!(
                        "{who}: a gap though everything could be repaired: {:?}",
                        gap.gap
                    ));
                }
            }
            if membership.is_latest() {
                self.ends_with_the_last(membership, owed_from, &who)?;
                continue;
            }
            for (at, message) in self.of_room(membership.room) {
                let Some((stream, offset)) = message.acked else {
                    continue;
                };
                if message.called_at <= owed_from || membership.has(at) || !membership.wants(message) {
                    continue;
                }
                let announced = membership.gaps.iter().any(|gap| gap.covers(stream, offset));
                // An owner may have taken the room over, for the first time or again, and died with its messages
                // before a member of a dead gateway returned.
                let announced = announced || is_over(number, stream);
                // An earlier owner's copy is in a gap, and this one is a repeat. That is certain if later ones were
                // received before the stream began, or some chunks of the first copy. A reader does not know which
                // messages its own policy dropped.
                let repeats = membership.repeats(stream, message) || message.len > CHUNK_MIN;
                let unknown = membership.gaps.iter().any(|known| {
                    let whole = known.gap.last != StreamGap::OPEN && repeats;
                    known.gap.stream != stream && (whole || known.gap.reason == GapReason::Reader)
                });
                if !announced && !unknown {
                    return Err(format!(
                        "{who}: number {} of {}, {} B, published at {}, acknowledged as {stream:?} offset {offset}, neither came nor was announced as lost; gaps {:?}, offsets {:?}, joined at {:?}",
                        message.number,
                        message.sender,
                        message.len,
                        message.called_at,
                        membership.gaps.iter().rev().take(10).map(|gap| (gap.gap, gap.followed_by)).collect::<Vec<_>>(),
                        membership.offsets,
                        membership.joined_at,
                    ));
                }
            }
        }
        Ok(())
    }

    /// A member that wants the latest message has the last one of a stream, or a later one, or was told that it is lost.
    fn ends_with_the_last(&self, membership: &Membership, owed_from: Micros, who: &str) -> Result<(), String> {
        let wanted = self.of_room(membership.room).map(|(_, message)| message);
        let mut lasts = BTreeMap::<StreamKey, (StreamId, u64)>::new();
        for message in wanted.filter(|message| message.called_at > owed_from && membership.wants(message)) {
            if let Some((stream, offset)) = message.acked {
                let last = lasts.entry(key(stream)).or_insert((stream, offset));
                last.1 = last.1.max(offset);
            }
        }
        let has = |(stream, offset): &(StreamId, u64)| {
            let had = membership.offsets.get(&key(*stream)).map_or(0, |(had, _)| had);
            had >= *offset || membership.gaps.iter().any(|gap| gap.covers(*stream, *offset))
        };
        match lasts.is_empty() || lasts.values().any(has) {
            true => Ok(()),
            false => Err(format!(
                "{who}: the last messages are at {:?}, but it has {:?}, gaps {:?}",
                lasts.values(),
                membership.offsets,
                membership
                    .gaps
                    .iter()
                    .rev()
                    .take(10)
                    .map(|gap| gap.gap)
                    .collect::<Vec<_>>(),
            )),
        }
    }

    fn of_room(&self, room: usize) -> impl Iterator<Item = (usize, &Published)> {
        let all = self.by_room.get(&room).into_iter().flatten();
        all.map(|at| (*at, &self.messages[*at]))
    }

    /// The messages published to a member's room at `from` or later that it wants: how many it received, and how many there are.
    pub fn had_since(&self, membership: &Membership, from: Micros) -> (usize, usize) {
        let since = || {
            self.of_room(membership.room)
                .filter(|(_, message)| message.called_at >= from && membership.wants(message))
        };
        (since().filter(|(at, _)| membership.has(*at)).count(), since().count())
    }

    pub fn unacknowledged(&self) -> usize {
        self.messages
            .iter()
            .filter(|message| message.acked.is_none() && !message.forgotten)
            .count()
    }

    /// Number of gaps by reason, over all memberships.
    pub fn gap_reasons(&self) -> BTreeMap<String, u64> {
        let mut reasons = BTreeMap::new();
        for gap in self.memberships.iter().flat_map(|membership| &membership.gaps) {
            let reason: GapReason = gap.gap.reason;
            *reasons.entry(format!("{reason:?}")).or_default() += 1;
        }
        reasons
    }
}
