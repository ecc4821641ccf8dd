//! Headers of a message: short texts by name, in front of its data.
//!
//! Owns: the block of headers, its bounds and its checks. Must not know: chunks, rooms, roles. A block stands whole in a
//! message's first chunk, so that a node can read or cut it without the other chunks.
//!
//! A block is `len u16`, the bytes behind it, then for each header `len u8`, name, `len u16`, value. The names are
//! distinct.

use muster_transport::Writer;

/// Maximum bytes of the block of a message. It fits into one chunk of the default datagram.
pub const HEADERS_BYTES_MAX: usize = 1_024;
/// Maximum number of headers of a message: a reader compares each name with the others.
pub const HEADERS_MAX: usize = 16;
/// Maximum bytes of a name: letters, digits, `-`, `_` and `.`.
pub const HEADER_NAME_BYTES_MAX: usize = 64;
/// Bytes of the length in front of the block.
const LEN: usize = 2;
/// Bytes of a header besides its name and value.
const ENTRY: usize = 3;

/// Why headers are refused: their author's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadersError {
    /// More than [`HEADERS_MAX`].
    TooMany,
    /// Longer than [`HEADERS_BYTES_MAX`].
    TooLong,
    /// An empty or long name, or one with other characters.
    BadName,
    /// The name occurs twice.
    Repeated,
}

impl std::fmt::Display for HeadersError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HeadersError::TooMany => write!(f, "a message has at most {HEADERS_MAX} headers"),
            HeadersError::TooLong => write!(
                f,
                "the headers of a message have at most {HEADERS_BYTES_MAX} bytes, {ENTRY} more for each and {LEN} for all included"
            ),
            HeadersError::BadName => write!(
                f,
                "the name of a header has 1 to {HEADER_NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
            ),
            HeadersError::Repeated => write!(f, "a message has one header of each name"),
        }
    }
}

pub(crate) fn is_name(name: &[u8]) -> bool {
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    (1..=HEADER_NAME_BYTES_MAX).contains(&name.len()) && name.iter().all(good)
}

/// Encodes headers; none are no bytes.
pub fn encode<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Vec<u8>, HeadersError> {
    let mut block = vec![0; HEADERS_BYTES_MAX];
    let mut writer = Writer::new(&mut block);
    writer.u16(0);
    let mut names: Vec<&str> = Vec::new();
    for (name, value) in headers {
        if !is_name(name.as_bytes()) {
            return Err(HeadersError::BadName);
        }
        if names.contains(&name) {
            return Err(HeadersError::Repeated);
        }
        if names.len() == HEADERS_MAX {
            return Err(HeadersError::TooMany);
        }
        if writer.room() < ENTRY + name.len() + value.len() {
            return Err(HeadersError::TooLong);
        }
        names.push(name);
        writer.u8(name.len() as u8).put(name.as_bytes());
        writer.u16(value.len() as u16).put(value.as_bytes());
    }
    let len = if names.is_empty() { 0 } else { writer.len() };
    block.truncate(len);
    if let Some((size, rest)) = block.split_at_mut_checked(LEN) {
        size.copy_from_slice(&(rest.len() as u16).to_le_bytes());
    }
    Ok(block)
}

/// Splits a message that begins with a block into the block and the data. `None`: there is no whole block of an allowed
/// length.
#[inline]
pub fn split(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let size: [u8; LEN] = message.get(..LEN)?.try_into().ok()?;
    let end = LEN + usize::from(u16::from_le_bytes(size));
    (end <= HEADERS_BYTES_MAX)
        .then(|| message.split_at_checked(end))
        .flatten()
}

/// The headers of a block, in the order of their author. Ends before the first malformed one.
pub fn decode(block: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = block.get(LEN..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (len, after) = rest.split_first()?;
        let (name, after) = after.split_at_checked(usize::from(*len))?;
        let (len, after) = after.split_first_chunk()?;
        let (value, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        rest = after;
        Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?))
    })
}

/// Whether a message begins with a good block of at least one header.
pub fn well_formed(message: &[u8]) -> bool {
    let Some((block, _)) = split(message) else { return false };
    let mut len = LEN;
    let mut names: Vec<&str> = Vec::new();
    for (name, value) in decode(block) {
        if !is_name(name.as_bytes()) || names.contains(&name) || names.len() == HEADERS_MAX {
            return false;
        }
        names.push(name);
        len += ENTRY + name.len() + value.len();
    }
    !names.is_empty() && len == block.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(headers: &[(&str, &str)], data: &[u8]) -> Vec<u8> {
        [encode(headers.iter().copied()).unwrap(), data.to_vec()].concat()
    }

    #[test]
    fn no_headers_are_no_bytes() {
        assert_eq!(encode([]), Ok(vec![]));
    }

    #[test]
    fn each_bound_is_refused_by_its_own_error() {
        let longest = "v".repeat(HEADERS_BYTES_MAX - LEN - ENTRY - 1);
        assert_eq!(encode([("k", longest.as_str())]).unwrap().len(), HEADERS_BYTES_MAX);
        let longer = longest + "v";
        assert_eq!(encode([("k", longer.as_str())]), Err(HeadersError::TooLong));
        let names: Vec<String> = (0..=HEADERS_MAX).map(|at| format!("name-{at}")).collect();
        let headers = || names.iter().map(|name| (name.as_str(), ""));
        assert!(encode(headers().take(HEADERS_MAX)).is_ok());
        assert_eq!(encode(headers()), Err(HeadersError::TooMany));
        assert_eq!(encode([("a", "1"), ("a", "2")]), Err(HeadersError::Repeated));
        for wrong in ["", "a b", "a:b", "ä", "x".repeat(HEADER_NAME_BYTES_MAX + 1).as_str()] {
            assert_eq!(encode([(wrong, "")]), Err(HeadersError::BadName), "{wrong:?}");
        }
    }

    #[test]
    fn a_wrong_block_is_not_well_formed() {
        let good = message(&[("kind", "goal"), ("at", "12")], b"data");
        assert!(well_formed(&good));
        assert!(!well_formed(b""), "no length");
        assert!(!well_formed(b"\0\0data"), "no header");
        assert!(!well_formed(&good[..10]), "cut short");
        let mut long = good.clone();
        long[0] += 1;
        assert!(!well_formed(&long), "a byte that belongs to no header");
        let mut twice = message(&[("a", "1"), ("b", "2")], b"");
        twice[LEN + ENTRY + 3] = b'a';
        assert!(!well_formed(&twice), "a name twice");
        let mut huge = vec![b'x'; 2_000];
        huge[..2].copy_from_slice(&1_500u16.to_le_bytes());
        assert_eq!(split(&huge), None);
    }

    proptest! {
        #[test]
        fn headers_and_data_come_back(
            headers in prop::collection::btree_map("[A-Za-z0-9._-]{1,8}", ".{0,20}", 1..10),
            data in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let pairs: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let message = message(&pairs, &data);
            prop_assert!(well_formed(&message));
            let (block, rest) = split(&message).unwrap();
            prop_assert_eq!(rest, &data[..]);
            prop_assert_eq!(decode(block).collect::<Vec<_>>(), pairs);
        }

        #[test]
        fn no_bytes_make_it_panic(message in prop::collection::vec(any::<u8>(), 0..1_200)) {
            let good = well_formed(&message);
            if let Some((block, data)) = split(&message) {
                prop_assert_eq!(block.len() + data.len(), message.len());
                let read: Vec<_> = decode(block).collect();
                if good {
                    let again = encode(read);
                    prop_assert_eq!(again.as_deref(), Ok(block));
                }
            } else {
                prop_assert!(!good);
            }
        }
    }
}
