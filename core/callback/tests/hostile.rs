//! The caller against servers that respond badly, slowly, or not at all.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use muster_callback::{
    verify, Answer, Call, Caller, Failure, Guard, Hold, Identity, Limits, Outcome, Secret, Secrets, Settings, Tls, Why,
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Longer than any response takes, even on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(100);

/// A server on a free port that passes every connection to `serve`.
fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Reads one request: headers in lower case, and the body.
fn request(stream: &mut TcpStream) -> Option<(HashMap<String, String>, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        match stream.read(&mut chunk) {
            Ok(read) if read > 0 => bytes.extend_from_slice(&chunk[..read]),
            _ => return None,
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_string();
    let headers: HashMap<String, String> = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let mut body = bytes[end..].to_vec();
    while body.len() < length {
        let read = stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
        body.extend_from_slice(&chunk[..read]);
    }
    Some((headers, body))
}

/// Answers every request of a connection with the same text.
fn answers(text: &'static str) -> u16 {
    server(move |mut stream| {
        while request(&mut stream).is_some() {
            if stream.write_all(text.as_bytes()).is_err() {
                return;
            }
        }
    })
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

const OK_ANSWER: Outcome = Outcome::Delivered {
    status: 200,
    body: Bytes::new(),
};

fn settings() -> Settings {
    Settings {
        guard: Guard {
            allowed: vec!["127.0.0.1/32".parse().unwrap()],
        },
        ..Settings::default()
    }
}

fn call(number: u64, url: String) -> Call {
    Call {
        number,
        group: 1,
        id: format!("message-{number}"),
        url,
        content_type: "application/json".to_owned(),
        body: Bytes::from_static(b"{\"order\": 7}"),
        secrets: Arc::new(Secrets(vec![Secret::parse(SECRET).unwrap()])),
        timeout: LIMIT,
        pause_max: Duration::from_secs(600),
        keeps_answer: false,
    }
}

fn at(port: u16) -> String {
    format!("http://127.0.0.1:{port}/hook")
}

/// Waits for this many results.
fn answers_of(caller: &Caller, count: usize) -> HashMap<u64, Answer> {
    let mut found = Vec::new();
    let limit = Instant::now() + LIMIT;
    while found.len() < count {
        assert!(Instant::now() < limit, "{} of {count} answers", found.len());
        assert!(caller.is_running());
        caller.take(&mut found);
        std::thread::sleep(Duration::from_millis(1));
    }
    let answers: HashMap<u64, Answer> = found.into_iter().map(|answer| (answer.number, answer)).collect();
    assert_eq!(answers.len(), count, "every call is answered once");
    answers
}

fn outcome(caller: &Caller, call: Call) -> Outcome {
    let number = call.number;
    assert!(caller.submit(vec![call]).is_empty());
    answers_of(caller, 1)
        .remove(&number)
        .expect("the answer has the call's number")
        .outcome
}

#[test]
fn call_arrives_signed_and_whole() {
    let (tell, told) = mpsc::channel();
    let port = server(move |mut stream| {
        while let Some(request) = request(&mut stream) {
            tell.send(request).unwrap();
            stream.write_all(OK.as_bytes()).unwrap();
        }
    });
    let caller = Caller::start(settings()).unwrap();
    assert_eq!(outcome(&caller, call(7, at(port))), OK_ANSWER);
    let (headers, body) = told.recv_timeout(LIMIT).unwrap();
    assert_eq!(body, b"{\"order\": 7}");
    assert_eq!(headers["webhook-id"], "message-7");
    assert_eq!(headers["content-type"], "application/json");
    let time = headers["webhook-timestamp"].parse().unwrap();
    let secret = Secret::parse(SECRET).unwrap();
    assert!(verify(
        &secret,
        "message-7",
        time,
        &body,
        &headers["webhook-signature"],
        time
    ));
}

#[test]
fn empty_body_says_its_length() {
    let (tell, told) = mpsc::channel();
    let port = server(move |mut stream| {
        while let Some((headers, _)) = request(&mut stream) {
            tell.send(headers.get("content-length").cloned()).unwrap();
            stream.write_all(OK.as_bytes()).unwrap();
        }
    });
    let caller = Caller::start(settings()).unwrap();
    let empty = Call {
        body: Bytes::new(),
        ..call(1, at(port))
    };
    assert_eq!(outcome(&caller, empty), OK_ANSWER);
    assert_eq!(told.recv_timeout(LIMIT).unwrap().as_deref(), Some("0"));
}

#[test]
fn connections_are_used_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&connections);
    let port = server(move |mut stream| {
        seen.fetch_add(1, Ordering::Relaxed);
        while request(&mut stream).is_some() {
            if stream.write_all(OK.as_bytes()).is_err() {
                return;
            }
        }
    });
    let caller = Caller::start(settings()).unwrap();
    for round in 0..20 {
        let calls = (0..50).map(|number| call(round * 50 + number, at(port))).collect();
        assert!(caller.submit(calls).is_empty());
        for answer in answers_of(&caller, 50).values() {
            assert_eq!(answer.outcome, OK_ANSWER);
        }
    }
    // 32 concurrent ones, and now and then a closed one; never one for each of the 1,000 calls.
    assert!(connections.load(Ordering::Relaxed) < 200, "{connections:?}");
}

#[test]
fn error_is_reported_with_the_start_of_its_body_and_the_pause() {
    let port = answers("HTTP/1.1 500 Oh no\r\ncontent-length: 6\r\n\r\nbroken");
    let caller = Caller::start(settings()).unwrap();
    let refused = |status, retry_after, body: &'static [u8]| Outcome::Refused {
        status,
        retry_after,
        body: Bytes::from_static(body),
    };
    assert_eq!(outcome(&caller, call(1, at(port))), refused(500, None, b"broken"));
    let port = answers("HTTP/1.1 503 Later\r\nretry-after: 120\r\ncontent-length: 0\r\n\r\n");
    let pause = Duration::from_secs(120);
    assert_eq!(outcome(&caller, call(2, at(port))), refused(503, Some(pause), b""));
    // The target gets no calls from now on.
    let Outcome::NotMade {
        why: Why::Held,
        retry_in,
    } = outcome(&caller, call(3, at(port)))
    else {
        panic!("a target that asked for a pause is called");
    };
    assert!(retry_in > Duration::from_secs(100) && retry_in <= pause);
}

#[test]
fn redirect_is_not_followed() {
    let hits = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&hits);
    let private = server(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    });
    let port = server(move |mut stream| {
        while request(&mut stream).is_some() {
            let answer =
                format!("HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:{private}/\r\ncontent-length: 0\r\n\r\n");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let caller = Caller::start(settings()).unwrap();
    let redirected = outcome(&caller, call(1, at(port)));
    assert!(
        matches!(redirected, Outcome::Refused { status: 307, .. }),
        "{redirected:?}"
    );
    assert_eq!(hits.load(Ordering::Relaxed), 0);
}

#[test]
fn private_addresses_are_refused_even_by_name_and_nothing_is_sent() {
    let hits = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&hits);
    let port = server(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    });
    let caller = Caller::start(Settings::default()).unwrap();
    // The last two are forms of 127.0.0.1 that only the resolver understands.
    for (number, host) in (0..).zip([
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "2130706433",
        "0x7f.1",
    ]) {
        let refused = outcome(&caller, call(number, format!("http://{host}:{port}/")));
        assert_eq!(refused, Outcome::Failed(Failure::ForbiddenAddress), "{host}");
    }
    assert_eq!(hits.load(Ordering::Relaxed), 0);
    // The same by name where it is allowed.
    let port = answers(OK);
    let caller = Caller::start(settings()).unwrap();
    let delivered = outcome(&caller, call(9, format!("http://localhost:{port}/")));
    assert_eq!(delivered, OK_ANSWER);
    let unresolved = outcome(&caller, call(10, "http://no-such-host.invalid/".to_owned()));
    assert_eq!(unresolved, Outcome::Failed(Failure::Unresolved));
}

#[test]
fn endless_body_is_cut_off() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let port = server(move |mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad\r\ntransfer-encoding: chunked\r\n\r\n");
        let chunk = [b"10000\r\n".as_slice(), &[b'x'; 65_536], b"\r\n"].concat();
        while stream.write_all(&chunk).is_ok() {
            counted.fetch_add(chunk.len(), Ordering::Relaxed);
        }
    });
    let caller = Caller::start(settings()).unwrap();
    let Outcome::Refused { status: 400, body, .. } = outcome(&caller, call(1, at(port))) else {
        panic!("the status is known");
    };
    assert_eq!(body.len(), 4_096);
    // At most the sockets' buffers: the connection is closed.
    assert!(sent.load(Ordering::Relaxed) < 32 << 20);
}

#[test]
fn slow_closing_or_malformed_target_harms_only_its_own_calls() {
    let drip = server(|mut stream| {
        request(&mut stream);
        for byte in "HTTP/1.1 200 OK\r\n".bytes().chain(std::iter::repeat(b'a')) {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    });
    let silent = server(|stream| {
        // Held open until the caller gives up.
        let mut stream = stream;
        while request(&mut stream).is_some() {}
    });
    let closing = server(|mut stream| {
        request(&mut stream);
    });
    let nonsense = answers("SSH-2.0-OpenSSH_9.9\r\n\r\n");
    let headers = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(&[b'x'; 1_000]).is_ok() {}
    });
    let good = answers(OK);
    let limits = Limits {
        failures_max: 1_000,
        ..Limits::default()
    };
    let caller = Caller::start(Settings { limits, ..settings() }).unwrap();
    let timeout = Duration::from_secs(1);
    // Calls to the first two end only by timeout.
    let bad = [
        (drip, timeout),
        (silent, timeout),
        (closing, LIMIT),
        (nonsense, LIMIT),
        (headers, LIMIT),
    ];
    let mut calls = Vec::new();
    for (number, (port, timeout)) in (0..).zip(bad.into_iter().cycle().take(200)) {
        calls.push(Call {
            timeout,
            ..call(number, at(port))
        });
    }
    calls.extend((1_000..1_100).map(|number| call(number, at(good))));
    assert!(caller.submit(calls).is_empty());
    let answers = answers_of(&caller, 300);
    for number in 1_000..1_100 {
        let answer = &answers[&number];
        assert_eq!(answer.outcome, OK_ANSWER);
    }
    for (number, kind) in (0..200).zip(["drip", "silent", "closing", "nonsense", "headers"].into_iter().cycle()) {
        let outcome = &answers[&number].outcome;
        match kind {
            "drip" | "silent" => assert_eq!(*outcome, Outcome::Failed(Failure::Timeout), "{kind}"),
            _ => assert_eq!(*outcome, Outcome::Failed(Failure::Broken), "{kind}"),
        }
    }
}

#[test]
fn target_that_is_down_gets_no_calls_after_failures_in_a_row() {
    // Kept open, so that nobody else listens there.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let limits = Limits {
        failures_max: 3,
        ..Limits::default()
    };
    let caller = Caller::start(Settings { limits, ..settings() }).unwrap();
    for number in 0..3 {
        assert_eq!(
            outcome(&caller, call(number, at(port))),
            Outcome::Failed(Failure::Connect)
        );
    }
    assert!(matches!(
        outcome(&caller, call(3, at(port))),
        Outcome::NotMade { why: Why::Held, .. }
    ));
}

#[test]
fn surplus_calls_are_returned_and_no_call_ends_twice() {
    let silent = server(|mut stream| while request(&mut stream).is_some() {});
    let caller = Caller::start(Settings {
        calls_max: 40,
        ..settings()
    })
    .unwrap();
    let calls = (0..50)
        .map(|number| Call {
            timeout: 10 * LIMIT,
            ..call(number, at(silent))
        })
        .collect();
    let rest: Vec<u64> = caller.submit(calls).iter().map(|call| call.number).collect();
    assert_eq!(rest, (40..50).collect::<Vec<_>>());
    let begin = Instant::now();
    drop(caller);
    assert!(begin.elapsed() < LIMIT, "the end waits for no target");
}

/// A server over TLS that answers every request with `ok`, and the HTTP versions of the requests.
fn https(mut tls: rustls::ServerConfig) -> (u16, Arc<Mutex<Vec<hyper::Version>>>) {
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let (tell, told) = mpsc::channel();
    let versions: Arc<Mutex<Vec<hyper::Version>>> = Arc::default();
    let seen = Arc::clone(&versions);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap().port()).unwrap();
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let serve = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                        seen.lock().unwrap().push(request.version());
                        let answer = hyper::Response::new(http_body_util::Full::new(Bytes::from_static(b"ok")));
                        async move { Ok::<_, std::convert::Infallible>(answer) }
                    });
                    let executor = hyper_util::rt::TokioExecutor::new();
                    let _ = hyper_util::server::conn::auto::Builder::new(executor)
                        .serve_connection(hyper_util::rt::TokioIo::new(stream), serve)
                        .await;
                });
            }
        });
    });
    (told.recv_timeout(LIMIT).unwrap(), versions)
}

fn certified() -> rcgen::CertifiedKey {
    rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap()
}

fn builder() -> rustls::ConfigBuilder<rustls::ServerConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
}

fn key(certified: &rcgen::CertifiedKey) -> rustls::pki_types::PrivateKeyDer<'static> {
    rustls::pki_types::PrivateKeyDer::try_from(certified.key_pair.serialize_der()).unwrap()
}

#[test]
fn https_with_http_2_goes_to_certified_targets_only() {
    let certified = certified();
    let tls = builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key(&certified))
        .unwrap();
    let (port, versions) = https(tls);
    let url = format!("https://localhost:{port}/");
    let caller = Caller::start(settings()).unwrap();
    assert_eq!(outcome(&caller, call(1, url.clone())), Outcome::Failed(Failure::Tls));
    let tls = Tls {
        authorities: vec![certified.cert.der().to_vec()],
        identity: None,
    };
    let caller = Caller::start(Settings { tls, ..settings() }).unwrap();
    let calls = (0..20).map(|number| call(number, url.clone())).collect();
    assert!(caller.submit(calls).is_empty());
    for answer in answers_of(&caller, 20).values() {
        assert_eq!(answer.outcome, OK_ANSWER);
    }
    assert_eq!(*versions.lock().unwrap(), [hyper::Version::HTTP_2; 20]);
    // A server that speaks no TLS.
    let plain = server(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(OK.as_bytes());
    });
    let failed = outcome(&caller, call(99, format!("https://localhost:{plain}/")));
    assert_eq!(failed, Outcome::Failed(Failure::Tls));
}

#[test]
fn target_that_asks_for_a_client_certificate_gets_it() {
    let (certified, client) = (certified(), certified());
    let mut clients = rustls::RootCertStore::empty();
    clients.add(client.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(clients), provider)
        .build()
        .unwrap();
    let tls = builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certified.cert.der().clone()], key(&certified))
        .unwrap();
    let (port, _) = https(tls);
    let url = format!("https://localhost:{port}/");
    let authorities = vec![certified.cert.der().to_vec()];
    let nobody = Tls {
        authorities: authorities.clone(),
        identity: None,
    };
    let caller = Caller::start(Settings {
        tls: nobody,
        ..settings()
    })
    .unwrap();
    // The server reports that after the handshake.
    assert!(matches!(
        outcome(&caller, call(1, url.clone())),
        Outcome::Failed(Failure::Tls | Failure::Broken)
    ));
    let identity = Identity {
        chain: vec![client.cert.der().to_vec()],
        key: client.key_pair.serialize_der(),
    };
    let tls = Tls {
        authorities,
        identity: Some(identity),
    };
    let caller = Caller::start(Settings { tls, ..settings() }).unwrap();
    assert_eq!(outcome(&caller, call(2, url)), OK_ANSWER);
}

#[test]
fn answer_is_kept_for_the_call_that_asks_for_it() {
    let caller = Caller::start(settings()).unwrap();
    let asks = Call {
        keeps_answer: true,
        ..call(1, at(answers(OK)))
    };
    let kept = Outcome::Delivered {
        status: 200,
        body: Bytes::from_static(b"ok"),
    };
    assert_eq!(outcome(&caller, asks), kept);
}

#[test]
fn failing_or_long_paused_url_delays_no_other_url_of_its_server() {
    let port = server(|mut stream| {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..read]).to_string();
            let answer = match text.split(' ').nth(1) {
                Some("/bad") => "HTTP/1.1 500 Oh no\r\ncontent-length: 0\r\n\r\n",
                Some("/busy") => "HTTP/1.1 429 Later\r\nretry-after: 86400\r\ncontent-length: 0\r\n\r\n",
                _ => OK,
            };
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    let limits = Limits {
        failures_max: 3,
        ..Limits::default()
    };
    let caller = Caller::start(Settings { limits, ..settings() }).unwrap();
    let to = |number, path: &str| call(number, format!("http://127.0.0.1:{port}{path}"));
    for number in 0..3 {
        assert!(matches!(
            outcome(&caller, to(number, "/bad")),
            Outcome::Refused { status: 500, .. }
        ));
    }
    let Outcome::Refused { retry_after, .. } = outcome(&caller, to(3, "/busy")) else {
        panic!("it is refused");
    };
    assert_eq!(retry_after, Some(Duration::from_secs(600)));
    for number in 10..30 {
        assert_eq!(outcome(&caller, to(number, "/good")), OK_ANSWER);
    }
    for path in ["/bad", "/busy"] {
        let held = outcome(&caller, to(40, path));
        assert!(matches!(held, Outcome::NotMade { why: Why::Held, .. }), "{path}");
    }
    // The same URL, in another group.
    let other = Call {
        group: 2,
        ..to(50, "/bad")
    };
    assert!(matches!(outcome(&caller, other), Outcome::Refused { status: 500, .. }));
    let limit = Instant::now() + LIMIT;
    loop {
        let mut held: Vec<_> = caller.held().into_iter().map(|held| (held.group, held.hold)).collect();
        held.sort_by_key(|(_, hold)| *hold == Hold::Paused);
        if held == [(Some(1), Hold::Failing), (Some(1), Hold::Paused)] {
            break;
        }
        assert!(Instant::now() < limit, "{held:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
