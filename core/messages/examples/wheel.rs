//! Compares the wheel with a binary heap in the same run: `cargo run --release -p muster-messages --example wheel`.
//!
//! Argument: entries (default 1,000,000). Entries are spread over an hour; in the second part all of them are due
//! within the same 100 ms, where an ordinary wheel stalls. Times are wall clock; compare the two columns of one run.
//! The longest tick also includes times when another program had the core; the 99.99th percentile mostly does not.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::hint::black_box;
use std::time::Instant;

use muster_messages::wheel::{Progress, Wheel};

const START: u64 = 1_780_000_000_000;
const HOUR: u64 = 3_600_000;

fn main() {
    let entries: u64 = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 1_000_000,
        Some(Ok(entries)) => entries,
        Some(Err(error)) => {
            eprintln!("invalid number of entries: {error}");
            std::process::exit(2);
        }
    };
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let dues: Vec<u64> = (0..entries).map(|_| START + 1 + draw(HOUR)).collect();

    println!("{entries} entries over an hour      wheel       heap");
    let mut wheel = Wheel::new(START);
    let begin = Instant::now();
    let mut tokens: Vec<_> = dues.iter().zip(0..).map(|(due, key)| wheel.insert(*due, key)).collect();
    let wheel_insert = each(begin, entries);
    let mut heap = BinaryHeap::new();
    let begin = Instant::now();
    for (key, due) in dues.iter().enumerate() {
        heap.push(Reverse((*due, key as u64)));
    }
    row("insert, ns", wheel_insert, each(begin, entries));

    // Every tenth entry is cancelled; a heap can only mark it.
    for index in (1..tokens.len()).rev() {
        tokens.swap(index, draw(index as u64 + 1) as usize);
    }
    let cancelled = entries / 10;
    let begin = Instant::now();
    for token in tokens.drain(..cancelled as usize) {
        black_box(wheel.cancel(token));
    }
    let wheel_cancel = each(begin, cancelled);
    let mut marked = HashSet::new();
    let begin = Instant::now();
    for key in 0..cancelled {
        marked.insert(key * 10);
    }
    row("cancel (heap: mark), ns", wheel_cancel, each(begin, cancelled));
    let moved = entries / 10;
    let begin = Instant::now();
    for token in tokens.drain(..moved as usize) {
        black_box(wheel.reschedule(token, START + 1 + draw(HOUR)));
    }
    println!("  {:<28}{:>9.0}", "move, ns", each(begin, moved));
    println!(
        "  {:<28}{:>9.1}",
        "memory, bytes an entry",
        wheel.memory() as f64 / entries as f64
    );

    // Ticks of 1 ms through the hour.
    let (mut out, mut ticks) = (Vec::with_capacity(4096), Vec::with_capacity(HOUR as usize));
    let (mut fired, begin) = (0, Instant::now());
    for now in START..=START + HOUR {
        let tick = Instant::now();
        while wheel.advance(now, 4_096, &mut out) == Progress::More {}
        ticks.push(tick.elapsed().as_nanos() as u32);
        fired += out.len() as u64;
        out.clear();
    }
    let wheel_fire = each(begin, fired);
    let wheel_tick = each(begin, HOUR);
    assert_eq!(fired, entries - cancelled);
    let mut heap_ticks = Vec::with_capacity(HOUR as usize);
    let (mut popped, begin) = (0_u64, Instant::now());
    for now in START..=START + HOUR {
        let tick = Instant::now();
        while heap.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            let Reverse((_, key)) = heap.pop().expect("it was just seen");
            popped += u64::from(!marked.contains(&key));
        }
        heap_ticks.push(tick.elapsed().as_nanos() as u32);
    }
    row("fire, ticks included, ns", wheel_fire, each(begin, popped));
    row("tick, ns", wheel_tick, each(begin, HOUR));
    let (wheel_slow, wheel_longest) = slowest(&mut ticks);
    let (heap_slow, heap_longest) = slowest(&mut heap_ticks);
    row("tick p99.99, us", wheel_slow, heap_slow);
    row("longest tick, us", wheel_longest, heap_longest);

    println!("{entries} entries in one 100 ms, an hour ahead");
    let mut wheel = Wheel::new(START);
    for key in 0..entries {
        wheel.insert(START + HOUR + draw(100), key);
    }
    let (mut calls, mut longest) = (0, 0.0_f64);
    ticks.clear();
    for now in START..START + HOUR {
        let tick = Instant::now();
        while wheel.advance(now, 4_096, &mut out) == Progress::More {}
        ticks.push(tick.elapsed().as_nanos() as u32);
    }
    let before = slowest(&mut ticks);
    let begin = Instant::now();
    for now in START + HOUR..START + HOUR + 100 {
        loop {
            let call = Instant::now();
            let progress = wheel.advance(now, 4_096, &mut out);
            longest = longest.max(call.elapsed().as_secs_f64());
            calls += 1;
            out.clear();
            if progress == Progress::Current {
                break;
            }
        }
    }
    println!("  {:<28}{:>9.1}", "tick p99.99 before, us", before.0);
    println!("  {:<28}{:>9.1}", "longest tick before, us", before.1);
    println!("  {:<28}{:>9.0}", "fire, ns", each(begin, entries));
    println!(
        "  {:<28}{:>9.1}   ({calls} calls, budget 4,096)",
        "longest call, us",
        longest * 1e6
    );

    let mut wheel = Wheel::new(START);
    for key in 0..5_000_000 {
        wheel.insert(START + HOUR + draw(7 * 24 * HOUR), key);
    }
    let begin = Instant::now();
    for now in START..START + 1_000_000 {
        wheel.advance(now, 4_096, &mut out);
    }
    println!("  {:<28}{:>9.0}", "idle tick at 5 M, ns", each(begin, 1_000_000));
}

fn each(begin: Instant, count: u64) -> f64 {
    begin.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// The 99.99th percentile and the maximum, in microseconds.
fn slowest(nanoseconds: &mut [u32]) -> (f64, f64) {
    nanoseconds.sort_unstable();
    let at = |index: usize| f64::from(nanoseconds[index]) / 1e3;
    (
        at(nanoseconds.len() - nanoseconds.len() / 10_000),
        at(nanoseconds.len() - 1),
    )
}

fn row(name: &str, wheel: f64, heap: f64) {
    println!("  {name:<28}{wheel:>9.1}  {heap:>9.1}");
}
