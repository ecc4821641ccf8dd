//! Unicast in a client: its messages to users until their outcome is known, and the messages that it received.
//!
//! Owns [`Letters`]. A message keeps its number in each session that sends it, and a device identifies a message by
//! sender and number: so one that was sent through two proxies is read once. Knows no session: records go in and out,
//! and the client reports new sessions. Knows no clock: the program waits for the end of a message's time.

use crate::device::Device;
use crate::limits::{INBOX_BYTES_MAX, INBOX_MAX, KNOWN_MAX, SESSION_SENDS_MAX};
use crate::records::{Letter, Outcomes, Receipt, Record};
use crate::wire::{MessageId, Outcome};
use muster_transport::{Code, Micros};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A sent message, with the end of its time.
struct Sent {
    user: u64,
    device: Option<Device>,
    /// `None`: it ends the devices' sessions.
    data: Option<Vec<u8>>,
    until: Micros,
    /// Devices whose gateway was lost before it answered.
    lost: Vec<Option<Device>>,
}

/// A received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    pub sender: u64,
    pub number: u64,
    pub data: Vec<u8>,
}

/// An event for the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The outcome of a message, or why it was not tried.
    Done {
        number: u64,
        refused: Option<Code>,
        outcomes: Outcomes,
    },
    /// Messages wait to be read.
    Readable,
}

/// When a message to the client's user counts as delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reading {
    /// Once it is here.
    #[default]
    Here,
    /// Never: nobody reads, and the sender is told so.
    Nobody,
    /// Once the program confirms it. A message that is not confirmed expires.
    Confirmed,
}

/// Pushes of one message that wait for the same confirmation: of two services and one more after a restart.
const PUSHES_MAX: usize = 4;

/// Why a message is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// Too many messages are open.
    WouldBlock,
}

/// A message as a gateway tells it to a device, and the record by which the device says that it has it. `None`: the record
/// is no message.
pub fn told_to_device(record: &[u8]) -> Option<(Letter<'_>, Vec<u8>)> {
    let Some(Record::Push { id, body }) = Record::read(record) else {
        return None;
    };
    let letter = Letter::read(body)?;
    let receipt = Receipt::Taken;
    Some((letter, Record::Taken { id, receipt }.to_bytes()))
}

/// All messages of a client.
#[derive(Default)]
pub struct Letters {
    sent: BTreeMap<u64, Sent>,
    /// Messages not yet sent in the present session with a proxy.
    untold: VecDeque<u64>,
    inbox: VecDeque<Received>,
    inbox_bytes: usize,
    /// The program was told that messages wait, and has not read them all.
    told: bool,
    /// Received messages, by sender and number, latest last.
    known: BTreeSet<(u64, u64)>,
    order: VecDeque<(u64, u64)>,
    reading: Reading,
    /// Messages that wait for the program's confirmation, with the pushes of this session that it answers.
    unconfirmed: BTreeMap<(u64, u64), Vec<MessageId>>,
    /// Records for the gateway that no session has taken yet.
    taken: VecDeque<Vec<u8>>,
    events: Vec<Told>,
}

impl Letters {
    /// Sends a message under a random number. After `until` it is not sent to further sessions.
    pub fn send(
        &mut self,
        number: u64,
        user: u64,
        device: Option<Device>,
        until: Micros,
        data: &[u8],
    ) -> Result<(), SendError> {
        self.open(number, user, device, until, Some(data.to_vec()))
    }

    /// Asks under a random number that a user's sessions end, as [`Letters::send`] sends a message. Only a client with
    /// the shared token may.
    pub fn end(&mut self, number: u64, user: u64, device: Option<Device>, until: Micros) -> Result<(), SendError> {
        self.open(number, user, device, until, None)
    }

    fn open(
        &mut self,
        number: u64,
        user: u64,
        device: Option<Device>,
        until: Micros,
        data: Option<Vec<u8>>,
    ) -> Result<(), SendError> {
        if self.sent.len() >= SESSION_SENDS_MAX {
            return Err(SendError::WouldBlock);
        }
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

    /// The program no longer waits for a message's outcome.
    pub fn forget(&mut self, number: u64) {
        self.sent.remove(&number);
    }

    /// There is a new session with a proxy: all open messages are sent in it.
    pub fn proxy_ready(&mut self) {
        self.untold = self.sent.keys().copied().collect();
    }

    /// There is a new session with a gateway, which has its own numbers.
    pub fn gateway_lost(&mut self) {
        self.taken.clear();
        self.unconfirmed.values_mut().for_each(Vec::clear);
    }

    /// Says when messages count as delivered from now on. Where nobody reads any more, messages that the program has not read
    /// are answered so; one that it has read and not confirmed may have arrived, and expires.
    pub fn set_reading(&mut self, reading: Reading) {
        self.reading = reading;
        if reading != Reading::Nobody {
            return;
        }
        for received in std::mem::take(&mut self.inbox) {
            let key = (received.sender, received.number);
            for id in self.unconfirmed.remove(&key).unwrap_or_default() {
                self.answer(id, Receipt::Unread);
            }
            self.forget_message(key);
        }
        for key in std::mem::take(&mut self.unconfirmed).into_keys() {
            self.forget_message(key);
        }
        self.inbox_bytes = 0;
        self.told = false;
    }

    /// The program's reader has this message.
    pub fn confirm(&mut self, sender: u64, number: u64) {
        for id in self.unconfirmed.remove(&(sender, number)).unwrap_or_default() {
            self.answer(id, Receipt::Taken);
        }
    }

    fn answer(&mut self, id: MessageId, receipt: Receipt) {
        // A gateway asks for one answer to each push: as many as a session's log holds.
        if self.taken.len() < KNOWN_MAX {
            self.taken.push_back(Record::Taken { id, receipt }.to_bytes());
        }
    }

    /// The message is new where it comes again.
    fn forget_message(&mut self, key: (u64, u64)) {
        self.known.remove(&key);
        self.order.retain(|known| *known != key);
    }

    /// Writes the records for a proxy; `tell` returns whether the session had space.
    pub fn tell_proxy(&mut self, now: Micros, mut tell: impl FnMut(&[u8]) -> bool) {
        while let Some(number) = self.untold.front().copied() {
            if let Some(sent) = self.sent.get(&number).filter(|sent| now < sent.until) {
                let left_ms = u32::try_from((sent.until - now) / 1_000).unwrap_or(u32::MAX);
                let (user, device, left_ms) = (sent.user, sent.device, left_ms.max(1));
                let record = match &sent.data {
                    Some(data) => Record::Send {
                        number,
                        user,
                        device,
                        left_ms,
                        data,
                    },
                    None => Record::End {
                        number,
                        user,
                        device,
                        left_ms,
                    },
                };
                if !tell(&record.to_bytes()) {
                    return;
                }
            }
            self.untold.pop_front();
        }
    }

    /// Writes the records for a gateway.
    pub fn tell_gateway(&mut self, mut tell: impl FnMut(&[u8]) -> bool) {
        while self.taken.front().is_some_and(|record| tell(record)) {
            self.taken.pop_front();
        }
    }

    /// Whether records wait for a session.
    pub fn has_untold(&self) -> bool {
        !self.untold.is_empty() || !self.taken.is_empty()
    }

    /// Takes a record of a session. `false`: malformed, or servers may not send it.
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
                if let Some(receipt) = self.receive(id, &letter) {
                    self.answer(id, receipt);
                }
                true
            }
            _ => false,
        }
    }

    /// The answer; `None`: the program's confirmation is the answer.
    fn receive(&mut self, id: MessageId, letter: &Letter<'_>) -> Option<Receipt> {
        let key = (letter.sender, letter.number);
        if let Some(pushes) = self.unconfirmed.get_mut(&key) {
            if pushes.len() < PUSHES_MAX {
                pushes.push(id);
            }
            return None;
        }
        if self.known.contains(&key) {
            return Some(Receipt::Taken);
        }
        if self.reading == Reading::Nobody {
            return Some(Receipt::Unread);
        }
        let count = self.inbox.len().max(self.unconfirmed.len());
        if count >= INBOX_MAX || self.inbox_bytes + letter.data.len() > INBOX_BYTES_MAX {
            return Some(Receipt::Full);
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
        if self.reading == Reading::Confirmed {
            self.unconfirmed.insert(key, vec![id]);
            return None;
        }
        Some(Receipt::Taken)
    }

    /// Takes the next received message.
    pub fn read(&mut self) -> Option<Received> {
        let received = self.inbox.pop_front();
        match &received {
            Some(received) => self.inbox_bytes -= received.data.len(),
            None => self.told = false,
        }
        received
    }

    /// The events since the last call.
    pub fn events(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn receipts(letters: &mut Letters) -> Vec<Receipt> {
        let mut all = Vec::new();
        letters.tell_gateway(|record| {
            if let Some(Record::Taken { receipt, .. }) = Record::read(record) {
                all.push(receipt);
            }
            true
        });
        all
    }

    #[test]
    fn where_nobody_reads_the_sender_is_told_so_and_nothing_is_kept() {
        let mut letters = Letters::default();
        letters.set_reading(Reading::Nobody);
        assert!(letters.take(&push(1, 5)));
        assert_eq!(receipts(&mut letters), [Receipt::Unread]);
        assert_eq!((letters.events(), letters.read()), (vec![], None));
        letters.set_reading(Reading::Confirmed);
        assert!(letters.take(&push(2, 5)), "the message comes once more");
        assert_eq!(letters.events(), [Told::Readable]);
        assert!(letters.read().is_some());
    }

    #[test]
    fn a_message_is_delivered_once_the_program_confirms_it_and_not_before() {
        let mut letters = Letters::default();
        letters.set_reading(Reading::Confirmed);
        assert!(letters.take(&push(1, 5)) && letters.take(&push(2, 5)));
        let received = letters.read().expect("a message");
        assert_eq!((letters.read(), receipts(&mut letters)), (None, vec![]));
        letters.confirm(received.sender, received.number);
        letters.confirm(received.sender, received.number);
        assert_eq!(
            receipts(&mut letters),
            [Receipt::Taken; 2],
            "both pushes are answered, once"
        );
        assert!(letters.take(&push(3, 5)));
        assert_eq!(receipts(&mut letters), [Receipt::Taken], "the reader has it");
        assert_eq!(letters.read(), None);
    }

    #[test]
    fn a_reader_that_goes_leaves_unread_what_it_did_not_begin_and_lets_the_rest_expire() {
        let mut letters = Letters::default();
        letters.set_reading(Reading::Confirmed);
        assert!(letters.take(&push(1, 5)) && letters.take(&push(2, 6)));
        let begun = letters.read().expect("a message");
        assert_eq!(letters.events(), [Told::Readable]);
        letters.set_reading(Reading::Nobody);
        assert_eq!(receipts(&mut letters), [Receipt::Unread], "the second one alone");
        letters.confirm(begun.sender, begun.number);
        assert_eq!(receipts(&mut letters), [], "too late");
        letters.set_reading(Reading::Confirmed);
        assert!(letters.take(&push(3, 5)) && letters.take(&push(4, 6)));
        assert_eq!(letters.events(), [Told::Readable]);
        assert!(
            letters.read().is_some() && letters.read().is_some(),
            "both come once more"
        );
    }

    #[test]
    fn a_confirmation_answers_no_push_of_a_lost_session() {
        let mut letters = Letters::default();
        letters.set_reading(Reading::Confirmed);
        assert!(letters.take(&push(1, 5)));
        let received = letters.read().expect("a message");
        letters.gateway_lost();
        assert!(letters.take(&push(2, 5)), "by the next gateway");
        letters.confirm(received.sender, received.number);
        assert_eq!((receipts(&mut letters), letters.read()), (vec![Receipt::Taken], None));
    }

    #[test]
    fn messages_that_are_not_confirmed_are_bounded() {
        let mut letters = Letters::default();
        letters.set_reading(Reading::Confirmed);
        for number in 0..=INBOX_MAX as u64 {
            assert!(letters.take(&push(number + 1, number)));
            letters.read();
        }
        assert_eq!(receipts(&mut letters), [Receipt::Full]);
        letters.confirm(9, 0);
        assert!(letters.take(&push(9_999, INBOX_MAX as u64)));
        assert_eq!(receipts(&mut letters), [Receipt::Taken]);
    }

    #[test]
    fn a_message_that_came_by_two_proxies_is_read_once_and_acknowledged_twice() {
        let mut letters = Letters::default();
        assert!(letters.take(&push(1, 5)) && letters.take(&push(2, 5)));
        assert_eq!(letters.events(), [Told::Readable]);
        assert_eq!(letters.read().map(|received| received.data), Some(b"hello".to_vec()));
        assert_eq!(letters.read(), None);
        assert_eq!(receipts(&mut letters), [Receipt::Taken; 2]);
    }

    #[test]
    fn a_full_inbox_refuses_messages() {
        let mut letters = Letters::default();
        for number in 0..=INBOX_MAX as u64 {
            assert!(letters.take(&push(number + 1, number)));
        }
        let all = receipts(&mut letters);
        assert_eq!(all.iter().filter(|receipt| **receipt == Receipt::Full).count(), 1);
        assert_eq!(all.last(), Some(&Receipt::Full));
        letters.read();
        assert!(letters.take(&push(9_999, INBOX_MAX as u64)));
        assert_eq!(receipts(&mut letters), [Receipt::Taken], "now there is place");
    }

    #[test]
    fn open_messages_are_sent_in_the_next_session_until_their_time_is_over() {
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
