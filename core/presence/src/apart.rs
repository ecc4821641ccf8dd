//! A gateway without sessions: an access point that sends every linked writer its share directly.
//!
//! Owns: [`Apart`], a task for benches and tests of writers: its devices come and go by calls. Knows no proxy.

use crate::access::{AccessPoint, To};
use crate::map::ShardMap;
use crate::post::Task;
use crate::role;
use crate::split::Splitter;
use crate::wire::{Here, Message, Shard};
use muster_transport::{Frames, Identity, Mail, Micros};
use std::collections::BTreeMap;

/// The task of a gateway without sessions.
pub struct Apart {
    pub access: AccessPoint,
    /// Linked writers, each with its announced site and shard.
    writers: BTreeMap<u32, Option<(u16, Shard)>>,
}

impl Apart {
    pub fn new(access: AccessPoint) -> Self {
        Apart {
            access,
            writers: BTreeMap::new(),
        }
    }

    /// Moves the access point's frames to the links.
    pub fn leave(&mut self, mail: &mut Mail) {
        let out = self.access.take_out();
        if out.is_empty() {
            return;
        }
        let known = self.writers.values().flatten();
        let mut sites: Vec<(u16, u16)> = known.map(|(site, shard)| (*site, shard.of)).collect();
        sites.sort_unstable();
        sites.dedup();
        let map = ShardMap { version: 1, sites };
        let mut splitter = Splitter::new(&map);
        for (to, frame) in out {
            match to {
                To::Writer(writer) => {
                    mail.send(writer, &frame);
                }
                To::Proxies => {
                    for frame in Frames::new(&frame, crate::kinds::ALL).flatten() {
                        match Message::read(frame.kind, frame.body) {
                            Some(Message::Report(report)) => {
                                splitter.report(&report);
                            }
                            Some(Message::Beat(beat)) => splitter.beat(&beat),
                            _ => {}
                        }
                    }
                }
            }
        }
        for (target, frame) in splitter.finish() {
            let mut writers = self.writers.iter();
            let found = writers.find(|(_, known)| **known == Some((target.site, target.shard)));
            if let Some((writer, _)) = found {
                mail.send(*writer, &frame);
            }
        }
    }
}

impl Task for Apart {
    type Event = std::convert::Infallible;

    fn here(&self) -> Here {
        Here { site: 1, shard: None }
    }

    fn link(&mut self, _now: Micros, peer: Identity, up: bool, _mail: &mut Mail) {
        if up && peer.role == role::ONLINE_WRITER {
            self.writers.insert(peer.node, None);
        } else {
            self.writers.remove(&peer.node);
        }
    }

    fn message(&mut self, now: Micros, peer: Identity, message: Message<'_>, _mail: &mut Mail) -> bool {
        if peer.role != role::ONLINE_WRITER {
            return false;
        }
        match &message {
            Message::Here(here) => {
                let known = here.shard.map(|shard| (here.site, shard));
                self.writers.insert(peer.node, known);
            }
            Message::Ask(ask) => self.access.ask(peer.node, ask),
            Message::FullAsk(ask) => self.access.full_ask(now, peer.node, ask),
            _ => return false,
        }
        true
    }

    fn flush(&mut self, _now: Micros, mail: &mut Mail) {
        self.leave(mail);
    }

    fn expire(&mut self, now: Micros, mail: &mut Mail) {
        self.access.expire(now);
        self.leave(mail);
    }

    fn deadline(&self, _now: Micros) -> Option<Micros> {
        self.access.deadline()
    }
}
