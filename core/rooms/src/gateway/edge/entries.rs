//! Rooms of a client's token: the client is subscribed to them before its connect command is answered.
//!
//! Owns [`Entering`], a client whose rooms are on their way, and [`ServerSubs`], those that the server made. A gap does not end
//! such a subscription, as SDKs do not subscribe to it again: it begins again at the head, and its client hears of its end and of
//! its new beginning, at most once a second.

use muster_edge::protocol::{Position, SubscribeResult};
use muster_edge::{Admission, Disconnect, Failure, Subscription, Ticket};
use muster_transport::{End, Micros};

use super::joins::{beginning, position, Beginning, RECOVERED_BYTES};
use super::{positions, Deltas, Edge, Pending, PendingKind, Sub};
use crate::gateway::members::Members;
use crate::name::RoomName;
use crate::wire::publish::Positions;
use crate::wire::StreamGap;

/// Rooms of one token; a token has 1,000 bytes.
pub const TOKEN_ROOMS_MAX: usize = 64;
/// The pause between two new beginnings of one subscription, as between two gaps told to clients that subscribe themselves.
const AGAIN_EVERY: Micros = muster_edge::limits::RESUBSCRIBE_EVERY;

/// A client that waits for the rooms of its token.
pub(super) struct Entering {
    pub ticket: Ticket,
    /// The end of its token.
    pub until: Option<Micros>,
    /// What the token says for a guest.
    aside: Vec<u8>,
    entries: Vec<Entry>,
    /// Rooms that have not answered.
    waits: usize,
}

/// One room of a token.
struct Entry {
    channel: String,
    /// The client has been here before, and showed where it was.
    recovering: bool,
    had: Option<Positions>,
    /// Its place: the room, the place, and whether all before it is there.
    place: Option<(u32, u64, bool)>,
    gaps: Vec<StreamGap>,
}

/// A subscription that the server made.
struct Made {
    subscription: Subscription,
    /// When it began again last.
    began: Option<Micros>,
    /// It waits until then to begin again.
    pauses: Option<Micros>,
}

impl Entering {
    /// `positions`: where the client was in rooms of its token.
    pub fn new(ticket: Ticket, rooms: &[String], positions: &[(String, Position)], aside: &[u8]) -> Entering {
        let mut entries: Vec<Entry> = Vec::new();
        for channel in rooms.iter().take(TOKEN_ROOMS_MAX) {
            let same = |entry: &Entry| RoomName::parse(&entry.channel).ok() == RoomName::parse(channel).ok();
            if entries.iter().any(same) {
                continue;
            }
            let shown = positions
                .iter()
                .find(|(name, _)| name == channel)
                .map(|(_, shown)| shown);
            entries.push(Entry {
                channel: channel.clone(),
                recovering: shown.is_some(),
                had: shown.and_then(positions::shown).filter(|had| !had.0.is_empty()),
                place: None,
                gaps: Vec::new(),
            });
        }
        Entering {
            ticket,
            until: None,
            aside: aside.to_vec(),
            waits: entries.len(),
            entries,
        }
    }
}

/// How a subscription begins again that the server made.
enum Again {
    Now,
    /// After a pause.
    Later,
    /// The server made no such subscription.
    Never,
}

/// The subscriptions that the server made for one client.
#[derive(Default)]
pub(super) struct ServerSubs {
    made: Vec<Made>,
    /// When one of those that wait may begin again.
    again_at: Option<Micros>,
}

impl ServerSubs {
    fn add(&mut self, subscription: Subscription) {
        self.made.push(Made {
            subscription,
            began: None,
            pauses: None,
        });
    }

    /// A subscription is over.
    pub fn forget(&mut self, subscription: Subscription) {
        self.made.retain(|made| made.subscription != subscription);
    }

    /// Whether a subscription waits to begin again.
    pub fn pause(&self, now: Micros, subscription: Subscription) -> bool {
        let paused = |made: &Made| made.subscription == subscription && made.pauses.is_some_and(|at| at > now);
        self.made.iter().any(paused)
    }

    /// When one of those that wait may begin again.
    pub fn again_at(&self) -> Option<Micros> {
        self.again_at
    }

    /// Whether some may begin again now: they do with the next look at their rooms.
    pub fn end_pauses(&mut self, now: Micros) -> bool {
        if self.again_at.is_none_or(|at| at > now) {
            return false;
        }
        let pauses = self.made.iter().filter_map(|made| made.pauses);
        self.again_at = pauses.filter(|at| *at > now).min();
        true
    }

    /// A subscription is to begin again. Offsets belong to a stream: without an owner there is none to begin in. The next owner's
    /// first message ends the wait.
    fn begin_again(&mut self, now: Micros, subscription: Subscription, owned: bool) -> Again {
        let Some(made) = self.made.iter_mut().find(|made| made.subscription == subscription) else {
            return Again::Never;
        };
        let pauses = made.began.map(|began| began + AGAIN_EVERY).filter(|until| now < *until);
        if pauses.is_some() || !owned {
            made.pauses = pauses;
            let until = pauses.unwrap_or(now + AGAIN_EVERY);
            self.again_at = Some(self.again_at.map_or(until, |at| at.min(until)));
            return Again::Later;
        }
        (made.began, made.pauses) = (Some(now), None);
        Again::Now
    }
}

impl Edge {
    /// A client's token is good: it enters the rooms of the token, and is admitted once it has a place in each.
    pub(super) fn enter(&mut self, now: Micros, slot: u32, entering: Entering) {
        let asked: Vec<(String, Positions)> = entering
            .entries
            .iter()
            .map(|entry| (entry.channel.clone(), entry.had.clone().unwrap_or_default()))
            .collect();
        let ticket = entering.ticket;
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        conn.entering = Some(Box::new(entering));
        for (entry, (channel, had)) in asked.into_iter().enumerate() {
            let Some(conn) = self.sessions.live_mut(slot) else {
                return;
            };
            conn.requests = conn.requests.wrapping_add(1);
            let request = conn.requests;
            conn.pending.push(Pending {
                request,
                ticket,
                kind: PendingKind::Entry(entry),
            });
            if let Err(code) = self.join(now, slot, request, channel.as_bytes(), (had, 0)) {
                self.counters.joins_refused += 1;
                return self.subscription_refused(now, slot, request, super::publishing::failure(code));
            }
        }
        self.admit_entered(now, slot);
    }

    /// A room of a token has a place for the client.
    pub(super) fn entered(
        &mut self,
        now: Micros,
        slot: u32,
        entry: usize,
        (at, place): (u32, u64),
        gaps: &[StreamGap],
        whole: bool,
    ) {
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let Some(entering) = conn.entering.as_deref_mut() else {
            return;
        };
        let Some(entry) = entering.entries.get_mut(entry) else {
            return;
        };
        entry.place = Some((at, place, whole && gaps.is_empty()));
        entry.gaps = gaps.to_vec();
        entering.waits -= 1;
        self.admit_entered(now, slot);
    }

    /// A room of a token takes no member: the client connects again later, or stays away if that cannot help.
    pub(super) fn entry_refused(&mut self, now: Micros, slot: u32, failure: Failure) {
        self.sessions.counters.subscriptions_refused += 1;
        let end = match failure {
            Failure::LimitExceeded => Disconnect::CHANNEL_LIMIT,
            Failure::PermissionDenied => Disconnect::PERMISSION_DENIED,
            Failure::BadRequest | Failure::UnknownChannel => Disconnect::INVALID_TOKEN,
            _ => Disconnect::SERVER_ERROR,
        };
        self.sessions.disconnect(now, slot, end, End::Closed);
    }

    /// Answers the connect command of a client that has a place in each room of its token.
    fn admit_entered(&mut self, now: Micros, slot: u32) {
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let Some(entering) = conn.entering.take_if(|entering| entering.waits == 0) else {
            return;
        };
        let (session, user) = (conn.session(), conn.user);
        let incarnation = conn.incarnation;
        let client = super::frames::client_name(incarnation);
        self.lodge.opened(now, session, user, &entering.aside);
        let (mut begun, mut bytes_left) = (Vec::new(), RECOVERED_BYTES);
        for entry in &entering.entries {
            let Some((at, place, whole)) = entry.place else {
                continue;
            };
            let Some(room) = self.rooms.get(at) else {
                continue;
            };
            let shown = entry.had.as_ref().filter(|_| whole);
            let beginning = beginning(room, &self.arena, shown, entry.recovering, place, bytes_left, None);
            let bytes: usize = beginning.found.iter().map(|message| message.len() + 200).sum();
            bytes_left = bytes_left.saturating_sub(bytes);
            begun.push((entry, at, room.ring.next(), beginning));
        }
        let publications: Vec<Vec<_>> = begun
            .iter()
            .map(|(.., begun)| {
                begun
                    .found
                    .iter()
                    .map(|found| found.publication(begun.stream))
                    .collect()
            })
            .collect();
        let subs: Vec<(&str, SubscribeResult<'_>)> = begun
            .iter()
            .zip(&publications)
            .map(|((entry, _, _, begun), publications)| {
                let result = SubscribeResult {
                    was_recovering: entry.recovering,
                    recovered: begun.recovered,
                    publications,
                    ..result(&begun.position)
                };
                (entry.channel.as_str(), result)
            })
            .collect();
        let user = user.to_string();
        let ttl_s = super::asks::ttl(now, entering.until, incarnation);
        let made = self.sessions.with(now, slot, |connection, turn, dice| {
            let admission = Admission {
                user: &user,
                client: &client,
                ttl_s,
                subs: &subs,
                ..Admission::default()
            };
            let session = connection.session()?;
            Some(session.admit(turn, dice, entering.ticket, &admission))
        });
        let starts: Vec<_> = begun
            .iter()
            .map(|(entry, at, head, begun)| {
                let Beginning { stream, next, lost, .. } = begun;
                let recovered = entry.recovering.then_some(begun.recovered);
                (
                    *at,
                    *stream,
                    *next,
                    *head,
                    lost.zip(Some(&entry.gaps)),
                    recovered,
                    !entry.channel.contains(':'),
                )
            })
            .collect();
        drop(subs);
        let made = made.flatten().unwrap_or_default();
        for (subscription, (at, stream, next, head, lost, recovered, bare)) in made.into_iter().zip(starts) {
            if let Some((from, gaps)) = lost {
                self.note_missed(slot, at, from, gaps);
            }
            let counters = &mut self.sessions.counters;
            counters.subscriptions += 1;
            counters.recovered += u64::from(recovered == Some(true));
            counters.unrecovered += u64::from(recovered == Some(false));
            let Some(conn) = self.sessions.live_mut(slot) else {
                return;
            };
            conn.add_sub(Sub {
                room: at,
                subscription,
                stream,
                compact: false,
                bare,
                deltas: Deltas::No,
                made: true,
            });
            conn.server_subs.add(subscription);
            if let Some(joined) = conn.client.joined.iter_mut().find(|joined| joined.room == at) {
                joined.cursor = next;
                joined.joined_at = joined.joined_at.max(head);
            }
        }
        self.sessions.mark(slot);
        self.note_cursors(slot);
        self.answer_asks(now, slot);
        self.sessions.settle(now, slot);
    }

    /// A subscription that the server made lost messages, or another owner numbers its room: it begins again, now or after its
    /// pause. `false`: the client made this one.
    pub(super) fn begin_again(&mut self, now: Micros, slot: u32, at: u32, reason: &str, lost: bool) -> bool {
        let Some(conn) = self.sessions.conns.get_mut(slot) else {
            return false;
        };
        let Some(sub) = conn.subs.iter_mut().find(|sub| sub.room == at && sub.made) else {
            return false;
        };
        let Some(room) = self.rooms.get(at) else {
            return true;
        };
        let owned = room.live().next().is_some();
        match conn.server_subs.begin_again(now, sub.subscription, owned) {
            Again::Now => {}
            Again::Later => {
                self.sessions.settle(now, slot);
                return true;
            }
            Again::Never => return true,
        }
        let Some(joined) = conn.client.joined.iter_mut().find(|joined| joined.room == at) else {
            return true;
        };
        let (from, head) = (joined.cursor, room.ring.next());
        // Without a loss the messages of the next stream follow.
        let place = if lost { head } else { from };
        let (stream, position) = position(room, &self.arena, place).unwrap_or_default();
        joined.cursor = place;
        joined.joined_at = if lost {
            joined.joined_at.max(head)
        } else {
            joined.joined_at
        };
        sub.stream = stream;
        let name = if sub.bare {
            super::frames::bare(&room.name)
        } else {
            &room.name
        };
        if let Some(session) = conn.connection.session() {
            session.began_again(name, lost.then_some(reason), &result(&position));
        }
        let counters = &mut self.sessions.counters;
        counters.gaps_told += u64::from(lost);
        counters.streams_changed += u64::from(!lost);
        self.counters.cursors_moved += u64::from(lost);
        if lost {
            self.note_missed(slot, at, from, &[]);
        }
        self.sessions.mark(slot);
        self.note_cursors(slot);
        self.sessions.settle(now, slot);
        true
    }
}

/// A subscription that begins at this position.
fn result(position: &Position) -> SubscribeResult<'_> {
    SubscribeResult {
        recoverable: true,
        positioned: true,
        epoch: &position.epoch,
        offset: position.offset,
        ..SubscribeResult::default()
    }
}
