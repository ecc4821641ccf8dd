//! Measures durable records per second in a folder: `cargo run --release -p muster-journal --example journal_rate --
//! FOLDER [SECONDS]`.

use muster_journal::{Group, Journal, Options};
use std::time::{Duration, Instant};

const RECORD: [u8; 200] = [7; 200];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("usage: journal_rate FOLDER [SECONDS]")?;
    let seconds: u64 = args.next().map_or(Ok(3), |seconds| seconds.parse())?;
    let mut journal = Journal::open(&folder, Options::default())?;
    println!("group  records/s  per CPU second  group p50/p99/max us");
    for records in [1, 64, 512] {
        let mut group = Group::new();
        let mut took = Vec::new();
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        while begun.elapsed() < Duration::from_secs(seconds) {
            let at = Instant::now();
            group.clear();
            for _ in 0..records {
                group.push(&RECORD)?;
            }
            journal.append(&mut group)?;
            took.push(at.elapsed().as_micros());
            journal.trim(journal.end())?;
        }
        let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let count = (took.len() * records) as f64;
        took.sort_unstable();
        let percentile = |share: usize| took[(took.len() - 1) * share / 100];
        let (p50, p99, max) = (percentile(50), percentile(99), percentile(100));
        println!(
            "{records:5}  {:9.0}  {:14.0}  {p50} / {p99} / {max}",
            count / wall,
            count / cpu
        );
    }
    journal.close()?;
    Ok(())
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
