//! What must hold, as plain maps and sets: what was published, what was acknowledged, what each member got.
//!
//! Knows no machine. A message is known by (sender, room, number), and its content follows from that.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::client::member::Item;
use muster_proto::machine::Micros;
use muster_proto::wire::{GapReason, StreamGap, StreamId};

pub struct Published {
    pub sender: u64,
    pub room: usize,
    pub number: u64,
    pub len: usize,
    pub called_at: Micros,
    /// Where its owner says that it stands; offset 0 where the owner did not remember.
    pub acked: Option<(StreamId, u64)>,
    /// Its sender died before it was acknowledged.
    pub forgotten: bool,
}

/// A gap as a member heard of it, and the stream of the same owner that followed it.
#[derive(Debug)]
struct Announced {
    gap: StreamGap,
    followed_by: Option<StreamId>,
}

/// One membership, from join to leave.
#[derive(Debug)]
pub struct Membership {
    pub client: usize,
    pub room: usize,
    pub joined_at: Option<Micros>,
    /// From when on every acknowledged message must be had or announced as lost.
    pub owed_from: Option<Micros>,
    pub left: bool,
    /// When the newest of what it had was published.
    pub newest: Micros,
    /// Last number had of each life of each sender: what an earlier life sent may still be on its way.
    last: BTreeMap<(u64, u64), u64>,
    had: BTreeSet<(u64, u64)>,
    offsets: BTreeMap<StreamKey, u64>,
    gaps: Vec<Announced>,
}

/// Numbers below this are those of a sender's first life.
const LIFE_BITS: u32 = 20;

type StreamKey = (u32, u32, u32);

fn key(stream: StreamId) -> StreamKey {
    (stream.node, stream.epoch, stream.generation)
}

impl Announced {
    fn covers(&self, stream: StreamId, offset: u64) -> bool {
        let gap = &self.gap;
        if gap.stream == stream {
            return gap.first <= offset && offset <= gap.last;
        }
        // A stream that ended without a word may have had successors that ended before anyone here heard of them.
        gap.last == StreamGap::OPEN
            && gap.stream.node == stream.node
            && key(gap.stream) < key(stream)
            && self.followed_by.is_none_or(|next| key(stream) < key(next))
    }
}

#[derive(Default)]
pub struct Oracle {
    /// By sender and room: messages by their numbers.
    published: BTreeMap<(u64, usize), BTreeMap<u64, usize>>,
    pub messages: Vec<Published>,
    pub memberships: Vec<Membership>,
    pub delivered: u64,
    pub delivered_datagrams: u64,
    pub gaps: u64,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The content of a message: its number, as far as there is space for it, then bytes that follow from all three.
pub fn content(sender: u64, room: usize, number: u64, len: usize, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&number.to_le_bytes()[..len.min(8)]);
    let mut state = mix(sender << 40 ^ (room as u64) << 32 ^ number);
    while into.len() < len {
        state = mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let bytes = state.to_le_bytes();
        into.extend_from_slice(&bytes[..bytes.len().min(len - into.len())]);
    }
}

impl Oracle {
    /// The number that the next message of `sender` in `room` has. Each life of a sender counts anew, above the one before.
    pub fn next_number(&self, sender: u64, room: usize, life: u64) -> u64 {
        let last = self.published.get(&(sender, room)).and_then(|all| all.last_key_value());
        last.map_or(0, |(number, _)| *number).max(life << LIFE_BITS) + 1
    }

    /// Notes a message that was taken for publishing; its place in `messages`, plus one, is its ticket.
    pub fn note_published(&mut self, now: Micros, sender: u64, room: usize, number: u64, len: usize) {
        let all = self.published.entry((sender, room)).or_default();
        all.insert(number, self.messages.len());
        self.messages.push(Published {
            sender,
            room,
            number,
            len,
            called_at: now,
            acked: None,
            forgotten: false,
        });
    }

    /// The sender died: nobody waits for its acknowledgements any more.
    pub fn forget(&mut self, sender: u64) {
        let lost = self
            .messages
            .iter_mut()
            .filter(|message| message.sender == sender && message.acked.is_none());
        lost.for_each(|message| message.forgotten = true);
    }

    pub fn note_acked(&mut self, ticket: u64, stream: StreamId, offset: u64) -> Result<(), String> {
        let message = (ticket as usize)
            .checked_sub(1)
            .and_then(|at| self.messages.get_mut(at));
        let Some(message) = message else {
            return Err(format!("an acknowledgement for ticket {ticket}, which nobody has"));
        };
        if message.acked.replace((stream, offset)).is_some() {
            return Err(format!("message {} was acknowledged twice", message.number));
        }
        Ok(())
    }

    pub fn join(&mut self, client: usize, room: usize, owed_from: Option<Micros>) -> usize {
        self.memberships.push(Membership {
            client,
            room,
            joined_at: None,
            owed_from,
            left: false,
            newest: 0,
            last: BTreeMap::new(),
            had: BTreeSet::new(),
            offsets: BTreeMap::new(),
            gaps: Vec::new(),
        });
        self.memberships.len() - 1
    }

    pub fn joined(&mut self, now: Micros, membership: usize) {
        let membership = &mut self.memberships[membership];
        membership.joined_at.get_or_insert(now);
        membership.owed_from.get_or_insert(now);
    }

    pub fn item(&mut self, at: usize, item: &Item, data: &[u8]) -> Result<(), String> {
        let membership = &mut self.memberships[at];
        let who = format!("client {} in room {}", membership.client, membership.room);
        let (stream, offset, sender) = match *item {
            Item::Gap(gap) => {
                if gap.first > gap.last {
                    return Err(format!("{who}: an empty gap {gap:?}"));
                }
                self.gaps += 1;
                let followed_by = None;
                membership.gaps.push(Announced { gap, followed_by });
                return Ok(());
            }
            Item::Message {
                stream, offset, sender, ..
            } => (stream, offset, sender),
        };
        for announced in membership
            .gaps
            .iter_mut()
            .filter(|known| known.gap.last == StreamGap::OPEN)
        {
            if announced.followed_by.is_none() && announced.gap.stream.node == stream.node {
                announced.followed_by = Some(stream);
            }
        }
        let last = membership.offsets.entry(key(stream)).or_default();
        if offset <= *last {
            return Err(format!("{who}: offset {offset} of {stream:?} after {last}"));
        }
        *last = offset;
        // A gap may name what comes yet only where nobody knew the end of a stream.
        if let Some(gap) = membership
            .gaps
            .iter()
            .find(|known| known.gap.stream == stream && known.covers(stream, offset))
        {
            return Err(format!(
                "{who}: offset {offset} was announced as lost before: {:?}",
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
            let last = membership.last.get(&(sender, 0)).copied().unwrap_or(0);
            last + 1 + (low + span - (last + 1) % span) % span
        };
        let last = membership.last.entry((sender, number >> LIFE_BITS)).or_default();
        if number <= *last {
            return Err(format!("{who}: number {number} of {sender} after {last}"));
        }
        let known = self
            .published
            .get(&(sender, membership.room))
            .and_then(|all| all.get(&number));
        let Some(known) = known else {
            return Err(format!("{who}: number {number} of {sender} was never published"));
        };
        let mut expected = Vec::new();
        content(
            sender,
            membership.room,
            number,
            self.messages[*known].len,
            &mut expected,
        );
        if expected != data {
            return Err(format!("{who}: number {number} of {sender}: not what was published"));
        }
        *last = number;
        membership.newest = membership.newest.max(self.messages[*known].called_at);
        membership.had.insert((sender, number));
        self.delivered += 1;
        self.delivered_datagrams += 1 + data.len() as u64 / 1_100;
        Ok(())
    }

    /// What is acknowledged is had or announced as lost; without faults it is had. Call when all has settled.
    pub fn complete(&self, may_lose: impl Fn(&Membership) -> bool) -> Result<(), String> {
        for membership in self.memberships.iter().filter(|membership| !membership.left) {
            let who = format!("client {} in room {}", membership.client, membership.room);
            let Some(owed_from) = membership.owed_from.filter(|_| membership.joined_at.is_some()) else {
                return Err(format!("{who}: the join never returned"));
            };
            if !may_lose(membership) {
                if let Some(gap) = membership.gaps.first() {
                    return Err(format!("{who}: a gap though nothing was beyond repair: {:?}", gap.gap));
                }
            }
            for ((sender, room), all) in &self.published {
                if *room != membership.room {
                    continue;
                }
                for message in all.values().map(|at| &self.messages[*at]) {
                    let Some((stream, offset)) = message.acked else {
                        continue;
                    };
                    if message.called_at <= owed_from || membership.had.contains(&(*sender, message.number)) {
                        continue;
                    }
                    let announced = membership.gaps.iter().any(|gap| gap.covers(stream, offset));
                    let unknown = offset == 0 && !membership.gaps.is_empty();
                    // The reader's policy dropped the copy that an earlier owner had numbered, and the later one is a repeat.
                    let unknown = unknown
                        || membership
                            .gaps
                            .iter()
                            .any(|known| known.gap.reason == GapReason::Reader && key(known.gap.stream) < key(stream));
                    if !announced && !unknown {
                        return Err(format!(
                            "{who}: number {} of {sender}, {} B, published at {}, acknowledged as {stream:?} offset {offset}, neither came nor was announced as lost; gaps {:?}, offsets {:?}, joined at {:?}",
                            message.number,
                            message.len,
                            message.called_at,
                            membership.gaps.iter().map(|gap| (gap.gap, gap.followed_by)).collect::<Vec<_>>(),
                            membership.offsets,
                            membership.joined_at,
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// How many messages that were published at `from` or later a member had.
    pub fn had_since(&self, membership: &Membership, from: Micros) -> usize {
        let of_room = self.published.iter().filter(|((_, room), _)| *room == membership.room);
        of_room
            .flat_map(|((sender, _), all)| all.values().map(|at| (*sender, &self.messages[*at])))
            .filter(|(sender, message)| {
                message.called_at >= from && membership.had.contains(&(*sender, message.number))
            })
            .count()
    }

    pub fn unacknowledged(&self) -> usize {
        self.messages
            .iter()
            .filter(|message| message.acked.is_none() && !message.forgotten)
            .count()
    }

    /// Gaps by their reason, over all memberships.
    pub fn gap_reasons(&self) -> BTreeMap<String, u64> {
        let mut reasons = BTreeMap::new();
        for gap in self.memberships.iter().flat_map(|membership| &membership.gaps) {
            let reason: GapReason = gap.gap.reason;
            *reasons.entry(format!("{reason:?}")).or_default() += 1;
        }
        reasons
    }
}
