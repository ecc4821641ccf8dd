//! Replies in RESP2 or RESP3.
//!
//! Owns the bytes of each kind of reply. Knows no command.

use std::io::Write;

/// Appends replies of one protocol version.
pub(crate) struct Reply<'a> {
    pub out: &'a mut Vec<u8>,
    pub resp3: bool,
}

impl Reply<'_> {
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `text` begins with the error's code.
    pub fn error(&mut self, text: &str) {
        self.out.push(b'-');
        // A line end in text from a client would end the reply.
        self.out.extend(
            text.bytes()
                .map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }),
        );
        self.out.extend_from_slice(b"\r\n");
    }

    pub fn integer(&mut self, number: i64) {
        match number {
            0 => self.out.extend_from_slice(b":0\r\n"),
            1 => self.out.extend_from_slice(b":1\r\n"),
            number => self.number(b':', number),
        }
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A user id: a bulk string, since RESP's integers end at 2^63.
    pub fn user(&mut self, user: u64) {
        self.bulk(user.to_string().as_bytes());
    }

    pub fn null(&mut self) {
        self.out
            .extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// An array that is not there.
    pub fn null_array(&mut self) {
        self.out
            .extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    pub fn double(&mut self, value: f64) {
        match self.resp3 {
            true => self.line(b',', value.to_string().as_bytes()),
            false => self.bulk(value.to_string().as_bytes()),
        }
    }

    /// `len` replies follow.
    pub fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    /// `len` pairs of replies follow.
    pub fn map(&mut self, len: usize) {
        match self.resp3 {
            true => self.number(b'%', len as i64),
            false => self.array(2 * len),
        }
    }

    fn number(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        write!(self.out, "{number}").expect("a vector takes all bytes");
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}
