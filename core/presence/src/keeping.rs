//! An online writer's node: passes frames of its links to the writer, and sends the writer's requests.
//!
//! Owns: [`Keeping`], the task, which tells when there is work for the control plane. Until its store has been read it
//! takes nothing, and requests later what it missed. Knows no store.

use crate::limits::SOURCES_MAX;
use crate::pack::{pack, Packed};
use crate::post::Task;
use crate::role;
use crate::wire::{Here, Message, Shard};
use crate::writer::Writer;
use muster_transport::{Identity, Mail, Micros, Placement, Role};
use std::collections::BTreeSet;

muster_transport::counters! {
    /// Counts of a writer's node beyond its writer.
    pub struct KeepingCounters {
        /// Frames of presence dropped: the store has not been read yet.
        presence_dropped_early,
        /// Requests to gateways to end a session because of a newer one at another gateway.
        presence_supersedes,
    }
}

/// Work for the control plane, told once until there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Changes for the store; told again once [`Keeping::batch`] had none.
    Unwritten,
    /// Versions of a gateway, or its full state; told again once [`Keeping::is_whole`] was true.
    Missing,
}

/// The task of an online writer.
pub struct Keeping {
    site: u16,
    shard: Shard,
    /// The role of gateways.
    gateways: Vec<Role>,
    pub writer: Writer,
    is_open: bool,
    placed: BTreeSet<u32>,
    told_unwritten: bool,
    told_missing: bool,
    pub counters: KeepingCounters,
}

impl Keeping {
    pub fn new(site: u16, shard: Shard, gateways: Vec<Role>, writer: Writer) -> Self {
        Keeping {
            site,
            shard,
            gateways,
            writer,
            is_open: false,
            placed: BTreeSet::new(),
            told_unwritten: false,
            told_missing: false,
            counters: KeepingCounters::default(),
        }
    }

    /// The store has been read: from now on gateways' frames are taken.
    pub fn open(&mut self, now: Micros) {
        self.is_open = true;
        self.expect(now);
    }

    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The next batch for the store, packed for its script.
    pub fn batch(&mut self, now: Micros, users_max: usize, buckets: u32) -> Option<Packed> {
        let shard = self.shard;
        let batch = self.writer.batch(users_max);
        self.told_unwritten = batch.is_some();
        batch.map(|batch| pack(batch, shard, buckets, now))
    }

    /// Whether nothing of any gateway is missing.
    pub fn is_whole(&mut self) -> bool {
        self.told_missing = !self.writer.is_whole();
        !self.told_missing
    }

    fn expect(&mut self, now: Micros) {
        let gateways: Vec<u32> = self.placed.iter().copied().take(SOURCES_MAX).collect();
        self.writer.expect(now, &gateways);
    }
}

impl Task for Keeping {
    type Event = Work;

    fn here(&self) -> Here {
        Here {
            site: self.site,
            shard: Some(self.shard),
        }
    }

    fn not_ready(&self) -> Option<&'static str> {
        (!self.is_open).then_some("the store is not read yet")
    }

    fn placed(&mut self, now: Micros, placement: &Placement, _mail: &mut Mail) {
        let gateways = self.gateways.iter().flat_map(|role| placement.of(*role));
        self.placed = gateways.map(|node| node.node).collect();
        if self.is_open {
            self.expect(now);
        }
    }

    fn message(&mut self, now: Micros, peer: Identity, message: Message<'_>, _mail: &mut Mail) -> bool {
        if !self.is_open {
            self.counters.presence_dropped_early += 1;
            return true;
        }
        let gateways = &self.gateways;
        let own = |ap: u32| gateways.contains(&peer.role) && peer.node == ap;
        let passes = |ap: u32| peer.role == role::ONLINE_PROXY || own(ap);
        let writer = &mut self.writer;
        // The writer itself counts the result of a frame.
        let _ = match &message {
            Message::Share(share) if passes(share.origin.ap) => writer.share(now, share),
            Message::Empty(empty) if passes(empty.origin.ap) => writer.empty(now, empty),
            Message::Beat(beat) if passes(beat.origin.ap) => writer.beat(now, beat),
            Message::TooOld(old) if own(old.origin.ap) => writer.too_old(now, old),
            Message::Chunk(chunk) if own(chunk.origin.ap) => writer.chunk(now, chunk),
            Message::Wait(wait) if own(wait.origin.ap) => writer.wait(now, wait),
            Message::Here(_) => return true,
            _ => return false,
        };
        true
    }

    fn flush(&mut self, now: Micros, mail: &mut Mail) {
        for one in self.writer.take_supersedes(now) {
            self.counters.presence_supersedes += u64::from(!one.is_bar());
            Message::Supersede(one).encode(|frame| mail.send(one.origin.ap, frame));
        }
    }

    fn expire(&mut self, now: Micros, mail: &mut Mail) {
        if !self.is_open {
            return;
        }
        self.writer.expire(now);
        self.flush(now, mail);
        // Gateways that left the placement are gone, even if the writer has no link to any other.
        let placed = &self.placed;
        let gone: Vec<u32> = self
            .writer
            .silent(now)
            .into_iter()
            .filter(|ap| !placed.contains(ap))
            .collect();
        if !gone.is_empty() {
            self.writer.remove(now, &gone);
        }
    }

    fn deadline(&self, now: Micros) -> Option<Micros> {
        self.is_open.then(|| self.writer.deadline(now)).flatten()
    }

    fn events(&mut self, into: &mut Vec<Work>) {
        if self.is_open && !self.told_unwritten && !self.writer.is_written() {
            self.told_unwritten = true;
            into.push(Work::Unwritten);
        }
        if self.is_open && !self.told_missing && !self.is_whole() {
            into.push(Work::Missing);
        }
    }

    fn stalled(&mut self, now: Micros) {
        self.writer.stalled(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Beat, Origin};
    use crate::writer::WriterSettings;

    const GATEWAY: Role = Role::new(3);
    const AP: u32 = 7;

    fn told(keeping: &mut Keeping) -> Vec<Work> {
        let mut events = Vec::new();
        keeping.events(&mut events);
        events
    }

    #[test]
    fn work_is_told_once_until_there_was_none() {
        let shard = Shard { of: 1, index: 0 };
        let writer = Writer::new(shard, 1, WriterSettings::default());
        let mut keeping = Keeping::new(1, shard, vec![GATEWAY], writer);
        keeping.placed.insert(AP);
        assert_eq!(told(&mut keeping), [], "the store is not read yet");
        keeping.open(0);
        assert_eq!(told(&mut keeping), [Work::Missing]);
        assert_eq!(told(&mut keeping), []);
        assert!(!keeping.is_whole());
        assert_eq!(told(&mut keeping), [], "the control plane knows");

        keeping.writer.remove(0, &[AP]);
        assert_eq!(
            told(&mut keeping),
            [Work::Unwritten],
            "the gateway is gone from the vector"
        );
        assert_eq!(told(&mut keeping), []);
        assert!(keeping.batch(0, 10, 1).is_some());
        assert_eq!(told(&mut keeping), []);
        keeping.writer.written();
        assert!(keeping.batch(0, 10, 1).is_none());
        assert_eq!(told(&mut keeping), []);

        assert!(keeping.is_whole());
        let origin = Origin { ap: AP, epoch: 1 };
        let _ = keeping.writer.beat(0, &Beat { origin, newest: 1 });
        assert_eq!(told(&mut keeping), [Work::Missing]);
    }
}
