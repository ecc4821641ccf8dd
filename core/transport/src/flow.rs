//! How much may be in flight on one connection: the receiver's window, the congestion window, round trips and loss.
//!
//! Counts datagrams and bytes by datagram sequence only; knows no frame, no room, no key. Follows RFC 8085. `charges`
//! owns the bytes in flight, `congestion` the congestion window, `round_trips` the times.

mod charges;
mod congestion;
mod round_trips;

use crate::machine::Micros;
use crate::wire::frame::Status;
use charges::Charges;
use congestion::Congestion;
use round_trips::RoundTrips;

/// A receiver sends a status at most this long after the first datagram that elicits one.
pub const STATUS_DELAY: Micros = 50_000;
/// Datagrams that may leave before the first status.
pub const CWND_FIRST: f32 = 10.0;
/// The congestion window never falls below this.
pub const CWND_FLOOR: f32 = 2.0;
/// The congestion window never exceeds this: 16,384 x 1,200 B = 19 MiB is above any socket buffer we get.
pub const CWND_MAX: f32 = 16_384.0;
/// Factor by which one cut shrinks the window.
pub const CWND_CUT: f32 = 0.7;
/// Minimum number of datagrams in a round that is judged; fewer show nothing about a loss of 5 %.
const ROUND_MIN: u64 = 20;
/// Queueing delay above the smallest round trip that counts as congestion.
const QUEUE_MAX: u32 = 50_000;
/// After this many cuts for a queue, it must be an eighth shorter; otherwise other traffic makes the queue.
const QUEUE_CUTS: u8 = 4;
/// Shortest and longest wait before everything in flight is given up.
const RTO_MIN: Micros = 250_000;
const RTO_MAX: Micros = 2_000_000;

/// The bytes that the kernel charges a receive buffer for a datagram of `len` bytes: header structures plus the data's
/// power-of-two bucket. Measured: 64 B -> 832 B, 1,200 B -> 2,305 B.
pub fn charge(len: usize) -> u64 {
    320 + (len as u64 + 384).next_power_of_two()
}

/// The state before the first cut of the window for a queue, and the number of cuts since.
#[derive(Clone, Copy)]
struct QueueCut {
    excess: u32,
    window: Congestion,
    cuts: u8,
}

/// The sender's side of one connection's window. Its own fields are the sequences and the course of one round: each
/// status changes most of them together.
pub struct Flow {
    next: u64,
    acked: u64,
    /// The last sequence that elicits a status, and the highest one that a status has covered.
    asked: u64,
    covered: u64,
    /// Up to which (sequence, charge) a status was requested because the window was filling, and the time of the last
    /// request or status.
    inquired: (u64, u64),
    inquired_at: Micros,
    charges: Charges,
    cwnd: Congestion,
    window: u32,
    round_trips: RoundTrips,
    /// The state before the first cut for a queue that has not become shorter since.
    queue_cut: Option<Box<QueueCut>>,
    round_start: u64,
    round_end: u64,
    round_received: u32,
    received: u32,
    progress_at: Micros,
    cut_at: Micros,
    backoff: u8,
    /// The window before everything in flight was given up for silence.
    before: Congestion,
    /// The last datagram given up, and its send time: its status shows how late a status may come. 0: none.
    given_up: (u64, Micros),
    limited: bool,
}

impl Flow {
    /// `window`: bytes that the peer accepts before its first status.
    pub fn new(window: u32) -> Self {
        Flow {
            next: 1,
            acked: 0,
            asked: 0,
            covered: 0,
            inquired: (0, 0),
            inquired_at: 0,
            charges: Charges::default(),
            cwnd: Congestion::FIRST,
            window,
            round_trips: RoundTrips::default(),
            queue_cut: None,
            round_start: 0,
            round_end: 0,
            round_received: 0,
            received: 0,
            progress_at: 0,
            cut_at: 0,
            backoff: 0,
            before: Congestion::FIRST,
            given_up: (0, 0),
            limited: false,
        }
    }

    /// The sequence that the next datagram gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Highest sequence that the peer has seen.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    pub fn in_flight(&self) -> u64 {
        self.next - 1 - self.acked
    }

    /// Whether the last datagram must ask for a status at once: whenever another third of either window is filled,
    /// and after the receiver's delay has passed without one. It asks more than once per window, since a datagram
    /// that asks may be lost. It counts bytes too, since a small buffer would otherwise wait for the receiver's
    /// delay; and time, since a rare datagram would otherwise be probed for before its status comes.
    pub fn inquires(&mut self, now: Micros) -> bool {
        let (sequence, charged) = self.inquired;
        let part = self.cwnd.datagrams().div_ceil(3);
        let part_bytes = u64::from(self.window) / 3;
        let by_cwnd = self.in_flight() >= part && self.next > sequence + part;
        let by_window = self.charges.in_flight() >= part_bytes && self.charges.sent() >= charged + part_bytes;
        let by_time = now >= self.inquired_at + STATUS_DELAY;
        let inquires = by_cwnd || by_window || by_time;
        if inquires {
            self.inquired = (self.next - 1, self.charges.sent());
            self.inquired_at = now;
        }
        inquires
    }

    pub fn cwnd(&self) -> f32 {
        self.cwnd.size
    }

    /// The receive window of the peer's latest status, in bytes.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Smoothed round trip; a conservative guess before the first sample.
    pub fn rtt(&self) -> Micros {
        self.round_trips.usual()
    }

    /// Smoothed round trip; 0 before the first sample.
    pub fn measured(&self) -> Micros {
        self.round_trips.measured()
    }

    /// The longest recent round trip; 0 before the first sample.
    pub fn longest(&self) -> Micros {
        self.round_trips.longest()
    }

    /// Whether only the receiver's window holds back a datagram of `len` bytes, and the congestion window does not.
    pub fn is_shut(&self, len: usize) -> bool {
        let left = u64::from(self.window).saturating_sub(self.charges.in_flight());
        left < charge(len) && self.in_flight() < self.cwnd.datagrams()
    }

    /// Datagrams of at most `len` bytes that may leave now.
    pub fn available(&mut self, len: usize) -> usize {
        let by_cwnd = self.cwnd.datagrams().saturating_sub(self.in_flight());
        let left = u64::from(self.window).saturating_sub(self.charges.in_flight());
        let mut by_window = left / charge(len);
        if by_window == 0 && self.in_flight() == 0 && self.window > 0 {
            by_window = 1; // a window smaller than one datagram must not stop the flow forever
        }
        if by_cwnd <= by_window {
            self.limited = true;
        }
        by_cwnd.min(by_window) as usize
    }

    /// Notes that a datagram of `len` bytes leaves; returns its sequence. A datagram that elicits no status and
    /// leaves alone is not in flight.
    #[inline]
    pub fn sent(&mut self, now: Micros, len: usize, elicits: bool) -> u64 {
        let sequence = self.next;
        if elicits {
            self.asked = sequence;
        } else if self.in_flight() == 0 {
            self.next += 1;
            self.acked = sequence;
            return sequence;
        }
        if self.in_flight() == 0 {
            self.progress_at = now;
        }
        self.next += 1;
        self.charges.push(now, sequence, len);
        sequence
    }

    /// Takes the peer's status. `false`: it covers a datagram that was never sent.
    pub fn status(&mut self, now: Micros, status: &Status) -> bool {
        if status.highest >= self.next {
            return false;
        }
        if status.highest < self.covered {
            return true; // overtaken by a later one
        }
        self.covered = status.highest;
        self.window = status.window;
        if self.backoff > 0 && status.missing_len == 0 {
            self.undo(now);
        }
        let (sequence, at) = self.given_up;
        if (1..=status.highest).contains(&sequence) {
            self.given_up = (0, 0);
            if sequence == status.highest || status.missing_len == 0 {
                self.round_trips.lasted(took(now, at, status)); // otherwise it may be the lost one
            }
        }
        let newly = status.highest.saturating_sub(self.acked);
        if newly == 0 {
            return true;
        }
        self.acked = status.highest;
        self.inquired_at = now;
        self.received = status.received;
        self.progress_at = now;
        let sample = self.charges.cover(status.highest, newly);
        if self.acked >= self.asked {
            self.acked = self.next - 1; // later datagrams want no status, so none would ever cover it
        }
        if self.in_flight() == 0 {
            self.charges.clear();
        }
        if let Some(at) = sample {
            self.sample(now, at, took(now, at, status));
        }
        let lossy = self.lossy(status);
        if !lossy {
            self.grow(newly);
        }
        self.judge(now, status, lossy);
        true
    }

    /// The process stood still. Datagrams in flight give no round-trip sample, since their status may have come long
    /// ago.
    pub fn stood_still(&mut self) {
        self.charges.forget_times();
        self.given_up = (0, 0);
    }

    /// Takes the round trip of a datagram that left at `at`.
    fn sample(&mut self, now: Micros, at: Micros, rtt: u32) {
        self.round_trips.sample(now, rtt);
        if Micros::from(rtt) <= self.round_trips.patience() {
            self.backoff = 0;
        }
        if self.cwnd.is_at_floor() && at >= self.cut_at && rtt > self.round_trips.unqueued_max() {
            self.round_trips.excuse(rtt);
            self.cwnd.threshold = CWND_MAX;
        }
    }

    fn grow(&mut self, newly: u64) {
        if std::mem::take(&mut self.limited) {
            self.cwnd.grow(newly);
        }
    }

    /// All datagrams given up for silence have arrived: they were only late. The longer timeout stays until a round
    /// trip fits the usual one.
    fn undo(&mut self, now: Micros) {
        self.cwnd.restore(std::mem::take(&mut self.before));
        self.progress_at = now;
    }

    /// Whether this round lost more than 5 % plus two standard deviations: a handful lost by chance is no congestion.
    fn lossy(&self, status: &Status) -> bool {
        let total = status.highest.saturating_sub(self.round_start);
        let lost = total.saturating_sub(u64::from(status.received.wrapping_sub(self.round_received)));
        lost as f32 > total as f32 * 0.05 + 2.0 * (total as f32 * 0.05).sqrt()
    }

    /// Judges loss and queueing once per round trip.
    fn judge(&mut self, now: Micros, status: &Status, lossy: bool) {
        if status.highest < self.round_end {
            return;
        }
        let total = status.highest - self.round_start;
        let lossy = lossy && total >= ROUND_MIN;
        let queued = self.round_trips.is_queued();
        if lossy || !queued {
            self.queue_cut = None;
        }
        let may_cut = !self.cwnd.is_at_floor() && now - self.cut_at >= self.rtt();
        if may_cut && (lossy || queued && self.shortens_queue()) {
            self.cwnd.cut();
            self.cut_at = now;
        }
        if total >= ROUND_MIN {
            self.round_start = status.highest;
            self.round_received = status.received;
        }
        self.round_end = self.next - 1;
    }

    /// Whether the present cut for a queue may help: earlier cuts did, or are too few to tell. Otherwise they are
    /// undone, and the queue counts as caused by other traffic.
    fn shortens_queue(&mut self) -> bool {
        let excess = self.round_trips.excess();
        let shorter = |first: &QueueCut| excess < first.excess - first.excess / 8;
        let before = self.queue_cut.as_deref().copied();
        let mut first = before.filter(|first| !shorter(first)).unwrap_or(QueueCut {
            excess,
            window: self.cwnd,
            cuts: 0,
        });
        if first.cuts < QUEUE_CUTS {
            first.cuts += 1;
            self.queue_cut = Some(Box::new(first));
            return true;
        }
        self.round_trips.excuse_all();
        self.queue_cut = None;
        self.cwnd = first.window;
        false
    }

    /// When everything in flight is given up if no status comes before.
    pub fn timeout_at(&self) -> Option<Micros> {
        (self.in_flight() > 0).then(|| self.progress_at + self.rto())
    }

    fn rto(&self) -> Micros {
        (self.round_trips.patience() << self.backoff.min(3)).min(RTO_MAX)
    }

    /// Gives up everything in flight if its time has come. `true` if it did: the caller then asks for a status.
    pub fn timeout(&mut self, now: Micros) -> bool {
        if self.timeout_at().is_none_or(|at| now < at) {
            return false;
        }
        if self.backoff == 0 || !self.cwnd.is_at_floor() {
            self.before = self.cwnd;
        }
        self.acked = self.next - 1;
        self.round_start = self.acked;
        self.round_end = self.acked;
        self.round_received = self.received;
        self.cwnd.give_up();
        self.progress_at = now;
        self.backoff = (self.backoff + 1).min(8);
        self.given_up = self.charges.last();
        self.charges.clear();
        true
    }
}

/// The round trip from a datagram sent at `at` to this status, without the receiver's own delay.
fn took(now: Micros, at: Micros, status: &Status) -> u32 {
    let took = now.saturating_sub(at).saturating_sub(Micros::from(status.delay));
    u32::try_from(took.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const SECOND: Micros = 1_000_000;

    fn status(highest: u64, received: u32) -> Status {
        Status {
            highest,
            received,
            window: 1 << 20,
            ..Status::default()
        }
    }

    #[test]
    fn ten_datagrams_leave_before_the_first_status_and_twice_as_many_after_it() {
        let mut flow = Flow::new(1 << 20);
        assert_eq!(flow.available(1200), 10);
        (0..10).for_each(|_| {
            flow.sent(0, 1200, true);
        });
        assert_eq!(flow.available(1200), 0);
        assert!(flow.status(1000, &status(10, 10)));
        assert_eq!(flow.available(1200), 20);
    }

    /// Regression: a reader that had stood still for 3 s waited 1.4 s before it asked again for missing messages.
    #[test]
    fn a_stall_of_the_process_is_no_round_trip() {
        let mut flow = Flow::new(1 << 20);
        for at in [0, 500, 1_000] {
            flow.sent(at, 1200, true);
        }
        assert!(flow.status(1_200, &status(1, 1)));
        let before = (flow.rtt(), flow.longest(), flow.round_trips.least());
        flow.stood_still();
        assert!(flow.status(3 * SECOND, &status(3, 3)));
        assert_eq!((flow.rtt(), flow.longest(), flow.round_trips.least()), before);
        assert_eq!((flow.in_flight(), flow.charges.in_flight()), (0, 0));
        flow.sent(4 * SECOND, 1200, true);
        assert!(flow.status(4 * SECOND + 2_000, &status(4, 4)));
        assert_eq!(flow.rtt(), 1_200 * 7 / 8 + 2_000 / 8);
    }

    #[test]
    fn a_window_of_the_default_buffer_holds_ninety_datagrams() {
        let mut flow = Flow::new(212_992);
        flow.cwnd.size = 1000.0;
        assert_eq!(flow.available(1200), 212_992 / charge(1200) as usize);
    }

    /// Regression: a window of 27 datagrams waited 50 ms for each status, since 32 datagrams elicit one. It took 44 s
    /// instead of 3.
    #[test]
    fn a_window_that_bytes_fill_asks_more_than_once() {
        let mut flow = Flow::new(64 * 1024);
        flow.cwnd.size = 1000.0;
        let mut asks = Vec::new();
        while flow.available(1200) > 0 {
            let sequence = flow.sent(0, 1200, true);
            if flow.inquires(0) {
                asks.push(sequence);
            }
        }
        assert_eq!(asks, [10, 20]);
        flow.status(
            1000,
            &Status {
                window: 64 * 1024,
                ..status(20, 20)
            },
        );
        while flow.available(1200) > 0 {
            let sequence = flow.sent(0, 1200, true);
            if flow.inquires(0) {
                asks.push(sequence);
            }
        }
        assert_eq!(asks, [10, 20, 30, 40]);
    }

    /// Regression: a datagram every 100 ms was probed for after 20 ms and acknowledged after 50: three datagrams
    /// instead of one.
    #[test]
    fn a_rare_datagram_asks_for_a_status_and_a_frequent_one_does_not() {
        let mut flow = Flow::new(1 << 20);
        for sequence in 1..20 {
            let now = sequence * 2 * STATUS_DELAY;
            flow.sent(now, 300, true);
            assert!(flow.inquires(now), "{sequence}");
            flow.status(now + 200, &status(sequence, sequence as u32));
        }
        let start = 40 * STATUS_DELAY;
        flow.cwnd.size = 1000.0;
        let asks = (0..100u64).filter(|step| {
            let now = start + step * 1_000;
            let sequence = flow.sent(now, 300, true);
            let asks = flow.inquires(now);
            if asks || step % 32 == 0 {
                flow.status(now + 200, &status(sequence, sequence as u32));
            }
            asks
        });
        assert_eq!(asks.count(), 1, "a status comes with every 32nd");
    }

    #[test]
    fn heavy_loss_cuts_once_per_round_trip_and_light_loss_does_not() {
        let mut flow = Flow::new(1 << 24);
        flow.cwnd.size = 100.0;
        flow.cwnd.threshold = 100.0;
        (0..100).for_each(|_| {
            flow.sent(0, 1200, true);
        });
        flow.status(1000, &status(100, 80));
        assert_eq!(flow.cwnd() as u32, 70);
        (0..60).for_each(|_| {
            flow.sent(2000, 1200, true);
        });
        flow.status(40_000, &status(160, 139));
        assert!(flow.cwnd() >= 70.0);
    }

    /// Each status comes a second late, after its datagram was given up.
    #[test]
    fn late_statuses_lengthen_the_timeout() {
        let mut flow = Flow::new(1 << 20);
        let mut given_up = Vec::new();
        for sent in 0..10 {
            let at = sent * 2 * SECOND;
            let sequence = flow.sent(at, 1200, true);
            let came = at + SECOND;
            given_up.extend((at..came).step_by(1_000).filter(|now| flow.timeout(*now)).map(|_| sent));
            assert!(flow.status(came, &status(sequence, sequence as u32)));
        }
        assert_eq!(given_up, [0]);
        assert_eq!(flow.longest(), SECOND);
        // A lost datagram does not count as a late one.
        let at = 20 * SECOND;
        flow.sent(at, 1200, true);
        assert!(flow.timeout(at + 2 * SECOND));
        let sequence = flow.sent(at + 2 * SECOND, 1200, true);
        let mut told = status(sequence, sequence as u32 - 1);
        (told.missing_len, told.missing[0]) = (1, (sequence - 1, sequence - 1));
        assert!(flow.status(at + 2 * SECOND + 500, &told));
        assert!(flow.longest() < SECOND);
    }

    #[test]
    fn silence_gives_up_data_in_flight_with_back_off() {
        let mut flow = Flow::new(1 << 20);
        flow.sent(0, 100, true);
        let at = flow.timeout_at().unwrap();
        assert!(!flow.timeout(at - 1));
        assert!(flow.timeout(at));
        assert_eq!((flow.in_flight(), flow.cwnd() as u32), (0, 2));
        flow.sent(at, 100, true);
        assert!(flow.timeout_at().unwrap() - at > RTO_MIN);
    }

    /// A stalled receiver reads everything at once and sends one status.
    #[test]
    fn a_status_that_covers_later_datagrams_too_restores_the_window() {
        for (received, window) in [(51, 100), (50, 2)] {
            let mut flow = Flow::new(1 << 20);
            flow.cwnd.size = 100.0;
            (0..50).for_each(|_| {
                flow.sent(0, 100, true);
            });
            let at = flow.timeout_at().unwrap();
            assert!(flow.timeout(at));
            flow.sent(at, 100, true);
            let missing_len = u8::from(received < 51);
            flow.status(
                at + 10_000,
                &Status {
                    missing_len,
                    ..status(51, received)
                },
            );
            assert_eq!(flow.cwnd() as u32 / window, 1, "{received}");
        }
    }

    /// Regression (seed 2461 of the simulator): without loss, sessions twice a second gave up datagrams that no
    /// status would ever cover.
    #[test]
    fn datagrams_that_elicit_no_status_are_not_waited_for() {
        let mut flow = Flow::new(1 << 20);
        flow.sent(0, 100, true);
        flow.sent(0, 100, false);
        assert_eq!(flow.in_flight(), 2);
        assert!(flow.status(1000, &status(1, 1)));
        assert_eq!((flow.in_flight(), flow.timeout_at()), (0, None));
        flow.sent(2000, 100, true);
        assert!(flow.status(3000, &status(3, 3)));
        assert_eq!(flow.in_flight(), 0);
    }

    /// A sender with endless data over a path; `path` gives the delay of each datagram's status (none: lost). Returns
    /// the window at the end of each second.
    fn sends_for(
        flow: &mut Flow,
        from: Micros,
        seconds: u64,
        mut path: impl FnMut(Micros) -> Option<Micros>,
    ) -> Vec<u32> {
        let mut back: VecDeque<(Micros, Status)> = VecDeque::new();
        let (mut windows, mut received) = (Vec::new(), flow.received);
        for now in (from..from + seconds * 1_000_000).step_by(1_000) {
            while back.front().is_some_and(|(at, _)| now >= *at) {
                let (_, status) = back.pop_front().unwrap();
                flow.status(now, &status);
            }
            let asks = flow.timeout(now);
            for _ in 0..flow.available(1200) + usize::from(asks) {
                let sequence = flow.sent(now, 1200, true);
                let asks = flow.inquires(now) || asks;
                if let Some(wait) = path(now) {
                    received += 1;
                    if asks {
                        let missing_len = u8::from(u64::from(received) < sequence);
                        let status = status(sequence, received);
                        back.push_back((now + wait, Status { missing_len, ..status }));
                    }
                }
            }
            if (now + 1_000 - from) % 1_000_000 == 0 {
                windows.push(flow.cwnd() as u32);
            }
        }
        windows
    }

    /// Regression: the first statuses came after the timeout, three times: two datagrams per round trip, one more
    /// with each.
    #[test]
    fn a_round_trip_of_800_ms_opens_the_window_as_a_short_one_does() {
        let windows = sends_for(&mut Flow::new(1 << 20), 0, 6, |_| Some(800_000));
        assert!(windows[5] >= 100, "{windows:?}");
    }

    /// Regression: the longer path looked like a queue while the short round trip was remembered (10 s), and the
    /// window stayed small for 40 s more.
    #[test]
    fn a_path_that_becomes_longer_is_no_queue() {
        let mut flow = Flow::new(1 << 20);
        sends_for(&mut flow, 0, 1, |_| Some(1_000));
        flow.cwnd.size = 20.0;
        let windows = sends_for(&mut flow, 1_000_000, 16, |_| Some(800_000));
        assert!(windows[15] >= 50, "{windows:?}");
    }

    /// Regression: on a path of 256 kbit/s with a queue of two datagrams, four times its capacity was sent.
    #[test]
    fn a_path_with_a_short_queue_is_not_flooded() {
        let (mut free, mut sent, mut lost) = (0, 0u32, 0u32);
        let windows = sends_for(&mut Flow::new(1 << 20), 0, 30, |now| {
            let late = now > 10_000_000;
            let queued = u64::saturating_sub(free, now);
            sent += u32::from(late);
            if queued > 50_000 {
                lost += u32::from(late);
                return None;
            }
            free = now + queued + 38_000;
            Some(queued + 38_000 + 40_000)
        });
        assert!(lost * 3 < sent, "{lost} of {sent} were lost: {windows:?}");
    }

    /// A member's process that gets too little processor time: it fell five seconds behind, though nothing was lost
    /// and its buffer was empty.
    #[test]
    fn an_often_stalled_receiver_keeps_a_sufficient_window() {
        let mut sent = [0; 9];
        sends_for(&mut Flow::new(1 << 20), 0, 9, |now| {
            sent[(now / 1_000_000) as usize] += 1;
            Some(if now < 1_000_000 {
                1_000
            } else {
                400_000 - now % 400_000
            })
        });
        assert!(sent.iter().all(|sent| *sent >= 300), "{sent:?}");
    }

    #[test]
    fn a_status_for_unsent_datagrams_is_refused() {
        let mut flow = Flow::new(1 << 20);
        flow.sent(0, 100, true);
        assert!(!flow.status(1, &status(2, 2)));
    }
}
