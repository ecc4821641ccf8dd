//! The network between processes: losses, delays, duplicates, reordering and corruption.
//!
//! Owns the fate of each datagram and the directions that are cut. Knows addresses only as process numbers, and no
//! role.

use crate::{Dice, Micros};

const MILLION: u64 = 1_000_000;

/// Probabilities per million, and delays, of one direction of a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub latency: Micros,
    pub jitter: Micros,
    pub loss: u64,
    /// Gilbert-Elliott: probability per datagram to enter and to leave the bad state, in which half is lost.
    pub burst_in: u64,
    pub burst_out: u64,
    pub duplicate: u64,
    pub reorder: u64,
    pub corrupt: u64,
}

impl Weather {
    /// The same delays without faults.
    pub fn calm(self) -> Weather {
        Weather {
            latency: self.latency,
            ..Weather::default()
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Path {
    bad: bool,
    last_at: Micros,
    cuts: u32,
    delay: Micros,
}

/// The paths between all pairs of processes, per direction.
pub struct Net {
    dice: Dice,
    count: usize,
    /// The first processes, this many, are near each other.
    near: usize,
    paths: Vec<Path>,
    among: Weather,
    beyond: Weather,
    pub sent: u64,
    pub lost: u64,
    /// Datagrams sent before the last second of the run.
    before_last: u64,
}

/// The fate of one datagram: it arrives at each of these times, corrupted or not.
pub(crate) struct Fate {
    pub arrivals: [Option<Micros>; 2],
    pub spoiled: bool,
}

impl Net {
    /// `among`: the network between the first `near` of `count` processes; `beyond`: all other paths.
    pub(crate) fn new(seed: u64, near: usize, count: usize, among: Weather, beyond: Weather) -> Self {
        Net {
            dice: Dice::new(seed ^ 0x0e7),
            count,
            near,
            paths: vec![Path::default(); count * count],
            among,
            beyond,
            sent: 0,
            lost: 0,
            before_last: 0,
        }
    }

    pub fn cut(&mut self, from: usize, to: usize) {
        self.paths[from * self.count + to].cuts += 1;
    }

    pub fn mend(&mut self, from: usize, to: usize) {
        let path = &mut self.paths[from * self.count + to];
        path.cuts = path.cuts.saturating_sub(1);
    }

    /// Datagrams for `to` take this much longer from now on.
    pub fn delay(&mut self, from: usize, to: usize, by: Micros) {
        self.paths[from * self.count + to].delay = by;
    }

    /// Ends all losses, delays and corruption.
    pub(crate) fn heal(&mut self) {
        (self.among, self.beyond) = (self.among.calm(), self.beyond.calm());
        self.paths.iter_mut().for_each(|path| (path.cuts, path.delay) = (0, 0));
    }

    pub(crate) fn note_last(&mut self) {
        self.before_last = self.sent;
    }

    /// Number of datagrams sent in the last second of the run.
    pub fn sent_in_last_second(&self) -> u64 {
        self.sent - self.before_last
    }

    fn chance(&mut self, of_million: u64) -> bool {
        of_million > 0 && self.dice.below(MILLION) < of_million
    }

    pub(crate) fn fate(&mut self, now: Micros, from: usize, to: usize) -> Fate {
        self.sent += 1;
        let weather = if from < self.near && to < self.near {
            self.among
        } else {
            self.beyond
        };
        let at = from * self.count + to;
        let mut fate = Fate {
            arrivals: [None; 2],
            spoiled: false,
        };
        let mut lost = self.paths[at].cuts > 0 || self.chance(weather.loss);
        if weather.burst_in > 0 {
            let bad = self.paths[at].bad;
            if self.chance(if bad { weather.burst_out } else { weather.burst_in }) {
                self.paths[at].bad = !bad;
            }
            lost |= self.paths[at].bad && self.chance(500_000);
        }
        if lost {
            self.lost += 1;
            return fate;
        }
        let mut arrival = now + weather.latency + self.paths[at].delay + self.dice.below(weather.jitter + 1);
        if self.chance(weather.reorder) {
            arrival += self.dice.below(4 * (weather.latency + weather.jitter) + 1_000);
        } else {
            // A path keeps order, except for datagrams that it lets others overtake.
            arrival = arrival.max(self.paths[at].last_at);
            self.paths[at].last_at = arrival;
        }
        fate.arrivals[0] = Some(arrival);
        if self.chance(weather.duplicate) {
            fate.arrivals[1] = Some(arrival + self.dice.below(weather.jitter + 2_000));
        }
        fate.spoiled = self.chance(weather.corrupt);
        fate
    }

    /// Corrupts a datagram: flips a bit, changes a piece of it, or its length.
    pub(crate) fn spoil(&mut self, bytes: &mut Vec<u8>) {
        match self.dice.below(4) {
            0 => bytes.truncate(self.dice.below(bytes.len() as u64) as usize),
            1 => {
                let at = self.dice.below(bytes.len() as u64) as usize;
                let end = (at + 16).min(bytes.len());
                bytes[at..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
            _ => {
                let bit = self.dice.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
