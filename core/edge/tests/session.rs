//! A session's states, answers, timers and receipts, through its connection.

mod common;

use common::{Browser, SECOND};
use muster_edge::limits::{
    ASKS_MAX, CONNECT_WITHIN, DATA_BYTES_MAX, PONG_WITHIN, RECOVERED_BYTES_MAX, SILENT_MAX, SUBSCRIPTIONS_MAX,
    TOKEN_GRACE, UNREAD_BYTES_MAX,
};
use muster_edge::protocol::{ClientInfo, Encoding, HistoryResult, Position, Publication, Push, SubscribeResult};
use muster_edge::{Ask, Disconnect, Failure, Frame, Unsubscribe};
use serde_json::json;

fn publication(data: &[u8], offset: u64) -> Publication<'_> {
    Publication {
        data,
        offset,
        ..Publication::default()
    }
}

fn frame(data: &[u8], offset: u64) -> Frame {
    let one = publication(data, offset);
    Frame::publications(Encoding::Json, "a:b", 0, [one], usize::MAX)
        .unwrap()
        .0
}

#[test]
fn a_number_in_place_of_the_channel_is_for_json_alone() {
    // A subscribe command for "a:b" with the flag of compaction.
    let mut browser = Browser::upgraded(Encoding::Protobuf);
    browser.say_bytes(&[4, 8, 1, 0x22, 0]);
    browser.admit("7", None);
    browser.say_bytes(&[11, 8, 2, 0x2a, 7, 0x0a, 3, b'a', b':', b'b', 0x70, 1]);
    let Some(Ask::Join { join, .. }) = browser.ask() else {
        panic!("a room is asked for")
    };
    assert_eq!((join.channel.as_str(), join.compaction), ("a:b", false));
}

#[test]
fn connect_is_answered_with_client_ping_and_time_to_live() {
    let mut browser = Browser::upgraded(Encoding::Json);
    browser.say(r#"{"id":1,"connect":{"token":"t","data":{"x":1},"name":"js","version":"5","subs":{"a:b":{"recover":true,"epoch":"e","offset":7}},"headers":{"h":"v"},"flag":1}}"#);
    let Some(Ask::Authenticate {
        token,
        data,
        name,
        version,
        subs,
        ..
    }) = browser.asks.first().cloned()
    else {
        panic!("a token is to be judged");
    };
    assert_eq!(
        (token.as_str(), &data[..], name.as_str(), version.as_str()),
        ("t", &b"{\"x\":1}"[..], "js", "5")
    );
    let from = Position {
        offset: 7,
        epoch: "e".to_owned(),
    };
    assert_eq!(subs, [("a:b".to_owned(), from)]);
    browser.admit("7", Some(60));
    assert_eq!(
        browser.heard(),
        [
            json!({"id": 1, "connect": {"client": "c1", "version": "muster", "expires": true, "ttl": 60, "ping": 25, "pong": true}})
        ]
    );
    let session = browser.session();
    assert_eq!((session.user(), session.client()), ("7", "c1"));
}

#[test]
fn a_client_that_does_not_connect_in_time_ends_as_stale() {
    let mut browser = Browser::upgraded(Encoding::Json);
    browser.pass(CONNECT_WITHIN);
    assert_eq!(browser.closed(), Some((3502, "stale".to_owned())));
    assert_eq!(browser.asks, [Ask::Ended { code: 3502 }]);
    assert_eq!(browser.counters.ended_late, 1);
}

#[test]
fn commands_before_connect_a_second_connect_and_nonsense_end_the_session() {
    let cases = [
        (false, r#"{"id":1,"subscribe":{"channel":"a:b"}}"#),
        (false, r#"{"connect":{}}"#),
        (true, r#"{"id":2,"connect":{}}"#),
        (true, r#"{"id":2}"#),
        (true, r#"{"id":2,"ping":{}}"#),
        (true, r#"{"publish":{"channel":"a:b","data":1}}"#),
        (true, r#"{"id":2,"rpc":{},"send":{}}"#),
        (true, r#"{"id":2,"rpc""#),
        (true, "[]"),
        (true, r#"{"id":-1,"rpc":{}}"#),
    ];
    for (admitted, text) in cases {
        let mut browser = if admitted {
            Browser::admitted("7")
        } else {
            Browser::upgraded(Encoding::Json)
        };
        browser.say(text);
        assert_eq!(browser.closed(), Some((3501, "bad request".to_owned())), "{text}");
        assert_eq!(browser.asks, [Ask::Ended { code: 3501 }], "{text}");
    }
}

#[test]
fn commands_that_come_while_the_token_is_judged_are_taken_behind_the_answer() {
    for cut in [None, Some(1), Some(7)] {
        let mut browser = Browser::upgraded(Encoding::Json);
        browser.cut = cut;
        browser.say(
            "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"rpc\":{\"method\":\"a\"}}\n{\"id\":3,\"rpc\":{\"method\":\"b\"}}",
        );
        browser.say(r#"{"id":4,"rpc":{"method":"c"}}"#);
        assert_eq!(browser.asks.len(), 1);
        browser.admit("7", None);
        let methods: Vec<_> = browser
            .asks
            .iter()
            .map(|ask| match ask {
                Ask::Rpc { method, .. } => method.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(methods, ["a", "b", "c"]);
    }
}

#[test]
fn commands_beyond_the_bound_while_the_token_is_judged_end_the_session() {
    let mut browser = Browser::upgraded(Encoding::Json);
    browser.say(r#"{"id":1,"connect":{}}"#);
    for id in 2..200 {
        browser.say(&format!(r#"{{"id":{id},"send":{{"data":"{}"}}}}"#, "x".repeat(1_000)));
    }
    assert_eq!(browser.closed(), Some((3504, "connection limit".to_owned())));
}

#[test]
fn a_wrong_token_keeps_away_and_an_expired_one_draws_another() {
    let mut browser = Browser::upgraded(Encoding::Json);
    browser.say(r#"{"id":1,"connect":{"token":"old"}}"#);
    let Some(Ask::Authenticate { ticket, .. }) = browser.ask() else {
        panic!()
    };
    browser.session().fail(ticket, Failure::TokenExpired);
    assert_eq!(
        browser.heard(),
        [json!({"id": 1, "error": {"code": 109, "message": "token expired"}})]
    );
    browser.say(r#"{"id":2,"connect":{"token":"new"}}"#);
    assert!(matches!(browser.ask(), Some(Ask::Authenticate { token, .. }) if token == "new"));
    browser.connection.disconnect(Disconnect::INVALID_TOKEN);
    assert_eq!(browser.closed(), Some((3500, "invalid token".to_owned())));
    assert!(!Disconnect::INVALID_TOKEN.returns() && Disconnect::EXPIRED.returns());
    assert!(!Disconnect::REPLACED.returns() && Disconnect::new(4000, "").returns());
}

#[test]
fn each_command_becomes_a_question_and_each_answer_a_reply() {
    let mut browser = Browser::admitted("7");
    let now = browser.now;
    browser.say(r#"{"id":2,"subscribe":{"channel":"a:b","token":"s","recover":true,"epoch":"e","offset":5,"data":null,"positioned":true,"recoverable":true,"join_leave":true,"delta":"fossil","flag":3}}"#);
    let Some(Ask::Join {
        ticket,
        subscription,
        join,
    }) = browser.ask()
    else {
        panic!()
    };
    assert_eq!(
        *join,
        muster_edge::Join {
            channel: "a:b".into(),
            token: "s".into(),
            recover: Some(Position {
                offset: 5,
                epoch: "e".into()
            }),
            data: "null".into(),
            tags: Vec::new(),
            positioned: true,
            recoverable: true,
            join_leave: true,
            delta: true,
            compaction: true,
            reject_unrecovered: true,
        }
    );
    assert!(!browser.session().has(subscription));
    let publications = [publication(b"{\"n\":1}", 6), publication(b"\x00", 7)];
    let result = SubscribeResult {
        recoverable: true,
        positioned: true,
        recovered: true,
        was_recovering: true,
        epoch: "e",
        offset: 5,
        publications: &publications,
        ..SubscribeResult::default()
    };
    assert!(browser.session().joined(now, ticket, &result));
    assert!(browser.session().has(subscription));
    assert_eq!(
        browser.heard(),
        [
            json!({"id": 2, "subscribe": {"recoverable": true, "epoch": "e", "recovered": true, "offset": 5,
            "positioned": true, "was_recovering": true,
            "publications": [{"data": {"n": 1}, "offset": 6}, {"data": "AA==", "offset": 7, "tags": {"encoding": "base64"}}]}})
        ]
    );

    browser.say(r#"{"id":3,"publish":{"channel":"a:b","data":{"x":"é"}}}"#);
    let Some(Ask::Publish { ticket, channel, data }) = browser.ask() else {
        panic!()
    };
    assert_eq!((channel.as_str(), &data[..]), ("a:b", r#"{"x":"é"}"#.as_bytes()));
    browser.session().published(ticket);
    assert_eq!(browser.heard(), [json!({"id": 3, "publish": {}})]);

    browser.say(r#"{"id":4,"presence":{"channel":"a:b"}}"#);
    let Some(Ask::Presence { ticket, .. }) = browser.ask() else {
        panic!()
    };
    let who = ClientInfo {
        user: "7".into(),
        client: "c1".into(),
        conn_info: b"{}",
        ..ClientInfo::default()
    };
    browser.session().presence(ticket, [("c1", who)]);
    assert_eq!(
        browser.heard(),
        [json!({"id": 4, "presence": {"presence": {"c1": {"user": "7", "client": "c1", "conn_info": {}}}}})]
    );

    browser.say(r#"{"id":5,"presence_stats":{"channel":"a:b"}}"#);
    let Some(Ask::PresenceStats { ticket, .. }) = browser.ask() else {
        panic!()
    };
    browser.session().presence_stats(ticket, 3, 2);
    assert_eq!(
        browser.heard(),
        [json!({"id": 5, "presence_stats": {"num_clients": 3, "num_users": 2}})]
    );

    browser.say(r#"{"id":6,"history":{"channel":"a:b","limit":-1,"since":{"offset":3,"epoch":"e"},"reverse":true}}"#);
    let Some(Ask::History {
        ticket,
        limit,
        since,
        reverse,
        ..
    }) = browser.ask()
    else {
        panic!()
    };
    assert_eq!(
        (limit, since, reverse),
        (
            None,
            Some(Position {
                offset: 3,
                epoch: "e".into()
            }),
            true
        )
    );
    let publications = [publication(b"1", 2)];
    let result = HistoryResult {
        publications: &publications,
        epoch: "e",
        offset: 9,
    };
    browser.session().history(ticket, &result);
    assert_eq!(
        browser.heard(),
        [json!({"id": 6, "history": {"publications": [{"data": 1, "offset": 2}], "epoch": "e", "offset": 9}})]
    );

    browser.say(r#"{"id":7,"rpc":{"method":"m","data":[1]}}"#);
    let Some(Ask::Rpc { ticket, method, data }) = browser.ask() else {
        panic!()
    };
    assert_eq!((method.as_str(), &data[..]), ("m", &b"[1]"[..]));
    browser.session().rpc(ticket, b"{\"ok\":true}");
    browser.say(r#"{"send":{"data":"hi"}}"#);
    assert_eq!(browser.ask(), Some(Ask::Send { data: "\"hi\"".into() }));
    browser.session().message(b"{\"muster\":\"direct\"}");
    assert_eq!(
        browser.heard(),
        [
            json!({"id": 7, "rpc": {"data": {"ok": true}}}),
            json!({"push": {"message": {"data": {"muster": "direct"}}}})
        ]
    );

    browser.say(r#"{"id":8,"sub_refresh":{"channel":"a:b","token":"n"}}"#);
    let Some(Ask::RenewJoin {
        ticket,
        subscription: renewed,
        token,
        ..
    }) = browser.ask()
    else {
        panic!()
    };
    assert_eq!((renewed, token.as_str()), (subscription, "n"));
    browser.session().sub_renewed(now, ticket, Some(9));
    browser.say(r#"{"id":9,"unsubscribe":{"channel":"a:b"}}"#);
    assert_eq!(browser.ask(), Some(Ask::Leave { subscription }));
    assert!(!browser.session().has(subscription));
    assert_eq!(
        browser.heard(),
        [
            json!({"id": 8, "sub_refresh": {"expires": true, "ttl": 9}}),
            json!({"id": 9, "unsubscribe": {}})
        ]
    );
}

#[test]
fn what_muster_has_not_or_what_is_out_of_bounds_is_refused_and_the_session_goes_on() {
    let mut browser = Browser::admitted("7");
    browser.joined(2, "a:b");
    browser.heard();
    let long = "x".repeat(DATA_BYTES_MAX);
    let cases = [
        (r#""subscribe":{"channel":"a:b"}"#.to_owned(), 105),
        (r#""subscribe":{"channel":""}"#.to_owned(), 107),
        (r#""subscribe":{"channel":"a:c","type":1}"#.to_owned(), 108),
        (r#""subscribe":{"channel":"a:c","tf":{"op":"eq"}}"#.to_owned(), 107),
        (
            r#""subscribe":{"channel":"a:c","tf":{"key":"a","cmp":"gt","val":"1"}}"#.to_owned(),
            401,
        ),
        (r#""publish":{"channel":"a:b"}"#.to_owned(), 107),
        (r#""publish":{"channel":"a:b","data":1,"type":1}"#.to_owned(), 108),
        (format!(r#""publish":{{"channel":"a:b","data":"{long}"}}"#), 107),
        (format!(r#""presence":{{"channel":"{}"}}"#, "x".repeat(201)), 107),
        (format!(r#""rpc":{{"method":"{}"}}"#, "x".repeat(65)), 104),
        (r#""refresh":{}"#.to_owned(), 107),
        (r#""sub_refresh":{"channel":"a:c","token":"t"}"#.to_owned(), 107),
        (
            r#""sub_refresh":{"channel":"a:b","token":"t","type":1}"#.to_owned(),
            108,
        ),
    ];
    for (text, code) in cases {
        browser.say(&format!(r#"{{"id":9,{text}}}"#));
        let heard = browser.heard();
        assert_eq!(heard[0]["error"]["code"], code, "{}", &text[..text.len().min(60)]);
        assert_eq!(browser.ask(), None);
    }
    assert!(browser.session().is_open());
}

#[test]
fn a_subscription_too_many_and_a_question_too_many_are_refused() {
    let mut browser = Browser::admitted("7");
    browser.settings.commands = muster_transport::Rate {
        a_second: 1_000_000,
        burst: 1_000_000,
    };
    for id in 0..SUBSCRIPTIONS_MAX as u32 {
        browser.joined(id + 2, &format!("a:{id}"));
    }
    browser.heard();
    browser.say(r#"{"id":900,"subscribe":{"channel":"a:one-more"}}"#);
    assert_eq!(browser.heard()[0]["error"]["code"], 106);
    for id in 0..ASKS_MAX {
        browser.say(&format!(r#"{{"id":{},"rpc":{{"method":"m"}}}}"#, id + 1_000));
    }
    assert_eq!(browser.heard(), [] as [serde_json::Value; 0]);
    browser.say(r#"{"id":5000,"rpc":{"method":"m"}}"#);
    assert_eq!(
        browser.heard(),
        [json!({"id": 5000, "error": {"code": 111, "message": "too many requests", "temporary": true}})]
    );
    let Some(Ask::Rpc { ticket, .. }) = browser.ask() else {
        panic!()
    };
    browser.session().rpc(ticket, b"1");
    browser.say(r#"{"id":5001,"rpc":{"method":"m"}}"#);
    assert_eq!(browser.heard(), [json!({"id": 1000, "rpc": {"data": 1}})]);
}

#[test]
fn commands_beyond_the_rate_are_refused_for_now() {
    let mut browser = Browser::admitted("7");
    browser.settings.commands = muster_transport::Rate {
        a_second: 10,
        burst: 20,
    };
    for id in 0..21 {
        browser.say(&format!(r#"{{"id":{},"rpc":{{"method":"m"}}}}"#, id + 2));
    }
    assert_eq!(browser.heard()[0]["error"]["code"], 111);
    assert_eq!((browser.asks.len(), browser.counters.commands_limited), (20, 1));
    browser.pass(SECOND);
    browser.say(r#"{"id":99,"rpc":{"method":"m"}}"#);
    assert_eq!(browser.asks.len(), 21);
}

#[test]
fn a_room_that_is_left_before_it_is_answered_stays_left() {
    let mut browser = Browser::admitted("7");
    let (ticket, subscription) = browser.asks_to_join(2, "a:b");
    browser.say(r#"{"id":3,"unsubscribe":{"channel":"a:b"}}"#);
    assert_eq!(browser.ask(), Some(Ask::Leave { subscription }));
    let now = browser.now;
    assert!(!browser.session().joined(now, ticket, &SubscribeResult::default()));
    browser.say(r#"{"id":4,"subscribe":{"channel":"a:b"}}"#);
    let Some(Ask::Join {
        ticket: again,
        subscription: next,
        ..
    }) = browser.ask()
    else {
        panic!()
    };
    assert_ne!(subscription, next);
    browser.session().fail(again, Failure::PermissionDenied);
    assert!(!browser.session().has(next));
    let heard = browser.heard();
    let ids: Vec<_> = heard.iter().map(|reply| reply["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [2, 3, 4], "{heard:?}");
    browser.joined(5, "a:b");
}

#[test]
fn a_session_that_an_answer_ends_has_its_close_frame_to_write() {
    // An owner that writes only connections with bytes would leave the client with an open stream for ever.
    let mut browser = Browser::admitted("7");
    browser.say(r#"{"id":2,"refresh":{"token":"t"}}"#);
    let Some(Ask::Renew { ticket, .. }) = browser.ask() else {
        panic!("a token is to be judged");
    };
    browser.turn(|connection, turn, _| {
        let session = connection.session().expect("it is open");
        session.renewed(turn, ticket, "8", None);
    });
    assert!(browser.connection.has_bytes());
    assert_eq!(browser.closed().map(|(code, _)| code), Some(3500));
}

#[test]
fn a_room_that_is_left_before_it_is_answered_may_be_asked_for_again() {
    let mut browser = Browser::admitted("7");
    let (_, _) = browser.asks_to_join(2, "a:b");
    // An SDK that subscribes, leaves and subscribes takes the first answer for that of its newest command: after a lasting
    // error it would stay away.
    browser.say(r#"{"id":3,"unsubscribe":{"channel":"a:b"}}"#);
    let error = browser.heard()[0]["error"].clone();
    assert_eq!(
        (&error["code"], &error["temporary"]),
        (&400.into(), &true.into()),
        "{error}"
    );
}

#[test]
fn nothing_is_delivered_after_the_answer_to_unsubscribe() {
    let mut browser = Browser::admitted("7");
    let subscription = browser.joined(2, "a:b");
    browser.heard();
    browser.say(r#"{"id":3,"unsubscribe":{"channel":"a:b"}}"#);
    // The owner gives what is due as long as the subscription is there.
    let frames = if browser.session().has(subscription) {
        vec![frame(b"1", 1)]
    } else {
        vec![]
    };
    browser.write(&frames);
    let heard = browser.heard();
    let end = heard.iter().position(|reply| reply["id"] == 3).expect("the answer");
    assert!(heard[end..].iter().all(|reply| reply["push"].is_null()), "{heard:?}");
    assert_eq!(browser.ask(), Some(Ask::Leave { subscription }));
}

#[test]
fn a_gap_is_announced_once_a_second_and_nothing_passes_it() {
    let mut browser = Browser::admitted("7");
    let mut announced = Vec::new();
    let mut rejoin = browser.joined(2, "a:b");
    browser.heard();
    // The SDK subscribes again at once, and the room loses again at once.
    for step in 0..1_000 {
        if browser.session().has(rejoin) {
            let lost = rejoin;
            browser.turn(|connection, turn, _| {
                connection
                    .session()
                    .unwrap()
                    .unsubscribed(turn, lost, Unsubscribe::INSUFFICIENT, "slow")
            });
            assert!(!browser.session().has(lost), "it is over for the owner at once");
        }
        for push in browser.heard() {
            if push["push"]["unsubscribe"]["code"] == 2500 {
                announced.push(browser.now);
                assert_eq!(push["push"]["unsubscribe"]["reason"], "slow");
                rejoin = browser.joined(step + 3, "a:b");
            }
        }
        browser.pass(10_000);
    }
    assert!(
        (9..=11).contains(&announced.len()),
        "{} in ten seconds",
        announced.len()
    );
    assert!(announced.windows(2).all(|pair| pair[1] - pair[0] >= SECOND));
    assert!(browser.counters.resubscriptions_put_off >= 8);
}

#[test]
fn a_client_may_leave_or_come_again_while_a_gap_is_put_off() {
    for leaves in [true, false] {
        let mut browser = Browser::admitted("7");
        for id in [2, 3] {
            let subscription = browser.joined(id, "a:b");
            browser.turn(|connection, turn, _| {
                connection
                    .session()
                    .unwrap()
                    .unsubscribed(turn, subscription, Unsubscribe::INSUFFICIENT, "")
            });
        }
        browser.heard();
        if leaves {
            browser.say(r#"{"id":4,"unsubscribe":{"channel":"a:b"}}"#);
            assert_eq!(browser.ask(), None, "it is over already");
        }
        let subscription = browser.joined(5, "a:b");
        browser.heard();
        browser.pass(3 * SECOND);
        assert!(browser.session().has(subscription));
        assert_eq!(
            browser.heard(),
            [] as [serde_json::Value; 0],
            "the gap that was put off is told by the answer"
        );
    }
}

#[test]
fn an_end_for_good_is_told_at_once() {
    let mut browser = Browser::admitted("7");
    for id in 2..5 {
        let subscription = browser.joined(id, "a:b");
        browser.turn(|connection, turn, _| {
            connection
                .session()
                .unwrap()
                .unsubscribed(turn, subscription, Unsubscribe::SERVER, "revoked")
        });
    }
    let ends = browser
        .heard()
        .iter()
        .filter(|push| push["push"]["unsubscribe"]["code"] == 2000)
        .count();
    assert_eq!(ends, 3);
}

#[test]
fn recovered_messages_beyond_the_bound_come_behind_the_reply() {
    let mut browser = Browser::admitted("7");
    let (ticket, _) = browser.asks_to_join(2, "a:b");
    let data = format!("\"{}\"", "x".repeat(60_000));
    let publications: Vec<_> = (1..=20).map(|offset| publication(data.as_bytes(), offset)).collect();
    let result = SubscribeResult {
        recovered: true,
        publications: &publications,
        ..SubscribeResult::default()
    };
    let now = browser.now;
    browser.session().joined(now, ticket, &result);
    let heard = browser.heard();
    let inside = heard[0]["subscribe"]["publications"].as_array().unwrap();
    assert!((2..20).contains(&inside.len()) && inside.len() * 60_000 < RECOVERED_BYTES_MAX);
    let offsets: Vec<_> = inside
        .iter()
        .map(|one| &one["offset"])
        .chain(heard[1..].iter().map(|push| &push["push"]["pub"]["offset"]))
        .map(|offset| offset.as_u64().unwrap())
        .collect();
    assert_eq!(offsets, (1..=20).collect::<Vec<_>>());
}

#[test]
fn pings_keep_their_interval_and_pongs_keep_the_session() {
    let mut browser = Browser::admitted("7");
    let (from, mut times) = (browser.now, Vec::new());
    for _ in 0..2_000 {
        browser.pass(SECOND / 10);
        for message in browser.heard() {
            assert_eq!(message, json!({}));
            times.push(browser.now);
            browser.say("{}");
        }
    }
    let first = times[0] - from;
    assert!((12 * SECOND..=26 * SECOND).contains(&first), "{first}");
    assert!(times
        .windows(2)
        .all(|pair| (24 * SECOND..=26 * SECOND).contains(&(pair[1] - pair[0]))));
    assert_eq!((browser.asks.len(), browser.counters.pongs_unasked), (0, 0));
    browser.say("{}");
    assert_eq!(browser.counters.pongs_unasked, 1);
}

#[test]
fn first_pings_of_clients_that_came_together_are_spread() {
    let firsts: std::collections::BTreeSet<_> = (0..50)
        .map(|seed| {
            let mut browser = Browser::upgraded(Encoding::Json);
            browser.dice = muster_transport::Dice::new(seed);
            browser.say(r#"{"id":1,"connect":{}}"#);
            browser.admit("7", None);
            (browser.connection.deadline().unwrap() - browser.now) / SECOND
        })
        .collect();
    assert!(
        firsts.len() > 8 && *firsts.first().unwrap() >= 12 && *firsts.last().unwrap() <= 25,
        "{firsts:?}"
    );
}

#[test]
fn a_silent_client_ends_only_if_its_kernel_takes_nothing_or_after_the_bound() {
    let mut browser = Browser::admitted("7");
    browser.pass(25 * SECOND + PONG_WITHIN);
    assert_eq!(browser.ask(), Some(Ask::Silent));
    browser.turn(|connection, turn, _| connection.session().unwrap().silence(turn, false));
    assert!(browser.session().is_open(), "a frozen tab");
    browser.pass(30 * SECOND);
    assert_eq!(browser.ask(), Some(Ask::Silent));
    browser.turn(|connection, turn, _| connection.session().unwrap().silence(turn, true));
    assert_eq!(browser.closed(), Some((3012, "no pong".to_owned())));

    let mut browser = Browser::admitted("7");
    let mut asked = 0;
    while browser.connection.session().is_some() {
        browser.pass(SECOND);
        for _ in std::mem::take(&mut browser.asks) {
            asked += 1;
            browser.turn(|connection, turn, _| {
                if let Some(session) = connection.session() {
                    session.silence(turn, false)
                }
            });
        }
        browser.heard();
        assert!(browser.now < common::START + SILENT_MAX + 60 * SECOND);
    }
    assert!(asked >= 10);
}

#[test]
fn anything_that_is_heard_proves_a_client_alive() {
    let mut browser = Browser::admitted("7");
    for _ in 0..20 {
        browser.pass(5 * SECOND);
        browser.say(r#"{"send":{"data":1}}"#);
    }
    assert!(!browser.asks.contains(&Ask::Silent));
}

#[test]
fn a_pong_proves_what_was_written_before_its_ping_and_no_more() {
    let mut browser = Browser::admitted("7");
    browser.session().message(b"1");
    let first = browser.session().receipt();
    assert_eq!(browser.session().receipt(), first, "one ping proves both");
    browser.session().message(b"2");
    let second = browser.session().receipt();
    assert!(second > first);
    assert_eq!(browser.heard().len(), 4);
    browser.write(&[frame(b"3", 1)]);
    let third = browser.session().receipt();
    assert!(third > second, "a frame that was handed out before has its own ping");
    browser.say("{}");
    assert_eq!(browser.ask(), Some(Ask::Received { pings: first }));
    browser.say("{}");
    assert_eq!(browser.ask(), Some(Ask::Received { pings: second }));
    assert_eq!(browser.ask(), None);
    browser.say("{}");
    assert_eq!(browser.ask(), Some(Ask::Received { pings: third }));
}

#[test]
fn receipts_without_pongs_are_bounded_and_proven_later() {
    let mut browser = Browser::admitted("7");
    let mut last = 0;
    for _ in 0..1_000 {
        browser.session().message(b"1");
        last = browser.session().receipt();
    }
    let pings = browser.heard().iter().filter(|message| **message == json!({})).count() as u64;
    assert_eq!((pings, last), (muster_edge::limits::PINGS_MAX, pings + 1));
    for _ in 0..pings {
        browser.say("{}");
    }
    assert!(!browser.asks.contains(&Ask::Received { pings: last }));
    assert_eq!(browser.heard(), [json!({})], "the ping that was owed");
    browser.say("{}");
    assert_eq!(browser.asks.last(), Some(&Ask::Received { pings: last }));
}

#[test]
fn a_token_has_a_grace_and_another_one_of_the_user_renews_it() {
    let mut browser = Browser::upgraded(Encoding::Json);
    browser.say(r#"{"id":1,"connect":{"token":"t"}}"#);
    browser.admit("7", Some(60));
    let alive = |browser: &mut Browser, time| {
        for _ in 0..time / SECOND {
            browser.pass(SECOND);
            if browser.connection.session().is_some() {
                browser.say("{}");
            }
        }
        browser.connection.session().is_some()
    };
    assert!(alive(&mut browser, 60 * SECOND + TOKEN_GRACE - SECOND));
    browser.say(r#"{"id":2,"refresh":{"token":"t2"}}"#);
    let Some(Ask::Renew { ticket, token }) = browser.ask() else {
        panic!()
    };
    assert_eq!(token, "t2");
    browser.heard();
    browser.turn(|connection, turn, _| connection.session().unwrap().renewed(turn, ticket, "7", Some(30)));
    assert_eq!(
        browser.heard(),
        [json!({"id": 2, "refresh": {"client": "c1", "version": "muster", "expires": true, "ttl": 30}})]
    );
    assert!(alive(&mut browser, 30 * SECOND + TOKEN_GRACE - SECOND));
    assert!(!alive(&mut browser, 2 * SECOND));
    assert_eq!(browser.closed(), Some((3005, "connection expired".to_owned())));
}

#[test]
fn a_token_of_another_user_ends_the_session() {
    let mut browser = Browser::admitted("7");
    browser.say(r#"{"id":2,"refresh":{"token":"t2"}}"#);
    let Some(Ask::Renew { ticket, .. }) = browser.ask() else {
        panic!()
    };
    browser.turn(|connection, turn, _| connection.session().unwrap().renewed(turn, ticket, "8", None));
    assert_eq!(browser.closed(), Some((3500, "invalid token".to_owned())));
    assert_eq!(browser.asks, [Ask::Ended { code: 3500 }]);
}

#[test]
fn a_subscription_ends_with_its_token_and_the_client_asks_again() {
    let mut browser = Browser::admitted("7");
    let (ticket, subscription) = browser.asks_to_join(2, "a:b");
    let result = SubscribeResult {
        expires: true,
        ttl_s: 3,
        ..SubscribeResult::default()
    };
    let now = browser.now;
    browser.session().joined(now, ticket, &result);
    browser.heard();
    for _ in 0..30 {
        browser.pass(SECOND);
        browser.say("{}");
    }
    assert_eq!(browser.asks, [Ask::Leave { subscription }]);
    let ends: Vec<_> = browser.heard().into_iter().filter(|push| *push != json!({})).collect();
    assert_eq!(
        ends,
        [json!({"push": {"channel": "a:b", "unsubscribe": {"code": 2501, "reason": "subscription expired"}}})]
    );
}

#[test]
fn a_client_that_leaves_its_replies_unread_is_left_unread_itself() {
    let mut browser = Browser::admitted("7");
    let mut asked = 0;
    while !browser.connection.is_full() {
        browser.say(r#"{"id":2,"rpc":{"method":"m"}}"#);
        let Some(Ask::Rpc { ticket, .. }) = browser.ask() else {
            panic!()
        };
        browser
            .session()
            .rpc(ticket, format!("\"{}\"", "x".repeat(10_000)).as_bytes());
        asked += 1;
    }
    assert_eq!(asked, UNREAD_BYTES_MAX / 10_000 + 1);
    browser.say(r#"{"id":3,"rpc":{"method":"late"}}"#);
    assert_eq!(browser.ask(), None);
    browser.heard();
    browser.turn(|connection, turn, _| connection.resume(turn));
    assert!(matches!(browser.ask(), Some(Ask::Rpc { method, .. }) if method == "late"));
}

#[test]
fn a_session_whose_messages_nobody_takes_ends_as_slow() {
    let mut browser = Browser::admitted("7");
    for _ in 0..20 {
        browser
            .session()
            .message(format!("\"{}\"", "x".repeat(60_000)).as_bytes());
    }
    browser.pass(26 * SECOND);
    assert_eq!(browser.closed(), Some((3008, "slow".to_owned())));
    assert_eq!(browser.counters.ended_slow, 1);
}

#[test]
fn own_messages_and_shared_frames_leave_in_one_websocket_message() {
    let mut browser = Browser::admitted("7");
    browser.session().message(b"1");
    let frames = [frame(b"2", 1), frame(b"3", 2)];
    browser.write(&frames);
    let got = browser.frames();
    assert_eq!(got.len(), 1);
    let text = String::from_utf8(got[0].payload.clone()).unwrap();
    assert_eq!(
        text,
        "{\"push\":{\"message\":{\"data\":1}}}\n{\"push\":{\"channel\":\"a:b\",\"pub\":{\"data\":2,\"offset\":1}}}\n\
         {\"push\":{\"channel\":\"a:b\",\"pub\":{\"data\":3,\"offset\":2}}}"
    );
}

#[test]
fn a_frame_goes_as_it_is_to_every_session_of_its_encoding() {
    let data = b"{\"n\":1}";
    for (encoding, opcode) in [(Encoding::Json, 1), (Encoding::Protobuf, 2)] {
        let (frame, count) = Frame::publications(
            encoding,
            "a:b",
            0,
            [publication(data, 1), publication(data, 2)],
            usize::MAX,
        )
        .unwrap();
        assert_eq!(count, 2);
        for _ in 0..2 {
            let mut browser = Browser::upgraded(encoding);
            match encoding {
                Encoding::Json => browser.say(r#"{"id":1,"connect":{}}"#),
                Encoding::Protobuf => browser.say_bytes(&[4, 8, 1, 0x22, 0]),
            }
            browser.admit("7", None);
            browser.frames();
            browser.write(std::slice::from_ref(&frame));
            let got = browser.frames();
            assert_eq!((got.len(), got[0].opcode), (1, opcode));
            assert_eq!(&got[0].payload, frame.bytes());
            match encoding {
                Encoding::Json => assert!(got[0].payload.starts_with(b"{")),
                // A length, a reply's push (4), its channel (2) and its publication (4).
                Encoding::Protobuf => assert_eq!(got[0].payload[..6], [20, 0x22, 18, 0x12, 3, b'a']),
            }
        }
    }
}

#[test]
fn joins_and_leaves_name_the_client() {
    let mut browser = Browser::admitted("7");
    let who = ClientInfo {
        user: "8".into(),
        client: "c2".into(),
        ..ClientInfo::default()
    };
    browser.session().push("a:b", &Push::Join(&who));
    browser.session().push("a:b", &Push::Leave(&who));
    let info = json!({"user": "8", "client": "c2"});
    assert_eq!(
        browser.heard(),
        [
            json!({"push": {"channel": "a:b", "join": {"info": info}}}),
            json!({"push": {"channel": "a:b", "leave": {"info": info}}})
        ]
    );
}

#[test]
fn a_session_that_is_over_answers_nothing() {
    let mut browser = Browser::admitted("7");
    browser.say(r#"{"id":2,"rpc":{"method":"m"}}"#);
    let Some(Ask::Rpc { ticket, .. }) = browser.ask() else {
        panic!()
    };
    browser.session().disconnect(Disconnect::SHUTDOWN);
    browser.session().rpc(ticket, b"1");
    assert_eq!(browser.closed(), Some((3001, "shutdown".to_owned())));
    browser.say(r#"{"id":3,"rpc":{"method":"m"}}"#);
    assert_eq!(browser.ask(), None);
}

#[test]
fn subscriptions_that_come_with_the_token_are_live_before_waiting_commands_are_taken() {
    let mut browser = Browser::upgraded(Encoding::Json);
    browser.say("{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"a:b\"}}");
    let Some(Ask::Authenticate { ticket, .. }) = browser.ask() else {
        panic!()
    };
    let sub = SubscribeResult {
        epoch: "e",
        offset: 3,
        recoverable: true,
        ..SubscribeResult::default()
    };
    let admission = muster_edge::Admission {
        user: "7",
        client: "c1",
        subs: &[("a:b", sub)],
        ..muster_edge::Admission::default()
    };
    let made = browser.turn(|connection, turn, dice| {
        let session = connection.session().expect("it is upgraded");
        session.admit(turn, dice, ticket, &admission)
    });
    assert!(made.len() == 1 && browser.session().has(made[0]));
    let heard = browser.heard();
    assert_eq!(
        heard[0]["connect"]["subs"],
        json!({"a:b": {"recoverable": true, "epoch": "e", "offset": 3}})
    );
    assert_eq!(heard[1]["error"]["code"], 105, "it is there already");
    let now = browser.now;
    let pushed = browser.session().subscribed(now, "c:d", &SubscribeResult::default());
    assert!(pushed.is_some_and(|subscription| browser.session().has(subscription)));
    assert_eq!(browser.heard(), [json!({"push": {"channel": "c:d", "subscribe": {}}})]);
}

#[test]
fn a_write_takes_as_many_frames_as_it_holds() {
    use muster_edge::limits::{FRAMES_MAX, WRITE_BYTES_MAX};
    let mut browser = Browser::admitted("7");
    let mut write = muster_edge::Write::default();
    let small = vec![frame(b"1", 1); FRAMES_MAX + 1];
    assert_eq!(browser.connection.write(&small, &mut write), FRAMES_MAX);
    let data = format!("\"{}\"", "x".repeat(WRITE_BYTES_MAX));
    let large = vec![frame(data.as_bytes(), 1); 3];
    write.clear();
    assert_eq!(browser.connection.write(&large, &mut write), 1);
    let mut fresh = Browser::upgraded(Encoding::Json);
    assert_eq!(fresh.connection.write(&small, &mut write), 0, "no session is open");
}
