//! `SCAN` and `SSCAN`: cursors, options and pages by Redis's rules.
//!
//! Owns what both have in common. Knows no state.

use super::commands::{signed, NOT_AN_INTEGER, SYNTAX};
use super::glob;
use super::reply::Reply;

/// Maximum number of entries that one command examines.
const EXAMINED_MAX: i64 = 10_000;

/// The words behind the cursor.
pub(crate) struct Options<'a> {
    pattern: Option<&'a [u8]>,
    /// Number of entries to examine.
    pub count: usize,
    /// Whether entries of type `string` are wanted, and those of type `zset`.
    pub strings: bool,
    pub sorted_sets: bool,
}

impl<'a> Options<'a> {
    /// Parses the words; `TYPE` is one of them if `typed`.
    pub fn parse(words: &[&'a [u8]], typed: bool) -> Result<Options<'a>, &'static str> {
        let (mut pattern, mut count, mut strings, mut sorted_sets) = (None, 10, true, true);
        for pair in words.chunks(2) {
            let &[word, value] = pair else { return Err(SYNTAX) };
            if word.eq_ignore_ascii_case(b"MATCH") {
                pattern = Some(value);
            } else if word.eq_ignore_ascii_case(b"COUNT") {
                count = signed(value).ok_or(NOT_AN_INTEGER)?;
                if count < 1 {
                    return Err(SYNTAX);
                }
            } else if typed && word.eq_ignore_ascii_case(b"TYPE") {
                strings = value.eq_ignore_ascii_case(b"string");
                sorted_sets = value.eq_ignore_ascii_case(b"zset");
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(Options {
            pattern,
            count: count.min(EXAMINED_MAX) as usize,
            strings,
            sorted_sets,
        })
    }

    /// The entries that match the pattern.
    pub fn matching<'e>(&self, mut entries: Vec<&'e [u8]>) -> Vec<&'e [u8]> {
        entries.retain(|entry| self.pattern.is_none_or(|pattern| glob::matches(pattern, entry)));
        entries
    }
}

/// A cursor as Redis parses it, by C's `strtoul`: leading zeros and a sign are accepted, and nothing is 0.
pub(crate) fn cursor(bytes: &[u8]) -> Result<u64, &'static str> {
    const INVALID: &str = "ERR invalid cursor";
    let (minus, digits) = match bytes.split_first() {
        None => return Ok(0),
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        Some(_) => (false, bytes),
    };
    let number = digits.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    match number {
        Some(number) if !digits.is_empty() => Ok(if minus { number.wrapping_neg() } else { number }),
        _ => Err(INVALID),
    }
}

/// Writes a page: the cursor to continue with, and the entries.
pub(crate) fn page(reply: &mut Reply, next: u64, entries: &[&[u8]]) {
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(entries.len());
    entries.iter().for_each(|entry| reply.bulk(entry));
}
