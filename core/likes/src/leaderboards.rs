//! Leaderboards: members with scores that the application sets and raises.
//!
//! Owns members, their scores and the order among them. Knows neither items, users nor the log.
//!
//! A leaderboard is Redis's sorted set, on the same rank structure as the rankings of likes. Of equal scores the greater
//! name is above, as in Redis; with [`Ties::Time`] the one that got its score first. By a window, points gained lately
//! count more: a change of a score is worth itself now and half of that after the window's length.

use crate::keyed::{Key, Keyed};
use crate::limits::{LEADERBOARDS_MAX, LEADERBOARD_MEMBERS_MAX};
use crate::ranking::{Ranking, ScoreBits};
use crate::trend::{Scores, WINDOWS};

/// The rule for equal scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ties {
    /// The greater name is above.
    #[default]
    Name,
    /// The member that got its score first is above.
    Time,
}

/// The conditions of a change of scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Only members that are not there yet.
    pub new: bool,
    /// Only members that are there.
    pub existing: bool,
    /// Only to a greater score; new members are added.
    pub greater: bool,
    /// Only to a lower score; new members are added.
    pub less: bool,
    /// The number is added to the score.
    pub raise: bool,
}

impl How {
    pub(crate) fn bits(self) -> u8 {
        let all = [self.new, self.existing, self.greater, self.less, self.raise];
        (0..).zip(all).map(|(at, is)| u8::from(is) << at).sum()
    }

    pub(crate) fn from_bits(bits: u8) -> How {
        let is = |at: u8| bits >> at & 1 == 1;
        How {
            new: is(0),
            existing: is(1),
            greater: is(2),
            less: is(3),
            raise: is(4),
        }
    }
}

/// The result of a change of scores.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Scored {
    /// Members that are new.
    pub added: u64,
    /// Members that had another score before.
    pub changed: u64,
    /// The last member's score; `None` if its condition did not hold.
    pub score: Option<f64>,
}

/// A sum of infinities, which is no score.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotANumber;

pub(crate) struct Member {
    pub name: Box<[u8]>,
    pub score: f64,
    /// The offset of the record that gave the score, plus 1.
    pub since: u64,
    /// Points gained, one number per window, as of the landmarks.
    pub trends: Scores,
}

impl Key for Member {
    fn key(&self) -> &[u8] {
        &self.name
    }
}

#[derive(Default)]
pub(crate) struct Leaderboard {
    pub name: Box<[u8]>,
    pub ties: Ties,
    /// The offset of the record that made it or set its ties, plus 1.
    pub since: u64,
    pub members: Keyed<Member>,
    by_score: Ranking<(ScoreBits, u64)>,
    by_window: [Ranking; WINDOWS.len()],
}

impl Key for Leaderboard {
    fn key(&self) -> &[u8] {
        &self.name
    }
}

pub(crate) type Leaderboards = Keyed<Leaderboard>;

impl Leaderboards {
    /// The leaderboard that `key` names and what it is ordered by: 0 is the score, otherwise 1 + the window of a key that
    /// ends with `@` and the window's name.
    pub fn parse(&self, key: &[u8]) -> Option<(u32, usize)> {
        if let Some(slot) = self.find(key) {
            return Some((slot, 0));
        }
        let (window, name) = window(key)?;
        Some((self.find(name)?, 1 + window))
    }

    pub fn has_room(&self) -> bool {
        self.len() < LEADERBOARDS_MAX
    }
}

/// The window at the end of a key, and the part before it.
pub(crate) fn window(key: &[u8]) -> Option<(usize, &[u8])> {
    (0..).zip(&WINDOWS).find_map(|(window, (name, _))| {
        let rest = key.strip_suffix(name.as_bytes())?;
        Some((window, rest.strip_suffix(b"@")?))
    })
}

impl Leaderboard {
    pub fn new(name: &[u8], since: u64) -> Leaderboard {
        Leaderboard {
            name: name.into(),
            since,
            ..Leaderboard::default()
        }
    }

    /// Whether it is as absent: without members and without settings.
    pub fn is_nothing(&self) -> bool {
        self.members.len() == 0 && self.ties == Ties::default()
    }

    pub fn score(&self, name: &[u8]) -> Option<f64> {
        Some(self.members.by_key(name)?.score)
    }

    /// A member's number by which it is ordered: its score, or its points in a window as of the landmark.
    pub fn number(&self, by: usize, slot: u32) -> f64 {
        self.members.get(slot).map_or(0.0, |member| match by {
            0 => member.score,
            by => member.trends[by - 1],
        })
    }

    /// Whether all of these fit beside the present members.
    pub fn takes(&self, names: &[(f64, &[u8])]) -> bool {
        let most = self.members.len() + names.len();
        most <= LEADERBOARD_MEMBERS_MAX || {
            let new = names
                .iter()
                .filter(|(_, name)| self.members.find(name).is_none())
                .count();
            self.members.len() + new <= LEADERBOARD_MEMBERS_MAX
        }
    }

    /// What a change would make of a member: its new score, which may be the present one; `None`: its condition does
    /// not hold.
    pub fn outcome(&self, how: How, number: f64, name: &[u8]) -> Result<Option<f64>, NotANumber> {
        let former = self.score(name);
        if former.is_some() && how.new || former.is_none() && how.existing {
            return Ok(None);
        }
        let score = match former {
            Some(former) if how.raise => former + number,
            _ => number,
        };
        if score.is_nan() {
            return Err(NotANumber);
        }
        let holds = former.is_none_or(|former| !(how.greater && score <= former || how.less && score >= former));
        Ok(holds.then_some(score + 0.0)) // no minus zero: Redis has both as one score
    }

    /// Gives a member another score; `weights`: what a point is worth now in each window.
    pub fn put(&mut self, name: &[u8], score: f64, weights: Scores, since: u64) {
        let slot = match self.members.find(name) {
            Some(slot) => slot,
            None => self.members.add(Member {
                name: name.into(),
                score: 0.0,
                since,
                trends: Scores::default(),
            }),
        };
        let member = self.members.get_mut(slot);
        let gained = score - member.score;
        member.score = score;
        member.since = since;
        for (trend, weight) in member.trends.iter_mut().zip(weights) {
            let sum = *trend + gained * weight;
            if sum.is_finite() {
                *trend = sum; // points without end have no sum
            }
        }
        self.touch(slot);
    }

    pub fn remove(&mut self, slot: u32) {
        let Leaderboard {
            members,
            by_score,
            by_window,
            ..
        } = self;
        by_score.remove(slot, members);
        by_window.iter_mut().for_each(|ranking| ranking.remove(slot, members));
        members.remove(slot);
    }

    /// All points in a window have changed by one factor.
    pub fn shrink(&mut self, window: usize, factor: f64) {
        self.members
            .iter_mut()
            .for_each(|member| member.trends[window] *= factor);
        self.by_window[window].drop_order();
    }

    pub fn set_ties(&mut self, ties: Ties, since: u64) {
        self.ties = ties;
        self.since = since;
        self.by_score.drop_order();
    }

    /// How many members are above this one.
    pub fn rank(&mut self, by: usize, name: &[u8]) -> Option<usize> {
        let slot = self.members.find(name)?;
        let Leaderboard {
            members,
            by_score,
            by_window,
            ties,
            ..
        } = self;
        let slots = members.iter().map(|(slot, _)| slot);
        match by {
            0 => by_score.rank(slot, members, slots, |slot| by_score_key(members, *ties, slot)),
            by => by_window[by - 1].rank(slot, members, slots, |slot| by_window_key(members, by - 1, slot)),
        }
    }

    /// `count` members starting at rank `from`, best first.
    pub fn page(&mut self, by: usize, from: usize, count: usize) -> Vec<u32> {
        let Leaderboard {
            members,
            by_score,
            by_window,
            ties,
            ..
        } = self;
        let slots = members.iter().map(|(slot, _)| slot);
        match by {
            0 => slots_of(by_score.page(from, count, members, slots, |slot| by_score_key(members, *ties, slot))),
            by => slots_of(
                by_window[by - 1].page(from, count, members, slots, |slot| by_window_key(members, by - 1, slot)),
            ),
        }
    }

    /// How many members have a score below `bound`, or up to it.
    pub fn below(&mut self, bound: f64, or_equal: bool) -> usize {
        let Leaderboard {
            members,
            by_score,
            ties,
            ..
        } = self;
        let bound = sortable(bound + 0.0);
        let slots = members.iter().map(|(slot, _)| slot);
        by_score.below(
            |(score, _)| score < bound || or_equal && score == bound,
            members,
            slots,
            |slot| by_score_key(members, *ties, slot),
        )
    }

    fn touch(&mut self, slot: u32) {
        let Leaderboard {
            members,
            by_score,
            by_window,
            ties,
            ..
        } = self;
        by_score.touch(slot, members, |slot| by_score_key(members, *ties, slot));
        for (window, ranking) in by_window.iter_mut().enumerate() {
            ranking.touch(slot, members, |slot| by_window_key(members, window, slot));
        }
    }
}

fn slots_of<S>(page: Vec<(u32, S)>) -> Vec<u32> {
    page.into_iter().map(|(slot, _)| slot).collect()
}

fn by_score_key(members: &Keyed<Member>, ties: Ties, slot: u32) -> Option<(ScoreBits, u64)> {
    let member = members.get(slot)?;
    let tie = match ties {
        Ties::Name => 0,
        Ties::Time => !member.since,
    };
    Some((sortable(member.score), tie))
}

fn by_window_key(members: &Keyed<Member>, window: usize, slot: u32) -> Option<ScoreBits> {
    Some(sortable(members.get(slot)?.trends[window]))
}

/// Bits that compare like the number.
fn sortable(number: f64) -> ScoreBits {
    let bits = number.to_bits();
    match bits >> 63 {
        0 => bits | 1 << 63,
        _ => !bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_compare_as_their_numbers() {
        let numbers = [
            f64::NEG_INFINITY,
            -1e300,
            -2.5,
            -1e-300,
            0.0,
            1e-300,
            1.0,
            1.5,
            1e300,
            f64::INFINITY,
        ];
        assert!(numbers.map(sortable).is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn conditions_survive_their_bits() {
        for bits in 0..32 {
            assert_eq!(How::from_bits(bits).bits(), bits);
        }
    }

    #[test]
    fn window_is_the_end_of_a_key() {
        assert_eq!(window(b"game:7@24h"), Some((1, &b"game:7"[..])));
        assert_eq!(window(b"@1h"), Some((0, &b""[..])));
        for key in [&b"game:7"[..], b"24h", b"game@25h", b"game@24h ", b""] {
            assert_eq!(window(key), None);
        }
    }
}
