//! Presence and unicast in a gateway: the guest that turns users' sessions into events, and delivers messages to
//! their devices.
//!
//! Owns [`Station`], which orders two machines over the gateway's sessions and links: the access point (`access`) and
//! the deliveries (`unicast`). Knows no room and no credential.

use crate::access::{AccessPoint, AccessSettings, Closing, To};
use crate::device::Device;
use crate::event::Reason;
use crate::kinds;
use crate::limits::{BARRED_FOR, DEVICE_BYTES_MAX};
use crate::peers::Peers;
use crate::quick::QuickMap;
use crate::recipients::Claims;
use crate::records::{Receipt, Record};
use crate::role;
use crate::unicast::{Deliveries, DeliverySettings, Push};
use crate::wire::{Message, Origin};
use muster_transport::{Code, Encode, End, Frame, FrameKinds, Guest, Host, Identity, Micros};
use std::collections::VecDeque;

/// Interval before a session whose log was nearly full is offered its messages again.
const AGAIN: Micros = 20_000;

/// The time of day in milliseconds since 1970, for display: nothing is ordered by it.
pub trait Wall: Send + Sync {
    fn now_ms(&self) -> u64;
}

/// The settings of a station.
#[derive(Clone, Debug)]
pub struct StationSettings {
    pub access: AccessSettings,
    pub deliveries: DeliverySettings,
    /// The user of the shared token, who has no presence.
    pub nobody: u64,
    /// The device of a credential that names none.
    pub unnamed: Unnamed,
}

/// The device of a session whose credential names none.
#[derive(Clone, Copy, Debug)]
pub enum Unnamed {
    /// The same for all: a newer session of the user ends an older one.
    One(Device),
    /// One of its own, of this kind: the pages of a browser in several tabs share a token.
    Each(Device),
}

impl Unnamed {
    fn of(self, origin: Origin, session: u64) -> Device {
        let kind = match self {
            Unnamed::One(device) => return device,
            Unnamed::Each(kind) => kind,
        };
        let mut name = kind.kind().to_vec();
        name.truncate(DEVICE_BYTES_MAX - 13);
        let life = u64::from(origin.ap) << 32 | u64::from(origin.epoch);
        let number = scrambled(scrambled(life) ^ session) & 0xffff_ffff_ffff;
        name.extend_from_slice(format!(":{number:012x}").as_bytes());
        Device::new(&name).unwrap_or(kind)
    }
}

/// A number for a number, without an order (splitmix64).
fn scrambled(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A user's session.
#[derive(Clone, Copy)]
struct UserSession {
    user: u64,
    device: Device,
}

muster_transport::counters! {
    /// A station's events, besides those of its machines.
    struct StationCounters {
        /// Sessions of users that came.
        presence_sessions,
        /// Sessions ended: replaced by a newer one.
        presence_sessions_replaced,
        /// Sessions ended by an operator.
        presence_sessions_ended,
        /// Sessions refused: another device of the user replaced this one a moment ago.
        presence_sessions_barred,
        /// Sessions ended: their user has too many devices here, or the device name is invalid.
        presence_sessions_refused,
        /// Packets and beats dropped: no online proxy is linked.
        presence_dropped_no_proxy,
    }
}

/// The guest of a gateway.
pub struct Station {
    access: AccessPoint,
    deliveries: Deliveries,
    nobody: u64,
    unnamed: Unnamed,
    wall: Box<dyn Wall>,
    /// By the gateway's id of the session.
    sessions: QuickMap<u64, UserSession>,
    proxies: Peers,
    /// Sessions to end, why, and how long their device is refused.
    endings: Vec<(u64, Code, Micros)>,
    /// Messages for which their session had no space.
    pushes: VecDeque<Push>,
    again_at: Option<Micros>,
    counters: StationCounters,
}

impl Station {
    pub fn new(me: Identity, settings: StationSettings, now: Micros, wall: Box<dyn Wall>) -> Self {
        let origin = Origin {
            ap: me.node,
            epoch: me.epoch,
        };
        Station {
            access: AccessPoint::new(origin, 0, settings.access, now),
            deliveries: Deliveries::new(me.node, settings.deliveries),
            nobody: settings.nobody,
            unnamed: settings.unnamed,
            wall,
            sessions: QuickMap::default(),
            proxies: Peers::new(role::ONLINE_PROXY, me.node),
            endings: Vec::new(),
            pushes: VecDeque::new(),
            again_at: None,
            counters: StationCounters::default(),
        }
    }

    fn close(&mut self, closings: &[Closing]) {
        self.counters.presence_sessions_replaced += closings.len() as u64;
        self.endings.extend(
            closings
                .iter()
                .map(|closing| (closing.session, Code::Replaced, BARRED_FOR)),
        );
    }

    /// Offers a message to its device. `false`: the session has no space for it now.
    fn push(&mut self, push: &Push, host: &mut dyn Host) -> bool {
        let mut sessions = self.access.sessions(push.user);
        let Some((_, session)) = sessions.find(|(device, _)| *device == push.device) else {
            return true; // the device is gone, which becomes the outcome
        };
        let record = Record::Push {
            id: push.id,
            body: &push.body,
        };
        record.encode(|record| host.offer(session, record))
    }

    fn write_to_devices(&mut self, now: Micros, host: &mut dyn Host) {
        let due = self.again_at.is_none_or(|at| at <= now);
        let mut waiting = VecDeque::new();
        if due {
            for push in std::mem::take(&mut self.pushes) {
                if now < push.expires && !self.push(&push, host) {
                    waiting.push_back(push);
                }
            }
            waiting.append(&mut self.pushes);
            self.pushes = waiting;
        }
        for push in self.deliveries.take_pushes() {
            // Messages that already wait for the same device come first.
            let behind = |other: &Push| (other.user, other.device) == (push.user, push.device);
            if self.pushes.iter().any(behind) || !self.push(&push, host) {
                self.pushes.push_back(push);
            }
        }
        self.again_at = (!self.pushes.is_empty()).then_some(now + AGAIN);
    }
}

impl Guest for Station {
    fn kinds(&self) -> FrameKinds {
        kinds::ALL
    }

    fn opened(&mut self, now: Micros, session: u64, user: u64, said: &[u8]) {
        if user == self.nobody {
            return;
        }
        let claims = Claims::read(said);
        let takes_over = claims.as_ref().is_some_and(|claims| claims.takes_over);
        let device = claims.and_then(|claims| match claims.device.as_slice() {
            [] => Some(self.unnamed.of(self.access.origin(), session)),
            name => Device::new(name),
        });
        if let Some(wait) = device.and_then(|device| self.access.barred(now, user, device, takes_over)) {
            self.counters.presence_sessions_barred += 1;
            self.endings.push((session, Code::Replaced, wait));
            return;
        }
        let came = device.ok_or(Code::BadDevice).and_then(|device| {
            let closings = self.access.online(now, self.wall.now_ms(), user, device, session);
            Ok((device, closings.map_err(|_| Code::TooManyDevices)?))
        });
        let (device, closings) = match came {
            Ok(came) => came,
            Err(code) => {
                self.counters.presence_sessions_refused += 1;
                self.endings.push((session, code, 0));
                return;
            }
        };
        self.counters.presence_sessions += 1;
        self.sessions.insert(session, UserSession { user, device });
        self.close(&closings);
    }

    /// A session keeps the device of its first credential.
    fn renewed(&mut self, _now: Micros, _session: u64, _said: &[u8]) {}

    fn ended(&mut self, now: Micros, session: u64, end: End) {
        let Some(UserSession { user, device }) = self.sessions.remove(&session) else {
            return;
        };
        let reason = match end {
            End::Closed => Reason::Closed,
            End::Lost => Reason::Lost,
            End::Refused(Code::Draining) => Reason::Drained,
            End::Refused(Code::Replaced) => Reason::Replaced,
            End::Refused(_) => Reason::Kicked,
        };
        self.access
            .offline(now, self.wall.now_ms(), user, device, session, reason);
        if !self.access.sessions(user).any(|(other, _)| other == device) {
            self.deliveries.offline(now, user, device);
        }
    }

    fn record(&mut self, now: Micros, session: u64, record: &[u8]) -> bool {
        let Some(Record::Taken { id, receipt }) = Record::read(record) else {
            return false;
        };
        if let Some(UserSession { user, device }) = self.sessions.get(&session).copied() {
            match receipt {
                Receipt::Full => {}
                Receipt::Taken => self.deliveries.delivered(now, id, user, device),
                Receipt::Unread => self.deliveries.unread(now, id, user, device),
            }
        }
        true
    }

    fn link(&mut self, _now: Micros, peer: Identity, up: bool) {
        self.proxies.link(peer, up);
        if !up && peer.role == role::ONLINE_WRITER {
            self.access.writer(peer.node, None);
        }
    }

    fn frame(&mut self, now: Micros, peer: Identity, frame: &Frame<'_>) -> bool {
        match (peer.role, Message::read(frame.kind, frame.body)) {
            (role, Some(Message::Here(here))) => {
                self.proxies.here(peer, here.site);
                if let Some(shard) = here.shard.filter(|_| role == role::ONLINE_WRITER) {
                    self.access.writer(peer.node, Some((here.site, shard)));
                }
                true
            }
            (role::ONLINE_WRITER, Some(Message::Ask(ask))) => {
                self.access.ask(peer.node, &ask);
                true
            }
            (role::ONLINE_WRITER, Some(Message::FullAsk(ask))) => {
                self.access.full_ask(now, peer.node, &ask);
                true
            }
            (role::ONLINE_WRITER, Some(Message::Supersede(one))) => {
                if let Some(closing) = self.access.superseded(now, peer.node, &one) {
                    self.close(&[closing]);
                }
                true
            }
            (role::UNICAST, Some(Message::Unicast(unicast))) => {
                let devices = self.access.sessions(unicast.user).map(|(device, _)| device);
                self.deliveries.offer(now, peer.node, &unicast, devices);
                true
            }
            (role::UNICAST, Some(Message::End(asked))) => {
                let devices = self.access.sessions(asked.user).map(|(device, _)| device);
                for device in self.deliveries.end_sessions(now, peer.node, &asked, devices) {
                    let sessions = self.access.sessions(asked.user).filter(|(other, _)| *other == device);
                    let before = self.endings.len();
                    self.endings
                        .extend(sessions.map(|(_, session)| (session, Code::Ended, 0)));
                    self.counters.presence_sessions_ended += (self.endings.len() - before) as u64;
                }
                true
            }
            _ => false,
        }
    }

    fn act(&mut self, now: Micros, host: &mut dyn Host) {
        for (session, code, wait) in std::mem::take(&mut self.endings) {
            host.end_for(session, code, (wait / 1_000) as u32);
        }
        self.access.expire(now);
        let [first, second] = self.proxies.two(self.access.origin().ap);
        for (to, frame) in self.access.take_out() {
            match to {
                To::Writer(writer) => {
                    host.frame(writer, &frame);
                }
                To::Proxies => {
                    let Some(first) = first else {
                        self.counters.presence_dropped_no_proxy += 1;
                        continue;
                    };
                    if let Some(second) = second {
                        host.frame(second, &frame);
                    }
                    host.frame(first, &frame);
                }
            }
        }
        self.deliveries.expire(now);
        self.write_to_devices(now, host);
        for (service, frame) in self.deliveries.take_out() {
            host.frame(service, &frame);
        }
    }

    fn deadline(&self) -> Option<Micros> {
        let due = [self.access.deadline(), self.deliveries.deadline(), self.again_at];
        due.into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.sessions.is_empty() && !self.access.is_open()
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(&mut *each);
        let access = self.access.counters();
        each("presence_events", "Events in packets", access.events);
        let help = "Events replaced by a later one of the same device in the same window";
        each("presence_events_merged", help, access.merged);
        each("presence_packets", "Packets of events", access.packets);
        each("presence_asks", "Requests of writers for versions", access.asks);
        let help = "Requests of writers for versions that are no longer kept";
        each("presence_asks_too_old", help, access.asks_too_old);
        each("presence_fulls", "Full states begun for writers", access.fulls);
        let help = "Full states put off: too many were in progress";
        each("presence_fulls_refused", help, access.fulls_refused);
        let unicast = self.deliveries.counters();
        each("unicast_accepted", "Messages to users taken", unicast.accepted);
        let help = "Messages to users received again";
        each("unicast_duplicates", help, unicast.duplicates);
        each(
            "unicast_not_here",
            "Messages to users without a device here",
            unicast.not_here,
        );
        each(
            "unicast_delivered",
            "Devices that confirmed their message",
            unicast.delivered,
        );
        let help = "Devices that left before they confirmed their message";
        each("unicast_offline", help, unicast.offline);
        let help = "Devices whose program reads no messages to its user";
        each("unicast_unread", help, unicast.unread);
        let help = "Devices whose message expired before they had it";
        each("unicast_expired", help, unicast.expired);
        let help = "Messages to users that waited for their predecessor";
        each("unicast_reordered", help, unicast.reordered);
        let help = "Messages to users delivered without their predecessor";
        each("unicast_out_of_order", help, unicast.out_of_order);
        let help = "Messages to users dropped: of an earlier life of their sender";
        each("unicast_dropped_epoch", help, unicast.old_epoch);
        let help = "Messages to users dropped: too old compared with their sender's newest";
        each("unicast_dropped_old", help, unicast.too_old);
        let help = "Messages to users dropped: too many are known";
        each("unicast_dropped_full", help, unicast.full);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        each(
            "presence_online",
            "Devices online here",
            self.access.devices_len() as f64,
        );
        each(
            "presence_barred",
            "Devices that may not come back yet, as another one of their user replaced them",
            self.access.bars_len() as f64,
        );
        each(
            "presence_version",
            "Version of the last packet",
            self.access.version() as f64,
        );
        let help = "Unconfirmed messages, counted per device";
        each("unicast_pending", help, self.deliveries.pending_len() as f64);
    }
}
