//! Parses commands from a stream of bytes: RESP arrays of bulk strings, and inline commands.
//!
//! Owns the bounds on what a client may send. Knows no command.

use std::ops::Range;

/// Maximum number of arguments of one command: the keys of the longest one and a few words.
const ARGUMENTS_MAX: usize = crate::limits::KEYS_MAX + 16;

/// Maximum bytes of one argument: several times a key. Redis allows 512 MiB.
const ARGUMENT_BYTES_MAX: usize = 16 << 10;

/// Maximum bytes of one command, so that a client holds at most this much before its command is complete.
const COMMAND_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of an inline command, as in Redis.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// A length with its type and line end: `*-2147483648\r\n` fits.
const LENGTH_LINE_MAX: usize = 16;

/// Why a stream can't be parsed further: the text of Redis's error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProtocolError {
    MultibulkLength,
    BulkLength,
    ExpectedBulk(u8),
    UnbalancedQuotes,
    InlineTooBig,
    CommandTooBig,
}

impl ProtocolError {
    pub fn text(self) -> String {
        match self {
            ProtocolError::MultibulkLength => "invalid multibulk length".into(),
            ProtocolError::BulkLength => "invalid bulk length".into(),
            ProtocolError::ExpectedBulk(found) => format!("expected '$', got '{}'", printable(found)),
            ProtocolError::UnbalancedQuotes => "unbalanced quotes in request".into(),
            ProtocolError::InlineTooBig => "too big inline request".into(),
            ProtocolError::CommandTooBig => format!("command is longer than {COMMAND_BYTES_MAX} bytes"),
        }
    }
}

/// A command's arguments: ranges of the bytes, or, for an inline command, bytes of their own.
#[derive(Default)]
pub(crate) struct Arguments {
    places: Vec<Range<usize>>,
    unquoted: Vec<u8>,
    inline: bool,
}

impl Arguments {
    /// All arguments of the parsed bytes, in `few` if they fit.
    pub fn words<'b, 'a>(
        &'a self,
        bytes: &'a [u8],
        few: &'b mut [&'a [u8]; 8],
        many: &'b mut Vec<&'a [u8]>,
    ) -> &'b [&'a [u8]] {
        let from = if self.inline { &self.unquoted } else { bytes };
        let words = self.places.iter().map(|place| &from[place.clone()]);
        if self.places.len() > few.len() {
            many.extend(words);
            return many;
        }
        few.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        &few[..self.places.len()]
    }
}

/// Parses one command; returns its length, or `None` if it is incomplete. No arguments: an empty line or array, which
/// is skipped.
pub(crate) fn parse(bytes: &[u8], arguments: &mut Arguments) -> Result<Option<usize>, ProtocolError> {
    arguments.places.clear();
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => parse_array(bytes, arguments),
        Some(_) => parse_inline(bytes, arguments),
    }
}

fn parse_array(bytes: &[u8], arguments: &mut Arguments) -> Result<Option<usize>, ProtocolError> {
    arguments.inline = false;
    let Some((count, mut at)) = length(bytes, 1).ok_or(ProtocolError::MultibulkLength)? else {
        return Ok(None);
    };
    if count > ARGUMENTS_MAX as i64 {
        return Err(ProtocolError::MultibulkLength);
    }
    for _ in 0..count.max(0) {
        match bytes.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::ExpectedBulk(other)),
        }
        let Some((len, from)) = length(bytes, at + 1).ok_or(ProtocolError::BulkLength)? else {
            return Ok(None);
        };
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| len <= ARGUMENT_BYTES_MAX)
            .ok_or(ProtocolError::BulkLength)?;
        at = from + len + 2;
        if at > COMMAND_BYTES_MAX {
            return Err(ProtocolError::CommandTooBig);
        }
        if bytes.len() < at {
            return Ok(None);
        }
        arguments.places.push(from..from + len);
    }
    Ok(Some(at))
}

/// The number from `at` to the end of the line, and the index after it. `None`: no number; `Some(None)`: the line is
/// incomplete.
#[allow(clippy::option_option)]
fn length(bytes: &[u8], at: usize) -> Option<Option<(i64, usize)>> {
    let (mut number, mut place) = (0_i64, at);
    let negative = bytes.get(place) == Some(&b'-');
    place += usize::from(negative);
    let digits = place;
    loop {
        match bytes.get(place) {
            None if place - at < LENGTH_LINE_MAX => return Some(None),
            Some(digit @ b'0'..=b'9') if place - at < LENGTH_LINE_MAX => number = number * 10 + i64::from(digit - b'0'),
            Some(b'\r') if place > digits => break,
            _ => return None,
        }
        place += 1;
    }
    match bytes.get(place + 1) {
        None => Some(None),
        Some(_) => Some(Some((if negative { -number } else { number }, place + 2))),
    }
}

fn parse_inline(bytes: &[u8], arguments: &mut Arguments) -> Result<Option<usize>, ProtocolError> {
    let seen = &bytes[..bytes.len().min(INLINE_BYTES_MAX)];
    let Some(end) = seen.iter().position(|&byte| byte == b'\n') else {
        return if bytes.len() < INLINE_BYTES_MAX {
            Ok(None)
        } else {
            Err(ProtocolError::InlineTooBig)
        };
    };
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    arguments.inline = true;
    arguments.unquoted.clear();
    split(line, arguments).ok_or(ProtocolError::UnbalancedQuotes)?;
    if arguments.places.len() > ARGUMENTS_MAX {
        return Err(ProtocolError::MultibulkLength);
    }
    Ok(Some(end + 1))
}

/// The words of a line, with Redis's quotes: "…" with escapes, '…' without.
fn split(mut line: &[u8], arguments: &mut Arguments) -> Option<()> {
    loop {
        line = line.trim_ascii_start();
        if line.is_empty() {
            return Some(());
        }
        let begin = arguments.unquoted.len();
        while let Some((&byte, rest)) = line.split_first() {
            match byte {
                b'"' => {
                    line = double_quoted(rest, &mut arguments.unquoted)?;
                    return_unless_word_ends(line)?;
                    break;
                }
                b'\'' => {
                    line = single_quoted(rest, &mut arguments.unquoted)?;
                    return_unless_word_ends(line)?;
                    break;
                }
                byte if byte.is_ascii_whitespace() => break,
                byte => {
                    arguments.unquoted.push(byte);
                    line = rest;
                }
            }
        }
        arguments.places.push(begin..arguments.unquoted.len());
    }
}

fn return_unless_word_ends(line: &[u8]) -> Option<()> {
    line.first().is_none_or(u8::is_ascii_whitespace).then_some(())
}

fn double_quoted<'a>(mut line: &'a [u8], into: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match line {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', b'x', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                into.push(digit(*high) << 4 | digit(*low));
                line = rest;
            }
            [b'\\', escaped, rest @ ..] => {
                into.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    &other => other,
                });
                line = rest;
            }
            [byte, rest @ ..] => {
                into.push(*byte);
                line = rest;
            }
            [] => return None,
        }
    }
}

fn single_quoted<'a>(mut line: &'a [u8], into: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match line {
            [b'\'', rest @ ..] => return Some(rest),
            [b'\\', b'\'', rest @ ..] => {
                into.push(b'\'');
                line = rest;
            }
            [byte, rest @ ..] => {
                into.push(*byte);
                line = rest;
            }
            [] => return None,
        }
    }
}

fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() {
        char::from(byte)
    } else {
        '?'
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes used, and the words.
    type Parsed = Option<(usize, Vec<Vec<u8>>)>;

    fn all(bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        let mut arguments = Arguments::default();
        let used = parse(bytes, &mut arguments)?;
        let (mut few, mut many) = ([&[][..]; 8], Vec::new());
        let found = arguments.words(bytes, &mut few, &mut many);
        Ok(used.map(|used| (used, found.iter().map(|word| word.to_vec()).collect())))
    }

    fn words(line: &[u8]) -> Vec<Vec<u8>> {
        all(line).unwrap().unwrap().1
    }

    #[test]
    fn array_is_parsed_once_it_is_whole() {
        let command = b"*3\r\n$6\r\nGETBIT\r\n$7\r\nshare:1\r\n$4\r\n2017\r\n";
        for len in 0..command.len() {
            assert_eq!(all(&command[..len]), Ok(None), "{len} bytes");
        }
        let more = [&command[..], b"*1\r\n"].concat();
        let wanted = vec![b"GETBIT".to_vec(), b"share:1".to_vec(), b"2017".to_vec()];
        assert_eq!(all(&more), Ok(Some((command.len(), wanted))));
        assert_eq!(all(b"*0\r\n"), Ok(Some((4, vec![]))));
        assert_eq!(all(b"*-1\r\n"), Ok(Some((5, vec![]))));
    }

    #[test]
    fn lying_lengths_are_refused_at_once() {
        assert_eq!(all(b"*1000000000\r\n"), Err(ProtocolError::MultibulkLength));
        assert_eq!(all(b"*99999999999999999999999"), Err(ProtocolError::MultibulkLength));
        assert_eq!(all(b"*x\r\n"), Err(ProtocolError::MultibulkLength));
        assert_eq!(all(b"*1\r\n$536870912\r\n"), Err(ProtocolError::BulkLength));
        assert_eq!(all(b"*1\r\n$-1\r\n"), Err(ProtocolError::BulkLength));
        assert_eq!(all(b"*1\r\n:5\r\n"), Err(ProtocolError::ExpectedBulk(b':')));
        let argument = [&b"$16384\r\n"[..], &vec![b'a'; 16_384], b"\r\n"].concat();
        let command = [&b"*70\r\n"[..], &argument.repeat(70)].concat();
        assert_eq!(all(&command), Err(ProtocolError::CommandTooBig));
        assert_eq!(all(&vec![b'a'; 65_536]), Err(ProtocolError::InlineTooBig));
    }

    #[test]
    fn inline_words_have_redis_quotes() {
        assert_eq!(words(b"PING\r\n"), [b"PING".to_vec()]);
        assert_eq!(
            words(b"  GETBIT  a\t7 \n"),
            [b"GETBIT".to_vec(), b"a".to_vec(), b"7".to_vec()]
        );
        assert_eq!(
            words(b"\"a\\x41\\n\\\"\" '' 'it\\'s'\n"),
            [b"aA\n\"".to_vec(), b"".to_vec(), b"it's".to_vec()]
        );
        assert_eq!(words(b"\r\n"), Vec::<Vec<u8>>::new());
        for line in [&b"\"a\n"[..], b"'a\n", b"\"a\"b\n"] {
            assert_eq!(all(line), Err(ProtocolError::UnbalancedQuotes));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_none(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1')], 0..80)) {
            if let Ok(Some((used, _))) = all(&bytes) {
                prop_assert!(used > 0 && used <= bytes.len());
            }
        }
    }
}
