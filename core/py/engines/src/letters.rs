//! Messages to users at an edge: the records of unicast for its clients' letters.

use muster_presence::{told_to_device, Device, GuestRecord, Outcome, DATA_BYTES_MAX};
use muster_rooms::{DeviceOutcome, Letters, Recipient, Sent};
use muster_transport::Code;

/// Letters of presence and unicast.
pub struct UserLetters;

impl Letters for UserLetters {
    fn letter(&self, record: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let (told, taken) = told_to_device(record)?;
        let (value, is_json) = muster_edge::protocol::as_json(told.data);
        let encoded = if is_json { "" } else { ",\"encoding\":\"base64\"" };
        let head = format!(
            "{{\"muster\":\"direct\",\"user\":\"{}\"{encoded},\"data\":",
            told.sender
        );
        let text = [head.as_bytes(), &value, b"}"].concat();
        Some((text, taken))
    }

    fn send(&self, number: u64, to: &Recipient<'_>, data: &[u8]) -> Option<Vec<u8>> {
        let device = match to.device {
            None => None,
            Some(name) => Some(Device::new(name.as_bytes())?),
        };
        let send = GuestRecord::Send {
            number,
            user: to.user,
            device,
            left_ms: to.left_ms,
            data,
        };
        (data.len() <= DATA_BYTES_MAX).then(|| send.to_bytes())
    }

    fn sent(&self, record: &[u8]) -> Option<Sent> {
        match GuestRecord::read(record)? {
            GuestRecord::Lost { number, .. } => Some(Sent::Lost(number)),
            GuestRecord::Sent { number, refused, .. } => Some(match refused {
                None => Sent::Outcomes(number),
                Some(Code::Busy) => Sent::Refused(number, Code::RateLimited),
                Some(code) => Sent::Refused(number, code),
            }),
            _ => None,
        }
    }

    fn outcomes(&self, lost: Option<&[u8]>, record: &[u8]) -> Vec<DeviceOutcome> {
        let lost = match lost.and_then(GuestRecord::read) {
            Some(GuestRecord::Lost { devices, .. }) => devices,
            _ => Vec::new(),
        };
        let Some(GuestRecord::Sent { outcomes, .. }) = GuestRecord::read(record) else {
            return Vec::new();
        };
        let told = |(device, outcome): (Option<Device>, Outcome)| {
            let outcome = match outcome {
                Outcome::Delivered => "delivered",
                Outcome::NotOnline => "not_online",
                Outcome::Expired if !lost.contains(&device) => "expired",
                Outcome::Expired | Outcome::Unknown => "unknown",
            };
            let name = device.map(|device| String::from_utf8_lossy(device.name()).into_owned());
            (name, outcome)
        };
        outcomes.into_iter().map(told).collect()
    }
}
