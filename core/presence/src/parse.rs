//! Parses the bytes that a store's scripts return: lists in MessagePack, numbers, texts, records.
//!
//! Owns none of their meaning; `pack` has the layouts.

/// A value of a list in MessagePack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    Text(&'a [u8]),
    Number(u32),
}

pub fn take_array(rest: &mut &[u8]) -> Option<usize> {
    match take(rest, 1)?[0] {
        head @ 0x90..=0x9f => Some(usize::from(head & 0x0f)),
        0xdc => take_number(rest, 2),
        0xdd => take_number(rest, 4),
        _ => None,
    }
}

pub fn take_value<'a>(rest: &mut &'a [u8]) -> Option<Value<'a>> {
    let head = take(rest, 1)?[0];
    let len = match head {
        0xa0..=0xbf => usize::from(head & 0x1f),
        0xd9 => take_number(rest, 1)?,
        0xda => take_number(rest, 2)?,
        0xdb => take_number(rest, 4)?,
        0x00..=0x7f => return Some(Value::Number(u32::from(head))),
        0xcc => return Some(Value::Number(take_number(rest, 1)? as u32)),
        0xcd => return Some(Value::Number(take_number(rest, 2)? as u32)),
        0xce => return Some(Value::Number(take_number(rest, 4)? as u32)),
        _ => return None,
    };
    take(rest, len).map(Value::Text)
}

/// A number of at most 4 B.
fn take_number(rest: &mut &[u8], len: usize) -> Option<usize> {
    let bytes = take(rest, len)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// Parses records of a shard, a list in MessagePack: user, record, user, record, … `None`: malformed.
pub fn page(bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut rest = bytes;
    let count = take_array(&mut rest)?;
    // A count that is larger than the bytes is found by the first value that is missing.
    let mut users = Vec::with_capacity((count / 2).min(bytes.len()));
    for _ in 0..count / 2 {
        let (Value::Text(name), Value::Text(record)) = (take_value(&mut rest)?, take_value(&mut rest)?) else {
            return None;
        };
        users.push((digits(name)?, record));
    }
    (rest.is_empty() && count % 2 == 0).then_some(users)
}

/// A user.
pub fn digits(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

pub fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}
