//! One sealed connection: keys, replay window, flow, status, control log, keepalive and tail probe.
//!
//! Sessions with clients and links between nodes both consist of this. Knows no role, no room and no handshake. Between
//! [`Conn::control`] and [`Conn::seal`], a role writes its own frames into the datagram.

use crate::codec::{Reader, Writer};
use crate::flow::{Flow, STATUS_DELAY};
use crate::limits::STATUS_SPAN;
use crate::log::{LogReceiver, LogSender, Records};
use crate::machine::{Addr, Micros, Outbox, SocketId};
use crate::seal::{accepts_generation, Direction, KeyCache, KeySlots, Secret, TAG};
use crate::window::{Verdict, Window};
use crate::wire::frame::{append, Status, STATUS_RANGES};
use crate::wire::header::{DatagramKind, Header, HEADER, STATUS_WANTED};
use crate::wire::record::Encode;
use crate::wire::{Code, Frame, FrameKind};

/// A status leaves after this many datagrams that elicit one, or [`STATUS_DELAY`] after the first of them.
pub const STATUS_DATAGRAMS: u16 = 32;
/// Once this many datagrams wait for a status, it is added to the next data datagram.
const STATUS_RIDES: u16 = 8;
/// Earliest times to probe an unacknowledged tail: the first after it was sent, the others after the previous probe.
pub const TAIL_PROBES: [Micros; 3] = [20_000, 60_000, 180_000];
/// A probe also waits for 1.5 round trips and for the longest recent round trip, doubled with each probe, since a
/// status may be on the way. This is the longest such delay.
const PROBE_PUT_OFF_MAX: Micros = 2_000_000;
const PROBES: u8 = TAIL_PROBES.len() as u8;
/// Control records that a session may have unacknowledged.
pub const SESSION_LOG_BYTES: usize = 64 * 1024;

/// The node's fields in the header of every datagram it sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    pub epoch: u32,
    pub placement: u32,
}

/// Why a sealed datagram is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reject {
    Duplicate,
    Old,
    Generation,
    Forged,
}

/// A parsed status, and what it means for the datagrams that this side sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Heard {
    /// Datagrams are missing at the peer, may be missing, or the tail is not covered yet.
    pub missing: bool,
    pub status: Status,
    /// Sequences between these two, exclusive, are covered by no status: they may be missing.
    untold: (u64, u64),
}

/// All statuses so far, combined.
#[derive(Default)]
struct Reports {
    highest: u64,
    received: u32,
    /// Until the highest sequence reaches this one, late datagrams may still be counted as received.
    late_until: u64,
}

impl Reports {
    /// Takes a status of a peer that drops datagrams more than `reach` below the highest.
    fn hear(&mut self, status: Status, reach: u64) -> Heard {
        let judged = self.highest;
        // The peer received as many as were sent, and none of them was an earlier one: nothing was lost since.
        let clean = judged >= self.late_until
            && u64::from(status.received.wrapping_sub(self.received)) == status.highest.saturating_sub(judged);
        let told_from = match status.missing() {
            [.., (first, _)] if status.missing().len() == STATUS_RANGES => *first,
            [] if clean => 0,
            _ => (status.highest + 1).saturating_sub(STATUS_SPAN),
        };
        let missing = status.missing_len > 0 || judged + 1 < told_from;
        if missing {
            self.late_until = status.highest + reach;
        }
        (self.highest, self.received) = (status.highest.max(judged), status.received);
        Heard {
            missing,
            status,
            untold: (judged, told_from),
        }
    }
}

impl Heard {
    /// Whether `sequence` is missing at the peer, or may be. The first status that reaches it decides.
    pub fn lost(&self, sequence: u64) -> bool {
        let (judged, told_from) = self.untold;
        sequence <= self.status.highest && (!self.status.covers(sequence) || judged < sequence && sequence < told_from)
    }
}

/// The connection's verdict on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// Handled: the frame held nothing for the role, or only records.
    Done,
    Heard(Heard),
    /// Our log is acknowledged up to this offset.
    Acknowledged(u64),
    Closed(Code),
    /// The role must interpret it.
    Other,
    /// Malformed.
    Bad,
}

/// Which response a datagram needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Wants {
    /// No status: its arrival needs no confirmation.
    Nothing,
    /// A status, but no probe: the content is requested or repeated by another timer.
    Status,
    /// A status, and probes if none comes.
    Probes,
}

/// One connection. `BLOCKS` x 64 is the replay window in datagrams. Its fields are not grouped further: a server reads
/// those from `tail_at` on for each datagram, and in groups they would lie apart or need padding.
#[repr(C)] // fields that each received datagram needs are adjacent, from `tail_at` on
pub struct Conn<const BLOCKS: usize> {
    pub flow: Flow,
    log_in: LogReceiver,
    told: Reports,
    tail_sequence: u64,
    status_from: u64,
    pub sent_at: Micros,
    /// The connection id that the peer chose; it goes into datagrams to the peer.
    pub peer: u64,
    pub socket: SocketId,
    /// Bytes that the peer may have in our socket buffer.
    pub receive_window: u32,
    /// Its niche also holds the tag of `Option<Conn>`.
    tail_at: Option<Micros>,
    /// The connection id that we chose; it stands in datagrams to us.
    pub id: u64,
    secret: Secret,
    keys: KeySlots,
    pub heard_at: Micros,
    highest_at: Micros,
    /// The sequence opened last; `status_from` is the one that carried the status in force.
    opened: u64,
    pending_since: Micros,
    received: u32,
    pending: u16,
    pub addr: Addr,
    initiator: bool,
    key_id: u8,
    wanted: bool,
    want_status: bool,
    log_ack: bool,
    tail_step: u8,
    pub log: LogSender,
    window: Window<BLOCKS>,
}

impl<const BLOCKS: usize> Conn<BLOCKS> {
    /// Offset of the first field that a received datagram needs.
    pub const HOT: usize = std::mem::offset_of!(Self, tail_at);

    #[allow(clippy::too_many_arguments)]
    pub fn new(
        id: u64,
        peer: u64,
        socket: SocketId,
        addr: Addr,
        secret: Secret,
        initiator: bool,
        key_id: u8,
        log_bytes: usize,
        now: Micros,
    ) -> Self {
        Conn {
            id,
            peer,
            addr,
            socket,
            flow: Flow::new(32 * 1024),
            log: LogSender::new(log_bytes),
            log_in: LogReceiver::new(SESSION_LOG_BYTES),
            secret,
            keys: KeySlots::default(),
            initiator,
            key_id,
            window: Window::default(),
            received: 0,
            pending: 0,
            wanted: false,
            want_status: false,
            log_ack: false,
            tail_step: 0,
            receive_window: 64 * 1024,
            highest_at: now,
            opened: 0,
            status_from: 0,
            pending_since: 0,
            heard_at: now,
            sent_at: now,
            tail_at: None,
            told: Reports::default(),
            tail_sequence: 0,
        }
    }

    /// The secret of this connection's keys, for benches that measure opening alone.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The key id of the secret that the connection was made with.
    pub fn key_id(&self) -> u8 {
        self.key_id
    }

    fn direction(&self, ours: bool) -> Direction {
        if self.initiator == ours {
            Direction::Initiator
        } else {
            Direction::Responder
        }
    }

    /// Prefetches the key that [`Conn::open`] will need.
    #[inline]
    pub fn fetch_key(&self, keys: &KeyCache) {
        keys.fetch(&self.keys);
    }

    /// Opens a data datagram in place. Returns the length of the frames behind the header.
    #[inline]
    pub fn open(
        &mut self,
        now: Micros,
        keys: &mut KeyCache,
        header: &Header,
        datagram: &mut [u8],
    ) -> Result<usize, Reject> {
        match self.window.check(header.sequence) {
            Verdict::Fresh => {}
            Verdict::Duplicate => return Err(Reject::Duplicate),
            Verdict::Old => return Err(Reject::Old),
        }
        if !accepts_generation(self.window.highest(), header.sequence) {
            return Err(Reject::Generation);
        }
        let direction = self.direction(false);
        let (aad, sealed) = datagram.split_at_mut(HEADER);
        let Ok(len) = keys.open(&self.secret, &mut self.keys, direction, header.sequence, aad, sealed) else {
            return Err(Reject::Forged);
        };
        if header.sequence > self.window.highest() {
            self.highest_at = now;
        }
        self.window.commit(header.sequence);
        self.opened = header.sequence;
        self.received = self.received.wrapping_add(1);
        self.is_heard(now);
        if header.flags & STATUS_WANTED != 0 {
            self.wanted = true;
        }
        Ok(len)
    }

    #[inline]
    fn is_heard(&mut self, now: Micros) {
        self.heard_at = now;
        if self.tail_at.is_none() {
            self.tail_step = 0; // the next tail gets the full number of probes
        }
    }

    /// Whether `sequence` is the highest received so far: an address change is only accepted from such a datagram.
    pub fn is_newest(&self, sequence: u64) -> bool {
        sequence == self.window.highest()
    }

    /// The datagram opened last elicits a status.
    #[inline]
    pub fn elicited(&mut self, now: Micros) {
        if self.pending == 0 {
            self.pending_since = now;
        }
        self.pending = self.pending.saturating_add(1);
    }

    /// Takes a status frame. `None`: malformed, or it covers datagrams that were never sent.
    pub fn status(&mut self, now: Micros, body: &[u8]) -> Option<Heard> {
        let status = Status::read(body)?;
        if self.opened < self.status_from {
            // Overtaken by a newer status: its window is outdated.
            return Some(Heard::default());
        }
        self.status_from = self.opened;
        self.heard(now, status)
    }

    fn heard(&mut self, now: Micros, status: Status) -> Option<Heard> {
        if !self.flow.status(now, &status) {
            return None;
        }
        let mut heard = self.told.hear(status, 64 * BLOCKS as u64);
        heard.missing |= !status.covers(self.tail_sequence);
        self.log.heard(status.highest);
        if status.highest >= self.tail_sequence {
            self.tail_at = None;
        }
        Some(heard)
    }

    /// Takes a log frame; `each` sees every record once and in order.
    pub fn log_frame(&mut self, body: &[u8], each: impl FnMut(&[u8])) -> bool {
        self.log_ack = true;
        self.log_in.receive(body, each).is_ok()
    }

    /// Takes an acknowledgement of our log. `None`: malformed.
    pub fn log_acknowledged(&mut self, body: &[u8]) -> Option<u64> {
        let next = Reader::new(body).u64()?;
        self.log.acknowledge(next.checked_sub(1)?);
        Some(self.log.acknowledged())
    }

    /// Takes a frame that every connection understands. Appends records of the control log to `records`.
    pub fn control_frame(&mut self, now: Micros, frame: &Frame<'_>, records: &mut Records) -> Control {
        match frame.kind {
            FrameKind::STATUS => self.status(now, frame.body).map_or(Control::Bad, Control::Heard),
            FrameKind::LOG => {
                let good = self.log_frame(frame.body, |record| records.push(record));
                if good {
                    Control::Done
                } else {
                    Control::Bad
                }
            }
            FrameKind::LOG_ACK => self
                .log_acknowledged(frame.body)
                .map_or(Control::Bad, Control::Acknowledged),
            FrameKind::PING => {
                self.wanted = true;
                Control::Done
            }
            FrameKind::CLOSE => Control::Closed(Code::from_u8(frame.body.first().copied().unwrap_or(0))),
            _ => Control::Other,
        }
    }

    /// Bytes of the peer's records that arrived before their predecessors.
    pub fn early_bytes(&self) -> usize {
        self.log_in.held_bytes()
    }

    /// Sets the limit of bytes held out of order; the peer repeats records that are dropped for it.
    pub fn hold_at_most(&mut self, bytes: usize) {
        self.log_in.hold_at_most(bytes);
    }

    /// Appends a record to the control log. `None`: the log is full.
    pub fn record(&mut self, record: &impl Encode) -> Option<u64> {
        record.encode(|bytes| self.log.push(bytes)).ok()
    }

    fn log_due(&self, now: Micros) -> bool {
        !self.log.is_idle() && self.log.has_due(now, self.log_rto())
    }

    fn log_rto(&self) -> Micros {
        (3 * self.flow.rtt()).clamp(30_000, 500_000)
    }

    /// Whether a datagram must leave just to carry control frames.
    pub fn control_due(&self, now: Micros) -> bool {
        self.wanted
            || self.log_ack
            || self.want_status
            || self.pending >= STATUS_DATAGRAMS
            || self.status_due().is_some_and(|at| now >= at)
            || self.log_due(now)
    }

    /// Asks the peer for a status with the next datagram, which leaves soon.
    pub fn ask_status(&mut self) {
        self.want_status = true;
    }

    /// Adds a status to the next datagram.
    pub fn offer_status(&mut self) {
        self.wanted = true;
    }

    /// The receive window has opened: sends a status and asks for a reply, since the peer may be waiting for nothing
    /// else.
    pub fn tell_status(&mut self) {
        self.wanted = true;
        self.want_status = true;
    }

    fn compose_status(&self, now: Micros) -> Status {
        let mut status = Status {
            highest: self.window.highest(),
            received: self.received,
            delay: u32::try_from(now.saturating_sub(self.highest_at)).unwrap_or(u32::MAX),
            window: self.receive_window,
            ..Status::default()
        };
        status.missing_len = self.window.missing_ranges(&mut status.missing) as u8;
        status
    }

    /// Writes control frames in front of a datagram: status, log acknowledgement, log records, ping. Returns the
    /// response that these alone need.
    pub fn control(&mut self, now: Micros, writer: &mut Writer<'_>) -> Wants {
        // A datagram that asks for a status carries one too: a peer without a window learns of a new one this way.
        let due = self.wanted
            || self.want_status
            || self.pending >= STATUS_RIDES
            || self.status_due().is_some_and(|at| now >= at);
        if due && self.window.highest() > 0 && self.compose_status(now).write(writer) {
            self.pending = 0;
            self.wanted = false;
        }
        if self.log_ack {
            let next = self.log_in.next_expected();
            self.log_ack = !append(writer, FrameKind::LOG_ACK, 0, |writer| {
                writer.u64(next);
                true
            });
        }
        let mut wants = Wants::Nothing;
        if self.log_due(now) {
            let (rto, last) = (self.log_rto(), self.log.last_sent());
            let (log, carrier) = (&mut self.log, self.flow.next());
            let wrote = append(writer, FrameKind::LOG, 0, |writer| {
                let written = log.next_frame(now, rto, carrier, writer.spare());
                writer.advance(written.unwrap_or(0));
                written.is_some()
            });
            if wrote && self.log.last_sent() > last {
                wants = Wants::Probes;
            } else if wrote {
                wants = Wants::Status;
            }
        }
        if self.want_status && wants == Wants::Nothing && append(writer, FrameKind::PING, 0, |_| true) {
            wants = Wants::Status;
        }
        wants
    }

    /// Closes a datagram with frames in `buffer[HEADER..HEADER + len]`: pads it to `pad` bytes in all if it is shorter,
    /// writes the header, seals. Returns the datagram's length.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub fn seal(
        &mut self,
        now: Micros,
        keys: &mut KeyCache,
        stamp: Stamp,
        buffer: &mut [u8],
        len: usize,
        wants: Wants,
        pad: usize,
    ) -> usize {
        let end = (HEADER + len).max(pad.saturating_sub(TAG));
        buffer[HEADER + len..end].fill(0);
        let elicits = wants > Wants::Nothing;
        let sequence = self.flow.sent(now, end + TAG, elicits);
        let asks = self.want_status || elicits && self.flow.inquires(now);
        let header = Header {
            kind: DatagramKind::Data,
            key_id: self.key_id,
            flags: if asks { STATUS_WANTED } else { 0 },
            connection: self.peer,
            epoch: stamp.epoch,
            sequence,
            placement: stamp.placement,
        };
        let direction = self.direction(true);
        let (aad, rest) = buffer.split_at_mut(HEADER);
        header.write(aad);
        let (frames, space) = rest.split_at_mut(end - HEADER);
        let tag = keys.seal(&self.secret, &mut self.keys, direction, sequence, aad, frames);
        space[..TAG].copy_from_slice(&tag);
        self.want_status = false;
        self.sent_at = now;
        if wants == Wants::Probes {
            self.tail_sequence = sequence;
            // A peer that ignored all probes gets only one more.
            self.tail_step = if self.tail_step < PROBES { 0 } else { PROBES - 1 };
            self.tail_at = self.probe_at(now, self.tail_step);
        }
        end + TAG
    }

    /// Puts one datagram with only control frames into the outbox.
    pub fn send_control(
        &mut self,
        now: Micros,
        keys: &mut KeyCache,
        stamp: Stamp,
        outbox: &mut Outbox,
        payload: usize,
    ) {
        self.send(now, keys, stamp, outbox, payload, |_, _| false);
    }

    /// Sends one datagram: control first, then the frames of `fill`, which returns whether they must be probed for.
    /// Sends nothing if nothing was written.
    pub fn send(
        &mut self,
        now: Micros,
        keys: &mut KeyCache,
        stamp: Stamp,
        outbox: &mut Outbox,
        payload: usize,
        fill: impl FnOnce(&mut Writer<'_>, u64) -> bool,
    ) -> bool {
        let buffer = outbox.reserve(payload);
        let mut writer = Writer::new(&mut buffer[HEADER..payload - TAG]);
        let mut wants = self.control(now, &mut writer);
        if fill(&mut writer, self.flow.next()) {
            wants = Wants::Probes;
        }
        let len = writer.len();
        if len == 0 {
            return false;
        }
        let total = self.seal(now, keys, stamp, buffer, len, wants, 0);
        outbox.commit(self.socket, self.addr, total);
        true
    }

    fn probe_at(&self, now: Micros, step: u8) -> Option<Micros> {
        let rtt = self.flow.measured();
        let put_off = (rtt + rtt / 2).max(self.flow.longest() << step).min(PROBE_PUT_OFF_MAX);
        TAIL_PROBES.get(usize::from(step)).map(|wait| now + put_off.max(*wait))
    }

    /// Whether the tail will be probed if no status comes.
    pub fn probes(&self) -> bool {
        self.tail_at.is_some()
    }

    /// Whether the tail must be probed now; advances to the next step. The caller sends a probe with the heads of
    /// rooms.
    pub fn tail_due(&mut self, now: Micros) -> bool {
        if self.tail_at.is_none_or(|at| now < at) {
            return false;
        }
        self.tail_step += 1;
        self.tail_at = self.probe_at(now, self.tail_step);
        self.want_status = true;
        true
    }

    /// When a status for received datagrams is due.
    #[inline]
    pub fn status_due(&self) -> Option<Micros> {
        (self.pending > 0).then(|| self.pending_since + STATUS_DELAY)
    }

    /// When this connection next needs time: for a status, the log, the tail or the timeout.
    pub fn deadline(&self) -> Option<Micros> {
        let sooner = |at: Micros, other: Option<Micros>| other.map_or(at, |other| at.min(other));
        let mut at = sooner(Micros::MAX, self.status_due());
        at = sooner(at, self.log.deadline(self.log_rto()));
        at = sooner(at, self.tail_at);
        at = sooner(at, self.flow.timeout_at());
        (at != Micros::MAX).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn conn() -> Conn<16> {
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 9)).into();
        Conn::new(1, 2, 0, addr, Secret::new([3; 16]), true, 0, 1 << 10, 0)
    }

    /// Times of the probes for a datagram sent at 1 s, on a path with this round trip.
    fn probes(rtt: Micros) -> Vec<Micros> {
        let mut conn = conn();
        let stamp = Stamp { epoch: 0, placement: 0 };
        let (mut keys, mut buffer) = (KeyCache::default(), [0; 100]);
        conn.seal(0, &mut keys, stamp, &mut buffer, 8, Wants::Probes, 0);
        let status = Status {
            highest: 1,
            received: 1,
            window: 1 << 16,
            ..Status::default()
        };
        assert!(conn.flow.status(rtt, &status));
        conn.seal(SECOND, &mut keys, stamp, &mut buffer, 8, Wants::Probes, 0);
        (SECOND..9 * SECOND)
            .step_by(1_000)
            .filter(|now| conn.tail_due(*now))
            .collect()
    }

    const SECOND: Micros = 1_000_000;

    #[test]
    fn a_tail_is_probed_for_three_times_and_never_before_its_status_can_have_come() {
        assert_eq!(probes(500), [1_020_000, 1_080_000, 1_260_000]);
        assert_eq!(probes(100_000), [1_150_000, 1_350_000, 1_750_000]);
        assert_eq!(
            probes(1_900_000),
            [3_000_000, 5_000_000, 7_000_000],
            "nor is it forgotten"
        );
    }

    /// Counts probes to a peer that gets a datagram every `every` and reads each one `late` after it was sent.
    fn probes_of_the_late(every: Micros, late: Micros, datagrams: u64) -> usize {
        let mut conn = conn();
        let stamp = Stamp { epoch: 0, placement: 0 };
        let (mut keys, mut buffer, mut probes) = (KeyCache::default(), [0; 100], 0);
        let mut on_the_way = std::collections::VecDeque::new();
        for now in (0..datagrams * every).step_by(1_000) {
            conn.flow.timeout(now);
            let probe = conn.tail_due(now);
            probes += usize::from(probe);
            if now % every == 0 || probe {
                let wants = if probe { Wants::Status } else { Wants::Probes };
                conn.seal(now, &mut keys, stamp, &mut buffer, 8, wants, 0);
                on_the_way.push_back((now + late, conn.flow.next() - 1));
            }
            while let Some((_, highest)) = on_the_way.pop_front_if(|(at, _)| *at <= now) {
                let status = Status {
                    highest,
                    received: highest as u32,
                    window: 1 << 16,
                    ..Status::default()
                };
                conn.is_heard(now);
                conn.heard(now, status);
            }
        }
        probes
    }

    /// Regression: each datagram was probed for three times before it was read; a peer four times as slow became
    /// slower still.
    #[test]
    fn probes_adapt_to_a_peer_that_answers_late() {
        assert_eq!(probes_of_the_late(2 * SECOND, 1_000, 20), 0, "not late");
        assert!(probes_of_the_late(2 * SECOND, 1_200_000, 20) <= 6);
        // Later than the longest delay of a probe.
        assert!(probes_of_the_late(2 * SECOND, 5_000_000, 20) <= 24);
    }

    /// Number of datagrams sent within a minute, at its role's pace, to a peer that is silent since `begin` was sent.
    fn sent_to_the_silent(begin: impl Fn(&mut Conn<16>) -> bool) -> usize {
        let mut conn = conn();
        let stamp = Stamp { epoch: 0, placement: 0 };
        let (mut keys, mut sent) = (KeyCache::default(), 0);
        let mut send = |conn: &mut Conn<16>, now, data: bool| {
            let mut outbox = Outbox::new(false);
            sent += usize::from(conn.send(now, &mut keys, stamp, &mut outbox, 1_200, |writer, _| {
                data && append(writer, FrameKind::new(18), 0, |_| true)
            }));
        };
        let data = begin(&mut conn);
        send(&mut conn, 0, data);
        for now in (0..60 * SECOND).step_by(1_000) {
            if conn.flow.timeout(now) {
                conn.ask_status();
            }
            if conn.tail_due(now) || conn.control_due(now) {
                send(&mut conn, now, false);
            }
        }
        sent
    }

    /// Regression: a busy peer that answered late was probed three times more with each probe that asked it for a
    /// status.
    #[test]
    fn a_silent_peer_is_probed_three_times_and_then_seldom() {
        let asks = 3 + 60 / 2; // the first after 250 ms, then the wait doubles, up to two seconds
        let data = sent_to_the_silent(|_| true);
        assert!((30..=4 + asks).contains(&data), "{data}");
        let record = sent_to_the_silent(|conn| conn.log.push(&[200; 5]).is_err());
        let repeats = 6 + 60; // the wait doubles, up to a second
        assert!((60..=4 + asks + repeats).contains(&record), "{record}");
    }

    #[test]
    fn a_late_datagram_does_not_stand_in_for_one_that_was_lost() {
        let (mut window, mut told, mut came) = (Window::<16>::default(), Reports::default(), 0);
        let mut hear = |sequences: &mut dyn Iterator<Item = u64>| {
            came += sequences
                .filter(|sequence| window.commit(*sequence) == Verdict::Fresh)
                .count() as u32;
            let mut status = Status {
                highest: window.highest(),
                received: came,
                ..Status::default()
            };
            status.missing_len = window.missing_ranges(&mut status.missing) as u8;
            told.hear(status, 1_024)
        };
        assert!(hear(&mut (1..=20).filter(|sequence| *sequence != 10)).lost(10));
        for at in 1..45 {
            hear(&mut (20 * at + 1..=20 * at + 20));
        }
        let heard = hear(
            &mut [10]
                .into_iter()
                .chain((901..=1_300).filter(|sequence| *sequence != 905)),
        );
        assert!(heard.missing && heard.lost(905));
    }

    /// A stretch: number of datagrams, number lost, number late, the delay of late ones in stretches, whether its
    /// last status arrives.
    fn stretch() -> impl Strategy<Value = (u64, u64, u64, usize, bool)> {
        let datagrams = prop_oneof![4 => 1..60u64, 4 => 200..700u64, 1 => 1_000..1_200u64];
        let few = || prop_oneof![6 => Just(0u64), 3 => Just(1), 1 => 2..30u64];
        (datagrams, few(), few(), 0..4usize, prop::bool::weighted(0.8))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn every_loss_is_reported_by_some_status(
            mut stretches in prop::collection::vec(stretch(), 1..12),
            seed in any::<u64>(),
        ) {
            // A calm end, long enough for all late datagrams to arrive.
            let troubled = stretches.len();
            stretches.extend([(40, 0, 0, 0, true); 40]);
            stretches.push((700, 0, 0, 0, true));
            let (mut dice, mut window, mut told) = (Dice::new(seed), Window::<16>::default(), Reports::default());
            // All sent datagrams, in four sets: judged, arrived, unreported, late.
            let (mut sent, mut judged, mut came, mut late) = (0, 0, BTreeSet::new(), Vec::new());
            let mut untold = BTreeSet::new();
            for (at, (datagrams, lost, tardy, after, heard)) in stretches.into_iter().enumerate() {
                for chosen in 0..lost + tardy {
                    let sequence = sent + 1 + dice.below(datagrams);
                    untold.insert(sequence);
                    late.extend((chosen >= lost).then_some((at + after, sequence)));
                }
                for sequence in sent + 1..=sent + datagrams {
                    if !untold.contains(&sequence) {
                        window.commit(sequence);
                        came.insert(sequence);
                    }
                }
                sent += datagrams;
                let highest = window.highest();
                let mut status = Status { highest, received: came.len() as u32, ..Status::default() };
                status.missing_len = window.missing_ranges(&mut status.missing) as u8;
                if heard && highest > 0 {
                    let told_from = match status.missing() {
                        [_, _, _, (first, _)] => *first,
                        _ => highest.saturating_sub(255),
                    };
                    let heard = told.hear(status, 1_024);
                    let mut any = false;
                    for sequence in highest.saturating_sub(4_000)..=sent + 1 {
                        let lost = heard.lost(sequence);
                        any |= lost;
                        prop_assert!(lost || sequence > highest || !untold.contains(&sequence), "no status reports {sequence}");
                        let told_of = sequence <= judged || sequence >= told_from;
                        prop_assert!(!lost || !told_of || sequence <= highest && !came.contains(&sequence), "{sequence} came");
                    }
                    prop_assert_eq!(heard.missing, any);
                    prop_assert!(at < troubled + 30 || !any, "nothing was lost for long");
                    untold = untold.split_off(&(highest + 1));
                    judged = highest;
                }
                for &(_, sequence) in late.iter().filter(|(when, _)| *when == at) {
                    if window.commit(sequence) == Verdict::Fresh {
                        untold.remove(&sequence);
                        came.insert(sequence);
                    }
                }
            }
        }
    }
}
