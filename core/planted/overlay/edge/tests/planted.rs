//! Each planted bug is found by the test that passes without it.

mod common;

use std::panic::{catch_unwind, AssertUnwindSafe};

use common::{frame, Browser, SECOND};
use muster_edge::planted::{set, Bug};
use muster_edge::protocol::{is_json, Encoding, Publication};
use muster_edge::{Ask, Frame, Unsubscribe};

/// Runs a check without the bug and with it.
fn finds(bug: Bug, check: impl Fn()) {
    set(None);
    check();
    set(Some(bug));
    let found = catch_unwind(AssertUnwindSafe(&check)).is_err();
    set(None);
    assert!(found, "{bug:?} is not found");
}

#[test]
fn planted_gaps_without_pause_are_found() {
    finds(Bug::GapsWithoutPause, || {
        let mut browser = Browser::admitted("7");
        let mut told = 0;
        for id in 2..300 {
            let subscription = browser.joined(id, "a:b");
            browser.turn(|connection, turn, _| {
                connection
                    .session()
                    .unwrap()
                    .unsubscribed(turn, subscription, Unsubscribe::INSUFFICIENT, "")
            });
            told += browser
                .heard()
                .iter()
                .filter(|push| push["push"]["unsubscribe"]["code"] == 2500)
                .count();
        }
        assert!(told <= 1, "{told} in no time");
    });
}

#[test]
fn planted_frame_of_the_other_encoding_is_found() {
    finds(Bug::FrameOfOtherEncoding, || {
        let one = Publication {
            data: b"1",
            offset: 1,
            ..Publication::default()
        };
        let (frame, _) = Frame::publications(Encoding::Protobuf, "a:b", 0, [one], usize::MAX).unwrap();
        assert_ne!(frame.bytes()[0], b'{');
    });
}

#[test]
fn planted_pong_for_a_later_message_is_found() {
    finds(Bug::PongForLaterMessage, || {
        let mut browser = Browser::admitted("7");
        browser.session().message(b"1");
        browser.session().receipt();
        browser.session().message(b"2");
        let later = browser.session().receipt();
        browser.say("{}");
        assert!(!browser.asks.contains(&Ask::Received { pings: later }));
    });
}

#[test]
fn planted_unsubscribe_that_still_delivers_is_found() {
    finds(Bug::UnsubscribeStillDelivers, || {
        let mut browser = Browser::admitted("7");
        let subscription = browser.joined(2, "a:b");
        browser.say(r#"{"id":3,"unsubscribe":{"channel":"a:b"}}"#);
        assert!(!browser.session().has(subscription));
    });
}

#[test]
fn planted_token_of_another_user_is_found() {
    finds(Bug::TokenOfAnotherUser, || {
        let mut browser = Browser::admitted("7");
        browser.say(r#"{"id":2,"refresh":{"token":"t2"}}"#);
        let Some(Ask::Renew { ticket, .. }) = browser.ask() else {
            panic!()
        };
        browser.turn(|connection, turn, _| connection.session().unwrap().renewed(turn, ticket, "8", None));
        browser.pass(SECOND);
        browser.heard();
        assert!(browser.connection.session().is_none());
    });
}

#[test]
fn planted_unchecked_json_is_found() {
    finds(Bug::JsonUnchecked, || {
        let mut browser = Browser::admitted("7");
        let one = Publication {
            data: b"}{ \n",
            offset: 1,
            ..Publication::default()
        };
        let (frame, _) = Frame::publications(Encoding::Json, "a:b", 0, [one], usize::MAX).unwrap();
        browser.write(&[frame]);
        assert_eq!(browser.heard().len(), 1);
        assert!(!is_json(b"{"));
    });
}

#[test]
fn planted_forgotten_fragment_is_found() {
    finds(Bug::FragmentForgotten, || {
        let mut browser = Browser::admitted("7");
        browser.bytes(&frame(0x01, br#"{"id":2,"rpc":"#));
        browser.bytes(&frame(0x89, b""));
        browser.bytes(&frame(0x80, br#"{"method":"m"}}"#));
        assert!(matches!(browser.ask(), Some(Ask::Rpc { .. })));
    });
}
