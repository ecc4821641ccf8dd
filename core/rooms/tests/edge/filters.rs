//! Filters of clients by WebSocket: the messages that match, live and recovered, and the errors of filters that are no good.

use serde_json::{json, Value};

use crate::world::{World, MS};

const EUROS: &str = r#""tf":{"key":"pair","cmp":"in","vals":["EUR","USD"]}"#;
const DATA: &str = r#""data":{"mine":1,"filter":{"equal":{"pair":["EUR","USD"]}}}"#;
const PAIRS: [&str; 4] = ["EUR", "JPY", "USD", ""];

/// Publishes numbered messages, each with the next pair; every fifth has several chunks.
fn fill(world: &mut World, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let pair = PAIRS[number % PAIRS.len()];
        let headers = [("pair", pair)];
        let long = "x".repeat(if number % 5 == 0 { 3_000 } else { 0 });
        let data = json!({"number": number, "long": long}).to_string();
        let headers = if pair.is_empty() { &[][..] } else { &headers[..] };
        world.publish_headed("prices", headers, data.as_bytes());
    }
}

fn numbers<'a>(publications: impl IntoIterator<Item = &'a Value>) -> Vec<u64> {
    let numbers = publications.into_iter().map(|one| one["data"]["number"].as_u64());
    numbers.map(|number| number.expect("a number")).collect()
}

fn wanted(numbers: std::ops::Range<u64>) -> Vec<u64> {
    numbers.filter(|number| number % 2 == 0).collect()
}

#[test]
fn a_client_gets_what_its_filter_lets_through_live_and_of_what_it_missed() {
    for (seed, filter) in [(31, EUROS), (32, DATA)] {
        let mut world = World::new(seed);
        let (web, all) = (world.connected("all"), world.connected("all"));
        let reply = world.subscribe(web, 2, &format!(r#""channel":"prices",{filter}"#));
        let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
        world.subscribe(all, 2, r#""channel":"prices""#);
        fill(&mut world, 0..20);
        let got: Vec<Value> = (0..20).map(|_| world.publication(all)).collect();
        assert_eq!(numbers(&got), (0..20).collect::<Vec<_>>(), "another client gets all");
        let got: Vec<Value> = (0..10).map(|_| world.publication(web)).collect();
        assert_eq!(numbers(&got), wanted(0..20));
        let filtered = world.edge.counters.messages_filtered;
        assert!(filtered >= 10, "{filtered}");
        world.cut(web);
        fill(&mut world, 20..40);
        world.pass(500 * MS);
        let offset = got[9]["offset"].as_u64().expect("an offset");
        let web = world.connected("all");
        let rest = format!(r#""channel":"prices","recover":true,"epoch":"{epoch}","offset":{offset},{filter}"#);
        let result = world.subscribe(web, 2, &rest)["subscribe"].clone();
        assert_eq!(result["recovered"], true, "{result}");
        assert_eq!(
            numbers(result["publications"].as_array().expect("some")),
            wanted(20..40)
        );
        fill(&mut world, 40..44);
        assert_eq!(numbers([&world.publication(web), &world.publication(web)]), [40, 42]);
    }
}

#[test]
fn a_client_without_an_epoch_keeps_its_filter_and_a_join_without_one_takes_it_back() {
    let mut world = World::new(33);
    let web = world.connected("all");
    world.subscribe(web, 2, r#""channel":"prices""#);
    fill(&mut world, 0..8);
    (0..8).for_each(|_| drop(world.publication(web)));
    world.say(web, r#"{"id":3,"unsubscribe":{"channel":"prices"}}"#);
    world.reply(web, 3);
    let rest = format!(r#""channel":"prices","recover":true,"offset":0,{EUROS}"#);
    let result = world.subscribe(web, 4, &rest)["subscribe"].clone();
    assert_eq!(numbers(result["publications"].as_array().expect("some")), wanted(0..8));
    fill(&mut world, 8..12);
    assert_eq!(numbers([&world.publication(web), &world.publication(web)]), [8, 10]);
    world.say(web, r#"{"id":5,"unsubscribe":{"channel":"prices"}}"#);
    world.reply(web, 5);
    world.subscribe(web, 6, r#""channel":"prices""#);
    fill(&mut world, 12..14);
    assert_eq!(numbers([&world.publication(web), &world.publication(web)]), [12, 13]);
}

#[test]
fn a_sample_is_the_same_for_all_and_a_filter_takes_no_deltas() {
    let mut world = World::new(34);
    let sample = r#""data":{"filter":{"one_in":3}}"#;
    let webs = [world.connected("all"), world.connected("all")];
    for web in webs {
        let rest = format!(r#""channel":"prices","delta":"fossil",{sample}"#);
        let result = world.subscribe(web, 2, &rest)["subscribe"].clone();
        assert_ne!(result["delta"], true, "{result}");
    }
    fill(&mut world, 0..60);
    world.pass(500 * MS);
    let samples = webs.map(|web| {
        world.say(web, r#"{"id":9,"history":{"channel":"prices","limit":1}}"#);
        let mut got = Vec::new();
        loop {
            let next = world.wait(web, "all", |message| {
                message["id"] == 9 || message["push"]["pub"].is_object()
            });
            match next["push"]["pub"].is_object() {
                true => got.push(next["push"]["pub"].clone()),
                false => return numbers(&got),
            }
        }
    });
    assert_eq!(samples[0], samples[1]);
    assert!((5..40).contains(&samples[0].len()), "{samples:?}");
}

#[test]
fn a_client_gets_the_latest_at_a_rate_and_the_last_one_in_the_end() {
    let mut world = World::new(36);
    let latest = r#""data":{"filter":{"equal":{"pair":["EUR","USD"]},"at_most_per_s":5}}"#;
    let (web, all) = (world.connected("all"), world.connected("all"));
    let reply = world.subscribe(web, 2, &format!(r#""channel":"prices",{latest}"#));
    let epoch = reply["subscribe"]["epoch"].as_str().expect("an epoch").to_owned();
    world.subscribe(all, 2, r#""channel":"prices""#);
    for number in 0..100 {
        fill(&mut world, number..number + 1);
        world.pass(20 * MS);
    }
    (0..100).for_each(|_| drop(world.publication(all)));
    let mut got = vec![world.publication(web)];
    while numbers(&got).last() != Some(&98) {
        got.push(world.publication(web));
    }
    let told = numbers(&got);
    assert!((8..=25).contains(&told.len()), "{told:?}");
    assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    assert!(told.iter().all(|number| number % 2 == 0), "{told:?}");
    world.cut(web);
    fill(&mut world, 100..140);
    world.pass(500 * MS);
    let offset = got[got.len() - 1]["offset"].as_u64().expect("an offset");
    let web = world.connected("all");
    let rest = format!(r#""channel":"prices","recover":true,"epoch":"{epoch}","offset":{offset},{latest}"#);
    let result = world.subscribe(web, 2, &rest)["subscribe"].clone();
    assert_eq!(result["recovered"], true, "{result}");
    assert_eq!(numbers(result["publications"].as_array().expect("some")), [138]);
    fill(&mut world, 140..144);
    assert_eq!(numbers([&world.publication(web)]), [142]);
}

#[test]
fn a_filter_that_is_no_good_is_refused_with_its_reason() {
    let mut world = World::new(35);
    let web = world.connected("all");
    let cases = [
        (r#""tf":{"key":"a","cmp":"neq","val":"1"}"#, "eq, in and and"),
        (
            r#""tf":{"op":"or","nodes":[{"key":"a","cmp":"eq","val":"1"}]}"#,
            "eq, in and and",
        ),
        (r#""tf":{"key":"a b","cmp":"eq","val":"1"}"#, "name of a header"),
        (r#""tf":{"key":"a","cmp":"in","vals":[]}"#, "1 to 16 values"),
        (r#""data":{"filter":{}}"#, "compares a header"),
        (r#""data":{"filter":1}"#, "a filter is"),
        (r#""data":{"filter":{"where":{}}}"#, "a filter is"),
        (r#""data":{"filter":{"equal":{"a":1}}}"#, "a filter is"),
        (r#""data":{"filter":{"one_in":0}}"#, "1 to 1000000"),
        (r#""data":{"filter":{"one_in":5000000000}}"#, "1 to 1000000"),
        (
            r#""data":{"filter":{"at_most_per_s":0}}"#,
            "1 to 1000 messages a second",
        ),
        (r#""data":{"filter":{"at_most_per_s":"5"}}"#, "a filter is"),
        (
            r#""tf":{"key":"a","cmp":"eq","val":"1"},"data":{"filter":{"equal":{"a":"2"}}}"#,
            "each header once",
        ),
    ];
    for (id, (filter, why)) in (10..).zip(cases) {
        let reply = world.subscribe(web, id, &format!(r#""channel":"prices",{filter}"#));
        assert_eq!(reply["error"]["code"], 401, "{filter}: {reply}");
        let message = reply["error"]["message"].as_str().expect("words");
        assert!(message.contains(why), "{filter}: {message}");
        assert_ne!(reply["error"]["temporary"], true, "{reply}");
    }
    // Data of an application that knows nothing of filters, and none at all.
    for (id, data) in [
        (40, r#""data":{"filter":null}"#),
        (41, r#""data":[1]"#),
        (42, r#""tf":null"#),
    ] {
        let reply = world.subscribe(web, id, &format!(r#""channel":"room{id}",{data}"#));
        assert!(reply["subscribe"].is_object(), "{reply}");
    }
}
