//! `muster-sim --seed N [--verbose]` replays one seed; `--seeds A..B` runs many. Exit code 1 if one fails.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use muster_sim::{run, Plan};

const USAGE: &str = "usage: muster-sim --seed N [--verbose] | --seeds A..B [--keep-going]";

struct Arguments {
    seeds: std::ops::Range<u64>,
    verbose: bool,
    keep_going: bool,
}

fn parse(arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut parsed = Arguments {
        seeds: 0..0,
        verbose: false,
        keep_going: false,
    };
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seed" => {
                let seed = arguments.next()?.parse().ok()?;
                parsed.seeds = seed..seed + 1;
            }
            "--seeds" => {
                let (first, last) = arguments
                    .next()?
                    .split_once("..")
                    .map(|(a, b)| (a.to_owned(), b.to_owned()))?;
                parsed.seeds = first.parse().ok()?..last.parse().ok()?;
            }
            "--verbose" => parsed.verbose = true,
            "--keep-going" => parsed.keep_going = true,
            _ => return None,
        }
    }
    (!parsed.seeds.is_empty()).then_some(parsed)
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (start, total) = (Instant::now(), arguments.seeds.end - arguments.seeds.start);
    let progress = std::io::stderr().is_terminal();
    let (mut done, mut failed, mut messages, mut deliveries, mut virtual_us) = (0, 0, 0, 0, 0);
    for seed in arguments.seeds.clone() {
        if arguments.verbose {
            println!("{:#?}", Plan::draw(seed));
        }
        let (summary, mut result) = run(seed, arguments.verbose);
        // Now and then a seed runs twice: the same seed must give the same run.
        if result.is_ok() && (seed % 50 == 0 || total == 1) && run(seed, false).0 != summary {
            result = Err("a second run of the same seed went otherwise".into());
        }
        done += 1;
        messages += summary.published;
        deliveries += summary.delivered;
        virtual_us += summary.virtual_us;
        if arguments.verbose {
            println!("{summary:#?}");
        }
        if let Err(why) = result {
            failed += 1;
            println!("seed {seed} fails: {why}\n    cargo run -p muster-sim --release -- --seed {seed} --verbose");
            if !arguments.keep_going {
                return ExitCode::FAILURE;
            }
        }
        if progress {
            eprint!(
                "\r{done} of {total} seeds, {:.1} a second ",
                done as f64 / start.elapsed().as_secs_f64()
            );
            let _ = std::io::stderr().flush();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{done} seeds, {failed} failed: {messages} messages, {deliveries} deliveries, {:.0} simulated seconds in {seconds:.1} s ({:.1} seeds a second)",
        virtual_us as f64 / 1e6,
        done as f64 / seconds
    );
    if failed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
