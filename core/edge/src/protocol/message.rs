//! The commands of one message, in order.
//!
//! Owns: [`commands`]. A message holds any number: lines of JSON, or Protobuf behind lengths.

use super::command::{Command, Malformed};
use super::fields::Encoding;
use super::{json, protobuf};

/// The commands of a message; ends behind the first malformed one.
pub fn commands(encoding: Encoding, message: &[u8]) -> Commands<'_> {
    Commands {
        encoding,
        rest: message,
    }
}

pub struct Commands<'a> {
    encoding: Encoding,
    rest: &'a [u8],
}

impl<'a> Commands<'a> {
    /// The part that has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn line(&mut self) -> Option<Result<Command<'a>, Malformed>> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let end = self.rest.iter().position(|byte| *byte == b'\n');
            let line = &self.rest[..end.unwrap_or(self.rest.len())];
            self.rest = end.map_or(&[], |end| &self.rest[end + 1..]);
            if !line.trim_ascii().is_empty() {
                return Some(json::command(line));
            }
        }
    }

    fn packet(&mut self) -> Option<Result<Command<'a>, Malformed>> {
        if self.rest.is_empty() {
            return None;
        }
        let parts = || {
            let (len, start) = protobuf::varint(self.rest)?.ok_or(Malformed)?;
            let len = usize::try_from(len).map_err(|_| Malformed)?;
            self.rest[start..].split_at_checked(len).ok_or(Malformed)
        };
        Some(parts().and_then(|(packet, rest)| {
            self.rest = rest;
            protobuf::command(packet)
        }))
    }
}

impl<'a> Iterator for Commands<'a> {
    type Item = Result<Command<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match self.encoding {
            Encoding::Json => self.line(),
            Encoding::Protobuf => self.packet(),
        };
        if let Some(Err(Malformed)) = next {
            self.rest = &[];
        }
        next
    }
}
