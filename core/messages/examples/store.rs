//! Measures the durable store in a folder: `cargo run --release -p muster-messages --example store -- FOLDER
//! [PENDING]`.
//!
//! PENDING messages (default 1,000,000) of 200 bytes, due over 7 days at random: durable inserts per second in groups
//! of 512 and, for a tenth of them, of 64; memory per message; then the process's exit without a checkpoint, opening,
//! the time to the first due message, and how fast due messages are claimed and delivered in groups of 512. Jobs run
//! in a separate thread. FOLDER is created and must not exist; it stays.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_journal::Options;
use muster_messages::schedule::{Change, Incarnation, MessageId, NEVER};
use muster_messages::store::{Claims, Finished, Folder, FolderStore, Job, NewMessage, Settings};
use muster_messages::wheel::Progress;

const HOUR: u64 = 3_600_000;
const WEEK: u64 = 7 * 24 * HOUR;
/// Messages that are due when the store opens again.
const DUE: u64 = 200_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next() else {
        eprintln!("usage: store FOLDER [PENDING]");
        return ExitCode::from(2);
    };
    let (pending, part) = (arguments.next(), arguments.next());
    let pending: u64 = match pending.as_deref().unwrap_or("1000000").parse() {
        Ok(pending) => pending,
        Err(error) => {
            eprintln!("invalid number of messages: {error}");
            return ExitCode::from(2);
        }
    };
    let done = match part.as_deref() {
        None => parent(&folder, pending),
        Some("fill") => fill(Path::new(&folder), pending),
        Some(_) => fire(Path::new(&folder), pending),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Runs both parts in processes of their own, so that each begins with nothing in memory.
fn parent(folder: &str, pending: u64) -> Outcome {
    if Path::new(folder).exists() {
        return Err(format!("{folder} exists").into());
    }
    for part in ["fill", "fire"] {
        let status = Command::new(std::env::current_exe()?)
            .args([folder, &pending.to_string(), part])
            .status()?;
        if !status.success() {
            return Err(format!("part {part} failed").into());
        }
    }
    Ok(())
}

/// Runs the store's jobs in a separate thread.
struct Keeper {
    jobs: mpsc::Sender<Job<Folder>>,
    finished: mpsc::Receiver<Finished>,
}

impl Keeper {
    fn start() -> Keeper {
        let (jobs, todo) = mpsc::channel::<Job<Folder>>();
        let (done, finished) = mpsc::channel();
        std::thread::spawn(move || {
            for job in todo {
                if done.send(job.run()).is_err() {
                    break;
                }
            }
        });
        Keeper { jobs, finished }
    }

    fn turn(&self, store: &mut FolderStore) -> Result<Progress, Box<dyn std::error::Error>> {
        let progress = store.tick(now(), 4_096)?;
        while let Some(job) = store.next_job() {
            self.jobs.send(job)?;
        }
        while let Ok(finished) = self.finished.try_recv() {
            store.finish(finished)?;
        }
        Ok(progress)
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970")
        .as_millis() as u64
}

fn id(number: u64) -> MessageId {
    MessageId((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn fill(folder: &Path, pending: u64) -> Outcome {
    let keeper = Keeper::start();
    let mut store = FolderStore::open(folder, Options::default(), Settings::default(), now())?;
    let body = [b'x'; 200];
    let mut random = 88_172_645_463_325_252_u64;
    let begin_of_all = now();
    println!("{pending} messages of 200 bytes, due over 7 days");
    let small = pending / 10;
    for (group, range) in [(64, 0..small), (512, small..pending)] {
        let count = range.end - range.start;
        let mut times = Vec::new();
        let (begin, cpu) = (Instant::now(), cpu());
        let mut number = range.start;
        while number < range.end {
            let start = Instant::now();
            for _ in 0..group.min(range.end - number) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // The first ones are due when the second part opens the store.
                let due_at = if number % (pending / DUE.min(pending / 2)) == 0 {
                    begin_of_all + 1_000
                } else {
                    begin_of_all + HOUR + random % WEEK
                };
                store.insert(NewMessage {
                    id: id(number),
                    topic: 1,
                    due_at,
                    expires_at: NEVER,
                    body: &body,
                })?;
                number += 1;
            }
            store.commit()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            keeper.turn(&mut store)?;
        }
        let (wall, used) = (begin.elapsed().as_secs_f64(), self::cpu() - cpu);
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        println!(
            "  durable inserts in groups of {group:<4} {:>9.0} /s wall, {:>9.0} /s of CPU; group p50 {:.2} p99 {:.2} max {:.1} ms",
            count as f64 / wall,
            count as f64 / used,
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    let stats = store.stats();
    println!(
        "  memory {:.1} B a message beyond the near window ({} near, {} hours), resident {} MB, {} checkpoints",
        (stats.memory - stats.near_memory) as f64 / stats.known as f64,
        stats.near,
        stats.hours,
        resident_mb(),
        stats.checkpoints
    );
    // As after kill -9: no checkpoint, nothing closed.
    std::process::exit(0);
}

fn fire(folder: &Path, pending: u64) -> Outcome {
    // The first ones are due by now.
    let begin = Instant::now();
    let keeper = Keeper::start();
    let mut store = FolderStore::open(folder, Options::default(), Settings::default(), now())?;
    let opened = begin.elapsed();
    let mut fires = Vec::new();
    let mut body = Vec::new();
    let claims = |time| Claims {
        topic: 1,
        worker: Incarnation(1),
        until: time + 60_000,
        attempts_max: 5,
        max: 512,
    };
    while fires.is_empty() {
        keeper.turn(&mut store)?;
        let time = now();
        store.claim(time, claims(time), &mut fires)?;
    }
    store.commit()?;
    println!(
        "  opened in {:.2} s, first due message claimed after {:.2} s",
        opened.as_secs_f64(),
        begin.elapsed().as_secs_f64()
    );
    let expected = (0..pending)
        .filter(|number| number % (pending / DUE.min(pending / 2)) == 0)
        .count();
    let (mut fired, mut times) = (0, Vec::new());
    let (start, used) = (Instant::now(), cpu());
    loop {
        let group = Instant::now();
        for fire in fires.drain(..) {
            store.body(&fire, &mut body)?;
            assert_eq!(body.len(), 200);
            store.change(now(), fire.message.id, Change::Deliver { claim: fire.claim }, None)?;
            fired += 1;
        }
        let time = now();
        // Results and the next claims go in one group.
        store.claim(time, claims(time), &mut fires)?;
        store.commit()?;
        times.push(group.elapsed().as_secs_f64() * 1e3);
        keeper.turn(&mut store)?;
        if fired >= expected {
            break;
        }
    }
    let wall = start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    println!(
        "  fired (claimed, body read, delivered) {:>9.0} /s wall, {:>9.0} /s of CPU; group p99 {:.2} max {:.1} ms",
        fired as f64 / wall,
        fired as f64 / (cpu() - used),
        times[(times.len() - 1) * 99 / 100],
        times[times.len() - 1]
    );
    while !store.is_whole() {
        keeper.turn(&mut store)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    println!(
        "  every message can be asked for after {:.2} s",
        begin.elapsed().as_secs_f64()
    );
    let stats = store.stats();
    println!(
        "  memory {:.1} B a message beyond the near window, {} live, resident {} MB",
        (stats.memory - stats.near_memory) as f64 / stats.known as f64,
        stats.live,
        resident_mb()
    );
    let mut random = 1_u64;
    let (begin, mut count) = (Instant::now(), 0);
    for _ in 0..100_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let _ = store.change(now(), id((random >> 20) % pending), Change::Cancel, None);
        count += 1;
        if count % 512 == 0 {
            store.commit()?;
        }
    }
    store.commit()?;
    println!(
        "  cancels in groups of 512 {:>9.0} /s wall",
        f64::from(count) / begin.elapsed().as_secs_f64()
    );
    let begin = Instant::now();
    store.close()?;
    println!("  closed in {:.2} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Seconds of processor time of this process.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // After the name and the state: user and system time in hundredths of a second.
    fields
        .get(10)
        .zip(fields.get(11))
        .map_or(0.0, |(user, system)| (user + system) / 100.0)
}

fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}
