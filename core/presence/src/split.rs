//! The online proxy: one packet in, a frame for every writer of every site out.
//!
//! Owns: [`Splitter`], which lives for one turn. A proxy keeps nothing from turn to turn, so any proxy can take any
//! packet. Every writer gets every version: if a version has no events for a writer, it gets an empty mark, otherwise
//! it would see a hole (H1).

use crate::event::Event;
use crate::limits::PACKET_EVENTS_BYTES_MAX;
use crate::map::{ShardMap, Target};
use crate::wire::{Beat, Empty, Events, Message, Origin, Report, Shard, Share};
use muster_transport::Writer;

/// A frame for a writer.
pub type Framed = (Target, Vec<u8>);

/// Versions without events that were not sent yet.
#[derive(Clone, Copy)]
struct Run {
    origin: Origin,
    first: u64,
    last: u64,
}

/// Splits the packets of one turn.
pub struct Splitter<'a> {
    map: &'a ShardMap,
    targets: Vec<(Target, Option<Run>)>,
    out: Vec<Framed>,
}

impl<'a> Splitter<'a> {
    pub fn new(map: &'a ShardMap) -> Self {
        Splitter {
            map,
            targets: map.targets().map(|target| (target, None)).collect(),
            out: Vec::new(),
        }
    }

    /// Takes a packet; `false`: it is malformed, and nothing of it leaves.
    pub fn report(&mut self, report: &Report<'_>) -> bool {
        let Some(events) = report.events.read() else {
            return false;
        };
        for (target, run) in &mut self.targets {
            share_or_run(&mut self.out, self.map.version, *target, run, report, &events);
        }
        true
    }

    /// Forwards a beat to every writer.
    pub fn beat(&mut self, beat: &Beat) {
        let bytes = Message::Beat(*beat).to_frame();
        self.out
            .extend(self.targets.iter().map(|(target, _)| (*target, bytes.clone())));
    }

    /// Returns all frames of the turn.
    pub fn finish(mut self) -> Vec<Framed> {
        for (target, run) in &mut self.targets {
            flush(&mut self.out, self.map.version, *target, run);
        }
        self.out
    }
}

fn share_or_run(
    out: &mut Vec<Framed>,
    map: u32,
    target: Target,
    run: &mut Option<Run>,
    report: &Report<'_>,
    events: &[Event],
) {
    let (origin, version) = (report.origin, report.version);
    let framed = share(map, target.shard, origin, version, events);
    if let Some(bytes) = framed {
        flush(out, map, target, run);
        out.push((target, bytes));
        return;
    }
    match run {
        Some(run) if run.origin == origin && run.last.wrapping_add(1) == version => run.last = version,
        _ => {
            flush(out, map, target, run);
            *run = Some(Run {
                origin,
                first: version,
                last: version,
            });
        }
    }
}

fn flush(out: &mut Vec<Framed>, map: u32, target: Target, run: &mut Option<Run>) {
    if let Some(Run { origin, first, last }) = run.take() {
        out.push((target, empty(map, target.shard, origin, first, last)));
    }
}

/// The frame with a shard's events; `None`: it has none.
pub(crate) fn share(map: u32, shard: Shard, origin: Origin, version: u64, events: &[Event]) -> Option<Vec<u8>> {
    let mut bytes = [0; PACKET_EVENTS_BYTES_MAX];
    let mut writer = Writer::new(&mut bytes);
    for event in events.iter().filter(|event| shard.owns(event.user)) {
        event.write(&mut writer);
    }
    assert!(!writer.full(), "a packet has no more events than fit");
    (!writer.is_empty()).then(|| {
        let events = Events(writer.written());
        let share = Share {
            map,
            shard,
            origin,
            version,
            events,
        };
        Message::Share(share).to_frame()
    })
}

/// The frame for versions without events.
pub(crate) fn empty(map: u32, shard: Shard, origin: Origin, first: u64, last: u64) -> Vec<u8> {
    Message::Empty(Empty {
        map,
        shard,
        origin,
        first,
        last,
    })
    .to_frame()
}
