//! Joins and leaves as clients hear them.

use std::collections::BTreeSet;

use muster_rooms::Rights;
use serde_json::{json, Value};

use crate::world::{World, MS, SECOND};

const ROOM: &str = r#""channel":"chat""#;
const WATCHED: &str = r#""channel":"chat","join_leave":true"#;

/// A world whose tokens are users' numbers.
fn world(seed: u64) -> World {
    let mut world = World::new(seed);
    for user in 1..20 {
        world.grants.insert(user.to_string(), (user, Rights::ALL));
    }
    world
}

fn member(world: &mut World, user: u64, rest: &str) -> u32 {
    let web = world.connected(&user.to_string());
    world.subscribe(web, 2, rest);
    web
}

fn is_news(message: &Value) -> bool {
    message["push"]["join"].is_object() || message["push"]["leave"].is_object()
}

/// Takes the news of a client: `+8` for a join, `-8` for a leave.
fn news(world: &mut World, web: u32) -> Vec<String> {
    let messages = &mut world.webs.get_mut(&web).expect("a client").messages;
    let came: Vec<Value> = messages.iter().filter(|message| is_news(message)).cloned().collect();
    messages.retain(|message| !is_news(message));
    let told = came.iter().map(|message| {
        assert_eq!(message["push"]["channel"], "chat", "as the client named it");
        let (sign, kind) = if message["push"]["join"].is_object() {
            ('+', "join")
        } else {
            ('-', "leave")
        };
        let info = &message["push"][kind]["info"];
        let user = info["user"].as_str().expect("a user");
        assert_eq!(info["client"], json!(format!("u{user}")), "as presence names it");
        format!("{sign}{user}")
    });
    told.collect()
}

#[test]
fn a_client_that_asks_hears_who_comes_and_who_leaves_itself_included() {
    let mut world = world(21);
    let early = member(&mut world, 5, ROOM);
    let web = member(&mut world, 7, WATCHED);
    world.pass(2 * SECOND);
    assert_eq!(news(&mut world, web), ["+7"], "those of before are known from presence");
    let other = member(&mut world, 8, WATCHED);
    world.pass(2 * SECOND);
    assert_eq!(
        (news(&mut world, web), news(&mut world, other)),
        (vec!["+8".into()], vec!["+8".into()])
    );
    world.say(other, r#"{"id":3,"unsubscribe":{"channel":"chat"}}"#);
    world.cut(early);
    world.pass(2 * SECOND);
    let left: BTreeSet<String> = news(&mut world, web).into_iter().collect();
    assert_eq!(left, BTreeSet::from(["-5".into(), "-8".into()]));
    assert_eq!(news(&mut world, other), [""; 0], "it has left");
    world.cut(web);
    world.pass(3 * SECOND);
    assert_eq!(world.edge.watches_len(), 0, "nobody hears: no room is asked");
}

#[test]
fn nothing_is_told_without_the_wish_or_without_the_right_to_members() {
    let mut world = world(22);
    let silent = member(&mut world, 7, ROOM);
    world.grants.insert("reader".into(), (9, Rights::READ));
    let reader = world.connected("reader");
    world.subscribe(reader, 2, WATCHED);
    member(&mut world, 8, ROOM);
    world.pass(3 * SECOND);
    assert_eq!((news(&mut world, silent), news(&mut world, reader)), (vec![], vec![]));
    assert_eq!(world.edge.watches_len(), 0);
    world.edge.set_join_leave_max(0);
    let web = member(&mut world, 10, WATCHED);
    world.pass(3 * SECOND);
    assert_eq!(news(&mut world, web), [""; 0], "it is turned off");
}

#[test]
fn a_storm_of_users_that_come_and_go_draws_nothing_but_the_difference() {
    let mut world = world(23);
    let web = member(&mut world, 7, WATCHED);
    world.pass(2 * SECOND);
    news(&mut world, web);
    let mut last = None;
    for turn in 0..200 {
        if let Some(last) = last {
            world.cut(last);
        }
        last = Some(member(&mut world, 8 + turn % 3, ROOM));
        world.pass(10 * MS);
    }
    world.pass(2 * SECOND);
    let told = news(&mut world, web);
    let (joins, leaves): (Vec<_>, Vec<_>) = told.iter().partition(|told| told.starts_with('+'));
    assert_eq!(joins.len(), leaves.len() + 1, "one of them is there: {told:?}");
    assert!(told.len() <= 15, "at most the difference of a second: {told:?}");
}

#[test]
fn a_client_whose_socket_is_full_hears_the_difference_later() {
    let mut world = world(24);
    let web = member(&mut world, 7, WATCHED);
    world.pass(2 * SECOND);
    news(&mut world, web);
    world.webs.get_mut(&web).expect("a client").stalled = true;
    let bulk = vec![b'x'; 1_000];
    for _ in 0..100 {
        world.publish("chat", &bulk);
    }
    world.pass(SECOND);
    let other = member(&mut world, 8, ROOM);
    member(&mut world, 9, ROOM);
    world.pass(2 * SECOND);
    world.cut(other);
    world.pass(2 * SECOND);
    world.webs.get_mut(&web).expect("a client").stalled = false;
    world.pass(2 * SECOND);
    assert_eq!(news(&mut world, web), ["+9"]);
}

#[test]
fn a_broker_that_begins_again_makes_nobody_leave() {
    let mut world = world(25);
    let (web, other) = (member(&mut world, 7, WATCHED), member(&mut world, 8, ROOM));
    world.pass(2 * SECOND);
    news(&mut world, web);
    for round in 0..3 {
        world.restart_broker(0);
        for (member, rest) in [(web, WATCHED), (other, ROOM)] {
            world.wait(member, "the gap", |message| message["push"]["unsubscribe"].is_object());
            world.subscribe(member, 3 + round, rest);
        }
        world.pass(3 * SECOND);
        let told = news(&mut world, web);
        assert!(
            told.is_empty() || told == ["+7"],
            "nobody but itself has come or gone: {told:?}"
        );
    }
    world.cut(other);
    world.pass(3 * SECOND);
    assert_eq!(news(&mut world, web), ["-8"]);
}

#[test]
fn a_room_with_too_many_users_tells_nothing_until_it_is_small_again() {
    let mut world = world(26);
    world.edge.set_join_leave_max(2);
    let (web, other) = (member(&mut world, 7, WATCHED), member(&mut world, 8, ROOM));
    world.pass(2 * SECOND);
    news(&mut world, web);
    let third = member(&mut world, 9, ROOM);
    world.pass(2 * SECOND);
    world.cut(other);
    world.pass(30 * SECOND);
    assert_eq!(
        news(&mut world, web),
        ["+7"],
        "it is small again, and begins as at first"
    );
    world.cut(third);
    world.pass(2 * SECOND);
    assert_eq!(news(&mut world, web), ["-9"]);
}
