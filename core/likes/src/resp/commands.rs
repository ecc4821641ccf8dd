//! The commands: their names, arity and keys; and the records of commands that change something.
//!
//! Owns the table that `COMMAND` shows to clients. Knows neither connections nor the engine's state: whether a change
//! is well-formed shows in its arguments.

use crate::engine::Engine;
use crate::leaderboards::{window, How, Ties};
use crate::limits::{FIELD_BYTES_MAX, ITEM_FIELDS_MAX, KEYS_MAX, KEY_BYTES_MAX, MEMBER_BYTES_MAX};
use crate::record::{BitOp, Record};

pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_A_FLOAT: &str = "ERR value is not a valid float";
pub(crate) const ERASING: &str =
    "ERASING the likes and scores of this user are being erased; try again when that has ended";
const BIT_OFFSET: &str = "ERR bit offset is not an integer or out of range";
const BIT_VALUE: &str = "ERR bit is not an integer or out of range";

/// What a command acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Changes state by records.
    Change,
    /// Queries the engine.
    Question,
    /// Concerns the connection or the node.
    Session,
}

/// A command and the positions of its keys: the first and the last argument, negative from the end; 0 for none.
pub(crate) struct Command {
    pub name: &'static str,
    /// Number of arguments including the name; negative: at least that many.
    pub arity: i32,
    pub kind: Kind,
    pub first_key: i32,
    pub last_key: i32,
}

const fn command(name: &'static str, arity: i32, kind: Kind, first_key: i32, last_key: i32) -> Command {
    Command {
        name,
        arity,
        kind,
        first_key,
        last_key,
    }
}

/// Most frequent first.
pub(crate) const COMMANDS: &[Command] = &[
    command("SETBIT", 4, Kind::Change, 1, 1),
    command("GETBIT", 3, Kind::Question, 1, 1),
    command("BITCOUNT", -2, Kind::Question, 1, 1),
    command("ZREVRANGE", -4, Kind::Question, 1, 1),
    command("ZADD", -4, Kind::Change, 1, 1),
    command("ZINCRBY", 4, Kind::Change, 1, 1),
    command("ZREVRANK", -3, Kind::Question, 1, 1),
    command("ZSCORE", 3, Kind::Question, 1, 1),
    command("ZRANGE", -4, Kind::Question, 1, 1),
    command("ZRANK", -3, Kind::Question, 1, 1),
    command("ZCARD", 2, Kind::Question, 1, 1),
    command("ZMSCORE", -3, Kind::Question, 1, 1),
    command("ZCOUNT", 4, Kind::Question, 1, 1),
    command("ZRANGEBYSCORE", -4, Kind::Question, 1, 1),
    command("ZREVRANGEBYSCORE", -4, Kind::Question, 1, 1),
    command("ZREM", -3, Kind::Change, 1, 1),
    command("BITPOS", -3, Kind::Question, 1, 1),
    command("BITOP", -4, Kind::Change, 2, -1),
    command("DEL", -2, Kind::Change, 1, -1),
    command("EXISTS", -2, Kind::Question, 1, -1),
    command("TYPE", 2, Kind::Question, 1, 1),
    command("STRLEN", 2, Kind::Question, 1, 1),
    command("SISMEMBER", 3, Kind::Question, 1, 1),
    command("SMISMEMBER", -3, Kind::Question, 1, 1),
    command("SCARD", 2, Kind::Question, 1, 1),
    command("SSCAN", -3, Kind::Question, 1, 1),
    command("SCAN", -2, Kind::Question, 0, 0),
    command("DBSIZE", 1, Kind::Question, 0, 0),
    command("LIKE.FEED", -4, Kind::Question, 3, -1),
    command("LIKE.FIELDS", -2, Kind::Change, 1, 1),
    command("LIKE.FIELDSOF", 2, Kind::Question, 1, 1),
    command("LIKE.NEWEST", -2, Kind::Question, 1, 1),
    command("LIKE.LIKERS", -2, Kind::Question, 1, 1),
    command("LIKE.BOTH", -2, Kind::Question, 1, -1),
    command("LIKE.ITEMS", -2, Kind::Question, 0, 0),
    command("LIKE.TOP", 4, Kind::Question, 0, 0),
    command("LIKE.ABOVE", 4, Kind::Question, 0, 0),
    command("LIKE.ERASE", 3, Kind::Change, 0, 0),
    command("LIKE.ERASURES", -1, Kind::Question, 0, 0),
    command("LIKE.EXPORT", -3, Kind::Question, 0, 0),
    command("LIKE.TIES", 3, Kind::Change, 1, 1),
    command("LIKE.TIESOF", 2, Kind::Question, 1, 1),
    command("LIKE.TREND", 2, Kind::Question, 1, 1),
    command("LIKE.MODIFICATION", 2, Kind::Question, 1, 1),
    command("PING", -1, Kind::Session, 0, 0),
    command("ECHO", 2, Kind::Session, 0, 0),
    command("HELLO", -1, Kind::Session, 0, 0),
    command("AUTH", -2, Kind::Session, 0, 0),
    command("CLIENT", -2, Kind::Session, 0, 0),
    command("COMMAND", -1, Kind::Session, 0, 0),
    command("CLUSTER", -2, Kind::Session, 0, 0),
    command("INFO", -1, Kind::Session, 0, 0),
    command("SELECT", 2, Kind::Session, 0, 0),
    command("ASKING", 1, Kind::Session, 0, 0),
    command("READONLY", 1, Kind::Session, 0, 0),
    command("READWRITE", 1, Kind::Session, 0, 0),
    command("QUIT", -1, Kind::Session, 0, 0),
    command("MULTI", 1, Kind::Session, 0, 0),
    command("EXEC", 1, Kind::Session, 0, 0),
    command("DISCARD", 1, Kind::Session, 0, 0),
];

/// Commands of Redis that are not supported, and what to use instead.
const INSTEAD: &[(&[&str], &str)] = &[
    (
        &[
            "ZREMRANGEBYRANK",
            "ZREMRANGEBYSCORE",
            "ZREMRANGEBYLEX",
            "ZPOPMAX",
            "ZPOPMIN",
            "ZUNIONSTORE",
            "ZINTERSTORE",
            "ZRANGESTORE",
        ],
        "members of a leaderboard come and go by ZADD and ZREM, all of them by DEL",
    ),
    (
        &[
            "ZRANGEBYLEX",
            "ZREVRANGEBYLEX",
            "ZLEXCOUNT",
            "ZSCAN",
            "ZRANDMEMBER",
            "ZUNION",
            "ZINTER",
            "ZDIFF",
        ],
        "rankings and leaderboards are read by rank or score: ZRANGE, ZREVRANK, ZSCORE, ZCARD",
    ),
    (
        &["SADD", "SREM", "SPOP", "SMOVE"],
        "likes are set and taken back by SETBIT ITEM USER 1 and SETBIT ITEM USER 0",
    ),
    (
        &[
            "SMEMBERS",
            "SRANDMEMBER",
            "SINTER",
            "SINTERCARD",
            "SUNION",
            "SDIFF",
            "PFADD",
            "PFCOUNT",
        ],
        "an item's likers are read by SSCAN, SCARD, SMISMEMBER, LIKE.LIKERS, LIKE.BOTH",
    ),
    (
        &[
            "GET",
            "SET",
            "MGET",
            "MSET",
            "INCR",
            "INCRBY",
            "DECR",
            "GETRANGE",
            "SETRANGE",
            "APPEND",
            "BITFIELD",
            "BITFIELD_RO",
            "GETDEL",
            "SETEX",
            "SETNX",
        ],
        "an item's likers are a bitmap: SETBIT, GETBIT, BITCOUNT",
    ),
    (
        &["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "TTL", "PTTL", "PERSIST"],
        "likes do not expire: use DEL",
    ),
    (
        &["EVAL", "EVALSHA", "EVAL_RO", "FCALL", "SCRIPT", "FUNCTION"],
        "scripts are not supported: use MULTI and EXEC",
    ),
    (
        &["WATCH", "UNWATCH"],
        "SETBIT returns the old bit, and MULTI with EXEC is atomic",
    ),
    (
        &["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "PUBLISH", "SPUBLISH"],
        "counts are published to the room likes:ITEM",
    ),
    (&["KEYS"], "use SCAN"),
    (&["UNLINK", "FLUSHALL", "FLUSHDB"], "use DEL"),
];

/// What to use instead of a command of Redis that is not supported.
pub(crate) fn instead(name: &[u8]) -> Option<&'static str> {
    let named = |(names, _): &&(&[&str], &str)| names.iter().any(|other| other.as_bytes().eq_ignore_ascii_case(name));
    INSTEAD.iter().find(named).map(|(_, text)| *text)
}

impl Command {
    pub fn find(name: &[u8]) -> Option<&'static Command> {
        COMMANDS
            .iter()
            .find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether its keys may have different slots, as long as this port serves all of them.
    pub fn spans_slots(&self) -> bool {
        self.name == "LIKE.FEED"
    }

    pub fn takes(&self, arguments: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        if self.arity > 0 {
            arguments == arity
        } else {
            arguments >= arity
        }
    }

    pub fn keys<'b, 'a>(&self, arguments: &'b [&'a [u8]]) -> &'b [&'a [u8]] {
        if self.first_key == 0 {
            return &[];
        }
        let last = if self.last_key < 0 {
            arguments.len() as i32 + self.last_key
        } else {
            self.last_key
        };
        arguments.get(self.first_key as usize..=last as usize).unwrap_or(&[])
    }
}

/// How the result of a record becomes a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// The bit's old value.
    Bit,
    /// One of several deletions; the last one replies with their number.
    Deletion {
        last: bool,
    },
    /// The length of the result.
    Bytes,
    /// Members that are new; with `changed`, also those with another score.
    Scored {
        changed: bool,
    },
    /// The member's score.
    Score,
    /// Members that left.
    Removed,
    Ok,
}

/// The records of a change, each with the shape of its reply; or the error's text. `others`: the items that a like of
/// this one takes back.
pub(crate) fn records<'a>(
    command: &Command,
    arguments: &[&'a [u8]],
    others: &'a [Vec<u8>],
    at_ms: u64,
    mut push: impl FnMut(Record<'a>, Shape),
) -> Result<(), &'static str> {
    match command.name {
        "SETBIT" => {
            let key = item_key(arguments[1])?;
            let user = unsigned(arguments[2]).ok_or(BIT_OFFSET)?;
            let likes = match arguments[3] {
                b"0" => false,
                b"1" => true,
                _ => return Err(BIT_VALUE),
            };
            if likes && !others.is_empty() {
                let others = others.iter().map(|key| item_key(key)).collect::<Result<_, _>>()?;
                push(
                    Record::OneOf {
                        at_ms,
                        key,
                        user,
                        others,
                    },
                    Shape::Bit,
                );
                return Ok(());
            }
            push(
                Record::Set {
                    at_ms,
                    key,
                    user,
                    likes,
                },
                Shape::Bit,
            );
        }
        "DEL" => {
            let keys = &arguments[1..];
            if keys.len() > KEYS_MAX {
                return Err("ERR too many keys in one command");
            }
            for key in keys {
                item_key(key)?;
            }
            for (place, &key) in keys.iter().enumerate() {
                push(
                    Record::Delete { at_ms, key },
                    Shape::Deletion {
                        last: place + 1 == keys.len(),
                    },
                );
            }
        }
        "BITOP" => {
            let names = [
                (&b"AND"[..], BitOp::And),
                (b"OR", BitOp::Or),
                (b"XOR", BitOp::Xor),
                (b"NOT", BitOp::Not),
            ];
            let op = names
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(arguments[1]))
                .ok_or(SYNTAX)?
                .1;
            let sources = &arguments[3..];
            if op == BitOp::Not && sources.len() != 1 {
                return Err("ERR BITOP NOT must be called with a single source key.");
            }
            if sources.len() > KEYS_MAX {
                return Err("ERR too many keys in one command");
            }
            let target = item_key(arguments[2])?;
            let sources = sources.iter().map(|key| item_key(key)).collect::<Result<_, _>>()?;
            push(
                Record::BitOp {
                    at_ms,
                    op,
                    target,
                    sources,
                },
                Shape::Bytes,
            );
        }
        "LIKE.FIELDS" => {
            let (key, fields) = (item_key(arguments[1])?, &arguments[2..]);
            if fields.len() > ITEM_FIELDS_MAX || fields.iter().any(|field| field.len() > FIELD_BYTES_MAX) {
                return Err("ERR too many fields or field name too long");
            }
            if fields.iter().any(|field| field.is_empty() || field.contains(&b'@')) {
                return Err("ERR field name is empty or contains '@'");
            }
            push(
                Record::Fields {
                    at_ms,
                    key,
                    fields: fields.to_vec(),
                },
                Shape::Ok,
            );
        }
        "ZADD" => {
            let (how, changed, pairs) = conditions(&arguments[2..])?;
            if pairs.is_empty() || pairs.len() % 2 != 0 {
                return Err(SYNTAX);
            }
            if how.new && how.existing {
                return Err("ERR XX and NX options at the same time are not compatible");
            }
            if how.greater && (how.new || how.less) || how.less && how.new {
                return Err("ERR GT, LT, and/or NX options at the same time are not compatible");
            }
            if how.raise && pairs.len() > 2 {
                return Err("ERR INCR option supports a single increment-element pair");
            }
            scores(arguments[1], at_ms, how, changed, pairs, push)?;
        }
        "ZINCRBY" => {
            let how = How {
                raise: true,
                ..How::default()
            };
            scores(arguments[1], at_ms, how, false, &arguments[2..], push)?;
        }
        "ZREM" => {
            let (key, members) = (leaderboard_key(arguments[1])?, arguments[2..].to_vec());
            push(Record::Unscore { at_ms, key, members }, Shape::Removed);
        }
        "LIKE.TIES" => {
            let key = leaderboard_key(arguments[1])?;
            let ties = match arguments[2] {
                word if word.eq_ignore_ascii_case(b"NAME") => Ties::Name,
                word if word.eq_ignore_ascii_case(b"TIME") => Ties::Time,
                _ => return Err("ERR ties are decided by NAME or by TIME"),
            };
            push(Record::Ties { at_ms, key, ties }, Shape::Ok);
        }
        "LIKE.ERASE" => {
            let user = unsigned(arguments[1]).ok_or(NOT_AN_INTEGER)?;
            let job = unsigned(arguments[2]).ok_or(NOT_AN_INTEGER)?;
            push(Record::Erase { at_ms, job, user }, Shape::Ok);
        }
        name => unreachable!("{name} is a change without a record"),
    }
    Ok(())
}

/// The options of `ZADD`, whether changed members count too, and the scores and members behind them.
fn conditions<'b, 'a>(words: &'b [&'a [u8]]) -> Result<(How, bool, &'b [&'a [u8]]), &'static str> {
    let (mut how, mut changed) = (How::default(), false);
    for (at, word) in words.iter().enumerate() {
        match word.to_ascii_uppercase().as_slice() {
            b"NX" => how.new = true,
            b"XX" => how.existing = true,
            b"GT" => how.greater = true,
            b"LT" => how.less = true,
            b"INCR" => how.raise = true,
            b"CH" => changed = true,
            _ => return Ok((how, changed, &words[at..])),
        }
    }
    Err(SYNTAX)
}

fn scores<'a>(
    key: &'a [u8],
    at_ms: u64,
    how: How,
    changed: bool,
    pairs: &[&'a [u8]],
    mut push: impl FnMut(Record<'a>, Shape),
) -> Result<(), &'static str> {
    let pair = |pair: &[&'a [u8]]| float(pair[0]).map(|score| (score, pair[1])).ok_or(NOT_A_FLOAT);
    let scores = pairs.chunks_exact(2).map(pair).collect::<Result<Vec<_>, _>>()?;
    let key = leaderboard_key(key)?;
    if scores.iter().any(|(_, member)| member.len() > MEMBER_BYTES_MAX) {
        return Err("ERR member is longer than 512 bytes");
    }
    let shape = match how.raise {
        true => Shape::Score,
        false => Shape::Scored { changed },
    };
    push(
        Record::Scores {
            at_ms,
            key,
            how,
            scores,
        },
        shape,
    );
    Ok(())
}

fn leaderboard_key(key: &[u8]) -> Result<&[u8], &'static str> {
    if Engine::is_ranking(key) {
        return Err("ERR rank and rank:FIELD follow likes: SETBIT ITEM USER 1 adds to an item's score, LIKE.FIELDS ITEM FIELD puts it into rank:FIELD; give a leaderboard another name");
    }
    if window(key).is_some() {
        return Err("ERR a leaderboard's name does not end with @1h, @24h or @7d: these are its windows");
    }
    item_key(key)
}

fn item_key(key: &[u8]) -> Result<&[u8], &'static str> {
    if Engine::is_ranking(key) {
        return Err(WRONG_TYPE);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err("ERR key is longer than 512 bytes");
    }
    Ok(key)
}

/// A number as Redis parses it: digits alone, no leading zero, no sign.
pub(crate) fn unsigned(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 20 || (bytes[0] == b'0' && bytes.len() > 1) {
        return None;
    }
    bytes.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// A score: a decimal number, `inf` or `-inf`. As in Redis, no NaN, and no number too large for one.
pub(crate) fn float(bytes: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    let overflows = number.is_infinite() && bytes.iter().any(u8::is_ascii_digit);
    (!number.is_nan() && !overflows).then_some(number)
}

/// A number as Redis parses it, with an optional minus.
pub(crate) fn signed(bytes: &[u8]) -> Option<i64> {
    match bytes.strip_prefix(b"-") {
        Some(rest) => {
            let number = unsigned(rest).filter(|&number| number > 0)?;
            0_i64.checked_sub_unsigned(number)
        }
        None => unsigned(bytes)?.try_into().ok(),
    }
}
