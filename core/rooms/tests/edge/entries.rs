//! Rooms of a token: subscriptions that the server makes.

use muster_rooms::Rights;
use serde_json::{json, Value};

use crate::world::{World, MS, SECOND};

fn world(seed: u64) -> World {
    let mut world = World::new(seed);
    world
        .rooms
        .insert("all".into(), vec!["sports:final".into(), "lobby".into()]);
    world
}

/// A client that connects; the reply to it.
fn connect(world: &mut World, rest: &str) -> (u32, Value) {
    let web = world.web(false);
    world.say(web, &format!(r#"{{"id":1,"connect":{{"token":"all"{rest}}}}}"#));
    let reply = world.reply(web, 1);
    (web, reply["connect"].clone())
}

fn pushes(world: &mut World, web: u32) -> Vec<Value> {
    world.webs.get_mut(&web).expect("a client").messages.drain(..).collect()
}

#[test]
fn the_answer_to_connect_has_the_rooms_of_the_token_and_their_messages_follow() {
    let mut world = world(31);
    let (web, connected) = connect(&mut world, "");
    for name in ["sports:final", "lobby"] {
        let sub = &connected["subs"][name];
        assert_eq!(
            (&sub["recoverable"], &sub["positioned"]),
            (&json!(true), &json!(true)),
            "{connected}"
        );
        assert_eq!(sub["epoch"].as_str().map(str::len), Some(28));
    }
    world.publish("sports:final", b"1");
    let message = world.wait(web, "a message", |message| message["push"]["pub"].is_object());
    assert_eq!(message["push"]["channel"], "sports:final");
    world.publish("lobby", b"2");
    let message = world.wait(web, "a message", |message| message["push"]["pub"].is_object());
    assert_eq!(message["push"]["channel"], "lobby", "as the token names it");
    let again = world.subscribe(web, 2, r#""channel":"lobby""#);
    assert_eq!(again["error"]["code"], 105, "it is there already");
    world.say(web, r#"{"id":3,"unsubscribe":{"channel":"lobby"}}"#);
    world.reply(web, 3);
    world.publish("lobby", b"3");
    world.pass(SECOND);
    assert_eq!(pushes(&mut world, web), [json!(null); 0], "the client may leave");
}

#[test]
fn commands_that_came_with_connect_are_answered_behind_it() {
    let mut world = world(32);
    let web = world.web(false);
    world.say(
        web,
        "{\"id\":1,\"connect\":{\"token\":\"all\"}}\n{\"id\":2,\"publish\":{\"channel\":\"lobby\",\"data\":7}}",
    );
    let message = world.wait(web, "its message", |message| message["push"]["pub"].is_object());
    assert_eq!(message["push"]["pub"]["data"], 7);
    assert!(world.reply(web, 1)["connect"]["subs"]["lobby"].is_object());
    assert!(world.reply(web, 2)["publish"].is_object());
}

#[test]
fn a_client_that_comes_back_gets_what_it_missed_in_the_answer_to_connect() {
    let mut world = world(33);
    let (web, connected) = connect(&mut world, "");
    let epoch = connected["subs"]["sports:final"]["epoch"]
        .as_str()
        .expect("an epoch")
        .to_owned();
    world.publish("sports:final", b"1");
    world.publication(web);
    world.cut(web);
    for number in 2..5 {
        world.publish("sports:final", number.to_string().as_bytes());
    }
    world.pass(500 * MS);
    let shown = format!(r#","subs":{{"sports:final":{{"recover":true,"epoch":"{epoch}","offset":1}}}}"#);
    let (web, connected) = connect(&mut world, &shown);
    let sub = &connected["subs"]["sports:final"];
    assert_eq!(
        (&sub["recovered"], &sub["was_recovering"]),
        (&json!(true), &json!(true)),
        "{sub}"
    );
    let offsets: Vec<u64> = sub["publications"]
        .as_array()
        .expect("some")
        .iter()
        .filter_map(|one| one["offset"].as_u64())
        .collect();
    assert_eq!(offsets, [2, 3, 4]);
    assert_ne!(connected["subs"]["lobby"]["was_recovering"], true);
    world.publish("sports:final", b"5");
    assert_eq!(world.publication(web)["offset"], 5);
    let (_, connected) = connect(
        &mut world,
        r#","subs":{"sports:final":{"recover":true,"epoch":"AAAA","offset":1}}"#,
    );
    let sub = &connected["subs"]["sports:final"];
    assert_ne!(sub["recovered"], true, "a position that no edge has told: {sub}");
    assert_eq!(sub["was_recovering"], true);
}

#[test]
fn a_gap_is_announced_and_the_subscription_and_the_session_stay() {
    let mut world = world(34);
    let (web, _) = connect(&mut world, "");
    world.publish("sports:final", b"1");
    world.publication(web);
    world.pass(SECOND);
    world.restart_broker(0);
    let end = world.wait(web, "the end", |message| message["push"]["unsubscribe"].is_object());
    assert_eq!(end["push"]["channel"], "sports:final");
    assert_eq!(
        (
            &end["push"]["unsubscribe"]["code"],
            &end["push"]["unsubscribe"]["reason"]
        ),
        (&json!(2500), &json!("owner_lost"))
    );
    let again = world.wait(web, "the new beginning", |message| {
        message["push"]["subscribe"].is_object()
    });
    assert_eq!(
        (&again["push"]["channel"], &again["push"]["subscribe"]["recoverable"]),
        (&json!("sports:final"), &json!(true))
    );
    world.publish("sports:final", b"2");
    assert_eq!(world.publication(web)["data"], 2);
    world.say(
        web,
        r#"{"id":9,"rpc":{"method":"muster.gaps","data":{"room":"sports:final"}}}"#,
    );
    let gaps = world.reply(web, 9);
    assert_eq!(gaps["rpc"]["data"]["gaps"][0]["reason"], "owner_lost", "{gaps}");
    assert_eq!(world.webs[&web].closed, None);
}

/// Messages without offsets would come again after a reconnect.
#[test]
fn a_subscription_begins_again_in_the_stream_of_the_next_owner() {
    let mut world = world(38);
    let (web, _) = connect(&mut world, "");
    world.publish("sports:final", b"1");
    world.publication(web);
    world.pass(SECOND);
    world.still = vec![10];
    world.pass(10 * SECOND);
    world.restart_broker(0);
    world.still.clear();
    let again = world.wait(web, "the new beginning", |message| {
        message["push"]["subscribe"].is_object() && message["push"]["channel"] == "sports:final"
    });
    world.publish("sports:final", b"2");
    let publication = world.publication(web);
    assert_eq!((&publication["data"], &publication["offset"]), (&json!(2), &json!(1)));
    world.cut(web);
    world.publish("sports:final", b"3");
    world.pass(500 * MS);
    let epoch = &again["push"]["subscribe"]["epoch"];
    let shown = format!(r#","subs":{{"sports:final":{{"recover":true,"epoch":{epoch},"offset":1}}}}"#);
    let (_, connected) = connect(&mut world, &shown);
    let sub = &connected["subs"]["sports:final"];
    assert_eq!(sub["recovered"], true, "{sub}");
    let numbers: Vec<&Value> = sub["publications"]
        .as_array()
        .expect("some")
        .iter()
        .map(|one| &one["data"])
        .collect();
    assert_eq!(numbers, [&json!(3)]);
}

/// A subscription that begins again at once would tell a client gap after gap.
#[test]
fn gaps_that_follow_each_other_are_told_once_a_second_and_no_message_passes_them() {
    let mut world = world(35);
    let (web, _) = connect(&mut world, "");
    world.publish("sports:final", b"0");
    world.publication(web);
    world.webs.get_mut(&web).expect("a client").window = 1_000;
    let bulk = vec![b'x'; 60_000];
    let (mut told, mut last) = (Vec::new(), None);
    for _ in 0..6 {
        world.webs.get_mut(&web).expect("a client").stalled = true;
        for _ in 0..90 {
            world.publish("sports:final", &bulk);
        }
        world.pass(100 * MS);
        world.webs.get_mut(&web).expect("a client").stalled = false;
        world.pass(300 * MS);
        let now = world.now;
        for message in pushes(&mut world, web) {
            if message["push"]["unsubscribe"].is_object() {
                told.push(now);
                last = None;
            }
            if let Some(offset) = message["push"]["pub"]["offset"].as_u64() {
                assert!(
                    last.is_none_or(|last| offset == last + 2 || offset > last && offset - last < 60),
                    "{last:?} {offset}"
                );
                last = Some(offset);
            }
        }
    }
    assert!(!told.is_empty(), "the arena holds 4 MiB: there are gaps");
    for pair in told.windows(2) {
        assert!(pair[1] - pair[0] >= SECOND - 400 * MS, "{told:?}");
    }
    world.pass(2 * SECOND);
    world.publish("sports:final", b"9");
    world.wait(web, "the newest", |message| message["push"]["pub"]["data"] == 9);
}

#[test]
fn a_token_whose_rooms_its_client_may_not_read_opens_nothing() {
    let mut world = world(36);
    world.grants.insert("all".into(), (7, Rights::PUBLISH));
    let web = world.web(false);
    world.say(web, r#"{"id":1,"connect":{"token":"all"}}"#);
    world.pass_until("the end", |world| world.webs[&web].closed.is_some());
    assert_eq!(world.webs[&web].closed, Some(3507));
    assert_eq!(world.edge.members_len(), 0);
    world.rooms.insert("all".into(), vec!["a:".into()]);
    let web = world.web(false);
    world.say(web, r#"{"id":1,"connect":{"token":"all"}}"#);
    world.pass_until("the end", |world| world.webs[&web].closed.is_some());
    assert_eq!(world.webs[&web].closed, Some(3500));
}

#[test]
fn a_client_that_goes_while_its_rooms_are_on_their_way_leaves_nothing_behind() {
    let mut world = world(37);
    world.still = vec![10];
    let web = world.web(false);
    world.say(web, r#"{"id":1,"connect":{"token":"all"}}"#);
    world.pass(100 * MS);
    world.cut(web);
    world.still.clear();
    world.pass(5 * SECOND);
    assert_eq!((world.edge.members_len(), world.edge.connections_len()), (0, 0));
}
