//! The online writer: one shard's view of all gateways, and batches for its store.
//!
//! Owns: [`Writer`], which orders the shared parts: for each gateway the applied window (`tracker`) and a full state
//! being received (`assembly`); the users' places (`places`), batches for the store (`batch`). The compensation
//! runner of the control plane requests missing data from gateways: it reads [`Writer::due`] and [`Writer::fulls`],
//! and reports its requests. Knows no store, no gateway's address, no clock.

use crate::assembly::Assembly;
use crate::batch::{Applied, Batch, Outgoing};
use crate::bucket::Record;
use crate::contest::Contest;
use crate::event::{Event, Reason, State};
use crate::limits::{HELD_BYTES_MAX, RANGES_MAX, SOURCES_MAX, WAIT_MS_MAX, WINDOW};
use crate::places::{Change, Key, Places};
use crate::policy::Policies;
use crate::tracker::{Gaps, Took};
use crate::version::{after, span};
use crate::wire::{Beat, Chunk, Empty, Origin, Ranges, Shard, Share, Supersede, TooOld, Wait};
use muster_transport::Micros;
use std::collections::BTreeMap;

/// The settings of a writer.
#[derive(Clone, Debug)]
pub struct WriterSettings {
    /// How long after a device goes offline that is reported, unless the device comes online at another gateway.
    pub grace: Micros,
    /// A gateway that is silent for this long is lost with its users.
    pub lease: Micros,
    /// How long a version must be missing before it is requested: the other path may still bring it.
    pub reorder: Micros,
    /// The shard is out of sync if a gateway's versions, or its full state, are missing for longer.
    pub late: Micros,
    /// The policies by which older sessions at other gateways end; `None`: no session ends.
    pub policies: Option<Policies>,
}

impl Default for WriterSettings {
    fn default() -> Self {
        WriterSettings {
            grace: 5_000_000,
            lease: 10_000_000,
            reorder: 30_000,
            late: 2_000_000,
            policies: None,
        }
    }
}

/// The result of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was new.
    Applied,
    /// It arrived on the other path, or was requested twice.
    Duplicate,
    /// It waits for the full state of its gateway.
    Held,
    Refused(Refusal),
}

/// Why a frame is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It belongs to an earlier life of the gateway (I-1).
    OldEpoch,
    /// It was split for another shard, or has users of another one: the proxy has another map (H9).
    WrongShard,
    Malformed,
    /// More gateways than there may be nodes.
    TooManySources,
    /// It was not requested.
    Unasked,
}

/// Why the full state of a gateway is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Nothing is known of the gateway.
    Unknown,
    /// The gateway has restarted.
    NewEpoch,
    /// Its version is ahead by more than the window.
    Jump,
    /// It no longer has the missing versions.
    TooOld,
}

/// Whether the shard may be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    InSync,
    /// Some expected gateway has not been completely received since the start.
    Starting,
    /// No gateway sends anything anymore: the writer may be cut off.
    Deaf,
    /// A gateway's state or versions have been missing for too long.
    Behind {
        ap: u32,
    },
}

/// Missing data of one gateway that must be requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Due {
    pub origin: Origin,
    /// Runs of versions missing for longer than the reorder time that no request covers, lowest first.
    pub ranges: Ranges,
}

/// A gateway whose full state is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FullNeeded {
    pub ap: u32,
    pub why: Why,
    /// The transaction that requests it, if one does, and the missing chunks; none if no chunk has arrived.
    pub asked: Option<u64>,
    pub missing: Ranges,
    /// The gateway already sends the maximum number of full states, and wants to be asked again at this time.
    pub put_off: Option<Micros>,
}

/// The state of a gateway, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceView {
    pub origin: Origin,
    pub resync: Option<Why>,
    pub complete: u64,
    pub highest: u64,
    pub missing: u64,
}

/// Counters, by kind of frame and reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriterCounters {
    pub events: u64,
    pub packets: u64,
    pub empty_versions: u64,
    pub duplicates: u64,
    pub held: u64,
    pub held_dropped: u64,
    pub old_epoch: u64,
    pub wrong_shard: u64,
    pub malformed: u64,
    pub too_many_sources: u64,
    pub unasked: u64,
    pub resyncs: u64,
    pub fulls: u64,
    pub lost: u64,
}

/// A packet that waits for a full state.
struct HeldPacket {
    first: u64,
    last: u64,
    events: Vec<Event>,
}

/// One gateway.
struct Source {
    /// The highest epoch seen.
    epoch: u32,
    /// The life that the places and `gaps` belong to.
    installed: Option<u32>,
    resync: Option<Why>,
    gaps: Gaps,
    /// The gateway was seen since the writer's start, and at some moment nothing of it was missing.
    was_whole: bool,
    /// The same, since the end of the last time in which no gateway was heard for too long.
    is_sure: bool,
    lease_ends: Micros,
    /// Since when the full state is needed.
    since: Micros,
    asked: Option<u64>,
    put_off: Option<Micros>,
    assembly: Option<Assembly>,
    held: Vec<HeldPacket>,
    held_bytes: usize,
}

impl Source {
    fn new(now: Micros, epoch: u32, lease: Micros) -> Self {
        Source {
            epoch,
            installed: None,
            resync: Some(Why::Unknown),
            gaps: Gaps::new(0),
            was_whole: false,
            is_sure: false,
            lease_ends: now + lease,
            since: now,
            asked: None,
            put_off: None,
            assembly: None,
            held: Vec::new(),
            held_bytes: 0,
        }
    }

    fn begin_resync(&mut self, now: Micros, why: Why) {
        if self.resync.is_none() {
            self.since = now;
        }
        self.resync = Some(why);
        (self.asked, self.put_off, self.assembly) = (None, None, None);
        self.held.clear();
        self.held_bytes = 0;
    }

    /// Whether nothing known to exist is missing.
    fn is_complete(&self) -> bool {
        self.resync.is_none() && self.gaps.gaps().is_empty()
    }

    /// Updates the state after a frame of the gateway.
    fn note(&mut self) {
        let is_complete = self.is_complete();
        self.was_whole |= is_complete;
        self.is_sure |= is_complete;
    }

    /// `false`: there is no space for it, and its versions will be requested.
    fn hold(&mut self, packet: HeldPacket) -> bool {
        let bytes = std::mem::size_of::<HeldPacket>() + packet.events.len() * std::mem::size_of::<Event>();
        if self.held_bytes + bytes > HELD_BYTES_MAX {
            return false;
        }
        self.held_bytes += bytes;
        self.held.push(packet);
        true
    }
}

/// The writer of one shard.
///
/// Make it with [`Writer::new`], and restore the store's content with [`Writer::restore_user`] and
/// [`Writer::restore_applied`]. Then pass in frames ([`Writer::share`], [`Writer::empty`], [`Writer::beat`],
/// [`Writer::chunk`], …), request what [`Writer::due`] and [`Writer::fulls`] return, write each [`Writer::batch`] and
/// confirm it with [`Writer::written`], and run [`Writer::expire`] when [`Writer::deadline`] is due.
pub struct Writer {
    shard: Shard,
    settings: WriterSettings,
    sources: BTreeMap<u32, Source>,
    places: Places,
    /// Changes of the applied vector.
    vector: BTreeMap<u32, Applied>,
    outgoing: Outgoing,
    /// Decides which older sessions end at other gateways; `None`: none do.
    contest: Option<Contest>,
    /// All expected gateways have been in sync once: since the writer's start, or since the last such silence.
    is_settled: bool,
    is_expecting: bool,
    /// The store's content waits for the gateways: a device may have moved while no writer ran, so none is reported
    /// offline before.
    is_restored: bool,
    is_deaf: bool,
    /// When a gateway was heard last.
    heard_at: Micros,
    counters: WriterCounters,
}

impl Writer {
    /// A writer of an empty store. `epoch` grows with each start of the writer.
    pub fn new(shard: Shard, epoch: u32, settings: WriterSettings) -> Self {
        Writer {
            shard,
            sources: BTreeMap::new(),
            places: Places::new(epoch, settings.grace),
            vector: BTreeMap::new(),
            outgoing: Outgoing::default(),
            contest: settings.policies.clone().map(Contest::new),
            is_settled: false,
            is_expecting: false,
            is_restored: false,
            is_deaf: false,
            heard_at: 0,
            counters: WriterCounters::default(),
            settings,
        }
    }

    // ---- Restoring the store's content -------------------------------------------------------------------------------------

    /// Restores how far a gateway was applied. Only later versions will be requested.
    pub fn restore_applied(&mut self, now: Micros, applied: &Applied) {
        let Some(version) = applied.version else { return };
        self.is_restored = true;
        let source = Source {
            installed: Some(applied.epoch),
            resync: None,
            gaps: Gaps::new(version),
            ..Source::new(now, applied.epoch, self.settings.lease)
        };
        self.sources.insert(applied.ap, source);
    }

    /// Restores a user's record. `false`: it is not in this format, or the user belongs to another shard: the field
    /// must be deleted.
    pub fn restore_user(&mut self, now: Micros, user: u64, record: &[u8]) -> bool {
        let Some(record) = Record::decode(record).filter(|_| self.shard.owns(user)) else {
            return false;
        };
        let lease = self.settings.lease;
        for held in &record.0 {
            // A gateway without a vector was not written completely: its full state is needed.
            let Origin { ap, epoch } = held.origin;
            self.sources.entry(ap).or_insert_with(|| Source::new(now, epoch, lease));
            self.places.restore(now, user, held);
        }
        if let Some(contest) = self.contest.as_mut().filter(|_| record.0.len() > 1) {
            for held in &record.0 {
                contest.came(now, &self.places, (user, held.device, held.origin.ap), false);
            }
        }
        true
    }

    /// Restores the last reported change of a device, after all records of the store: a store that went back knows
    /// less than its feed.
    pub fn restore_told(&mut self, now: Micros, change: &Change) {
        if self.shard.owns(change.user) {
            self.is_restored = true;
            self.places.restore_told(now, change);
        }
    }

    /// The registry lists these running gateways: the shard is in sync only after this call, and once all of them
    /// are.
    pub fn expect(&mut self, now: Micros, aps: &[u32]) {
        self.is_expecting = true;
        let lease = self.settings.lease;
        for ap in aps {
            self.sources.entry(*ap).or_insert_with(|| Source::new(now, 0, lease));
        }
    }

    /// The store has lost what was written (H7): it has been emptied, and everything is written again.
    pub fn rewrite(&mut self) {
        for (user, (changes, went)) in self.outgoing.take_back() {
            self.places.put_back(user, changes, went);
        }
        self.places.touch_all();
        let known: Vec<u32> = self.sources.keys().copied().collect();
        known.into_iter().for_each(|ap| self.note_applied(ap));
    }

    // ---- Frames ---------------------------------------------------------------------------------------------------

    /// Events of one version.
    #[inline]
    pub fn share(&mut self, now: Micros, share: &Share<'_>) -> Verdict {
        if share.shard != self.shard {
            return self.refuse(Refusal::WrongShard);
        }
        let source = match self.heard(now, share.origin) {
            Ok(source) => source,
            Err(refusal) => return self.refuse(refusal),
        };
        let is_known = source.resync.is_none() && source.gaps.has(share.version);
        if is_known {
            self.counters.duplicates += 1;
            return Verdict::Duplicate;
        }
        let Some(events) = share.events.read() else {
            return self.refuse(Refusal::Malformed);
        };
        if events.iter().any(|event| !share.shard.owns(event.user)) {
            return self.refuse(Refusal::WrongShard);
        }
        self.take(now, share.origin, share.version, share.version, events)
    }

    /// Versions without events for this shard.
    pub fn empty(&mut self, now: Micros, empty: &Empty) -> Verdict {
        if empty.shard != self.shard {
            return self.refuse(Refusal::WrongShard);
        }
        if after(empty.first, empty.last) {
            return self.refuse(Refusal::Malformed);
        }
        match self.heard(now, empty.origin) {
            Ok(_) => self.take(now, empty.origin, empty.first, empty.last, Vec::new()),
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// The newest version of a gateway.
    pub fn beat(&mut self, now: Micros, beat: &Beat) -> Verdict {
        let source = match self.heard(now, beat.origin) {
            Ok(source) => source,
            Err(refusal) => return self.refuse(refusal),
        };
        if source.resync.is_some() {
            return Verdict::Held;
        }
        let is_near = source.gaps.expect(now, beat.newest);
        if !is_near {
            source.begin_resync(now, Why::Jump);
        }
        source.note();
        self.counters.resyncs += u64::from(!is_near);
        Verdict::Applied
    }

    /// The gateway no longer has the versions that `transaction` requested.
    pub fn too_old(&mut self, now: Micros, old: &TooOld) -> Verdict {
        let source = match self.heard(now, old.origin) {
            Ok(source) => source,
            Err(refusal) => return self.refuse(refusal),
        };
        if source.resync.is_some() {
            return Verdict::Held;
        }
        if source.gaps.waits(old.transaction) == 0 {
            return self.refuse(Refusal::Unasked);
        }
        source.begin_resync(now, Why::TooOld);
        self.counters.resyncs += 1;
        Verdict::Applied
    }

    /// A piece of a full state. The last one installs the state, and then the packets that arrived meanwhile (H5).
    pub fn chunk(&mut self, now: Micros, chunk: &Chunk<'_>) -> Verdict {
        let asked = |source: &Source| source.asked == Some(chunk.transaction) && source.resync.is_some();
        if !self.sources.get(&chunk.origin.ap).is_some_and(asked) {
            return self.refuse(Refusal::Unasked);
        }
        let Some(entries) = chunk.entries.read() else {
            return self.refuse(Refusal::Malformed);
        };
        let shard = self.shard;
        if entries.iter().any(|entry| !shard.owns(entry.user)) {
            return self.refuse(Refusal::WrongShard);
        }
        let source = match self.heard(now, chunk.origin) {
            Ok(source) => source,
            Err(refusal) => return self.refuse(refusal),
        };
        // If the chunk revealed a new life, the earlier requests ended; this chunk belongs to the present one.
        (source.asked, source.put_off) = (Some(chunk.transaction), None);
        let (epoch, version, count) = (chunk.origin.epoch, chunk.version, chunk.count);
        if !source
            .assembly
            .as_ref()
            .is_some_and(|assembly| assembly.is(epoch, version, count))
        {
            source.assembly = Some(Assembly::new(epoch, version, count));
        }
        if let Some(assembly) = &mut source.assembly {
            assembly.put(chunk.index, entries);
            if assembly.is_complete() {
                self.install(now, chunk.origin);
            }
        }
        Verdict::Applied
    }

    /// The gateway cannot send yet the state that a transaction requested.
    pub fn wait(&mut self, now: Micros, wait: &Wait) -> Verdict {
        let asked = |source: &Source| source.asked == Some(wait.transaction) && source.resync.is_some();
        let asked = self.sources.get(&wait.origin.ap).is_some_and(asked);
        if !asked {
            return self.refuse(Refusal::Unasked);
        }
        let until = now + Micros::from(wait.wait_ms.min(WAIT_MS_MAX)) * 1_000;
        match self.heard(now, wait.origin) {
            Ok(source) => {
                // If this reply revealed a new life, the earlier requests ended; it puts off the present one.
                (source.asked, source.put_off) = (Some(wait.transaction), Some(until));
                Verdict::Applied
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    // ---- For the compensation runner -----------------------------------------------------------------------------

    /// Gateways with versions to request now.
    pub fn due(&self, now: Micros) -> Vec<Due> {
        let follows = self.sources.iter().filter(|(_, source)| source.resync.is_none());
        let due = follows.map(|(ap, source)| {
            let waits = |since: Micros| since + self.settings.reorder <= now;
            let gaps = source.gaps.gaps().iter();
            let gaps = gaps.filter(|gap| gap.asked.is_none() && waits(gap.since));
            Due {
                origin: Origin {
                    ap: *ap,
                    epoch: source.epoch,
                },
                ranges: gaps.take(RANGES_MAX).map(|gap| (gap.first, gap.last)).collect(),
            }
        });
        due.filter(|due| !due.ranges.is_empty()).collect()
    }

    /// Whether nothing of any gateway is missing.
    pub fn is_whole(&self) -> bool {
        self.sources.values().all(Source::is_complete)
    }

    /// `transaction` requests these versions from a gateway.
    pub fn asked(&mut self, ap: u32, ranges: &Ranges, transaction: u64) {
        if let Some(source) = self.sources.get_mut(&ap) {
            for (first, last) in ranges {
                source.gaps.mark(*first, *last, transaction);
            }
        }
    }

    /// Number of versions that `transaction` still waits for.
    pub fn waits(&self, ap: u32, transaction: u64) -> u64 {
        self.sources.get(&ap).map_or(0, |source| source.gaps.waits(transaction))
    }

    /// Gives up `transaction`: versions that it did not bring are due again.
    pub fn release(&mut self, ap: u32, transaction: u64) {
        if let Some(source) = self.sources.get_mut(&ap) {
            source.gaps.release(transaction);
        }
    }

    /// Gateways whose full state is needed, ordered by number.
    pub fn fulls(&self) -> Vec<FullNeeded> {
        let needed = self.sources.iter().filter_map(|(ap, source)| {
            Some(FullNeeded {
                ap: *ap,
                why: source.resync?,
                asked: source.asked,
                missing: source.assembly.as_ref().map(Assembly::missing).unwrap_or_default(),
                put_off: source.put_off,
            })
        });
        needed.collect()
    }

    /// `transaction` requests a gateway's full state from its start.
    pub fn full_asked(&mut self, ap: u32, transaction: u64) {
        if let Some(source) = self.sources.get_mut(&ap).filter(|source| source.resync.is_some()) {
            (source.asked, source.put_off, source.assembly) = (Some(transaction), None, None);
        }
    }

    // ---- Time -----------------------------------------------------------------------------------------------------

    /// Runs the timers due by `now`: leases, and devices that did not return.
    pub fn expire(&mut self, now: Micros) {
        let ended = self.silent(now);
        // If none of several gateways sends anything, the writer itself is probably cut off. Their leases end one
        // after the other.
        self.is_deaf = !ended.is_empty() && self.hears_nobody(now);
        if !self.is_deaf {
            self.remove(now, &ended);
        }
        self.is_restored &= !self.is_caught_up();
        if !self.is_restored {
            self.places.expire(now);
        }
        let sources = &self.sources;
        let is_whole = |source: &Source| source.was_whole && source.is_complete();
        self.places.forget_where(|ap| sources.get(&ap).is_none_or(is_whole));
        self.places.tell_where(|ap| sources.get(&ap).is_some_and(is_whole));
        if sources.values().all(is_whole) {
            self.places.caught_up(now);
        }
    }

    /// Gateways whose lease is over, and whose users are lost unless the writer is deaf.
    pub fn silent(&self, now: Micros) -> Vec<u32> {
        let ended = self.sources.iter().filter(|(_, source)| source.lease_ends <= now);
        ended.map(|(ap, _)| *ap).collect()
    }

    /// Whether all running gateways have been seen and were complete.
    fn is_caught_up(&self) -> bool {
        self.is_expecting && self.sources.values().all(|source| source.was_whole)
    }

    /// Whether all of several gateways have been silent for so long that missing versions would make the shard late:
    /// each of them sends beats.
    fn hears_nobody(&self, now: Micros) -> bool {
        let patience = self.settings.late.min(self.settings.lease / 2);
        let heard_by = |source: &Source| source.lease_ends + patience > now + self.settings.lease;
        self.sources.len() > 1 && !self.sources.values().any(heard_by)
    }

    /// The registry no longer lists these gateways: their users are lost.
    pub fn remove(&mut self, now: Micros, aps: &[u32]) {
        let mut gone = BTreeMap::new();
        for ap in aps {
            if let Some(source) = self.sources.remove(ap) {
                let epoch = source.installed.unwrap_or(source.epoch);
                gone.insert(*ap, (Origin { ap: *ap, epoch }, source.gaps.complete()));
                self.vector.insert(
                    *ap,
                    Applied {
                        ap: *ap,
                        epoch,
                        version: None,
                    },
                );
            }
        }
        if !gone.is_empty() {
            self.counters.lost += gone.len() as u64;
            self.places.lose(now, |key| gone.get(&key.2).copied());
        }
    }

    /// The writer stood still: no gateway counts as silent for that time.
    pub fn stalled(&mut self, now: Micros) {
        let ends = now + self.settings.lease;
        self.sources.values_mut().for_each(|source| source.lease_ends = ends);
        self.doubt(now);
    }

    /// If no gateway was heard for so long that missing versions would make the shard late, then versions that nobody
    /// knows of may be missing: each gateway must be received completely again.
    fn doubt(&mut self, now: Micros) {
        if self.heard_at + self.settings.late <= now {
            self.is_settled = false;
            self.sources.values_mut().for_each(|source| source.is_sure = false);
        }
    }

    /// When [`Writer::expire`] is due.
    pub fn deadline(&self, now: Micros) -> Option<Micros> {
        // Leases that ended while the writer is deaf are checked again with the next frame.
        let leases = self.sources.values().map(|source| source.lease_ends);
        let leaving = self.places.deadline().filter(|_| !self.is_restored);
        let contest = self.contest.as_ref().and_then(Contest::deadline);
        leases.filter(|ends| *ends > now).chain(leaving).chain(contest).min()
    }

    // ---- For the store and readers ----------------------------------------------------------------------------------

    /// The next batch for the store, with at most `users_max` users; the same one until [`Writer::written`].
    pub fn batch(&mut self, users_max: usize) -> Option<&Batch> {
        self.outgoing.next(&mut self.places, &mut self.vector, users_max)
    }

    /// The batch has been written to the store.
    pub fn written(&mut self) {
        self.outgoing.written();
    }

    /// Whether all changes have been written to the store.
    pub fn is_written(&self) -> bool {
        self.outgoing.is_empty() && self.vector.is_empty() && !self.places.has_changed()
    }

    /// Whether the shard may be read: its keepalive is written only then (H7).
    pub fn standing(&mut self, now: Micros) -> Standing {
        if self.is_deaf || self.hears_nobody(now) {
            return Standing::Deaf;
        }
        if !self.is_settled {
            // The store's content may be older than the writer's start or its doubt: each gateway must have been
            // received completely.
            if !self.is_caught_up() || !self.sources.values().all(|source| source.is_sure) {
                return Standing::Starting;
            }
            self.is_settled = true;
        }
        let behind = self.sources.iter().find(|(_, source)| {
            let since = match source.resync {
                Some(_) => Some(source.since),
                None => source.gaps.oldest(),
            };
            since.is_some_and(|since| since + self.settings.late <= now)
        });
        behind.map_or(Standing::InSync, |(ap, _)| Standing::Behind { ap: *ap })
    }

    /// Sessions that must end because of a newer one at another gateway, each repeated until it is gone, and devices that may not come back at once.
    pub fn take_supersedes(&mut self, now: Micros) -> Vec<Supersede> {
        let sources = &self.sources;
        let is_whole = |ap: u32| {
            sources
                .get(&ap)
                .is_some_and(|source| source.was_whole && source.is_complete())
        };
        let gateways = sources.iter().map(|(ap, source)| Origin {
            ap: *ap,
            epoch: source.epoch,
        });
        let contest = self.contest.as_mut();
        contest
            .map(|contest| contest.due(now, &self.places, gateways, is_whole))
            .unwrap_or_default()
    }

    /// Devices that are online, with their gateways.
    pub fn online(&self) -> impl Iterator<Item = Key> + '_ {
        self.places.online()
    }

    pub fn online_len(&self) -> usize {
        self.places.online_len()
    }

    pub fn places_len(&self) -> usize {
        self.places.len()
    }

    /// All gateways, ordered by number.
    pub fn sources(&self) -> impl Iterator<Item = SourceView> + '_ {
        self.sources.iter().map(|(ap, source)| SourceView {
            origin: Origin {
                ap: *ap,
                epoch: source.epoch,
            },
            resync: source.resync,
            complete: source.gaps.complete(),
            highest: source.gaps.highest(),
            missing: source.gaps.missing(),
        })
    }

    pub fn counters(&self) -> WriterCounters {
        self.counters
    }

    // ---- Helpers ----------------------------------------------------------------------------------------------------

    fn refuse(&mut self, refusal: Refusal) -> Verdict {
        let counter = match refusal {
            Refusal::OldEpoch => &mut self.counters.old_epoch,
            Refusal::WrongShard => &mut self.counters.wrong_shard,
            Refusal::Malformed => &mut self.counters.malformed,
            Refusal::TooManySources => &mut self.counters.too_many_sources,
            Refusal::Unasked => &mut self.counters.unasked,
        };
        *counter += 1;
        Verdict::Refused(refusal)
    }

    /// Renews the lease of a frame's gateway. An earlier life is refused, a later one needs its full state (H2).
    #[inline]
    fn heard(&mut self, now: Micros, origin: Origin) -> Result<&mut Source, Refusal> {
        let lease = self.settings.lease;
        if self.is_deaf {
            // The other gateways get a lease's time to be seen as well.
            self.is_deaf = false;
            self.stalled(now);
        }
        self.doubt(now);
        self.heard_at = now;
        if !self.sources.contains_key(&origin.ap) {
            if self.sources.len() >= SOURCES_MAX {
                return Err(Refusal::TooManySources);
            }
            self.sources.insert(origin.ap, Source::new(now, origin.epoch, lease));
        }
        let source = self.sources.get_mut(&origin.ap).ok_or(Refusal::TooManySources)?;
        if origin.epoch != source.epoch {
            if origin.epoch < source.epoch {
                return Err(Refusal::OldEpoch);
            }
            source.epoch = origin.epoch;
            let why = if source.installed.is_some() {
                Why::NewEpoch
            } else {
                Why::Unknown
            };
            source.begin_resync(now, why);
            self.counters.resyncs += 1;
        }
        source.lease_ends = now + lease;
        Ok(source)
    }

    fn take(&mut self, now: Micros, origin: Origin, first: u64, last: u64, events: Vec<Event>) -> Verdict {
        let Some(source) = self.sources.get_mut(&origin.ap) else {
            return Verdict::Duplicate;
        };
        let took = match source.resync {
            None => source.gaps.take(now, first, last),
            Some(_) => Took::Beyond,
        };
        if took == Took::Duplicate {
            self.counters.duplicates += 1;
            return Verdict::Duplicate;
        }
        if took == Took::Beyond {
            if source.resync.is_none() {
                source.begin_resync(now, Why::Jump);
                self.counters.resyncs += 1;
            }
            let held = source.hold(HeldPacket { first, last, events });
            self.counters.held += u64::from(held);
            self.counters.held_dropped += u64::from(!held);
            return Verdict::Held;
        }
        source.note();
        // A version that fills a gap is older than an applied one: its sessions may be older than other known ones.
        let is_newest = source.gaps.highest() == last;
        if events.is_empty() {
            self.counters.empty_versions += last.wrapping_sub(first).wrapping_add(1);
        } else {
            self.counters.packets += 1;
            self.counters.events += events.len() as u64;
        }
        for event in &events {
            if self.places.apply(now, origin, first, event) {
                let key = (event.user, event.device, origin.ap);
                if let Some(contest) = &mut self.contest {
                    contest.came(now, &self.places, key, is_newest);
                }
            } else if let (State::Offline(Reason::Replaced), true, Some(contest)) =
                (event.state, is_newest, self.contest.as_mut())
            {
                contest.was_replaced(now, event.user, event.device);
            }
        }
        self.note_applied(origin.ap);
        Verdict::Applied
    }

    /// Installs a complete full state.
    fn install(&mut self, now: Micros, origin: Origin) {
        let Some(source) = self.sources.get_mut(&origin.ap) else {
            return;
        };
        let Some(assembly) = source.assembly.take() else { return };
        let version = assembly.version;
        source.installed = Some(origin.epoch);
        source.gaps = Gaps::new(version);
        (source.resync, source.asked) = (None, None);
        let held = std::mem::take(&mut source.held);
        source.held_bytes = 0;
        source.note();
        self.counters.fulls += 1;
        let came = self.places.replace(now, origin, version, assembly.entries());
        if let Some(contest) = &mut self.contest {
            for (user, device) in came {
                contest.came(now, &self.places, (user, device, origin.ap), false);
            }
        }
        self.note_applied(origin.ap);
        for packet in held {
            // A packet beyond the window of the state does not require another state: a beat will show what is
            // missing.
            let is_near = span(version, packet.last) <= WINDOW && span(packet.first, packet.last) <= WINDOW;
            if after(packet.last, version) && is_near {
                self.take(now, origin, packet.first, packet.last, packet.events);
            }
        }
    }

    fn note_applied(&mut self, ap: u32) {
        let Some(source) = self.sources.get(&ap) else { return };
        if let Some(epoch) = source.installed {
            let version = Some(source.gaps.complete());
            self.vector.insert(ap, Applied { ap, epoch, version });
        }
    }
}
