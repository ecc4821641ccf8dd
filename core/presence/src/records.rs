//! The records of unicast in session logs, between a client and its server.
//!
//! Owns these byte layouts, from [`GUEST_KINDS`] on: their first byte is the kind. Knows no session. Parsing gives
//! borrowed views and allocates nothing by a count from the sender.
//!
//! In transit a message's body has 16 bytes before the data: its sender and the sender's number, by which a device
//! recognises repeats.

use crate::device::Device;
use crate::limits::{DATA_BYTES_MAX, OUTCOMES_MAX};
use crate::wire::{write_device, MessageId, Outcome};
use muster_transport::{Code, Encode, Reader, Writer, GUEST_KINDS};

const SEND: u8 = GUEST_KINDS;
const SENT: u8 = GUEST_KINDS + 1;
const PUSH: u8 = GUEST_KINDS + 2;
const TAKEN: u8 = GUEST_KINDS + 3;
const LOST: u8 = GUEST_KINDS + 4;
const END: u8 = GUEST_KINDS + 5;

/// Bytes before the data in a message's body.
pub const ENVELOPE: usize = 16;

/// Outcomes by device; a single one without a device if none is known.
pub type Outcomes = Vec<(Option<Device>, Outcome)>;

/// The parts of a message's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Letter<'a> {
    pub sender: u64,
    /// The sender's random number: the same in each try.
    pub number: u64,
    pub data: &'a [u8],
}

impl<'a> Letter<'a> {
    pub fn read(body: &'a [u8]) -> Option<Letter<'a>> {
        let mut reader = Reader::new(body);
        let (sender, number) = (reader.u64()?, reader.u64()?);
        let data = reader.rest();
        (data.len() <= DATA_BYTES_MAX).then_some(Letter { sender, number, data })
    }

    pub fn to_body(self) -> Vec<u8> {
        let mut body = Vec::with_capacity(ENVELOPE + self.data.len());
        body.extend_from_slice(&self.sender.to_le_bytes());
        body.extend_from_slice(&self.number.to_le_bytes());
        body.extend_from_slice(self.data);
        body
    }
}

/// One record, borrowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// Client to proxy: send this to a user's devices.
    Send {
        number: u64,
        user: u64,
        /// `None`: all devices.
        device: Option<Device>,
        left_ms: u32,
        data: &'a [u8],
    },
    /// Client to proxy: end a user's sessions. `Sent` is the answer; devices whose session was ended count as `Delivered`.
    End {
        number: u64,
        user: u64,
        /// `None`: all devices.
        device: Option<Device>,
        left_ms: u32,
    },
    /// Proxy to client: the outcome, or why it was not tried.
    Sent {
        number: u64,
        refused: Option<Code>,
        outcomes: Outcomes,
    },
    /// Proxy to client, before the outcomes: these devices have the outcome `Unknown`. The outcomes list them as
    /// `Expired`, the only value that a client of an older release knows; it drops this record.
    Lost { number: u64, devices: Vec<Option<Device>> },
    /// Gateway to device.
    Push { id: MessageId, body: &'a [u8] },
    /// Device to gateway: what became of the message there.
    Taken { id: MessageId, receipt: Receipt },
}

/// A device's answer to a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receipt {
    /// The device has no place for the message now.
    Full = 0,
    /// The device has the message.
    Taken = 1,
    /// The device's program reads no messages to its user. A gateway of an older release drops this, and the message expires there.
    Unread = 2,
}

impl Receipt {
    fn from_u8(byte: u8) -> Option<Receipt> {
        [Receipt::Full, Receipt::Taken, Receipt::Unread]
            .into_iter()
            .find(|receipt| *receipt as u8 == byte)
    }
}

impl<'a> Record<'a> {
    /// `None`: malformed, or not a kind of unicast.
    pub fn read(bytes: &'a [u8]) -> Option<Record<'a>> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        let record = match r.u8()? {
            SEND => {
                let (number, user) = (r.u64()?, r.u64()?);
                let (device, left_ms) = (Device::read_any(r)?, r.u32()?);
                let data = r.take(r.rest().len()).filter(|data| data.len() <= DATA_BYTES_MAX)?;
                Record::Send {
                    number,
                    user,
                    device,
                    left_ms,
                    data,
                }
            }
            END => Record::End {
                number: r.u64()?,
                user: r.u64()?,
                device: Device::read_any(r)?,
                left_ms: r.u32()?,
            },
            SENT => {
                let (number, code) = (r.u64()?, Code::from_u8(r.u8()?));
                let outcomes = read_outcomes(r)?;
                let refused = (code != Code::Ok).then_some(code);
                Record::Sent {
                    number,
                    refused,
                    outcomes,
                }
            }
            LOST => Record::Lost {
                number: r.u64()?,
                devices: read_devices(r)?,
            },
            PUSH => Record::Push {
                id: MessageId::read(r)?,
                body: r.take(r.rest().len())?,
            },
            TAKEN => Record::Taken {
                id: MessageId::read(r)?,
                receipt: Receipt::from_u8(r.u8()?)?,
            },
            _ => return None,
        };
        reader.is_empty().then_some(record)
    }

    /// The whole record.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.encode(<[u8]>::to_vec)
    }
}

impl Encode for Record<'_> {
    fn write(&self, w: &mut Writer<'_>) -> bool {
        match self {
            Record::Send {
                number,
                user,
                device,
                left_ms,
                data,
            } => {
                w.u8(SEND).u64(*number).u64(*user);
                write_device(device, w);
                w.u32(*left_ms).put(data);
            }
            Record::End {
                number,
                user,
                device,
                left_ms,
            } => {
                w.u8(END).u64(*number).u64(*user);
                write_device(device, w);
                w.u32(*left_ms);
            }
            Record::Sent {
                number,
                refused,
                outcomes,
            } => {
                w.u8(SENT).u64(*number).u8(refused.unwrap_or(Code::Ok) as u8);
                write_outcomes(&outcomes[..outcomes.len().min(OUTCOMES_MAX)], w);
            }
            Record::Lost { number, devices } => {
                w.u8(LOST).u64(*number);
                devices
                    .iter()
                    .take(OUTCOMES_MAX)
                    .for_each(|device| write_device(device, w));
            }
            Record::Push { id, body } => {
                id.write(w.u8(PUSH));
                w.put(body);
            }
            Record::Taken { id, receipt } => {
                id.write(w.u8(TAKEN));
                w.u8(*receipt as u8);
            }
        }
        !w.full()
    }
}

fn write_outcomes(outcomes: &[(Option<Device>, Outcome)], w: &mut Writer<'_>) {
    for (device, outcome) in outcomes {
        write_device(device, w);
        let known = match outcome {
            Outcome::Unknown => Outcome::Expired,
            known => *known,
        };
        w.u8(known as u8);
    }
}

fn read_devices(r: &mut Reader<'_>) -> Option<Vec<Option<Device>>> {
    let mut devices = Vec::new();
    while !r.is_empty() {
        if devices.len() >= OUTCOMES_MAX {
            return None;
        }
        devices.push(Device::read_any(r)?);
    }
    Some(devices)
}

fn read_outcomes(r: &mut Reader<'_>) -> Option<Outcomes> {
    let mut outcomes = Outcomes::new();
    while !r.is_empty() {
        if outcomes.len() >= OUTCOMES_MAX {
            return None;
        }
        let device = Device::read_any(r)?;
        let outcome = Outcome::from_u8(r.u8()?).filter(|outcome| *outcome != Outcome::Unknown)?;
        outcomes.push((device, outcome));
    }
    Some(outcomes)
}

/// The best known outcome of each device: a device that moved has an outcome at each gateway, one of which delivered.
/// A list with devices has no entry without a device.
pub fn merge(all: impl Iterator<Item = (Option<Device>, Outcome)>) -> Outcomes {
    let mut best = std::collections::BTreeMap::<Device, Outcome>::new();
    let mut nobody: Option<Outcome> = None;
    for (device, outcome) in all {
        match device {
            Some(device) => {
                let known = best.entry(device).or_insert(outcome);
                *known = better(*known, outcome);
            }
            None => nobody = Some(nobody.map_or(outcome, |known| better(known, outcome))),
        }
    }
    // A gateway of which nothing is known may have had further devices; other outcomes may belong to unnamed devices.
    let unnamed = nobody.filter(|outcome| best.is_empty() || *outcome != Outcome::NotOnline);
    let mut merged: Outcomes = best
        .into_iter()
        .map(|(device, outcome)| (Some(device), outcome))
        .collect();
    merged.extend(unnamed.map(|outcome| (None, outcome)));
    if merged.len() <= OUTCOMES_MAX {
        merged.sort_by_key(|(device, outcome)| (rank(*outcome), *device));
        return merged;
    }
    // The entry without a name stands for those that do not fit, with the worst of their outcomes.
    merged.sort_by_key(|(device, outcome)| (badness(*outcome), device.is_none(), *device));
    let rest = merged.split_off(OUTCOMES_MAX - 1);
    let named: Vec<_> = merged.into_iter().filter(|(device, _)| device.is_some()).collect();
    let (mut merged, worst) = (named, rest[0].1);
    merged.sort_by_key(|(device, outcome)| (rank(*outcome), *device));
    merged.push((
        None,
        unnamed.map_or(worst, |one| if badness(one) < badness(worst) { one } else { worst }),
    ));
    merged
}

fn better(one: Outcome, other: Outcome) -> Outcome {
    if rank(other) < rank(one) {
        other
    } else {
        one
    }
}

/// The precedence of outcomes if gateways or services differ: the lowest counts.
fn rank(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Delivered => 0,
        Outcome::Expired => 1,
        Outcome::Unknown => 2,
        Outcome::NotOnline => 3,
    }
}

/// The order of importance to a sender.
fn badness(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Expired => 0,
        Outcome::Unknown => 1,
        Outcome::Delivered => 2,
        Outcome::NotOnline => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: MessageId = MessageId {
        server: 7,
        epoch: 8,
        sequence: 9,
    };

    fn device(name: &str) -> Option<Device> {
        Device::new(name.as_bytes())
    }

    #[test]
    fn every_record_survives_the_wire_and_the_longest_fits() {
        let longest = "x".repeat(crate::limits::DEVICE_BYTES_MAX);
        let data = [7; DATA_BYTES_MAX];
        let body = Letter {
            sender: u64::MAX,
            number: 3,
            data: &data,
        }
        .to_body();
        let records = [
            Record::Send {
                number: 1,
                user: 2,
                device: device(&longest),
                left_ms: 3,
                data: &data,
            },
            Record::Send {
                number: 1,
                user: 2,
                device: None,
                left_ms: 3,
                data: b"",
            },
            Record::End {
                number: 1,
                user: 2,
                device: device(&longest),
                left_ms: 3,
            },
            Record::Sent {
                number: 1,
                refused: None,
                outcomes: vec![(device(&longest), Outcome::Expired); OUTCOMES_MAX],
            },
            Record::Sent {
                number: 1,
                refused: Some(Code::Busy),
                outcomes: vec![],
            },
            Record::Lost {
                number: 1,
                devices: vec![device(&longest); OUTCOMES_MAX],
            },
            Record::Push { id: ID, body: &body },
            Record::Taken {
                id: ID,
                receipt: Receipt::Unread,
            },
        ];
        for record in records {
            let bytes = record.to_bytes();
            assert_eq!(Record::read(&bytes), Some(record.clone()));
        }
        assert_eq!(Letter::read(&body).map(|letter| letter.to_body()), Some(body.clone()));
    }

    #[test]
    fn the_best_outcome_of_each_device_counts() {
        let (phone, laptop) = (device("phone"), device("laptop"));
        let all = [
            (phone, Outcome::NotOnline),
            (None, Outcome::NotOnline),
            (phone, Outcome::Delivered),
            (laptop, Outcome::Expired),
        ];
        let merged = merge(all.into_iter());
        assert_eq!(merged, [(phone, Outcome::Delivered), (laptop, Outcome::Expired)]);
        assert_eq!(
            merge([(None, Outcome::NotOnline); 3].into_iter()),
            [(None, Outcome::NotOnline)]
        );
        let lost = [(phone, Outcome::Delivered), (None, Outcome::Expired)];
        assert_eq!(
            merge(lost.into_iter()),
            lost,
            "a gateway that says nothing may have another device"
        );
        let dead = [(phone, Outcome::Unknown), (phone, Outcome::NotOnline)];
        assert_eq!(merge(dead.into_iter()), [(phone, Outcome::Unknown)]);
    }

    #[test]
    fn with_too_many_devices_the_last_entry_has_the_worst_outcome() {
        let all = |worst: Outcome| {
            let one = move |index: usize| {
                (
                    device(&format!("d:{index}")),
                    if index == 50 { worst } else { Outcome::Delivered },
                )
            };
            merge((0..60).map(one))
        };
        for outcome in [Outcome::Expired, Outcome::Unknown] {
            let merged = all(outcome);
            assert_eq!(merged.len(), OUTCOMES_MAX);
            assert!(
                merged.contains(&(device("d:50"), outcome)),
                "a device that lacks the message is named"
            );
            assert_eq!(
                merged.last(),
                Some(&(None, Outcome::Delivered)),
                "and one line is that of the rest"
            );
        }
        let expired = merge((0..60).map(|index| (device(&format!("d:{index}")), Outcome::Expired)));
        assert_eq!(
            (expired.len(), expired.last()),
            (OUTCOMES_MAX, Some(&(None, Outcome::Expired)))
        );
        assert_eq!(
            merge((0..40).map(|index| (device(&format!("d:{index}")), Outcome::Delivered))).len(),
            40
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(record) = Record::read(&bytes) {
                let again = record.to_bytes();
                prop_assert_eq!(Record::read(&again), Some(record));
            }
        }
    }
}
