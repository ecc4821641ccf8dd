//! The rooms that a client publishes to: by number, by request, and whose turn it is.
//!
//! Owns the publications and the places for them, at most [`SESSION_PUBLICATIONS_MAX`]. Knows no session.

use super::publication::{Publication, PublishError};
use crate::limits::SESSION_PUBLICATIONS_MAX;
use crate::wire::publish::publish_body_max;
use muster_transport::{Code, Micros, Writer};

/// What was written into a datagram.
#[derive(Default)]
pub(super) struct Written {
    pub(super) any: bool,
    /// Number of messages that were sent before.
    pub(super) repeated: u64,
}

/// A client's publications.
pub(super) struct Publications {
    list: Vec<Publication>,
    /// The room that fills the next datagram first: all share a narrow window.
    next: usize,
    /// Number of messages accepted for publishing.
    taken: u64,
    /// The program was told that no further room can be opened for publishing.
    full: bool,
    /// The proxy of the session passes on headers.
    passes_headers: bool,
    incarnation: u64,
}

impl Publications {
    pub(super) fn new(incarnation: u64) -> Self {
        Publications {
            list: Vec::new(),
            next: 0,
            taken: 0,
            full: false,
            passes_headers: false,
            incarnation,
        }
    }

    /// Number of places in use.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The publication at a place.
    pub(super) fn at(&mut self, at: usize) -> &mut Publication {
        &mut self.list[at]
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Publication> {
        self.list.iter_mut()
    }

    /// The place of a publication with this number.
    pub(super) fn place(number: u32) -> usize {
        number as usize % SESSION_PUBLICATIONS_MAX
    }

    pub(super) fn get(&self, number: u32) -> Option<&Publication> {
        let known = self.list.get(Self::place(number))?;
        (known.number == number).then_some(known)
    }

    /// The number of a room's publication, if it is open.
    pub(super) fn named(&self, name: &str) -> Option<u32> {
        let known = self.list.iter().find(|known| &*known.name == name)?;
        Some(known.number)
    }

    /// The publication of a request.
    pub(super) fn by_request(&mut self, request: u32) -> Option<&mut Publication> {
        self.list.iter_mut().find(|known| known.request == request)
    }

    /// Whether there is a free place.
    pub(super) fn has_place(&self) -> bool {
        self.list.len() < SESSION_PUBLICATIONS_MAX
    }

    /// The place of the publication that can be closed and was used least recently. `asked`: the session has asked for
    /// all of them; one that was requested and not answered cannot be named yet.
    pub(super) fn idle(&self, asked: bool) -> Option<usize> {
        let named = |known: &Publication| known.handle.is_some() || known.refused.is_some() || !asked;
        let idle = self.list.iter().enumerate();
        let idle = idle.filter(|(_, known)| known.is_idle() && named(known));
        idle.min_by_key(|(_, known)| known.used).map(|(at, _)| at)
    }

    /// Opens a room in a new place, or in that of an idle publication. Returns its number, and the closed publication.
    pub(super) fn open(&mut self, name: &str, request: u32, idle: Option<usize>) -> (u32, Option<Publication>) {
        let number = match idle {
            Some(at) => self.list[at].number.wrapping_add(SESSION_PUBLICATIONS_MAX as u32),
            None => self.list.len() as u32,
        };
        // A new life of this client's publishing in the room, in case it was opened before.
        let incarnation = self.incarnation.wrapping_add(u64::from(request));
        let mut publication = Publication::new(name, number, request, incarnation);
        publication.set_passes_headers(self.passes_headers);
        match idle {
            Some(at) => (number, Some(std::mem::replace(&mut self.list[at], publication))),
            None => {
                self.list.push(publication);
                (number, None)
            }
        }
    }

    /// No place is free: the program is told once one is.
    pub(super) fn note_full(&mut self) {
        self.full = true;
    }

    /// Whether the program waits for a place.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// The program is told that a place is free.
    pub(super) fn note_vacant(&mut self) {
        self.full = false;
    }

    /// Takes a message for a publication.
    #[inline]
    pub(super) fn publish(
        &mut self,
        number: u32,
        (headers, data): (&[u8], &[u8]),
        ticket: u64,
        chunk_max: usize,
    ) -> Result<(), PublishError> {
        let place = self.list.get_mut(Self::place(number));
        let Some(known) = place.filter(|known| known.number == number) else {
            return Err(PublishError::Refused(Code::Unknown));
        };
        self.taken += 1;
        known.used = self.taken;
        known.push_headed(headers, data, ticket, chunk_max)
    }

    /// Whether the proxy has opened a room.
    pub(super) fn has_opened(&self) -> bool {
        self.list.iter().any(|known| known.handle.is_some())
    }

    /// A session with a proxy begins, which may pass on headers or not.
    pub(super) fn begin_session(&mut self) {
        self.passes_headers = false;
    }

    /// The proxy of the session passes on headers.
    pub(super) fn pass_headers(&mut self) {
        self.passes_headers = true;
        let publications = self.list.iter_mut();
        publications.for_each(|publication| publication.set_passes_headers(true));
    }

    /// The session with the proxy is lost.
    pub(super) fn lost_session(&mut self) {
        self.list.iter_mut().for_each(|publication| publication.lost_session());
    }

    /// Whether anything can be sent now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.list.iter().any(|known| known.is_due())
    }

    /// When a publication needs time next.
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.list.iter().filter_map(|publication| publication.deadline()).min()
    }

    /// Fills a datagram of `payload` bytes with the due frames, room by room.
    pub(super) fn write(&mut self, now: Micros, payload: usize, writer: &mut Writer<'_>) -> Written {
        let (count, first) = (self.list.len(), self.next);
        let mut written = Written::default();
        for at in (0..count).map(|step| (first + step) % count) {
            let publication = &mut self.list[at];
            let before = publication.repeated;
            while publication.write(now, publish_body_max(payload), writer) {
                // This room fills most of the datagram: the next datagram begins with the room after it.
                if !std::mem::replace(&mut written.any, true) {
                    self.next = at + 1;
                }
            }
            written.repeated += publication.repeated - before;
            if publication.is_due() {
                break; // the rest of the datagram is too small for the next part
            }
        }
        written
    }
}
