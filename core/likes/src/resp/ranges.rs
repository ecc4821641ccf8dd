//! `ZRANGE` and its kin: pages of rankings and leaderboards, by rank or by score.
//!
//! Owns Redis's rules for both. Rankings of likes have no ranges of scores: those of their windows change with time.

use super::commands::{float, signed, NOT_AN_INTEGER, SYNTAX};
use super::questions::ranking;
use super::reply::Reply;
use crate::engine::Engine;
use crate::leaderboards::window;
use crate::limits::PAGE_MAX;

const BY_RANK: &str = "ERR rankings of likes and windows have no ranges of scores: use ranks";
const TOO_LONG: &str = "ERR range is longer than 10000 entries";

/// The words behind a range.
struct Options {
    best_first: bool,
    by_score: bool,
    with_scores: bool,
    limit: Option<(i64, i64)>,
}

/// One end of a range of scores.
struct Bound {
    score: f64,
    excluded: bool,
}

impl Options {
    fn parse(name: &str, words: &[&[u8]]) -> Result<Options, &'static str> {
        let mut options = Options {
            best_first: name.starts_with("ZREV"),
            by_score: name.ends_with("BYSCORE"),
            with_scores: false,
            limit: None,
        };
        let all = name == "ZRANGE";
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if is(word, "WITHSCORES") {
                options.with_scores = true;
            } else if is(word, "LIMIT") {
                let number = |word: Option<&&[u8]>| word.map(|word| signed(word).ok_or(NOT_AN_INTEGER));
                let (Some(offset), Some(count)) = (number(words.next()), number(words.next())) else {
                    return Err(SYNTAX);
                };
                options.limit = Some((offset?, count?));
            } else if all && is(word, "REV") {
                options.best_first = true;
            } else if all && is(word, "BYSCORE") {
                options.by_score = true;
            } else if all && is(word, "BYLEX") {
                return Err("ERR BYLEX is not supported: use ranks or BYSCORE");
            } else {
                return Err(SYNTAX);
            }
        }
        if options.limit.is_some() && !options.by_score {
            return Err("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX");
        }
        Ok(options)
    }
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

impl Bound {
    fn parse(word: &[u8]) -> Result<Bound, &'static str> {
        let (excluded, number) = match word.strip_prefix(b"(") {
            Some(rest) => (true, rest),
            None => (false, word),
        };
        let score = float(number).ok_or("ERR min or max is not a float")?;
        Ok(Bound { score, excluded })
    }
}

/// Writes the reply of a command that lists a range, or returns the error's text.
pub(crate) fn answer(
    engine: &mut Engine,
    name: &str,
    arguments: &[&[u8]],
    now_ms: u64,
    reply: &mut Reply,
) -> Result<(), &'static str> {
    let (key, options) = (arguments[1], Options::parse(name, &arguments[4..])?);
    // Counted from the lowest: the first place and the one behind the last.
    let (begin, end) = if options.by_score {
        let (lower, upper) = match options.best_first {
            true => (arguments[3], arguments[2]),
            false => (arguments[2], arguments[3]),
        };
        let (begin, end) = span(engine, key, lower, upper)?;
        let (offset, count) = options.limit.unwrap_or((0, -1));
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let left = end.saturating_sub(begin).saturating_sub(offset);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(left);
        match options.best_first {
            true => (
                end.saturating_sub(offset).saturating_sub(count),
                end.saturating_sub(offset),
            ),
            false => (
                begin.saturating_add(offset),
                begin.saturating_add(offset).saturating_add(count),
            ),
        }
    } else {
        let start = signed(arguments[2]).ok_or(NOT_AN_INTEGER)?;
        let stop = signed(arguments[3]).ok_or(NOT_AN_INTEGER)?;
        ranking(engine, key)?;
        let len = engine.ranking_len(key) as i64;
        let from_end = |place: i64| if place < 0 { place.saturating_add(len) } else { place };
        let (start, stop) = (from_end(start).max(0), from_end(stop).min(len - 1));
        match (stop < start, options.best_first) {
            (true, _) => (0, 0),
            (false, true) => ((len - 1 - stop) as usize, (len - start) as usize),
            (false, false) => (start as usize, (stop + 1) as usize),
        }
    };
    let count = end.saturating_sub(begin);
    if count == 0 {
        reply.array(0);
        return Ok(());
    }
    if count > PAGE_MAX {
        return Err(TOO_LONG);
    }
    let len = engine.ranking_len(key);
    let mut page = engine.page(key, len - end, count, now_ms);
    if !options.best_first {
        page.reverse();
    }
    let pairs = options.with_scores && reply.resp3;
    reply.array(if options.with_scores && !pairs {
        2 * page.len()
    } else {
        page.len()
    });
    for ranked in page {
        if pairs {
            reply.array(2);
        }
        reply.bulk(ranked.key);
        if options.with_scores {
            reply.double(ranked.score);
        }
    }
    Ok(())
}

/// `ZCOUNT KEY MIN MAX`.
pub(crate) fn count(engine: &mut Engine, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), &'static str> {
    let (begin, end) = span(engine, arguments[1], arguments[2], arguments[3])?;
    reply.integer(end.saturating_sub(begin) as i64);
    Ok(())
}

/// The places of the scores between two bounds, counted from the lowest: the first, and the one behind the last.
fn span(engine: &mut Engine, key: &[u8], lower: &[u8], upper: &[u8]) -> Result<(usize, usize), &'static str> {
    let (lower, upper) = (Bound::parse(lower)?, Bound::parse(upper)?);
    ranking(engine, key)?;
    if (Engine::is_ranking(key) || window(key).is_some()) && engine.ranking_len(key) > 0 {
        return Err(BY_RANK);
    }
    Ok((
        engine.members_below(key, lower.score, lower.excluded),
        engine.members_below(key, upper.score, !upper.excluded),
    ))
}
