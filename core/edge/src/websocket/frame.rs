//! Heads of frames and masks.
//!
//! Owns: [`Head`], [`put_head`], [`mask`]. Knows no order of frames.

use super::close::Violation;
use crate::limits::CONTROL_BYTES_MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    fn read(bits: u8) -> Result<Opcode, Violation> {
        Ok(match bits {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            _ => return Err(Violation::Protocol),
        })
    }

    fn bits(self) -> u8 {
        match self {
            Opcode::Continuation => 0,
            Opcode::Text => 1,
            Opcode::Binary => 2,
            Opcode::Close => 8,
            Opcode::Ping => 9,
            Opcode::Pong => 10,
        }
    }

    fn is_control(self) -> bool {
        self.bits() >= 8
    }
}

/// The head of a client's frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub last: bool,
    pub opcode: Opcode,
    pub mask: [u8; 4],
    /// The payload's length.
    pub len: u64,
    /// The head's length.
    pub start: usize,
}

impl Head {
    /// Reads a head. `None`: it is cut. A client's frame must be masked and say its length as short as can be.
    pub fn read(bytes: &[u8]) -> Result<Option<Head>, Violation> {
        let Some(([first, second], rest)) = bytes.split_first_chunk::<2>() else {
            return match bytes.first() {
                Some(first) => Opcode::read(first & 0x0f).map(|_| None),
                None => Ok(None),
            };
        };
        let opcode = Opcode::read(first & 0x0f)?;
        let last = first & 0x80 != 0;
        if first & 0x70 != 0 || second & 0x80 == 0 {
            return Err(Violation::Protocol);
        }
        let (len, rest) = match second & 0x7f {
            126 => match rest.split_first_chunk::<2>() {
                Some((len, rest)) => (u64::from(u16::from_be_bytes(*len)), rest),
                None => return control(opcode, last, 126),
            },
            127 => match rest.split_first_chunk::<8>() {
                Some((len, rest)) => (u64::from_be_bytes(*len), rest),
                None => return control(opcode, last, 127),
            },
            len => (u64::from(len), rest),
        };
        let shortest = match len {
            0..126 => second & 0x7f < 126,
            126..=0xffff => second & 0x7f == 126,
            _ => len >> 63 == 0,
        };
        if !shortest {
            return Err(Violation::Protocol);
        }
        control(opcode, last, len)?;
        Ok(rest.split_first_chunk::<4>().map(|(mask, rest)| Head {
            last,
            opcode,
            mask: *mask,
            len,
            start: bytes.len() - rest.len(),
        }))
    }
}

/// Control frames are short and whole.
fn control(opcode: Opcode, last: bool, len: u64) -> Result<Option<Head>, Violation> {
    match opcode.is_control() && (!last || len > CONTROL_BYTES_MAX as u64) {
        true => Err(Violation::Protocol),
        false => Ok(None),
    }
}

/// Writes the head of a server's whole frame: not masked.
#[inline]
pub fn put_head(out: &mut Vec<u8>, opcode: Opcode, len: usize) {
    out.push(0x80 | opcode.bits());
    match len {
        0..126 => out.push(len as u8),
        126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

/// Masks or unmasks a payload.
pub fn mask(key: [u8; 4], payload: &mut [u8]) {
    let word = u64::from_ne_bytes([key[0], key[1], key[2], key[3], key[0], key[1], key[2], key[3]]);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let masked = u64::from_ne_bytes(chunk.try_into().expect("chunks of eight")) ^ word;
        chunk.copy_from_slice(&masked.to_ne_bytes());
    }
    for (at, byte) in chunks.into_remainder().iter_mut().enumerate() {
        *byte ^= key[at % 4];
    }
}
