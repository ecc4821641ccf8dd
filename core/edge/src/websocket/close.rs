//! Close frames and the violations that cause them.
//!
//! Owns: [`Close`], [`Violation`].

use super::frame::{put_head, Opcode};

/// A peer's breach of RFC 6455.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A frame that must not come: its head, its order, or its close code.
    Protocol,
    /// Text that is no UTF-8.
    Text,
    /// A message beyond the bound.
    TooBig,
}

impl Violation {
    pub fn code(self) -> u16 {
        match self {
            Violation::Protocol => 1002,
            Violation::Text => 1007,
            Violation::TooBig => 1009,
        }
    }

    pub fn reason(self) -> &'static str {
        match self {
            Violation::Protocol => "protocol error",
            Violation::Text => "text is not UTF-8",
            Violation::TooBig => "message too big",
        }
    }
}

/// The content of a close frame. Code 1005: it had none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    pub code: u16,
}

impl Close {
    /// Reads a close frame's payload.
    pub fn read(payload: &[u8]) -> Result<Close, Violation> {
        let Some((code, reason)) = payload.split_first_chunk::<2>() else {
            return match payload {
                [] => Ok(Close { code: 1005 }),
                _ => Err(Violation::Protocol),
            };
        };
        let code = u16::from_be_bytes(*code);
        if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
            return Err(Violation::Protocol);
        }
        std::str::from_utf8(reason).map_err(|_| Violation::Text)?;
        Ok(Close { code })
    }

    /// Writes a close frame. `reason` has at most 123 bytes.
    pub fn write(out: &mut Vec<u8>, code: u16, reason: &str) {
        if code == 1005 {
            put_head(out, Opcode::Close, 0);
            return;
        }
        put_head(out, Opcode::Close, 2 + reason.len());
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(reason.as_bytes());
    }
}
