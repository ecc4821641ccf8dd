//! A user is erased and exported by the commands of a client.

use crate::node::{line, Node};
use crate::talk;
use muster_likes::resp::Settings;
use muster_likes::{Phase, Record};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", "\n")
}

#[test]
fn malformed_commands_are_refused() {
    talk(
        Settings::default(),
        &[
            (
                "LIKE.ERASE 7",
                "-ERR wrong number of arguments for 'like.erase' command\n",
            ),
            ("LIKE.ERASE x 1", "-ERR value is not an integer or out of range\n"),
            ("LIKE.ERASE 7 -1", "-ERR value is not an integer or out of range\n"),
            ("LIKE.ERASURES 1 2", "-ERR syntax error\n"),
            ("LIKE.ERASURES x", "-ERR value is not an integer or out of range\n"),
            ("LIKE.ERASURES 5", "*0\n"),
            ("LIKE.EXPORT 7 x", "-ERR invalid cursor\n"),
            ("LIKE.EXPORT 7 0 x", "-ERR value is not an integer or out of range\n"),
            ("LIKE.EXPORT 7 0", "*2\n$1\n0\n*0\n"),
            ("LIKE.EXPORT 7 l9.9.9.9", "*2\n$1\n0\n*0\n"),
            ("LIKE.EXPORT 7 s4294967295", "*2\n$1\n0\n*0\n"),
        ],
    );
}

#[test]
fn changes_of_a_user_are_refused_from_the_begin_to_the_end() {
    let mut node = Node::new(Settings::default());
    let id = node.front.open();
    node.ask(id, &line("SETBIT share:1 7 1"));
    // In one batch: the like behind the begin is refused although it was there first when it came.
    let pipeline = [
        line("LIKE.ERASE 7 1"),
        line("SETBIT share:2 7 1"),
        line("SETBIT share:2 8 1"),
    ]
    .concat();
    let said = text(&node.ask(id, &pipeline));
    assert!(said.starts_with("+OK\n-ERASING ") && said.ends_with("\n:0\n"), "{said}");
    let (at_ms, job) = (crate::node::NOW_MS, 1);
    let slots = 1_000;
    let steps = [
        (Phase::Leaderboards, Record::EraseStep { at_ms, job, slots }),
        (Phase::Check, Record::EraseStep { at_ms, job, slots }),
        (Phase::Files, Record::Erased { at_ms, job }),
        (
            Phase::Done,
            Record::ErasureDone {
                at_ms,
                job,
                snapshots: 2,
                segments: 1,
            },
        ),
    ];
    for (phase, record) in steps {
        for refused in [
            "SETBIT share:3 7 1",
            "SETBIT share:1 7 0",
            "ZADD game:7 5 7",
            "ZADD game:7 NX CH 5 alice 6 7",
            "ZINCRBY game:7 1 7",
        ] {
            let said = text(&node.ask(id, &line(refused)));
            assert!(said.starts_with("-ERASING "), "{refused}: {said}");
        }
        assert_eq!(
            text(&node.ask(id, &line("ZADD game:7 7 alice"))).len(),
            3,
            "a score is no member"
        );
        assert!(node.front.go_on_erasing(&record));
        node.commit_all();
        assert_eq!(node.front.engine().erasures()[&job].phase, phase);
    }
    assert_eq!(text(&node.ask(id, &line("SETBIT share:1 7 1"))), ":0\n");
    let said = text(&node.ask(id, &line("LIKE.ERASURES 1")));
    assert!(said.starts_with("*1\n*12\n$1\n1\n$4\ndone\n"), "{said}");
    assert!(said.ends_with(":2\n:1\n*2\n$5\nshare\n:1\n"), "{said}");
    node.front.suspend(Some("TRYAGAIN".into()), true);
    assert!(!node.front.go_on_erasing(&Record::Erased { at_ms, job }));
}

#[test]
fn export_has_likes_with_times_and_scores() {
    let mut node = Node::new(Settings::default());
    let id = node.front.open();
    for words in [
        "SETBIT share:1 7 1",
        "SETBIT dislike:1 7 1",
        "SETBIT share:1 8 1",
        "ZADD game:7 2.5 7",
    ] {
        node.ask(id, &line(words));
    }
    let said = text(&node.ask(id, &line("LIKE.EXPORT 7 0 100")));
    let likes = "*3\n+like\n$9\ndislike:1\n:1790000000\n*3\n+like\n$7\nshare:1\n:1790000000\n";
    assert_eq!(said, format!("*2\n$2\ns0\n*2\n{likes}"));
    let said = text(&node.ask(id, &line("LIKE.EXPORT 7 s0 100")));
    assert_eq!(said, "*2\n$1\n0\n*1\n*3\n+score\n$6\ngame:7\n$3\n2.5\n");
}
