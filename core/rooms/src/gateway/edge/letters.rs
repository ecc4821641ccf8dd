//! Letters to users: those that clients send by the call `muster.send`, and those that they get.
//!
//! The guest of presence and unicast has the letters; here are the clients' tickets and receipts.

use muster_edge::{Failure, Ticket};
use muster_transport::Micros;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};

use super::publishing::failure;
use super::{Edge, Letters, Receipt, Recipient, Sending, Sent};

/// The lifetime of a letter that names none, and the longest, in seconds, as over HTTP.
const EXPIRES: f64 = 5.0;
const EXPIRES_MAX: f64 = 60.0;

/// A user's number: numbers above 2^53 are not exact in JavaScript, so a text is taken too.
#[derive(Deserialize)]
#[serde(untagged)]
enum User {
    Number(u64),
    Text(String),
}

/// The data of the call `muster.send`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call<'a> {
    user: User,
    #[serde(default)]
    device: Option<String>,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(default)]
    expires: Option<f64>,
}

/// The record for a client's call. `None`: the call is wrong.
fn record(letters: &dyn Letters, number: u64, call: &[u8]) -> Option<Vec<u8>> {
    let call: Call<'_> = serde_json::from_slice(call).ok()?;
    let user = match call.user {
        User::Number(user) => user,
        User::Text(text) => text.parse().ok()?,
    };
    let expires = call.expires.unwrap_or(EXPIRES);
    if !(expires > 0.0 && expires <= EXPIRES_MAX) {
        return None;
    }
    let to = Recipient {
        user,
        device: call.device.as_deref(),
        left_ms: (expires * 1_000.0).ceil() as u32,
    };
    letters.send(number, &to, call.data.get().as_bytes())
}

impl Edge {
    /// A client sends a letter.
    pub(super) fn send_letter(&mut self, now: Micros, slot: u32, ticket: Ticket, call: &[u8]) {
        let number = self.node.secret_u64();
        let letters = self.sessions.letters.as_deref();
        let record = match letters {
            None => Err(Failure::NotAvailable),
            Some(letters) => record(letters, number, call).ok_or(Failure::BadRequest),
        };
        self.sessions.counters.letters_received += 1;
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let session = conn.session();
        match record {
            Err(failure) => self.refuse_letter(now, slot, ticket, failure),
            Ok(record) => {
                conn.aside.get_or_insert_default().sendings.push(Sending {
                    number,
                    ticket,
                    lost: None,
                });
                if !self.lodge.record(now, session, &record) {
                    self.end_sending(slot, number);
                    self.refuse_letter(now, slot, ticket, Failure::NotAvailable);
                }
            }
        }
    }

    fn refuse_letter(&mut self, now: Micros, slot: u32, ticket: Ticket, failure: Failure) {
        self.sessions.counters.letters_refused += 1;
        self.fail(now, slot, ticket, failure);
    }

    fn end_sending(&mut self, slot: u32, number: u64) -> Option<Sending> {
        let sendings = &mut self.sessions.live_mut(slot)?.aside.as_mut()?.sendings;
        let at = sendings.iter().position(|sending| sending.number == number)?;
        Some(sendings.swap_remove(at))
    }

    /// The guest has a record for a session.
    pub(super) fn take_record(&mut self, now: Micros, slot: u32, record: Vec<u8>) {
        let sent = self.sessions.letters.as_ref().and_then(|letters| letters.sent(&record));
        match sent {
            None => self.tell_letter(now, slot, &record),
            Some(Sent::Lost(number)) => {
                let aside = self.sessions.live_mut(slot).and_then(|conn| conn.aside.as_mut());
                let sending =
                    aside.and_then(|aside| aside.sendings.iter_mut().find(|sending| sending.number == number));
                if let Some(sending) = sending {
                    sending.lost = Some(record);
                }
            }
            Some(Sent::Refused(number, code)) => {
                if let Some(sending) = self.end_sending(slot, number) {
                    self.refuse_letter(now, slot, sending.ticket, failure(code));
                }
            }
            Some(Sent::Outcomes(number)) => {
                let Some(sending) = self.end_sending(slot, number) else {
                    return;
                };
                let letters = self.sessions.letters.as_ref();
                let outcomes = letters.map(|letters| letters.outcomes(sending.lost.as_deref(), &record));
                let devices = outcomes.unwrap_or_default().into_iter();
                let devices = devices.map(|(device, outcome)| json!({"device": device, "outcome": outcome}));
                let text = json!({"devices": devices.collect::<Vec<Value>>()}).to_string();
                if let Some(session) = self.sessions.conn_mut(slot).and_then(|conn| conn.connection.session()) {
                    session.rpc(sending.ticket, text.as_bytes());
                }
                self.sessions.settle(now, slot);
            }
        }
    }

    /// Tells a user's device a letter, and asks for its receipt.
    fn tell_letter(&mut self, now: Micros, slot: u32, record: &[u8]) {
        let letter = self
            .sessions
            .letters
            .as_ref()
            .and_then(|letters| letters.letter(record));
        let (Some((text, taken)), Some(conn)) = (letter, self.sessions.live_mut(slot)) else {
            return;
        };
        if let Some(session) = conn.connection.session() {
            session.message(&text);
            let pings = session.receipt();
            conn.add_receipt(pings, Receipt::Letter(taken));
            self.sessions.counters.letters_sent += 1;
        }
        self.sessions.settle(now, slot);
    }
}
