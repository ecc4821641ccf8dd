//! The two encodings: vectors of the SDKs, hostile input, and properties against a plain reference.

use std::collections::BTreeMap;

use muster_edge::limits::JSON_DEPTH_MAX;
use muster_edge::protocol::{
    as_json, commands, is_json, ClientInfo, Command, ConnectResult, Encoding, HistoryResult, Malformed, Publication,
    Push, RefreshResult, Replies, Request, SubscribeResult,
};
use muster_edge::{Failure, Frame, Unsubscribe};
use proptest::prelude::*;
use serde_json::{json, Value};

const COMMANDS: &str = include_str!("vectors/commands.txt");
const MESSAGES: &str = include_str!("vectors/messages.txt");
const REPLIES: &str = include_str!("vectors/replies.txt");

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn one(encoding: Encoding, message: &[u8]) -> Result<Command<'_>, Malformed> {
    let mut all = commands(encoding, message);
    let first = all.next().expect("a command");
    assert!(all.next().is_none());
    first
}

#[test]
fn commands_of_the_sdk_are_read_alike_in_both_encodings() {
    let lines: Vec<&str> = COMMANDS.lines().filter(|line| !line.starts_with('#')).collect();
    let mut seen = Vec::new();
    for three in lines.chunks_exact(3) {
        let [name, text, hex] = three else { unreachable!() };
        let packet = unhex(hex);
        let (text, packet) = (one(Encoding::Json, text.as_bytes()), one(Encoding::Protobuf, &packet));
        assert!(text.is_ok(), "{name}");
        assert_eq!(text, packet, "{name}");
        seen.push((*name, format!("{:?}", text.unwrap())));
    }
    let found = |name: &str| seen.iter().find(|one| one.0 == name).map(|one| one.1.as_str()).unwrap();
    assert_eq!(found("pong"), "Command { id: 0, request: Pong }");
    assert_eq!(found("ping"), "Command { id: 300, request: Ping }");
    assert_eq!(
        found("unsubscribe"),
        "Command { id: 3, request: Unsubscribe { channel: \"a:b\" } }"
    );
    assert!(found("connect").contains("token: \"tök\"") && found("connect").contains("offset: 7"));
    assert!(found("subscribe").contains("offset: 9007199254740992") && found("subscribe").contains("flag: 3"));
    assert!(found("history").contains("limit: -1") && found("history").contains("reverse: true"));
    assert_eq!(seen.len(), 15);
}

#[test]
fn messages_that_sdks_sent_are_read_whole() {
    let mut kinds = std::collections::BTreeSet::new();
    for line in MESSAGES.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.splitn(3, ' ');
        let [sdk, encoding, payload] = [(); 3].map(|()| words.next().expect("three words"));
        let (encoding, message) = match encoding {
            "json" => (
                Encoding::Json,
                serde_json::from_str::<String>(payload).unwrap().into_bytes(),
            ),
            _ => (Encoding::Protobuf, unhex(payload)),
        };
        for command in commands(encoding, &message) {
            let command = command.unwrap_or_else(|_| panic!("{line}"));
            let debug = format!("{:?}", command.request);
            let kind = debug.split(['(', ' ']).next().unwrap().to_owned();
            if let Request::Subscribe(subscribe) = &command.request {
                assert!(
                    subscribe.recoverable && subscribe.positioned && subscribe.join_leave,
                    "{line}"
                );
                assert_eq!((&*subscribe.channel, &*subscribe.token), ("a:b", "s"));
            }
            if let Request::Connect(connect) = &command.request {
                assert_eq!((&*connect.token, &*connect.name), ("t", sdk));
            }
            assert_eq!(
                command.id == 0,
                matches!(command.request, Request::Pong | Request::Send { .. }),
                "{line}"
            );
            kinds.insert((sdk, kind));
        }
    }
    let of = |name: &str| kinds.iter().filter(|(sdk, _)| *sdk == name).count();
    assert_eq!((of("js"), of("python"), of("go")), (10, 9, 10));
}

/// The replies that the vectors name.
fn replies(encoding: Encoding) -> BTreeMap<&'static str, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut add = |name: &'static str, write: &dyn Fn(&mut Replies)| {
        let mut replies = Replies::new(encoding);
        write(&mut replies);
        all.insert(name, replies.into_bytes());
    };
    let position = |epoch| SubscribeResult {
        recoverable: true,
        epoch,
        offset: 3,
        ..SubscribeResult::default()
    };
    let info = |user: &'static str, client: &'static str| ClientInfo {
        user: user.into(),
        client: client.into(),
        ..ClientInfo::default()
    };
    let publications = [
        Publication {
            data: b"{\"n\":1}",
            offset: 5,
            info: Some(ClientInfo {
                conn_info: b"{}",
                chan_info: b"[]",
                ..info("7", "c")
            }),
            ..Publication::default()
        },
        Publication {
            data: b"\x00\xff",
            offset: 6,
            tags: vec![("k", "v")],
            ..Publication::default()
        },
    ];
    let told = RefreshResult {
        expires: true,
        ttl_s: 60,
    };
    add("ping", &|out| out.ping());
    add("error", &|out| out.error(1, Failure::TokenExpired));
    add("temporary", &|out| out.error(2, Failure::TooManyRequests));
    add("connect", &|out| {
        out.connect(
            1,
            &ConnectResult {
                client: "c1",
                version: "v",
                expires: true,
                ttl_s: 300,
                data: b"{\"a\":1}",
                subs: &[("a:b", position("e"))],
                ping_s: 25,
                pong: true,
                node: "n",
                time_ms: 1_700_000_000_000,
                ..ConnectResult::default()
            },
        )
    });
    add("subscribe", &|out| {
        let written = out.subscribe(
            2,
            &SubscribeResult {
                expires: true,
                ttl_s: 9,
                recoverable: true,
                epoch: "ep",
                publications: &publications,
                recovered: true,
                offset: 1 << 53,
                positioned: true,
                data: b"1",
                was_recovering: true,
                delta: true,
                id: 0,
            },
            usize::MAX,
        );
        assert_eq!(written, 2);
    });
    add("unsubscribe", &|out| out.unsubscribe(3));
    add("publish", &|out| out.publish(4));
    add("presence", &|out| out.presence(5, [("c1", info("7", "c1"))]));
    add("presence_stats", &|out| out.presence_stats(6, 300, 2));
    add("history", &|out| {
        let publications = [Publication {
            data: b"1",
            offset: 2,
            ..Publication::default()
        }];
        out.history(
            7,
            &HistoryResult {
                publications: &publications,
                epoch: "e",
                offset: 9,
            },
            usize::MAX,
        );
    });
    add("rpc", &|out| out.rpc(8, b"{\"ok\":true}"));
    add("refresh", &|out| out.refresh(9, "c1", "v", told));
    add("sub_refresh", &|out| out.sub_refresh(10, told));
    let data = [b'x'; 200];
    add("push_pub", &|out| {
        out.push(
            "a:b",
            0,
            &Push::Publication(&Publication {
                data: &data,
                offset: 300,
                ..Publication::default()
            }),
        )
    });
    add("push_join", &|out| out.push("a:b", 0, &Push::Join(&info("8", "c2"))));
    add("push_leave", &|out| out.push("a:b", 0, &Push::Leave(&info("8", "c2"))));
    add("push_unsubscribe", &|out| {
        out.push(
            "a:b",
            0,
            &Push::Unsubscribe {
                code: Unsubscribe::INSUFFICIENT,
                reason: "slow",
            },
        )
    });
    add("push_message", &|out| {
        out.push("", 0, &Push::Message { data: b"\"hi\"" })
    });
    add("push_subscribe", &|out| {
        out.push(
            "a:b",
            0,
            &Push::Subscribe {
                recoverable: true,
                epoch: "e",
                offset: 3,
                positioned: true,
                data: b"1",
            },
        )
    });
    add("push_refresh", &|out| out.push("", 0, &Push::Refresh(told)));
    all
}

#[test]
fn replies_are_the_sdks_bytes_in_protobuf() {
    let written = replies(Encoding::Protobuf);
    let mut seen = 0;
    for line in REPLIES.lines().filter(|line| !line.starts_with('#')) {
        let (name, hex) = line.split_once(' ').unwrap_or((line, ""));
        let bytes = unhex(hex);
        let reply = &written[name];
        let (len, start) = varint(reply);
        assert_eq!((len as usize, &reply[start..]), (bytes.len(), &bytes[..]), "{name}");
        seen += 1;
    }
    assert_eq!(seen, written.len());
}

#[test]
fn replies_say_the_same_in_json() {
    let written = replies(Encoding::Json);
    let text = |name: &str| serde_json::from_slice::<Value>(&written[name]).unwrap();
    assert_eq!(written["ping"], b"{}");
    assert_eq!(
        text("connect"),
        json!({"id": 1, "connect": {"client": "c1", "version": "v", "expires": true, "ttl": 300, "data": {"a": 1},
            "subs": {"a:b": {"recoverable": true, "epoch": "e", "offset": 3}}, "ping": 25, "pong": true, "node": "n",
            "time": 1_700_000_000_000_i64}})
    );
    assert_eq!(
        text("subscribe")["subscribe"]["publications"],
        json!([
            {"data": {"n": 1}, "info": {"user": "7", "client": "c", "conn_info": {}, "chan_info": []}, "offset": 5},
            {"data": "AP8=", "offset": 6, "tags": {"k": "v", "encoding": "base64"}}
        ])
    );
    assert_eq!(text("publish"), json!({"id": 4, "publish": {}}));
    assert_eq!(
        text("push_unsubscribe"),
        json!({"push": {"channel": "a:b", "unsubscribe": {"code": 2500, "reason": "slow"}}})
    );
    assert!(written.values().all(|reply| !reply.contains(&b'\n')));
}

#[test]
fn fields_that_sdks_read_unasked_stand_in_json_also_if_they_are_empty() {
    let written = |write: &dyn Fn(&mut Replies)| {
        let mut replies = Replies::new(Encoding::Json);
        write(&mut replies);
        serde_json::from_slice::<Value>(replies.bytes()).unwrap()
    };
    assert_eq!(
        written(&|out| out.presence_stats(1, 0, 0)),
        json!({"id": 1, "presence_stats": {"num_clients": 0, "num_users": 0}})
    );
    assert_eq!(
        written(&|out| out.presence(1, [])),
        json!({"id": 1, "presence": {"presence": {}}})
    );
    assert_eq!(
        written(&|out| {
            out.history(1, &HistoryResult::default(), usize::MAX);
        }),
        json!({"id": 1, "history": {"publications": [], "epoch": "", "offset": 0}})
    );
    let nobody = ClientInfo::default();
    assert_eq!(
        written(&|out| out.push("a:b", 0, &Push::Join(&nobody))),
        json!({"push": {"channel": "a:b", "join": {"info": {"user": "", "client": ""}}}})
    );
}

#[test]
fn a_number_stands_for_the_channel_and_strings_are_escaped() {
    let one = Publication {
        data: b"1",
        offset: 1,
        ..Publication::default()
    };
    let (frame, _) = Frame::publications(Encoding::Json, "a:\"\n", 0, [one.clone()], usize::MAX).unwrap();
    assert_eq!(
        frame.bytes(),
        r#"{"push":{"channel":"a:\"\n","pub":{"data":1,"offset":1}}}"#
    );
    let (frame, _) = Frame::publications(Encoding::Json, "a:b", 7, [one], usize::MAX).unwrap();
    assert_eq!(frame.bytes(), r#"{"push":{"id":7,"pub":{"data":1,"offset":1}}}"#);
}

#[test]
fn hostile_publishers_break_no_line_of_json() {
    let deep = vec![b'['; 100_000];
    for data in [
        &b"{"[..],
        b"}\n{\"push\":{}}",
        b"1}}",
        b"",
        b"\xff",
        b"\"\\ud800\"",
        &deep,
        b"1,2",
        b"{\"a\":1}{}",
    ] {
        let evil = Publication {
            data,
            offset: 1,
            ..Publication::default()
        };
        let good = Publication {
            data: b"{\"n\":1}",
            offset: 2,
            ..Publication::default()
        };
        let (frame, count) = Frame::publications(Encoding::Json, "a:b", 0, [evil, good], usize::MAX).unwrap();
        let lines: Vec<Value> = std::str::from_utf8(frame.bytes())
            .unwrap()
            .split('\n')
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!((lines.len(), count), (2, 2));
        assert_eq!(lines[1]["push"]["pub"]["data"], json!({"n": 1}));
        let first = &lines[0]["push"]["pub"];
        match data.is_empty() {
            true => assert!(first["data"].is_null() && first["tags"].is_null()),
            false => assert_eq!(first["tags"], json!({"encoding": "base64"})),
        }
    }
}

#[test]
fn malformed_commands_are_refused_in_both_encodings() {
    for text in [
        "{",
        "null",
        "1",
        "{\"id\":\"1\"}",
        "{\"id\":4294967296}",
        "{\"id\":1,\"rpc\":1}",
        "{\"id\":1}x",
        "\u{0}",
        "{\"id\":1,\"id\":2}",
        "{\"id\":1,\"publish\":{\"data\":}}",
        "{\"id\":1,\"history\":{\"limit\":1.5}}",
    ] {
        assert_eq!(one(Encoding::Json, text.as_bytes()), Err(Malformed), "{text}");
    }
    let bomb = format!("{{\"id\":1,\"rpc\":{{\"data\":{}}}}}", "[".repeat(100_000));
    assert_eq!(one(Encoding::Json, bomb.as_bytes()), Err(Malformed));
    for hex in [
        "05",
        "0208",
        "020801ff",
        "02ffff",
        "0b0affffffffffffffffff7f",
        "ffffffffffffffffff02",
        "0200ff",
        "020b01",
        "0422020a05",
        "0622040a02ff",
        "062a040a02fffe",
        "043a021001",
        "0408010805220022",
    ] {
        let bytes = unhex(hex);
        let last = commands(Encoding::Protobuf, &bytes).last();
        assert_eq!(last, Some(Err(Malformed)), "{hex}");
    }
    // Unknown fields of every kind are skipped.
    let skipped = [
        &[0x08, 0x01][..],
        &[0xa0, 0x06, 0x05],
        &[0xa2, 0x06, 0x01, 0x00],
        &[0xa5, 0x06, 1, 2, 3, 4],
        &[0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x72, 0x00],
    ]
    .concat();
    let packet = [&[skipped.len() as u8][..], &skipped].concat();
    assert!(matches!(
        one(Encoding::Protobuf, &packet),
        Ok(Command {
            id: 1,
            request: Request::Refresh { .. }
        })
    ));
}

#[test]
fn a_deep_command_is_handed_on_and_never_parsed_by_depth() {
    let data = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    let text = format!("{{\"id\":1,\"rpc\":{{\"data\":{data}}}}}");
    let Ok(Command {
        request: Request::Rpc { data: Some(raw), .. },
        ..
    }) = one(Encoding::Json, text.as_bytes())
    else {
        panic!("raw data has any depth");
    };
    assert!(raw.len() == 100_000 && !is_json(raw));
    assert!(data.len() > JSON_DEPTH_MAX);
}

/// A varint and its length, by the plain rule.
fn varint(bytes: &[u8]) -> (u64, usize) {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0).expect("an end");
    let value = bytes[..=end]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
    (value, end + 1)
}

/// The fields of a Protobuf message by their numbers: numbers and bytes.
fn fields(mut bytes: &[u8]) -> BTreeMap<u64, Vec<(u64, Vec<u8>)>> {
    let mut found: BTreeMap<u64, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    while !bytes.is_empty() {
        let (key, len) = varint(bytes);
        bytes = &bytes[len..];
        let (number, len) = varint(bytes);
        bytes = &bytes[len..];
        let value = match key & 7 {
            0 => (number, vec![]),
            2 => {
                let (value, rest) = bytes.split_at(number as usize);
                bytes = rest;
                (0, value.to_vec())
            }
            kind => panic!("kind {kind}"),
        };
        found.entry(key >> 3).or_default().push(value);
    }
    found
}

fn any_data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..300),
        "[ -~]{1,40}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<i32>(), 0..40)
            .prop_map(|numbers| json!({ "n": numbers }).to_string().into_bytes()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// A publication says the same in both encodings, by readers that share nothing with the writer.
    #[test]
    fn publications_say_the_same_in_both_encodings(
        channel in "[a-z]{1,8}:\\PC{0,8}", data in any_data(), offset in 1u64.., time_ms in 1i64.., delta in any::<bool>(),
        user in "\\PC{1,6}", tag in "\\PC{1,6}",
    ) {
        let tags = [("k", tag.as_str())];
        let info = ClientInfo { user: user.as_str().into(), client: "c".into(), ..ClientInfo::default() };
        let publication = Publication { data: &data, info: Some(info), offset, tags: tags.to_vec(), delta, quoted: false, time_ms, epoch: "e" };
        let frame = |encoding| {
            Frame::publications(encoding, &channel, 0, [publication.clone()], usize::MAX).unwrap().0.bytes().clone()
        };
        let packet = frame(Encoding::Protobuf);
        let (len, start) = varint(&packet);
        prop_assert_eq!(len as usize, packet.len() - start);
        let push = fields(&fields(&packet[start..])[&4][0].1);
        let read = fields(&push[&4][0].1);
        prop_assert_eq!(&push[&2][0].1, channel.as_bytes());
        prop_assert_eq!(&read[&4][0].1, &data);
        prop_assert_eq!((read[&6][0].0, read[&9][0].0 as i64, read.contains_key(&8)), (offset, time_ms, delta));
        prop_assert_eq!(&fields(&read[&5][0].1)[&1][0].1, user.as_bytes());
        prop_assert_eq!(&fields(&read[&7][0].1)[&2][0].1, tag.as_bytes());

        let text = frame(Encoding::Json);
        prop_assert!(!text.contains(&b'\n'));
        let value: Value = serde_json::from_slice(&text).unwrap();
        let read = &value["push"]["pub"];
        prop_assert_eq!(&value["push"]["channel"], &json!(channel));
        prop_assert_eq!((&read["offset"], &read["time"]), (&json!(offset), &json!(time_ms)));
        prop_assert_eq!((&read["info"]["user"], &read["tags"]["k"]), (&json!(user), &json!(tag)));
        match serde_json::from_slice::<Value>(&data) {
            Ok(same) if is_json(&data) => prop_assert_eq!(&read["data"], &same),
            _ => {
                use base64::Engine;
                let decoded = base64::engine::general_purpose::STANDARD.decode(read["data"].as_str().unwrap());
                prop_assert_eq!(decoded.unwrap(), data);
                prop_assert_eq!(&read["tags"]["encoding"], &json!("base64"));
            }
        }
    }

    /// Whatever is put into JSON is one value in one line, with the same meaning.
    #[test]
    fn json_stays_one_value_in_one_line(data in any_data()) {
        let (text, is) = as_json(&data);
        prop_assert!(!text.contains(&b'\n') && !text.contains(&b'\r'));
        let value: Value = serde_json::from_slice(&text).unwrap();
        if is {
            prop_assert_eq!(value, serde_json::from_slice::<Value>(&data).unwrap());
        }
    }

    /// Any bytes are read without a panic, and reading ends.
    #[test]
    fn any_bytes_are_commands_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), json in any::<bool>()) {
        let encoding = if json { Encoding::Json } else { Encoding::Protobuf };
        prop_assert!(commands(encoding, &bytes).count() <= bytes.len());
    }

    /// A vector with a byte changed, or cut, is read or refused.
    #[test]
    fn spoiled_vectors_are_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        for line in COMMANDS.lines().filter(|line| !line.starts_with('#')) {
            let packet = line.len() % 2 == 0 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
            let (mut bytes, encoding) = match packet {
                true => (unhex(line), Encoding::Protobuf),
                false => (line.as_bytes().to_vec(), Encoding::Json),
            };
            let place = at.index(bytes.len());
            bytes[place] = byte;
            let _ = commands(encoding, &bytes[..cut.index(bytes.len() + 1)]).count();
        }
    }
}
