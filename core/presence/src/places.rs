//! Which device of which user is at which gateway, as a writer knows it, and the net changes of that.
//!
//! Owns: [`Places`]: an entry changes only for a greater (epoch, version, index) (I-2), and a device that moves
//! between gateways within the grace time is never reported as offline. Knows no frame, no gap and no store.
//!
//! A place is at least 107 B (a B-tree node of 80 B, three quarters full), so a million online devices take 107 MB in
//! a writer.

use crate::bucket::{Record, StoredDevice};
use crate::device::Device;
use crate::event::{Entry, Event, Reason, State};
use crate::version::after;
use crate::wire::Origin;
use muster_transport::Micros;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// User, device and gateway.
pub type Key = (u64, Device, u32);

/// The flag of a change that no packet's event made.
pub const SYNTHETIC: u64 = 1 << 63;

/// The index of a place that no packet's event made: no packet has this many events.
const NO_EVENT: u16 = u16::MAX;

/// The identity of a change, the same each time it is reported: delivery is at least once, so consumers drop repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ChangeId {
    pub origin: Origin,
    pub version: u64,
    /// The event's position in its packet. With [`SYNTHETIC`]: the writer's epoch and its own count, for a change
    /// that no packet contains, such as one found by a full state: an event for it may have been reported before the
    /// gateway was lost.
    pub index: u64,
}

/// A device went online or offline for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    pub id: ChangeId,
    pub user: u64,
    pub device: Device,
    pub state: State,
    pub at_ms: u64,
}

/// The state of a device at a gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stand {
    Online,
    /// Offline, but not reported before `ends`, since it may come online elsewhere.
    Leaving {
        reason: Reason,
        ends: Micros,
    },
    /// Offline. Remembered while an older packet may still arrive.
    Gone,
}

/// The event that set a device's state, and its time.
#[derive(Clone, Copy, Debug)]
struct Place {
    epoch: u32,
    index: u16,
    version: u64,
    at_ms: u64,
    stand: Stand,
}

impl Place {
    /// Whether an event is newer than the one that set this place.
    fn is_older(&self, epoch: u32, version: u64, index: u16) -> bool {
        if self.epoch != epoch {
            return epoch > self.epoch;
        }
        if self.version != version {
            return after(version, self.version);
        }
        index > self.index
    }
}

/// The devices of a shard's users.
pub struct Places {
    places: BTreeMap<Key, Place>,
    /// In the order of their ends, since the grace time is the same for all.
    leaving: VecDeque<(Micros, Key)>,
    gone: BTreeMap<u32, Vec<Key>>,
    /// Devices that the store has online and that the feed last reported as offline: the store went back. Once
    /// confirmed, they are reported.
    untold: BTreeSet<(u64, Device)>,
    /// Devices that the feed reported before the writer's start. Their events may come again, and a consumer drops
    /// identities that it had: so changes of them get identities of the writer's own, until a grace time after
    /// everything has arrived.
    named: BTreeSet<(u64, Device)>,
    named_ends: Option<Micros>,
    /// For users whose record must be deleted: when their last device went offline.
    went: BTreeMap<u64, Micros>,
    /// Users whose record must be written, with their changes to report.
    changed: BTreeMap<u64, Vec<Change>>,
    grace: Micros,
    /// Part of the identity of synthetic changes.
    writer_epoch: u32,
    told: u32,
    online: usize,
}

impl Places {
    pub fn new(writer_epoch: u32, grace: Micros) -> Self {
        Places {
            places: BTreeMap::new(),
            leaving: VecDeque::new(),
            gone: BTreeMap::new(),
            untold: BTreeSet::new(),
            named: BTreeSet::new(),
            named_ends: None,
            went: BTreeMap::new(),
            changed: BTreeMap::new(),
            grace,
            writer_epoch,
            told: 0,
            online: 0,
        }
    }

    /// Applies an event of a packet. Returns whether it gave the device a new session.
    pub fn apply(&mut self, now: Micros, origin: Origin, version: u64, event: &Event) -> bool {
        let key = (event.user, event.device, origin.ap);
        let old = self.places.get(&key).copied();
        let is_newer = old.is_none_or(|old| old.is_older(origin.epoch, version, event.index));
        if !is_newer {
            return false;
        }
        let mut place = Place {
            epoch: origin.epoch,
            index: event.index,
            version,
            at_ms: event.at_ms,
            stand: Stand::Online,
        };
        match (event.state, old.map(|old| old.stand)) {
            (State::Online, _) => {
                self.arrive(key, place, old, false);
                return true;
            }
            (State::Offline(reason), Some(Stand::Online)) => {
                let ends = now + self.grace;
                place.stand = Stand::Leaving { reason, ends };
                self.leaving.push_back((ends, key));
                self.changed.entry(key.0).or_default();
            }
            (State::Offline(_), Some(stand @ Stand::Leaving { .. })) => place.stand = stand,
            (State::Offline(_), Some(Stand::Gone) | None) => {
                place.stand = Stand::Gone;
                if old.is_none() {
                    self.gone.entry(origin.ap).or_default().push(key);
                }
            }
        }
        self.put(key, place);
        false
    }

    /// The devices of a gateway as of `version` are exactly these. Returns those with a session that was not known.
    pub fn replace(&mut self, now: Micros, origin: Origin, version: u64, entries: Vec<Entry>) -> Vec<(u64, Device)> {
        let mut came = Vec::new();
        let named: BTreeSet<(u64, Device)> = entries.iter().map(|entry| (entry.user, entry.device)).collect();
        for entry in entries {
            let key = (entry.user, entry.device, origin.ap);
            let place = Place {
                epoch: origin.epoch,
                index: entry.index,
                version: entry.version,
                at_ms: entry.since_ms,
                stand: Stand::Online,
            };
            let old = self.places.get(&key).copied();
            let is_known = old.is_some_and(|old| {
                let event = (old.epoch, old.version, old.index);
                old.stand == Stand::Online && event == (place.epoch, place.version, place.index)
            });
            self.arrive(key, place, old, true);
            if !is_known {
                came.push((key.0, key.1));
            }
        }
        self.forget(origin.ap);
        let gone = |key: &Key| (key.2 == origin.ap && !named.contains(&(key.0, key.1))).then_some((origin, version));
        self.lose(now, gone);
        came
    }

    /// Devices at these gateways are lost: `gone` returns the gateway's life and its newest version if a place must
    /// go.
    ///
    /// Scans all places: 20 ns each, so 20 ms for a million, once for all gateways that are lost together.
    pub fn lose(&mut self, now: Micros, gone: impl Fn(&Key) -> Option<(Origin, u64)>) {
        let ends = now + self.grace;
        for (key, place) in &mut self.places {
            let Some((origin, version)) = gone(key).filter(|_| place.stand == Stand::Online) else {
                continue;
            };
            place.stand = Stand::Leaving {
                reason: Reason::Lost,
                ends,
            };
            (place.epoch, place.version, place.index) = (origin.epoch, version, NO_EVENT);
            self.online -= 1;
            self.leaving.push_back((ends, *key));
            self.changed.entry(key.0).or_default();
        }
    }

    /// No late packet of these gateways can come anymore.
    pub fn forget_where(&mut self, is_whole: impl Fn(u32) -> bool) {
        let whole: Vec<u32> = self.gone.keys().copied().filter(|ap| is_whole(*ap)).collect();
        whole.into_iter().for_each(|ap| self.forget(ap));
    }

    /// Every packet of a gateway has arrived: forgets what was remembered for late ones.
    fn forget(&mut self, ap: u32) {
        for key in self.gone.remove(&ap).unwrap_or_default() {
            if self.places.get(&key).is_some_and(|place| place.stand == Stand::Gone) {
                self.places.remove(&key);
            }
        }
    }

    /// Reports devices that did not return in time.
    pub fn expire(&mut self, now: Micros) {
        while let Some((_, key)) = self.leaving.front().copied().filter(|(ends, _)| *ends <= now) {
            let (ends, _) = self.leaving.pop_front().expect("the front is there");
            self.leave(ends, key);
        }
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.leaving.front().map(|(ends, _)| *ends)
    }

    /// Restores a place from the store, before the first packet.
    pub fn restore(&mut self, now: Micros, user: u64, held: &StoredDevice) {
        let key = (user, held.device, held.origin.ap);
        let stand = match held.state {
            State::Online => Stand::Online,
            State::Offline(reason) => {
                let ends = now + self.grace;
                self.leaving.push_back((ends, key));
                Stand::Leaving { reason, ends }
            }
        };
        let place = Place {
            epoch: held.origin.epoch,
            index: held.index,
            version: held.version,
            at_ms: held.at_ms,
            stand,
        };
        self.put(key, place);
    }

    /// Restores the last reported change of a device; the store may be older. A device that was reported online, and
    /// of which nothing is known, goes offline after the grace time unless it appears. One that was reported offline,
    /// but that the store has online, is reported again once confirmed; if the store does not have it either, events
    /// before that change, which may come again, do not report it.
    pub fn restore_told(&mut self, now: Micros, change: &Change) {
        let ChangeId { origin, version, index } = change.id;
        let key = (change.user, change.device, origin.ap);
        let is_visible = self.is_visible(change.user, change.device);
        let mut place = Place {
            epoch: origin.epoch,
            index: u16::try_from(index).unwrap_or(NO_EVENT),
            version,
            at_ms: change.at_ms,
            stand: Stand::Gone,
        };
        self.named.insert((change.user, change.device));
        match change.state {
            State::Online if is_visible => return,
            State::Online => {
                let ends = now + self.grace;
                // The version before that of the event itself, which may come again.
                (place.version, place.index) = (version.wrapping_sub(1), NO_EVENT);
                place.stand = Stand::Leaving {
                    reason: Reason::Lost,
                    ends,
                };
                self.leaving.push_back((ends, key));
                self.changed.entry(change.user).or_default();
            }
            State::Offline(_) if is_visible => {
                self.untold.insert((change.user, change.device));
                return;
            }
            State::Offline(_) => self.gone.entry(origin.ap).or_default().push(key),
        }
        self.put(key, place);
    }

    /// Reports devices that the feed has as offline and that are online at a gateway without missing versions.
    pub fn tell_where(&mut self, is_whole: impl Fn(u32) -> bool) {
        for (user, device) in std::mem::take(&mut self.untold) {
            let at = self.places.range((user, device, 0)..=(user, device, u32::MAX));
            let mut confirmed = at.filter(|((_, _, ap), place)| place.stand == Stand::Online && is_whole(*ap));
            match confirmed.next().map(|(key, place)| (*key, *place)) {
                Some((key, place)) => self.tell(key, place, State::Online, true),
                None => drop(self.untold.insert((user, device))),
            }
        }
    }

    /// Nothing is missing of any gateway: events from before the start come no more.
    pub fn caught_up(&mut self, now: Micros) {
        if !self.named.is_empty() && now >= *self.named_ends.get_or_insert(now + self.grace) {
            self.named.clear();
        }
    }

    /// A user's record for the store; empty if no device is left.
    pub fn record(&self, user: u64) -> Record {
        let places = self
            .places
            .range((user, Device::LOWEST, 0)..)
            .take_while(|(key, _)| key.0 == user);
        let held = places.filter_map(|((_, device, ap), place)| {
            let state = match place.stand {
                Stand::Online => State::Online,
                Stand::Leaving { reason, .. } => State::Offline(reason),
                Stand::Gone => return None,
            };
            Some(StoredDevice {
                origin: Origin {
                    ap: *ap,
                    epoch: place.epoch,
                },
                device: *device,
                version: place.version,
                index: place.index,
                state,
                at_ms: place.at_ms,
            })
        });
        Record(held.collect())
    }

    /// Marks all users to be written again.
    pub fn touch_all(&mut self) {
        for (user, _, _) in self.places.keys() {
            self.changed.entry(*user).or_default();
        }
    }

    /// Takes the users that changed since the last call, each with its changes to report, in order.
    pub fn take_changed(&mut self) -> BTreeMap<u64, Vec<Change>> {
        std::mem::take(&mut self.changed)
    }

    /// As [`Places::take_changed`], for one user.
    pub fn take_changed_of(&mut self, user: u64) -> Vec<Change> {
        self.changed.remove(&user).unwrap_or_default()
    }

    /// When the last device of a user without a record went offline.
    pub fn take_went_of(&mut self, user: u64) -> Option<Micros> {
        self.went.remove(&user)
    }

    /// Puts back changes that were taken and not written: they are reported before later ones.
    pub fn put_back(&mut self, user: u64, mut changes: Vec<Change>, went: Option<Micros>) {
        if let Some(went) = went {
            self.went.entry(user).or_insert(went);
        }
        let later = self.changed.entry(user).or_default();
        changes.append(later);
        *later = changes;
    }

    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Devices that are online, with their gateways.
    pub fn online(&self) -> impl Iterator<Item = Key> + '_ {
        let online = self.places.iter().filter(|(_, place)| place.stand == Stand::Online);
        online.map(|(key, _)| *key)
    }

    pub fn online_len(&self) -> usize {
        self.online
    }

    /// Number of places in any state.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// `old`: the present place of the same key. `by_state`: a full state contains it, and no packet's event.
    fn arrive(&mut self, key: Key, place: Place, old: Option<Place>, by_state: bool) {
        let was_here = old.is_some_and(|old| old.stand != Stand::Gone);
        let was_visible = was_here || self.is_visible(key.0, key.1);
        let was_told = !self.untold.remove(&(key.0, key.1)) && was_visible;
        let was_online = old.is_some_and(|old| old.stand == Stand::Online);
        let same = old.is_some_and(|old| !old.is_older(place.epoch, place.version, place.index));
        if was_online && same && was_told {
            return;
        }
        self.put(key, place);
        self.changed.entry(key.0).or_default();
        if !was_told {
            self.tell(key, place, State::Online, by_state);
        }
    }

    fn leave(&mut self, due: Micros, key: Key) {
        let Some(place) = self.places.get_mut(&key) else { return };
        let Stand::Leaving { reason, ends } = place.stand else {
            return;
        };
        if ends != due {
            return;
        }
        place.stand = Stand::Gone;
        let place = *place;
        self.gone.entry(key.2).or_default().push(key);
        self.went.insert(key.0, due.saturating_sub(self.grace));
        self.changed.entry(key.0).or_default();
        if !self.is_visible(key.0, key.1) && !self.untold.remove(&(key.0, key.1)) {
            self.tell(key, place, State::Offline(reason), place.index == NO_EVENT);
        }
    }

    /// Adds a change to the feed. It gets the identity of the place's event, once: other changes get identities of
    /// the writer's own.
    fn tell(&mut self, key: Key, place: Place, state: State, is_synthetic: bool) {
        let index = if is_synthetic || self.named.contains(&(key.0, key.1)) {
            self.told = (self.told + 1) & (u32::MAX >> 1);
            SYNTHETIC | u64::from(self.writer_epoch) << 31 | u64::from(self.told)
        } else {
            u64::from(place.index)
        };
        let origin = Origin {
            ap: key.2,
            epoch: place.epoch,
        };
        let id = ChangeId {
            origin,
            version: place.version,
            index,
        };
        let (user, device, at_ms) = (key.0, key.1, place.at_ms);
        let change = Change {
            id,
            user,
            device,
            state,
            at_ms,
        };
        self.changed.entry(user).or_default().push(change);
    }

    fn put(&mut self, key: Key, place: Place) {
        let old = self.places.insert(key, place);
        let was = usize::from(old.is_some_and(|old| old.stand == Stand::Online));
        let is = usize::from(place.stand == Stand::Online);
        self.online = self.online + is - was;
    }

    /// Whether the device is online anywhere, or was and may return in time.
    fn is_visible(&self, user: u64, device: Device) -> bool {
        let mut at = self.places.range((user, device, 0)..=(user, device, u32::MAX));
        at.any(|(_, place)| place.stand != Stand::Gone)
    }
}
