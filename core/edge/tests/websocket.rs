//! The upgrade and the frames, by the vectors of RFC 6455, by hostile input, and by properties with cuts at any byte.

mod common;

use common::{frame, frames, request, Browser};
use muster_edge::limits::{HEAD_BYTES_MAX, HEAD_WITHIN, MESSAGE_BYTES_MAX, UNKNOWN_BYTES_MAX};
use muster_edge::protocol::Encoding;
use muster_edge::websocket::{mask, put_head, Opcode, Origins, Read, Reader, Violation};
use muster_edge::Ask;
use proptest::prelude::*;

/// The answer to a request with these headers more.
fn answer(target: &str, more: &str, origins: Origins) -> String {
    let mut browser = Browser::new();
    browser.settings.origins = origins;
    browser.bytes(request(target, more).as_bytes());
    String::from_utf8(browser.take_written()).unwrap()
}

#[test]
fn an_upgrade_is_proven_as_the_rfc_has_it() {
    let text = answer("/connection/websocket", "", Origins::SameHost);
    assert_eq!(
        text,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    );
}

#[test]
fn the_encoding_is_chosen_by_subprotocol_or_query() {
    let cases = [
        ("", "", Encoding::Json, None),
        ("", "Sec-WebSocket-Protocol: \r\n", Encoding::Json, None),
        (
            "",
            "Sec-WebSocket-Protocol: chat, centrifuge-json\r\n",
            Encoding::Json,
            Some("centrifuge-json"),
        ),
        (
            "",
            "Sec-WebSocket-Protocol: centrifuge-protobuf\r\n",
            Encoding::Protobuf,
            Some("centrifuge-protobuf"),
        ),
        ("?cf_protocol=protobuf", "", Encoding::Protobuf, None),
        ("?x=1&format=protobuf", "", Encoding::Protobuf, None),
        (
            "?format=json",
            "Sec-WebSocket-Extensions: permessage-deflate\r\n",
            Encoding::Json,
            None,
        ),
    ];
    for (query, more, encoding, said) in cases {
        let mut browser = Browser::new();
        browser.bytes(request(&format!("/connection/websocket{query}"), more).as_bytes());
        let text = String::from_utf8(browser.take_written()).unwrap();
        assert_eq!(browser.connection.encoding(), Some(encoding), "{query} {more}");
        assert_eq!(text.split("Sec-WebSocket-Protocol: ").nth(1).map(str::trim_end), said);
        assert!(!text.contains("Extensions"), "deflate is never negotiated");
    }
}

#[test]
fn origins_are_checked_and_the_refusal_names_the_key() {
    let with = |origin: &str, origins: &Origins| {
        answer(
            "/connection/websocket",
            &format!("Origin: {origin}\r\n"),
            origins.clone(),
        )
    };
    let listed = Origins::Listed(vec!["https://example.com".into(), "https://*.example.org".into()]);
    for (origin, origins, granted) in [
        ("https://edge.example.com", &Origins::SameHost, true),
        ("http://EDGE.example.com", &Origins::SameHost, true),
        ("https://edge.example.com:8443", &Origins::SameHost, false),
        ("https://example.com", &Origins::SameHost, false),
        ("null", &Origins::SameHost, false),
        ("null", &Origins::Any, true),
        ("https://example.com", &listed, true),
        ("https://EXAMPLE.com", &listed, true),
        ("http://example.com", &listed, false),
        ("https://a.b.example.org", &listed, true),
        ("https://.example.org", &listed, false),
        ("https://evil.com/.example.org", &listed, false),
        ("https://evil.com:1.example.org", &listed, false),
        ("https://example.com.evil.com", &listed, false),
    ] {
        let text = with(origin, origins);
        assert_eq!(text.starts_with("HTTP/1.1 101 "), granted, "{origin} {origins:?}");
        if !granted {
            let body = text.split("\r\n\r\n").nth(1).unwrap();
            assert!(text.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{text}");
            assert_eq!(
                body,
                format!("origin {origin} is not allowed; add it to edge.origins\n")
            );
        }
    }
    assert!(with("https://a\u{1b}[31m", &listed).starts_with("HTTP/1.1 400 "));
}

#[test]
fn requests_that_are_no_upgrade_are_refused_with_a_reason() {
    let good = request("/connection/websocket", "");
    let cases = [
        ("HELO\r\n\r\n".to_owned(), "400"),
        (good.replace("HTTP/1.1", "HTTP/1.0"), "400"),
        (good.replace("/connection/websocket", "/"), "404"),
        (good.replace("GET", "POST"), "426"),
        (good.replace("Upgrade: websocket\r\n", ""), "426"),
        (good.replace("keep-alive, Upgrade", "keep-alive"), "426"),
        (good.replace("Version: 13", "Version: 8"), "426"),
        (good.replace("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ=="), "400"),
        (good.replace("Host: edge.example.com\r\n", ""), "400"),
        (request("/connection/websocket", "Host: evil.com\r\n"), "400"),
        (request("/connection/websocket", "Content-Length: 5\r\n"), "400"),
        (
            request("/connection/websocket", "Transfer-Encoding: chunked\r\n"),
            "400",
        ),
        (request("/connection/websocket", &"X: y\r\n".repeat(80)), "400"),
        (
            request(
                "/connection/websocket",
                &format!("X: {}\r\n", "y".repeat(HEAD_BYTES_MAX)),
            ),
            "400",
        ),
    ];
    for (text, status) in cases {
        let mut browser = Browser::new();
        browser.bytes(text.as_bytes());
        let answer = String::from_utf8(browser.take_written()).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer} for {}",
            &text[..text.len().min(300)]
        );
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())) && head.contains("Connection: close"));
        assert!(browser.connection.is_done() && browser.connection.session().is_none());
        assert_eq!(browser.counters.refused_request, 1);
        assert_eq!(
            status == "426",
            answer.contains("Upgrade: websocket") || answer.contains("Version: 13")
        );
    }
}

#[test]
fn a_busy_edge_says_when_to_come_again() {
    let mut browser = Browser::new();
    browser.settings.busy = Some(7);
    browser.bytes(request("/connection/websocket", "").as_bytes());
    let text = String::from_utf8(browser.take_written()).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && text.contains("\r\nRetry-After: 7\r\n"));
    assert_eq!(browser.counters.refused_busy, 1);
}

#[test]
fn a_head_that_drips_is_ended_in_time() {
    let mut browser = Browser::new();
    for byte in request("/connection/websocket", "").bytes().take(200) {
        browser.pass(HEAD_WITHIN / 150);
        browser.bytes(&[byte]);
    }
    assert!(browser.connection.is_done());
    assert_eq!((browser.counters.ended_late, browser.take_written()), (1, vec![]));
}

#[test]
fn a_head_may_be_cut_at_any_byte_and_frames_may_follow_it_at_once() {
    let mut bytes = request("/connection/websocket", "").into_bytes();
    bytes.extend(frame(0x81, br#"{"id":1,"connect":{"token":"t"}}"#));
    for cut in 1..bytes.len() {
        let mut browser = Browser::new();
        browser.bytes(&bytes[..cut]);
        browser.bytes(&bytes[cut..]);
        assert!(matches!(browser.ask(), Some(Ask::Authenticate { .. })), "{cut}");
    }
}

#[test]
fn frames_of_the_rfc_are_read_and_written() {
    // RFC 6455, 5.7: a masked text, a masked ping, and a text of two fragments (masked with the same key).
    let mut hello = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    let mut reader = Reader::default();
    assert_eq!(reader.read(&mut hello, 100), Ok((Read::Message(6..11), 11)));
    assert_eq!(&hello[6..], b"Hello");
    let mut ping = [0x89, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(reader.read(&mut ping, 100), Ok((Read::Ping(6..11), 11)));
    let mut parts = [frame(0x01, b"Hel"), frame(0x89, b"!"), frame(0x80, b"lo")].concat();
    assert_eq!(reader.read(&mut parts, 100), Ok((Read::Fragment, 9)));
    assert_eq!(reader.read(&mut parts[9..], 100), Ok((Read::Ping(6..7), 7)));
    assert_eq!(reader.read(&mut parts[16..], 100), Ok((Read::Assembled, 8)));
    assert_eq!(reader.assembled(), b"Hello");
    for (len, head) in [
        (5, vec![0x81, 5]),
        (125, vec![0x81, 125]),
        (126, vec![0x81, 126, 0, 126]),
        (65_535, vec![0x81, 126, 0xff, 0xff]),
        (65_536, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
    ] {
        let mut out = Vec::new();
        put_head(&mut out, Opcode::Text, len);
        assert_eq!(out, head);
    }
}

#[test]
fn breaches_of_the_rfc_end_the_connection_with_their_code() {
    let huge = |len: u64| [&[0x82, 0xff][..], &len.to_be_bytes(), &[0; 4]].concat();
    let cases: [(&str, Vec<u8>, u16); 18] = [
        ("not masked", vec![0x81, 0x02, b'h', b'i'], 1002),
        ("a reserved bit", frame(0xc1, b"hi"), 1002),
        ("a reserved opcode", frame(0x83, b"hi"), 1002),
        ("a reserved control opcode", frame(0x8b, b"hi"), 1002),
        ("a long ping", frame(0x89, &[0; 126]), 1002),
        ("a ping of parts", frame(0x09, b"hi"), 1002),
        ("a continuation of nothing", frame(0x80, b"hi"), 1002),
        (
            "a message within another",
            [frame(0x01, b"a"), frame(0x81, b"b")].concat(),
            1002,
        ),
        ("length 2^63", huge(1 << 63), 1002),
        ("length 2^63 - 1", huge((1 << 63) - 1), 1009),
        ("length 2^64 - 1", huge(u64::MAX), 1002),
        (
            "a length that could be shorter",
            [&[0x82, 0xfe, 0, 5][..], &[0; 9]].concat(),
            1002,
        ),
        ("a message beyond the bound", huge(UNKNOWN_BYTES_MAX as u64 + 1), 1009),
        ("text that is not UTF-8", frame(0x81, b"\xff\xfe"), 1007),
        (
            "text cut within a character",
            [frame(0x01, b"\xc3"), frame(0x80, b"x")].concat(),
            1007,
        ),
        (
            "a close code that must not be sent",
            frame(0x88, &1005u16.to_be_bytes()),
            1002,
        ),
        ("half a close code", frame(0x88, b"\x03"), 1002),
        ("a close reason that is not UTF-8", frame(0x88, b"\x03\xe8\xff"), 1007),
    ];
    for (name, bytes, code) in cases {
        for cut in [None, Some(1), Some(3)] {
            let mut browser = Browser::upgraded(Encoding::Json);
            browser.cut = cut;
            browser.bytes(&bytes);
            assert_eq!(browser.closed().map(|(code, _)| code), Some(code), "{name}");
            assert_eq!(browser.counters.ended_violation, 1, "{name}");
            assert!(matches!(browser.asks[..], [Ask::Ended { .. }]), "{name}");
        }
    }
}

#[test]
fn text_may_be_cut_within_a_character_between_fragments() {
    let mut browser = Browser::admitted("7");
    let text = r#"{"id":2,"rpc":{"method":"é€😀"}}"#.as_bytes();
    for cut in 1..text.len() {
        browser.bytes(&frame(0x01, &text[..cut]));
        browser.bytes(&frame(0x89, b"between"));
        browser.bytes(&frame(0x80, &text[cut..]));
        let Some(Ask::Rpc { method, .. }) = browser.ask() else {
            panic!("{cut}")
        };
        assert_eq!(method, "é€😀");
        assert_eq!(browser.frames().remove(0).payload, b"between");
    }
}

#[test]
fn messages_of_fragments_are_bounded_as_a_whole() {
    let mut browser = Browser::admitted("7");
    browser.bytes(&frame(0x01, &vec![b' '; MESSAGE_BYTES_MAX]));
    assert!(browser.connection.session().is_some());
    browser.bytes(&frame(0x80, b" "));
    assert_eq!(browser.closed().unwrap().0, 1009);
    assert!(browser.connection.held() < 1_000, "nothing is kept");
}

#[test]
fn memory_grows_with_what_came_and_not_with_what_was_announced() {
    let mut browser = Browser::admitted("7");
    let whole = frame(0x82, &vec![0; MESSAGE_BYTES_MAX]);
    browser.bytes(&whole[..20]);
    assert!(browser.connection.held() < 4_096, "{}", browser.connection.held());
    browser.connection = muster_edge::Connection::new(browser.now);
    assert!(
        size_of::<muster_edge::Connection>() <= 256,
        "{}",
        size_of::<muster_edge::Connection>()
    );
}

#[test]
fn an_idle_session_with_a_room_takes_less_than_a_kibibyte() {
    let mut browser = Browser::admitted("7");
    browser.joined(2, "sports:final");
    browser.heard();
    let bytes = size_of::<muster_edge::Connection>() + browser.connection.held();
    assert!(bytes <= 900, "{bytes}");
}

#[test]
fn a_close_is_answered_with_its_code() {
    for (payload, answer) in [
        (&b""[..], vec![]),
        (b"\x03\xe8bye", vec![3, 0xe8]),
        (b"\x0f\xa0", vec![0x0f, 0xa0]),
    ] {
        let mut browser = Browser::admitted("7");
        browser.bytes(&frame(0x88, payload));
        let got = browser.frames();
        assert_eq!((got[0].opcode, &got[0].payload), (8, &answer));
        assert!(browser.connection.is_done());
        assert_eq!(browser.asks, [Ask::Ended { code: 3000 }]);
    }
}

#[test]
fn a_stream_that_ends_without_a_close_ends_the_session_once() {
    let mut browser = Browser::admitted("7");
    browser.turn(|connection, turn, _| connection.ended(turn));
    browser.turn(|connection, turn, _| connection.ended(turn));
    assert_eq!(browser.asks, [Ask::Ended { code: 3000 }]);
    assert_eq!(browser.take_written(), b"");
}

#[test]
fn native_pings_follow_what_they_prove() {
    let mut browser = Browser::new();
    browser.bytes(request("/connection/websocket?cf_ws_frame_ping_pong=true", "").as_bytes());
    browser.say(r#"{"id":1,"connect":{}}"#);
    browser.admit("7", None);
    browser.take_written();
    browser.session().message(b"1");
    let receipt = browser.session().receipt();
    let got = browser.frames();
    assert_eq!(got.iter().map(|frame| frame.opcode).collect::<Vec<_>>(), [1, 9]);
    browser.bytes(&frame(0x8a, &got[1].payload));
    assert_eq!(browser.ask(), Some(Ask::Received { pings: receipt }));
}

#[test]
fn a_flood_of_pings_is_answered_within_a_bound() {
    let mut browser = Browser::admitted("7");
    for _ in 0..1_000 {
        browser.bytes(&frame(0x89, &[1; 125]));
    }
    assert!(browser.connection.session().is_none());
    assert_eq!(frames(&browser.take_written()).last().unwrap().opcode, 8);
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        proptest::collection::vec(any::<u8>(), 65_000..66_000),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Messages come out whole and in order, however frames cut them and the stream cuts frames.
    #[test]
    fn messages_survive_fragments_and_cuts(
        messages in proptest::collection::vec((any_message(), proptest::collection::vec(any::<u16>(), 0..4)), 1..4),
        cuts in proptest::collection::vec(1usize..70_000, 1..40),
    ) {
        let mut stream = Vec::new();
        for (message, at) in &messages {
            let mut places: Vec<usize> = at.iter().map(|at| usize::from(*at) % (message.len() + 1)).collect();
            places.sort_unstable();
            places.push(message.len());
            let (mut from, last) = (0, places.len() - 1);
            for (number, to) in places.iter().enumerate() {
                let first = u8::from(number == last) << 7 | if number == 0 { 2 } else { 0 };
                stream.extend(frame(first, &message[from..*to]));
                if number < last {
                    stream.extend(frame(0x89, b"p"));
                }
                from = *to;
            }
        }
        let (mut reader, mut held, mut found, mut pings) = (Reader::default(), Vec::new(), Vec::new(), 0);
        let (mut rest, mut turn) = (&stream[..], 0);
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(cuts[turn % cuts.len()].min(rest.len()));
            (rest, turn) = (later, turn + 1);
            held.extend_from_slice(piece);
            loop {
                match reader.read(&mut held, MESSAGE_BYTES_MAX) {
                    Ok((Read::Nothing, _)) => break,
                    Ok((read, len)) => {
                        match read {
                            Read::Message(place) => found.push(held[place].to_vec()),
                            Read::Assembled => found.push(reader.assembled()),
                            Read::Ping(_) => pings += 1,
                            Read::Fragment => {}
                            other => panic!("{other:?}"),
                        }
                        held.drain(..len);
                    }
                    Err(violation) => panic!("{violation:?}"),
                }
            }
        }
        let wanted: Vec<_> = messages.iter().map(|(message, _)| message.clone()).collect();
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(pings, messages.iter().map(|(_, at)| at.len()).sum::<usize>());
    }

    /// A mask is undone by itself, and equals the byte by byte one of the RFC.
    #[test]
    fn masking_is_the_rfcs(key in any::<[u8; 4]>(), payload in proptest::collection::vec(any::<u8>(), 0..100)) {
        let mut masked = payload.clone();
        mask(key, &mut masked);
        let slow: Vec<u8> = payload.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect();
        prop_assert_eq!(&masked, &slow);
    }

    /// Any bytes are taken without a panic, in any pieces, with the same outcome.
    #[test]
    fn any_bytes_have_one_outcome(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 1usize..50) {
        let outcome = |cut: Option<usize>| {
            let mut browser = Browser::admitted("7");
            browser.cut = cut;
            browser.bytes(&bytes);
            (browser.asks.clone(), browser.counters.ended_violation, browser.take_written())
        };
        let (whole, cut) = (outcome(None), outcome(Some(cut)));
        prop_assert_eq!(whole, cut);
    }
}

#[test]
fn violations_have_the_codes_of_the_rfc() {
    let codes = [Violation::Protocol, Violation::Text, Violation::TooBig].map(Violation::code);
    assert_eq!(codes, [1002, 1007, 1009]);
}
