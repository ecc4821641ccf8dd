//! Measures durable likes per second, memory, rankings and restart: `cargo run --release -p muster-likes --example
//! likes_rate -- FOLDER [LIKES]`.

use muster_journal::{Group, Journal};
use muster_likes::resp::{ConnectionId, Front, Settings};
use muster_likes::{Engine, Options};
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 50;
const PIPELINE: usize = 64;
const ITEMS: u64 = 1_000;
const USERS: u64 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("usage: likes_rate FOLDER [LIKES]")?;
    let likes: usize = args.next().map_or(Ok(5_000_000), |likes| likes.parse())?;
    let mut journal = Journal::open(folder, muster_journal::Options::default())?;
    let options = Options {
        items_by_user: std::env::var_os("NO_LISTS").is_none(),
    };
    let before = resident_bytes();
    let mut front = Front::new(Engine::new(options), Settings::default());
    let clients: Vec<ConnectionId> = (0..CONNECTIONS).map(|_| front.open()).collect();
    let mut random = 1_u64;
    let mut asked: Vec<Duration> = Vec::new();
    for (name, questions) in [("toggles", false), ("toggles with rank queries", true)] {
        let mut sent = Vec::new();
        let mut group = Group::new();
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        let (mut parsing, mut syncing, mut applying) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for _ in 0..likes / 2 / (CONNECTIONS * PIPELINE) {
            for &client in &clients {
                sent.clear();
                for _ in 0..PIPELINE {
                    random = random
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let (item, user) = ((random >> 33) % ITEMS, (random >> 20) % USERS * 1_000_003);
                    push_like(&mut sent, item, user);
                }
                let at = Instant::now();
                front.feed(client, &sent, 1_790_000_000_000 + begun.elapsed().as_millis() as u64);
                parsing += at.elapsed();
            }
            group.clear();
            for record in front.begin_batch().ok_or("no batch")? {
                group.push(record)?;
            }
            let at = Instant::now();
            let first = journal.append(&mut group)?.start;
            syncing += at.elapsed();
            let at = Instant::now();
            front.batch_is_durable(first, 1_790_000_000_000 + begun.elapsed().as_millis() as u64);
            applying += at.elapsed();
            for client in front.ready() {
                let _ = front.take_replies(client);
            }
            if questions {
                let at = Instant::now();
                front.engine_mut().page(b"rank:share", 0, 100, 0);
                let key = format!("share:{}", random % ITEMS);
                front.engine_mut().rank(b"rank:share", key.as_bytes());
                asked.push(at.elapsed());
            }
        }
        let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let count = (likes / 2) as f64;
        let nanos = |time: Duration| time.as_nanos() as f64 / count;
        println!(
            "{name}: {:.0}/s, {:.0} per CPU second; ns each: parse {:.0}, write and sync {:.0}, apply and reply {:.0}",
            count / wall,
            count / cpu,
            nanos(parsing),
            nanos(syncing),
            nanos(applying)
        );
    }
    asked.sort_unstable();
    println!(
        "top 100 and a rank: p50 {:?}, p99 {:?}",
        asked[asked.len() / 2],
        asked[asked.len() * 99 / 100]
    );
    let (_, rows) = front.engine().rows(0, usize::MAX, usize::MAX);
    for row in rows {
        front.engine_mut().written(&row.key, row.modification);
    }
    let engine = front.engine();
    let count = engine.like_count() as f64;
    println!(
        "{count} likes of {} users over {} items: {:.2} B a like in sets, {:.2} B a like resident",
        engine.user_count(),
        engine.item_count(),
        engine.liker_bytes() as f64 / count,
        (resident_bytes() - before) / count
    );
    let at = Instant::now();
    let snapshot = front.engine_mut().snapshot();
    let took = at.elapsed();
    let at = Instant::now();
    let mut restored = Engine::restore(&snapshot, options)?;
    println!(
        "snapshot {} MB in {took:?}, restored in {:?}",
        snapshot.len() / 1_000_000,
        at.elapsed()
    );
    let at = Instant::now();
    restored.page(b"rank:share", 0, 100, 0);
    println!("first top 100 in {:?}", at.elapsed());
    let at = Instant::now();
    let mut replayed = Engine::new(options);
    let mut reader = journal.reader(0)?;
    while let Some(records) = reader.next_group()? {
        for (offset, record) in records {
            replayed.apply(offset, record)?;
        }
    }
    println!("replay of {} records in {:?}", replayed.offset(), at.elapsed());
    Ok(())
}

fn push_like(to: &mut Vec<u8>, item: u64, user: u64) {
    let (key, user) = (format!("share:{item}"), user.to_string());
    to.extend_from_slice(
        format!(
            "*4\r\n$6\r\nSETBIT\r\n${}\r\n{key}\r\n${}\r\n{user}\r\n$1\r\n1\r\n",
            key.len(),
            user.len()
        )
        .as_bytes(),
    );
}

fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells a process its memory");
    statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<f64>().ok())
        .unwrap_or(0.0)
        * 4_096.0
}

/// User and system time of this process: fields 14 and 15 of its `stat`, in ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux tells a process its times");
    let after_name = stat.rsplit(')').next().unwrap_or("");
    let ticks = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}
