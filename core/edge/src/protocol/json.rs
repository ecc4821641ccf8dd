//! The JSON encoding: commands out of lines, and data that must be JSON itself.
//!
//! Owns: [`command`], [`is_json`], [`as_json`]. All `bytes` fields of the protocol are raw JSON here, so one publisher's
//! data could break the line of every receiver. Data that is no JSON, or JSON that a receiver's parser may refuse, is handed
//! on as a string of base64.

use std::borrow::Cow;

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::command::{Command, Connect, History, Malformed, Request, SubRefresh, Subscribe};
use crate::limits::JSON_DEPTH_MAX;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    id: u32,
    #[serde(borrow)]
    connect: Option<Box<Connect<'a>>>,
    #[serde(borrow)]
    subscribe: Option<Box<Subscribe<'a>>>,
    #[serde(borrow)]
    unsubscribe: Option<Channel<'a>>,
    #[serde(borrow)]
    publish: Option<Publish<'a>>,
    #[serde(borrow)]
    presence: Option<Channel<'a>>,
    #[serde(borrow)]
    presence_stats: Option<Channel<'a>>,
    #[serde(borrow)]
    history: Option<History<'a>>,
    ping: Option<IgnoredAny>,
    #[serde(borrow)]
    send: Option<Data<'a>>,
    #[serde(borrow)]
    rpc: Option<Rpc<'a>>,
    #[serde(borrow)]
    refresh: Option<Token<'a>>,
    #[serde(borrow)]
    sub_refresh: Option<SubRefresh<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Channel<'a> {
    #[serde(borrow)]
    channel: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Publish<'a> {
    #[serde(borrow)]
    channel: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "raw")]
    data: Option<&'a [u8]>,
    #[serde(rename = "type")]
    kind: i32,
    #[serde(borrow)]
    key: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data<'a> {
    #[serde(borrow, deserialize_with = "raw")]
    data: Option<&'a [u8]>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Rpc<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "raw")]
    data: Option<&'a [u8]>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Token<'a> {
    #[serde(borrow)]
    token: Cow<'a, str>,
}

/// The JSON text of a value, `null` included.
pub(super) fn raw<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de [u8]>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(|value| Some(value.get().as_bytes()))
}

/// Reads the command of one line.
pub(super) fn command(line: &[u8]) -> Result<Command<'_>, Malformed> {
    // The library would take a list for an object's fields in order.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err(Malformed);
    }
    let line: Line<'_> = serde_json::from_slice(line).map_err(|_| Malformed)?;
    let mut requests = [
        line.connect.map(Request::Connect),
        line.subscribe.map(Request::Subscribe),
        line.unsubscribe
            .map(|one| Request::Unsubscribe { channel: one.channel }),
        line.publish.map(|one| Request::Publish {
            channel: one.channel,
            data: one.data,
            keyed: one.kind != 0 || !one.key.is_empty(),
        }),
        line.presence.map(|one| Request::Presence { channel: one.channel }),
        line.presence_stats
            .map(|one| Request::PresenceStats { channel: one.channel }),
        line.history.map(Request::History),
        line.ping.map(|_| Request::Ping),
        line.send.map(|one| Request::Send { data: one.data }),
        line.rpc.map(|one| Request::Rpc {
            method: one.method,
            data: one.data,
        }),
        line.refresh.map(|one| Request::Refresh { token: one.token }),
        line.sub_refresh.map(Request::SubRefresh),
    ]
    .into_iter()
    .flatten();
    let request = requests.next();
    if requests.next().is_some() {
        return Err(Malformed);
    }
    Ok(Command {
        id: line.id,
        request: request.unwrap_or(Request::Pong),
    })
}

/// Whether every client's parser takes this as one JSON value: not too deep, no lone surrogates, no number out of range.
pub fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Checked<JSON_DEPTH_MAX>>(bytes).is_ok()
}

/// The JSON that stands for these bytes, and whether they are JSON themselves.
pub fn as_json(bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::with_capacity(bytes.len() + 2);
    let is = value(&mut out, bytes);
    (out, is)
}

/// Writes bytes as a JSON value. Returns whether they are JSON themselves.
pub(super) fn value(out: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let is = is_json(bytes);
    checked(out, bytes, is);
    is
}

/// Writes bytes as a JSON value in one line.
pub(super) fn checked(out: &mut Vec<u8>, bytes: &[u8], is_json: bool) {
    if is_json {
        let start = out.len();
        out.extend_from_slice(bytes.trim_ascii());
        // Strings have no raw line ends, so those that are left are space between tokens.
        for byte in &mut out[start..] {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        return;
    }
    out.push(b'"');
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = STANDARD
        .encode_slice(bytes, &mut out[start..])
        .expect("there is room for four characters of three bytes");
    out.truncate(start + written);
    out.push(b'"');
}

pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a vector takes all");
}

/// Parses a value whole and keeps nothing. [`IgnoredAny`] would let lone surrogates and any depth pass.
struct Checked<const DEPTH: usize>;

impl<'de, const DEPTH: usize> Deserialize<'de> for Checked<DEPTH> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Level(DEPTH))?;
        Ok(Checked)
    }
}

/// A value that may hold this many levels more.
#[derive(Clone, Copy)]
struct Level(usize);

impl<'de> de::DeserializeSeed<'de> for Level {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Level {
    fn below<E: de::Error>(self) -> Result<Level, E> {
        self.0.checked_sub(1).map(Level).ok_or_else(|| E::custom("too deep"))
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let below = self.below()?;
        while items.next_element_seed(below)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let below = self.below()?;
        while items.next_key_seed(below)?.is_some() {
            items.next_value_seed(below)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_breaks_a_receivers_parser_is_no_json() {
        for good in [
            "1",
            "null",
            " {\"a\": [1, 2.5e3, \"\\u00e9\"]}\n",
            "\"\\ud83d\\ude00\"",
            "{\"\":{}}",
        ] {
            assert!(is_json(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            "{",
            "{}{}",
            "nul",
            "\"\\ud800\"",
            "1e999",
            "\"\u{1}\"",
            "{\"a\":1,}",
            "[01]",
            "NaN",
        ] {
            assert!(!is_json(bad.as_bytes()), "{bad}");
        }
        assert!(!is_json(b"\"\xff\""));
        let deep = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(is_json(&deep(JSON_DEPTH_MAX)));
        assert!(!is_json(&deep(JSON_DEPTH_MAX + 1)));
        assert!(!is_json(&deep(1_000_000)), "a bomb does not overflow the stack");
    }

    #[test]
    fn a_value_stays_in_its_line() {
        assert_eq!(as_json(b"\n{\"a\":\r\n 1}\n"), (b"{\"a\":   1}".to_vec(), true));
        assert_eq!(as_json(b"{\"a\":\n"), (b"\"eyJhIjoK\"".to_vec(), false));
        assert_eq!(as_json(b"\x00\xff"), (b"\"AP8=\"".to_vec(), false));
    }
}
