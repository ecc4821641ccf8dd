//! Health of interchangeable peers: measures their quality, excludes bad ones for a while, and chooses one (ROOM-12).
//!
//! Judges once a second from what links measure anyway (round trip, loss; pings fill silence), from unanswered
//! requests, and from lost links. Owns this judgement for any number of groups of peers. Knows no frame, and never
//! decides the path of data.

use std::collections::BTreeMap;

use crate::dice::Dice;
use crate::machine::Micros;

/// How often peers are judged.
pub const TICK: Micros = 1_000_000;
/// The weight of the past in each new second: loss covers some ten seconds, 50 datagrams where only pings are sent.
const KEPT: f32 = 0.9;
/// Minimum number of datagrams and requests (two a second) for which a share is computed. Requests may be late for
/// reasons beyond the peer: if one in five of 20 is late, it practically never happens that 11 are late at one peer
/// alone.
const SENT_MIN: f32 = 25.0;
const ASKED_MIN: f32 = 20.0;
/// A peer exceeds the limits if it loses twice the others' loss plus this, or has three times their round trip plus
/// this, or leaves this much more unanswered. Of 50 datagrams with a loss of one in 20, losing 17 practically never
/// occurs.
const LOSS_OVER: f32 = 0.25;
const DELAY_OVER: f32 = 50_000.0;
const UNANSWERED_OVER: f32 = 0.5;
/// A peer is excluded after this many bad seconds in a row, or when its link was lost. It is readmitted after this
/// many good ones with a link. Good means within half of the limits.
const BAD_MAX: u8 = 3;
const GOOD_MIN: u8 = 5;
/// The share of its full weight that a readmitted peer starts with, and the growth per second.
const BACK: f32 = 0.1;
/// The least round trip that counts: smaller differences come from turns, not from paths.
const RTT_MIN: f32 = 1_000.0;
/// Two peers count as equal if one costs less than this times the other.
const ALIKE: f32 = 2.0;

/// Why a peer is excluded: the present reason, or the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its link was lost.
    Away,
    Loss,
    Delay,
    Unanswered,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::Away => "away",
            Reason::Loss => "loss",
            Reason::Delay => "delay",
            Reason::Unanswered => "unanswered",
        }
    }
}

/// A link's measurements so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// When the link came up: another link starts new measurements.
    pub since: Micros,
    /// Smoothed; 0 before the first one.
    pub rtt: Micros,
    /// The highest datagram that the peer has reported, and how many it had received by then.
    pub told: (u64, u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    link: Option<Micros>,
    told: (u64, u32),
    /// 0: unknown.
    rtt: f32,
    sent: f32,
    lost: f32,
    asked: f32,
    unanswered: f32,
    bad: u8,
    good: u8,
    /// Its link was lost since the last judgement.
    away: bool,
    ejected: Option<Reason>,
    /// The part of its full weight that a readmitted peer has not regained yet.
    lacks: f32,
}

impl Peer {
    fn read(&mut self, reading: Reading) {
        let (highest, received) = reading.told;
        let same = self.link.replace(reading.since) == Some(reading.since);
        let known = std::mem::replace(&mut self.told, reading.told);
        for count in [&mut self.sent, &mut self.lost, &mut self.asked, &mut self.unanswered] {
            *count *= KEPT;
        }
        if let Some(sent) = highest.checked_sub(known.0).filter(|_| same && known.0 > 0) {
            self.sent += sent as f32;
            // Datagrams sent before may have arrived now.
            let received = received.wrapping_sub(known.1) as i32;
            self.lost = (self.lost + sent as f32 - received as f32).max(0.0);
        }
        self.rtt = reading.rtt as f32;
    }

    fn loss(&self) -> f32 {
        match self.sent >= SENT_MIN {
            true => (self.lost / self.sent).min(1.0),
            false => 0.0,
        }
    }

    fn silence(&self) -> f32 {
        match self.asked >= ASKED_MIN {
            true => self.unanswered / self.asked,
            false => 0.0,
        }
    }

    /// The limit that this peer exceeds compared with the others, if any; `part` scales the limits.
    fn beyond(&self, others: &Peer, part: f32) -> Option<Reason> {
        if self.loss() > 2.0 * others.lost + part * LOSS_OVER {
            return Some(Reason::Loss);
        }
        if self.rtt > (1.0 + 2.0 * part) * others.rtt + part * DELAY_OVER {
            return Some(Reason::Delay);
        }
        (self.silence() > 2.0 * others.unanswered + part * UNANSWERED_OVER).then_some(Reason::Unanswered)
    }

    /// `None` while its round trip is unknown.
    fn cost(&self) -> Option<f32> {
        let cost = (self.rtt + RTT_MIN) * (1.0 + 8.0 * self.loss()) * (1.0 + 4.0 * self.silence()) / (1.0 - self.lacks);
        (self.rtt > 0.0).then_some(cost)
    }

    /// Readmits it with a part of its weight.
    fn readmit(&mut self) {
        (self.ejected, self.bad, self.lacks) = (None, 0, 1.0 - BACK);
    }
}

crate::counters! {
    /// Peers that were left out of choices.
    pub struct HealthCounters {
        /// Peers left out of choices: their link was lost.
        ejections_away,
        /// Peers left out of choices: they lost far more than the others of their partition.
        ejections_loss,
        /// Peers left out of choices: their round trip was far longer than the others' of their partition.
        ejections_delay,
        /// Peers left out of choices: they answered far less than the others of their partition.
        ejections_unanswered,
        /// Peers taken back into choices.
        ejections_ended,
    }
}

/// All peers.
#[derive(Default)]
pub struct Health {
    peers: BTreeMap<u32, Peer>,
    due: Micros,
    pub counters: HealthCounters,
}

impl Health {
    /// Whether it is time to judge again.
    pub fn is_due(&mut self, now: Micros) -> bool {
        let due = now >= self.due;
        if due {
            self.due = now + TICK;
        }
        due
    }

    /// Forgets all peers but these.
    pub fn keep(&mut self, kept: impl Fn(u32) -> bool) {
        self.peers.retain(|node, _| kept(*node));
    }

    /// The link to a peer was lost.
    pub fn lost(&mut self, node: u32) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.away = true;
        }
    }

    /// Judges a group of replaceable peers by the measurements of their links. A peer without a link is out anyway.
    pub fn judge(&mut self, group: &[(u32, Option<Reading>)]) {
        for (node, reading) in group {
            if let Some(reading) = reading {
                self.peers.entry(*node).or_default().read(*reading);
            }
        }
        let linked: Vec<(u32, Peer)> = group
            .iter()
            .filter(|(_, reading)| reading.is_some())
            .map(|(node, _)| (*node, self.peers[node]))
            .collect();
        let is_out = |(node, reading): &&(u32, Option<Reading>)| {
            let peer = self.peers.get(node);
            reading.is_none() || peer.is_some_and(|peer| peer.away || peer.ejected.is_some())
        };
        let (mut out, count) = (group.iter().filter(is_out).count(), group.len());
        let too_many = |out: usize| out * 2 > count;
        // If more than half are excluded, the rest are needed, or this node itself was away.
        let panics = too_many(out);
        for (node, reading) in group {
            let others = linked.iter().filter(|(other, peer)| other != node && peer.rtt > 0.0);
            let others = middle(others.map(|(_, peer)| peer));
            let Some(peer) = self.peers.get_mut(node) else { continue };
            let beyond = |peer: &Peer, part| others.and_then(|others| peer.beyond(&others, part));
            let away = std::mem::take(&mut peer.away);
            let mut reason = None;
            match (peer.ejected, reading) {
                (Some(_), _) if away => (peer.ejected, peer.good) = (Some(Reason::Away), 0),
                (None, _) if away && !panics => reason = Some(Reason::Away),
                (None, Some(_)) if away => out -= 1,
                (_, None) => {}
                (None, Some(_)) => {
                    let found = beyond(peer, 1.0);
                    peer.lacks = (peer.lacks - BACK).max(0.0);
                    peer.bad = found.map_or(0, |_| peer.bad.saturating_add(1));
                    let lasts = peer.bad >= BAD_MAX;
                    reason = found.filter(|_| lasts && !too_many(out + 1));
                    out += usize::from(reason.is_some());
                }
                (Some(_), Some(_)) => {
                    let found = beyond(peer, 0.5);
                    // The old reason may be over while another one holds.
                    peer.ejected = found.or(peer.ejected);
                    peer.good = if found.is_none() { peer.good + 1 } else { 0 };
                    if peer.good >= GOOD_MIN || too_many(out) {
                        out -= 1;
                        peer.readmit();
                        self.counters.ejections_ended += 1;
                    }
                }
            }
            if let Some(reason) = reason {
                (peer.ejected, peer.good) = (Some(reason), 0);
                *match reason {
                    Reason::Away => &mut self.counters.ejections_away,
                    Reason::Loss => &mut self.counters.ejections_loss,
                    Reason::Delay => &mut self.counters.ejections_delay,
                    Reason::Unanswered => &mut self.counters.ejections_unanswered,
                } += 1;
            }
        }
    }

    /// Notes whether a peer answered a request.
    pub fn asked(&mut self, node: u32, answered: bool) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.asked += 1.0;
            peer.unanswered += if answered { 0.0 } else { 1.0 };
        }
    }

    /// Number of excluded peers.
    pub fn ejected_len(&self) -> usize {
        self.peers.values().filter(|peer| peer.ejected.is_some()).count()
    }

    /// Why a peer is excluded, if it is.
    pub fn ejected(&self, node: u32) -> Option<Reason> {
        self.peers.get(&node)?.ejected
    }

    /// Draws two candidates and returns the better one, if one is better. Excluded peers are chosen only if there is
    /// no other.
    pub fn choose(&self, dice: &mut Dice, candidates: &[u32]) -> Option<u32> {
        let usable = |node: &u32| self.ejected(*node).is_none();
        let mut from: Vec<u32> = candidates.iter().copied().filter(usable).collect();
        if from.is_empty() {
            from = candidates.to_vec();
        }
        let cost = |node: u32| self.peers.get(&node)?.cost();
        let worse = |one, other| {
            let costs = cost(one).zip(cost(other));
            costs.is_some_and(|(one, other)| one > ALIKE * other)
        };
        dice.better(from, worse)
    }
}

/// The median peer: round trip, and the shares of lost datagrams and unanswered requests.
fn middle<'a>(peers: impl Iterator<Item = &'a Peer>) -> Option<Peer> {
    let peers: Vec<&Peer> = peers.collect();
    let of = |figure: fn(&Peer) -> f32| {
        let mut figures: Vec<f32> = peers.iter().map(|peer| figure(peer)).collect();
        figures.sort_unstable_by(f32::total_cmp);
        figures.get(figures.len().saturating_sub(1) / 2).copied()
    };
    Some(Peer {
        rtt: of(|peer| peer.rtt)?,
        lost: of(Peer::loss)?,
        unanswered: of(Peer::silence)?,
        ..Peer::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Peers 0.. with a round trip (0: no link) and a number of lost datagrams out of 10, for each second.
    struct Rig {
        health: Health,
        told: Vec<(u64, u32)>,
        links: Vec<Micros>,
    }

    impl Rig {
        fn new(count: usize) -> Self {
            Rig {
                health: Health::default(),
                told: vec![(1, 1); count],
                links: vec![1; count],
            }
        }

        fn second(&mut self, each: &[(Micros, u32)]) -> Vec<u32> {
            let mut group = Vec::new();
            for (node, (rtt, lost)) in each.iter().enumerate() {
                let told = &mut self.told[node];
                *told = (told.0 + 10, told.1 + 10 - lost.min(&10));
                let reading = Reading {
                    since: self.links[node],
                    rtt: *rtt,
                    told: *told,
                };
                group.push((node as u32, (*rtt > 0).then_some(reading)));
            }
            self.health.judge(&group);
            self.out()
        }

        fn lose(&mut self, node: usize) {
            (self.told[node], self.links[node]) = ((1, 1), self.links[node] + 1);
            self.health.lost(node as u32);
        }

        fn out(&self) -> Vec<u32> {
            let nodes = 0..self.told.len() as u32;
            nodes.filter(|node| self.health.ejected(*node).is_some()).collect()
        }

        fn chosen(&self, count: u32) -> Vec<u32> {
            let (mut dice, all) = (Dice::new(7), (0..self.told.len() as u32).collect::<Vec<_>>());
            let mut chosen = vec![0; all.len()];
            (0..count).for_each(|_| chosen[self.health.choose(&mut dice, &all).unwrap() as usize] += 1);
            chosen
        }
    }

    proptest! {
        #[test]
        fn never_more_than_half_are_left_out(
            count in 1usize..9,
            seconds in prop::collection::vec((prop::collection::vec((1u64..2_000_000, 0u32..=10), 8), 0usize..32), 1..80),
        ) {
            let mut rig = Rig::new(count);
            for (second, lost) in seconds {
                if lost < count {
                    rig.lose(lost);
                }
                let out = rig.second(&second[..count]);
                prop_assert!(out.len() * 2 <= count, "{out:?} of {count}");
                let all: Vec<u32> = (0..count as u32).collect();
                prop_assert!(rig.health.choose(&mut Dice::new(1), &all).is_some());
            }
        }

        #[test]
        fn peers_that_remain_after_others_left_are_at_most_half_excluded(left in 1usize..4) {
            let mut rig = Rig::new(4);
            let mut bad = [(1_000, 0); 4];
            (bad[0], bad[1]) = ((900_000, 0), (900_000, 0));
            (0..5).for_each(|_| { rig.second(&bad); });
            rig.told.truncate(left);
            let out = rig.second(&bad[..left]);
            prop_assert!(out.len() * 2 <= left, "{out:?} of {left}");
        }
    }

    #[test]
    fn a_peer_is_excluded_after_several_bad_seconds_and_readmitted_after_more_good_ones() {
        let mut rig = Rig::new(3);
        let (well, late) = ([(1_000, 0); 3], [(1_000, 0), (1_000, 0), (200_000, 0)]);
        for round in 0..20 {
            assert_eq!(rig.second(&well), [0; 0], "{round}");
            assert_eq!(rig.second(&late), [0; 0], "{round}");
        }
        rig.second(&late);
        assert_eq!(rig.second(&late), [2]);
        // Between the limits nothing changes, on either side.
        let between = [(1_000, 0), (1_000, 0), (40_000, 0)];
        (0..20).for_each(|_| assert_eq!(rig.second(&between), [2]));
        (0..4).for_each(|_| assert_eq!(rig.second(&well), [2]));
        assert_eq!(rig.second(&well), [0; 0]);
        (0..20).for_each(|_| assert_eq!(rig.second(&between), [0; 0]));
        let counters = &rig.health.counters;
        assert_eq!((counters.ejections_delay, counters.ejections_ended), (1, 1));
    }

    #[test]
    fn a_readmitted_peer_regains_its_share_gradually() {
        let mut rig = Rig::new(2);
        (0..5).for_each(|_| drop(rig.second(&[(1_000, 0), (300_000, 0)])));
        assert_eq!(rig.chosen(1_000), [1_000, 0]);
        (0..5).for_each(|_| drop(rig.second(&[(1_000, 0); 2])));
        assert_eq!(rig.out(), [0; 0]);
        assert_eq!(rig.chosen(1_000), [1_000, 0], "not at once");
        (0..10).for_each(|_| drop(rig.second(&[(1_000, 0); 2])));
        let [one, other] = rig.chosen(1_000)[..] else { panic!() };
        assert!(one.abs_diff(other) < 150, "{one} {other}");
    }

    #[test]
    fn a_peer_with_a_lost_link_is_excluded_until_the_link_is_stable() {
        let (mut rig, well, away) = (Rig::new(2), [(1_000, 0); 2], [(1_000, 0), (0, 0)]);
        (0..3).for_each(|_| assert_eq!(rig.second(&well), [0; 0]));
        rig.lose(1);
        (0..3).for_each(|_| assert_eq!(rig.second(&away), [1]));
        assert_eq!(rig.health.ejected(1), Some(Reason::Away));
        (0..4).for_each(|_| assert_eq!(rig.second(&well), [1]));
        rig.lose(1); // and has a new link before the next judgement
        (0..5).for_each(|_| assert_eq!(rig.second(&well), [1]));
        assert_eq!(rig.second(&well), [0; 0]);
        let counters = &rig.health.counters;
        assert_eq!((counters.ejections_away, counters.ejections_ended), (1, 1));
        // If all links are lost, this node was away; and the last remaining peer is needed.
        (0..2).for_each(|node| rig.lose(node));
        assert_eq!(rig.second(&[(0, 0); 2]), [0; 0]);
        assert_eq!(rig.second(&well), [0; 0]);
        rig.lose(1);
        assert_eq!(rig.second(&well), [1]);
        rig.lose(0);
        assert_eq!(rig.second(&[(0, 0), (1_000, 0)]), [0; 0]);
    }

    #[test]
    fn an_excluded_peer_shows_its_present_reason() {
        let mut rig = Rig::new(3);
        let well = [(1_000, 0); 3];
        (0..3).for_each(|_| assert_eq!(rig.second(&well), [0; 0]));
        rig.lose(1);
        assert_eq!(rig.second(&[(1_000, 0), (0, 0), (1_000, 0)]), [1]);
        assert_eq!(rig.second(&well), [1]);
        assert_eq!(rig.health.ejected(1), Some(Reason::Away), "and is well since");
        (0..8).for_each(|_| assert_eq!(rig.second(&[(1_000, 0), (1_000, 5), (1_000, 0)]), [1]));
        assert_eq!(rig.health.ejected(1), Some(Reason::Loss));
        rig.lose(1);
        assert_eq!(rig.second(&[(1_000, 0), (0, 0), (1_000, 0)]), [1]);
        assert_eq!(rig.health.ejected(1), Some(Reason::Away));
        let counters = &rig.health.counters;
        assert_eq!(
            (counters.ejections_away, counters.ejections_loss),
            (1, 0),
            "left out once"
        );
    }

    /// A new link starts with new numbers.
    #[test]
    fn another_link_is_not_measured_against_the_one_before() {
        let mut rig = Rig::new(3);
        for _ in 0..20 {
            assert_eq!(rig.second(&[(1_000, 0); 3]), [0; 0]);
            (rig.told[0], rig.links[0]) = ((5_000, 10), rig.links[0] + 1); // renewed
        }
    }

    #[test]
    fn an_unmeasured_peer_has_its_fair_share() {
        let mut rig = Rig::new(2);
        rig.second(&[(20_000, 0), (0, 0)]);
        let [one, other] = rig.chosen(1_000)[..] else { panic!() };
        assert!(one.abs_diff(other) < 150, "{one} {other}");
    }

    #[test]
    fn a_peer_that_loses_half_or_answers_nothing_is_excluded() {
        let mut rig = Rig::new(4);
        (0..8).for_each(|_| drop(rig.second(&[(1_000, 0), (1_000, 5), (1_000, 0), (1_000, 0)])));
        assert_eq!(rig.out(), [1]);
        let mut rig = Rig::new(3);
        for _ in 0..8 {
            (0..18).for_each(|at| rig.health.asked(at % 3, at % 3 > 0));
            rig.second(&[(1_000, 0); 3]);
        }
        assert_eq!((rig.out(), rig.health.ejected(0)), (vec![0], Some(Reason::Unanswered)));
    }

    /// Pings alone: ten datagrams in two seconds.
    #[test]
    fn nobody_is_left_out_for_an_hour_where_all_lose_one_of_twenty() {
        let mut dice = Dice::new(3);
        for count in [2, 3, 8] {
            let mut rig = Rig::new(count);
            for second in 0..3_600 {
                let mut lost = || (0..10).filter(|_| dice.below(20) == 0).count() as u32;
                let each: Vec<_> = (0..count).map(|_| (1_000, lost())).collect();
                assert_eq!(rig.second(&each), [0; 0], "{second}");
            }
        }
    }

    #[test]
    fn the_better_of_two_is_chosen_and_equal_peers_share() {
        let mut rig = Rig::new(4);
        rig.second(&[(500, 0), (700, 0), (900, 0), (20_000, 0)]);
        let chosen = rig.chosen(4_000);
        assert!(chosen[..3].iter().all(|count| *count > 1_000), "{chosen:?}");
        assert_eq!(chosen[3], 0, "it is never the better one");
        assert_eq!(Health::default().choose(&mut Dice::new(1), &[]), None);
        assert_eq!(
            rig.health.choose(&mut Dice::new(1), &[3]),
            Some(3),
            "where there is no other"
        );
    }
}
