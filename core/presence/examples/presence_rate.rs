//! Measures a writer's costs: `cargo run --release -p muster-presence --example presence_rate [DEVICES]`.
//!
//! Events from frame to batch, without a store; the second path's copies compared with the first ones in the same
//! run; a full state; bytes per device in gateway and writer.

use muster_presence::{
    kinds, AccessPoint, AccessSettings, Chunk, Device, FullAsk, Message, Origin, Shard, ShardMap, Share, Splitter,
    Writer, WriterSettings,
};
use std::time::{Duration, Instant};

const ONE: Shard = Shard { of: 1, index: 0 };

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices: u64 = std::env::args().nth(1).map_or(Ok(200_000), |devices| devices.parse())?;
    let phone = Device::new(b"phone").ok_or("a name")?;
    let origin = Origin { ap: 1, epoch: 1 };
    let mut access = AccessPoint::new(origin, 0, AccessSettings::default(), 0);
    let mut writer = Writer::new(ONE, 1, WriterSettings::default());
    let before = resident_bytes();
    let (mut now, mut made) = (0, Duration::ZERO);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let map = ShardMap {
        version: 1,
        sites: vec![(1, 1)],
    };
    let mut split = Duration::ZERO;
    for user in 0..devices {
        let at = Instant::now();
        // Users are not in the order of their numbers.
        let user = user.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        access.online(now, now, user, phone, user).map_err(|_| "few devices")?;
        now += 20;
        access.expire(now);
        made += at.elapsed();
        let at = Instant::now();
        let mut splitter = Splitter::new(&map);
        for (_, frame) in access
            .take_out()
            .into_iter()
            .filter(|(_, frame)| frame[0] == kinds::REPORT.code())
        {
            if let Some(Message::Report(report)) = Message::read(kinds::REPORT, &frame[4..]) {
                splitter.report(&report);
            }
        }
        frames.extend(splitter.finish().into_iter().map(|(_, frame)| frame));
        split += at.elapsed();
    }
    let gateway = resident_bytes() - before - frames.iter().map(Vec::len).sum::<usize>() as f64;
    let shares: Vec<Share<'_>> = frames
        .iter()
        .filter(|frame| frame[0] == kinds::SHARE.code())
        .filter_map(|frame| match Message::read(kinds::SHARE, &frame[4..]) {
            Some(Message::Share(share)) => Some(share),
            _ => None,
        })
        .collect();
    // The writer starts from an empty state, and gets all packets on one path, then on the other.
    let mut empty = AccessPoint::new(origin, 0, AccessSettings::default(), 0);
    bring(&mut empty, &mut writer);
    let before = resident_bytes();
    let (mut first, mut copies, mut batches) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for share in &shares {
        let at = Instant::now();
        writer.share(now, share);
        first += at.elapsed();
        let at = Instant::now();
        for _ in 0..10 {
            writer.share(now, share);
        }
        copies += at.elapsed();
        let at = Instant::now();
        while writer.batch(10_000).is_some() {
            writer.written();
        }
        batches += at.elapsed();
    }
    let counters = writer.counters();
    assert_eq!(counters.duplicates, 10 * counters.packets, "each copy is dropped");
    let each = |time: Duration, count: u64| time.as_nanos() as f64 / count.max(1) as f64;
    println!(
        "{} events in {} packets of one shard",
        counters.events, counters.packets
    );
    println!(
        "gateway {:.0} ns an event, proxy {:.0}; writer: apply {:.0}, batch with record {:.0}",
        each(made, counters.events),
        each(split, counters.events),
        each(first, counters.events),
        each(batches, counters.events)
    );
    println!(
        "a copy of a packet {:.0} ns, {:.4} of applying it",
        each(copies, counters.duplicates),
        each(copies, counters.duplicates) / each(first, counters.packets)
    );
    println!(
        "bytes a device: gateway {:.0}, writer {:.0}",
        gateway / devices as f64,
        (resident_bytes() - before) / devices as f64
    );
    let at = Instant::now();
    let mut fresh = Writer::new(ONE, 2, WriterSettings::default());
    bring(&mut access, &mut fresh);
    println!(
        "full state of {} devices: cut, framed and put in force in {:?}",
        fresh.online_len(),
        at.elapsed()
    );
    Ok(())
}

/// Transfers a gateway's full state to a writer.
fn bring(access: &mut AccessPoint, writer: &mut Writer) {
    let origin = access.origin();
    let beat = muster_presence::Beat {
        origin,
        newest: access.version(),
    };
    writer.beat(0, &beat);
    writer.full_asked(origin.ap, 1);
    let ask = FullAsk {
        transaction: 1,
        shard: ONE,
        ap: origin.ap,
        chunks: vec![],
    };
    let mut now = 10_000_000;
    access.full_ask(now, 1, &ask);
    while !writer.fulls().is_empty() {
        now += 10_000;
        access.expire(now);
        for (_, frame) in access
            .take_out()
            .into_iter()
            .filter(|(_, frame)| frame[0] == kinds::CHUNK.code())
        {
            if let Some(Message::Chunk(chunk)) = Message::read(kinds::CHUNK, &frame[4..]) {
                let chunk: Chunk<'_> = chunk;
                writer.chunk(0, &chunk);
            }
        }
    }
}

fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells a process its memory");
    let pages = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4_096.0
}
