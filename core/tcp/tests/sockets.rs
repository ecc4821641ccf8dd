//! Real sockets on loopback: order, shared bytes, partial writes, half-close, limits, TLS, and hostile clients.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use muster_tcp::{tls_config, Ended, Limits, Outbox, StreamId, Streams, Tcp, TlsError, LINGER};
use muster_transport::{Addr, Micros};

/// Far above anything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(120);

type Order = Box<dyn FnOnce(&mut Outbox)>;

/// A machine that writes down what happens, and does what a test tells it.
#[derive(Default)]
struct Notes {
    open: Vec<StreamId>,
    /// Those that are gone included.
    all: Vec<StreamId>,
    received: BTreeMap<StreamId, Vec<u8>>,
    finished: Vec<StreamId>,
    blocked: Vec<StreamId>,
    drained: Vec<StreamId>,
    ended: Vec<(StreamId, Ended)>,
    orders: VecDeque<Order>,
    echo: bool,
    proves: bool,
    deadline: Option<Micros>,
    expired: u32,
}

impl Streams for Notes {
    fn opened(&mut self, _now: Micros, stream: StreamId, _from: Addr) {
        self.open.push(stream);
        self.all.push(stream);
        if self.proves {
            self.orders.push_back(Box::new(move |outbox| outbox.proven(stream)));
        }
    }

    fn received(&mut self, _now: Micros, stream: StreamId, bytes: &mut [u8]) {
        self.received.entry(stream).or_default().extend_from_slice(bytes);
        if self.echo {
            let bytes = bytes.to_vec();
            self.orders
                .push_back(Box::new(move |outbox| outbox.send(stream, &bytes, &[], &[])));
        }
    }

    fn finished(&mut self, _now: Micros, stream: StreamId) {
        self.finished.push(stream);
    }

    fn blocked(&mut self, _now: Micros, stream: StreamId) {
        self.blocked.push(stream);
    }

    fn drained(&mut self, _now: Micros, stream: StreamId) {
        self.drained.push(stream);
    }

    fn ended(&mut self, _now: Micros, stream: StreamId, how: Ended) {
        self.open.retain(|open| *open != stream);
        self.ended.push((stream, how));
    }

    fn expire(&mut self, _now: Micros) {
        self.deadline = None;
        self.expired += 1;
    }

    fn transmit(&mut self, _now: Micros, outbox: &mut Outbox) -> bool {
        while outbox.room() > 0 {
            let Some(order) = self.orders.pop_front() else {
                return false;
            };
            order(outbox);
        }
        true
    }

    fn deadline(&self) -> Option<Micros> {
        self.deadline
    }
}

struct Server {
    tcp: Tcp,
    notes: Notes,
    address: SocketAddr,
}

impl Server {
    fn new(limits: Limits) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut tcp = Tcp::new(limits).unwrap();
        tcp.listen(listener).unwrap();
        Server {
            tcp,
            notes: Notes::default(),
            address,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A client and the stream that it became.
    fn open(&mut self) -> (TcpStream, StreamId) {
        let (client, before) = (self.connect(), self.notes.open.len());
        self.until(|notes| notes.open.len() > before);
        (client, *self.notes.open.last().unwrap())
    }

    /// The same where the stream may be gone by now.
    fn open_soon(&mut self) -> (TcpStream, StreamId) {
        let (client, before) = (self.connect(), self.notes.all.len());
        self.until(|notes| notes.all.len() > before);
        (client, *self.notes.all.last().unwrap())
    }

    fn order(&mut self, order: impl FnOnce(&mut Outbox) + 'static) {
        self.notes.orders.push_back(Box::new(order));
        self.tcp.kick();
    }

    /// Turns until the machine has noted this.
    fn until(&mut self, done: impl Fn(&Notes) -> bool) {
        self.until_all(|server| done(&server.notes));
    }

    fn until_all(&mut self, mut done: impl FnMut(&mut Server) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "it does not come");
            self.tcp.wait(Duration::from_millis(5));
            self.tcp.turn(&mut self.notes);
        }
    }

    /// Turns until a client has read this many bytes.
    fn until_read(&mut self, client: &mut TcpStream, len: usize) -> Vec<u8> {
        client.set_nonblocking(true).unwrap();
        let mut read = Vec::new();
        self.until_all(|_| {
            let mut buffer = vec![0; 1 << 16];
            loop {
                match client.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => read.extend_from_slice(&buffer[..count]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            read.len() >= len
        });
        client.set_nonblocking(false).unwrap();
        read
    }
}

/// Whether the peer ended the stream: in order, or by a reset.
fn end_of(client: &mut TcpStream) -> Result<Vec<u8>, ErrorKind> {
    let mut rest = Vec::new();
    client
        .read_to_end(&mut rest)
        .map(|_| rest)
        .map_err(|error| error.kind())
}

#[test]
fn bytes_come_in_order_and_own_and_shared_ones_leave_in_order() {
    let mut server = Server::new(Limits::default());
    let (mut client, stream) = server.open();
    client.write_all(b"hello").unwrap();
    server.until(|notes| notes.received.get(&stream).is_some_and(|bytes| bytes == b"hello"));
    let shared = [Bytes::from_static(b"one,"), Bytes::from_static(b"two,")];
    server.order(move |outbox| {
        outbox.send(stream, b"head,", &shared, b"tail,");
        outbox.send(stream, b"", &[], b"");
        outbox.send(stream, b"next", &[], b"");
    });
    assert_eq!(server.until_read(&mut client, 22), b"head,one,two,tail,next");
}

#[test]
fn an_outer_epoll_wakes_for_streams_and_for_timers() {
    let mut server = Server::new(Limits::default());
    let mut outer = muster_udp::Poll::new().unwrap();
    outer.add(server.tcp.fd(), 1).unwrap();
    server.tcp.turn(&mut server.notes);
    assert_eq!(outer.wait(Duration::ZERO), 0);
    let mut client = server.connect();
    assert_eq!(outer.wait(PATIENCE), 1);
    server.tcp.turn(&mut server.notes);
    client.write_all(b"x").unwrap();
    assert_eq!(outer.wait(PATIENCE), 1);
    server.tcp.turn(&mut server.notes);
    assert_eq!(outer.wait(Duration::ZERO), 0);
    server.notes.deadline = Some(muster_udp::monotonic_now() + 20_000);
    server.tcp.turn(&mut server.notes);
    assert_eq!(outer.wait(PATIENCE), 1);
    while server.notes.expired == 0 {
        server.tcp.turn(&mut server.notes);
    }
    server.tcp.turn(&mut server.notes);
    assert_eq!(
        outer.wait(Duration::ZERO),
        0,
        "a timer that is over does not wake again"
    );
}

#[test]
fn a_peer_that_takes_little_is_owed_cursors_and_hears_everything_once() {
    let limits = Limits {
        send_buffer: 8_192,
        ..Limits::default()
    };
    let mut server = Server::new(limits);
    let (mut client, stream) = server.open();
    let pieces: Vec<Bytes> = (0..300u32)
        .map(|number| Bytes::from(vec![number as u8; 20_000 + number as usize]))
        .collect();
    let mut wanted = b"head".to_vec();
    pieces.iter().for_each(|piece| wanted.extend_from_slice(piece));
    wanted.extend_from_slice(b"tail");
    let (given, last) = (pieces.clone(), pieces[299].clone());
    server.order(move |outbox| outbox.send(stream, b"head", &given, b"tail"));
    server.until(|notes| !notes.blocked.is_empty());
    assert!(server.tcp.is_unacknowledged(stream));
    assert!(server.notes.drained.is_empty());
    // What is owed is the same memory: these bytes have several holders, and no copy.
    drop(pieces);
    assert!(!last.is_unique());
    let read = server.until_read(&mut client, wanted.len());
    assert!(read == wanted, "{} of {}", read.len(), wanted.len());
    server.until(|notes| notes.drained == [stream]);
    assert!(last.is_unique());
    assert_eq!(server.notes.blocked, [stream]);
}

#[test]
fn a_peer_that_ends_its_half_still_reads_the_answer() {
    let mut server = Server::new(Limits::default());
    let (mut client, stream) = server.open();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    server.until(|notes| notes.finished == [stream]);
    server.order(move |outbox| {
        outbox.send(stream, b"answer", &[], b"");
        outbox.close(stream);
    });
    server.until_all(|server| server.tcp.is_empty());
    assert_eq!(end_of(&mut client), Ok(b"answer".to_vec()));
    assert!(server.notes.ended.is_empty());
}

#[test]
fn a_close_is_no_reset_while_the_peer_still_sends() {
    let mut server = Server::new(Limits::default());
    let (mut client, stream) = server.open();
    let flood = std::thread::spawn({
        let mut client = client.try_clone().unwrap();
        move || {
            for _ in 0..10 {
                let _ = client.write_all(&[7; 10_000]);
            }
        }
    });
    server.until(|notes| notes.received.contains_key(&stream));
    server.order(move |outbox| {
        outbox.send(stream, b"bye", &[], b"");
        outbox.close(stream);
    });
    assert_eq!(server.until_read(&mut client, 3), b"bye");
    flood.join().unwrap();
    assert_eq!(end_of(&mut client), Ok(vec![]), "in order");
    drop(client);
    server.until_all(|server| server.tcp.is_empty());
}

#[test]
fn a_closed_stream_that_does_not_go_or_floods_is_reset() {
    for floods in [false, true] {
        let mut server = Server::new(Limits::default());
        let (mut client, stream) = server.open();
        server.order(move |outbox| outbox.close(stream));
        let start = Instant::now();
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        if floods {
            client.set_nonblocking(true).unwrap();
            server.until_all(|server| {
                let _ = client.write(&[1; 65_536]);
                server.tcp.is_empty()
            });
        } else {
            server.until_all(|server| server.tcp.is_empty());
            assert!(start.elapsed() >= Duration::from_micros(LINGER) / 2);
        }
    }
}

#[test]
fn an_aborted_stream_is_reset_and_a_late_order_meets_no_other_one() {
    let mut server = Server::new(Limits::default());
    let (mut client, stream) = server.open();
    server.order(move |outbox| outbox.abort(stream));
    server.until_all(|server| server.tcp.is_empty());
    assert_eq!(end_of(&mut client), Err(ErrorKind::ConnectionReset));
    let (mut other, next) = server.open();
    assert_eq!(next.slot(), stream.slot(), "the slot is used again");
    assert_ne!(next, stream);
    server.order(move |outbox| {
        outbox.send(stream, b"late", &[], b"");
        outbox.abort(stream);
        outbox.send(next, b"own", &[], b"");
    });
    assert_eq!(server.until_read(&mut other, 3), b"own");
}

#[test]
fn a_reset_by_the_peer_ends_the_stream_also_while_it_is_not_read() {
    for reads in [true, false] {
        let mut server = Server::new(Limits::default());
        let (mut client, stream) = server.open();
        if !reads {
            server.order(move |outbox| outbox.read(stream, false));
            server.until(|notes| notes.orders.is_empty());
            client.write_all(b"unread").unwrap();
        }
        // A close with bytes unread is a reset.
        server.order(move |outbox| outbox.send(stream, b"unread", &[], b""));
        server.until(|notes| notes.orders.is_empty());
        client.peek(&mut [0; 1]).unwrap();
        drop(client);
        server.until(|notes| !notes.ended.is_empty() || !notes.finished.is_empty());
        server.until_all(|server| server.tcp.is_empty());
        assert_eq!(server.notes.ended.len(), 1);
    }
}

#[test]
fn a_stream_that_is_not_read_holds_its_peer_up_until_it_is() {
    let mut server = Server::new(Limits::default());
    let (mut client, stream) = server.open();
    server.order(move |outbox| outbox.read(stream, false));
    server.until(|notes| notes.orders.is_empty());
    client.set_nonblocking(true).unwrap();
    let mut sent = 0;
    for _ in 0..1_000 {
        match client.write(&[1; 65_536]) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
        server.tcp.turn(&mut server.notes);
    }
    assert!(sent < 1_000 * 65_536, "its window is full");
    assert!(!server.notes.received.contains_key(&stream));
    server.order(move |outbox| outbox.read(stream, true));
    server.until(|notes| notes.received.get(&stream).is_some_and(|bytes| bytes.len() == sent));
}

#[test]
fn streams_beyond_the_limits_are_refused_with_a_reason() {
    let limits = Limits {
        streams: 3,
        streams_of_address: 2,
        refusal: Bytes::from_static(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"),
        ..Limits::default()
    };
    let mut server = Server::new(limits.clone());
    let (first, _) = server.open();
    let (_second, _) = server.open();
    let mut third = server.connect();
    third.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(server.until_read(&mut third, limits.refusal.len()), &limits.refusal[..]);
    assert_eq!((server.tcp.counters().refused_address, server.notes.open.len()), (1, 2));
    drop(first);
    server.until(|notes| notes.finished.len() == 1);
    let gone = server.notes.finished[0];
    server.order(move |outbox| outbox.close(gone));
    server.until_all(|server| server.tcp.half_open() == 1);
    let (_fourth, _) = server.open();

    let mut server = Server::new(Limits {
        streams_of_address: 0,
        ..limits.clone()
    });
    let _held: Vec<_> = (0..3).map(|_| server.open()).collect();
    let mut more = server.connect();
    assert_eq!(server.until_read(&mut more, limits.refusal.len()), &limits.refusal[..]);
    assert_eq!(server.tcp.counters().refused_full, 1);
}

#[test]
fn streams_that_prove_nothing_in_time_are_reset_and_proven_ones_stay() {
    let limits = Limits {
        half_open_life: 100_000,
        ..Limits::default()
    };
    let mut server = Server::new(limits);
    server.notes.proves = true;
    let (_proven, kept) = server.open();
    server.notes.proves = false;
    let (mut idle, lazy) = server.open_soon();
    let (mut dripping, slow) = server.open_soon();
    server.until_all(|server| {
        let _ = dripping.write(b"G"); // a slowloris sends a byte now and then
        server.notes.ended.len() == 2
    });
    let mut ended = server.notes.ended.clone();
    ended.sort_by_key(|(stream, _)| *stream);
    assert_eq!(ended, [(lazy, Ended::HalfOpen), (slow, Ended::HalfOpen)]);
    assert_eq!(server.notes.open, [kept]);
    assert_eq!((server.tcp.half_open(), server.tcp.len()), (0, 1));
    assert_eq!(end_of(&mut idle), Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_flood_of_half_open_streams_takes_the_oldest_ones_places() {
    let limits = Limits {
        half_open: 50,
        ..Limits::default()
    };
    let mut server = Server::new(limits);
    let (_proven, kept) = server.open();
    server.order(move |outbox| outbox.proven(kept));
    server.until_all(|server| server.tcp.half_open() == 0);
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(server.connect());
        server.tcp.turn(&mut server.notes);
    }
    server.until_all(|server| server.tcp.counters().accepted == 301);
    assert!(
        server.tcp.half_open() <= 50 && server.tcp.len() <= 51,
        "{}",
        server.tcp.len()
    );
    assert!(server.notes.open.contains(&kept));
    assert_eq!(server.tcp.counters().half_open_ended, 250);
}

#[test]
fn a_storm_of_resets_leaves_nothing_behind() {
    let mut server = Server::new(Limits::default());
    server.notes.echo = true;
    for round in 0..200 {
        let mut client = server.connect();
        if round % 3 > 0 {
            let _ = client.write_all(&vec![1; round * 100]);
        }
        if round % 2 > 0 {
            server.tcp.turn(&mut server.notes);
        }
        drop(client);
    }
    server.until_all(|server| {
        let done: Vec<_> = server.notes.finished.drain(..).collect();
        for stream in done {
            server.order(move |outbox| outbox.close(stream));
        }
        server.tcp.counters().accepted == 200 && server.tcp.is_empty()
    });
    assert_eq!(server.tcp.half_open(), 0);
}

#[test]
fn one_that_reads_nothing_holds_up_no_other() {
    let mut server = Server::new(Limits {
        send_buffer: 8_192,
        ..Limits::default()
    });
    let (_lazy, lazy) = server.open();
    let (mut eager, quick) = server.open();
    let big = Bytes::from(vec![1; 8 << 20]);
    server.order(move |outbox| outbox.send(lazy, b"", &[big], b""));
    server.until(|notes| notes.blocked == [lazy]);
    for _ in 0..50 {
        server.order(move |outbox| outbox.send(quick, b"news", &[], b""));
        assert_eq!(server.until_read(&mut eager, 4), b"news");
    }
}

// ---- TLS --------------------------------------------------------------------------------------------------------------

fn certificate(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    (made.cert.pem(), made.key_pair.serialize_pem())
}

/// A client that trusts this certificate alone.
fn tls_client(pem: &str, name: &str) -> rustls::ClientConnection {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = name.to_owned().try_into().unwrap();
    rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap()
}

/// Runs a client of TLS in a thread of its own while the server turns.
fn beside<T: Send + 'static>(server: &mut Server, client: impl FnOnce(TcpStream) -> T + Send + 'static) -> T {
    let stream = server.connect();
    let thread = std::thread::spawn(move || client(stream));
    server.until_all(|_| thread.is_finished());
    thread.join().unwrap()
}

#[test]
fn tls_carries_large_frames_both_ways_and_ends_in_order() {
    let (pem, key) = certificate("edge.example.com");
    let mut server = Server::new(Limits::default());
    server
        .tcp
        .set_tls(Some(tls_config(pem.as_bytes(), key.as_bytes()).unwrap()));
    server.notes.echo = true;
    let question: Vec<u8> = (0..300_000u32).map(|number| number as u8).collect();
    let wanted = question.clone();
    let answer = beside(&mut server, move |mut socket| {
        let mut session = tls_client(&pem, "edge.example.com");
        let mut tls = rustls::Stream::new(&mut session, &mut socket);
        let (mut answer, mut buffer) = (Vec::new(), vec![0; 65_536]);
        for piece in question.chunks(30_000) {
            tls.write_all(piece).unwrap();
            let before = answer.len();
            while answer.len() < before + piece.len() {
                let count = tls.read(&mut buffer).unwrap();
                answer.extend_from_slice(&buffer[..count]);
            }
        }
        tls.conn.send_close_notify();
        let _ = tls.flush();
        answer
    });
    assert!(answer == wanted);
    assert_eq!(server.tcp.counters().tls_handshakes, 1);
    server.until(|notes| notes.finished.len() == 1);
}

#[test]
fn a_slow_reader_of_tls_is_owed_and_hears_everything() {
    let (pem, key) = certificate("edge.example.com");
    let mut server = Server::new(Limits {
        send_buffer: 8_192,
        ..Limits::default()
    });
    server
        .tcp
        .set_tls(Some(tls_config(pem.as_bytes(), key.as_bytes()).unwrap()));
    let socket = server.connect();
    let (ready, go) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let (mut socket, mut session) = (socket, tls_client(&pem, "edge.example.com"));
        let mut tls = rustls::Stream::new(&mut session, &mut socket);
        tls.write_all(b"go").unwrap();
        go.recv().unwrap();
        let mut read = vec![0; 3_000_000];
        tls.read_exact(&mut read).unwrap();
        read
    });
    server.until(|notes| !notes.received.is_empty());
    let stream = server.notes.open[0];
    let pieces: Vec<Bytes> = (0..30u8).map(|number| Bytes::from(vec![number; 100_000])).collect();
    let wanted: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
    server.order(move |outbox| outbox.send(stream, b"", &pieces, b""));
    server.until(|notes| notes.blocked == [stream]);
    ready.send(()).unwrap();
    server.until(|notes| notes.drained == [stream]);
    server.until_all(|_| thread.is_finished());
    assert!(thread.join().unwrap() == wanted);
}

#[test]
fn new_certificates_serve_new_streams_and_old_streams_go_on() {
    let (first, second) = (certificate("edge.example.com"), certificate("edge.example.com"));
    let mut server = Server::new(Limits::default());
    server.notes.echo = true;
    server
        .tcp
        .set_tls(Some(tls_config(first.0.as_bytes(), first.1.as_bytes()).unwrap()));
    let ask = |pem: String| {
        move |mut socket: TcpStream| {
            let mut session = tls_client(&pem, "edge.example.com");
            let mut tls = rustls::Stream::new(&mut session, &mut socket);
            let result = tls.write_all(b"ping").and_then(|()| tls.read_exact(&mut [0; 4]));
            result.is_ok().then_some((session, socket))
        }
    };
    let old = beside(&mut server, ask(first.0.clone())).expect("the first certificate is known");
    server
        .tcp
        .set_tls(Some(tls_config(second.0.as_bytes(), second.1.as_bytes()).unwrap()));
    assert!(beside(&mut server, ask(first.0)).is_none(), "another certificate");
    assert!(beside(&mut server, ask(second.0)).is_some());
    let (mut session, mut socket) = old;
    let thread = std::thread::spawn(move || {
        let mut tls = rustls::Stream::new(&mut session, &mut socket);
        tls.write_all(b"ping")
            .and_then(|()| tls.read_exact(&mut [0; 4]))
            .is_ok()
    });
    server.until_all(|_| thread.is_finished());
    assert!(thread.join().unwrap());
}

#[test]
fn bytes_that_are_no_tls_end_the_stream_and_are_not_given_to_the_machine() {
    let (pem, key) = certificate("edge.example.com");
    let mut server = Server::new(Limits::default());
    server
        .tcp
        .set_tls(Some(tls_config(pem.as_bytes(), key.as_bytes()).unwrap()));
    let (mut client, stream) = server.open();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    server.until(|notes| notes.ended == [(stream, Ended::Tls)]);
    assert!(server.notes.received.is_empty());
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let (pem, key) = certificate("edge.example.com");
    let (other, _) = certificate("edge.example.com");
    assert!(matches!(
        tls_config(b"", key.as_bytes()),
        Err(TlsError::Certificates(_))
    ));
    assert!(matches!(
        tls_config(key.as_bytes(), key.as_bytes()),
        Err(TlsError::Certificates(_))
    ));
    assert!(matches!(
        tls_config(pem.as_bytes(), pem.as_bytes()),
        Err(TlsError::Key(_))
    ));
    assert!(matches!(
        tls_config(other.as_bytes(), key.as_bytes()),
        Err(TlsError::Pair(_))
    ));
}
