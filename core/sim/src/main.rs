//! `muster-sim --seed N [--verbose]` replays one seed; `--seeds A..B` runs many. Options choose the kind of plan:
//!
//! - `--kills`: each role is killed, and the time until members receive again is checked;
//! - `--rooms`: more rooms than a session may have open;
//! - `--holes`: gateways hold as much as they may;
//! - `--moves`: rooms move between brokers;
//! - `--grows`: partitions double;
//! - `--clusters`: any of these with a second cluster;
//! - `--commands`: any of these with commands;
//! - `--rekeys`: the cluster's secret is replaced;
//! - `--apart`: routers are cut off from each other;
//! - `--cut-off`: brokers are cut off from a gateway that is alive;
//! - `--ahead`: members show positions that their owner never numbered, and brokers go back to the beginning of their life;
//! - `--relays`: gateways pass a busy room on to others;
//! - `--filters`: every second client wants only some messages;
//! - `--lossy`: six minutes in which datagrams are lost and nothing else happens.
//!
//! `--matrix` runs each seed for each combination of layer, role, fault and step of a doubling, or for those that the
//! options select. Exit code 1 if a run fails.

use std::process::ExitCode;

use muster_sim::matrix::{self, Cell, STEPS};
use muster_sim::plan::Kind;
use muster_sim::{run, Plan, Summary};
use muster_simkit::{same_twice, Seeds, Sweep};
use muster_transport::Micros;

/// The package name in the line that replays a seed.
const PACKAGE: &str = "muster-sim";

const USAGE: &str =
    "usage: muster-sim [--kills | --rooms | --holes | --moves | --grows | --clusters | --commands | --rekeys | --apart | --cut-off | --members
    | --ahead | --relays | --filters | --lossy
    | --matrix [--layer broker|router] [--step STEP] [--role ROLE] [--fault kill|pause|partition]] (--seed N [--verbose] | --seeds A..B [--keep-going])
steps: prepare running switch acks grace final clean; roles: broker new-broker router new-router proxy gateway";

struct Arguments {
    seeds: Seeds,
    draw: fn(u64) -> Plan,
    option: &'static str,
    /// The matrix, and the options that select its cells.
    matrix: Option<Vec<String>>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut parsed = Arguments {
        seeds: Seeds::default(),
        draw: Plan::draw,
        option: "",
        matrix: None,
    };
    while let Some(argument) = arguments.next() {
        if parsed.seeds.take(&argument, &mut arguments)? {
            continue;
        }
        match argument.as_str() {
            "--kills" => (parsed.draw, parsed.option) = (Plan::kills, " --kills"),
            "--rooms" => (parsed.draw, parsed.option) = (Plan::many_rooms, " --rooms"),
            "--moves" => (parsed.draw, parsed.option) = (Plan::moves, " --moves"),
            "--grows" => (parsed.draw, parsed.option) = (Plan::grows, " --grows"),
            "--clusters" => (parsed.draw, parsed.option) = (Plan::clusters, " --clusters"),
            "--rekeys" => (parsed.draw, parsed.option) = (Plan::rekeys, " --rekeys"),
            "--commands" => (parsed.draw, parsed.option) = (Plan::commands, " --commands"),
            "--members" => (parsed.draw, parsed.option) = (Plan::members, " --members"),
            "--apart" => (parsed.draw, parsed.option) = (Plan::apart, " --apart"),
            "--cut-off" => (parsed.draw, parsed.option) = (Plan::cut_off, " --cut-off"),
            "--ahead" => (parsed.draw, parsed.option) = (Plan::ahead, " --ahead"),
            "--relays" => (parsed.draw, parsed.option) = (Plan::relays, " --relays"),
            "--filters" => (parsed.draw, parsed.option) = (Plan::filters, " --filters"),
            "--lossy" => (parsed.draw, parsed.option) = (Plan::lossy, " --lossy"),
            "--holes" => (parsed.draw, parsed.option) = (Plan::holes, " --holes"),
            "--matrix" => parsed.matrix = Some(Vec::new()),
            "--layer" | "--step" | "--role" | "--fault" => {
                let value = arguments.next()?;
                parsed.matrix.as_mut()?.push(format!("{argument} {value}"));
            }
            _ => return None,
        }
    }
    (parsed.seeds.count() > 0).then_some(parsed)
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match &arguments.matrix {
        Some(chosen) => run_matrix(&arguments.seeds, chosen),
        None => run_seeds(&arguments),
    }
}

fn run_seeds(arguments: &Arguments) -> ExitCode {
    let (seeds, draw, option) = (&arguments.seeds, arguments.draw, arguments.option);
    let mut sweep = Sweep::new(PACKAGE, "seeds", seeds.count());
    let mut returns = Vec::new();
    let (mut messages, mut deliveries, mut reordered, mut virtual_us) = (0, 0, 0, 0);
    for seed in seeds.range.clone() {
        let (summary, result) = told(seed, draw, seeds.verbose);
        let alone = seeds.count() == 1;
        let result = result.and_then(|()| same_twice(seed, alone, &summary, || run(seed, draw, false).0));
        messages += summary.published;
        deliveries += summary.delivered;
        reordered += summary.reordered;
        virtual_us += summary.virtual_us;
        returns.extend_from_slice(&summary.returns);
        sweep.note("", option, seed, &result);
        if result.is_err() && !seeds.keep_going {
            return ExitCode::FAILURE;
        }
    }
    let (done, failed, seconds) = (sweep.done, sweep.failed, sweep.seconds());
    println!(
        "{done} seeds, {failed} failed: {messages} messages, {deliveries} deliveries, {reordered} out of order, {:.0} simulated seconds in {seconds:.1} s ({:.1} seeds a second)",
        virtual_us as f64 / 1e6,
        done as f64 / seconds
    );
    print_returns(&returns);
    ExitCode::from(u8::from(failed > 0))
}

/// One run, with its plan and its figures if `verbose`.
fn told(seed: u64, draw: impl Fn(u64) -> Plan, verbose: bool) -> (Summary, Result<(), String>) {
    if verbose {
        println!("{:#?}", draw(seed));
    }
    let (summary, result) = run(seed, draw, verbose);
    if verbose {
        println!("{summary:#?}");
    }
    (summary, result)
}

/// Runs each seed for each selected cell of the matrix.
fn run_matrix(seeds: &Seeds, chosen: &[String]) -> ExitCode {
    let is_chosen = |cell: &Cell| {
        let options = format!("{cell} ");
        chosen.iter().all(|option| options.contains(&format!("{option} ")))
    };
    let cells: Vec<Cell> = matrix::cells().into_iter().filter(is_chosen).collect();
    if cells.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let mut sweep = Sweep::new(PACKAGE, "runs", cells.len() as u64 * seeds.count());
    let mut held = vec![0; cells.len()];
    for (at, cell) in cells.iter().enumerate() {
        for seed in seeds.range.clone() {
            let (_, result) = told(seed, |seed| cell.plan(seed), seeds.verbose);
            sweep.note(&format!("{cell}: "), &format!(" --matrix {cell}"), seed, &result);
            held[at] += u32::from(result.is_ok());
            if result.is_err() && !seeds.keep_going {
                return ExitCode::FAILURE;
            }
        }
    }
    print_matrix(&cells, &held);
    println!(
        "{} runs of {} cells, {} failed, in {:.1} s",
        sweep.done,
        cells.len(),
        sweep.failed,
        sweep.seconds()
    );
    ExitCode::from(u8::from(sweep.failed > 0))
}

/// In how many seeds each cell passed: the fault happened during its step, and everything was correct afterwards.
fn print_matrix(cells: &[Cell], held: &[u32]) {
    print!("{:<8}{:<12}{:<10}", "layer", "role", "fault");
    STEPS.iter().for_each(|step| print!("{:>9}", step.to_string()));
    println!();
    let row = |cell: &Cell| (cell.layer, cell.victim, cell.blow);
    for line in cells.chunk_by(|one, other| row(one) == row(other)) {
        let Cell {
            layer, victim, blow, ..
        } = line[0];
        let [layer, victim, blow] = [matrix::layer_name(layer).into(), victim.to_string(), blow.to_string()];
        print!("{layer:<8}{victim:<12}{blow:<10}");
        for step in STEPS {
            let at = cells
                .iter()
                .position(|cell| row(cell) == row(&line[0]) && cell.step == step);
            print!("{:>9}", at.map_or("-".into(), |at| held[at].to_string()));
        }
        println!();
    }
}

/// The time until every member received again, by the role that had been killed.
fn print_returns(returns: &[(Kind, Micros)]) {
    for kind in [Kind::Router, Kind::Broker, Kind::Gateway, Kind::Proxy] {
        let mut times: Vec<_> = returns
            .iter()
            .filter(|(of, _)| *of == kind)
            .map(|(_, after)| *after)
            .collect();
        times.sort_unstable();
        let Some(max) = times.last() else { continue };
        let at = |share: usize| times[times.len() * share / 1_000] as f64 / 1e3;
        println!(
            "{kind:?} back {} times; until every member received again p50 {:.0} ms, p99 {:.0} ms, p99.9 {:.0} ms, max {:.0} ms",
            times.len(),
            at(500),
            at(990),
            at(999),
            *max as f64 / 1e3
        );
    }
}
