//! One room that this client publishes to: whether the proxy has opened it, and its frames.
//!
//! Orders its parts: `backlog` (unacknowledged messages), `timing` (when they are repeated) and `allowance` (credit,
//! and waits while the owner accepts nothing).

mod allowance;
mod backlog;
mod timing;

use muster_transport::{Code, Micros, Writer};

use crate::chunks::split;
use crate::limits;
use crate::wire::publish::{Ack, Publish, PUBLISH};
use crate::wire::room::HEADERS;
use crate::wire::StreamId;
use allowance::Allowance;
use backlog::Backlog;
use timing::Timing;

/// Wait before asking an owner again that is not ready, or a proxy whose user exceeds the rate, unless the reply
/// names a longer one.
pub const NOT_READY_WAIT: Micros = 100_000;

/// The time stamp of a frame.
fn clock(now: Micros) -> u32 {
    (now as u32).max(1)
}

/// Why a message is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishError {
    /// Out of credit: wait for the room to become writable.
    WouldBlock,
    TooLong,
    /// The room was refused.
    Refused(Code),
}

/// A message that was acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    pub ticket: u64,
    pub stream: StreamId,
    pub offset: u64,
}

/// A room opened for publishing.
pub struct Publication {
    pub name: Box<str>,
    /// The program's number for it.
    pub number: u32,
    /// The count of messages published when this room was last used; it orders rooms by their last use.
    pub used: u64,
    pub request: u32,
    pub handle: Option<u32>,
    pub incarnation: u64,
    pub retry_at: Option<Micros>,
    /// How often in a row it was temporarily refused.
    pub refusals: u32,
    pub refused: Option<Code>,
    /// The program was told to wait.
    pub waiting: bool,
    pub published: u64,
    pub repeated: u64,
    /// The server passes on messages with headers; before, these wait.
    passes_headers: bool,
    backlog: Backlog,
    timing: Timing,
    allowance: Allowance,
}

impl Publication {
    pub fn new(name: &str, number: u32, request: u32, incarnation: u64) -> Self {
        Publication {
            name: name.into(),
            number,
            used: 0,
            request,
            handle: None,
            incarnation,
            retry_at: None,
            refusals: 0,
            refused: None,
            waiting: false,
            published: 0,
            repeated: 0,
            passes_headers: false,
            backlog: Backlog::default(),
            timing: Timing::default(),
            allowance: Allowance::default(),
        }
    }

    /// Whether no message and no caller waits.
    pub fn is_idle(&self) -> bool {
        self.refused.is_some() || self.backlog.is_empty() && !self.waiting
    }

    /// Number of unacknowledged messages (each chunk counts).
    pub fn unacknowledged(&self) -> usize {
        self.backlog.len()
    }

    /// Sequence of the first unacknowledged message, or else of the next one. It never falls.
    pub fn low(&self) -> u64 {
        self.backlog.low()
    }

    /// Accepts a message if there is credit for all of it. The acknowledgement names `ticket`, unless it is 0.
    pub fn push(&mut self, data: &[u8], ticket: u64, chunk_max: usize) -> Result<(), PublishError> {
        self.push_as(0, data, ticket, chunk_max)
    }

    /// The same for a message with this block of headers ([`encode`](crate::headers::encode)), which must fit into one chunk. Both
    /// together are as long as a message may be.
    pub fn push_headed(
        &mut self,
        headers: &[u8],
        data: &[u8],
        ticket: u64,
        chunk_max: usize,
    ) -> Result<(), PublishError> {
        match headers.len() {
            0 => self.push(data, ticket, chunk_max),
            len if len > chunk_max || len + data.len() > limits::MESSAGE_BYTES_MAX => Err(PublishError::TooLong),
            _ => self.push_as(HEADERS, &[headers, data].concat(), ticket, chunk_max),
        }
    }

    fn push_as(&mut self, also: u8, data: &[u8], ticket: u64, chunk_max: usize) -> Result<(), PublishError> {
        if let Some(code) = self.refused {
            return Err(PublishError::Refused(code));
        }
        let chunks = split(data, chunk_max).map_err(|_| PublishError::TooLong)?;
        let (messages, bytes) = (self.backlog.len() + chunks.len(), self.backlog.bytes() + data.len());
        if !self.allowance.covers(messages, bytes) {
            self.waiting = true;
            return Err(PublishError::WouldBlock);
        }
        self.backlog.push(also, chunks, data.len(), ticket);
        Ok(())
    }

    /// Takes the owner's acknowledgement; calls `done` for each message with a ticket.
    pub fn acknowledged(&mut self, now: Micros, ack: &Ack, done: impl FnMut(Published)) {
        if ack.code == Code::Ok && ack.echo != 0 {
            let put_off = self.allowance.put_off().is_some();
            self.timing.hear(now, clock(now).wrapping_sub(ack.echo), put_off);
        }
        let covered = self.backlog.acknowledge(ack, done);
        self.published += covered.messages;
        self.allowance.credit(now, ack);
        if ack.code.retry() {
            self.afresh();
            let until = self.allowance.hold(now, ack);
            self.timing.repeat_from(until);
            return;
        }
        if ack.code != Code::Ok {
            return self.refuse(ack.code);
        }
        self.allowance.accept();
        if covered.progress {
            self.timing.repeat_from(now + self.backlog.company());
        }
        self.backlog.note_missing(ack);
        self.repeat_lost(now);
    }

    /// Repeats messages that count as lost.
    fn repeat_lost(&mut self, now: Micros) {
        if self.backlog.repeat_lost(now, &self.timing) {
            self.timing.back_off();
        }
    }

    /// The room is refused: unacknowledged messages are dropped.
    pub fn refuse(&mut self, code: Code) {
        self.refused = Some(code);
        self.retry_at = None;
        self.backlog.clear();
        self.allowance.refuse();
    }

    /// The proxy opened the room with this handle.
    pub fn opened(&mut self, now: Micros, handle: u32) {
        self.handle = Some(handle);
        (self.retry_at, self.refusals) = (None, 0);
        self.timing.repeat_from(now);
    }

    /// The proxy is gone: everything unacknowledged is sent again through the next one.
    pub fn lost_session(&mut self) {
        self.handle = None;
        self.passes_headers = false;
        self.allowance.lost_session();
        self.afresh();
    }

    /// No unacknowledged message is in flight anymore: resets all to unsent.
    fn afresh(&mut self) {
        self.timing.renew();
        self.backlog.renew();
    }

    /// Runs the due timers: waits for the owner, for credit and for acknowledgements.
    pub fn expire(&mut self, now: Micros) {
        self.allowance.expire(now);
        if self.backlog.lost_at().is_some_and(|at| now >= at) {
            self.repeat_lost(now);
        }
        if self.repeat_at().is_some_and(|at| now >= at) {
            self.backlog.probe();
            self.timing.back_off();
            self.timing.repeat_from(now);
        }
    }

    /// When the oldest messages are repeated.
    fn repeat_at(&self) -> Option<Micros> {
        (self.handle.is_some() && self.backlog.is_in_flight()).then_some(self.timing.repeat_at())
    }

    /// When this room needs time next.
    pub fn deadline(&self) -> Option<Micros> {
        let lost = self.backlog.lost_at().filter(|_| self.handle.is_some());
        [self.repeat_at(), lost, self.allowance.deadline(), self.retry_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Why the owner or the proxy accepted nothing when it was last asked.
    pub fn put_off(&self) -> Option<Code> {
        self.allowance.put_off()
    }

    /// How long nothing may be sent because the owner or the proxy accepts nothing now.
    pub fn held_for(&self, now: Micros) -> Micros {
        self.allowance.held_for(now)
    }

    /// Whether anything can be sent now.
    pub fn is_due(&self) -> bool {
        self.handle.is_some()
            && self.refused.is_none()
            && !self.allowance.is_held()
            && (self.backlog.is_due(self.reach()) || self.allowance.is_poll_due())
    }

    /// How many unacknowledged messages may be in flight.
    fn reach(&self) -> usize {
        let put_off = self.allowance.put_off().is_some();
        self.backlog.reach(put_off, self.passes_headers)
    }

    /// Whether a message with headers waits for a server that passes these on.
    #[cfg(feature = "edge")]
    pub fn waits_for_headers(&self) -> bool {
        self.backlog.is_headed() && !self.passes_headers
    }

    /// Whether the server passes on messages with headers.
    pub fn set_passes_headers(&mut self, passes: bool) {
        if passes && !self.passes_headers {
            self.backlog.look_again();
        }
        self.passes_headers = passes;
    }

    /// Writes one publish frame, if something is due and fits. Returns whether it wrote one.
    pub fn write(&mut self, now: Micros, body_max: usize, writer: &mut Writer<'_>) -> bool {
        let Some(handle) = self.handle.filter(|_| self.is_due()) else {
            return false;
        };
        let mut body = [0; 1500];
        let space = body_max.min(writer.room().saturating_sub(PUBLISH)).min(body.len());
        let reach = self.reach();
        let mut messages = Writer::new(&mut body[..space]);
        // A wait that stops all sending.
        let stops = self.waiting || self.allowance.put_off().is_some();
        let filled = self.backlog.fill(now, reach, stops, &mut messages);
        self.repeated += filled.repeated;
        if filled.count == 0 && !self.allowance.is_poll_due() {
            return false;
        }
        self.allowance.polled();
        if filled.fresh {
            self.timing.repeat_from(now + self.backlog.company());
        }
        let len = messages.len();
        Publish {
            handle,
            sent_at: clock(now),
            low: self.backlog.low(),
            first: filled.first,
            count: filled.count as u8,
            messages: &body[..len],
        }
        .write(writer)
    }

    /// Whether the program that was told to wait can continue.
    pub fn take_writable(&mut self) -> bool {
        let writable = self.waiting && self.allowance.is_roomy(self.backlog.len(), self.backlog.bytes());
        if writable {
            self.waiting = false;
        }
        writable
    }
}

#[cfg(test)]
mod tests {
    use super::timing::BACK_OFF_MAX;
    use super::*;
    use crate::wire::publish::ACK_RANGES;
    use std::collections::VecDeque;

    /// Publishes `count` messages, one each `every`, to an owner with round trip `rtt` that loses nothing; returns
    /// how many were repeated.
    fn repeats(publication: &mut Publication, start: Micros, count: u64, every: Micros, rtt: Micros) -> u64 {
        let (mut now, mut acks, before) = (start, VecDeque::new(), publication.repeated);
        let mut owned = publication.low() - 1;
        let end = owned + count;
        for step in 0.. {
            now = start + step * 1_000;
            if owned + (publication.unacknowledged() as u64) < end && (now - start) % every == 0 {
                publication.push(b"message", 0, 1_000).unwrap();
            }
            while acks.front().is_some_and(|(at, _)| *at <= now) {
                let (_, ack) = acks.pop_front().unwrap();
                publication.acknowledged(now, &ack, |_| {});
            }
            publication.expire(now);
            let mut bytes = [0; 1_200];
            let mut writer = Writer::new(&mut bytes);
            while publication.is_due() && publication.write(now, 1_000, &mut writer) {}
            if !writer.is_empty() {
                let sent = publication.backlog.next() - 1;
                let ack = Ack {
                    handle: 1,
                    echo: clock(now),
                    code: Code::Ok,
                    cumulative: sent,
                    highest: sent,
                    credit_messages: 256,
                    credit_bytes: 1 << 18,
                    stream: StreamId::default(),
                    missing: vec![],
                    runs: vec![],
                };
                acks.push_back((now + rtt, ack));
            }
            owned = publication.low() - 1;
            if owned == end {
                break;
            }
        }
        assert!(now > start);
        publication.repeated - before
    }

    /// A publication whose owner has been silent for long after quick acknowledgements.
    fn left_alone() -> (Publication, Micros) {
        let mut publication = Publication::new("live:room", 0, 1, 1);
        publication.opened(1, 1);
        repeats(&mut publication, 1, 200, 10_000, 1_000);
        publication.push(b"message", 0, 1_000).unwrap();
        let start = 10_000_000;
        for now in (start..start + 5_000_000).step_by(1_000) {
            sends(&mut publication, now);
        }
        assert_eq!(publication.timing.wait(), BACK_OFF_MAX);
        (publication, start + 5_000_000)
    }

    fn sends(publication: &mut Publication, now: Micros) -> bool {
        publication.expire(now);
        publication.is_due() && publication.write(now, 1_000, &mut Writer::new(&mut [0; 1_200]))
    }

    /// Number of sendings in the next 150 ms.
    fn pace(publication: &mut Publication, from: Micros) -> usize {
        let times = (from..from + 150_000).step_by(1_000);
        times.filter(|now| sends(publication, *now)).count()
    }

    #[test]
    fn repeats_are_fast_again_once_the_owner_returns() {
        let (mut silent, now) = left_alone();
        assert!(pace(&mut silent, now) <= 1);
        let word = |publication: &Publication, now, code, epoch| Ack {
            handle: 1,
            echo: clock(now - 1_000),
            code,
            cumulative: publication.low() - 1,
            highest: publication.low() - 1,
            credit_messages: 256,
            credit_bytes: 1 << 18,
            stream: StreamId {
                epoch,
                ..StreamId::default()
            },
            missing: vec![],
            runs: vec![],
        };
        let (mut not_ready, now) = left_alone();
        not_ready.acknowledged(now, &word(&not_ready, now, Code::NotReady, 1), |_| {});
        let often = pace(&mut not_ready, now);
        assert!((3..=7).contains(&often), "{often} times once it is asked again");
        let (mut anew, now) = left_alone();
        anew.acknowledged(now, &word(&anew, now, Code::Ok, 1), |_| {});
        let often = pace(&mut anew, now);
        assert!((4..=8).contains(&often), "{often} times");
        let (mut another_way, now) = left_alone();
        another_way.lost_session();
        assert_eq!(pace(&mut another_way, now), 0, "there is no way yet");
        another_way.opened(now + 150_000, 1);
        let often = pace(&mut another_way, now + 150_000);
        assert!((4..=8).contains(&often), "{often} times");
    }

    #[test]
    fn a_message_is_repeated_until_its_offset_is_known() {
        let mut publication = Publication::new("live:room", 0, 1, 1);
        publication.opened(1, 1);
        (1..=3).for_each(|ticket| publication.push(b"message", ticket % 3, 1_000).unwrap());
        sends(&mut publication, 1);
        let ack = |runs: Vec<(u64, u64, u16)>| Ack {
            handle: 1,
            echo: 0,
            code: Code::Ok,
            cumulative: 3,
            highest: 3,
            credit_messages: 256,
            credit_bytes: 1 << 18,
            stream: StreamId::default(),
            missing: vec![],
            runs,
        };
        let mut placed = Vec::new();
        publication.acknowledged(2, &ack(vec![(2, 12, 2)]), |done| {
            placed.push((done.ticket, done.offset))
        });
        assert_eq!(
            (placed.len(), publication.unacknowledged()),
            (0, 3),
            "a publisher that waits for the first has no offset"
        );
        publication.acknowledged(3, &ack(vec![(1, 11, 1)]), |done| {
            placed.push((done.ticket, done.offset))
        });
        assert_eq!((&placed[..], publication.unacknowledged()), (&[(1, 11)][..], 2));
        assert!(
            (4..1_000_000).step_by(1_000).any(|now| sends(&mut publication, now)),
            "it asks again"
        );
        publication.acknowledged(5, &ack(vec![(2, 12, 2)]), |done| {
            placed.push((done.ticket, done.offset))
        });
        assert_eq!(
            (&placed[..], publication.unacknowledged()),
            (&[(1, 11), (2, 12)][..], 0)
        );
    }

    #[test]
    fn waiting_for_an_absent_owner_is_not_taken_as_its_round_trip() {
        for refused in [false, true] {
            let (mut publication, mut now) = left_alone();
            let heard = |publication: &mut Publication, now, code, took: Micros| {
                let ack = Ack {
                    handle: 1,
                    echo: clock(now - took),
                    code,
                    cumulative: publication.low() - 1,
                    highest: publication.low() - 1,
                    credit_messages: 256,
                    credit_bytes: 1 << 18,
                    stream: StreamId::default(),
                    missing: vec![],
                    runs: vec![],
                };
                publication.acknowledged(now, &ack, |_| {});
            };
            if refused {
                heard(&mut publication, now, Code::NotReady, 2_000);
                now += NOT_READY_WAIT;
            }
            for took in [900_000, 850_000, 800_000] {
                heard(&mut publication, now, Code::Ok, took);
            }
            let again = (now..)
                .step_by(1_000)
                .find(|now| sends(&mut publication, *now))
                .unwrap();
            assert!(again <= now + BACK_OFF_MAX, "{} us", again - now);
            heard(&mut publication, again + 2_000, Code::Ok, 2_000);
            assert!(
                publication.timing.patience() < 20_000,
                "{} us",
                publication.timing.patience()
            );
        }
    }

    #[test]
    fn a_far_owner_is_not_taken_for_a_lossy_one() {
        for rtt in [80_000, 300_000, 900_000] {
            let mut publication = Publication::new("live:room", 0, 1, 1);
            publication.opened(1, 1);
            let repeated = repeats(&mut publication, 1, 200, 36_000, rtt);
            assert!(repeated <= 40, "{repeated} of 200 messages were repeated at {rtt} us");
            // The same for a near owner that moves away.
            let mut publication = Publication::new("live:room", 0, 1, 1);
            publication.opened(1, 1);
            assert_eq!(repeats(&mut publication, 1, 200, 36_000, 4_000), 0);
            let repeated = repeats(&mut publication, 1_000_000_000, 200, 36_000, rtt);
            assert!(repeated <= 40, "{repeated} of 200 messages were repeated at {rtt} us");
        }
    }

    /// A path that loses one datagram in this many each way, and an owner behind it that holds early messages up to
    /// its bound.
    struct Path {
        one_in: u64,
        dice: u64,
        now: Micros,
        owner: Owner,
        /// The path delays everything and loses nothing.
        shut: bool,
        there: VecDeque<(Micros, Vec<u8>)>,
        back: VecDeque<(Micros, Ack)>,
        datagrams: u64,
    }

    /// The owner, if it is reachable and ready.
    #[derive(Default)]
    struct Owner {
        epoch: u32,
        here: bool,
        ready: bool,
        cumulative: u64,
        held: std::collections::BTreeSet<u64>,
    }

    impl Owner {
        fn new(epoch: u32, ready: bool) -> Self {
            Owner {
                epoch,
                here: true,
                ready,
                ..Owner::default()
            }
        }
    }

    const ONE_WAY: Micros = 2_000;

    impl Path {
        fn new(one_in: u64, seed: u64) -> Self {
            let (there, back) = Default::default();
            let dice = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            Path {
                one_in,
                dice,
                now: 1,
                owner: Owner::new(1, true),
                shut: false,
                there,
                back,
                datagrams: 0,
            }
        }

        fn loses(&mut self) -> bool {
            self.dice ^= self.dice << 13;
            self.dice ^= self.dice >> 7;
            self.dice ^= self.dice << 17;
            self.dice % self.one_in == 0
        }

        fn arrives(&mut self, body: &[u8]) -> Option<Ack> {
            let frame = Publish::read(body).unwrap();
            let owner = &mut self.owner;
            if !owner.here {
                return None;
            }
            if owner.ready {
                owner.cumulative = owner.cumulative.max(frame.low - 1);
                for at in frame.first..frame.first + u64::from(frame.count) {
                    if at == owner.cumulative + 1 || owner.held.len() < limits::HELD_MESSAGES_MAX {
                        owner.held.insert(at);
                    }
                    while owner.held.remove(&(owner.cumulative + 1)) {
                        owner.cumulative += 1;
                    }
                }
                owner.held = owner.held.split_off(&owner.cumulative);
            }
            let highest = owner.held.last().copied().unwrap_or(owner.cumulative);
            let mut missing: Vec<(u64, u64)> = Vec::new();
            let mut next = owner.cumulative + 1;
            for at in owner.held.iter().copied() {
                if at > next && missing.len() < ACK_RANGES {
                    missing.push((next, at - 1));
                }
                next = at + 1;
            }
            Some(Ack {
                handle: 1,
                echo: frame.sent_at,
                code: if owner.ready { Code::Ok } else { Code::NotReady },
                cumulative: owner.cumulative,
                highest,
                credit_messages: 256,
                credit_bytes: 1 << 18,
                stream: StreamId {
                    node: 2,
                    epoch: owner.epoch,
                    generation: 1,
                },
                missing,
                runs: vec![],
            })
        }

        /// Runs until `end`, or until all is acknowledged; returns the elapsed time.
        fn run(&mut self, publication: &mut Publication, time: Micros) -> Micros {
            let start = self.now;
            while self.now < start + time && publication.unacknowledged() > 0 {
                self.now += 500;
                let now = self.now;
                while !self.shut && self.there.front().is_some_and(|(at, _)| *at <= now) {
                    let (_, body) = self.there.pop_front().unwrap();
                    if let Some(ack) = self.arrives(&body).filter(|_| !self.loses()) {
                        self.back.push_back((now + ONE_WAY, ack));
                    }
                }
                while self.back.front().is_some_and(|(at, _)| *at <= now) {
                    let (_, ack) = self.back.pop_front().unwrap();
                    publication.acknowledged(now, &ack, |_| {});
                }
                publication.expire(now);
                while publication.is_due() {
                    let mut bytes = [0; 1_200];
                    let mut writer = Writer::new(&mut bytes);
                    if !publication.write(now, 1_000, &mut writer) {
                        break;
                    }
                    let len = writer.len();
                    self.datagrams += 1;
                    if !self.loses() {
                        self.there
                            .push_back((now + ONE_WAY, bytes[muster_transport::FRAME..len].to_vec()));
                    }
                }
            }
            self.now - start
        }
    }

    fn full() -> Publication {
        let mut publication = Publication::new("live:room", 0, 1, 1);
        publication.opened(1, 1);
        while publication.push(&[7; 900], 0, 1_000).is_ok() {}
        publication
    }

    const SECOND: Micros = 1_000_000;

    /// Fills the client's credit, then calls `happens`; checks the time until everything is acknowledged again.
    fn recovery(name: &str, limit: Micros, happens: impl Fn(&mut Path, &mut Publication)) {
        let mut took: Vec<(Micros, u64)> = (0..300)
            .map(|seed| {
                let (mut path, mut publication) = (Path::new(50, seed), full());
                path.run(&mut publication, 3 * ONE_WAY);
                happens(&mut path, &mut publication);
                let before = path.datagrams;
                (path.run(&mut publication, 60 * SECOND), path.datagrams - before)
            })
            .collect();
        took.sort_unstable();
        let worst = took[took.len() - 1].0;
        let datagrams: u64 = took.iter().map(|(_, datagrams)| datagrams).sum();
        eprintln!(
            "{name}: p50 {} p90 {} worst {worst} datagrams {}",
            took[150].0,
            took[270].0,
            datagrams / 300
        );
        if std::env::var("ALL").is_err() {
            assert!(worst < limit, "{name}: {worst} us");
        }
    }

    #[test]
    fn a_lost_datagram_costs_round_trips_not_seconds() {
        recovery("nothing", SECOND, |_, _| {});
        recovery("another session", SECOND, |path, publication| {
            path.owner.here = false;
            path.run(publication, 3 * SECOND);
            publication.lost_session();
            path.run(publication, SECOND);
            publication.opened(path.now, 1);
            path.owner.here = true;
        });
        recovery("an owner that was away", 2 * SECOND, |path, publication| {
            path.owner.here = false;
            path.run(publication, 3 * SECOND);
            path.owner.here = true;
        });
        recovery("what waited for the owner", SECOND, |path, publication| {
            path.shut = true;
            path.run(publication, SECOND / 3);
            path.shut = false;
        });
        recovery("another owner", 2 * SECOND, |path, publication| {
            path.owner.here = false;
            path.run(publication, 3 * SECOND);
            path.owner = Owner::new(2, true);
        });
        recovery(
            "another owner that is not ready at first",
            2 * SECOND,
            |path, publication| {
                path.owner.here = false;
                path.run(publication, 3 * SECOND);
                path.owner = Owner::new(2, false);
                path.run(publication, 2 * SECOND);
                path.owner.ready = true;
            },
        );
    }
}
