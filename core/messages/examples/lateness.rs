//! Measures how late callbacks are: `cargo run --release -p muster-messages --example lateness -- FOLDER`.
//!
//! 10,000 messages due within one second, then 1,000 due in the same millisecond: durable in a schedule in FOLDER,
//! claimed in groups that are synced, called back over HTTP with a signature to a server in this process that replies
//! 200. Lateness is the time at which the server has read the request, minus the due time. FOLDER is created and
//! stays.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::{mpsc, Arc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_callback::{Call, Caller, Guard, Outcome, Secret, Secrets};
use muster_journal::Options;
use muster_messages::keeper::{Answer, Ask, Keeper, Request};
use muster_messages::schedule::{Change, Incarnation, MessageId, NEVER};
use muster_messages::store::Settings;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: lateness FOLDER");
        return ExitCode::from(2);
    };
    match run(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (tell, arrived) = mpsc::channel();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let tell = tell.clone();
            std::thread::spawn(move || serve(stream, &tell));
        }
    });
    let keeper = Keeper::start(folder.into(), Options::default(), Settings::default())?;
    let guard = Guard {
        allowed: vec!["127.0.0.1/32".parse()?],
    };
    let caller = Caller::start(muster_callback::Settings {
        guard,
        ..Default::default()
    })?;
    let secrets = Arc::new(Secrets(vec![Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")?]));
    println!("fire minus due at the server, ms                p50      p99      max");
    let mut first = 0;
    for (what, count, spread) in [
        ("10,000 due within one second", 10_000_u64, 1_000),
        ("1,000 due in the same millisecond", 1_000, 1),
    ] {
        let base = now_us() / 1_000 + 3_000;
        let due = |number: u64| base + (number - first) * spread / count;
        let insert = |number| Request {
            number,
            ask: Ask::Insert {
                id: MessageId(number),
                topic: 1,
                due_at: due(number),
                expires_at: NEVER,
                body: [
                    b"{\"number\": ",
                    number.to_string().as_bytes(),
                    b", \"pad\": \"",
                    &[b'x'; 170],
                    b"\"}",
                ]
                .concat(),
            },
        };
        keeper.submit((first..first + count).map(insert).collect());
        let serve = Ask::Serve {
            topic: 1,
            worker: Incarnation(1),
            lease_ms: 60_000,
            attempts_max: 6,
            credit: count as usize,
        };
        keeper.submit(vec![Request {
            number: u64::MAX,
            ask: serve,
        }]);
        let (mut replies, mut steps, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        let (mut claims, mut done, mut delivered) = (std::collections::HashMap::new(), 0, 0);
        while done < count {
            keeper.take(&mut replies, &mut steps)?;
            let mut calls = Vec::new();
            for reply in replies.drain(..) {
                match reply.answer {
                    Answer::Fire {
                        message, claim, body, ..
                    } => {
                        claims.insert(message.id.0, claim);
                        calls.push(Call {
                            number: message.id.0,
                            group: 1,
                            id: message.id.0.to_string(),
                            url: url.clone(),
                            content_type: "application/json".to_owned(),
                            body: body.into(),
                            secrets: Arc::clone(&secrets),
                            timeout: Duration::from_secs(10),
                            pause_max: Duration::from_secs(600),
                            keeps_answer: false,
                        });
                    }
                    Answer::Inserted(_) => {}
                    Answer::Changed(_) => done += 1,
                    other => return Err(format!("{other:?}").into()),
                }
            }
            if !calls.is_empty() {
                caller.submit(calls);
            }
            caller.take(&mut answers);
            let mut changes = Vec::new();
            for answer in answers.drain(..) {
                if !matches!(answer.outcome, Outcome::Delivered { .. }) {
                    return Err(format!("{answer:?}").into());
                }
                delivered += 1;
                let change = Change::Deliver {
                    claim: claims[&answer.number],
                };
                let ask = Ask::Change {
                    id: MessageId(answer.number),
                    change,
                    expected: None,
                };
                changes.push(Request {
                    number: answer.number,
                    ask,
                });
            }
            if !changes.is_empty() {
                keeper.submit(changes);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(delivered, count);
        let mut late: Vec<f64> = Vec::new();
        for (number, at_us) in arrived.try_iter() {
            let late_us = at_us as i64 - due(number) as i64 * 1_000;
            assert!(late_us >= 0, "message {number} is early by {late_us} us");
            late.push(late_us as f64 / 1e3);
        }
        assert_eq!(late.len() as u64, count);
        late.sort_by(f64::total_cmp);
        let at = |part: f64| late[((late.len() - 1) as f64 * part) as usize];
        println!("  {what:<40}{:>9.1}{:>9.1}{:>9.1}", at(0.5), at(0.99), at(1.0));
        first += count;
    }
    Ok(())
}

/// Answers every request of a connection; reports which message came, and when.
fn serve(mut stream: TcpStream, tell: &mpsc::Sender<(u64, u64)>) {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        match stream.read(&mut chunk) {
            Ok(read) if read > 0 => bytes.extend_from_slice(&chunk[..read]),
            _ => return,
        }
        if bytes.ends_with(b"\"}") {
            let at = now_us();
            let text = String::from_utf8_lossy(&bytes);
            let number = text
                .split("\"number\": ")
                .nth(1)
                .and_then(|rest| rest.split(',').next()?.parse().ok());
            if number.is_none_or(|number| tell.send((number, at)).is_err()) || stream.write_all(ANSWER).is_err() {
                return;
            }
            bytes.clear();
        }
    }
}

fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_micros() as u64)
}
