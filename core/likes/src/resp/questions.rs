//! Commands that query: bits, counts, rankings, lists.
//!
//! Owns Redis's rules for ranges and positions over an item's users. Changes nothing except the rankings' caches.

use super::commands::{signed, unsigned, Command, NOT_AN_INTEGER, SYNTAX, WRONG_TYPE};
use super::reply::Reply;
use super::{ranges, scan, sets};
use crate::engine::Engine;
use crate::erasure::Erasure;
use crate::export::{ExportCursor, Exported};
use crate::leaderboards::Ties;
use crate::limits::{COMBINED_MAX, FEED_ITEMS_MAX, FEED_NEWEST_MAX, NEWEST_MAX, PAGE_MAX, WALK_MAX};
use crate::trend::WINDOWS;

/// The first cursor of `SCAN` among leaderboards.
const LEADERBOARDS: u64 = 1 << 32;

const BIT_OFFSET: &str = "ERR bit offset is not an integer or out of range";

/// Writes the reply, or returns the error's text.
pub(crate) fn answer(
    engine: &mut Engine,
    command: &Command,
    arguments: &[&[u8]],
    now_ms: u64,
    reply: &mut Reply,
) -> Result<(), &'static str> {
    let key = arguments.get(1).copied().unwrap_or_default();
    match command.name {
        "GETBIT" => {
            let user = unsigned(arguments[2]).ok_or(BIT_OFFSET)?;
            item(engine, key)?;
            reply.integer(i64::from(engine.likes(key, user)));
        }
        "BITCOUNT" => bit_count(engine, arguments, reply)?,
        "BITPOS" => bit_position(engine, arguments, reply)?,
        "ZREVRANGE" | "ZRANGE" | "ZRANGEBYSCORE" | "ZREVRANGEBYSCORE" => {
            ranges::answer(engine, command.name, arguments, now_ms, reply)?;
        }
        "ZCOUNT" => ranges::count(engine, arguments, reply)?,
        "ZREVRANK" | "ZRANK" => {
            let with_score = match arguments {
                [_, _, _] => false,
                [_, _, _, word] if word.eq_ignore_ascii_case(b"WITHSCORE") => true,
                _ => return Err(SYNTAX),
            };
            ranking(engine, key)?;
            let len = engine.ranking_len(key);
            let rank = engine.rank(key, arguments[2]);
            let rank = if command.name == "ZRANK" {
                rank.map(|rank| len - 1 - rank)
            } else {
                rank
            };
            let score = rank
                .filter(|_| with_score)
                .and_then(|_| engine.score(key, arguments[2], now_ms));
            match (rank, score) {
                (Some(rank), Some(score)) => {
                    reply.array(2);
                    reply.integer(rank as i64);
                    reply.double(score);
                }
                (Some(rank), None) => reply.integer(rank as i64),
                (None, _) if with_score => reply.null_array(),
                (None, _) => reply.null(),
            }
        }
        "ZSCORE" => {
            ranking(engine, key)?;
            match engine.score(key, arguments[2], now_ms) {
                Some(score) => reply.double(score),
                None => reply.null(),
            }
        }
        "ZMSCORE" => {
            ranking(engine, key)?;
            reply.array(arguments.len() - 2);
            for member in &arguments[2..] {
                match engine.score(key, member, now_ms) {
                    Some(score) => reply.double(score),
                    None => reply.null(),
                }
            }
        }
        "ZCARD" => {
            ranking(engine, key)?;
            reply.integer(engine.ranking_len(key) as i64);
        }
        "EXISTS" => {
            let there = arguments[1..].iter().filter(|key| kind_of(engine, key) != "none");
            reply.integer(there.count() as i64);
        }
        "TYPE" => reply.simple(kind_of(engine, key)),
        "STRLEN" => {
            item(engine, key)?;
            reply.integer(engine.string_bytes(key) as i64);
        }
        "SCAN" => scan(engine, arguments, reply)?,
        "SISMEMBER" | "SMISMEMBER" | "SCARD" | "SSCAN" => sets::answer(engine, command, arguments, reply)?,
        "LIKE.FEED" => feed(engine, arguments, reply)?,
        "DBSIZE" => reply.integer((engine.item_count() + engine.leaderboard_count()) as i64),
        "LIKE.FIELDSOF" => {
            item(engine, key)?;
            list(reply, &engine.fields(key));
        }
        "LIKE.NEWEST" => {
            item(engine, key)?;
            let (_, count) = place(&arguments[2..], NEWEST_MAX, false)?;
            users(reply, &engine.newest(key, count));
        }
        "LIKE.LIKERS" => {
            item(engine, key)?;
            let (from, count) = place(&arguments[2..], PAGE_MAX, true)?;
            let likers: Vec<u64> = engine.likers_from(key, from as u64).take(count).collect();
            users(reply, &likers);
        }
        "LIKE.BOTH" => {
            for key in &arguments[1..] {
                item(engine, key)?;
            }
            few_enough_to_combine(engine, &arguments[1..])?;
            users(reply, &engine.likers_of_all(&arguments[1..], PAGE_MAX));
        }
        "LIKE.ITEMS" => {
            let user = unsigned(key).ok_or(NOT_AN_INTEGER)?;
            let with_times = arguments
                .last()
                .is_some_and(|word| word.eq_ignore_ascii_case(b"WITHTIMES"));
            let words = &arguments[2..arguments.len() - usize::from(with_times)];
            let (from, count) = place(words, PAGE_MAX, true)?;
            if from as u64 > WALK_MAX && u64::from(engine.items_to_walk(user)) > WALK_MAX {
                return Err("ERR LIKE.ITEMS can skip at most 200000 items of a user");
            }
            if !with_times {
                list(reply, &engine.items_of(user, from, count));
                return Ok(());
            }
            let liked = engine.liked_by(user, from, count);
            reply.array(liked.len());
            for (key, at_s) in liked {
                reply.array(2);
                reply.bulk(key);
                match at_s {
                    Some(at_s) => reply.integer(i64::from(at_s)),
                    None => reply.null(),
                }
            }
        }
        "LIKE.ERASURES" => erasures(engine, arguments, reply)?,
        "LIKE.EXPORT" => export(engine, arguments, reply)?,
        "LIKE.TOP" => {
            let arguments = [arguments, &[b"WITHSCORES"]].concat();
            ranges::answer(engine, "ZREVRANGE", &arguments, now_ms, reply)?;
        }
        "LIKE.ABOVE" => {
            let count = unsigned(arguments[2]).ok_or(NOT_AN_INTEGER)?;
            ranking(engine, key)?;
            let above = engine
                .above(key, count, arguments[3])
                .ok_or("ERR not a ranking by count")?;
            reply.array(2);
            reply.integer(above as i64);
            reply.integer(engine.ranking_len(key) as i64);
        }
        "LIKE.TIESOF" => {
            ranking(engine, key)?;
            reply.simple(match engine.ties(key) {
                Ties::Name => "NAME",
                Ties::Time => "TIME",
            });
        }
        "LIKE.TREND" => {
            item(engine, key)?;
            reply.map(WINDOWS.len());
            for (window, (name, _)) in WINDOWS.iter().enumerate() {
                reply.bulk(name.as_bytes());
                reply.double(engine.trend(key, window, now_ms));
            }
        }
        "LIKE.MODIFICATION" => {
            item(engine, key)?;
            reply.integer(engine.modification(key) as i64);
        }
        name => unreachable!("{name} is a query that is not handled"),
    }
    Ok(())
}

/// `[job]`: all erasures that are known, or one.
fn erasures(engine: &Engine, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), &'static str> {
    let job = match arguments {
        [_] => None,
        [_, job] => Some(unsigned(job).ok_or(NOT_AN_INTEGER)?),
        _ => return Err(SYNTAX),
    };
    let wanted = |(known, _): &(&u64, &Erasure)| job.is_none_or(|job| job == **known);
    let found: Vec<_> = engine.erasures().iter().filter(wanted).collect();
    let (items, leaderboards) = engine.slots();
    reply.array(found.len());
    for (&job, erasure) in found {
        reply.array(12);
        reply.user(job);
        reply.bulk(erasure.phase.name().as_bytes());
        for number in [
            erasure.items,
            u64::from(items),
            erasure.leaderboards,
            u64::from(leaderboards),
            erasure.derived,
            erasure.members,
            erasure.at_ms,
            u64::from(erasure.snapshots),
            u64::from(erasure.segments),
        ] {
            reply.integer(number as i64);
        }
        reply.array(2 * erasure.kinds.len());
        for (kind, &likes) in &erasure.kinds {
            reply.bulk(kind);
            reply.integer(likes as i64);
        }
    }
    Ok(())
}

/// `user cursor [count]`: a page of a user's likes and scores.
fn export(engine: &mut Engine, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), &'static str> {
    let user = unsigned(arguments[1]).ok_or(NOT_AN_INTEGER)?;
    let from = match arguments[2] {
        b"0" => ExportCursor::Begin,
        text => ExportCursor::parse(text).ok_or("ERR invalid cursor")?,
    };
    let (_, count) = place(&arguments[3..], PAGE_MAX, false)?;
    let (next, found) = engine.export(user, from, count);
    reply.array(2);
    reply.bulk(next.map_or_else(|| "0".into(), ExportCursor::text).as_bytes());
    reply.array(found.len());
    for each in found {
        reply.array(3);
        match each {
            Exported::Like { item, at_s } => {
                reply.simple("like");
                reply.bulk(item);
                match at_s {
                    Some(at_s) => reply.integer(i64::from(at_s)),
                    None => reply.null(),
                }
            }
            Exported::Score { leaderboard, score } => {
                reply.simple("score");
                reply.bulk(leaderboard);
                reply.double(score);
            }
        }
    }
    Ok(())
}

/// Refuses a ranking and a leaderboard.
pub(super) fn item(engine: &Engine, key: &[u8]) -> Result<(), &'static str> {
    if Engine::is_ranking(key) || engine.is_leaderboard(key) {
        return Err(WRONG_TYPE);
    }
    Ok(())
}

/// Refuses to walk more likers than a node's loop may spend time on.
fn few_enough_to_walk(engine: &Engine, key: &[u8]) -> Result<(), &'static str> {
    match engine.count(key) > WALK_MAX {
        true => Err("ERR the item has more than 200000 likers, and this command would scan them all: use GETBIT, BITCOUNT without a range, or LIKE.LIKERS"),
        false => Ok(()),
    }
}

/// The same for operations on whole sets of likers.
pub(crate) fn few_enough_to_combine(engine: &Engine, keys: &[&[u8]]) -> Result<(), &'static str> {
    match keys.iter().map(|key| engine.count(key)).sum::<u64>() > COMBINED_MAX {
        true => {
            Err("ERR these items have more than 32000000 likers together: use fewer items, or GETBIT for each user")
        }
        false => Ok(()),
    }
}

/// Refuses an item.
pub(super) fn ranking(engine: &Engine, key: &[u8]) -> Result<(), &'static str> {
    if engine.exists(key) {
        return Err(WRONG_TYPE);
    }
    Ok(())
}

fn kind_of(engine: &mut Engine, key: &[u8]) -> &'static str {
    if engine.exists(key) {
        "string"
    } else if engine.ranking_len(key) > 0 {
        "zset"
    } else {
        "none"
    }
}

/// `[from] count`: how many to skip and how many to return.
fn place(arguments: &[&[u8]], most: usize, with_from: bool) -> Result<(usize, usize), &'static str> {
    let number = |bytes: &[u8]| {
        unsigned(bytes)
            .map(|number| number.min(1 << 40) as usize)
            .ok_or(NOT_AN_INTEGER)
    };
    match arguments {
        [] => Ok((0, most)),
        [count] if !with_from => Ok((0, number(count)?.min(most))),
        [from] => Ok((number(from)?, most)),
        [from, count] if with_from => Ok((number(from)?, number(count)?.min(most))),
        _ => Err(SYNTAX),
    }
}

fn users(reply: &mut Reply, users: &[u64]) {
    reply.array(users.len());
    users.iter().for_each(|&user| reply.user(user));
}

fn list(reply: &mut Reply, entries: &[&[u8]]) {
    reply.array(entries.len());
    entries.iter().for_each(|entry| reply.bulk(entry));
}

/// A range by Redis's rules over `len` units, both ends included: `None` if it is empty.
fn clamp(start: i64, end: i64, len: i128) -> Option<(u128, u128)> {
    let from_end = |place: i64| {
        if place < 0 {
            (len + i128::from(place)).max(0)
        } else {
            i128::from(place)
        }
    };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    (start <= end).then_some((start as u128, end as u128))
}

/// `BYTE` or `BIT`: the number of bits in a unit.
fn unit(word: Option<&&[u8]>) -> Result<u128, &'static str> {
    match word {
        None => Ok(8),
        Some(word) if word.eq_ignore_ascii_case(b"BYTE") => Ok(8),
        Some(word) if word.eq_ignore_ascii_case(b"BIT") => Ok(1),
        Some(_) => Err(SYNTAX),
    }
}

fn bit_count(engine: &Engine, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), &'static str> {
    let key = arguments[1];
    item(engine, key)?;
    if arguments.len() == 2 {
        reply.integer(engine.count(key) as i64);
        return Ok(());
    }
    if !engine.exists(key) {
        reply.integer(0);
        return Ok(());
    }
    if arguments.len() < 4 || arguments.len() > 5 {
        return Err(SYNTAX);
    }
    let start = signed(arguments[2]).ok_or(NOT_AN_INTEGER)?;
    let end = signed(arguments[3]).ok_or(NOT_AN_INTEGER)?;
    if start < 0 && end < 0 && start > end {
        reply.integer(0); // Redis does not check further
        return Ok(());
    }
    let unit = unit(arguments.get(4))?;
    few_enough_to_walk(engine, key)?;
    let len = i128::from(engine.string_bytes(key)) * if unit == 1 { 8 } else { 1 };
    let count = clamp(start, end, len).map_or(0, |(start, end)| {
        let bits = start * unit..(end + 1) * unit;
        engine
            .likers(key)
            .filter(|&user| bits.contains(&u128::from(user)))
            .count()
    });
    reply.integer(count as i64);
    Ok(())
}

fn bit_position(engine: &Engine, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), &'static str> {
    let key = arguments[1];
    let bit = signed(arguments[2]).ok_or(NOT_AN_INTEGER)?;
    if bit != 0 && bit != 1 {
        return Err("ERR The bit argument must be 1 or 0.");
    }
    item(engine, key)?;
    if !engine.exists(key) {
        reply.integer(if bit == 1 { -1 } else { 0 });
        return Ok(());
    }
    if arguments.len() > 6 {
        return Err(SYNTAX);
    }
    let start = arguments
        .get(3)
        .map_or(Some(0), |start| signed(start))
        .ok_or(NOT_AN_INTEGER)?;
    let unit = unit(arguments.get(5))?;
    let end = arguments
        .get(4)
        .map_or(Some(-1), |end| signed(end))
        .ok_or(NOT_AN_INTEGER)?;
    few_enough_to_walk(engine, key)?;
    let end_given = arguments.len() > 4;
    let bytes = engine.string_bytes(key);
    let len = i128::from(bytes) * if unit == 1 { 8 } else { 1 };
    let Some((start, end)) = clamp(start, end, len) else {
        reply.integer(-1);
        return Ok(());
    };
    let bits = start * unit..(end + 1) * unit;
    let users = engine.likers(key).map(u128::from).filter(|user| bits.contains(user));
    let found = if bit == 1 {
        users.min()
    } else {
        let mut users: Vec<u128> = users.collect();
        users.sort_unstable();
        let gap = users
            .iter()
            .zip(bits.clone())
            .find(|(user, place)| **user != *place)
            .map(|(_, place)| place);
        let behind = bits.start + users.len() as u128;
        // Beyond the string all bits are clear, unless the caller gave an end.
        gap.or((behind < bits.end || !end_given).then_some(behind))
    };
    let place = found
        .map_or(Ok(-1), i64::try_from)
        .map_err(|_| "ERR the position is above 2^63-1, the largest integer reply: use LIKE.LIKERS")?;
    reply.integer(place);
    Ok(())
}

fn scan(engine: &Engine, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), &'static str> {
    let cursor = scan::cursor(arguments[1])?;
    let options = scan::Options::parse(&arguments[2..], true)?;
    // Items first, then leaderboards: their cursors are above those of all items.
    let (next, keys) = match cursor.checked_sub(LEADERBOARDS) {
        Some(cursor) => {
            let (next, mut keys) = engine.scan_leaderboards(cursor, options.count);
            keys.retain(|_| options.sorted_sets);
            (if next == 0 { 0 } else { LEADERBOARDS + next }, keys)
        }
        None => {
            let (next, mut keys) = engine.scan(cursor, options.count);
            keys.retain(|_| options.strings);
            let then = if engine.leaderboard_count() > 0 {
                LEADERBOARDS
            } else {
                0
            };
            (if next == 0 { then } else { next }, keys)
        }
    };
    scan::page(reply, next, &options.matching(keys));
    Ok(())
}

/// `VIEWER NEWEST ITEM …`: count, whether the viewer likes it, and the newest likers of each item.
fn feed(engine: &Engine, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), &'static str> {
    let viewer = match arguments[1] {
        b"-" => None,
        viewer => Some(unsigned(viewer).ok_or("ERR viewer is not a user from 0 to 2^64-1; use - for no viewer")?),
    };
    let newest = unsigned(arguments[2]).ok_or(NOT_AN_INTEGER)?;
    if newest > FEED_NEWEST_MAX as u64 {
        return Err("ERR LIKE.FEED gives at most 10 newest likers of each item: use LIKE.NEWEST for more");
    }
    let items = &arguments[3..];
    if items.len() > FEED_ITEMS_MAX {
        return Err("ERR LIKE.FEED takes at most 1000 items: use another one for the others");
    }
    items.iter().try_for_each(|key| item(engine, key))?;
    let entries = engine.feed(items, viewer, newest as usize);
    reply.array(entries.len());
    for entry in entries {
        reply.array(3);
        reply.integer(entry.count as i64);
        match entry.likes {
            Some(likes) => reply.integer(i64::from(likes)),
            None => reply.null(),
        }
        users(reply, &entry.newest);
    }
    Ok(())
}
