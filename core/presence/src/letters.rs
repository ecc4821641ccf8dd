//! Unicast in a client: its messages to users until their outcome is known, and the messages that came for it.
//!
//! Owns [`Letters`]. A message keeps its number in each session that it is sent by, and a device knows a message by sender and number: so one
//! that was sent by two proxies is read once. Knows no session: records go in and out, and the client says when a session is new. Knows no
//! clock: what a message's time is the program waits for.

use crate::device::Device;
use crate::limits::{INBOX_BYTES_MAX, INBOX_MAX, KNOWN_MAX, SESSION_SENDS_MAX};
use crate::records::{Letter, Outcomes, Record};
use crate::wire::Outcome;
use muster_transport::{Code, Micros};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A message that was sent, with its end.
struct Sent {
    user: u64,
    device: Option<Device>,
    data: Vec<u8>,
    until: Micros,
    /// Devices whose gateway was lost before it answered.
    lost: Vec<Option<Device>>,
}

/// A message that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    pub sender: u64,
    pub number: u64,
    pub data: Vec<u8>,
}

/// What happened, for the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The outcome of a message; or why it was not tried.
    Done {
        number: u64,
        refused: Option<Code>,
        outcomes: Outcomes,
    },
    /// Messages wait to be read.
    Readable,
}

/// Why a message is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// Too many are not done.
    WouldBlock,
}

/// A message as a gateway tells it to a device, and the record by which the device says that it has it. `None`: the record
/// is no message.
pub fn told_to_device(record: &[u8]) -> Option<(Letter<'_>, Vec<u8>)> {
    let Some(Record::Push { id, body }) = Record::read(record) else {
        return None;
    };
    let letter = Letter::read(body)?;
    Some((letter, Record::Taken { id, taken: true }.to_bytes()))
}

/// All messages of a client.
#[derive(Default)]
pub struct Letters {
    sent: BTreeMap<u64, Sent>,
    /// Those that the present session with a proxy has not been told.
    untold: VecDeque<u64>,
    inbox: VecDeque<Received>,
    inbox_bytes: usize,
    /// The program was told that there is something, and has not read all.
    told: bool,
    /// Messages that came, by sender and number, the latest last.
    known: BTreeSet<(u64, u64)>,
    order: VecDeque<(u64, u64)>,
    /// What a session with the gateway has to be told.
    taken: VecDeque<Vec<u8>>,
    events: Vec<Told>,
}

impl Letters {
    /// Sends a message under a random number. `until`: after this no session is told.
    pub fn send(
        &mut self,
        number: u64,
        user: u64,
        device: Option<Device>,
        until: Micros,
        data: &[u8],
    ) -> Result<(), SendError> {
        if self.sent.len() >= SESSION_SENDS_MAX {
            return Err(SendError::WouldBlock);
        }
        let data = data.to_vec();
        let sent = Sent {
            user,
            device,
            data,
            until,
            lost: Vec::new(),
        };
        self.sent.insert(number, sent);
        self.untold.push_back(number);
        Ok(())
    }

    /// The program waits for a message's outcome no more.
    pub fn forget(&mut self, number: u64) {
        self.sent.remove(&number);
    }

    /// There is a new session with a proxy: it is told all that is not done.
    pub fn proxy_ready(&mut self) {
        self.untold = self.sent.keys().copied().collect();
    }

    /// There is a new session with a gateway, which has its own numbers.
    pub fn gateway_lost(&mut self) {
        self.taken.clear();
    }

    /// Writes what a proxy has to be told; `tell` returns whether the session had space.
    pub fn tell_proxy(&mut self, now: Micros, mut tell: impl FnMut(&[u8]) -> bool) {
        while let Some(number) = self.untold.front().copied() {
            if let Some(sent) = self.sent.get(&number).filter(|sent| now < sent.until) {
                let left_ms = u32::try_from((sent.until - now) / 1_000).unwrap_or(u32::MAX);
                let record = Record::Send {
                    number,
                    user: sent.user,
                    device: sent.device,
                    left_ms: left_ms.max(1),
                    data: &sent.data,
                };
                if !tell(&record.to_bytes()) {
                    return;
                }
            }
            self.untold.pop_front();
        }
    }

    /// The same for a gateway.
    pub fn tell_gateway(&mut self, mut tell: impl FnMut(&[u8]) -> bool) {
        while self.taken.front().is_some_and(|record| tell(record)) {
            self.taken.pop_front();
        }
    }

    /// Whether a session has to be told something.
    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty() || !self.taken.is_empty()
    }

    /// Takes a record of a session. `false`: malformed, or not a server's to send.
    pub fn take(&mut self, record: &[u8]) -> bool {
        match Record::read(record) {
            Some(Record::Sent {
                number,
                refused,
                mut outcomes,
            }) => {
                if let Some(sent) = self.sent.remove(&number) {
                    for (device, outcome) in &mut outcomes {
                        if *outcome == Outcome::Expired && sent.lost.contains(device) {
                            *outcome = Outcome::Unknown;
                        }
                    }
                    self.events.push(Told::Done {
                        number,
                        refused,
                        outcomes,
                    });
                }
                true
            }
            Some(Record::Lost { number, devices }) => {
                if let Some(sent) = self.sent.get_mut(&number) {
                    sent.lost = devices;
                }
                true
            }
            Some(Record::Push { id, body }) => {
                let Some(letter) = Letter::read(body) else {
                    return false;
                };
                let taken = self.receive(&letter);
                // A gateway asks for one answer to each push: as many as a session's log holds.
                if self.taken.len() < KNOWN_MAX {
                    self.taken.push_back(Record::Taken { id, taken }.to_bytes());
                }
                true
            }
            _ => false,
        }
    }

    /// `false`: there is no place for it.
    fn receive(&mut self, letter: &Letter<'_>) -> bool {
        let key = (letter.sender, letter.number);
        if self.known.contains(&key) {
            return true;
        }
        if self.inbox.len() >= INBOX_MAX || self.inbox_bytes + letter.data.len() > INBOX_BYTES_MAX {
            return false;
        }
        if self.order.len() >= KNOWN_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(key);
        self.order.push_back(key);
        self.inbox_bytes += letter.data.len();
        self.inbox.push_back(Received {
            sender: letter.sender,
            number: letter.number,
            data: letter.data.to_vec(),
        });
        if !std::mem::replace(&mut self.told, true) {
            self.events.push(Told::Readable);
        }
        true
    }

    /// The next message that came.
    pub fn read(&mut self) -> Option<Received> {
        let received = self.inbox.pop_front();
        match &received {
            Some(received) => self.inbox_bytes -= received.data.len(),
            None => self.told = false,
        }
        received
    }

    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MessageId;

    fn push(sequence: u64, number: u64) -> Vec<u8> {
        let id = MessageId {
            server: 1,
            epoch: 1,
            sequence,
        };
        let body = Letter {
            sender: 9,
            number,
            data: b"hello",
        }
        .to_body();
        Record::Push { id, body: &body }.to_bytes()
    }

    fn taken(letters: &mut Letters) -> Vec<bool> {
        let mut all = Vec::new();
        letters.tell_gateway(|record| {
            if let Some(Record::Taken { taken, .. }) = Record::read(record) {
                all.push(taken);
            }
            true
        });
        all
    }

    #[test]
    fn a_message_that_came_by_two_proxies_is_read_once_and_acknowledged_twice() {
        let mut letters = Letters::default();
        assert!(letters.take(&push(1, 5)) && letters.take(&push(2, 5)));
        assert_eq!(letters.events(), [Told::Readable]);
        assert_eq!(letters.read().map(|received| received.data), Some(b"hello".to_vec()));
        assert_eq!(letters.read(), None);
        assert_eq!(taken(&mut letters), [true, true]);
    }

    #[test]
    fn a_full_inbox_takes_nothing_and_says_so() {
        let mut letters = Letters::default();
        for number in 0..=INBOX_MAX as u64 {
            assert!(letters.take(&push(number + 1, number)));
        }
        let all = taken(&mut letters);
        assert_eq!(all.iter().filter(|taken| !**taken).count(), 1);
        assert_eq!(all.last(), Some(&false));
        letters.read();
        assert!(letters.take(&push(9_999, INBOX_MAX as u64)));
        assert_eq!(taken(&mut letters), [true], "now there is place");
    }

    #[test]
    fn what_is_not_done_is_told_to_the_next_session_until_its_time_is_over() {
        let mut letters = Letters::default();
        for (number, until) in [(1, 1_000_000), (2, 50_000)] {
            letters.send(number, 7, None, until, b"x").expect("place");
        }
        let told = |letters: &mut Letters, now| {
            let mut numbers = Vec::new();
            letters.tell_proxy(now, |record| {
                if let Some(Record::Send { number, .. }) = Record::read(record) {
                    numbers.push(number);
                }
                true
            });
            numbers
        };
        assert_eq!(told(&mut letters, 0), [1, 2]);
        assert_eq!(told(&mut letters, 0), [] as [u64; 0]);
        letters.proxy_ready();
        assert_eq!(told(&mut letters, 100_000), [1]);
        let sent = Record::Sent {
            number: 1,
            refused: None,
            outcomes: vec![],
        };
        assert!(letters.take(&sent.to_bytes()) && letters.take(&sent.to_bytes()));
        assert_eq!(letters.events().len(), 1, "the first answer counts");
        letters.proxy_ready();
        assert_eq!(told(&mut letters, 100_000), [] as [u64; 0]);
    }
}
