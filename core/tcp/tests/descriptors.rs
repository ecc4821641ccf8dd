//! A process without descriptors: in a file of its own, since the limit holds for all of its threads.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use muster_tcp::{Ended, Limits, Outbox, StreamId, Streams, Tcp};
use muster_transport::{Addr, Micros};

#[derive(Default)]
struct Count(usize);

impl Streams for Count {
    fn opened(&mut self, _: Micros, _: StreamId, _: Addr) {
        self.0 += 1;
    }
    fn received(&mut self, _: Micros, _: StreamId, _: &mut [u8]) {}
    fn finished(&mut self, _: Micros, _: StreamId) {}
    fn blocked(&mut self, _: Micros, _: StreamId) {}
    fn drained(&mut self, _: Micros, _: StreamId) {}
    fn ended(&mut self, _: Micros, _: StreamId, _: Ended) {}
    fn expire(&mut self, _: Micros) {}
    fn transmit(&mut self, _: Micros, _: &mut Outbox) -> bool {
        false
    }
    fn deadline(&self) -> Option<Micros> {
        None
    }
}

#[test]
fn without_descriptors_clients_are_refused_and_later_ones_are_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let refusal = Bytes::from_static(b"HTTP/1.1 503 Service Unavailable\r\n\r\n");
    let mut tcp = Tcp::new(Limits {
        refusal: refusal.clone(),
        ..Limits::default()
    })
    .unwrap();
    tcp.listen(listener).unwrap();
    let mut clients: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Use up all descriptors. Opening files is the portable way to reach the limit of this process.
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure outlives both calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = 64;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    let mut held = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    let mut machine = Count::default();
    let start = Instant::now();
    while tcp.counters().refused_descriptors < 4 {
        assert!(start.elapsed() < Duration::from_secs(60));
        tcp.wait(Duration::from_millis(5));
        tcp.turn(&mut machine);
    }
    assert_eq!(machine.0, 0);
    let mut text = String::new();
    let _ = clients[0].read_to_string(&mut text);
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    held.clear();
    let _later = TcpStream::connect(address).unwrap();
    while machine.0 == 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
        tcp.wait(Duration::from_millis(5));
        tcp.turn(&mut machine);
    }
}
