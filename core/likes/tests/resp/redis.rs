//! The same commands to the front and to a real Redis: all replies must be equal, byte for byte.

use crate::node::{line, Node};
use muster_likes::resp::Settings;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

struct Redis {
    process: Child,
    stream: BufReader<UnixStream>,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// Starts `redis-server` on a socket in a folder of its own, without persistence.
    fn start() -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("redis.sock");
        let mut process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is installed (apt-get install redis-server)");
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains("ready to accept connections")));
        assert!(ready, "redis-server starts");
        let stream = BufReader::new(UnixStream::connect(&socket).unwrap());
        Redis {
            process,
            stream,
            _folder: folder,
        }
    }

    fn ask(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.stream.get_mut().write_all(bytes).unwrap();
        let mut reply = Vec::new();
        self.read(&mut reply);
        reply
    }

    fn read(&mut self, reply: &mut Vec<u8>) {
        let begin = reply.len();
        self.stream.read_until(b'\n', reply).unwrap();
        let number = || {
            String::from_utf8_lossy(&reply[begin + 1..])
                .trim()
                .parse::<i64>()
                .unwrap()
        };
        match reply[begin] {
            b'$' if number() >= 0 => {
                let len = number() as usize + 2;
                let at = reply.len();
                reply.resize(at + len, 0);
                self.stream.read_exact(&mut reply[at..]).unwrap();
            }
            b'*' => {
                for _ in 0..number().max(0) {
                    self.read(reply);
                }
            }
            _ => {}
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn key() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("share:1"), Just("share:2"), Just("other"), Just("both")]
}

fn offset() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => (0..40_u64).prop_map(|offset| offset.to_string()),
        2 => (0..3_000_u64).prop_map(|offset| offset.to_string()),
        1 => prop_oneof![Just("-1"), Just("x"), Just("007"), Just("1.5"), Just("99999999999999999999999"), Just(" 1")].prop_map(String::from),
    ]
}

fn place() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => (-12..12_i64).prop_map(|place| place.to_string()),
        2 => (-400..400_i64).prop_map(|place| place.to_string()),
        1 => prop_oneof![Just("x"), Just("-0"), Just("9223372036854775807"), Just("-9223372036854775808")].prop_map(String::from),
    ]
}

fn bits() -> impl Strategy<Value = String> {
    let bit = || prop_oneof![10 => Just("1"), 10 => Just("0"), 1 => Just("2"), 1 => Just("x")];
    let unit = || prop_oneof![4 => Just(""), 2 => Just(" BIT"), 2 => Just(" byte"), 1 => Just(" word")];
    let op = prop_oneof![4 => Just("AND"), 4 => Just("or"), 4 => Just("XOR"), 3 => Just("NOT"), 1 => Just("NAND")];
    prop_oneof![
        12 => (key(), offset(), bit()).prop_map(|(key, offset, bit)| format!("SETBIT {key} {offset} {bit}")),
        4 => (key(), offset()).prop_map(|(key, offset)| format!("GETBIT {key} {offset}")),
        2 => key().prop_map(|key| format!("BITCOUNT {key}")),
        4 => (key(), place(), place(), unit()).prop_map(|(key, from, to, unit)| format!("BITCOUNT {key} {from} {to}{unit}")),
        1 => (key(), place()).prop_map(|(key, from)| format!("BITCOUNT {key} {from}")),
        2 => (key(), bit()).prop_map(|(key, bit)| format!("BITPOS {key} {bit}")),
        2 => (key(), bit(), place()).prop_map(|(key, bit, from)| format!("BITPOS {key} {bit} {from}")),
        4 => (key(), bit(), place(), place(), unit()).prop_map(|(key, bit, from, to, unit)| format!("BITPOS {key} {bit} {from} {to}{unit}")),
        4 => (op, key(), proptest::collection::vec(key(), 1..4)).prop_map(|(op, to, from)| format!("BITOP {op} {to} {}", from.join(" "))),
        1 => (key(), key()).prop_map(|(a, b)| format!("DEL {a} {b}")),
        1 => (key(), key()).prop_map(|(a, b)| format!("EXISTS {a} {b} {a}")),
        1 => key().prop_map(|key| format!("TYPE {key}")),
        1 => key().prop_map(|key| format!("STRLEN {key}")),
        1 => prop_oneof![Just("DBSIZE"), Just("GETBIT a"), Just("SETBIT a 1"), Just("DEL"), Just("BITOP AND a"), Just("SELECT 99"), Just("SELECT x"), Just("PING a b"), Just("HELLO 9"), Just("HELLO x"), Just("AUTH x"), Just("AUTH x y z w"), Just("SCAN x"), Just("SCAN 0 COUNT 0"), Just("SCAN 0 COUNT"), Just("ZSCORE a"), Just("nonsense a b")].prop_map(String::from),
    ]
}

fn ranks() -> impl Strategy<Value = String> {
    let scores = || prop_oneof![Just(""), Just(" WITHSCORES"), Just(" withscores")];
    let member = || prop_oneof![3 => (0..6).prop_map(|item| format!("m:{item}")), 1 => Just("nothing".to_string())];
    prop_oneof![
        (place(), place(), scores()).prop_map(|(from, to, scores)| format!("ZREVRANGE rank {from} {to}{scores}")),
        (place(), place(), scores()).prop_map(|(from, to, scores)| format!("ZRANGE rank {from} {to}{scores}")),
        (place(), place(), scores()).prop_map(|(from, to, scores)| format!("ZRANGE rank {from} {to} REV{scores}")),
        member().prop_map(|member| format!("ZREVRANK rank {member}")),
        member().prop_map(|member| format!("ZRANK rank {member}")),
        member().prop_map(|member| format!("ZSCORE rank {member}")),
        Just("ZCARD rank".to_string()),
        Just("TYPE rank".to_string()),
        Just("ZREVRANGE rank 0 1 NONSENSE".to_string()),
        Just("GETBIT rank 1".to_string()),
        Just("BITCOUNT rank".to_string()),
        Just("BITPOS rank 1".to_string()),
        Just("ZCARD m:0".to_string()),
        Just("ZREVRANK m:0 a".to_string()),
        Just("ZCARD absent".to_string()),
        Just("ZRANGE absent 0 -1".to_string()),
        Just("ZSCORE absent a".to_string()),
    ]
}

/// Commands on a leaderboard, which is a sorted set there.
fn scores() -> impl Strategy<Value = String> {
    let key = || prop_oneof![8 => Just("game:1"), 3 => Just("game:2"), 1 => Just("share:1"), 1 => Just("absent")];
    let member = || prop_oneof![6 => (0..8).prop_map(|member| format!("m{member}")), 1 => Just("nobody".to_string())];
    let score = || {
        prop_oneof![
            12 => (-6..7_i32).prop_map(|score| score.to_string()),
            2 => prop_oneof![Just("1.5"), Just("-2.25"), Just("inf"), Just("+inf"), Just("-inf"), Just("1e3"), Just(".5")].prop_map(String::from),
            1 => prop_oneof![Just("x"), Just("nan"), Just("1e400"), Just("1x"), Just("--1")].prop_map(String::from),
        ]
    };
    let bound = || {
        prop_oneof![
            12 => (any::<bool>(), -6..7_i32).prop_map(|(open, score)| format!("{}{score}", if open { "(" } else { "" })),
            3 => prop_oneof![Just("-inf"), Just("+inf"), Just("inf"), Just("(inf"), Just("(-inf"), Just("1.5")].prop_map(String::from),
            1 => prop_oneof![Just("x"), Just("[1"), Just("(("), Just("(nan")].prop_map(String::from),
        ]
    };
    let conditions = || {
        prop_oneof![
            6 => Just(""),
            6 => prop_oneof![Just("NX "), Just("xx "), Just("GT "), Just("lt "), Just("CH "), Just("XX GT "), Just("XX LT CH ")],
            2 => prop_oneof![Just("NX XX "), Just("GT LT "), Just("NX GT "), Just("NX LT CH "), Just("CH CH ")],
        ]
    };
    let pairs = proptest::collection::vec((score(), member()), 1..5).prop_map(|pairs| {
        pairs
            .iter()
            .map(|(score, member)| format!("{score} {member}"))
            .collect::<Vec<_>>()
            .join(" ")
    });
    let members = proptest::collection::vec(member(), 1..4).prop_map(|members| members.join(" "));
    let limit = || prop_oneof![6 => Just(String::new()), 3 => (-1..6_i32, -2..6_i32).prop_map(|(offset, count)| format!(" LIMIT {offset} {count}"))];
    let with_scores = || prop_oneof![Just(""), Just(" WITHSCORES")];
    let by_rank = || (place(), place());
    prop_oneof![
        12 => (key(), conditions(), pairs).prop_map(|(key, conditions, pairs)| format!("ZADD {key} {conditions}{pairs}")),
        4 => (key(), conditions(), score(), member()).prop_map(|(key, conditions, score, member)| format!("ZADD {key} {conditions}INCR {score} {member}")),
        4 => (key(), score(), member()).prop_map(|(key, score, member)| format!("ZINCRBY {key} {score} {member}")),
        3 => (key(), members.clone()).prop_map(|(key, members)| format!("ZREM {key} {members}")),
        3 => (key(), members).prop_map(|(key, members)| format!("ZMSCORE {key} {members}")),
        3 => (key(), member()).prop_map(|(key, member)| format!("ZSCORE {key} {member}")),
        2 => (key(), member()).prop_map(|(key, member)| format!("ZRANK {key} {member}")),
        2 => (key(), member()).prop_map(|(key, member)| format!("ZREVRANK {key} {member}")),
        2 => key().prop_map(|key| format!("ZCARD {key}")),
        4 => (key(), bound(), bound()).prop_map(|(key, from, to)| format!("ZCOUNT {key} {from} {to}")),
        3 => (key(), by_rank(), with_scores()).prop_map(|(key, (from, to), scores)| format!("ZRANGE {key} {from} {to}{scores}")),
        2 => (key(), by_rank(), with_scores()).prop_map(|(key, (from, to), scores)| format!("ZREVRANGE {key} {from} {to}{scores}")),
        2 => (key(), by_rank(), with_scores()).prop_map(|(key, (from, to), scores)| format!("ZRANGE {key} {from} {to} REV{scores}")),
        3 => (key(), bound(), bound(), limit(), with_scores()).prop_map(|(key, from, to, limit, scores)| format!("ZRANGE {key} {from} {to} BYSCORE{limit}{scores}")),
        2 => (key(), bound(), bound(), limit(), with_scores()).prop_map(|(key, from, to, limit, scores)| format!("ZRANGE {key} {from} {to} byscore REV{scores}{limit}")),
        2 => (key(), bound(), bound(), limit(), with_scores()).prop_map(|(key, from, to, limit, scores)| format!("ZRANGEBYSCORE {key} {from} {to}{scores}{limit}")),
        2 => (key(), bound(), bound(), limit(), with_scores()).prop_map(|(key, from, to, limit, scores)| format!("ZREVRANGEBYSCORE {key} {from} {to}{limit}{scores}")),
        1 => prop_oneof![
            Just("SETBIT share:1 1 1"), Just("SETBIT game:1 1 1"), Just("GETBIT game:1 1"), Just("BITCOUNT game:1"), Just("DEL game:1"),
            Just("DEL game:2 share:1"), Just("EXISTS game:1 game:2 share:1"), Just("TYPE game:1"), Just("TYPE share:1"), Just("DBSIZE"),
            Just("BITOP AND both game:1 share:1"), Just("ZADD game:1"), Just("ZADD game:1 1"), Just("ZADD game:1 1 a 2"),
            Just("ZADD game:1 NX"), Just("ZADD game:1 INCR 1 a 2 b"), Just("ZINCRBY game:1 1"), Just("ZREM game:1"), Just("ZRANGE game:1 0 1 LIMIT 0 1"),
            Just("ZRANGE game:1 0 1 BYSCORE LIMIT 0"), Just("ZRANGE game:1 0 1 BYSCORE LIMIT x 1"), Just("ZREVRANGE game:1 0 1 REV"),
            Just("ZRANGEBYSCORE game:1 0 1 LIMIT 0"), Just("ZCOUNT game:1 0"), Just("ZMSCORE game:1")
        ].prop_map(String::from),
    ]
}

fn member() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => (0..40_u64).prop_map(|user| user.to_string()),
        4 => prop_oneof![Just(1 << 40), Just(1 << 63), Just(u64::MAX)].prop_map(|user: u64| user.to_string()),
        2 => prop_oneof![Just("-1"), Just("x"), Just("007"), Just("18446744073709551616"), Just("+1")].prop_map(String::from),
    ]
}

/// Commands on sets whose replies are the same byte for byte.
fn sets() -> impl Strategy<Value = String> {
    let set = || prop_oneof![8 => key(), 1 => Just("rank"), 1 => Just("absent")];
    let members = proptest::collection::vec(member(), 1..6).prop_map(|members| members.join(" "));
    let cursor = || {
        prop_oneof![
            Just("x"),
            Just("1x"),
            Just("-"),
            Just("18446744073709551616"),
            Just("0x1")
        ]
    };
    let options = prop_oneof![
        Just("COUNT"),
        Just("COUNT 0"),
        Just("COUNT -1"),
        Just("COUNT x"),
        Just("MATCH"),
        Just("TYPE string"),
        Just("MATCH * COUNT x"),
        Just("COUNT 0 nonsense x")
    ];
    prop_oneof![
        6 => (set(), member()).prop_map(|(key, member)| format!("SISMEMBER {key} {member}")),
        6 => (set(), members).prop_map(|(key, members)| format!("SMISMEMBER {key} {members}")),
        3 => set().prop_map(|key| format!("SCARD {key}")),
        2 => (set(), cursor()).prop_map(|(key, cursor)| format!("SSCAN {key} {cursor}")),
        3 => (set(), options).prop_map(|(key, options)| format!("SSCAN {key} 0 {options}")),
        1 => prop_oneof![Just("SSCAN rank 0"), Just("SSCAN absent 0"), Just("SSCAN absent -1"), Just("SSCAN absent +007"), Just("SSCAN a"), Just("SCARD"), Just("SCARD a b"), Just("SISMEMBER a"), Just("SISMEMBER a 1 2"), Just("SMISMEMBER a"), Just("SCAN +x"), Just("SCAN -")].prop_map(String::from),
    ]
}

/// All members that a whole scan finds, each as often as it is found.
fn scanned(mut ask: impl FnMut(&str) -> Vec<u8>, key: &str, options: &str) -> Vec<String> {
    let (mut cursor, mut members) = ("0".to_string(), Vec::new());
    loop {
        let reply = String::from_utf8(ask(&format!("SSCAN {key} {cursor}{options}"))).unwrap();
        // *2, the length of the cursor, the cursor, the number of members, then a length and a text for each
        let mut lines = reply.split("\r\n").skip(2);
        cursor = lines.next().unwrap().into();
        members.extend(
            lines
                .skip(1)
                .skip(1)
                .step_by(2)
                .filter(|text| !text.is_empty())
                .map(String::from),
        );
        if cursor == "0" {
            return members;
        }
    }
}

#[test]
fn sets_agree_with_redis() {
    let redis = std::cell::RefCell::new(Redis::start());
    let likes = proptest::collection::vec((key(), member(), 0..4_u8), 0..60);
    let scans = (
        key(),
        prop_oneof![
            Just(""),
            Just(" COUNT 1"),
            Just(" count 7"),
            Just(" MATCH 1*"),
            Just(" MATCH *[02] COUNT 2")
        ],
    );
    let programs = (
        likes,
        proptest::collection::vec(sets(), 1..30),
        proptest::collection::vec(scans, 1..4),
    );
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) }, |((likes, program, scans) in programs)| {
        let mut redis = redis.borrow_mut();
        redis.ask(&line("FLUSHALL"));
        redis.ask(&line("ZADD rank 1 share:1"));
        let mut node = Node::new(Settings::default());
        let client = node.front.open();
        for (key, user, take_back) in likes {
            let bit = u8::from(take_back > 0);
            let reply = node.ask(client, &line(&format!("SETBIT {key} {user} {bit}")));
            if !reply.starts_with(b"-") {
                redis.ask(&line(&format!("{} {key} {user}", if bit == 1 { "SADD" } else { "SREM" })));
            }
        }
        for words in &program {
            let (found, wanted) = (node.ask(client, &line(words)), redis.ask(&line(words)));
            prop_assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&wanted), "{}", words);
        }
        for (key, options) in scans {
            let found = scanned(|words| node.ask(client, &line(words)), key, options);
            let wanted = scanned(|words| redis.ask(&line(words)), key, options);
            let once: BTreeSet<&String> = found.iter().collect();
            prop_assert_eq!(once.len(), found.len(), "{} is found twice", key);
            prop_assert_eq!(once, wanted.iter().collect(), "SSCAN {}{}", key, options);
        }
    });
}

#[test]
fn leaderboards_agree_with_redis() {
    let redis = std::cell::RefCell::new(Redis::start());
    let programs = proptest::collection::vec(scores(), 1..50);
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) }, |(program in programs)| {
        let mut redis = redis.borrow_mut();
        redis.ask(&line("FLUSHALL"));
        let mut node = Node::new(Settings::default());
        let client = node.front.open();
        for words in &program {
            let (found, wanted) = (node.ask(client, &line(words)), redis.ask(&line(words)));
            prop_assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&wanted), "{}", words);
        }
    });
}

#[test]
fn bits_agree_with_redis() {
    let redis = std::cell::RefCell::new(Redis::start());
    let programs = proptest::collection::vec(bits(), 1..40);
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) }, |(program in programs)| {
        let mut redis = redis.borrow_mut();
        redis.ask(&line("FLUSHALL"));
        let mut node = Node::new(Settings::default());
        let client = node.front.open();
        for words in &program {
            let (found, wanted) = (node.ask(client, &line(words)), redis.ask(&line(words)));
            prop_assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&wanted), "{}", words);
        }
    });
}

#[test]
fn ranks_agree_with_a_sorted_set() {
    let redis = std::cell::RefCell::new(Redis::start());
    let likes = proptest::collection::vec((0..6_usize, 0..5_u64, 0..2_u8), 0..60);
    let programs = (likes, proptest::collection::vec(ranks(), 1..20));
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) }, |((likes, program) in programs)| {
        let mut redis = redis.borrow_mut();
        redis.ask(&line("FLUSHALL"));
        let mut node = Node::new(Settings::default());
        let client = node.front.open();
        // A ranking's key exists even while nothing is liked; Redis has no key for an empty set.
        for (item, user, bit) in [(0, 9, 1)].into_iter().chain(likes) {
            let words = line(&format!("SETBIT m:{item} {user} {bit}"));
            prop_assert_eq!(node.ask(client, &words), redis.ask(&words));
        }
        // The commands that an application would send to Redis besides bitmaps; the engine does this by itself.
        for item in 0..6 {
            let count = String::from_utf8(redis.ask(&line(&format!("BITCOUNT m:{item}")))).unwrap();
            if count != ":0\r\n" {
                redis.ask(&line(&format!("ZADD rank {} m:{item}", count[1..].trim())));
            }
        }
        for words in &program {
            let (found, wanted) = (node.ask(client, &line(words)), redis.ask(&line(words)));
            prop_assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&wanted), "{}", words);
        }
    });
}
