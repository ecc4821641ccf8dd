//! Measures the cost of a message to a user at each machine on its path: `cargo run --release -p muster-presence
//! --example unicast_rate [MESSAGES]`.
//!
//! Owns a proxy's guest, a service and a gateway's guest, and a device that takes all. Messages come in batches, as
//! in a turn of a busy node. Sealing, session logs and sockets are not included: they belong to the transport.

use muster_presence::{
    kinds, role, AccessSettings, Claims, Courier, DeliverySettings, Device, Here, Letters, Message, Recipients,
    Sending, Station, StationSettings, Task, Told, Unnamed, Wall, Whereabouts, FRAME_BYTES_MAX,
};
use muster_transport::{Code, Frame, Frames, Guest, Host, Identity, Mail, Micros, Role, Writer};
use std::time::{Duration, Instant};

const PROXY: Identity = life(1, Role::new(2));
const SERVICE: Identity = life(2, role::UNICAST);
const GATEWAY: Identity = life(3, Role::new(5));
const USER: u64 = 7;
/// Messages of one turn.
const BATCH: u64 = 16;
const TURN: Micros = 1_000;
const EXPIRES: Micros = 5_000_000;
const DATA: [u8; 100] = [0; 100];

const fn life(node: u32, role: Role) -> Identity {
    Identity { node, role, epoch: 1 }
}

struct Still;

impl Wall for Still {
    fn now_ms(&self) -> u64 {
        0
    }
}

/// The frames and records that a guest sends.
#[derive(Default)]
struct Collected {
    mail: Mail,
    records: Vec<Vec<u8>>,
}

impl Host for Collected {
    fn frame(&mut self, node: u32, frame: &[u8]) -> bool {
        self.mail.send(node, frame)
    }

    fn offer(&mut self, _session: u64, record: &[u8]) -> bool {
        self.records.push(record.to_vec());
        true
    }

    fn end(&mut self, _session: u64, _code: Code) {}
}

/// One node's time.
#[derive(Default)]
struct Spent(Duration);

impl Spent {
    fn on<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let given = work();
        self.0 += began.elapsed();
        given
    }
}

/// The frames in a node's datagrams.
fn datagrams(mail: &mut Mail, node: u32) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    mail.begun().for_each(drop);
    while mail.waits(node) {
        let mut bytes = [0; FRAME_BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        mail.fill(node, &mut writer, kinds::ALL);
        all.push(writer.written().to_vec());
    }
    all
}

fn each(datagrams: &[Vec<u8>], mut take: impl FnMut(&Frame<'_>)) {
    for datagram in datagrams {
        Frames::new(datagram, kinds::ALL)
            .flatten()
            .for_each(|frame| take(&frame));
    }
}

/// The service takes the datagrams of a peer.
fn take(service: &mut Courier, now: Micros, from: Identity, out: &[Vec<u8>], mail: &mut Mail) {
    each(out, |frame| {
        if let Some(message) = Message::read(frame.kind, frame.body) {
            service.message(now, from, message, mail);
        }
    });
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let messages: u64 = std::env::args().nth(1).map_or(Ok(400_000), |count| count.parse())?;
    let phone = Device::new(b"phone").ok_or("a name")?;
    let settings = StationSettings {
        access: AccessSettings::default(),
        deliveries: DeliverySettings::default(),
        nobody: 1,
        unnamed: Unnamed::One(phone),
    };
    let mut proxy = Sending::new(PROXY, 1);
    let mut service = Courier::new(1);
    let mut gateway = Station::new(GATEWAY, settings, 0, Box::new(Still));
    let (mut at_proxy, mut at_gateway, mut mail) = (Collected::default(), Collected::default(), Mail::default());
    let (mut sender, mut device) = (Letters::default(), Letters::default());
    let claims = |recipients: &[&str]| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let recipients = Recipients::new(recipients.iter().copied()).map_err(|_| "patterns")?;
        let device = b"phone".to_vec();
        Ok(Claims {
            device,
            takes_over: false,
            recipients,
        }
        .to_bytes())
    };
    proxy.opened(0, 1, 9, &claims(&["*"])?);
    gateway.opened(0, 1, USER, &claims(&[])?);
    at_proxy.mail.open(SERVICE.node);
    at_gateway.mail.open(SERVICE.node);
    proxy.link(0, SERVICE, true);
    let here = Message::Here(Here { site: 1, shard: None }).to_frame();
    each(&[here], |frame| {
        proxy.frame(0, SERVICE, frame);
    });
    gateway.link(0, SERVICE, true);
    service.set_readers(true);
    for peer in [PROXY, GATEWAY] {
        mail.open(peer.node);
        service.link(0, peer, true, &mut mail);
    }
    let [mut by_proxy, mut by_service, mut by_gateway] = [(); 3].map(|()| Spent::default());
    let (mut now, mut done, mut users) = (0, 0, Vec::new());
    for turn in 0..messages / BATCH {
        now += TURN;
        for at in 0..BATCH {
            let number = (turn * BATCH + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            sender
                .send(number, USER, None, now + EXPIRES, &DATA)
                .map_err(|_| "place")?;
        }
        let mut records = Vec::new();
        sender.tell_proxy(now, |record| {
            records.push(record.to_vec());
            true
        });
        let out = by_proxy.on(|| {
            for record in &records {
                proxy.record(now, 1, record);
            }
            proxy.act(now, &mut at_proxy);
            datagrams(&mut at_proxy.mail, SERVICE.node)
        });
        let out = by_service.on(|| {
            take(&mut service, now, PROXY, &out, &mut mail);
            service.events(&mut users);
            for user in users.drain(..) {
                let place = Whereabouts {
                    gateway: GATEWAY.node,
                    device: phone,
                    is_online: true,
                };
                service.routed(now, user, Some(vec![place]), &mut mail);
            }
            service.expire(now, &mut mail);
            datagrams(&mut mail, GATEWAY.node)
        });
        by_gateway.on(|| {
            each(&out, |frame| {
                gateway.frame(now, SERVICE, frame);
            });
            gateway.act(now, &mut at_gateway);
        });
        for record in at_gateway.records.drain(..) {
            device.take(&record);
        }
        while device.read().is_some() {}
        device.events();
        let mut taken = Vec::new();
        device.tell_gateway(|record| {
            taken.push(record.to_vec());
            true
        });
        let out = by_gateway.on(|| {
            for record in &taken {
                gateway.record(now, 1, record);
            }
            gateway.act(now, &mut at_gateway);
            datagrams(&mut at_gateway.mail, SERVICE.node)
        });
        let out = by_service.on(|| {
            take(&mut service, now, GATEWAY, &out, &mut mail);
            service.expire(now, &mut mail);
            datagrams(&mut mail, PROXY.node)
        });
        by_proxy.on(|| {
            each(&out, |frame| {
                proxy.frame(now, SERVICE, frame);
            });
            proxy.act(now, &mut at_proxy);
        });
        for record in at_proxy.records.drain(..) {
            sender.take(&record);
        }
        let finished = sender.events();
        done += finished.iter().filter(|told| matches!(told, Told::Done { .. })).count() as u64;
    }
    let ns = |spent: Spent| spent.0.as_nanos() as f64 / done as f64;
    println!("{done} of {messages} messages answered, {BATCH} in a turn");
    println!("proxy    {:7.0} ns a message", ns(by_proxy));
    println!("service  {:7.0} ns", ns(by_service));
    println!("gateway  {:7.0} ns", ns(by_gateway));
    Ok(())
}
