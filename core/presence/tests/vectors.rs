//! The golden vectors of presence, `tests/vectors/presence.json`: each is parsed to its fields and written back to
//! its bytes. `tests/reference/presence.py` parses the same file.

use muster_presence::{kinds, Device, Message};
use muster_transport::Frames;
use serde_json::{json, Value};

fn cases() -> Vec<Value> {
    let path = format!("{}/../../tests/vectors/presence.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the file is part of the repository");
    let vectors: Value = serde_json::from_str(&text).expect("vectors are JSON");
    vectors["frames"].as_array().expect("a list of cases").clone()
}

fn bytes(case: &Value) -> Vec<u8> {
    let digits = case["bytes"].as_str().expect("a string");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Numbers as strings, as the vectors write them.
fn strings(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::String(number.to_string()),
        Value::Array(list) => list.into_iter().map(strings).collect(),
        Value::Object(map) => map.into_iter().map(|(name, value)| (name, strings(value))).collect(),
        other => other,
    }
}

fn device(device: &Device) -> String {
    String::from_utf8_lossy(device.name()).into_owned()
}

fn ranges(ranges: &[(u64, u64)]) -> Value {
    let range = |(first, last): &(u64, u64)| json!({"first": first, "more": last.wrapping_sub(*first)});
    ranges.iter().map(range).collect()
}

fn events(events: muster_presence::Events<'_>) -> Value {
    let events = events.read().expect("events are well formed").into_iter();
    let event = |event: muster_presence::Event| {
        json!({"index": event.index, "user": event.user, "device": device(&event.device), "state": event.state.code(),
            "at_ms": event.at_ms})
    };
    events.map(event).collect()
}

fn any(of: &Option<Device>) -> String {
    of.as_ref().map(device).unwrap_or_default()
}

fn fields(message: &Message<'_>) -> Value {
    match message {
        Message::Report(one) => json!({"ap": one.origin.ap, "epoch": one.origin.epoch, "version": one.version,
            "events": events(one.events)}),
        Message::Share(one) => {
            json!({"map": one.map, "of": one.shard.of, "shard": one.shard.index, "ap": one.origin.ap,
            "epoch": one.origin.epoch, "version": one.version, "events": events(one.events)})
        }
        Message::Empty(one) => {
            json!({"map": one.map, "of": one.shard.of, "shard": one.shard.index, "ap": one.origin.ap,
            "epoch": one.origin.epoch, "first": one.first, "last": one.last})
        }
        Message::Beat(one) => json!({"ap": one.origin.ap, "epoch": one.origin.epoch, "newest": one.newest}),
        Message::Ask(one) => json!({"transaction": one.transaction, "of": one.shard.of, "shard": one.shard.index,
            "ap": one.origin.ap, "epoch": one.origin.epoch, "ranges": ranges(&one.ranges)}),
        Message::TooOld(one) => json!({"transaction": one.transaction, "ap": one.origin.ap, "epoch": one.origin.epoch,
            "oldest": one.oldest, "newest": one.newest}),
        Message::FullAsk(one) => json!({"transaction": one.transaction, "of": one.shard.of, "shard": one.shard.index,
            "ap": one.ap, "ranges": ranges(&one.chunks)}),
        Message::Chunk(one) => {
            let entries = one.entries.read().expect("entries are well formed").into_iter();
            let entry = |entry: muster_presence::Entry| {
                json!({"user": entry.user, "device": device(&entry.device), "version": entry.version,
                    "index": entry.index, "since_ms": entry.since_ms})
            };
            json!({"transaction": one.transaction, "ap": one.origin.ap, "epoch": one.origin.epoch,
                "version": one.version, "index": one.index, "count": one.count, "entries": entries.map(entry).collect::<Value>()})
        }
        Message::Wait(one) => json!({"transaction": one.transaction, "ap": one.origin.ap, "epoch": one.origin.epoch,
            "wait_ms": one.wait_ms}),
        Message::Supersede(one) => json!({"ap": one.origin.ap, "epoch": one.origin.epoch, "user": one.user,
            "device": device(&one.device), "version": one.version, "index": one.index}),
        Message::Unicast(one) | Message::End(one) => {
            json!({"server": one.id.server, "epoch": one.id.epoch, "sequence": one.id.sequence,
            "after": one.after, "user": one.user, "device": any(&one.device), "expires_ms": one.expires_ms,
            "body": hex(one.body)})
        }
        Message::UnicastAnswer(one) => {
            let outcomes = one.outcomes.iter();
            let outcome = |(of, outcome): &(Option<Device>, _)| json!({"device": any(of), "outcome": *outcome as u8});
            json!({"server": one.id.server, "epoch": one.id.epoch, "sequence": one.id.sequence, "ap": one.ap,
                "outcomes": outcomes.map(outcome).collect::<Value>()})
        }
        Message::Here(one) => {
            let shard = one.shard.map_or((0, 0), |shard| (shard.of, shard.index));
            json!({"site": one.site, "of": shard.0, "shard": shard.1})
        }
    }
}

#[test]
fn every_vector_parses_and_encodes() {
    let cases = cases();
    assert!(cases.len() >= kinds::ELICITING.len() + kinds::SILENT.len());
    for case in cases {
        let bytes = bytes(&case);
        let frame = Frames::new(&bytes, kinds::ALL)
            .next()
            .expect("a frame")
            .expect("a good one");
        assert_eq!(frame.kind.code().to_string(), case["kind"], "{case}");
        let message = Message::read(frame.kind, frame.body).unwrap_or_else(|| panic!("{case} is malformed"));
        assert_eq!(strings(fields(&message)), case["fields"]);
        assert_eq!(hex(&message.to_frame()), hex(&bytes));
    }
}

#[test]
fn a_cut_or_longer_vector_is_malformed_or_another_frame() {
    for case in cases() {
        let bytes = bytes(&case);
        let frame = Frames::new(&bytes, kinds::ALL)
            .next()
            .expect("a frame")
            .expect("a good one");
        for len in 0..frame.body.len() {
            if let Some(message) = Message::read(frame.kind, &frame.body[..len]) {
                // The remaining bytes encode the parsed frame: a shorter list.
                assert_eq!(&message.to_frame()[4..], &frame.body[..len], "{case} cut at {len}");
            }
        }
        let longer = [frame.body, &[0]].concat();
        let is_good = match Message::read(frame.kind, &longer) {
            Some(Message::Report(one)) => one.events.read().is_some(),
            Some(Message::Share(one)) => one.events.read().is_some(),
            Some(Message::Chunk(one)) => one.entries.read().is_some(),
            other => other.is_some(),
        };
        // Only a body of any bytes may grow.
        assert_eq!(
            is_good,
            [kinds::UNICAST, kinds::END].contains(&frame.kind) && bytes.len() < 1_000,
            "{case}"
        );
    }
}
