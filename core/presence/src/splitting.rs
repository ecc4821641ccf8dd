//! The task of an online proxy: gateways' packets in, a frame for every writer of every site out.
//!
//! Owns [`Splitting`]. It keeps only the announced shards of the linked writers, which form the shard map. So a proxy
//! that has just started takes packets as soon as writers are linked. While a site changes its number of shards,
//! writers of both numbers are linked, and all of them get the events (H9).

use crate::map::{ShardMap, Target};
use crate::post::Task;
use crate::role;
use crate::split::Splitter;
use crate::wire::{Beat, Events, Here, Message, Origin, Report};
use muster_transport::{Identity, Mail, Micros, Placement};
use std::collections::BTreeMap;
use std::convert::Infallible;

muster_transport::counters! {
    /// Counts of an online proxy.
    pub struct SplittingCounters {
        /// Packets of gateways.
        presence_reports,
        /// Newest versions of idle gateways.
        presence_beats,
        /// Frames for writers.
        presence_shares,
        /// Packets and beats dropped: no writer is linked.
        presence_dropped_no_writer,
    }
}

/// A gateway's frame, kept within a turn.
enum Taken {
    Report(Origin, u64, Vec<u8>),
    Beat(Beat),
}

/// The task of an online proxy.
pub struct Splitting {
    here: Here,
    /// By node, its site and its shard.
    writers: BTreeMap<u32, Option<Target>>,
    map: ShardMap,
    targets: BTreeMap<Target, Vec<u32>>,
    taken: Vec<Taken>,
    expected: usize,
    pub counters: SplittingCounters,
}

impl Splitting {
    pub fn new(site: u16) -> Self {
        Splitting {
            here: Here { site, shard: None },
            writers: BTreeMap::new(),
            map: ShardMap::default(),
            targets: BTreeMap::new(),
            taken: Vec::new(),
            expected: 0,
            counters: SplittingCounters::default(),
        }
    }

    /// Number of linked writers that have announced their shard.
    pub fn writers_len(&self) -> usize {
        self.targets.values().map(Vec::len).sum()
    }

    /// Recomputes the map from the writers; its version grows with each change.
    fn remap(&mut self) {
        self.targets.clear();
        for (node, target) in &self.writers {
            if let Some(target) = target {
                self.targets.entry(*target).or_default().push(*node);
            }
        }
        let mut sites: Vec<(u16, u16)> = self
            .targets
            .keys()
            .map(|target| (target.site, target.shard.of))
            .collect();
        sites.dedup();
        if sites != self.map.sites {
            self.map = ShardMap {
                version: self.map.version.wrapping_add(1),
                sites,
            };
        }
    }
}

impl Task for Splitting {
    type Event = Infallible;

    fn here(&self) -> Here {
        self.here
    }

    fn not_ready(&self) -> Option<&'static str> {
        (self.expected > 0 && self.targets.is_empty()).then_some("no online writer is linked")
    }

    fn placed(&mut self, _now: Micros, placement: &Placement, _mail: &mut Mail) {
        self.expected = placement.of(role::ONLINE_WRITER).count();
    }

    fn link(&mut self, _now: Micros, peer: Identity, up: bool, _mail: &mut Mail) {
        if peer.role != role::ONLINE_WRITER {
            return;
        }
        match up {
            true => {
                self.writers.entry(peer.node).or_insert(None);
            }
            false => {
                self.writers.remove(&peer.node);
                self.remap();
            }
        }
    }

    fn message(&mut self, _now: Micros, peer: Identity, message: Message<'_>, _mail: &mut Mail) -> bool {
        let is_gateway = role::name(peer.role).is_none();
        let own = |origin: Origin| is_gateway && (origin.ap, origin.epoch) == (peer.node, peer.epoch);
        match &message {
            Message::Here(here) => {
                if let Some(shard) = here.shard.filter(|_| peer.role == role::ONLINE_WRITER) {
                    let target = Target { site: here.site, shard };
                    if self.writers.insert(peer.node, Some(target)) != Some(Some(target)) {
                        self.remap();
                    }
                }
                true
            }
            // A gateway reports only about itself, and no node of presence is one.
            Message::Report(report) if own(report.origin) => {
                if report.events.read().is_none() {
                    return false;
                }
                self.counters.presence_reports += 1;
                self.taken
                    .push(Taken::Report(report.origin, report.version, report.events.0.to_vec()));
                true
            }
            Message::Beat(beat) if own(beat.origin) => {
                self.counters.presence_beats += 1;
                self.taken.push(Taken::Beat(*beat));
                true
            }
            _ => false,
        }
    }

    fn flush(&mut self, _now: Micros, mail: &mut Mail) {
        if self.taken.is_empty() {
            return;
        }
        let taken = std::mem::take(&mut self.taken);
        if self.targets.is_empty() {
            self.counters.presence_dropped_no_writer += taken.len() as u64;
            return;
        }
        let mut splitter = Splitter::new(&self.map);
        for one in &taken {
            match one {
                Taken::Report(origin, version, events) => {
                    splitter.report(&Report {
                        origin: *origin,
                        version: *version,
                        events: Events(events),
                    });
                }
                Taken::Beat(beat) => splitter.beat(beat),
            }
        }
        for (target, frame) in splitter.finish() {
            for node in self.targets.get(&target).into_iter().flatten() {
                self.counters.presence_shares += 1;
                mail.send(*node, &frame);
            }
        }
    }
}
