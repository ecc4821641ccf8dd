//! Likes as plain lists, slow and obvious, and the comparison of every result.

use muster_likes::{
    Answer, ApplyError, BitOp, Engine, ExportCursor, Exported, FeedEntry, How, Options, Phase, Record, Scored, Ties,
    NEWEST_MAX, WINDOWS,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub const KEYS: [&str; 6] = ["share:1", "share:2", "share:10", "comment:1", "plain", "both"];
/// `both` is an item's key too: a key has one type.
const BOARDS: [&str; 3] = ["game:1", "game:2", "both"];
/// `7` is a user too.
const MEMBERS: [&str; 5] = ["alice", "bo", "7", "d", ""];
const SCORES: [f64; 8] = [0.0, 1.0, 2.0, 2.5, -3.0, 100.0, f64::INFINITY, f64::NEG_INFINITY];
const FIELDS: [&str; 3] = ["farming", "music", "share"];
const BEGIN_MS: u64 = 1_790_000_000_000;

#[derive(Clone, Debug)]
pub enum Step {
    Set {
        key: usize,
        user: u64,
        likes: bool,
    },
    OneOf {
        key: usize,
        user: u64,
        others: Vec<usize>,
    },
    Delete(usize),
    BitOp {
        op: u8,
        target: usize,
        sources: Vec<usize>,
    },
    Fields {
        key: usize,
        fields: Vec<usize>,
    },
    Scores {
        board: usize,
        how: How,
        /// Places in `SCORES` and `MEMBERS`.
        scores: Vec<(usize, usize)>,
    },
    Unscore {
        board: usize,
        members: Vec<usize>,
    },
    Ties {
        board: usize,
        by_time: bool,
    },
    DeleteBoard(usize),
    Wait(u64),
    /// The erasure of a user begins.
    Erase(u64),
    /// The oldest erasure under way goes through this many slots, or takes its next step.
    GoOnErasing(u32),
    /// All data of a user, in pages of this many.
    Export {
        user: u64,
        page: usize,
    },
    /// A pass of the write-behind: takes rows, applies these toggles, then writes this many of the rows.
    Pass {
        between: Vec<(usize, u64, bool)>,
        written: usize,
    },
    Restore,
    /// A snapshot in slices of this many bytes, with one step after each of the first slices.
    Slices {
        bytes: usize,
        between: Vec<Step>,
    },
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let user = prop_oneof![4 => 0..12_u64, 1 => Just(1 << 40), 1 => Just(u64::MAX)];
    let key = 0..KEYS.len();
    let toggle = (key.clone(), user.clone(), any::<bool>());
    let how = (0..3_u8, 0..3_u8, any::<bool>()).prop_map(|(which, limit, raise)| How {
        new: which == 1 && limit == 0,
        existing: which == 2,
        greater: limit == 1,
        less: limit == 2,
        raise,
    });
    let board = 0..BOARDS.len();
    let scores = proptest::collection::vec((0..SCORES.len(), 0..MEMBERS.len()), 1..4);
    let leaderboards = prop_oneof![
        12 => (board.clone(), how, scores).prop_map(|(board, how, mut scores)| {
            scores.truncate(if how.raise { 1 } else { 3 });
            Step::Scores { board, how, scores }
        }),
        3 => (board.clone(), proptest::collection::vec(0..MEMBERS.len(), 1..4)).prop_map(|(board, members)| Step::Unscore { board, members }),
        2 => (board.clone(), any::<bool>()).prop_map(|(board, by_time)| Step::Ties { board, by_time }),
        1 => board.prop_map(Step::DeleteBoard),
    ];
    let simple = prop_oneof![
        12 => leaderboards,
        20 => toggle.clone().prop_map(|(key, user, likes)| Step::Set { key, user, likes }),
        3 => (toggle.clone(), proptest::collection::vec(key.clone(), 0..3))
            .prop_map(|((key, user, _), others)| Step::OneOf { key, user, others }),
        1 => key.clone().prop_map(Step::Delete),
        2 => (0..4_u8, key.clone(), proptest::collection::vec(key.clone(), 1..4))
            .prop_map(|(op, target, sources)| Step::BitOp { op, target, sources }),
        2 => (key, proptest::collection::vec(0..FIELDS.len(), 0..3)).prop_map(|(key, fields)| Step::Fields { key, fields }),
        1 => prop_oneof![user.clone(), Just(7)].prop_map(Step::Erase),
        4 => (1..5_u32).prop_map(Step::GoOnErasing),
        1 => (prop_oneof![user, Just(7)], 1..4_usize).prop_map(|(user, page)| Step::Export { user, page }),
        2 => prop_oneof![0..10_000_u64, 0..100_000_000_u64, Just(3_000_000_000_u64)].prop_map(Step::Wait),
    ];
    let step = prop_oneof![
        42 => simple.clone(),
        2 => (proptest::collection::vec(toggle, 0..4), 0..8_usize).prop_map(|(between, written)| Step::Pass { between, written }),
        1 => Just(Step::Restore),
        1 => (1..300_usize, proptest::collection::vec(simple, 0..12)).prop_map(|(bytes, between)| Step::Slices { bytes, between }),
    ];
    proptest::collection::vec(step, 1..80)
}

#[derive(Clone, Default)]
struct Item {
    /// In the order of their likes.
    likers: Vec<u64>,
    /// Likers that may still be in the bounded list of newest likers.
    newest: Vec<u64>,
    bits: u128,
    derived: bool,
    fields: BTreeSet<String>,
    /// Value and time of the last toggle, per window.
    trends: [f64; 3],
    at_ms: u64,
}

#[derive(Default)]
struct Model {
    items: BTreeMap<String, Item>,
    /// For each user, the keys in the order of the likes, with their seconds.
    liked: BTreeMap<u64, Vec<(String, u32)>>,
    boards: BTreeMap<String, Board>,
    now_ms: u64,
    /// The users of all erasures, in their order, with what was found.
    erasures: Vec<Erasure>,
}

#[derive(Clone)]
struct Erasure {
    user: u64,
    phase: Phase,
    kinds: BTreeMap<String, u64>,
    derived: u64,
    members: u64,
}

#[derive(Default)]
struct Board {
    by_time: bool,
    members: BTreeMap<String, Member>,
}

#[derive(Clone, Copy)]
struct Member {
    score: f64,
    /// The record that gave the score.
    since: usize,
    trends: [f64; 3],
    at_ms: u64,
}

impl Board {
    /// Best first.
    fn order(&self) -> Vec<(&str, f64)> {
        let mut members: Vec<(&String, &Member)> = self.members.iter().collect();
        members.sort_by(|(a_name, a), (b_name, b)| {
            let ties = if self.by_time {
                a.since.cmp(&b.since)
            } else {
                std::cmp::Ordering::Equal
            };
            b.score.total_cmp(&a.score).then(ties).then(b_name.cmp(a_name))
        });
        members
            .into_iter()
            .map(|(name, member)| (name.as_str(), member.score))
            .collect()
    }
}

impl Model {
    fn item(&mut self, key: &str) -> &mut Item {
        self.items.entry(key.into()).or_insert_with(|| {
            let fields = key
                .split_once(':')
                .map(|(kind, _)| kind.to_string())
                .into_iter()
                .collect();
            Item {
                fields,
                ..Item::default()
            }
        })
    }

    fn set(&mut self, key: &str, user: u64, likes: bool) -> bool {
        let now_ms = self.now_ms;
        let item = self.item(key);
        item.bits = item.bits.max(u128::from(user) + 1);
        let was = item.likers.contains(&user);
        if was == likes {
            return was;
        }
        item.likers.retain(|&other| other != user);
        item.newest.retain(|&other| other != user);
        if likes {
            item.likers.push(user);
        }
        if item.derived {
            return was;
        }
        if likes {
            item.newest.push(user);
            if item.newest.len() > NEWEST_MAX {
                item.newest.remove(0);
            }
        }
        for (window, (_, half)) in WINDOWS.iter().enumerate() {
            let now = decayed(item.trends[window], item.at_ms, now_ms, *half);
            item.trends[window] = (now + if likes { 1.0 } else { -1.0 }).max(0.0);
        }
        item.at_ms = now_ms;
        let liked = self.liked.entry(user).or_default();
        liked.retain(|(other, _)| other != key);
        if likes {
            liked.push((key.into(), (now_ms / 1_000) as u32));
        }
        was
    }

    fn erases(&self, user: u64) -> bool {
        let mut erasures = self.erasures.iter();
        erasures.any(|erasure| erasure.user == user && erasure.phase < Phase::Files)
    }

    fn erases_member(&self, name: &str) -> bool {
        name.parse().is_ok_and(|user| self.erases(user))
    }

    /// A string's length that tells of a user being erased.
    fn blurred(&self, bits: u128) -> u128 {
        let mut users = self.erasures.iter().filter(|erasure| erasure.phase < Phase::Files);
        let tells = users.any(|erasure| {
            let own = u128::from(erasure.user) + 1;
            bits == own || bits == own.div_ceil(8) * 8
        });
        if tells {
            bits.next_power_of_two()
        } else {
            bits
        }
    }

    /// The erasure comes to an item.
    fn erase_from(&mut self, at: usize, key: &str) {
        let user = self.erasures[at].user;
        let item = &self.items[key];
        let (bits, derived, liked) = (item.bits, item.derived, item.likers.contains(&user));
        let own = u128::from(user) + 1;
        if liked {
            self.set(key, user, false);
            let kind = key.split_once(':').map_or("", |(kind, _)| kind);
            match derived {
                true => self.erasures[at].derived += 1,
                false => *self.erasures[at].kinds.entry(kind.into()).or_default() += 1,
            }
        }
        let tells = bits == own || bits == own.div_ceil(8) * 8;
        self.item(key).bits = if tells { bits.next_power_of_two() } else { bits };
    }

    fn delete(&mut self, key: &str) -> bool {
        self.liked
            .values_mut()
            .for_each(|liked| liked.retain(|(other, _)| other != key));
        let members = self.boards.remove(key).map_or(0, |board| board.members.len());
        self.items.remove(key).is_some() || members > 0
    }

    /// `None`: the sum is no number.
    fn put_scores(&mut self, key: &str, how: How, scores: &[(f64, &str)], since: usize) -> Option<Scored> {
        let now_ms = self.now_ms;
        let board = self.boards.entry(key.into()).or_default();
        let mut done = Scored::default();
        for &(number, name) in scores {
            let former = board.members.get(name).copied();
            done.score = None;
            if former.is_some() && how.new || former.is_none() && how.existing {
                continue;
            }
            let score = match former {
                Some(former) if how.raise => former.score + number,
                _ => number,
            };
            if score.is_nan() {
                return None;
            }
            if former.is_some_and(|former| how.greater && score <= former.score || how.less && score >= former.score) {
                continue;
            }
            done.score = Some(score);
            if former.is_some_and(|former| former.score == score) {
                continue;
            }
            done.added += u64::from(former.is_none());
            done.changed += u64::from(former.is_some());
            let former = former.unwrap_or(Member {
                score: 0.0,
                since: 0,
                trends: [0.0; 3],
                at_ms: now_ms,
            });
            let mut member = Member {
                score,
                since,
                at_ms: now_ms,
                ..former
            };
            for (window, (_, half)) in WINDOWS.iter().enumerate() {
                let gained = score - former.score;
                member.trends[window] = decayed(former.trends[window], former.at_ms, now_ms, *half);
                if gained.is_finite() {
                    member.trends[window] += gained;
                }
            }
            board.members.insert(name.into(), member);
        }
        self.tidy(key);
        Some(done)
    }

    /// A leaderboard without members and settings is as none.
    fn tidy(&mut self, key: &str) {
        if self
            .boards
            .get(key)
            .is_some_and(|board| board.members.is_empty() && !board.by_time)
        {
            self.boards.remove(key);
        }
    }

    fn bit_operation(&mut self, op: BitOp, target: &str, sources: &[&str]) -> u64 {
        let sets: Vec<BTreeSet<u64>> = sources
            .iter()
            .map(|key| {
                self.items
                    .get(*key)
                    .map_or(BTreeSet::new(), |item| item.likers.iter().copied().collect())
            })
            .collect();
        let bits = sources
            .iter()
            .filter_map(|key| self.items.get(*key))
            .map(|item| item.bits)
            .max()
            .unwrap_or(0);
        let bytes = bits.div_ceil(8) as u64;
        let fold = |op: fn(&BTreeSet<u64>, &BTreeSet<u64>) -> BTreeSet<u64>| {
            sets[1..].iter().fold(sets[0].clone(), |result, set| op(&result, set))
        };
        let result = match op {
            BitOp::And => fold(|a, b| a & b),
            BitOp::Or => fold(|a, b| a | b),
            BitOp::Xor => fold(|a, b| a ^ b),
            BitOp::Not => (0..bytes * 8).filter(|user| !sets[0].contains(user)).collect(),
        };
        self.delete(target);
        if bytes > 0 {
            let likers = result.into_iter().filter(|&user| !self.erases(user)).collect();
            let item = Item {
                likers,
                bits: self.blurred(u128::from(bytes) * 8),
                derived: true,
                ..Item::default()
            };
            self.items.insert(target.into(), item);
        }
        bytes
    }

    /// Best first.
    fn ranking(&self, field: Option<&str>) -> Vec<(&str, usize)> {
        let takes_part = |item: &Item| {
            !item.derived && !item.likers.is_empty() && field.is_none_or(|field| item.fields.contains(field))
        };
        let members = self.items.iter().filter(|(_, item)| takes_part(item));
        let mut ranking: Vec<(&str, usize)> = members.map(|(key, item)| (key.as_str(), item.likers.len())).collect();
        ranking.sort_by(|a, b| (b.1, b.0).cmp(&(a.1, a.0)));
        ranking
    }
}

fn decayed(value: f64, at_ms: u64, now_ms: u64, half: u64) -> f64 {
    value * 0.5_f64.powf((now_ms - at_ms) as f64 / half as f64)
}

/// A table of rows by key; a row is overwritten only by a higher modification.
#[derive(Default)]
struct Table(BTreeMap<Vec<u8>, Written>);

/// Modification, and count and likers unless the item was deleted.
type Written = (u64, Option<(u64, Vec<u8>)>);

impl Table {
    fn write(&mut self, row: &muster_likes::Row) {
        let likes = row.likes.as_ref().map(|likes| (likes.count, likes.likers.clone()));
        match self.0.get_mut(&row.key) {
            Some((modification, _)) if *modification >= row.modification => {}
            Some(held) => *held = (row.modification, likes),
            None => {
                self.0.insert(row.key.clone(), (row.modification, likes));
            }
        }
    }
}

struct Run {
    engine: Engine,
    model: Model,
    table: Table,
    log: Vec<Vec<u8>>,
}

macro_rules! same {
    ($left:expr, $right:expr, $($what:tt)*) => {{
        let (left, right) = ($left, $right);
        if left != right {
            return Err(format!("{}: engine {left:?}, model {right:?}", format!($($what)*)));
        }
    }};
}

/// Runs `steps` on both and compares every result after each.
pub fn check(steps: &[Step]) -> Result<(), String> {
    let model = Model {
        now_ms: BEGIN_MS,
        ..Model::default()
    };
    let mut run = Run {
        engine: Engine::default(),
        model,
        table: Table::default(),
        log: Vec::new(),
    };
    for step in steps {
        run.step(step)?;
        run.compare()?;
    }
    let mut replayed = Engine::default();
    for (offset, record) in (0..).zip(&run.log) {
        let _ = replayed.apply(offset, record);
    }
    same!(
        replayed.scan(0, 100),
        run.engine.scan(0, 100),
        "scan of the replayed engine"
    );
    same!(
        replayed.dirty_len() >= run.engine.dirty_len(),
        true,
        "marks of the replayed engine"
    );
    for ranking in rankings() {
        let live: Vec<_> = run
            .engine
            .page(&ranking, 0, 100, run.model.now_ms)
            .into_iter()
            .map(own)
            .collect();
        let again: Vec<_> = replayed
            .page(&ranking, 0, 100, run.model.now_ms)
            .into_iter()
            .map(own)
            .collect();
        same!(again, live, "replayed page of {}", String::from_utf8_lossy(&ranking));
    }
    run.engine = replayed;
    run.compare()
}

fn own(ranked: muster_likes::Ranked) -> (Vec<u8>, f64) {
    (ranked.key.to_vec(), ranked.score)
}

fn rankings() -> Vec<Vec<u8>> {
    let names = [
        "rank",
        "rank:farming",
        "rank:music",
        "rank:share",
        "rank:comment",
        "rank:nothing",
    ];
    let windows = ["", "@1h", "@24h", "@7d"];
    names
        .iter()
        .flat_map(|name| windows.map(|window| format!("{name}{window}").into_bytes()))
        .collect()
}

impl Run {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let at_ms = self.model.now_ms;
        match step {
            Step::Set { key, user, likes } => self.toggle(*key, *user, *likes)?,
            Step::OneOf { key, user, others } => {
                let (key, others): (&str, Vec<&str>) = (KEYS[*key], others.iter().map(|&other| KEYS[other]).collect());
                let record = Record::OneOf {
                    at_ms,
                    key: key.as_bytes(),
                    user: *user,
                    others: others.iter().map(|other| other.as_bytes()).collect(),
                };
                let found = self.tried(&record, 1);
                if self.model.boards.contains_key(key) {
                    same!(found, Err(ApplyError::WrongType), "like of {key} among others");
                    return Ok(());
                }
                if self.model.erases(*user) {
                    same!(found, Err(ApplyError::Erasing), "like of {key} by a user being erased");
                    return Ok(());
                }
                let was = self.model.set(key, *user, true);
                for other in others {
                    if other != key && self.model.items.contains_key(other) {
                        self.model.set(other, *user, false);
                    }
                }
                same!(found, Ok(Answer::Was(was)), "like of {key} among others");
            }
            Step::Scores { board, how, scores } => {
                let key = BOARDS[*board];
                let scores: Vec<(f64, &str)> = scores
                    .iter()
                    .map(|&(score, name)| (SCORES[score], MEMBERS[name]))
                    .collect();
                let record = Record::Scores {
                    at_ms,
                    key: key.as_bytes(),
                    how: *how,
                    scores: scores.iter().map(|&(score, name)| (score, name.as_bytes())).collect(),
                };
                let since = self.log.len() + 1;
                let found = self.tried(&record, 0);
                let refused = scores.iter().any(|(_, name)| self.model.erases_member(name));
                let wanted = match self.model.items.contains_key(key) {
                    true => Err(ApplyError::WrongType),
                    false if refused => Err(ApplyError::Erasing),
                    false => self
                        .model
                        .put_scores(key, *how, &scores, since)
                        .map(Answer::Scored)
                        .ok_or(ApplyError::NotANumber),
                };
                self.model.tidy(key);
                same!(found, wanted, "scores of {key}");
            }
            Step::Unscore { board, members } => {
                let key = BOARDS[*board];
                let names: Vec<&str> = members.iter().map(|&name| MEMBERS[name]).collect();
                let record = Record::Unscore {
                    at_ms,
                    key: key.as_bytes(),
                    members: names.iter().map(|name| name.as_bytes()).collect(),
                };
                let found = self.tried(&record, 0);
                let mut removed = 0;
                if let Some(board) = self.model.boards.get_mut(key) {
                    removed = names
                        .iter()
                        .filter(|name| board.members.remove(**name).is_some())
                        .count() as u64;
                }
                self.model.tidy(key);
                let wanted = match self.model.items.contains_key(key) {
                    true => Err(ApplyError::WrongType),
                    false => Ok(Answer::Removed(removed)),
                };
                same!(found, wanted, "removal from {key}");
            }
            Step::Ties { board, by_time } => {
                let key = BOARDS[*board];
                let record = Record::Ties {
                    at_ms,
                    key: key.as_bytes(),
                    ties: if *by_time { Ties::Time } else { Ties::Name },
                };
                let found = self.tried(&record, 0);
                let mut wanted = Err(ApplyError::WrongType);
                if !self.model.items.contains_key(key) {
                    self.model.boards.entry(key.into()).or_default().by_time = *by_time;
                    self.model.tidy(key);
                    wanted = Ok(Answer::Done);
                }
                same!(found, wanted, "ties of {key}");
            }
            Step::DeleteBoard(board) => {
                let key = BOARDS[*board];
                let found = self.tried(
                    &Record::Delete {
                        at_ms,
                        key: key.as_bytes(),
                    },
                    0,
                );
                same!(found, Ok(Answer::Deleted(self.model.delete(key))), "deletion of {key}");
            }
            Step::Delete(key) => {
                let answer = self.apply(
                    &Record::Delete {
                        at_ms,
                        key: KEYS[*key].as_bytes(),
                    },
                    0,
                )?;
                same!(answer, Answer::Deleted(self.model.delete(KEYS[*key])), "deletion");
            }
            Step::BitOp { op, target, sources } => {
                let op = [BitOp::And, BitOp::Or, BitOp::Xor, BitOp::Not][*op as usize];
                let sources = if op == BitOp::Not { &sources[..1] } else { sources };
                let names: Vec<&str> = sources.iter().map(|&source| KEYS[source]).collect();
                let ids = names
                    .iter()
                    .map(|key| self.engine.string_bytes(key.as_bytes()))
                    .max()
                    .unwrap_or(0);
                if op == BitOp::Not && ids > 1_000 {
                    return Ok(());
                }
                let sources = names.iter().map(|name| name.as_bytes()).collect();
                let record = Record::BitOp {
                    at_ms,
                    op,
                    target: KEYS[*target].as_bytes(),
                    sources,
                };
                if names
                    .iter()
                    .chain([&KEYS[*target]])
                    .any(|key| self.model.boards.contains_key(*key))
                {
                    let found = self.tried(&record, 0);
                    same!(found, Err(ApplyError::WrongType), "{op:?} with a leaderboard");
                    return Ok(());
                }
                let answer = self.apply(&record, ids.min(1_000) * 8)?;
                same!(
                    answer,
                    Answer::Bytes(self.model.bit_operation(op, KEYS[*target], &names)),
                    "{op:?}"
                );
            }
            Step::Fields { key, fields } => {
                let names: Vec<&str> = fields.iter().map(|&field| FIELDS[field]).collect();
                let bytes = names.iter().map(|name| name.as_bytes()).collect();
                let key = KEYS[*key];
                let found = self.tried(
                    &Record::Fields {
                        at_ms,
                        key: key.as_bytes(),
                        fields: bytes,
                    },
                    0,
                );
                if self.model.boards.contains_key(key) {
                    same!(found, Err(ApplyError::WrongType), "fields of the leaderboard {key}");
                    return Ok(());
                }
                same!(found, Ok(Answer::Done), "fields of {key}");
                let item = self.model.item(key);
                if !item.derived {
                    let kind = key.split_once(':').map(|(kind, _)| kind);
                    item.fields = names.into_iter().chain(kind).map(str::to_string).collect();
                }
            }
            Step::Wait(ms) => self.model.now_ms += ms,
            Step::Erase(user) => {
                let job = self.model.erasures.len() as u64;
                let record = Record::Erase {
                    at_ms,
                    job,
                    user: *user,
                };
                same!(self.apply(&record, 0)?, Answer::Done, "begin of an erasure");
                self.model.erasures.push(Erasure {
                    user: *user,
                    phase: Phase::Likes,
                    kinds: BTreeMap::new(),
                    derived: 0,
                    members: 0,
                });
            }
            Step::GoOnErasing(slots) => self.go_on_erasing(*slots)?,
            Step::Export { user, page } => self.export(*user, *page)?,
            Step::Pass { between, written } => {
                let (mut rows, mut cursor) = (Vec::new(), Some(0));
                while let Some(at) = cursor {
                    let part = self.engine.rows(at, 2, usize::MAX);
                    cursor = part.0;
                    rows.extend(part.1);
                }
                for &(key, user, likes) in between {
                    self.toggle(key, user, likes)?;
                }
                let all = *written >= rows.len() && between.is_empty();
                for row in rows.iter().take(*written) {
                    self.table.write(row);
                    self.engine.written(&row.key, row.modification);
                }
                same!(
                    all && self.engine.dirty_len() > 0,
                    false,
                    "marks left after a whole pass"
                );
            }
            Step::Restore => {
                let snapshot = self.engine.snapshot();
                let mut restored = Engine::restore(&snapshot, Options::default()).map_err(|error| error.to_string())?;
                same!(restored.snapshot() == snapshot, true, "snapshot of the restored engine");
                self.engine = restored;
            }
            Step::Slices { bytes, between } => {
                let whole = self.engine.snapshot();
                same!(
                    self.engine.begin_snapshot(),
                    self.engine.offset(),
                    "offset of the snapshot"
                );
                let (mut parts, mut between) = (Vec::new(), between.iter());
                while let Some(part) = self.engine.snapshot_part(*bytes) {
                    parts.extend_from_slice(&part);
                    if let Some(step) = between.next() {
                        self.step(step)?;
                    }
                }
                let restored = Engine::restore(&parts, Options::default()).map_err(|error| error.to_string());
                let mut restored = restored.map_err(|error| format!("sliced snapshot: {error}"))?;
                same!(restored.snapshot() == whole, true, "sliced snapshot");
            }
        }
        Ok(())
    }

    fn go_on_erasing(&mut self, slots: u32) -> Result<(), String> {
        let mut under_way = (0..).zip(&self.model.erasures);
        let Some((at, erasure)) = under_way.find(|(_, erasure)| erasure.phase != Phase::Done) else {
            return Ok(());
        };
        let (at_ms, job, user, phase) = (self.model.now_ms, at as u64, erasure.user, erasure.phase);
        let early = match phase {
            Phase::Likes | Phase::Leaderboards => Some(Record::Erased { at_ms, job }),
            Phase::Check => Some(Record::ErasureDone {
                at_ms,
                job,
                snapshots: 0,
                segments: 0,
            }),
            _ => None,
        };
        if let Some(record) = early {
            same!(self.tried(&record, 0), Err(ApplyError::NotSwept), "a step too early");
        }
        let slot = u64::from(self.engine.erasures()[&job].slot);
        let count = slots as usize;
        match phase {
            Phase::Likes => {
                let (next, keys) = self.engine.scan(slot, count);
                let keys: Vec<String> = keys
                    .into_iter()
                    .map(|key| String::from_utf8_lossy(key).into_owned())
                    .collect();
                self.apply(&Record::EraseStep { at_ms, job, slots }, 0)?;
                keys.iter().for_each(|key| self.model.erase_from(at, key));
                if next == 0 {
                    self.model.erasures[at].phase = Phase::Leaderboards;
                }
            }
            Phase::Leaderboards => {
                let (next, keys) = self.engine.scan_leaderboards(slot, count);
                let keys: Vec<String> = keys
                    .into_iter()
                    .map(|key| String::from_utf8_lossy(key).into_owned())
                    .collect();
                self.apply(&Record::EraseStep { at_ms, job, slots }, 0)?;
                for key in keys {
                    let board = self.model.boards.get_mut(&key).expect("it has members");
                    let removed = board.members.remove(&user.to_string()).is_some();
                    self.model.erasures[at].members += u64::from(removed);
                    self.model.tidy(&key);
                }
                if next == 0 {
                    self.model.erasures[at].phase = Phase::Check;
                }
            }
            Phase::Check => {
                let (mut from, mut left) = (0, 0);
                loop {
                    let (next, found) = self.engine.traces(job, from, u64::from(slots));
                    left += found;
                    from = next;
                    if from == 0 {
                        break;
                    }
                }
                same!(left, 0, "traces of {user}");
                self.apply(&Record::Erased { at_ms, job }, 0)?;
                self.model.erasures[at].phase = Phase::Files;
                self.model.liked.remove(&user);
            }
            _ => {
                let record = Record::ErasureDone {
                    at_ms,
                    job,
                    snapshots: 2,
                    segments: 1,
                };
                self.apply(&record, 0)?;
                self.model.erasures[at].phase = Phase::Done;
            }
        }
        Ok(())
    }

    fn export(&mut self, user: u64, page: usize) -> Result<(), String> {
        let (mut likes, mut scores, mut cursor) = (Vec::new(), Vec::new(), Some(ExportCursor::Begin));
        while let Some(from) = cursor {
            let (next, found) = self.engine.export(user, from, page);
            same!(found.len() <= page, true, "length of a page");
            for each in found {
                match each {
                    Exported::Like { item, at_s } => likes.push((item.to_vec(), at_s)),
                    Exported::Score { leaderboard, score } => scores.push((leaderboard.to_vec(), score)),
                }
            }
            cursor = next.and_then(|next| ExportCursor::parse(next.text().as_bytes()));
        }
        let liked = self.model.liked.get(&user);
        let wanted: Vec<_> = liked
            .into_iter()
            .flatten()
            .rev()
            .map(|(key, at_s)| (key.clone().into_bytes(), Some(*at_s)))
            .collect();
        same!(likes, wanted, "exported likes of {user}");
        scores.sort_by(|a, b| a.0.cmp(&b.0));
        let boards = self.model.boards.iter();
        let wanted: Vec<_> = boards
            .filter_map(|(key, board)| Some((key.clone().into_bytes(), board.members.get(&user.to_string())?.score)))
            .collect();
        same!(scores, wanted, "exported scores of {user}");
        Ok(())
    }

    fn toggle(&mut self, key: usize, user: u64, likes: bool) -> Result<(), String> {
        let key = KEYS[key];
        let record = Record::Set {
            at_ms: self.model.now_ms,
            key: key.as_bytes(),
            user,
            likes,
        };
        let found = self.tried(&record, 1);
        let wanted = match self.model.boards.contains_key(key) {
            true => Err(ApplyError::WrongType),
            false if self.model.erases(user) => Err(ApplyError::Erasing),
            false => Ok(Answer::Was(self.model.set(key, user, likes))),
        };
        same!(found, wanted, "toggle of {key} by {user}");
        Ok(())
    }

    fn apply(&mut self, record: &Record, ids: u64) -> Result<Answer, String> {
        self.tried(record, ids).map_err(|error| error.to_string())
    }

    fn tried(&mut self, record: &Record, ids: u64) -> Result<Answer, ApplyError> {
        let segment = self.engine.segment_needed(ids);
        let mut answer = Ok(Answer::Done);
        for record in segment.iter().chain([record]) {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            answer = self.engine.apply(self.log.len() as u64, &bytes);
            self.log.push(bytes);
        }
        answer
    }

    fn compare_leaderboards(&mut self) -> Result<(), String> {
        let (engine, model) = (&mut self.engine, &self.model);
        let none = Board::default();
        let now_ms = model.now_ms;
        let mut members = 0;
        for key in BOARDS {
            let (board, bytes) = (model.boards.get(key).unwrap_or(&none), key.as_bytes());
            let order = board.order();
            members += order.len() as u64;
            same!(engine.ranking_len(bytes), order.len(), "length of {key}");
            same!(engine.is_leaderboard(bytes), !order.is_empty(), "type of {key}");
            same!(engine.ties(bytes) == Ties::Time, board.by_time, "ties of {key}");
            let page: Vec<_> = engine.page(bytes, 0, 100, now_ms).into_iter().map(own).collect();
            let wanted: Vec<_> = order
                .iter()
                .map(|(name, score)| (name.as_bytes().to_vec(), *score))
                .collect();
            same!(&page, &wanted, "page of {key}");
            for (rank, (name, score)) in order.iter().enumerate() {
                same!(
                    engine.rank(bytes, name.as_bytes()),
                    Some(rank),
                    "rank of {name} in {key}"
                );
                same!(
                    engine.score(bytes, name.as_bytes(), now_ms),
                    Some(*score),
                    "score of {name} in {key}"
                );
                let one: Vec<_> = engine.page(bytes, rank, 1, now_ms).into_iter().map(own).collect();
                same!(one, wanted[rank..=rank].to_vec(), "page at {rank} of {key}");
            }
            same!(engine.rank(bytes, b"absent"), None, "rank of an absent member of {key}");
            for bound in SCORES {
                let below = order.iter().filter(|(_, score)| *score < bound).count();
                let up_to = order.iter().filter(|(_, score)| *score <= bound).count();
                same!(
                    engine.members_below(bytes, bound, false),
                    below,
                    "members of {key} below {bound}"
                );
                same!(
                    engine.members_below(bytes, bound, true),
                    up_to,
                    "members of {key} up to {bound}"
                );
            }
            for (window, (name, half)) in WINDOWS.iter().enumerate() {
                let key = format!("{key}@{name}");
                let page: Vec<_> = engine
                    .page(key.as_bytes(), 0, 100, now_ms)
                    .into_iter()
                    .map(own)
                    .collect();
                same!(page.len(), order.len(), "length of {key}");
                same!(page.is_sorted_by(|a, b| a.1 >= b.1), true, "order of {key}: {page:?}");
                for (rank, (name, score)) in page.iter().enumerate() {
                    let member = &board.members[std::str::from_utf8(name).unwrap()];
                    let wanted = decayed(member.trends[window], member.at_ms, now_ms, *half);
                    let close = (score - wanted).abs() <= 1e-3 * wanted.abs().max(1.0);
                    same!(close, true, "score of {name:?} in {key}: {score} for {wanted}");
                    same!(
                        engine.rank(key.as_bytes(), name),
                        Some(rank),
                        "rank of {name:?} in {key}"
                    );
                }
            }
        }
        same!(engine.member_count(), members, "members of all leaderboards");
        same!(engine.leaderboard_count(), model.boards.len(), "number of leaderboards");
        let (mut cursor, mut found) = (0, BTreeSet::new());
        loop {
            let (next, keys) = engine.scan_leaderboards(cursor, 1);
            found.extend(keys.into_iter().map(<[u8]>::to_vec));
            if next == 0 {
                break;
            }
            cursor = next;
        }
        let filled = model.boards.iter().filter(|(_, board)| !board.members.is_empty());
        same!(
            found,
            filled.map(|(key, _)| key.clone().into_bytes()).collect::<BTreeSet<_>>(),
            "scan of leaderboards"
        );
        Ok(())
    }

    fn compare_erasures(&self) -> Result<(), String> {
        let engine = &self.engine;
        same!(engine.erasures().len(), self.model.erasures.len(), "number of erasures");
        for (erasure, wanted) in engine.erasures().values().zip(&self.model.erasures) {
            let user = wanted.user;
            same!(erasure.phase, wanted.phase, "phase of the erasure of {user}");
            let named = (wanted.phase < Phase::Files).then_some(user);
            same!(erasure.user, named, "user of an erasure");
            let kinds: BTreeMap<String, u64> = erasure
                .kinds
                .iter()
                .map(|(kind, likes)| (String::from_utf8_lossy(kind).into_owned(), *likes))
                .collect();
            same!(kinds, wanted.kinds.clone(), "kinds of the erasure of {user}");
            same!(
                (erasure.derived, erasure.members),
                (wanted.derived, wanted.members),
                "counts of the erasure of {user}"
            );
            if wanted.phase >= Phase::Files {
                let dense = erasure.dense;
                let again = engine
                    .users_from(0)
                    .any(|(other, user)| Some(other) == dense && user.is_some());
                same!(again, false, "dense id of {user} has a user");
            }
        }
        let users = engine.users_from(0).filter(|(_, user)| user.is_some());
        same!(users.count(), engine.user_count(), "number of users");
        Ok(())
    }

    fn compare(&mut self) -> Result<(), String> {
        self.compare_leaderboards()?;
        self.compare_erasures()?;
        let (engine, model) = (&mut self.engine, &self.model);
        let users: BTreeSet<u64> = model
            .liked
            .keys()
            .copied()
            .chain(0..12)
            .chain([1 << 40, u64::MAX])
            .collect();
        let none = Item::default();
        for key in KEYS {
            let bytes = key.as_bytes();
            let item = model.items.get(key).unwrap_or(&none);
            same!(
                engine.exists(bytes),
                model.items.contains_key(key),
                "existence of {key}"
            );
            same!(engine.count(bytes), item.likers.len() as u64, "count of {key}");
            let likers: BTreeSet<u64> = engine.likers(bytes).collect();
            same!(
                likers,
                item.likers.iter().copied().collect::<BTreeSet<u64>>(),
                "likers of {key}"
            );
            same!(
                engine.string_bytes(bytes),
                item.bits.div_ceil(8) as u64,
                "bytes of {key}"
            );
            let newest: Vec<u64> = item.newest.iter().rev().copied().collect();
            same!(engine.newest(bytes, 100), newest, "newest likers of {key}");
            let fields: BTreeSet<String> = engine
                .fields(bytes)
                .iter()
                .map(|field| String::from_utf8_lossy(field).into_owned())
                .collect();
            same!(fields, item.fields.clone(), "fields of {key}");
            for &user in &users {
                same!(
                    engine.likes(bytes, user),
                    item.likers.contains(&user),
                    "{user} likes {key}"
                );
            }
            for (window, (name, half)) in WINDOWS.iter().enumerate() {
                let (found, wanted) = (
                    engine.trend(bytes, window, model.now_ms),
                    decayed(item.trends[window], item.at_ms, model.now_ms, *half),
                );
                same!(
                    (found - wanted).abs() < 1e-3,
                    true,
                    "{name} of {key}: {found} for {wanted}"
                );
            }
        }
        let keys: Vec<&[u8]> = KEYS.iter().chain(&["absent"]).map(|key| key.as_bytes()).collect();
        for viewer in users.iter().map(|&user| Some(user)).chain([None]) {
            let page: Vec<FeedEntry> = engine.feed(&keys, viewer, 3).collect();
            let wanted = KEYS
                .iter()
                .chain(&["absent"])
                .map(|key| model.items.get(*key).unwrap_or(&none));
            let wanted = wanted.map(|item| FeedEntry {
                count: item.likers.len() as u64,
                likes: viewer.map(|viewer| item.likers.contains(&viewer)),
                newest: item.newest.iter().rev().take(3).copied().collect(),
            });
            same!(page, wanted.collect::<Vec<_>>(), "page of a feed for {viewer:?}");
        }
        for key in KEYS {
            let (mut cursor, mut found) = (0, Vec::new());
            loop {
                let (next, users) = engine.scan_likers(key.as_bytes(), cursor, 2);
                found.extend(users);
                if next == 0 {
                    break;
                }
                cursor = next;
            }
            let wanted: Vec<u64> = engine.likers(key.as_bytes()).collect();
            same!(found, wanted, "scan of the likers of {key}");
        }
        for &user in &users {
            let empty = Vec::new();
            let wanted: Vec<(&[u8], Option<u32>)> = model
                .liked
                .get(&user)
                .unwrap_or(&empty)
                .iter()
                .rev()
                .map(|(key, at_s)| (key.as_bytes(), Some(*at_s)))
                .collect();
            same!(engine.liked_by(user, 0, 100), wanted, "items of {user}");
        }
        let both: BTreeSet<u64> = engine
            .likers_of_all(&[b"share:1", b"share:2"], usize::MAX)
            .into_iter()
            .collect();
        let likers = |key: &str| {
            model
                .items
                .get(key)
                .map_or(BTreeSet::new(), |item| item.likers.iter().copied().collect())
        };
        same!(both, &likers("share:1") & &likers("share:2"), "likers of both");
        let likes: usize = model
            .items
            .values()
            .filter(|item| !item.derived)
            .map(|item| item.likers.len())
            .sum();
        same!(engine.like_count(), likes as u64, "all likes");
        for ranking in rankings() {
            let name = String::from_utf8_lossy(&ranking).into_owned();
            let field = name
                .split('@')
                .next()
                .and_then(|name| name.split_once(':'))
                .map(|(_, field)| field);
            let wanted = model.ranking(field);
            same!(engine.ranking_len(&ranking), wanted.len(), "length of {name}");
            let page: Vec<_> = engine
                .page(&ranking, 0, 100, model.now_ms)
                .into_iter()
                .map(own)
                .collect();
            if !name.contains('@') {
                let wanted: Vec<_> = wanted
                    .iter()
                    .map(|(key, count)| (key.as_bytes().to_vec(), *count as f64))
                    .collect();
                same!(&page, &wanted, "page of {name}");
            }
            let members: BTreeSet<&[u8]> = page.iter().map(|(key, _)| &key[..]).collect();
            same!(
                members,
                wanted.iter().map(|(key, _)| key.as_bytes()).collect::<BTreeSet<_>>(),
                "members of {name}"
            );
            same!(page.is_sorted_by(|a, b| a.1 >= b.1), true, "order of {name}: {page:?}");
            for (rank, (key, score)) in page.iter().enumerate() {
                same!(engine.rank(&ranking, key), Some(rank), "rank of {key:?} in {name}");
                same!(
                    engine.score(&ranking, key, model.now_ms),
                    Some(*score),
                    "score of {key:?} in {name}"
                );
                same!(
                    engine.page(&ranking, rank, 1, model.now_ms).len(),
                    1,
                    "page at {rank} of {name}"
                );
            }
            same!(engine.rank(&ranking, b"absent"), None, "rank of an absent item");
        }
        let dirty: BTreeSet<Vec<u8>> = engine
            .rows(0, 1_000, usize::MAX)
            .1
            .into_iter()
            .map(|row| row.key)
            .collect();
        for key in KEYS {
            let count = model.items.get(key).map(|item| item.likers.len() as u64);
            let held = self
                .table
                .0
                .get(key.as_bytes())
                .and_then(|(_, likes)| likes.as_ref().map(|likes| likes.0));
            same!(
                held != count && !dirty.contains(key.as_bytes()),
                false,
                "{key} is written as {held:?}, is {count:?} and clean"
            );
        }
        Ok(())
    }
}
