//! How far a gateway is in a stream, as the stream's owner is told.
//!
//! Owns whose progress counts: in a paced room that of the slowest member, in a live room that of this gateway, or of most members
//! while most are behind. `reports` has what waits to be told.

use muster_transport::Micros;

use super::members::Members;
use super::patience::LAG;
use super::reports::Outgoing;
use super::room::Source;
use super::Gateway;
use crate::principal::Principal;
use crate::wire::room::Consumed;

impl<S: Members> Gateway<S> {
    /// The slowest place of a paced room's members, and the first place that one of them was sent, lacks and asks for. Those
    /// that take a trickle for too long are given up.
    fn pace(&mut self, now: Micros, at: u32) -> (Option<u64>, Option<u64>) {
        let Gateway {
            rooms,
            sessions,
            arena,
            counters,
            ..
        } = self;
        let Some(room) = rooms.get_mut(at).filter(|room| room.paced) else {
            return (None, None);
        };
        loop {
            let [slowest, lacked] = room.stragglers.last(now, room.ring.first());
            let told = (slowest.map(|(place, _)| place), lacked.map(|(place, _)| place));
            let Some((place, slot)) = slowest.into_iter().chain(lacked).min() else {
                return told;
            };
            let lost = place < room.ring.first();
            let lags = lost || room.ring.age(arena, now, place).is_some_and(|age| age > LAG);
            let known = sessions.user_of(slot).zip(sessions.session_of(slot));
            let (Some((user, session)), Some(client)) = (known, sessions.client_mut(slot).filter(|_| lags)) else {
                return told;
            };
            let user = Principal::of(user, session);
            let ring = &room.ring;
            let bytes = |before, after| ring.bytes_from(before).saturating_sub(ring.bytes_from(after));
            if room.stragglers.waits_for(now, user, place, bytes) {
                return told;
            }
            room.stragglers.give_up(slot, place);
            if let Some(joined) = client.joined.iter_mut().find(|joined| joined.room == at) {
                joined.given_up = true;
                room.stragglers.passes(slot, joined.counted.take());
            }
            counters.members_given_up += 1;
        }
    }

    /// Where the members that were looked at stand, one vote for each user: that of the session that is furthest. A member
    /// that only its own window stops is slow, whatever the gateway does.
    fn votes(&mut self, at: u32) -> Vec<u64> {
        let Some(room) = self.rooms.get(at) else {
            return Vec::new();
        };
        let (sessions, payload) = (&self.sessions, self.node.payload);
        let stands = |slot: &u32| {
            let joined = sessions.client(*slot)?.joined.iter().find(|joined| joined.room == at)?;
            let crowded = || room.is_crowded(self.now, *slot, joined.cursor, sessions.window(*slot));
            let stopped = || sessions.is_shut(*slot, payload) || crowded();
            let votes = joined.cursor >= joined.joined_at && (joined.cursor >= room.ring.next() || !stopped());
            let (user, session) = sessions.user_of(*slot).zip(sessions.session_of(*slot))?;
            votes.then(|| (Principal::of(user, session), joined.cursor))
        };
        let mut votes: Vec<_> = self.reports.backlog.sample(&room.members).filter_map(stands).collect();
        votes.sort_unstable_by_key(|(user, place)| (*user, std::cmp::Reverse(*place)));
        votes.dedup_by_key(|(user, _)| *user);
        votes.into_iter().map(|(_, place)| place).collect()
    }

    /// This gateway's progress in a stream of a room: the part received in order; in a paced room the part sent to its
    /// slowest member; in a live room, while the gateway is behind with most members, the part sent to the median
    /// member.
    fn progress(&mut self, now: Micros, at: u32, number: usize, life: Option<u32>) -> Option<(u32, Consumed)> {
        let (slowest, lacked) = self.pace(now, at);
        let live = !self.rooms.get(at)?.paced;
        let mut votes = if live { self.votes(at) } else { Vec::new() };
        let room = self.rooms.get_mut(at)?;
        // A report names no life: it counts for the one that is linked.
        let theirs = |source: &&Source| source.is_live() && Some(source.stream.epoch) == life;
        let source = room.sources().get(number).filter(theirs)?;
        let (stream, next) = (source.stream, source.next_offset());
        let place = if room.paced {
            slowest
        } else {
            self.reports.backlog.note(now, room, &self.arena, &mut votes)
        };
        let offset_at = |place| room.offset_at(&self.arena, number, place).min(next);
        let passed = place.map_or(next, offset_at);
        let lacked = lacked.map_or(passed, offset_at);
        let consumed = Consumed {
            room: room.id,
            generation: stream.generation,
            next: passed,
            kept: if room.paced { passed.min(lacked) } else { 0 },
        };
        Some((stream.node, consumed))
    }

    /// Takes a broker's next progress reports, as many as half a datagram holds.
    pub(super) fn take_consumed(&mut self, now: Micros, node: u32, outgoing: &mut Outgoing) {
        let room = (self.node.payload / 2) / Consumed::LEN;
        outgoing.told.clear();
        for _ in 0..outgoing.consumed.len() {
            if outgoing.told.len() >= room {
                break;
            }
            let Some((at, number)) = outgoing.next() else {
                break;
            };
            let life = self.links.epoch_of(node);
            let progress = self.progress(now, at, number, life);
            // In its place there may be another broker's stream by now.
            if progress.as_ref().is_some_and(|(of, _)| *of != node) {
                continue;
            }
            let room = self.rooms.get_mut(at);
            let Some((paced, source)) = room.and_then(|room| Some((room.paced, room.source_mut(number)?))) else {
                continue;
            };
            source.consumed_queued = false;
            if let Some((_, consumed)) = progress {
                if !paced && consumed.next < source.next_offset() {
                    source.consumed_queued = true;
                    outgoing.consumed.push_back((at, number));
                    self.reports.tell_again(now);
                }
                outgoing.told.push(((at, number), consumed));
            }
        }
    }
}
