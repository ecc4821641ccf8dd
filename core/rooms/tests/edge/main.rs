//! An edge before a real router, broker and proxy: what a client of the Centrifuge client protocol sees of a room.

mod world;

use serde_json::json;
use world::{World, MS, SECOND};

#[test]
fn a_message_published_over_udp_reaches_a_client_by_websocket() {
    let mut world = World::new(1);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    assert_eq!(reply["subscribe"]["recoverable"], true);
    assert_eq!(reply["subscribe"]["epoch"].as_str().map(str::len), Some(28));
    world.publish("sports:final", br#"{"goal":1}"#);
    let publication = world.publication(web);
    assert_eq!(publication["data"], json!({"goal": 1}));
    assert_eq!(publication["offset"], 1);
    assert_eq!(publication["info"]["user"], "9");
}

#[test]
fn a_client_by_websocket_publishes_through_the_owner_and_hears_its_own_message() {
    let mut world = World::new(2);
    let (first, second) = (world.connected("all"), world.connected("all"));
    for web in [first, second] {
        world.subscribe(web, 2, r#""channel":"chat""#);
    }
    world.say(first, r#"{"id":3,"publish":{"channel":"chat","data":{"text":"hi"}}}"#);
    let reply = world.reply(first, 3);
    assert!(reply["publish"].is_object(), "{reply}");
    for web in [first, second] {
        let message = world.wait(web, "the message", |message| message["push"]["pub"].is_object());
        assert_eq!(message["push"]["channel"], "chat", "as the client named it");
        assert_eq!(message["push"]["pub"]["data"], json!({"text": "hi"}));
        assert_eq!(message["push"]["pub"]["info"]["user"], "7");
    }
    let (_, counters) = world.edge.edge_counters();
    assert_eq!(counters.publications_acknowledged, 1);
    assert_eq!(counters.frames_built, 1, "one frame for both");
}

#[test]
fn a_client_that_comes_back_gets_what_it_missed_in_the_reply() {
    let mut world = World::new(3);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    world.publish("sports:final", b"1");
    assert_eq!(world.publication(web)["offset"], 1);
    world.cut(web);
    for number in 2..5 {
        world.publish("sports:final", number.to_string().as_bytes());
    }
    world.pass(500 * MS);
    let web = world.connected("all");
    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":"{epoch}","offset":1"#);
    let reply = world.subscribe(web, 2, &rest);
    let result = &reply["subscribe"];
    assert_eq!(
        (&result["recovered"], &result["was_recovering"]),
        (&json!(true), &json!(true)),
        "{reply}"
    );
    let offsets: Vec<_> = result["publications"]
        .as_array()
        .expect("some")
        .iter()
        .map(|one| one["offset"].clone())
        .collect();
    assert_eq!(offsets, [2, 3, 4]);
    assert_eq!(result["offset"], 1);
    world.publish("sports:final", b"5");
    assert_eq!(world.publication(web)["offset"], 5);
}

#[test]
fn a_client_that_comes_back_to_an_edge_that_is_new_gets_what_it_missed() {
    let mut world = World::new(4);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    world.publish("sports:final", b"1");
    assert_eq!(world.publication(web)["offset"], 1);
    world.restart_edge(Default::default());
    world.publish("sports:final", b"2");
    world.pass(SECOND);
    let web = world.connected("all");
    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":"{epoch}","offset":1"#);
    let reply = world.subscribe(web, 2, &rest);
    assert_eq!(reply["subscribe"]["recovered"], true, "{reply}");
    assert_eq!(reply["subscribe"]["publications"][0]["data"], 2);
}
