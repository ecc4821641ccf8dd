//! Leaderboards as a Redis client asks for them: the cases of sorted sets that apply, and ours. Times of likes, and kinds
//! that exclude one another.

use crate::node::{line, Node};
use crate::{first_of_two, talk};
use muster_likes::resp::{slot, Settings};

#[test]
fn conditions_decide_whose_score_changes() {
    talk(
        Settings::default(),
        &[
            ("ZADD game:7 10 alice 20 bo 30 cy", ":3\n"),
            ("ZADD game:7 11 alice", ":0\n"), // changed, not new
            ("ZADD game:7 CH 12 alice 20 bo 1 dee", ":2\n"),
            ("ZADD game:7 XX 50 nobody", ":0\n"),
            ("ZSCORE game:7 nobody", "$-1\n"),
            ("ZADD other XX 1 alice", ":0\n"),
            ("EXISTS other", ":0\n"),
            ("ZADD game:7 NX 99 alice 5 eve", ":1\n"),
            ("ZMSCORE game:7 alice eve nobody", "*3\n$2\n12\n$1\n5\n$-1\n"),
            ("ZADD game:7 GT CH 11 alice 21 bo 7 fay", ":2\n"),
            ("ZADD game:7 LT CH 13 alice 20 bo 8 gus", ":2\n"),
            ("ZADD game:7 XX GT CH 100 alice 100 nobody", ":1\n"),
            (
                "ZADD game:7 NX XX 1 a",
                "-ERR XX and NX options at the same time are not compatible\n",
            ),
            (
                "ZADD game:7 GT NX 1 a",
                "-ERR GT, LT, and/or NX options at the same time are not compatible\n",
            ),
            ("ZADD game:7 1 a 2 a 3 a", ":1\n"),
            ("ZSCORE game:7 a", "$1\n3\n"),
            ("ZADD game:7 1", "-ERR wrong number of arguments for 'zadd' command\n"),
            ("ZADD game:7 1 a 2", "-ERR syntax error\n"),
            ("ZADD game:7 1 a x b", "-ERR value is not a valid float\n"),
            ("ZSCORE game:7 a", "$1\n3\n"), // all or nothing
        ],
    );
}

#[test]
fn scores_are_raised_and_answered() {
    talk(
        Settings::default(),
        &[
            ("ZINCRBY game:7 5 alice", "$1\n5\n"),
            ("ZINCRBY game:7 -7.5 alice", "$4\n-2.5\n"),
            ("ZADD game:7 INCR 10 alice", "$3\n7.5\n"),
            ("ZADD game:7 NX INCR 10 alice", "$-1\n"),
            ("ZADD game:7 XX INCR 10 nobody", "$-1\n"),
            ("ZADD game:7 GT INCR -1 alice", "$-1\n"),
            ("ZADD game:7 LT INCR -1 alice", "$3\n6.5\n"),
            (
                "ZADD game:7 INCR 1 a 2 b",
                "-ERR INCR option supports a single increment-element pair\n",
            ),
            ("ZINCRBY game:7 x alice", "-ERR value is not a valid float\n"),
            ("ZINCRBY game:7 nan alice", "-ERR value is not a valid float\n"),
            ("ZINCRBY game:7 1e400 alice", "-ERR value is not a valid float\n"),
            ("ZADD game:7 inf bo", ":1\n"),
            ("ZINCRBY game:7 -inf bo", "-ERR resulting score is not a number (NaN)\n"),
            ("ZSCORE game:7 bo", "$3\ninf\n"),
            ("HELLO 3", "%7\n$6\nserver\n$6\nmuster\n$7\nversion\n$5\n7.0.0\n$4\nmode\n$10\nstandalone\n$4\nrole\n$6\nmaster\n$5\nproto\n:3\n$2\nid\n:1\n$7\nmodules\n*0\n"),
            ("ZINCRBY game:7 1 alice", ",7.5\n"),
            ("ZADD game:7 XX INCR 10 nobody", "_\n"),
        ],
    );
}

#[test]
fn members_are_found_by_rank_and_by_score() {
    talk(
        Settings::default(),
        &[
            ("ZADD game:7 1 a 2 b 2 c 3 d 4 e", ":5\n"),
            ("ZRANK game:7 c", ":2\n"),
            ("ZREVRANK game:7 c", ":2\n"),
            ("ZREVRANK game:7 e", ":0\n"),
            ("ZRANK game:7 c WITHSCORE", "*2\n:2\n$1\n2\n"),
            ("ZREVRANK game:7 nobody WITHSCORE", "*-1\n"),
            ("ZRANK game:7 c x", "-ERR syntax error\n"),
            ("ZCARD game:7", ":5\n"),
            ("ZRANGE game:7 1 2", "*2\n$1\nb\n$1\nc\n"),
            ("ZRANGE game:7 -2 -1 WITHSCORES", "*4\n$1\nd\n$1\n3\n$1\ne\n$1\n4\n"),
            ("ZREVRANGE game:7 0 1", "*2\n$1\ne\n$1\nd\n"),
            ("ZRANGE game:7 3 1", "*0\n"),
            ("ZRANGE game:7 9 20", "*0\n"),
            ("ZCOUNT game:7 2 3", ":3\n"),
            ("ZCOUNT game:7 (2 +inf", ":2\n"),
            ("ZCOUNT game:7 3 2", ":0\n"),
            ("ZCOUNT game:7 x 2", "-ERR min or max is not a float\n"),
            ("ZRANGE game:7 (1 3 BYSCORE", "*3\n$1\nb\n$1\nc\n$1\nd\n"),
            ("ZRANGE game:7 3 (1 BYSCORE REV LIMIT 1 1", "*1\n$1\nc\n"),
            ("ZRANGEBYSCORE game:7 -inf +inf LIMIT 3 -1", "*2\n$1\nd\n$1\ne\n"),
            ("ZREVRANGEBYSCORE game:7 +inf 3", "*2\n$1\ne\n$1\nd\n"),
            (
                "ZRANGE game:7 0 1 LIMIT 0 1",
                "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX\n",
            ),
            (
                "ZRANGE game:7 [a [b BYLEX",
                "-ERR BYLEX is not supported: use ranks or BYSCORE\n",
            ),
            ("ZREM game:7 a b nobody a", ":2\n"),
            ("ZREM game:7 c d e", ":3\n"),
            ("EXISTS game:7", ":0\n"),
            ("ZRANGE game:7 0 -1", "*0\n"),
            ("ZREM game:7 a", ":0\n"),
        ],
    );
}

#[test]
fn a_key_has_one_type() {
    const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value\n";
    talk(
        Settings::default(),
        &[
            ("SETBIT share:1 7 1", ":0\n"),
            ("ZADD share:1 1 a", WRONG),
            ("ZINCRBY share:1 1 a", WRONG),
            ("ZREM share:1 a", WRONG),
            ("ZMSCORE share:1 a", WRONG),
            ("ZCOUNT share:1 0 1", WRONG),
            ("LIKE.TIES share:1 TIME", WRONG),
            ("ZADD game:7 1 a", ":1\n"),
            ("SETBIT game:7 1 1", WRONG),
            ("GETBIT game:7 1", WRONG),
            ("BITCOUNT game:7", WRONG),
            ("SCARD game:7", WRONG),
            ("LIKE.FIELDS game:7 music", WRONG),
            ("LIKE.FEED - 0 game:7", WRONG),
            ("BITOP AND both share:1 game:7", WRONG),
            ("BITOP AND game:7 share:1 share:1", WRONG),
            ("TYPE game:7", "+zset\n"),
            ("EXISTS game:7 share:1 game:8", ":2\n"),
            ("DBSIZE", ":2\n"),
            ("SCAN 0", "*2\n$10\n4294967296\n*1\n$7\nshare:1\n"),
            ("SCAN 4294967296", "*2\n$1\n0\n*1\n$6\ngame:7\n"),
            ("SCAN 4294967296 TYPE string", "*2\n$1\n0\n*0\n"),
            ("DEL game:7", ":1\n"),
            ("SETBIT game:7 1 1", ":0\n"),
        ],
    );
}

#[test]
fn rankings_of_likes_take_no_scores() {
    const FOLLOW: &str = "-ERR rank and rank:FIELD follow likes: SETBIT ITEM USER 1 adds to an item's score, LIKE.FIELDS ITEM FIELD puts it into rank:FIELD; give a leaderboard another name\n";
    talk(
        Settings::default(),
        &[
            ("SETBIT share:1 7 1", ":0\n"),
            ("ZADD rank 1 share:1", FOLLOW),
            ("ZINCRBY rank:share 1 share:1", FOLLOW),
            ("ZREM rank share:1", FOLLOW),
            ("ZADD rank:music@24h 1 share:1", FOLLOW),
            (
                "ZADD game:7@24h 1 a",
                "-ERR a leaderboard's name does not end with @1h, @24h or @7d: these are its windows\n",
            ),
            (
                "ZCOUNT rank 0 1",
                "-ERR rankings of likes and windows have no ranges of scores: use ranks\n",
            ),
            ("ZMSCORE rank share:1 share:2", "*2\n$1\n1\n$-1\n"),
            ("ZPOPMAX game:7", "-ERR unknown command 'ZPOPMAX': members of a leaderboard come and go by ZADD and ZREM, all of them by DEL\n"),
        ],
    );
}

#[test]
fn ties_are_decided_by_name_or_by_time() {
    talk(
        Settings::default(),
        &[
            ("ZADD game:7 5 bo", ":1\n"),
            ("ZADD game:7 5 alice", ":1\n"),
            ("ZADD game:7 4 cy", ":1\n"),
            ("ZREVRANGE game:7 0 -1", "*3\n$2\nbo\n$5\nalice\n$2\ncy\n"),
            ("LIKE.TIESOF game:7", "+NAME\n"),
            ("LIKE.TIES game:7 TIME", "+OK\n"),
            ("LIKE.TIESOF game:7", "+TIME\n"),
            ("ZINCRBY game:7 1 cy", "$1\n5\n"), // the last to get there
            ("ZREVRANGE game:7 0 -1", "*3\n$2\nbo\n$5\nalice\n$2\ncy\n"),
            ("ZADD game:7 6 bo", ":0\n"),
            ("ZADD game:7 5 bo", ":0\n"), // back, and now the last
            ("ZREVRANGE game:7 0 -1", "*3\n$5\nalice\n$2\ncy\n$2\nbo\n"),
            ("ZREVRANK game:7 bo", ":2\n"),
            ("LIKE.TIES game:7 name", "+OK\n"),
            ("ZREVRANGE game:7 0 -1", "*3\n$2\ncy\n$2\nbo\n$5\nalice\n"),
            ("LIKE.TIES game:7 luck", "-ERR ties are decided by NAME or by TIME\n"),
            ("LIKE.TIES game:8 TIME", "+OK\n"), // before its first member
            ("EXISTS game:8", ":0\n"),
            ("ZADD game:8 1 b", ":1\n"),
            ("ZADD game:8 1 c", ":1\n"),
            ("ZREVRANGE game:8 0 -1", "*2\n$1\nb\n$1\nc\n"),
            ("DEL game:8", ":1\n"),
            ("LIKE.TIESOF game:8", "+NAME\n"),
        ],
    );
}

#[test]
fn windows_rank_by_points_gained_lately() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    let mut ask = |words: &str| String::from_utf8(node.ask(client, &line(words))).unwrap();
    assert_eq!(ask("ZADD game:7 100 alice 40 bo"), ":2\r\n");
    assert_eq!(ask("ZINCRBY game:7 -90 alice"), "$2\r\n10\r\n");
    for window in ["1h", "24h", "7d"] {
        let key = format!("game:7@{window}");
        assert_eq!(
            ask(&format!("ZREVRANGE {key} 0 -1")),
            "*2\r\n$2\r\nbo\r\n$5\r\nalice\r\n"
        );
        assert_eq!(ask(&format!("ZREVRANK {key} bo")), ":0\r\n");
        assert_eq!(ask(&format!("ZCARD {key}")), ":2\r\n");
        let score = ask(&format!("ZSCORE {key} alice"));
        let score: f64 = score.lines().nth(1).unwrap().parse().unwrap();
        assert!((score - 10.0).abs() < 1e-6, "{score}");
    }
    assert_eq!(ask("ZCARD game:8@7d"), ":0\r\n");
}

#[test]
fn a_window_is_where_its_leaderboard_is() {
    let mut node = Node::new(first_of_two());
    let client = node.front.open();
    let mut ask = |words: &str| String::from_utf8(node.ask(client, &line(words))).unwrap();
    let here = |key: &str| slot(key.as_bytes()) < 8_192;
    let mut seen = [0; 3];
    for name in (0..40).map(|at| format!("game:{at}")) {
        let window = format!("{name}@24h");
        let added = ask(&format!("ZADD {name} 1 a"));
        let said = ask(&format!("ZREVRANGE {window} 0 9"));
        match (here(&name), here(&window)) {
            (true, _) => assert_eq!((&added[..], &said[..]), (":1\r\n", "*1\r\n$1\r\na\r\n")),
            (false, true) => assert!(said.starts_with("-CROSSSLOT The leaderboard of this window"), "{said}"),
            (false, false) => assert!(
                said.starts_with("-MOVED ") || said.starts_with("-CLUSTERDOWN "),
                "{said}"
            ),
        }
        seen[usize::from(!here(&name)) + usize::from(!here(&name) && !here(&window))] += 1;
    }
    assert!(seen.iter().all(|&times| times > 0), "{seen:?}");
}

#[test]
fn names_have_limits() {
    let mut node = Node::new(Settings::default());
    let client = node.front.open();
    let mut ask = |words: String| String::from_utf8(node.ask(client, &line(&words))).unwrap();
    assert_eq!(ask(format!("ZADD game:7 1 {}", "x".repeat(512))), ":1\r\n");
    assert_eq!(
        ask(format!("ZADD game:7 1 {}", "x".repeat(513))),
        "-ERR member is longer than 512 bytes\r\n"
    );
    assert_eq!(
        ask(format!("ZADD {} 1 a", "x".repeat(513))),
        "-ERR key is longer than 512 bytes\r\n"
    );
}

#[test]
fn times_of_likes_come_with_a_users_items() {
    talk(
        Settings::default(),
        &[
            ("SETBIT share:1 7 1", ":0\n"),
            ("SETBIT share:2 7 1", ":0\n"),
            ("LIKE.ITEMS 7 0 1", "*1\n$7\nshare:2\n"),
            (
                "LIKE.ITEMS 7 WITHTIMES",
                "*2\n*2\n$7\nshare:2\n:1790000000\n*2\n$7\nshare:1\n:1790000000\n",
            ),
            ("LIKE.ITEMS 7 1 1 withtimes", "*1\n*2\n$7\nshare:1\n:1790000000\n"),
            ("LIKE.ITEMS 7 1 1 1", "-ERR syntax error\n"),
        ],
    );
}

fn one_of(groups: &[&[&str]]) -> Vec<Vec<String>> {
    let group = |kinds: &&[&str]| kinds.iter().map(|&kind| kind.into()).collect();
    groups.iter().map(group).collect()
}

#[test]
fn a_like_of_one_kind_takes_the_others_back() {
    talk(
        Settings {
            one_of: one_of(&[&["like", "dislike", "meh"], &["up", "down"]]),
            ..Settings::default()
        },
        &[
            ("SETBIT like:7 1 1", ":0\n"),
            ("SETBIT like:7 2 1", ":0\n"),
            ("SETBIT dislike:7 1 1", ":0\n"),
            (
                "LIKE.FEED 1 9 like:7 dislike:7 meh:7",
                "*3\n*3\n:1\n:0\n*1\n$1\n2\n*3\n:1\n:1\n*1\n$1\n1\n*3\n:0\n:0\n*0\n",
            ),
            ("SETBIT dislike:7 1 1", ":1\n"),
            ("SETBIT like:7 1 1", ":0\n"),
            ("BITCOUNT dislike:7", ":0\n"),
            ("ZREVRANGE rank:like 0 -1 WITHSCORES", "*2\n$6\nlike:7\n$1\n2\n"),
            ("ZCARD rank:dislike", ":0\n"),
            ("SETBIT like:7 1 0", ":1\n"),  // taking back changes no other
            ("SETBIT up:7 1 1", ":0\n"),    // another group
            ("SETBIT like:8 2 1", ":0\n"),  // another item
            ("SETBIT share:7 2 1", ":0\n"), // a kind of no group
            ("BITCOUNT like:7", ":1\n"),
            ("EXISTS meh:7", ":0\n"),
            ("LIKE.ITEMS 2", "*3\n$7\nshare:7\n$6\nlike:8\n$6\nlike:7\n"),
        ],
    );
}

#[test]
fn kinds_that_exclude_one_another_are_one_record_and_one_slot() {
    let mut node = Node::new(Settings {
        one_of: one_of(&[&["like", "dislike"]]),
        ..Settings::default()
    });
    let client = node.front.open();
    node.ask(client, &line("SETBIT dislike:7 1 1"));
    let before = node.log.len();
    node.ask(client, &line("SETBIT like:7 1 1"));
    assert_eq!(node.log.len(), before + 1, "whole or not at all");
    let mut node = Node::new(Settings {
        one_of: one_of(&[&["like", "dislike"]]),
        ..first_of_two()
    });
    let client = node.front.open();
    let here = (0..99)
        .find(|at| slot(format!("like:{at}").as_bytes()) < 8_192)
        .unwrap();
    let reply = String::from_utf8(node.ask(client, &line(&format!("SETBIT like:{here} 1 1")))).unwrap();
    assert!(
        reply.starts_with("-CROSSSLOT A like of this kind takes others back"),
        "{reply}"
    );
    let here = (0..99)
        .find(|at| slot(format!("like:{{{at}}}").as_bytes()) < 8_192)
        .unwrap();
    assert_eq!(
        node.ask(client, &line(&format!("SETBIT dislike:{{{here}}} 1 1"))),
        b":0\r\n"
    );
    assert_eq!(
        node.ask(client, &line(&format!("SETBIT like:{{{here}}} 1 1"))),
        b":0\r\n"
    );
    assert_eq!(
        node.ask(client, &line(&format!("BITCOUNT dislike:{{{here}}}"))),
        b":0\r\n"
    );
}
