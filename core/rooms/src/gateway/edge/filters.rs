//! The filter of a client, as its subscribe command has it: as tags filter of the protocol, in its data, or both.
//!
//! Owns: the words of the data. Whether a message passes is the gateway's own matter.

use muster_edge::{Failure, Join};
use serde_json::Value;

use crate::filter::Filter;

/// The key of the data that filters stand under; the rest is the application's.
const KEY: &str = "filter";
const EXPECTED: Failure =
    Failure::filter("a filter is {\"equal\": {NAME: VALUE or [VALUE]}, \"one_in\": NUMBER, \"at_most_per_s\": NUMBER}");

/// The filter that a client asks for; `None`: it wants everything.
pub(super) fn wanted(join: &Join) -> Result<Option<Filter>, Failure> {
    let mut equal = join.tags.clone();
    let data = serde_json::from_slice::<Value>(&join.data).unwrap_or_default();
    let asked = data.get(KEY).filter(|asked| !asked.is_null());
    let (mut one_in, mut at_most_per_s) = (1, None);
    if let Some(asked) = asked {
        for (word, value) in asked.as_object().ok_or(EXPECTED)? {
            match word.as_str() {
                "equal" => {
                    let headers = value.as_object().ok_or(EXPECTED)?;
                    for (name, values) in headers {
                        equal.push((name.clone(), texts(values).ok_or(EXPECTED)?));
                    }
                }
                "one_in" => {
                    one_in = number(value)?;
                }
                "at_most_per_s" => at_most_per_s = Some(number(value)?),
                _ => return Err(EXPECTED),
            }
        }
    }
    if asked.is_none() && equal.is_empty() {
        return Ok(None);
    }
    let all = equal
        .iter()
        .map(|(name, values)| (name.as_str(), values.iter().map(String::as_str)));
    let filter = Filter::latest(all, one_in, at_most_per_s).map_err(|error| Failure::filter(error.text()))?;
    Ok(Some(filter))
}

/// A number; one that is too big is as big as can be, and refused by its bound.
fn number(value: &Value) -> Result<u32, Failure> {
    let number = value.as_u64().ok_or(EXPECTED)?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

/// One text or several.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(all) => all.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}
