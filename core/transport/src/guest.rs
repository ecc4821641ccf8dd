//! A guest: a system that runs inside another system's machine, because it needs that machine's sessions and links.
//!
//! Owns the interface between the two: [`Guest`] is what the machine calls, [`Host`] is what the guest calls,
//! [`Lodge`] holds the guest in a machine. The machine's system knows no guest, and the guest no machine; a layer
//! above joins them. Without a guest, a machine pays one test for each session that comes or goes, and nothing per
//! message.

use crate::codec::Writer;
use crate::links::Links;
use crate::machine::Micros;
use crate::mail::Mail;
use crate::node::Identity;
use crate::sessions::{End, Sessions, RETRY_MS};
use crate::wire::frame::{Frame, FrameKinds};
use crate::wire::record::Raw;
use crate::wire::Code;

/// The calls of a machine to its guest.
pub trait Guest: Send + Sync {
    /// The kinds of link frames that belong to the guest.
    fn kinds(&self) -> FrameKinds;

    /// A session is open. `said`: the guest's part of the credential, in the guest's own form; may be empty.
    fn opened(&mut self, now: Micros, session: u64, user: u64, said: &[u8]);

    /// An open session continues with another credential of its user; `said` is the guest's part of it.
    fn renewed(&mut self, now: Micros, session: u64, said: &[u8]);

    /// A session is over. Also called for sessions that never opened.
    fn ended(&mut self, now: Micros, session: u64, end: End);

    /// A session sent a record of a guest's kind. `false`: malformed, or clients may not send it.
    fn record(&mut self, now: Micros, session: u64, record: &[u8]) -> bool;

    /// A link came up or was lost.
    fn link(&mut self, now: Micros, peer: Identity, up: bool);

    /// A frame of [`Guest::kinds`] came. `false`: malformed, or this peer may not send it.
    fn frame(&mut self, now: Micros, peer: Identity, frame: &Frame<'_>) -> bool;

    /// Does the work that is due, and sends its frames and records through `host`.
    fn act(&mut self, now: Micros, host: &mut dyn Host);

    /// When [`Guest::act`] is due if nothing happens before.
    fn deadline(&self) -> Option<Micros>;

    /// Whether the guest has nothing to send.
    fn is_idle(&self) -> bool;

    /// Name, help and value of each counter.
    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64));

    /// Name, help and value of each gauge.
    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64));
}

/// The calls of a guest to its machine.
pub trait Host {
    /// Sends a whole frame to a linked node. `false`: there is no link, or its queue is full.
    fn frame(&mut self, node: u32, frame: &[u8]) -> bool;

    /// Puts a record into the log of a session. `false`: the session is gone, or its log is nearly full.
    fn offer(&mut self, session: u64, record: &[u8]) -> bool;

    /// Ends a session and tells its client why.
    fn end(&mut self, session: u64, code: Code);

    /// Ends a session and tells its client why, and for how long another try would be refused.
    fn end_for(&mut self, session: u64, code: Code, _wait_ms: u32) {
        self.end(session, code);
    }
}

/// The sessions of a machine with a guest, whatever carries them.
pub trait GuestSessions {
    /// Gives an open session a guest's record. `false`: the session is gone, or has no space for it now.
    fn offer_guest(&mut self, session: u64, record: &[u8]) -> bool;

    /// Ends an open session and tells its client why, and when it may come back; 0: not by itself.
    fn end_guest(&mut self, now: Micros, session: u64, code: Code, wait_ms: u32);
}

impl<T: Default> GuestSessions for Sessions<T> {
    fn offer_guest(&mut self, session: u64, record: &[u8]) -> bool {
        let slot = self.table.find(session);
        slot.is_some_and(|slot| self.offer(slot, &Raw(record)))
    }

    fn end_guest(&mut self, now: Micros, session: u64, code: Code, wait_ms: u32) {
        let slot = self.table.find(session);
        let open = |slot: &u32| self.table.get(*slot).is_some_and(|peer| peer.data.is_open());
        if let Some(slot) = slot.filter(open) {
            self.refuse_for(now, slot, code, wait_ms);
        }
    }
}

/// The parts of a machine that its guest uses, and the clock.
struct Hosted<'a, S> {
    now: Micros,
    sessions: &'a mut S,
    mail: &'a mut Mail,
}

impl<S: GuestSessions> Host for Hosted<'_, S> {
    fn frame(&mut self, node: u32, frame: &[u8]) -> bool {
        self.mail.send(node, frame)
    }

    fn offer(&mut self, session: u64, record: &[u8]) -> bool {
        self.sessions.offer_guest(session, record)
    }

    fn end(&mut self, session: u64, code: Code) {
        self.end_for(session, code, if code.retry() { RETRY_MS } else { 0 });
    }

    fn end_for(&mut self, session: u64, code: Code, wait_ms: u32) {
        self.sessions.end_guest(self.now, session, code, wait_ms);
    }
}

/// A machine's guest, if it has one, and the guest's frames that wait for links.
pub struct Lodge {
    guest: Option<Box<dyn Guest>>,
    /// The kinds of link frames of the machine and of its guest.
    kinds: FrameKinds,
    mail: Mail,
    /// Something happened since the guest last acted.
    stirred: bool,
}

impl Lodge {
    /// An empty place in a machine whose links have these kinds of frames.
    pub fn new(kinds: FrameKinds) -> Self {
        Lodge {
            guest: None,
            kinds,
            mail: Mail::default(),
            stirred: false,
        }
    }

    /// Installs a guest, which hears of sessions and links from now on.
    pub fn take_in(&mut self, guest: Box<dyn Guest>) {
        self.kinds = self.kinds.or(guest.kinds());
        (self.guest, self.stirred) = (Some(guest), true);
    }

    /// The kinds of link frames, with those of the guest.
    pub fn kinds(&self) -> FrameKinds {
        self.kinds
    }

    /// See [`Guest::opened`].
    pub fn opened(&mut self, now: Micros, session: u64, user: u64, said: &[u8]) {
        if let Some(guest) = self.stir() {
            guest.opened(now, session, user, said);
        }
    }

    /// See [`Guest::renewed`].
    pub fn renewed(&mut self, now: Micros, session: u64, said: &[u8]) {
        if let Some(guest) = self.stir() {
            guest.renewed(now, session, said);
        }
    }

    /// See [`Guest::ended`].
    pub fn ended(&mut self, now: Micros, session: u64, end: End) {
        if let Some(guest) = self.stir() {
            guest.ended(now, session, end);
        }
    }

    /// See [`Guest::record`].
    pub fn record(&mut self, now: Micros, session: u64, record: &[u8]) -> bool {
        self.stir().is_some_and(|guest| guest.record(now, session, record))
    }

    /// See [`Guest::link`].
    pub fn link(&mut self, now: Micros, peer: Identity, up: bool) {
        let Some(guest) = &mut self.guest else { return };
        match up {
            true => self.mail.open(peer.node),
            false => self.mail.close(peer.node),
        }
        guest.link(now, peer, up);
        self.stirred = true;
    }

    /// See [`Guest::frame`].
    pub fn frame(&mut self, now: Micros, peer: Identity, frame: &Frame<'_>) -> bool {
        self.stir().is_some_and(|guest| guest.frame(now, peer, frame))
    }

    /// Lets the guest act, if anything happened or is due.
    pub fn act(&mut self, now: Micros, links: &mut Links, sessions: &mut impl GuestSessions) {
        let Some(guest) = &mut self.guest else { return };
        if !std::mem::take(&mut self.stirred) && guest.deadline().is_none_or(|at| now < at) {
            return;
        }
        let mut host = Hosted {
            now,
            sessions,
            mail: &mut self.mail,
        };
        guest.act(now, &mut host);
        for node in self.mail.begun() {
            if let Some(slot) = links.to(node) {
                links.table.mark(slot);
            }
        }
    }

    /// When [`Lodge::act`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        match self.stirred {
            true => Some(0),
            false => self.guest.as_ref()?.deadline(),
        }
    }

    /// Whether the guest's frames wait for a node's link.
    pub fn waits(&self, node: u32) -> bool {
        self.mail.waits(node)
    }

    /// Writes as many of the guest's frames for a node as fit. Returns whether they elicit an acknowledgement.
    pub fn fill(&mut self, node: u32, writer: &mut Writer<'_>) -> bool {
        self.mail.fill(node, writer, self.kinds).elicits
    }

    /// Whether the guest has nothing to send.
    pub fn is_idle(&self) -> bool {
        self.mail.waiting() == 0 && self.guest.as_ref().is_none_or(|guest| guest.is_idle())
    }

    /// Name, help and value of each counter of the guest.
    pub fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        if let Some(guest) = &self.guest {
            guest.each_counter(&mut *each);
            let help = "Guest frames dropped: no link, or its queue is full";
            each(
                "guest_dropped",
                help,
                self.mail.dropped_unlinked + self.mail.dropped_full,
            );
        }
    }

    /// Name, help and value of each gauge of the guest.
    pub fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        if let Some(guest) = &self.guest {
            guest.each_gauge(each);
        }
    }

    fn stir(&mut self) -> Option<&mut Box<dyn Guest>> {
        self.stirred |= self.guest.is_some();
        self.guest.as_mut()
    }
}
