//! A client's frames out of a stream's bytes, and messages out of frames.
//!
//! Owns: [`Reader`], which is what of a message has come so far. A frame is read when all of it is there, in place.

use std::ops::Range;

use super::close::{Close, Violation};
use super::frame::{mask, Head, Opcode};

/// What the bytes at hand hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// Nothing whole yet.
    Nothing,
    /// A whole message of one frame; its payload lies here in the bytes, unmasked.
    Message(Range<usize>),
    /// A whole message of several frames: [`Reader::assembled`] has it.
    Assembled,
    /// A part of a message.
    Fragment,
    /// A control frame, with its payload in the bytes.
    Ping(Range<usize>),
    Pong(Range<usize>),
    Close(Close),
}

#[derive(Default)]
pub struct Reader {
    /// The message under way: whether it is text, and its payload.
    text: Option<bool>,
    assembly: Vec<u8>,
}

impl Reader {
    /// Reads the first frame of `bytes` and returns its whole length with its content. A message may have `max` bytes.
    pub fn read(&mut self, bytes: &mut [u8], max: usize) -> Result<(Read, usize), Violation> {
        let Some(head) = Head::read(bytes)? else {
            return Ok((Read::Nothing, 0));
        };
        let data = matches!(head.opcode, Opcode::Continuation | Opcode::Text | Opcode::Binary);
        match head.opcode {
            Opcode::Continuation if self.text.is_none() => return Err(Violation::Protocol),
            Opcode::Text | Opcode::Binary if self.text.is_some() => return Err(Violation::Protocol),
            _ => {}
        }
        let room = max.saturating_sub(self.assembly.len());
        if data && head.len > room as u64 {
            return Err(Violation::TooBig);
        }
        // It fits: data by `max`, and a control frame has at most 125 B.
        let place = head.start..head.start + head.len as usize;
        let Some(payload) = bytes.get_mut(place.clone()) else {
            return Ok((Read::Nothing, 0));
        };
        mask(head.mask, payload);
        let len = place.end;
        let read = match head.opcode {
            Opcode::Ping => Read::Ping(place),
            Opcode::Pong => Read::Pong(place),
            Opcode::Close => Read::Close(Close::read(payload)?),
            Opcode::Text | Opcode::Binary if head.last => {
                check_text(head.opcode == Opcode::Text, payload)?;
                Read::Message(place)
            }
            _ => {
                let text = *self.text.get_or_insert(head.opcode == Opcode::Text);
                self.assembly.extend_from_slice(payload);
                if head.last {
                    self.text = None;
                    check_text(text, &self.assembly)?;
                    Read::Assembled
                } else {
                    Read::Fragment
                }
            }
        };
        Ok((read, len))
    }

    /// Takes the message of several frames.
    pub fn assembled(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.assembly)
    }

    /// Bytes of the message under way.
    pub fn held(&self) -> usize {
        self.assembly.capacity()
    }
}

fn check_text(text: bool, payload: &[u8]) -> Result<(), Violation> {
    match text && std::str::from_utf8(payload).is_err() {
        true => Err(Violation::Text),
        false => Ok(()),
    }
}
