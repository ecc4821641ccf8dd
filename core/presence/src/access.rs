//! The access point: the part of a gateway that reports which devices are online there.
//!
//! Owns: [`AccessPoint`], which turns sessions that come and go into packets, answers writers that missed some, and
//! sends full states. Knows no socket and no credential, and a writer only by its number.

use crate::bars::Bars;
use crate::device::Device;
use crate::event::{Entry, Event, Reason, State};
use crate::fulls::Fulls;
use crate::limits::{ANSWER_BYTES_MAX, BEAT_EVERY, DEVICES_MAX, FULL_WAIT_MS, PACKET_EVENTS_BYTES_MAX, WINDOW};
use crate::policy::Policies;
use crate::ring::Ring;
use crate::split;
use crate::version::after;
use crate::wire::{Ask, Beat, Events, FullAsk, Message, Origin, Report, Shard, Supersede, TooOld, Wait};
use muster_transport::{Micros, Writer};
use std::collections::BTreeMap;

/// The settings of an access point.
#[derive(Clone, Debug)]
pub struct AccessSettings {
    /// How long events wait for others of the same packet.
    pub window: Micros,
    /// Bytes of packets kept for writers: at 1 KB and 20 a second, 4 MB are 3 minutes.
    pub ring_bytes: usize,
    /// Rate of full states: at 34 B per device, 100,000 devices in half a second.
    pub full_bytes_per_second: u64,
    pub policies: Policies,
}

impl Default for AccessSettings {
    fn default() -> Self {
        AccessSettings {
            window: 50_000,
            ring_bytes: 4 << 20,
            full_bytes_per_second: 8 << 20,
            policies: Policies::default(),
        }
    }
}

/// The destination of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// Two online proxies, of different sites if possible.
    Proxies,
    /// The writer with this number, which asked.
    Writer(u32),
}

/// A session that must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closing {
    pub session: u64,
    pub reason: Reason,
}

/// A user has [`DEVICES_MAX`] devices at this gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyDevices;

/// A device that is online here.
#[derive(Clone, Copy, Debug)]
struct Online {
    session: u64,
    since_ms: u64,
    /// The event that reported it; while a newer session's event waits in the window, that of the earlier session.
    version: u64,
    index: u16,
}

/// Counters of an access point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccessCounters {
    /// Events in packets.
    pub events: u64,
    /// Events replaced by a later one of the same device in the same window.
    pub merged: u64,
    pub packets: u64,
    pub asks: u64,
    pub asks_too_old: u64,
    pub fulls: u64,
    pub fulls_refused: u64,
    pub devices_refused: u64,
}

/// The devices of one gateway in one of its lives.
///
/// The gateway calls [`AccessPoint::online`] and [`AccessPoint::offline`] for its sessions, passes on what writers
/// ask, and calls [`AccessPoint::expire`] when [`AccessPoint::deadline`] is due. [`AccessPoint::take_out`] returns
/// the frames to send.
pub struct AccessPoint {
    me: Origin,
    settings: AccessSettings,
    online: BTreeMap<(u64, Device), Online>,
    /// Linked writers with their site and shard: the first of them that has a user decides which of its sessions end.
    writers: BTreeMap<u32, (u16, Shard)>,
    /// The last state of each device that changed within the window, with its wall-clock time.
    open: BTreeMap<(u64, Device), (State, u64)>,
    window_ends: Option<Micros>,
    ring: Ring,
    fulls: Fulls,
    bars: Bars,
    beat_at: Micros,
    out: Vec<(To, Vec<u8>)>,
    counters: AccessCounters,
}

impl AccessPoint {
    /// An access point whose first packet has the version after `version`; it announces itself at once.
    pub fn new(me: Origin, version: u64, settings: AccessSettings, now: Micros) -> Self {
        AccessPoint {
            me,
            online: BTreeMap::new(),
            writers: BTreeMap::new(),
            open: BTreeMap::new(),
            window_ends: None,
            ring: Ring::new(version, settings.ring_bytes),
            fulls: Fulls::new(now, settings.full_bytes_per_second),
            bars: Bars::default(),
            beat_at: now,
            out: Vec::new(),
            counters: AccessCounters::default(),
            settings,
        }
    }

    /// Returns how long a recently replaced device must wait before it may open a session; each try restarts that time.
    /// `None`: it may open one now. `takes_over`: its token lifts the wait.
    pub fn barred(&mut self, now: Micros, user: u64, device: Device, takes_over: bool) -> Option<Micros> {
        if takes_over {
            self.bars.remove(user, device);
        }
        self.bars.tried(now, user, device)
    }

    /// A session of a user's device is open. Returns the older sessions that the user's policy ends.
    pub fn online(
        &mut self,
        now: Micros,
        wall_ms: u64,
        user: u64,
        device: Device,
        session: u64,
    ) -> Result<Vec<Closing>, TooManyDevices> {
        let policy = self.settings.policies.of(user);
        let devices = self
            .online
            .range((user, Device::LOWEST)..)
            .take_while(|(key, _)| key.0 == user);
        let ended: Vec<(Device, u64)> = devices
            .clone()
            .filter(|((_, older), _)| policy.ends(older, &device))
            .map(|((_, older), online)| (*older, online.session))
            .collect();
        if devices.count() - ended.len() >= DEVICES_MAX {
            self.counters.devices_refused += 1;
            return Err(TooManyDevices);
        }
        let reason = Reason::Replaced;
        let mut closings = Vec::new();
        for (older, of) in ended {
            if older != device {
                self.bars.begin(now, user, older);
                self.online.remove(&(user, older));
                self.note(now, wall_ms, user, older, State::Offline(reason));
            }
            if of != session {
                closings.push(Closing { session: of, reason });
            }
        }
        self.bars.remove(user, device);
        let online = Online {
            session,
            since_ms: wall_ms,
            version: self.ring.newest(),
            index: 0,
        };
        self.online.insert((user, device), online);
        self.note(now, wall_ms, user, device, State::Online);
        Ok(closings)
    }

    /// A session is over. If its device has a newer session, nothing changes.
    pub fn offline(&mut self, now: Micros, wall_ms: u64, user: u64, device: Device, session: u64, reason: Reason) {
        let key = (user, device);
        if self.online.get(&key).is_some_and(|online| online.session == session) {
            self.online.remove(&key);
            self.note(now, wall_ms, user, device, State::Offline(reason));
        }
    }

    /// All sessions are being sent away. Remaining events leave at once.
    pub fn drain(&mut self, now: Micros, wall_ms: u64) {
        let all: Vec<(u64, Device)> = std::mem::take(&mut self.online).into_keys().collect();
        for (user, device) in all {
            self.note(now, wall_ms, user, device, State::Offline(Reason::Drained));
        }
        self.close_window(now);
    }

    /// A linked writer announces its site and shard; `None`: its link is down.
    pub fn writer(&mut self, node: u32, place: Option<(u16, Shard)>) {
        match place {
            Some(place) => self.writers.insert(node, place),
            None => self.writers.remove(&node),
        };
    }

    /// The session that a writer wants closed, if it is still the one that this event reported. Writers of two sites
    /// may have seen two sessions in different orders, and each would end the other's: the linked writer of the first
    /// site decides. A bar closes no session.
    pub fn superseded(&mut self, now: Micros, writer: u32, one: &Supersede) -> Option<Closing> {
        if one.is_bar() {
            if one.origin == self.me && self.decides(writer, one.user) {
                self.bars.begin(now, one.user, one.device);
            }
            return None;
        }
        let online = self.online.get(&(one.user, one.device))?;
        let same = (online.version, online.index) == (one.version, one.index);
        let waits = self.open.contains_key(&(one.user, one.device));
        let closing = Closing {
            session: online.session,
            reason: Reason::Replaced,
        };
        (self.decides(writer, one.user) && one.origin == self.me && same && !waits).then_some(closing)
    }

    /// Devices that may not come back yet.
    pub fn bars_len(&self) -> usize {
        self.bars.len()
    }

    fn decides(&self, writer: u32, user: u64) -> bool {
        let own = self.writers.iter().filter(|(_, (_, shard))| shard.owns(user));
        let first = own.map(|(node, (site, shard))| (*site, *shard, *node)).min();
        first.is_some_and(|(_, _, node)| node == writer)
    }

    /// The devices of a user with their sessions, for unicast.
    pub fn sessions(&self, user: u64) -> impl Iterator<Item = (Device, u64)> + '_ {
        let devices = self
            .online
            .range((user, Device::LOWEST)..)
            .take_while(move |(key, _)| key.0 == user);
        devices.map(|((_, device), online)| (*device, online.session))
    }

    /// A writer asks for versions.
    pub fn ask(&mut self, writer: u32, ask: &Ask) {
        self.counters.asks += 1;
        let to = To::Writer(writer);
        let (oldest, newest) = (self.ring.oldest(), self.ring.newest());
        if ask.origin.ap != self.me.ap {
            return;
        }
        if ask.origin.epoch != self.me.epoch || ask.ranges.iter().any(|(first, _)| after(oldest, *first)) {
            self.counters.asks_too_old += 1;
            let old = TooOld {
                transaction: ask.transaction,
                origin: self.me,
                oldest,
                newest,
            };
            self.out.push((to, Message::TooOld(old).to_frame()));
            return;
        }
        let (mut bytes, mut versions) = (0, 0);
        let mut run: Option<(u64, u64)> = None;
        let mut frames = Vec::new();
        // The map's version 0 stands for no map: the packet was split for the writer's own shard.
        let (map, shard, me) = (0, ask.shard, self.me);
        let end = |run: &mut Option<(u64, u64)>, frames: &mut Vec<Vec<u8>>| {
            if let Some((first, last)) = run.take() {
                frames.push(split::empty(map, shard, me, first, last));
            }
        };
        'ranges: for (first, last) in &ask.ranges {
            let mut version = *first;
            // A version that the ring does not have ends the range: it is newer than the newest.
            while let Some(events) = self.ring.get(version).filter(|_| !after(version, *last)) {
                match split::share(map, shard, me, version, &events) {
                    Some(share) => {
                        end(&mut run, &mut frames);
                        bytes += share.len();
                        frames.push(share);
                    }
                    None => match &mut run {
                        Some((_, until)) if until.wrapping_add(1) == version => *until = version,
                        _ => {
                            end(&mut run, &mut frames);
                            run = Some((version, version));
                        }
                    },
                }
                versions += 1;
                if bytes >= ANSWER_BYTES_MAX || versions >= WINDOW {
                    break 'ranges;
                }
                version = version.wrapping_add(1);
            }
        }
        end(&mut run, &mut frames);
        self.out.extend(frames.into_iter().map(|frame| (to, frame)));
    }

    /// A writer asks for the full state, or for chunks of one in progress, or confirms that it has all of them.
    pub fn full_ask(&mut self, now: Micros, writer: u32, ask: &FullAsk) {
        let transaction = ask.transaction;
        if ask.ap != self.me.ap {
            return;
        }
        if ask.has_all() {
            self.fulls.taken(writer, transaction);
            return;
        }
        if self.fulls.again(now, writer, transaction, &ask.chunks) {
            return;
        }
        if !self.fulls.has_room(now, writer) {
            self.counters.fulls_refused += 1;
            let wait = Wait {
                transaction,
                origin: self.me,
                wait_ms: FULL_WAIT_MS,
            };
            self.out.push((To::Writer(writer), Message::Wait(wait).to_frame()));
            return;
        }
        self.counters.fulls += 1;
        // The state is that of the last packet, so nothing may wait in the window.
        self.close_window(now);
        let entry = |(key, online): (&(u64, Device), &Online)| Entry {
            user: key.0,
            device: key.1,
            version: online.version,
            index: online.index,
            since_ms: online.since_ms,
        };
        let own = self.online.iter().filter(|(key, _)| ask.shard.owns(key.0));
        self.fulls
            .begin(now, writer, transaction, self.ring.newest(), own.map(entry));
    }

    /// Runs the timers due by `now`.
    pub fn expire(&mut self, now: Micros) {
        if self.window_ends.is_some_and(|at| at <= now) {
            self.close_window(now);
        }
        if self.beat_at <= now {
            self.beat_at = now + BEAT_EVERY;
            let beat = Beat {
                origin: self.me,
                newest: self.ring.newest(),
            };
            self.out.push((To::Proxies, Message::Beat(beat).to_frame()));
        }
        let (origin, out) = (self.me, &mut self.out);
        self.fulls
            .send(now, origin, |writer, bytes| out.push((To::Writer(writer), bytes)));
    }

    /// When [`AccessPoint::expire`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        let others = [self.window_ends, self.fulls.deadline()];
        others.into_iter().flatten().chain([self.beat_at]).min()
    }

    /// Takes the frames to send.
    pub fn take_out(&mut self) -> Vec<(To, Vec<u8>)> {
        std::mem::take(&mut self.out)
    }

    /// The version of the last packet.
    pub fn version(&self) -> u64 {
        self.ring.newest()
    }

    pub fn origin(&self) -> Origin {
        self.me
    }

    /// Number of devices online here.
    pub fn devices_len(&self) -> usize {
        self.online.len()
    }

    /// Whether events wait for others of the same packet.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Devices that are online here, by user and device.
    pub fn devices(&self) -> impl Iterator<Item = (u64, Device)> + '_ {
        self.online.keys().copied()
    }

    pub fn counters(&self) -> AccessCounters {
        self.counters
    }

    fn note(&mut self, now: Micros, wall_ms: u64, user: u64, device: Device, state: State) {
        if self.open.insert((user, device), (state, wall_ms)).is_some() {
            self.counters.merged += 1;
        }
        self.window_ends.get_or_insert(now + self.settings.window);
    }

    /// Makes packets of the changes: one, or several if they don't fit into one frame.
    fn close_window(&mut self, now: Micros) {
        self.window_ends = None;
        let mut bytes = [0; PACKET_EVENTS_BYTES_MAX];
        let mut writer = Writer::new(&mut bytes);
        let mut index = 0;
        let mut version = self.ring.newest().wrapping_add(1);
        for ((user, device), (state, at_ms)) in std::mem::take(&mut self.open) {
            let mut event = Event {
                index,
                user,
                device,
                state,
                at_ms,
            };
            if event.len() > writer.room() {
                self.packet(now, writer.written());
                writer.truncate(0);
                version = version.wrapping_add(1);
                (index, event.index) = (0, 0);
            }
            event.write(&mut writer);
            if let Some(online) = self.online.get_mut(&(user, device)) {
                (online.version, online.index) = (version, index);
            }
            index += 1;
            self.counters.events += 1;
        }
        if !writer.is_empty() {
            self.packet(now, writer.written());
        }
    }

    fn packet(&mut self, now: Micros, events: &[u8]) {
        self.ring.push(events);
        self.counters.packets += 1;
        self.beat_at = now + BEAT_EVERY;
        let report = Report {
            origin: self.me,
            version: self.ring.newest(),
            events: Events(events),
        };
        self.out.push((To::Proxies, Message::Report(report).to_frame()));
    }
}
