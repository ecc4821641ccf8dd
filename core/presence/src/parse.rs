//! Parses the bytes that a store's scripts return: lists in MessagePack, numbers, texts, pages of records.
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

/// Parses a page of a shard's records: user, record (4 B of length). `None`: malformed.
pub fn page(bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut users = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = usize::from(*take(&mut rest, 1)?.first()?);
        let user = std::str::from_utf8(take(&mut rest, len)?).ok()?.parse().ok()?;
        users.push((user, take_long(&mut rest)?));
    }
    Some(users)
}

pub fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

fn take_long<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u32::from_be_bytes(*take(rest, 4)?.first_chunk()?);
    take(rest, len as usize)
}
