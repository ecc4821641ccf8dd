//! Server CPU of a delivery: one room in this process, its members in another.
//!
//! `cargo run --release -p muster-edge --example fanout -- --members 1000 --rate 0 --encoding json --seconds 5`
//! prints one line of `name=value` words. Rate 0: as fast as members take it. With `--interval-us N` a message waits up to
//! that long for others of the same write. The members' process has a CPU of its own if there are two.

#[path = "../tests/hub/mod.rs"]
mod hub;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use hub::Hub;
use muster_edge::Settings;
use muster_tcp::{Limits, Tcp};
use muster_transport::Micros;
use muster_udp::{monotonic_now, thread_cpu_now, Poll};

/// Messages published at once when the room is idle, if there is no rate.
const BATCH: usize = 64;
const CHANNEL: &str = "bench:room";

struct Options {
    members: usize,
    rate: u64,
    protobuf: bool,
    seconds: u64,
    bytes: usize,
    interval: Micros,
}

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, address, members, protobuf] = &words[..] {
        if word == "members" {
            let address: SocketAddr = address.parse().expect("an address");
            return members_of(address, members.parse().expect("a number"), protobuf == "true");
        }
    }
    serve(&options(&words))
}

fn options(words: &[String]) -> Options {
    let value = |name: &str, default: &str| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1))
            .map_or(default.to_owned(), String::clone)
    };
    let number = |name: &str, default: &str| {
        let text = value(name, default);
        text.parse::<u64>()
            .unwrap_or_else(|_| panic!("{name} {text}: a number is needed"))
    };
    Options {
        members: number("--members", "100") as usize,
        rate: number("--rate", "0"),
        protobuf: match value("--encoding", "json").as_str() {
            "json" => false,
            "protobuf" => true,
            other => panic!("--encoding {other}: use json or protobuf"),
        },
        seconds: number("--seconds", "5"),
        bytes: number("--bytes", "200") as usize,
        interval: number("--interval-us", "0"),
    }
}

fn serve(options: &Options) -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut tcp = Tcp::new(Limits::default())?;
    tcp.listen(listener)?;
    let mut hub = Hub::new(Settings::default(), 1);
    hub.joins = hub::Joins::Nobody;
    let room = hub.room(CHANNEL);
    let before = resident();
    let mut child = Command::new(std::env::current_exe()?)
        .args([
            "members",
            &address.to_string(),
            &options.members.to_string(),
            &options.protobuf.to_string(),
        ])
        .stdin(Stdio::piped())
        .spawn()?;
    while hub.members(room) < options.members {
        tcp.wait(Duration::from_millis(100));
        tcp.turn(&mut hub);
        assert!(child.try_wait()?.is_none(), "the members' process is there");
    }
    // Pings and answers of the last ones.
    for _ in 0..20 {
        tcp.wait(Duration::from_millis(10));
        tcp.turn(&mut hub);
    }
    let memory = resident().saturating_sub(before) * 1_024 / options.members as u64;
    let data = Bytes::from(format!("\"{}\"", "x".repeat(options.bytes - 2)));
    let run = |hub: &mut Hub, tcp: &mut Tcp, seconds: u64| {
        let start = monotonic_now();
        let (mut published, mut held_since) = (0, None);
        loop {
            let now = monotonic_now();
            if now >= start + seconds * 1_000_000 {
                return;
            }
            if options.rate == 0 {
                if hub.is_idle() && hub.blocked() == 0 {
                    (0..BATCH).for_each(|_| _ = hub.publish(room, data.clone(), None));
                    tcp.kick();
                }
            } else {
                let due = (now - start) * options.rate / 1_000_000;
                if due > published {
                    let since = *held_since.get_or_insert(now);
                    if now >= since + options.interval {
                        (published..due).for_each(|_| _ = hub.publish(room, data.clone(), None));
                        (published, held_since) = (due, None);
                        tcp.kick();
                    }
                }
            }
            let next = match options.rate {
                0 => 1_000,
                rate => (1_000_000 / rate).max(options.interval).clamp(1, 1_000),
            };
            tcp.wait(Duration::from_micros(next));
            tcp.turn(hub);
        }
    };
    run(&mut hub, &mut tcp, 1);
    let (cpu, from) = (thread_cpu_now(), monotonic_now());
    let (deliveries, lost, sends) = (hub.figures.deliveries, hub.figures.lost, tcp.counters().sends);
    run(&mut hub, &mut tcp, options.seconds);
    let (cpu, time) = (thread_cpu_now() - cpu, monotonic_now() - from);
    let (deliveries, sends) = (hub.figures.deliveries - deliveries, tcp.counters().sends - sends);
    println!(
        "members={} rate={} encoding={} bytes={} interval_us={} deliveries={deliveries} deliveries_a_second={} \
         cpu_us_a_delivery={:.4} cpu_share={:.3} messages_a_send={:.1} lost={} bytes_a_connection={memory}",
        options.members,
        options.rate,
        if options.protobuf { "protobuf" } else { "json" },
        options.bytes,
        options.interval,
        deliveries * 1_000_000 / time,
        cpu as f64 / deliveries.max(1) as f64,
        cpu as f64 / time as f64,
        deliveries as f64 / sends.max(1) as f64,
        hub.figures.lost - lost,
    );
    drop(child.stdin.take());
    child.wait().map(|_| ())
}

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// Opens the members and reads what they get, until standard input ends.
fn members_of(address: SocketAddr, count: usize, protobuf: bool) -> std::io::Result<()> {
    let query = if protobuf { "?cf_protocol=protobuf" } else { "" };
    let head = format!(
        "GET /connection/websocket{query} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let channel = CHANNEL.as_bytes();
    let (opcode, commands) = match protobuf {
        false => (
            1,
            format!("{{\"id\":1,\"connect\":{{}}}}\n{{\"id\":2,\"subscribe\":{{\"channel\":\"{CHANNEL}\"}}}}")
                .into_bytes(),
        ),
        true => {
            let size = channel.len() as u8;
            let subscribe = [&[8, 2, 0x2a, size + 2, 0x0a, size], channel].concat();
            (
                2,
                [&[4, 8, 1, 0x22, 0][..], &[subscribe.len() as u8], &subscribe].concat(),
            )
        }
    };
    let mut frame = vec![0x80 | opcode, 0x80 | commands.len() as u8, 0, 0, 0, 0];
    frame.extend(commands);
    let mut members = Vec::new();
    let mut poll = Poll::new()?;
    for at in 0..count {
        let mut member = TcpStream::connect(address)?;
        member.write_all(head.as_bytes())?;
        member.write_all(&frame)?;
        member.set_nonblocking(true)?;
        poll.add(member.as_fd(), at as u64)?;
        members.push(member);
    }
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0; 1]);
        std::process::exit(0);
    });
    let mut buffer = vec![0; 1 << 20];
    loop {
        for index in 0..poll.wait(Duration::from_secs(60)) {
            let at = poll.ready(index).token as usize;
            if let Ok(0) = members[at].read(&mut buffer) {
                eprintln!("a member was cut off");
                std::process::exit(1);
            }
        }
    }
}
