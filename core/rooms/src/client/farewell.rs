//! Former connections whose servers must learn that the client left.
//!
//! Owns these connections, and when their closing messages may leave. Knows no present session.

use muster_transport::{
    append, frames_max, Conn, FrameKind, Micros, Node, Outbox, Wants, Writer, HEADER, SESSION_BLOCKS,
};

use super::sessions::{GONE, SILENT};

type SessionConn = Box<Conn<SESSION_BLOCKS>>;

/// The servers that are still to be told.
#[derive(Default)]
pub(super) struct Farewell {
    left: Option<SessionConn>,
    /// The last session that fell silent. Its server is told once another session is open; before that, nothing may
    /// be sent outside a handshake.
    unheard: Option<SessionConn>,
}

impl Farewell {
    /// A session was lost for this reason.
    pub(super) fn lost(&mut self, conn: Option<SessionConn>, reason: &'static str) {
        match reason {
            SILENT => self.unheard = conn,
            _ => self.left = conn.filter(|_| !GONE.contains(&reason)),
        }
    }

    /// The client closes a session.
    pub(super) fn close(&mut self, conn: Option<SessionConn>) {
        self.left = conn;
    }

    /// Another session is open.
    pub(super) fn opened(&mut self) {
        if self.unheard.is_some() {
            self.left = self.unheard.take();
        }
    }

    /// Whether a closing message waits for space.
    pub(super) fn is_due(&self) -> bool {
        self.left.is_some()
    }

    /// Sends the closing message that is due, if there is space. Returns whether one was sent.
    pub(super) fn transmit(&mut self, now: Micros, node: &mut Node, outbox: &mut Outbox) -> bool {
        let Some(mut conn) = self.left.take_if(|_| outbox.room() > 0) else {
            return false;
        };
        let buffer = outbox.reserve(node.payload);
        let mut writer = Writer::new(&mut buffer[HEADER..HEADER + frames_max(node.payload)]);
        write_close(&mut writer);
        let len = writer.len();
        let total = conn.seal(now, &mut node.keys, node.stamp, buffer, len, Wants::Nothing, 0);
        outbox.commit(conn.socket, conn.addr, total);
        true
    }
}

/// Writes the frame that ends a session.
pub(super) fn write_close(writer: &mut Writer<'_>) {
    append(writer, FrameKind::CLOSE, 0, |writer| !writer.u8(0).full());
}
