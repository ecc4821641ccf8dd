//! The tags filter of a subscribe command: a tree of comparisons.
//!
//! Owns: [`wanted_tags`], which reads both encodings. Muster compares tags by equality, so the tree comes down to the values that
//! are wanted of each tag; a tree that says more is refused, as its client would get other messages than it asked for.

use serde::Deserialize;

use super::command::Malformed;
use super::fields::Encoding;
use super::protobuf;

/// Wanted values by name of a tag: a message must have all of these tags, each with one of its values.
pub type WantedTags = Vec<(String, Vec<String>)>;

/// Bytes of a filter in its encoding: names and values of the longest one that a room takes, several times over.
const BYTES_MAX: usize = 4_096;
/// Levels of a filter.
const DEPTH_MAX: usize = 8;
/// Comparisons and operators of the protocol that no other can stand for.
const OTHERS: [&str; 11] = ["neq", "nin", "ex", "nex", "sw", "ew", "ct", "lt", "lte", "gt", "gte"];
const OTHER_OPERATORS: [&str; 2] = ["or", "not"];

/// Why a filter is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    Malformed,
    /// It has a comparison or an operator other than `eq`, `in` and `and`.
    Operator,
}

impl From<Malformed> for Unfit {
    fn from(_: Malformed) -> Self {
        Unfit::Malformed
    }
}

/// One comparison, or an operator with others below it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub op: String,
    pub key: String,
    pub cmp: String,
    pub val: String,
    pub vals: Vec<String>,
    pub nodes: Vec<Node>,
}

/// Reads a filter. `None`: the bytes stand for none.
pub fn wanted_tags(encoding: Encoding, bytes: &[u8]) -> Result<Option<WantedTags>, Unfit> {
    if bytes.len() > BYTES_MAX {
        return Err(Unfit::Malformed);
    }
    let node = match encoding {
        Encoding::Json if bytes == b"null" => return Ok(None),
        Encoding::Json => serde_json::from_slice(bytes).map_err(|_| Unfit::Malformed)?,
        Encoding::Protobuf => protobuf::filter_node(bytes, DEPTH_MAX)?,
    };
    let mut wanted = Vec::new();
    compare(node, DEPTH_MAX, &mut wanted)?;
    Ok(Some(wanted))
}

fn compare(node: Node, levels: usize, wanted: &mut WantedTags) -> Result<(), Unfit> {
    if levels == 0 {
        return Err(Unfit::Malformed);
    }
    match (&*node.op, &*node.cmp) {
        ("and", _) if !node.nodes.is_empty() => {
            let mut below = node.nodes.into_iter();
            below.try_for_each(|node| compare(node, levels - 1, wanted))
        }
        ("", "eq") => {
            wanted.push((node.key, vec![node.val]));
            Ok(())
        }
        ("", "in") => {
            wanted.push((node.key, node.vals));
            Ok(())
        }
        ("", cmp) if OTHERS.contains(&cmp) => Err(Unfit::Operator),
        (op, _) if OTHER_OPERATORS.contains(&op) => Err(Unfit::Operator),
        _ => Err(Unfit::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Option<WantedTags>, Unfit> {
        wanted_tags(Encoding::Json, text.as_bytes())
    }

    #[test]
    fn equality_and_alternatives_joined_by_and_become_wanted_values() {
        let text = r#"{"op":"and","nodes":[{"key":"pair","cmp":"in","vals":["EUR","USD"]},{"key":"kind","cmp":"eq","val":"trade"}]}"#;
        // As the encoder of PyPI's centrifuge-python 0.7.0 writes the same.
        let packet = [
            &b"\x0a\x03and\x32\x14\x12\x04pair\x1a\x02in\x2a\x03EUR\x2a\x03USD"[..],
            b"\x32\x11\x12\x04kind\x1a\x02eq\x22\x05trade",
        ]
        .concat();
        let wanted = vec![
            ("pair".to_owned(), vec!["EUR".to_owned(), "USD".to_owned()]),
            ("kind".to_owned(), vec!["trade".to_owned()]),
        ];
        assert_eq!(read(text), Ok(Some(wanted.clone())));
        assert_eq!(wanted_tags(Encoding::Protobuf, &packet), Ok(Some(wanted)));
        assert_eq!(read("null"), Ok(None));
        let empty = vec![("a".to_owned(), vec![String::new()])];
        assert_eq!(
            read(r#"{"key":"a","cmp":"eq"}"#),
            Ok(Some(empty)),
            "SDKs leave out empty values"
        );
    }

    #[test]
    fn a_filter_that_says_more_is_refused_by_its_own_error() {
        for cmp in OTHERS {
            let text = format!(r#"{{"key":"a","cmp":"{cmp}","val":"1"}}"#);
            assert_eq!(read(&text), Err(Unfit::Operator), "{cmp}");
            let below = format!(r#"{{"op":"and","nodes":[{text}]}}"#);
            assert_eq!(read(&below), Err(Unfit::Operator), "{cmp}");
        }
        for op in OTHER_OPERATORS {
            let text = format!(r#"{{"op":"{op}","nodes":[{{"key":"a","cmp":"eq","val":"1"}}]}}"#);
            assert_eq!(read(&text), Err(Unfit::Operator), "{op}");
        }
        let deep = format!(
            r#"{}{{"key":"a","cmp":"eq"}}{}"#,
            r#"{"op":"and","nodes":["#.repeat(DEPTH_MAX),
            "]}".repeat(DEPTH_MAX)
        );
        for text in [
            "1",
            "{}",
            r#"{"key":"a","cmp":"is"}"#,
            r#"{"op":"xor"}"#,
            r#"{"op":"and"}"#,
            &deep,
            &format!(r#"{{"key":"{}","cmp":"eq"}}"#, "a".repeat(BYTES_MAX)),
        ] {
            assert_eq!(read(text), Err(Unfit::Malformed), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = wanted_tags(Encoding::Json, &bytes);
            let _ = wanted_tags(Encoding::Protobuf, &bytes);
        }
    }
}
