//! A gateway's sessions, whatever carries them: what rooms need of them.
//!
//! Owns: [`Members`], and how sessions over UDP fulfil it. Must not know: rooms, tokens. A gateway is generic over it, so the way
//! over UDP has no branch for another one.

use muster_transport::{Code, Frame, Gone, GuestSessions, Micros, Sessions, Writer};

use super::Client;
use crate::command::{CommandId, Outcome, Page};
use crate::name::RoomKey;
use crate::rights::Rights;
use crate::wire::record::Record;

/// The sessions of a gateway, by slot. A slot is used again once its session is gone; a session's number never is.
pub trait Members: GuestSessions {
    /// Whether each member drops messages at offsets that its positions cover. Another one is admitted behind those.
    const DROPS_COVERED: bool;

    /// The data of an open session.
    fn client(&self, slot: u32) -> Option<&Client>;
    fn client_mut(&mut self, slot: u32) -> Option<&mut Client>;
    fn slot_of(&self, session: u64) -> Option<u32>;
    fn session_of(&self, slot: u32) -> Option<u64>;
    fn user_of(&self, slot: u32) -> Option<u64>;
    /// Has something to be sent, or may have.
    fn mark(&mut self, slot: u32);
    /// Gives a session an answer.
    fn tell(&mut self, slot: u32, record: &Record<'_>);
    /// Gives a session a record that can wait. `false`: it has no space for it now.
    fn offer(&mut self, slot: u32, record: &Record<'_>) -> bool;
    /// Ends a session, which hears why.
    fn refuse(&mut self, now: Micros, slot: u32, code: Code);
    /// A session that is over, to clean up.
    fn gone(&mut self) -> Option<Gone<Client>>;
    /// The low half of the number of the datagram that is sent to it next, if datagrams are.
    fn carrier(&self, _slot: u32) -> u32 {
        0
    }
    /// Whether only the session's own window stops it.
    fn is_shut(&self, slot: u32, payload: usize) -> bool;
    /// The bytes that it takes at once at most.
    fn window(&self, _slot: u32) -> u32 {
        u32::MAX
    }
    /// Its rights in a room, of which its credential gives these.
    fn rights(&self, _slot: u32, _room: &RoomKey, granted: Rights) -> Rights {
        granted
    }
    /// Writes frames that wait for a link: whether any were, and whether more wait.
    fn fill_link(&mut self, _node: u32, _writer: &mut Writer<'_>) -> (bool, bool) {
        (false, false)
    }
    /// Whether frames wait for a link.
    fn waits_for_link(&self, _node: u32) -> bool {
        false
    }
    /// Takes a broker's frame that no room takes. `false`: malformed, or not a broker's to send.
    fn broker_frame(&mut self, _now: Micros, _frame: &Frame<'_>) -> bool {
        false
    }
    /// Takes a broker's answer to a command or question of a member. `false`: no member asks here.
    fn broker_answer(&mut self, _node: u32, _command: CommandId, _outcome: Outcome, _page: &Option<Page>) -> bool {
        false
    }
    /// A broker has a link.
    fn broker_found(&mut self) {}
    /// A broker has no link any more.
    fn broker_lost(&mut self, _node: u32) {}
    /// Namespaces with settings, which brokers are told by number: those whose members publish here.
    fn namespaces(&self) -> &[String] {
        &[]
    }
}

impl Members for Sessions<Client> {
    const DROPS_COVERED: bool = true;

    #[inline]
    fn client(&self, slot: u32) -> Option<&Client> {
        self.table.get(slot).map(|peer| &peer.data.data)
    }

    #[inline]
    fn client_mut(&mut self, slot: u32) -> Option<&mut Client> {
        self.table.get_mut(slot).map(|peer| &mut peer.data.data)
    }

    fn slot_of(&self, session: u64) -> Option<u32> {
        self.table.find(session)
    }

    fn session_of(&self, slot: u32) -> Option<u64> {
        self.table.get(slot).map(|peer| peer.conn.id)
    }

    fn user_of(&self, slot: u32) -> Option<u64> {
        self.table.get(slot).map(|peer| peer.data.user)
    }

    #[inline]
    fn mark(&mut self, slot: u32) {
        self.table.mark(slot);
    }

    fn tell(&mut self, slot: u32, record: &Record<'_>) {
        Sessions::tell(self, slot, record);
    }

    fn offer(&mut self, slot: u32, record: &Record<'_>) -> bool {
        Sessions::offer(self, slot, record)
    }

    fn refuse(&mut self, now: Micros, slot: u32, code: Code) {
        Sessions::refuse(self, now, slot, code);
    }

    fn gone(&mut self) -> Option<Gone<Client>> {
        Sessions::gone(self)
    }

    fn carrier(&self, slot: u32) -> u32 {
        self.table.get(slot).map_or(0, |peer| peer.conn.flow.next() as u32)
    }

    fn is_shut(&self, slot: u32, payload: usize) -> bool {
        self.table.get(slot).is_some_and(|peer| peer.conn.flow.is_shut(payload))
    }

    fn window(&self, slot: u32) -> u32 {
        self.table.get(slot).map_or(0, |peer| peer.conn.flow.window())
    }
}
