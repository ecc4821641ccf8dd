//! A guest: a system that lives in the machine of another one, because it needs that machine's sessions and links.
//!
//! Owns the words between the two: [`Guest`] is what the machine calls, [`Host`] is what the guest may do, [`Lodge`] is the guest's
//! place in a machine. The machine's system knows no guest, and the guest no machine; they are put together above both. A machine
//! without a guest pays one test for each session that comes or goes, and none for a message of its own.

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
    /// The kinds of frames on links that are the guest's.
    fn kinds(&self) -> FrameKinds;

    /// A session is open: its user, and what the credential says for the guest, in the guest's own form; empty: nothing.
    fn opened(&mut self, now: Micros, session: u64, user: u64, said: &[u8]);

    /// An open session goes on with another credential of its user, which says this.
    fn renewed(&mut self, now: Micros, session: u64, said: &[u8]);

    /// A session is over. Called for sessions that were never open as well.
    fn ended(&mut self, now: Micros, session: u64, end: End);

    /// A session's record of a guest's kind. `false`: malformed, or not a client's to send.
    fn record(&mut self, now: Micros, session: u64, record: &[u8]) -> bool;

    /// A link came or went.
    fn link(&mut self, now: Micros, peer: Identity, up: bool);

    /// A frame of [`Guest::kinds`]. `false`: malformed, or not this peer's to send.
    fn frame(&mut self, now: Micros, peer: Identity, frame: &Frame<'_>) -> bool;

    /// Does what is due, and says what is to be sent.
    fn act(&mut self, now: Micros, host: &mut dyn Host);

    /// When [`Guest::act`] has something to do, also where nothing happens before.
    fn deadline(&self) -> Option<Micros>;

    /// Whether nothing waits to be said.
    fn is_idle(&self) -> bool;

    /// Name, help and value of each counter.
    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64));

    /// Name, help and value of each gauge.
    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64));
}

/// The calls of a guest to its machine.
pub trait Host {
    /// Sends a whole frame to a linked node. `false`: there is no link, or too much waits for it.
    fn frame(&mut self, node: u32, frame: &[u8]) -> bool;

    /// Puts a record into the log of a session. `false`: the session is gone, or its log is nearly full.
    fn offer(&mut self, session: u64, record: &[u8]) -> bool;

    /// Ends a session, which hears why.
    fn end(&mut self, session: u64, code: Code);

    /// Ends a session, which hears why, and how long it is of no use to come back.
    fn end_for(&mut self, session: u64, code: Code, _wait_ms: u32) {
        self.end(session, code);
    }
}

/// The parts of a machine that its guest uses, and the clock.
struct Hosted<'a, T> {
    now: Micros,
    sessions: &'a mut Sessions<T>,
    mail: &'a mut Mail,
}

impl<T: Default> Host for Hosted<'_, T> {
    fn frame(&mut self, node: u32, frame: &[u8]) -> bool {
        self.mail.send(node, frame)
    }

    fn offer(&mut self, session: u64, record: &[u8]) -> bool {
        let slot = self.sessions.table.find(session);
        slot.is_some_and(|slot| self.sessions.offer(slot, &Raw(record)))
    }

    fn end(&mut self, session: u64, code: Code) {
        self.end_for(session, code, if code.retry() { RETRY_MS } else { 0 });
    }

    fn end_for(&mut self, session: u64, code: Code, wait_ms: u32) {
        let slot = self.sessions.table.find(session);
        let open = |slot: &u32| self.sessions.table.get(*slot).is_some_and(|peer| peer.data.is_open());
        if let Some(slot) = slot.filter(open) {
            self.sessions.refuse_for(self.now, slot, code, wait_ms);
        }
    }
}

/// The guest of a machine, if it has one, and its frames that wait for links.
#[derive(Default)]
pub struct Lodge {
    guest: Option<Box<dyn Guest>>,
    mail: Mail,
    /// Something happened that the guest has not acted on.
    stirred: bool,
}

impl Lodge {
    /// Takes a guest in. Returns the kinds of frames on links from now on; `own`: those of the machine.
    pub fn take_in(&mut self, guest: Box<dyn Guest>, own: FrameKinds) -> FrameKinds {
        let kinds = own.or(guest.kinds());
        (self.guest, self.stirred) = (Some(guest), true);
        kinds
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
    pub fn act<T: Default>(&mut self, now: Micros, links: &mut Links, sessions: &mut Sessions<T>) {
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

    /// When [`Lodge::act`] has something to do.
    pub fn deadline(&self) -> Option<Micros> {
        match self.stirred {
            true => Some(0),
            false => self.guest.as_ref()?.deadline(),
        }
    }

    /// Frames for links, written by the machine.
    pub fn mail(&mut self) -> &mut Mail {
        &mut self.mail
    }

    /// Whether the guest has nothing left to say.
    pub fn is_idle(&self) -> bool {
        self.mail.waiting() == 0 && self.guest.as_ref().is_none_or(|guest| guest.is_idle())
    }

    /// Name, help and value of each counter of the guest.
    pub fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        if let Some(guest) = &self.guest {
            guest.each_counter(&mut *each);
            let help = "Frames of a guest dropped: no link, or too much waits for it";
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
