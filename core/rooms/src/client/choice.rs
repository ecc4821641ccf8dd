//! The client's choice among several servers: at first by weight, then by the quality of the paths to known ones
//! (ROOM-15).
//!
//! Owns the record of each server, and the decision to leave one that is far worse than another. Knows no session.

use std::ops::Range;

use muster_transport::{Dice, Loss, Micros, Status};

/// How often the server in use is judged, if data arrives from it, and the number of bad judgements in a row after
/// which it is left.
const LOOK_EVERY: Micros = 1_000_000;
const POOR_MAX: u8 = 3;
/// Minimum time before a server is left, which doubles with each change, and the upper limit of that.
const STAY_FIRST: Micros = 10_000_000;
const STAY_MAX: Micros = 320_000_000;
/// A server is far if its round trip is three times the best known one plus the first figure; if no other server is
/// known, the second figure counts as the best.
const FAR: Micros = 50_000;
const USUAL: Micros = 50_000;
/// A loss higher than this is too much, once this many datagrams were sent.
const LOSSY: f64 = 0.3;
const LOSSY_MIN: u64 = 20;
/// Extra cost of each failure of a server, and the interval in which it halves.
const FAILED: Micros = 1_000_000;
const FORGOTTEN: Micros = 30_000_000;
/// Added to each cost; a server that costs less than twice another counts as equal.
const ALIKE: Micros = 1_000;

/// The record of one server.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// A server of weight 2 is drawn twice as often as one of weight 1, a server of weight 0 only if there is no
    /// other.
    weight: u16,
    /// 0: it was never reached.
    rtt: Micros,
    failures: u32,
    failed_at: Micros,
}

impl Default for Known {
    fn default() -> Self {
        Known {
            weight: 1,
            rtt: 0,
            failures: 0,
            failed_at: 0,
        }
    }
}

impl Known {
    fn cost(&self, now: Micros) -> Micros {
        let halves = now.saturating_sub(self.failed_at) / FORGOTTEN;
        let failed = (FAILED * Micros::from(self.failures.min(16))) >> halves.min(63);
        self.rtt + failed + ALIKE
    }
}

/// All servers, by their index in the list.
#[derive(Debug, Default)]
pub(super) struct Choice {
    known: Vec<Known>,
    /// The loss of datagrams to the current server.
    loss: Loss,
    since: Micros,
    look_at: Micros,
    poor: u8,
    left: u32,
}

impl Choice {
    /// A choice among this many unknown servers.
    pub fn of(count: usize) -> Self {
        Choice {
            known: vec![Known::default(); count],
            ..Choice::default()
        }
    }

    /// Replaces the servers: each gives its former index, if it has one, whose history it keeps; and its weight.
    pub fn keep(&mut self, places: impl Iterator<Item = (Option<usize>, u16)>) {
        let before = std::mem::take(&mut self.known);
        let known = |place: Option<usize>| place.and_then(|place| before.get(place)).copied();
        let now = places.map(|(place, weight)| Known {
            weight,
            ..known(place).unwrap_or_default()
        });
        self.known = now.collect();
    }

    pub fn weight(&self, at: usize) -> u16 {
        self.known.get(at).map_or(0, |known| known.weight)
    }

    pub fn remove(&mut self, at: usize) {
        self.known.remove(at);
    }

    /// A session with a server begins.
    pub fn begin(&mut self, now: Micros) {
        (self.loss, self.since, self.poor) = (Loss::default(), now, 0);
    }

    /// Takes a status of the server in use. Returns whether to try another: the path has been far worse for a while
    /// than to another server, or than expected.
    pub fn hear(&mut self, now: Micros, at: usize, rtt: Micros, status: &Status) -> bool {
        self.loss.hear(status);
        if self.known.len() < 2 || now < self.look_at || rtt == 0 {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        let others = self.known.iter().enumerate().filter(|(other, _)| *other != at);
        let best = others.map(|(_, known)| known.rtt).filter(|rtt| *rtt > 0).min();
        let poor = rtt > 3 * best.unwrap_or(USUAL) + FAR || self.is_lossy(status);
        self.poor = if poor { self.poor.saturating_add(1) } else { 0 };
        let stay = (STAY_FIRST << self.left.min(5)).min(STAY_MAX);
        let leaves = self.poor >= POOR_MAX && now >= self.since + stay;
        self.left += u32::from(leaves);
        leaves
    }

    fn is_lossy(&self, status: &Status) -> bool {
        status.highest >= LOSSY_MIN && self.loss.share() > LOSSY
    }

    /// A server was not reached, or is left; `rtt`: its round trip, 0 if unmeasured.
    pub fn fail(&mut self, now: Micros, at: usize, rtt: Micros) {
        if let Some(known) = self.known.get_mut(at) {
            if rtt > 0 {
                known.rtt = rtt;
            }
            let halves = now.saturating_sub(known.failed_at) / FORGOTTEN;
            known.failures = (known.failures >> halves.min(31)).saturating_add(1);
            known.failed_at = now;
        }
    }

    /// Draws one of all servers, by weight.
    pub fn draw(&self, dice: &mut Dice) -> usize {
        let all: Vec<usize> = (0..self.known.len()).filter(|at| self.weight(*at) > 0).collect();
        let weight = |at: usize| u64::from(self.weight(at));
        dice.better_by(all, weight, |_, _| false).unwrap_or(0)
    }

    /// Another server of these than `at` that is not `taken`, if there is one: the cheaper of two drawn ones, or
    /// either if they are equal.
    pub fn next(&self, now: Micros, dice: &mut Dice, at: usize, of: Range<usize>, taken: &[usize]) -> usize {
        let free = |other: &usize| *other != at && !taken.contains(other);
        let others = || of.clone().filter(free);
        let mut drawn: Vec<usize> = others().filter(|other| self.weight(*other) > 0).collect();
        if drawn.is_empty() {
            drawn = others().collect();
        }
        let cost = |at: usize| self.known[at].cost(now);
        let worse = |one, other| cost(one) > 2 * cost(other);
        let weight = |at: usize| u64::from(self.weight(at).max(1));
        let stays = if of.contains(&at) { at } else { of.start };
        dice.better_by(drawn, weight, worse).unwrap_or(stays)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Client, ClientConfig, Endpoint, Side, Slot, State};
    use super::*;
    use muster_transport::fixtures::Zeros;
    use proptest::prelude::*;

    const SECOND: Micros = 1_000_000;

    fn well(sent: u64) -> Status {
        Status {
            highest: sent,
            received: sent as u32,
            ..Status::default()
        }
    }

    /// After how many seconds a server with this round trip is left, if within ten minutes.
    fn left_after(choice: &mut Choice, from: Micros, at: usize, rtt: impl Fn(u64) -> Micros) -> Option<u64> {
        choice.begin(from);
        let left =
            (0..600).find(|second| choice.hear(from + second * SECOND, at, rtt(*second), &well(10 * (second + 1))));
        choice.fail(from + 600 * SECOND, at, rtt(left.unwrap_or(599)));
        left
    }

    #[test]
    fn a_far_server_is_left_unless_the_others_are_as_far() {
        let mut choice = Choice::of(2);
        assert_eq!(left_after(&mut choice, 0, 0, |_| 20_000), None);
        assert_eq!(
            left_after(&mut choice, 1_000 * SECOND, 1, |_| 120_000),
            Some(10),
            "six times as far"
        );
        assert_eq!(
            left_after(&mut choice, 2_000 * SECOND, 0, |_| 500_000),
            Some(20),
            "then less soon"
        );
        assert_eq!(
            left_after(&mut choice, 3_000 * SECOND, 1, |_| 500_000),
            None,
            "both are"
        );
    }

    #[test]
    fn a_few_slow_seconds_are_no_reason_to_leave() {
        let mut choice = Choice::of(3);
        let sometimes = |second: u64| if second % 4 < 2 { 900_000 } else { 5_000 };
        assert_eq!(left_after(&mut choice, 0, 0, sometimes), None);
        let mut alone = Choice::of(1);
        assert_eq!(left_after(&mut alone, 0, 0, |_| 900_000), None, "there is no other");
    }

    #[test]
    fn a_server_that_loses_much_is_left() {
        let mut choice = Choice::of(2);
        choice.begin(0);
        let lossy = |second: u64| Status {
            received: 5 * second as u32,
            ..well(10 * second)
        };
        let left = (1..60).find(|second| choice.hear(second * SECOND, 0, 1_000, &lossy(*second)));
        assert_eq!(left, Some(10));
    }

    #[test]
    fn far_or_failed_servers_are_chosen_less_for_a_while() {
        let mut choice = Choice::of(4);
        (0..4).for_each(|at| choice.known[at].rtt = 10_000);
        choice.fail(0, 1, 0);
        choice.known[2].rtt = 90_000;
        let mut dice = Dice::new(5);
        let mut drawn = |choice: &Choice, now| {
            let mut counts = [0; 4];
            (0..900).for_each(|_| counts[choice.next(now, &mut dice, 0, 0..4, &[])] += 1);
            counts
        };
        assert_eq!(
            drawn(&choice, SECOND)[..2],
            [0, 0],
            "the one before is not drawn, nor a worse one of two"
        );
        choice.known[2].rtt = 10_000;
        let later = drawn(&choice, 400 * SECOND);
        assert!(later[1..].iter().all(|count| *count > 200), "{later:?}");
    }

    #[test]
    fn servers_are_drawn_by_weight_and_keep_their_history() {
        let mut choice = Choice::of(2);
        choice.fail(0, 1, 90_000);
        choice.keep([(Some(0), 1), (None, 1), (None, 3), (None, 0), (Some(1), 1)].into_iter());
        assert_eq!((choice.known[4].rtt, choice.known[4].failures), (90_000, 1));
        let mut dice = Dice::new(3);
        let mut counts = [0; 5];
        (0..4_000).for_each(|_| counts[choice.next(0, &mut dice, 0, 0..5, &[])] += 1);
        assert_eq!(
            (counts[0], counts[3], counts[4]),
            (0, 0, 0),
            "itself, weight 0, the worse of two: {counts:?}"
        );
        assert!((2 * counts[1]..6 * counts[1]).contains(&counts[2]), "{counts:?}");
        assert_eq!(choice.next(0, &mut dice, 0, 3..4, &[]), 3, "no other is left");
    }

    #[test]
    fn taken_servers_are_not_chosen_and_without_another_the_client_stays() {
        let (choice, mut dice) = (Choice::of(4), Dice::new(5));
        assert!((0..50).all(|_| choice.next(0, &mut dice, 0, 0..4, &[1, 3]) == 2));
        assert_eq!(choice.next(0, &mut dice, 0, 0..4, &[1, 2, 3]), 0);
    }

    fn endpoint(host: u8) -> Endpoint {
        Endpoint {
            addr: std::net::SocketAddr::from(([127, 0, 0, host], 9)).into(),
            key: [host; 32],
        }
    }

    fn client(gateways: &[u8], seed: u64) -> Client {
        let config = ClientConfig {
            gateways: gateways.iter().copied().map(endpoint).collect(),
            proxies: vec![],
            learns: [false; 2],
            credential: vec![],
            payload: 1_200,
            inbox_bytes: 1 << 16,
            socket: 0,
        };
        Client::new(config, seed, Box::new(Zeros))
    }

    fn failures(client: &Client) -> Vec<(Endpoint, u32)> {
        let session = &client.sessions[0];
        let known = session.servers.choice.known.iter().map(|known| known.failures);
        session.servers.all().iter().cloned().zip(known).collect()
    }

    #[test]
    fn failures_of_a_removed_server_are_not_charged_to_another() {
        let others: Vec<Endpoint> = [1, 2].map(endpoint).into();
        for seed in 0..20 {
            let mut client = client(&[9], seed);
            client.sessions[0].state = State::Ready;
            client.redirect(0, others.clone(), vec![], vec![]);
            client.lose(SECOND, Slot::Main(Side::Gateway), "closed");
            assert_eq!(failures(&client), [(endpoint(1), 0), (endpoint(2), 0)]);
        }
    }

    #[test]
    fn servers_that_stay_keep_their_history_in_a_new_list() {
        let mut client = client(&[1, 2], 5);
        let session = &mut client.sessions[0];
        (session.state, session.servers.at) = (State::Knocking, 1);
        client.lose(0, Slot::Main(Side::Gateway), "unreachable");
        client.redirect(SECOND, [3, 2, 1].map(endpoint).into(), vec![], vec![]);
        let known = [(endpoint(3), 0), (endpoint(2), 1), (endpoint(1), 0)];
        assert_eq!((failures(&client), client.sessions[0].servers.at), (known.into(), 2));
    }

    proptest! {
        #[test]
        fn all_servers_are_tried_if_all_fail(count in 1usize..8, seed: u64) {
            let (mut choice, mut dice) = (Choice::of(count), Dice::new(seed));
            let (mut at, mut tried) = (0, vec![false; count]);
            for round in 0..400 {
                tried[at] = true;
                choice.fail(round * SECOND, at, 0);
                at = choice.next(round * SECOND, &mut dice, at, 0..count, &[]);
                prop_assert!(at < count);
            }
            prop_assert!(tried.iter().all(|tried| *tried), "{tried:?}");
        }
    }
}
