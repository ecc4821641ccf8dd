//! The front: replies as Redis gives them, their order, and hostile clients.

mod clients;
mod erasing;
mod leaderboards;
mod node;
mod redis;

use muster_likes::resp::{slot, Cluster, Feeds, Node as ClusterNode, Settings};
use muster_likes::{Engine, Record, FEED_ITEMS_MAX, WALK_MAX};
use node::{line, Node, NOW_MS};
use proptest::prelude::*;
use std::collections::BTreeSet;

pub fn talk(settings: Settings, dialog: &[(&str, &str)]) {
    let mut node = Node::new(settings);
    let client = node.front.open();
    for (words, reply) in dialog {
        let found = String::from_utf8(node.ask(client, &line(words))).unwrap();
        assert_eq!(found, reply.replace('\n', "\r\n"), "{words}");
    }
}

#[test]
fn likes_and_ranks_as_a_redis_client_asks_for_them() {
    talk(
        Settings::default(),
        &[
            ("SETBIT share:1000 2017 1", ":0\n"),
            ("setbit share:1000 2017 1", ":1\n"),
            ("SETBIT share:1000 18446744073709551615 1", ":0\n"),
            ("GETBIT share:1000 18446744073709551615", ":1\n"),
            ("GETBIT share:1000 5", ":0\n"),
            ("BITCOUNT share:1000", ":2\n"),
            ("SETBIT share:1001 2017 1", ":0\n"),
            ("BITOP AND both share:1000 share:1001", ":2305843009213693952\n"),
            ("GETBIT both 2017", ":1\n"),
            ("BITCOUNT both", ":1\n"),
            ("LIKE.FIELDS share:1000 agriculture", "+OK\n"),
            ("LIKE.FIELDSOF share:1000", "*2\n$5\nshare\n$11\nagriculture\n"),
            (
                "ZREVRANGE rank:agriculture 0 99 WITHSCORES",
                "*2\n$10\nshare:1000\n$1\n2\n",
            ),
            ("ZREVRANK rank:agriculture share:1000", ":0\n"),
            ("ZREVRANGE rank 0 -1", "*2\n$10\nshare:1000\n$10\nshare:1001\n"),
            ("ZRANK rank share:1000", ":1\n"),
            ("ZSCORE rank@1h share:1001", "$1\n1\n"),
            ("ZSCORE rank both", "$-1\n"),
            ("ZCARD rank:share", ":2\n"),
            ("TYPE rank:share", "+zset\n"),
            ("TYPE share:1000", "+string\n"),
            ("TYPE rank:music", "+none\n"),
            ("EXISTS share:1000 share:1 rank rank", ":3\n"),
            ("LIKE.NEWEST share:1000", "*2\n$20\n18446744073709551615\n$4\n2017\n"),
            ("LIKE.LIKERS share:1000 1 1", "*1\n$20\n18446744073709551615\n"),
            ("LIKE.BOTH share:1000 share:1001", "*1\n$4\n2017\n"),
            ("LIKE.ITEMS 2017", "*2\n$10\nshare:1001\n$10\nshare:1000\n"),
            (
                "LIKE.TREND share:1001",
                "*6\n$2\n1h\n$1\n1\n$3\n24h\n$1\n1\n$2\n7d\n$1\n1\n",
            ),
            (
                "SCAN 0 MATCH share:* COUNT 100",
                "*2\n$1\n0\n*2\n$10\nshare:1000\n$10\nshare:1001\n",
            ),
            ("DBSIZE", ":3\n"),
            ("DEL share:1000 share:1001 share:7", ":2\n"),
            ("ZCARD rank", ":0\n"),
            (
                "SETBIT rank:music 1 1",
                "-WRONGTYPE Operation against a key holding the wrong kind of value\n",
            ),
        ],
    );
}

#[test]
fn client_libraries_greet_and_find_the_commands() {
    talk(
        Settings::default(),
        &[
            ("PING", "+PONG\n"),
            ("PING hello", "$5\nhello\n"),
            ("SELECT 0", "+OK\n"),
            ("SELECT 1", "-ERR DB index is out of range\n"),
            ("CLIENT SETNAME me", "+OK\n"),
            ("CLIENT GETNAME", "$2\nme\n"),
            ("CLIENT SETINFO LIB-NAME redis-py", "+OK\n"),
            ("COMMAND INFO getbit nothing", "*2\n*6\n$6\ngetbit\n:3\n*1\n+readonly\n:1\n:1\n:1\n$-1\n"),
            ("HELLO 4", "-NOPROTO unsupported protocol version\n"),
            ("HELLO 3", "%7\n$6\nserver\n$6\nmuster\n$7\nversion\n$5\n7.0.0\n$4\nmode\n$10\nstandalone\n$4\nrole\n$6\nmaster\n$5\nproto\n:3\n$2\nid\n:1\n$7\nmodules\n*0\n"),
            ("SETBIT share:1 7 1", ":0\n"),
            ("ZREVRANGE rank 0 9 WITHSCORES", "*1\n*2\n$7\nshare:1\n,1\n"),
            ("ZSCORE rank nothing", "_\n"),
            ("CLUSTER SLOTS", "-ERR This instance has cluster support disabled\n"),
            ("AUTH secret", "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\n"),
            ("QUIT", "+OK\n"),
            ("PING", ""),
        ],
    );
}

#[test]
fn client_without_password_is_kept_out() {
    let passwords = vec![("default".into(), "secret".into()), ("site".into(), "other".into())];
    talk(
        Settings {
            passwords,
            ..Settings::default()
        },
        &[
            ("GETBIT a 1", "-NOAUTH Authentication required.\n"),
            ("SETBIT a 1 1", "-NOAUTH Authentication required.\n"),
            (
                "AUTH wrong",
                "-WRONGPASS invalid username-password pair or user is disabled.\n",
            ),
            (
                "AUTH site secret",
                "-WRONGPASS invalid username-password pair or user is disabled.\n",
            ),
            ("GETBIT a 1", "-NOAUTH Authentication required.\n"),
            ("AUTH site other", "+OK\n"),
            ("GETBIT a 1", ":0\n"),
            ("AUTH secret", "+OK\n"),
        ],
    );
}

fn first_of_two() -> Settings {
    let node = |id: &str, port, slots| ClusterNode {
        id: id.repeat(40),
        host: "127.0.0.1".into(),
        port,
        slots: vec![slots],
    };
    let nodes = vec![node("a", 7_000, (0, 8_191)), node("b", 7_001, (8_192, 16_000))];
    let cluster = Some(Cluster {
        nodes,
        me: 0,
        door: false,
        epoch: 3,
    });
    Settings {
        cluster,
        ..Settings::default()
    }
}

#[test]
fn a_page_of_a_feed_is_one_reply() {
    talk(
        Settings::default(),
        &[
            ("SETBIT share:1 7 1", ":0\n"),
            ("SETBIT share:1 18446744073709551615 1", ":0\n"),
            ("SETBIT share:1 9 1", ":0\n"),
            ("SETBIT share:2 8 1", ":0\n"),
            (
                "LIKE.FEED 7 2 share:1 share:2 share:3 share:1",
                "*4\n*3\n:3\n:1\n*2\n$1\n9\n$20\n18446744073709551615\n*3\n:1\n:0\n*1\n$1\n8\n*3\n:0\n:0\n*0\n*3\n:3\n:1\n*2\n$1\n9\n$20\n18446744073709551615\n",
            ),
            ("like.feed - 0 share:2", "*1\n*3\n:1\n$-1\n*0\n"),
            ("LIKE.FEED 1000 1 share:2", "*1\n*3\n:1\n:0\n*1\n$1\n8\n"),
            (
                "LIKE.FEED 7 1 share:1 rank:share",
                "-WRONGTYPE Operation against a key holding the wrong kind of value\n",
            ),
            (
                "LIKE.FEED 007 1 share:1",
                "-ERR viewer is not a user from 0 to 2^64-1; use - for no viewer\n",
            ),
            ("LIKE.FEED 7 x share:1", "-ERR value is not an integer or out of range\n"),
            (
                "LIKE.FEED 7 11 share:1",
                "-ERR LIKE.FEED gives at most 10 newest likers of each item: use LIKE.NEWEST for more\n",
            ),
            ("LIKE.FEED 7 1", "-ERR wrong number of arguments for 'like.feed' command\n"),
        ],
    );
}

#[test]
fn a_page_of_a_feed_has_a_limit_and_is_counted() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    let page = |items: usize| line(&format!("LIKE.FEED 7 10{}", " share:1".repeat(items)));
    let reply = node.ask(client, &page(FEED_ITEMS_MAX));
    assert!(reply.starts_with(b"*1000\r\n*3\r\n:0\r\n:0\r\n*0\r\n"));
    let refused = node.ask(client, &page(FEED_ITEMS_MAX + 1));
    assert_eq!(
        String::from_utf8_lossy(&refused),
        "-ERR LIKE.FEED takes at most 1000 items: use another one for the others\r\n"
    );
    node.ask(client, &page(2));
    assert_eq!(node.front.feeds(), Feeds { pages: 2, items: 1_002 });
}

#[test]
fn a_page_of_a_feed_sees_the_changes_of_its_connection() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    let both = [line("SETBIT share:1 7 1"), line("LIKE.FEED 7 1 share:1")].concat();
    assert_eq!(
        String::from_utf8_lossy(&node.ask(client, &both)),
        ":0\r\n*1\r\n*3\r\n:1\r\n:1\r\n*1\r\n$1\r\n7\r\n"
    );
}

#[test]
fn a_page_of_a_feed_takes_items_of_all_slots_of_its_port() {
    let mut node = Node::new(first_of_two());
    let client = node.front.open();
    let keys: Vec<String> = (0..40).map(|number| format!("share:{number}")).collect();
    let (here, there): (Vec<&String>, Vec<&String>) = keys.iter().partition(|key| slot(key.as_bytes()) <= 8_191);
    let there: Vec<_> = there.into_iter().filter(|key| slot(key.as_bytes()) <= 16_000).collect();
    let mut ask = |keys: &[&String]| {
        let keys: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
        String::from_utf8(node.ask(client, &line(&format!("LIKE.FEED 7 0 {}", keys.join(" "))))).unwrap()
    };
    assert!(here.len() > 5 && ask(&here).starts_with(&format!("*{}\r\n", here.len())));
    let moved = format!("-MOVED {} 127.0.0.1:7001\r\n", slot(there[0].as_bytes()));
    assert_eq!(ask(&there), moved);
    let crossed = "-CROSSSLOT Some items belong to another partition: ask each partition for its own items\r\n";
    assert_eq!(ask(&[here[0], there[0]]), crossed);
    assert_eq!(ask(&[there[0], here[0]]), crossed);
    let mut settings = first_of_two();
    settings.cluster.as_mut().unwrap().door = true;
    let mut door = Node::new(settings);
    let client = door.front.open();
    let reply = door.ask(client, &line(&format!("LIKE.FEED 7 0 {}", here[0])));
    assert!(
        reply.starts_with(b"-CLUSTERDOWN"),
        "{}",
        String::from_utf8_lossy(&reply)
    );
}

#[test]
fn a_scan_of_likers_finds_those_who_stay_once() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    for user in 0..60 {
        node.ask(client, &line(&format!("SETBIT share:1 {user} 1")));
    }
    let (mut cursor, mut found) = ("0".to_string(), Vec::new());
    for turn in 0.. {
        let reply = String::from_utf8(node.ask(client, &line(&format!("SSCAN share:1 {cursor} COUNT 7")))).unwrap();
        let mut lines = reply.split("\r\n").skip(2);
        cursor = lines.next().unwrap().into();
        found.extend(lines.skip(2).step_by(2).filter_map(|text| text.parse::<u64>().ok()));
        if cursor == "0" {
            break;
        }
        for (user, bit) in [(turn, 0), (100 + turn, 1)] {
            node.ask(client, &line(&format!("SETBIT share:1 {user} {bit}"))); // it was passed, and it comes last
        }
    }
    let once: BTreeSet<u64> = found.iter().copied().collect();
    assert_eq!(once.len(), found.len());
    assert!((0..60).all(|user| once.contains(&user)), "{once:?}");
}

#[test]
fn cluster_nodes_lists_a_line_per_node() {
    let mut node = Node::new(first_of_two());
    let client = node.front.open();
    let told = String::from_utf8(node.ask(client, &line("CLUSTER NODES"))).unwrap();
    let lines: Vec<String> = told.lines().skip(1).map(String::from).collect();
    assert_eq!(
        lines,
        [
            format!(
                "{} 127.0.0.1:7000@7000 myself,master - 0 0 3 connected 0-8191",
                "a".repeat(40)
            ),
            format!(
                "{} 127.0.0.1:7001@7001 master - 0 0 3 connected 8192-16000",
                "b".repeat(40)
            ),
            String::new(),
        ]
    );
}

#[test]
fn port_without_slots_redirects_clients_and_drops_its_data() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    assert_eq!(node.ask(client, &line("SETBIT bar 1 1")), b":0\r\n");
    let mut cluster = first_of_two().cluster.unwrap();
    cluster.nodes[0].slots.clear();
    cluster.nodes[1].slots = vec![(0, 16_383)];
    node.front.forget();
    node.front.set_cluster(Some(cluster));
    let ask = |node: &mut Node, text: &str| String::from_utf8(node.ask(client, &line(text))).unwrap();
    for text in ["GETBIT bar 1", "SETBIT bar 1 1"] {
        assert_eq!(ask(&mut node, text), "-MOVED 5061 127.0.0.1:7001\r\n");
    }
    for text in ["SCAN 0", "DBSIZE", "LIKE.ITEMS 1", "LIKE.TOP rank 0 9"] {
        assert!(ask(&mut node, text).starts_with("-CLUSTERDOWN"), "{text}");
    }
    assert_eq!(ask(&mut node, "PING"), "+PONG\r\n");
    assert_eq!(node.front.engine().item_count(), 0);
}

#[test]
fn door_is_listed_for_unserved_slots_and_serves_none() {
    let mut settings = first_of_two();
    let cluster = settings.cluster.as_mut().unwrap();
    cluster.door = true;
    cluster.nodes[0].slots = vec![(0, 8_191), (16_001, 16_383)];
    let mut node = Node::new(settings);
    let client = node.front.open();
    let ask = |node: &mut Node, text: &str| String::from_utf8(node.ask(client, &line(text))).unwrap();
    assert_eq!(
        ask(&mut node, "SETBIT bar 1 1"),
        "-CLUSTERDOWN Hash slot not served\r\n"
    );
    assert_eq!(ask(&mut node, "GETBIT bar 1"), "-CLUSTERDOWN Hash slot not served\r\n");
    assert_eq!(ask(&mut node, "SETBIT foo 1 1"), "-MOVED 12182 127.0.0.1:7001\r\n");
    assert!(ask(&mut node, "DBSIZE").starts_with("-CLUSTERDOWN"));
    assert!(ask(&mut node, "CLUSTER INFO").contains("cluster_state:ok\r\ncluster_slots_assigned:16384\r\n"));
    assert_eq!(node.front.engine().item_count(), 0);
}

#[test]
fn http_request_of_a_web_page_is_cut_off_before_its_body() {
    for request in [
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:7379\r\nContent-Type: text/plain\r\n\r\nSETBIT share:1 7 1\r\n",
        "post /x HTTP/1.1\r\n\r\nSETBIT share:1 7 1\r\n",
        "GET / HTTP/1.1\r\nhOsT: 127.0.0.1\r\n\r\nSETBIT share:1 7 1\r\n",
        "PUT / HTTP/1.1\r\nUser-Agent: x\r\nHost: a\r\n\r\nSETBIT share:1 7 1\r\n",
        "*1\r\n$4\r\nPOST\r\nSETBIT share:1 7 1\r\n",
    ] {
        for cut in [request.len(), 20, 1] {
            let mut node = Node::new(Settings::default());
            let (page, other) = (node.front.open(), node.front.open());
            for part in request.as_bytes().chunks(cut) {
                node.ask(page, part);
            }
            assert!(node.front.ends(page), "{request:?}");
            assert_eq!(node.ask(page, &line("PING")), b"");
            assert_eq!(node.ask(other, &line("BITCOUNT share:1")), b":0\r\n", "{request:?}");
        }
    }
}

#[test]
fn transaction_runs_as_a_whole_in_one_batch() {
    talk(
        Settings::default(),
        &[
            ("MULTI", "+OK\n"),
            ("SETBIT share:1 7 1", "+QUEUED\n"),
            ("GETBIT share:1 7", "+QUEUED\n"),
            ("DEL share:2 share:1", "+QUEUED\n"),
            ("BITCOUNT share:1", "+QUEUED\n"),
            ("PING", "+QUEUED\n"),
            ("EXEC", "*5\n:0\n:1\n:1\n:0\n+PONG\n"),
            ("MULTI", "+OK\n"),
            ("MULTI", "-ERR MULTI calls can not be nested\n"),
            ("SETBIT share:1 7 1", "+QUEUED\n"),
            ("DISCARD", "+OK\n"),
            ("BITCOUNT share:1", ":0\n"),
            ("MULTI", "+OK\n"),
            ("SETBIT share:1 7 1", "+QUEUED\n"),
            ("ZPOPMAX rank", "-ERR unknown command 'ZPOPMAX': members of a leaderboard come and go by ZADD and ZREM, all of them by DEL\n"),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors.\n"),
            ("BITCOUNT share:1", ":0\n"),
            ("MULTI", "+OK\n"),
            ("EXEC", "*0\n"),
            ("EXEC", "-ERR EXEC without MULTI\n"),
            ("DISCARD", "-ERR DISCARD without MULTI\n"),
        ],
    );
    let mut node = Node::new(Settings::default());
    let (client, other) = (node.front.open(), node.front.open());
    let sent = [
        "SETBIT a 1 1",
        "MULTI",
        "SETBIT a 2 1",
        "GETBIT a 2",
        "SETBIT b 1 1",
        "EXEC",
        "PING",
    ]
    .map(line);
    node.front.feed(client, &sent.concat(), NOW_MS);
    node.front.feed(other, &line("SETBIT a 3 1"), NOW_MS);
    assert_eq!(node.front.take_replies(client), b"", "nothing is durable yet");
    assert!(node.begin());
    assert_eq!(node.group.len(), 5, "a segment, and all changes in one batch");
    node.finish();
    let replies = String::from_utf8(node.front.take_replies(client)).unwrap();
    assert_eq!(
        replies,
        ":0\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:0\r\n:1\r\n:0\r\n+PONG\r\n"
    );
}

#[test]
fn transaction_that_is_too_long_or_not_served_here_is_refused_as_a_whole() {
    let mut node = Node::new(first_of_two());
    let client = node.front.open();
    let ask = |node: &mut Node, text: &str| String::from_utf8(node.ask(client, &line(text))).unwrap();
    ask(&mut node, "MULTI");
    assert_eq!(ask(&mut node, "SETBIT bar 1 1"), "+QUEUED\r\n");
    assert_eq!(ask(&mut node, "SETBIT foo 1 1"), "-MOVED 12182 127.0.0.1:7001\r\n");
    assert!(ask(&mut node, "EXEC").starts_with("-EXECABORT"));
    assert_eq!(ask(&mut node, "BITCOUNT bar"), ":0\r\n");
    ask(&mut node, "MULTI");
    for _ in 0..1_024 {
        assert_eq!(ask(&mut node, "SETBIT bar 1 1"), "+QUEUED\r\n");
    }
    assert!(ask(&mut node, "SETBIT bar 1 1").starts_with("-ERR a transaction has at most 1024 commands"));
    assert!(ask(&mut node, "EXEC").starts_with("-EXECABORT"));
    assert_eq!(ask(&mut node, "BITCOUNT bar"), ":0\r\n");
}

/// An item with likers from `first` on.
fn liked(node: &mut Node, key: &[u8], first: u64, likers: u64) {
    let mut apply = |record: Record| {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let engine = node.front.engine_mut();
        engine.apply(engine.offset(), &bytes).unwrap();
        node.log.push(bytes);
    };
    let ids = likers.next_multiple_of(65_536) as u32;
    apply(Record::Segment { first: 0, ids });
    for user in first..first + likers {
        apply(Record::Set {
            at_ms: NOW_MS,
            key,
            user,
            likes: true,
        });
    }
}

#[test]
fn walks_through_very_many_likers_are_refused_with_a_reason() {
    let mut node = Node::new(Settings::default());
    liked(&mut node, b"share:1", 0, WALK_MAX + 1);
    let client = node.front.open();
    let ask = |node: &mut Node, text: &str| String::from_utf8(node.ask(client, &line(text))).unwrap();
    for text in [
        "BITPOS share:1 0",
        "BITPOS share:1 1",
        "BITPOS share:1 0 5 9",
        "BITCOUNT share:1 0 -1",
        "BITCOUNT share:1 1 2 BIT",
    ] {
        assert!(
            ask(&mut node, text).starts_with("-ERR the item has more than 200000 likers"),
            "{text}"
        );
    }
    assert_eq!(ask(&mut node, "BITCOUNT share:1"), ":200001\r\n");
    assert_eq!(ask(&mut node, "LIKE.LIKERS share:1 200000"), "*1\r\n$6\r\n200000\r\n");
    assert_eq!(ask(&mut node, "LIKE.LIKERS share:1 200001"), "*0\r\n");
    assert!(ask(&mut node, "LIKE.BOTH share:1 share:1").starts_with("*10000\r\n"));
    let many = " share:1".repeat(161);
    for text in [format!("LIKE.BOTH{many}"), format!("BITOP OR all{many}")] {
        assert!(
            ask(&mut node, &text).starts_with("-ERR these items have more than 32000000 likers"),
            "{text:.9}"
        );
    }
    assert_eq!(ask(&mut node, "SETBIT share:1 0 0"), ":1\r\n");
    assert_eq!(ask(&mut node, "BITPOS share:1 1"), ":1\r\n");
}

#[test]
fn position_that_no_integer_reply_holds_is_an_error() {
    talk(
        Settings::default(),
        &[
            ("SETBIT a 9223372036854775807 1", ":0\n"),
            ("BITPOS a 1", ":9223372036854775807\n"),
            ("SETBIT b 9223372036854775808 1", ":0\n"),
            (
                "BITPOS b 1",
                "-ERR the position is above 2^63-1, the largest integer reply: use LIKE.LIKERS\n",
            ),
            ("BITPOS b 0", ":0\n"),
        ],
    );
}

#[test]
fn edge_cases_agree_with_redis() {
    let cut = |text: &str| text.len();
    talk(
        Settings::default(),
        &[
            ("CLIENT GETNAME", "$-1\n"),
            (
                "CLIENT SETNAME a\u{7f}b",
                "-ERR Client names cannot contain spaces, newlines or special characters.\n",
            ),
            ("CLIENT SETNAME me", "+OK\n"),
            ("CLIENT GETNAME", "$2\nme\n"),
            ("INFO nosuch", "$0\n\n"),
            (
                "INFO cluster nosuch REPLICATION",
                &format!(
                    "${}\n# Replication\nrole:master\nconnected_slaves:0\n\n# Cluster\ncluster_enabled:0\n\n",
                    cut("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n")
                ),
            ),
            ("CLUSTER INFO", "-ERR This instance has cluster support disabled\n"),
            (
                "WATCH a",
                "-ERR unknown command 'WATCH': SETBIT returns the old bit, and MULTI with EXEC is atomic\n",
            ),
            ("ZRANK rank:music share:1", "$-1\n"),
            ("SETBIT a 65536 1", ":0\n"),
            (
                "BITOP NOT b a",
                "-ERR BITOP NOT supports keys of at most 65536 bits: each clear bit becomes a user\n",
            ),
            ("EXISTS b", ":0\n"),
            ("SETBIT c 2 1", ":0\n"),
            ("BITOP NOT b c", ":1\n"),
            ("BITCOUNT b", ":7\n"),
        ],
    );
}

#[test]
fn cluster_info_counts_the_nodes_that_serve_slots() {
    let mut node = Node::new(first_of_two());
    let client = node.front.open();
    let said = String::from_utf8(node.ask(client, &line("CLUSTER INFO"))).unwrap();
    for text in [
        "cluster_state:fail",
        "cluster_slots_assigned:16001",
        "cluster_slots_fail:0",
        "cluster_size:2",
        "cluster_my_epoch:3",
    ] {
        assert!(said.contains(&format!("{text}\r\n")), "{text}: {said}");
    }
}

#[test]
fn failed_batch_is_reported_until_one_succeeds() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    assert_eq!((node.front.trouble(), node.front.not_taken()), (None, 0));
    node.front.feed(client, &line("SETBIT a 1 1"), NOW_MS);
    assert!(node.begin());
    node.front.batch_failed("MISCONF disk is full", false, NOW_MS);
    assert_eq!(
        (node.front.trouble(), node.front.not_taken()),
        (Some("MISCONF disk is full"), 1)
    );
    node.front.take_replies(client);
    node.ask(client, &line("SETBIT a 1 1"));
    assert_eq!((node.front.trouble(), node.front.not_taken()), (None, 1));
}

#[test]
fn places_above_an_item_of_another_log_are_counted() {
    talk(
        Settings::default(),
        &[
            ("SETBIT share:1 1 1", ":0\n"),
            ("SETBIT share:1 2 1", ":0\n"),
            ("SETBIT share:2 1 1", ":0\n"),
            ("SETBIT share:3 1 1", ":0\n"),
            ("LIKE.ABOVE rank 0 other", "*2\n:3\n:3\n"),
            ("LIKE.ABOVE rank:share 1 share:25", "*2\n:2\n:3\n"),
            ("LIKE.ABOVE rank 2 share:0", "*2\n:1\n:3\n"),
            ("LIKE.ABOVE rank 2 share:4", "*2\n:0\n:3\n"),
            ("LIKE.ABOVE rank 1 share:1", "*2\n:2\n:3\n"),
            ("LIKE.ABOVE rank:none 1 share:1", "*2\n:0\n:0\n"),
            ("LIKE.ABOVE rank@1h 1 share:1", "-ERR not a ranking by count\n"),
        ],
    );
}

#[test]
fn keys_of_other_nodes_are_sent_there() {
    assert_eq!((slot(b"foo"), slot(b"bar"), slot(b"k3")), (12_182, 5_061, 4_576));
    talk(
        first_of_two(),
        &[
            ("GETBIT foo 1", "-MOVED 12182 127.0.0.1:7001\n"),
            ("SETBIT foo 1 1", "-MOVED 12182 127.0.0.1:7001\n"),
            ("SETBIT bar 1 1", ":0\n"),
            ("BITOP OR bar bar foo", "-CROSSSLOT Keys in request don't hash to the same slot\n"),
            ("BITOP OR {bar}.or bar", ":1\n"),
            ("DEL bar k3", "-CROSSSLOT Keys in request don't hash to the same slot\n"),
            ("CLUSTER KEYSLOT foo", ":12182\n"),
            ("CLUSTER SLOTS", &format!("*2\n*3\n:0\n:8191\n*3\n$9\n127.0.0.1\n:7000\n$40\n{}\n*3\n:8192\n:16000\n*3\n$9\n127.0.0.1\n:7001\n$40\n{}\n", "a".repeat(40), "b".repeat(40))),
            ("CLUSTER MYID", &format!("$40\n{}\n", "a".repeat(40))),
            ("ZREVRANGE rank 0 9", "-CROSSSLOT A ranking is on all partitions: `muster rank` and HTTP merge it, LIKE.TOP answers for one\n"),
            ("LIKE.TOP rank 0 9", "*2\n$3\nbar\n$1\n1\n"),
        ],
    );
}

#[test]
fn owner_unsure_of_its_ownership_serves_no_items() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    assert_eq!(node.ask(client, &line("SETBIT a 1 1")), b":0\r\n");
    node.front
        .feed(client, &[line("SETBIT a 2 1"), line("BITCOUNT a")].concat(), NOW_MS);
    assert!(node.begin());
    node.front.suspend(Some("CLUSTERDOWN lease has ended".into()), true);
    let error = "-CLUSTERDOWN lease has ended\r\n";
    for words in ["GETBIT a 1", "SETBIT a 3 1", "DBSIZE", "LIKE.ITEMS 1", "ZCARD rank"] {
        node.front.feed(client, &line(words), NOW_MS);
    }
    node.front.feed(client, &line("PING"), NOW_MS);
    node.finish();
    let replies = String::from_utf8(node.front.take_replies(client)).unwrap();
    assert_eq!(replies, format!(":0\r\n{}+PONG\r\n", error.repeat(6)));
    node.front.suspend(None, true);
    assert_eq!(node.ask(client, &line("BITCOUNT a")), b":2\r\n");
    node.front.suspend(Some("CLUSTERDOWN lease has ended".into()), false);
    assert_eq!(node.ask(client, &line("SETBIT a 2 1")), b":1\r\n", "its log decides");
    assert_eq!(node.ask(client, &line("GETBIT a 1")), error.as_bytes());
}

#[test]
fn change_is_answered_only_once_it_is_durable() {
    let mut node = Node::new(Settings::default());
    let (writer, reader) = (node.front.open(), node.front.open());
    node.front.feed(
        writer,
        &[line("SETBIT a 1 1"), line("GETBIT a 1"), line("NONSENSE")].concat(),
        NOW_MS,
    );
    assert_eq!(node.front.take_replies(writer), b"");
    node.front.feed(reader, &line("GETBIT a 1"), NOW_MS);
    assert_eq!(node.front.take_replies(reader), b":0\r\n", "not durable, so not seen");
    assert!(node.begin());
    node.front.feed(writer, &line("BITCOUNT a"), NOW_MS);
    assert_eq!(node.front.take_replies(writer), b"");
    node.finish();
    let replies = String::from_utf8(node.front.take_replies(writer)).unwrap();
    assert_eq!(
        replies,
        ":0\r\n:1\r\n-ERR unknown command 'NONSENSE', with args beginning with: \r\n:1\r\n"
    );
    node.front.feed(reader, &line("GETBIT a 1"), NOW_MS);
    assert_eq!(node.front.take_replies(reader), b":1\r\n");
}

#[test]
fn failed_batch_is_reported_and_leaves_no_trace() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    node.front.feed(
        client,
        &[line("SETBIT a 1 1"), line("DEL a b"), line("GETBIT a 1")].concat(),
        NOW_MS,
    );
    assert!(node.begin());
    node.front.feed(client, &line("SETBIT a 2 1"), NOW_MS);
    node.front.batch_failed("MISCONF disk is full", false, NOW_MS);
    let replies = String::from_utf8(node.front.take_replies(client)).unwrap();
    let error = "-MISCONF disk is full\r\n";
    assert_eq!(replies, format!("{error}{error}:0\r\n{error}"));
    assert_eq!(node.ask(client, &line("SETBIT a 1 1")), b":0\r\n");
    assert_eq!(node.ask(client, &line("BITCOUNT a")), b":1\r\n");

    node.front.feed(client, &line("SETBIT a 3 1"), NOW_MS);
    assert!(node.begin());
    node.front.batch_failed("CLUSTERDOWN log has a new owner", true, NOW_MS);
    assert_eq!(
        node.ask(client, &line("SETBIT a 4 1")),
        b"-CLUSTERDOWN log has a new owner\r\n".repeat(2)
    );
    assert_eq!(node.ask(client, &line("BITCOUNT a")), b":1\r\n");
}

#[test]
fn lying_client_gets_one_error_and_is_closed() {
    for (bytes, error) in [
        (
            &b"*1000000000\r\n"[..],
            "-ERR Protocol error: invalid multibulk length\r\n",
        ),
        (b"*1\r\n$536870912\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (
            b"*2\r\n$3\r\nGET\r\n!",
            "-ERR Protocol error: expected '$', got '!'\r\n",
        ),
        (&[b'a'; 70_000], "-ERR Protocol error: too big inline request\r\n"),
    ] {
        let mut node = Node::new(Settings::default());
        let (liar, other) = (node.front.open(), node.front.open());
        let sent = [&line("SETBIT a 1 1"), bytes, &line("PING")].concat();
        let replies = String::from_utf8(node.ask(liar, &sent)).unwrap();
        assert_eq!(replies, format!(":0\r\n{error}"));
        assert!(node.front.ends(liar));
        assert_eq!(node.ask(liar, &line("PING")), b"");
        assert_eq!(node.ask(other, &line("GETBIT a 1")), b":1\r\n");
    }
}

#[test]
fn client_that_reads_nothing_is_no_longer_read() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    let pipeline = line("COMMAND").repeat(2_000);
    node.front.feed(client, &pipeline, NOW_MS);
    assert!(node.front.is_full(client));
    let mut replies = 0;
    loop {
        let held = node.front.take_replies(client).len();
        assert!(held < 2 << 20, "{held} bytes held");
        replies += held;
        if held == 0 {
            break;
        }
        node.front.feed(client, &[], NOW_MS);
    }
    let one = node.ask(client, &line("COMMAND")).len();
    assert_eq!(replies, 2_000 * one, "nothing is lost");

    let changes = line("SETBIT a 1 1").repeat(20_000);
    node.front.feed(client, &changes, NOW_MS);
    assert!(node.front.is_full(client));
    let replies = node.ask(client, &[]);
    assert_eq!(replies.len(), 20_000 * 4);
    node.front.close(client);
}

#[test]
fn batch_stays_within_the_journals_limit() {
    let mut node = Node::new(Settings::default());
    let clients: Vec<_> = (0..64).map(|_| node.front.open()).collect();
    let key = "k".repeat(500);
    let pipeline = line(&format!("SETBIT {key} 1 1")).repeat(1_000);
    for &client in &clients {
        node.front.feed(client, &pipeline, NOW_MS);
    }
    assert!(clients.iter().any(|&client| node.front.is_full(client)));
    let mut batches = 0;
    while node.begin() {
        let mut group = muster_journal::Group::new();
        for record in &node.group {
            group.push(record).unwrap();
        }
        batches += 1;
        node.finish();
    }
    assert!(batches > 10);
    for &client in &clients {
        assert!(!node.front.is_full(client));
        assert_eq!(node.front.take_replies(client).len(), 4_000);
    }
}

#[test]
fn closed_client_keeps_its_changes_and_frees_its_slot() {
    let mut node = Node::new(Settings::default());
    let first = node.front.open();
    node.front.feed(first, &line("SETBIT a 1 1"), NOW_MS);
    node.front.close(first);
    let second = node.front.open();
    assert_ne!(first, second, "replies for the first must not reach the second");
    node.commit_all();
    assert_eq!(node.ask(second, &line("BITCOUNT a")), b":1\r\n");
    assert_eq!(node.front.open(), first);
}

#[test]
fn restarted_node_answers_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let options = muster_journal::Options {
        segment_bytes: 1 << 20,
        ..muster_journal::Options::default()
    };
    let mut counts = Vec::new();
    for round in 0..3_u64 {
        let mut journal = muster_journal::Journal::open(folder.path(), options).unwrap();
        let mut engine = Engine::default();
        let mut reader = journal.reader(0).unwrap();
        while let Some(records) = reader.next_group().unwrap() {
            for (offset, record) in records {
                engine.apply(offset, record).unwrap();
            }
        }
        let mut front = muster_likes::resp::Front::new(engine, Settings::default());
        let client = front.open();
        front.feed(client, &line("BITCOUNT a"), NOW_MS);
        counts.push(front.take_replies(client));
        for user in 0..100 {
            front.feed(client, &line(&format!("SETBIT a {} 1", round * 50 + user)), NOW_MS);
        }
        let mut group = muster_journal::Group::new();
        for record in front.begin_batch().unwrap() {
            group.push(record).unwrap();
        }
        let offsets = journal.append(&mut group).unwrap();
        front.batch_is_durable(offsets.start, NOW_MS);
        assert_eq!(front.take_replies(client).len(), 400);
    }
    assert_eq!(counts, [b":0\r\n".to_vec(), b":100\r\n".to_vec(), b":150\r\n".to_vec()]);
}

/// Commands of one client on keys of its own.
fn script(client: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let words = prop_oneof![
        6 => (0..3, 0..20_u64, 0..2).prop_map(|(key, user, bit)| format!("SETBIT c{{c}}:{key} {user} {bit}")),
        3 => (0..3, 0..20_u64).prop_map(|(key, user)| format!("GETBIT c{{c}}:{key} {user}")),
        2 => (0..3).prop_map(|key| format!("BITCOUNT c{{c}}:{key}")),
        1 => (0..3).prop_map(|key| format!("DEL c{{c}}:{key} c{{c}}:9")),
        1 => Just("BITOP OR c{c}:2 c{c}:0 c{c}:1".to_string()),
        1 => Just("BITOP NOT c{c}:2 c{c}:0".to_string()),
        1 => Just("ZREVRANGE rank:c{c} 0 9 WITHSCORES".to_string()),
        1 => Just("SETBIT c{c}:0 x 1".to_string()),
        1 => Just("NONSENSE".to_string()),
    ];
    proptest::collection::vec(
        words.prop_map(move |words| line(&words.replace("{c}", &client.to_string()))),
        0..30,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However the bytes are split and batches overlap, each client gets the replies that it would get alone, in
    /// order.
    #[test]
    fn replies_come_in_order_and_as_if_alone(
        scripts in (script(0), script(1), script(2)),
        turns in proptest::collection::vec((0..5_usize, 1..60_usize), 0..200),
    ) {
        let scripts = [scripts.0, scripts.1, scripts.2];
        let mut node = Node::new(Settings::default());
        let clients = [0, 1, 2].map(|_| node.front.open());
        let mut unsent: Vec<Vec<u8>> = scripts.iter().map(|script| script.concat()).collect();
        let mut replies = vec![Vec::new(); 3];
        let mut under_way = false;
        for (who, bytes) in turns {
            match who {
                3 => under_way |= !under_way && node.begin(),
                4 => if std::mem::take(&mut under_way) { node.finish() },
                who => {
                    let bytes = bytes.min(unsent[who].len());
                    let rest = unsent[who].split_off(bytes);
                    let part = std::mem::replace(&mut unsent[who], rest);
                    node.front.feed(clients[who], &part, NOW_MS);
                }
            }
            for id in node.front.ready() {
                let who = clients.iter().position(|&client| client == id).unwrap();
                replies[who].extend(node.front.take_replies(id));
            }
        }
        if under_way {
            node.finish();
        }
        for (who, rest) in unsent.iter().enumerate() {
            replies[who].extend(node.ask(clients[who], rest));
        }
        for (who, script) in scripts.iter().enumerate() {
            let mut alone = Node::new(Settings::default());
            let client = alone.front.open();
            let wanted: Vec<u8> = script.iter().flat_map(|words| alone.ask(client, words)).collect();
            prop_assert_eq!(String::from_utf8_lossy(&replies[who]), String::from_utf8_lossy(&wanted));
        }
    }

    #[test]
    fn any_bytes_harm_nobody(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'*'), Just(b'$'), Just(b'1'), Just(b'\r'), Just(b'\n')], 0..200)) {
        let mut node = Node::new(Settings::default());
        let (liar, other) = (node.front.open(), node.front.open());
        node.ask(liar, &bytes);
        prop_assert_eq!(node.ask(other, &line("PING")), b"+PONG\r\n");
    }
}
