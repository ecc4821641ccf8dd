//! An edge before a real router, broker and proxy: what a client of the Centrifuge client protocol sees of a room.

mod entries;
mod filters;
mod join_leave;
mod seeds;
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
fn headers_are_tags_live_in_history_and_in_what_was_missed() {
    let mut world = World::new(21);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    let long = format!(r#"{{"text":"{}"}}"#, "x".repeat(3_000));
    world.publish_headed("sports:final", &[("kind", "goal"), ("by", "ä")], br#"{"goal":1}"#);
    world.publish_headed("sports:final", &[("kind", "long")], long.as_bytes());
    world.publish_headed("sports:final", &[("encoding", "mine"), ("kind", "bytes")], b"\xff\x00");
    world.publish("sports:final", b"4");
    let tags = [
        json!({"kind": "goal", "by": "ä"}),
        json!({"kind": "long"}),
        json!({"kind": "bytes", "encoding": "base64"}),
        json!(null),
    ];
    for (at, tags) in tags.iter().enumerate() {
        let publication = world.publication(web);
        assert_eq!(&publication["tags"], tags);
        assert_eq!(
            publication["data"],
            [
                json!({"goal": 1}),
                serde_json::from_str(&long).unwrap(),
                json!("/wA="),
                json!(4)
            ][at]
        );
    }
    world.say(web, r#"{"id":3,"history":{"channel":"sports:final","limit":-1}}"#);
    let told = world.reply(web, 3)["history"]["publications"].clone();
    let told: Vec<_> = told
        .as_array()
        .expect("some")
        .iter()
        .map(|one| one["tags"].clone())
        .collect();
    assert_eq!(told, tags);
    world.cut(web);
    let web = world.connected("all");
    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":"{epoch}","offset":0"#);
    let reply = world.subscribe(web, 2, &rest);
    let missed = reply["subscribe"]["publications"].as_array().expect("some").clone();
    assert_eq!(
        missed.iter().map(|one| one["tags"].clone()).collect::<Vec<_>>(),
        tags,
        "{reply}"
    );
}

#[test]
fn a_client_by_websocket_publishes_headers_by_a_call() {
    let mut world = World::new(22);
    let web = world.connected("all");
    world.subscribe(web, 2, r#""channel":"chat""#);
    world.say(
        web,
        r#"{"id":3,"rpc":{"method":"muster.publish","data":{"room":"chat","data":1,"headers":{"kind":"hi"}}}}"#,
    );
    assert!(world.reply(web, 3)["rpc"].is_object());
    assert_eq!(world.publication(web)["tags"], json!({"kind": "hi"}));
    let names: Vec<String> = (0..17).map(|at| format!(r#""n{at}":"""#)).collect();
    let many = format!("{{{}}}", names.join(","));
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(1_100));
    for (id, headers) in [
        (4, r#"{"a b":""}"#),
        (5, r#"{"a":1}"#),
        (6, many.as_str()),
        (7, long.as_str()),
    ] {
        let call = format!(r#"{{"room":"chat","data":1,"headers":{headers}}}"#);
        world.say(
            web,
            &format!(r#"{{"id":{id},"rpc":{{"method":"muster.publish","data":{call}}}}}"#),
        );
        assert_eq!(world.reply(web, id)["error"]["code"], 107, "{headers}");
    }
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
    world.restart_edge();
    world.publish("sports:final", b"2");
    world.pass(SECOND);
    let web = world.connected("all");
    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":"{epoch}","offset":1"#);
    let reply = world.subscribe(web, 2, &rest);
    assert_eq!(reply["subscribe"]["recovered"], true, "{reply}");
    assert_eq!(reply["subscribe"]["publications"][0]["data"], 2);
}

#[test]
fn who_cannot_have_all_that_it_missed_starts_at_the_head_and_is_told_so() {
    let mut world = World::new(5);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    world.publish("sports:final", b"1");
    assert_eq!(world.publication(web)["offset"], 1);
    world.cut(web);
    world.publish("sports:final", b"2");
    world.pass(100 * MS);
    // The owner dies with what it had, and so does the only edge that had it as well.
    world.restart_broker(0);
    world.restart_edge();
    world.pass(2 * SECOND);
    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":"{epoch}","offset":1"#);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, &rest);
    assert_ne!(reply["subscribe"]["recovered"], true, "{reply}");
    assert_eq!(reply["subscribe"]["was_recovering"], true);
    assert!(reply["subscribe"]["publications"].as_array().is_none_or(Vec::is_empty));
    assert_ne!(reply["subscribe"]["epoch"], json!(epoch));
    let other = world.connected("all");
    let reply = world.subscribe(other, 2, &format!(r#"{rest},"flag":2"#));
    assert_eq!(reply["error"]["code"], 112, "{reply}");
    assert!(world.edge.members_len() == 1, "it has no place in the room");
}

/// As with an owner that is back from a snapshot: it never numbered so much.
#[test]
fn a_client_ahead_of_the_owner_starts_at_the_head_and_gets_what_is_published_from_then_on() {
    let mut world = World::new(6);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    world.publish("sports:final", b"1");
    assert_eq!(world.publication(web)["offset"], 1);
    world.cut(web);
    let web = world.connected("all");
    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":"{epoch}","offset":51"#);
    let before = world.now;
    let reply = world.subscribe(web, 2, &rest);
    assert!(world.now - before < 200 * MS, "it is told at once");
    let result = &reply["subscribe"];
    assert_ne!(result["recovered"], true, "{reply}");
    assert_eq!(
        (&result["was_recovering"], &result["offset"]),
        (&json!(true), &json!(1))
    );
    world.say(
        web,
        r#"{"id":3,"rpc":{"method":"muster.gaps","data":{"room":"sports:final"}}}"#,
    );
    let gap = world.reply(web, 3)["rpc"]["data"]["gaps"][0].clone();
    assert_eq!(
        (&gap["reason"], &gap["first"]),
        (&json!("restarted"), &json!(2)),
        "{gap}"
    );
    for number in 2..5 {
        world.publish("sports:final", number.to_string().as_bytes());
        assert_eq!(world.publication(web)["offset"], number);
    }
}

/// A browser drops nothing, so what the edge lacks and the client has must not come to it.
#[test]
fn a_client_ahead_of_the_edge_alone_recovers_once_the_edge_has_caught_up() {
    let mut world = World::new(7);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    world.publish("sports:final", b"1");
    assert_eq!(world.publication(web)["offset"], 1);
    let other = world.connected("all");
    world.mute = vec![10];
    world.publish("sports:final", b"2");
    world.publish("sports:final", b"3");
    world.pass(20 * MS);
    world.say(
        other,
        &format!(r#"{{"id":2,"subscribe":{{"channel":"sports:final","recover":true,"epoch":"{epoch}","offset":3}}}}"#),
    );
    world.pass(80 * MS);
    assert!(
        world.webs[&other].messages.iter().all(|message| message["id"] != 2),
        "it waits"
    );
    world.mute.clear();
    let reply = world.reply(other, 2);
    let result = &reply["subscribe"];
    assert_eq!(
        (&result["recovered"], &result["offset"]),
        (&json!(true), &json!(3)),
        "{reply}"
    );
    world.publish("sports:final", b"4");
    assert_eq!(world.publication(other)["offset"], 4, "and none twice");
}

#[test]
fn a_lost_owner_is_announced_once_and_the_next_messages_come() {
    let mut world = World::new(6);
    let web = world.connected("all");
    world.subscribe(web, 2, r#""channel":"sports:final""#);
    world.publish("sports:final", b"1");
    world.publication(web);
    world.pass(SECOND); // the publisher knows that it is numbered
    world.restart_broker(0);
    let end = world.wait(web, "the end", |message| message["push"]["unsubscribe"].is_object());
    assert_eq!(end["push"]["unsubscribe"]["code"], 2500);
    assert_eq!(end["push"]["unsubscribe"]["reason"], "owner_lost");
    let reply = world.subscribe(
        web,
        3,
        r#""channel":"sports:final","recover":true,"epoch":"","offset":1"#,
    );
    assert!(reply["subscribe"].is_object(), "{reply}");
    world.publish("sports:final", b"2");
    assert_eq!(world.publication(web)["data"], 2);
    world.pass(3 * SECOND);
    assert!(world.webs[&web].messages.is_empty(), "{:?}", world.webs[&web].messages);
}

/// Found by a real growth: with the former owner's end behind the next one's first messages, these came without an offset,
/// and again after it, with messages of the former owner.
#[test]
fn messages_of_the_next_owner_come_once_although_the_end_of_the_former_comes_late() {
    let mut moved = 0;
    for seed in 0..12 {
        let mut world = World::new(50 + seed);
        let web = world.connected("all");
        let first = world.subscribe(web, 2, r#""channel":"sports:final""#);
        for number in 1..=3 {
            world.publish("sports:final", number.to_string().as_bytes());
            world.publication(web);
        }
        world.pass(SECOND);
        world.mute = vec![10]; // its end of the room comes late
        world.add_broker(1);
        world.pass(500 * MS);
        let mut seen = vec![1, 2, 3];
        let mut shown = (first["subscribe"]["epoch"].clone(), 3);
        let mut began = 0;
        for number in 4..=9 {
            world.publish("sports:final", number.to_string().as_bytes());
            world.pass(100 * MS);
            if number == 7 {
                world.mute.clear();
            }
            while let Some(message) = world.webs.get_mut(&web).expect("a client").messages.pop_front() {
                let push = &message["push"];
                let mut came = Vec::new();
                if push["pub"].is_object() {
                    came.push(push["pub"].clone());
                } else if push["unsubscribe"].is_object() {
                    assert_eq!(push["unsubscribe"]["reason"], "another owner");
                    began += 1;
                    let (epoch, offset) = &shown;
                    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":{epoch},"offset":{offset}"#);
                    let reply = world.subscribe(web, 10 + number, &rest);
                    assert_eq!(reply["subscribe"]["recovered"], true, "{reply}");
                    shown = (
                        reply["subscribe"]["epoch"].clone(),
                        reply["subscribe"]["offset"].as_u64().unwrap_or(0),
                    );
                    came.extend(
                        reply["subscribe"]["publications"]
                            .as_array()
                            .into_iter()
                            .flatten()
                            .cloned(),
                    );
                }
                for one in came {
                    shown.1 = one["offset"].as_u64().unwrap_or(shown.1);
                    seen.push(one["data"].as_u64().expect("a number"));
                }
            }
        }
        assert_eq!(seen, (1..=9).collect::<Vec<_>>(), "seed {seed}");
        assert!(began <= 1, "seed {seed}: {began}");
        moved += began;
    }
    assert!(moved > 0, "no room was moved");
}

#[test]
fn a_member_that_reads_too_slowly_hears_of_one_gap_once_its_socket_is_empty() {
    let mut world = World::new(7);
    let (slow, quick) = (world.connected("all"), world.connected("all"));
    for web in [slow, quick] {
        world.subscribe(web, 2, r#""channel":"sports:final""#);
    }
    world.webs.get_mut(&slow).expect("a client").stalled = true;
    let text = format!("\"{}\"", "x".repeat(900));
    let many = 6_000;
    for _ in 0..many {
        world.publish("sports:final", text.as_bytes());
    }
    world.pass(2 * SECOND);
    let got = |world: &World, web: u32| {
        let pushes = world.webs[&web].messages.iter();
        pushes.filter(|message| message["push"]["pub"].is_object()).count()
    };
    assert_eq!(got(&world, quick), many, "others have all");
    world.webs.get_mut(&slow).expect("a client").stalled = false;
    let end = world.wait(slow, "the end", |message| message["push"]["unsubscribe"].is_object());
    assert_eq!(end["push"]["unsubscribe"]["reason"], "slow");
    let before = got(&world, slow);
    assert!(before > 0 && before < many, "{before}");
    world.pass(SECOND);
    assert_eq!(got(&world, slow), before, "nothing passes the gap");
    let (_, counters) = world.edge.edge_counters();
    assert_eq!(counters.gaps_told, 1);
}

#[test]
fn a_client_that_takes_nothing_for_long_is_cut_off_as_slow() {
    let mut world = World::new(8);
    let web = world.connected("all");
    world.subscribe(web, 2, r#""channel":"sports:final""#);
    let client = world.webs.get_mut(&web).expect("a client");
    (client.stalled, client.window) = (true, 1_000);
    let text = format!("\"{}\"", "x".repeat(900));
    for _ in 0..10 {
        world.publish("sports:final", text.as_bytes());
    }
    world.pass_until("its end", |world| world.webs[&web].gone);
    let (_, counters) = world.edge.edge_counters();
    assert_eq!(counters.ended_stalled, 1);
    assert_eq!(world.edge.members_len(), 0);
}

#[test]
fn nothing_of_a_channel_comes_behind_the_reply_to_unsubscribe() {
    let mut world = World::new(9);
    let web = world.connected("all");
    world.subscribe(web, 2, r#""channel":"sports:final""#);
    world.say(web, r#"{"id":3,"unsubscribe":{"channel":"sports:final"}}"#);
    world.reply(web, 3);
    world.publish("sports:final", b"1");
    world.pass(SECOND);
    assert!(world.webs[&web].messages.is_empty());
    assert_eq!(world.edge.members_len(), 0);
}

#[test]
fn rights_are_looked_at_for_each_channel() {
    let mut world = World::new(10);
    world.grants.insert("reader".into(), (8, muster_rooms::Rights::READ));
    let web = world.connected("reader");
    world.subscribe(web, 2, r#""channel":"sports:final""#);
    for (id, command) in [
        (3, r#""publish":{"channel":"sports:final","data":1}"#),
        (4, r#""history":{"channel":"sports:final","limit":10}"#),
        (5, r#""presence":{"channel":"sports:final"}"#),
        (
            6,
            r#""rpc":{"method":"muster.command","data":{"room":"sports:final","data":1}}"#,
        ),
    ] {
        world.say(web, &format!(r#"{{"id":{id},{command}}}"#));
        assert_eq!(world.reply(web, id)["error"]["code"], 103, "{command}");
    }
    let reply = world.subscribe(web, 7, r#""channel":"a:b:*""#);
    assert_eq!(reply["error"]["code"], 107);
}

#[test]
fn a_wrong_token_ends_the_session_for_good_and_an_expired_one_asks_for_another() {
    let mut world = World::new(11);
    let web = world.web(false);
    world.say(web, r#"{"id":1,"connect":{"token":"wrong"}}"#);
    world.pass_until("its end", |world| world.webs[&web].closed.is_some());
    assert_eq!(world.webs[&web].closed, Some(3500));
    let web = world.web(false);
    world.say(web, r#"{"id":1,"connect":{"token":"expired"}}"#);
    assert_eq!(world.reply(web, 1)["error"]["code"], 109);
}

#[test]
fn clients_whose_tokens_end_together_bring_the_next_ones_over_a_while_and_none_ends_before_its_token() {
    let mut world = World::new(31);
    let minutes = 10;
    world.token_ends = Some(world.now + minutes * 60 * SECOND);
    let (mut webs, mut told) = (Vec::new(), std::collections::BTreeSet::new());
    for _ in 0..20 {
        let web = world.web(false);
        world.say(web, r#"{"id":1,"connect":{"token":"all"}}"#);
        told.insert(world.reply(web, 1)["connect"]["ttl"].as_u64().expect("a time"));
        webs.push(web);
    }
    let (first, last) = (*told.first().expect("some"), *told.last().expect("some"));
    assert!(last <= minutes * 60 && first >= minutes * 60 - 25 - 1, "{told:?}");
    assert!(told.len() >= 8, "{told:?}");
    world.token_ends = Some(world.now + 3_000 * SECOND);
    world.say(webs[0], r#"{"id":2,"refresh":{"token":"all"}}"#);
    let renewed = world.reply(webs[0], 2)["refresh"]["ttl"].as_u64().expect("a time");
    assert!((3_000 - 25 - 1..=3_000).contains(&renewed), "{renewed}");
}

#[test]
fn history_is_read_without_a_place_in_the_room() {
    let mut world = World::new(12);
    let web = world.connected("all");
    for number in 1..=20 {
        world.publish("sports:final", number.to_string().as_bytes());
    }
    world.pass(200 * MS);
    let ask = |world: &mut World, id: u64, rest: &str| {
        world.say(
            web,
            &format!(r#"{{"id":{id},"history":{{"channel":"sports:final",{rest}}}}}"#),
        );
        let reply = world.reply(web, id)["history"].clone();
        let offsets: Vec<u64> = reply["publications"]
            .as_array()
            .map(|all| {
                all.iter()
                    .map(|one| one["offset"].as_u64().expect("an offset"))
                    .collect()
            })
            .unwrap_or_default();
        (
            offsets,
            reply["epoch"].as_str().expect("an epoch").to_owned(),
            reply["offset"].clone(),
        )
    };
    let (offsets, epoch, top) = ask(&mut world, 2, r#""limit":0"#);
    assert_eq!((offsets.len(), top), (0, json!(20)));
    assert_eq!(ask(&mut world, 3, r#""limit":3,"reverse":true"#).0, [20, 19, 18]);
    assert_eq!(ask(&mut world, 4, r#""limit":3"#).0, [1, 2, 3]);
    assert_eq!(ask(&mut world, 5, r#""limit":-1"#).0.len(), 20);
    let since = format!(r#""limit":2,"since":{{"offset":5,"epoch":"{epoch}"}}"#);
    assert_eq!(ask(&mut world, 6, &since).0, [6, 7]);
    assert_eq!(ask(&mut world, 7, &format!(r#"{since},"reverse":true"#)).0, [4, 3]);
    assert_eq!(world.edge.members_len(), 0);
    world.say(
        web,
        r#"{"id":8,"history":{"channel":"sports:final","limit":1,"since":{"offset":1,"epoch":"x"}}}"#,
    );
    assert_eq!(world.reply(web, 8)["error"]["code"], 112);
}

#[test]
fn presence_names_the_users_of_a_room() {
    let mut world = World::new(13);
    world.grants.insert("other".into(), (8, muster_rooms::Rights::ALL));
    let (first, second, same) = (
        world.connected("all"),
        world.connected("other"),
        world.connected("other"),
    );
    for web in [first, second, same] {
        world.subscribe(web, 2, r#""channel":"sports:final""#);
    }
    world.say(first, r#"{"id":3,"presence":{"channel":"sports:final"}}"#);
    let reply = world.reply(first, 3);
    let there = reply["presence"]["presence"].as_object().expect("clients");
    assert_eq!(there.keys().collect::<Vec<_>>(), ["u7", "u8"]);
    world.say(first, r#"{"id":4,"presence_stats":{"channel":"sports:final"}}"#);
    let reply = world.reply(first, 4);
    assert_eq!(reply["presence_stats"], json!({"num_clients": 3, "num_users": 2}));
}

#[test]
fn a_command_counts_the_members_whose_pongs_prove_that_they_have_it() {
    let mut world = World::new(14);
    world.grants.insert("other".into(), (8, muster_rooms::Rights::ALL));
    let (first, second) = (world.connected("all"), world.connected("other"));
    for web in [first, second] {
        world.subscribe(web, 2, r#""channel":"sports:final""#);
    }
    let command = |id: u64| {
        format!(
            r#"{{"id":{id},"rpc":{{"method":"muster.command","data":{{"room":"sports:final","data":{{"do":"it"}},"expires":1}}}}}}"#
        )
    };
    world.say(first, &command(3));
    let told = world.wait(second, "the command", |message| message["push"]["message"].is_object());
    let told = &told["push"]["message"]["data"];
    assert_eq!(
        (&told["muster"], &told["data"]),
        (&json!("command"), &json!({"do": "it"}))
    );
    assert_eq!(
        world.reply(first, 3)["rpc"]["data"],
        json!({"outcome": "delivered", "members": 2})
    );
    // A client that has it and answers no ping has not said so.
    world.webs.get_mut(&second).expect("a client").pongs = false;
    world.pass(2 * SECOND);
    world.say(first, &command(4));
    assert_eq!(
        world.reply(first, 4)["rpc"]["data"],
        json!({"outcome": "expired", "members": 1})
    );
}

#[test]
fn a_publication_that_is_no_json_comes_as_base64_with_a_tag() {
    let mut world = World::new(15);
    let web = world.connected("all");
    world.subscribe(web, 2, r#""channel":"sports:final""#);
    world.publish("sports:final", &[0xff, 0x00, b'"', b'\n']);
    let publication = world.publication(web);
    assert_eq!(publication["data"], "/wAiCg==");
    assert_eq!(publication["tags"]["encoding"], "base64");
}

#[test]
fn a_message_of_many_chunks_comes_whole_and_recovery_goes_on_behind_it() {
    let mut world = World::new(16);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    let text = format!("\"{}\"", "y".repeat(20_000));
    world.publish("sports:final", text.as_bytes());
    let publication = world.publication(web);
    assert_eq!(publication["data"].as_str().map(str::len), Some(20_000));
    let offset = publication["offset"].as_u64().expect("an offset");
    assert!(offset > 1, "that of its last chunk");
    world.cut(web);
    world.publish("sports:final", text.as_bytes());
    world.publish("sports:final", b"3");
    world.pass(SECOND);
    let web = world.connected("all");
    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":"{epoch}","offset":{offset}"#);
    let reply = world.subscribe(web, 2, &rest);
    assert_eq!(
        reply["subscribe"]["recovered"], true,
        "{}",
        reply["subscribe"]["recovered"]
    );
    let publications = reply["subscribe"]["publications"].as_array().expect("some");
    assert_eq!(publications.len(), 2);
    assert_eq!(publications[1]["data"], 3);
}

#[test]
fn a_drain_sends_clients_away_in_slices_and_refuses_new_ones() {
    let mut world = World::new(17);
    let webs: Vec<u32> = (0..20).map(|_| world.connected("all")).collect();
    world.edge.drain_members(world.now);
    world.pass(SECOND);
    let left = |world: &World| webs.iter().filter(|web| world.webs[web].closed.is_none()).count();
    assert!((5..=15).contains(&left(&world)), "{}", left(&world));
    world.pass_until("all have gone", |world| world.edge.members_drained());
    assert!(webs.iter().all(|web| world.webs[web].closed == Some(3001)));
}

#[test]
fn a_pong_counts_for_what_was_written_before_its_ping_alone() {
    let mut world = World::new(18);
    world.grants.insert("other".into(), (8, muster_rooms::Rights::ALL));
    let (first, second) = (world.connected("all"), world.connected("other"));
    for web in [first, second] {
        world.subscribe(web, 2, r#""channel":"sports:final""#);
    }
    world.webs.get_mut(&second).expect("a client").pongs = false;
    for id in [3, 4] {
        world.say(
            first,
            &format!(
                r#"{{"id":{id},"rpc":{{"method":"muster.command","data":{{"room":"sports:final","data":{id},"expires":1}}}}}}"#
            ),
        );
        let told = |message: &serde_json::Value| message["push"]["message"]["data"]["data"] == id;
        world.wait(second, "the command", told);
        if id == 4 {
            world.say(second, "{}"); // the pong of the first ping
        }
        let outcome = world.reply(first, id)["rpc"]["data"].clone();
        assert_eq!(outcome, json!({"outcome": "expired", "members": 1}), "{id}");
        world.pass(2 * SECOND);
    }
}

#[test]
fn members_that_name_a_room_in_two_ways_or_by_a_number_each_get_their_own_frames() {
    let mut world = World::new(19);
    let (bare, full, number) = (world.connected("all"), world.connected("all"), world.connected("all"));
    world.subscribe(bare, 2, r#""channel":"chat""#);
    world.subscribe(full, 2, r#""channel":"default:chat""#);
    let reply = world.subscribe(number, 2, r#""channel":"chat","flag":1"#);
    let id = reply["subscribe"]["id"].clone();
    assert!(id.is_u64(), "{reply}");
    world.publish("chat", b"1");
    let push = |world: &mut World, web: u32| {
        world.wait(web, "a publication", |message| message["push"]["pub"].is_object())["push"].clone()
    };
    assert_eq!(push(&mut world, bare)["channel"], "chat");
    assert_eq!(push(&mut world, full)["channel"], "default:chat");
    assert_eq!(push(&mut world, number)["id"], id);
}

#[test]
fn positions_and_missed_ranges_are_told_to_a_client_that_asks() {
    let mut world = World::new(41);
    let web = world.connected("all");
    let reply = world.subscribe(web, 2, r#""channel":"sports:final""#);
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    world.publish("sports:final", b"1");
    assert_eq!(world.publication(web)["offset"], 1);
    world.say(
        web,
        r#"{"id":3,"rpc":{"method":"muster.positions","data":{"room":"sports:final"}}}"#,
    );
    let told = world.reply(web, 3)["rpc"]["data"].clone();
    assert_eq!((&told["epoch"], &told["offset"]), (&json!(epoch), &json!(1)), "{told}");
    assert_eq!(told["streams"][0]["offset"], 1);
    world.cut(web);
    world.publish("sports:final", b"2");
    world.pass(100 * MS);
    world.restart_broker(0);
    world.restart_edge();
    world.pass(2 * SECOND);
    let web = world.connected("all");
    let rest = format!(r#""channel":"sports:final","recover":true,"epoch":"{epoch}","offset":1"#);
    let reply = world.subscribe(web, 2, &rest);
    assert_ne!(reply["subscribe"]["recovered"], true, "{reply}");
    let ask =
        |id: u64, room: &str| format!(r#"{{"id":{id},"rpc":{{"method":"muster.gaps","data":{{"room":"{room}"}}}}}}"#);
    world.say(web, &ask(3, "sports:other"));
    assert_eq!(world.reply(web, 3)["rpc"]["data"]["gaps"], json!([]));
    world.say(web, &ask(4, "sports:final"));
    let gaps = world.reply(web, 4)["rpc"]["data"]["gaps"].clone();
    assert!(!gaps[0]["reason"].is_null(), "{gaps}");
    world.say(web, &ask(5, "sports:final"));
    assert_eq!(world.reply(web, 5)["rpc"]["data"]["gaps"], json!([]), "told once");
    world.say(web, &ask(6, "no good name:::"));
    assert_eq!(world.reply(web, 6)["error"]["code"], 107);
    world.say(
        web,
        r#"{"id":7,"rpc":{"method":"muster.send","data":{"user":"8","data":1}}}"#,
    );
    assert_eq!(
        world.reply(web, 7)["error"]["code"],
        108,
        "nothing carries letters here"
    );
}

#[test]
fn a_call_that_the_control_plane_knows_is_answered_by_it() {
    let mut world = World::new(43);
    let web = world.connected("all");
    let call =
        |id: u64, method: &str, data: &str| format!(r#"{{"id":{id},"rpc":{{"method":"{method}","data":{data}}}}}"#);
    world.say(web, &call(3, "muster.status", r#"{"mode":"dnd"}"#));
    let told = world.reply(web, 3)["rpc"]["data"].clone();
    assert!(told[0].is_u64(), "{told}");
    assert_eq!(told[1], json!({"mode": "dnd"}));
    world.say(web, &call(4, "muster.status", "0"));
    assert_eq!(world.reply(web, 4)["error"]["code"], 107);
    world.say(web, &call(5, "muster.other", "{}"));
    assert_eq!(world.reply(web, 5)["error"]["code"], 104);
}

#[test]
fn a_client_that_takes_deltas_gets_the_first_message_whole_and_then_what_differs() {
    let mut world = World::new(42);
    let (web, plain) = (world.connected("all"), world.connected("all"));
    let reply = world.subscribe(web, 2, r#""channel":"sports:final","delta":"fossil""#);
    assert_eq!(reply["subscribe"]["delta"], true, "{reply}");
    world.subscribe(plain, 2, r#""channel":"sports:final""#);
    let text = |goals: u32| {
        let names = (0..20).map(|n| format!("\"player {n}\""));
        format!(
            "{{\"goals\":{goals},\"players\":[{}]}}",
            names.collect::<Vec<_>>().join(",")
        )
    };
    for goals in 1..4 {
        world.publish("sports:final", text(goals).as_bytes());
        assert_eq!(world.publication(plain)["data"]["goals"], goals);
        let told = world.publication(web);
        let data = told["data"].as_str().expect("a string").to_owned();
        match goals {
            1 => assert_eq!((told["delta"].is_null(), data), (true, text(1))),
            _ => assert!(told["delta"] == true && data.len() < 60, "{told}"),
        }
    }
}

#[test]
fn with_a_write_interval_messages_of_the_meantime_leave_together() {
    let mut world = World::new(43);
    world.edge.set_write_interval(200 * MS);
    let web = world.connected("all");
    world.subscribe(web, 2, r#""channel":"sports:final""#);
    for number in 0..10 {
        world.publish("sports:final", number.to_string().as_bytes());
        world.pass(5 * MS);
    }
    world.pass(400 * MS);
    let offsets: Vec<_> = (0..10).map(|_| world.publication(web)["offset"].clone()).collect();
    assert_eq!(offsets, (1..11).map(|n| json!(n)).collect::<Vec<_>>());
    let built = world.edge.edge_counters().1.frames_built;
    assert!(built <= 3, "{built} frames for ten messages");
}
