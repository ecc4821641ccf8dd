//! Writes fields by number and name: one table serves both encodings.
//!
//! Owns: [`Encoding`], [`Fields`]. Values that are empty, 0 or false are left out, as both encodings want it, but for those that
//! SDKs read from JSON without asking whether they are there.

use super::json;

/// How a session's messages are written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// One JSON object a line.
    Json,
    /// Each message behind its length as a varint.
    Protobuf,
}

/// An object under construction.
pub struct Fields<'a> {
    out: &'a mut Vec<u8>,
    encoding: Encoding,
    empty: bool,
}

/// The longest varint.
const VARINT_MAX: usize = 10;

impl<'a> Fields<'a> {
    /// Writes one whole message behind those in `out`.
    pub fn message_into(out: &'a mut Vec<u8>, encoding: Encoding, write: impl FnOnce(&mut Fields<'_>)) {
        match encoding {
            Encoding::Json => {
                if !out.is_empty() {
                    out.push(b'\n');
                }
                object(out, write);
            }
            Encoding::Protobuf => behind_length(out, write),
        }
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub fn string(&mut self, number: u32, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        self.key(number, name, LENGTH);
        match self.encoding {
            Encoding::Json => json::string(self.out, value),
            Encoding::Protobuf => length_and(self.out, value.as_bytes()),
        }
    }

    /// Bytes: in JSON they are JSON themselves, made so if need be.
    pub fn bytes(&mut self, number: u32, name: &str, value: &[u8]) {
        if value.is_empty() {
            return;
        }
        self.key(number, name, LENGTH);
        match self.encoding {
            Encoding::Json => {
                json::value(self.out, value);
            }
            Encoding::Protobuf => length_and(self.out, value),
        }
    }

    /// Bytes of which is known whether they are JSON.
    pub(super) fn checked_bytes(&mut self, number: u32, name: &str, value: &[u8], is_json: bool) {
        if value.is_empty() {
            return;
        }
        self.key(number, name, LENGTH);
        match self.encoding {
            Encoding::Json => json::checked(self.out, value, is_json),
            Encoding::Protobuf => length_and(self.out, value),
        }
    }

    pub fn unsigned(&mut self, number: u32, name: &str, value: u64) {
        if value != 0 {
            self.key(number, name, VARINT);
            self.number(value, false);
        }
    }

    pub fn signed(&mut self, number: u32, name: &str, value: i64) {
        if value != 0 {
            self.key(number, name, VARINT);
            self.number(value as u64, true);
        }
    }

    pub fn boolean(&mut self, number: u32, name: &str, value: bool) {
        if value {
            self.key(number, name, VARINT);
            match self.encoding {
                Encoding::Json => self.out.extend_from_slice(b"true"),
                Encoding::Protobuf => self.out.push(1),
            }
        }
    }

    /// Writes a field, in JSON also if it is empty: then as this.
    pub fn or_empty(&mut self, name: &str, empty: &str, write: impl FnOnce(&mut Fields<'_>)) {
        let before = self.out.len();
        let mut fields = Fields {
            out: self.out,
            encoding: self.encoding,
            empty: self.empty,
        };
        write(&mut fields);
        self.empty = fields.empty;
        if self.encoding == Encoding::Json && self.out.len() == before {
            self.key(0, name, LENGTH);
            self.out.extend_from_slice(empty.as_bytes());
        }
    }

    /// An object, also if it is empty.
    pub fn object(&mut self, number: u32, name: &str, write: impl FnOnce(&mut Fields<'_>)) {
        self.key(number, name, LENGTH);
        self.value(write);
    }

    /// A list of objects.
    pub fn list<T>(
        &mut self,
        number: u32,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(T, &mut Fields<'_>),
    ) {
        let mut first = true;
        for item in items {
            match self.encoding {
                Encoding::Json if first => {
                    self.key(number, name, LENGTH);
                    self.out.push(b'[');
                }
                Encoding::Json => self.out.push(b','),
                Encoding::Protobuf => self.key(number, name, LENGTH),
            }
            first = false;
            self.value(|fields| write(item, fields));
        }
        if !first && self.encoding == Encoding::Json {
            self.out.push(b']');
        }
    }

    /// A map from strings to objects.
    pub fn map<'k, T>(
        &mut self,
        number: u32,
        name: &str,
        items: impl IntoIterator<Item = (&'k str, T)>,
        mut write: impl FnMut(T, &mut Fields<'_>),
    ) {
        self.entries(number, name, items, |fields, item| match fields.encoding {
            Encoding::Json => fields.value(|inner| write(item, inner)),
            Encoding::Protobuf => fields.object(2, "", |inner| write(item, inner)),
        });
    }

    /// A map from strings to strings.
    pub fn strings<'k>(&mut self, number: u32, name: &str, items: impl IntoIterator<Item = (&'k str, &'k str)>) {
        self.entries(number, name, items, |fields, item| match fields.encoding {
            Encoding::Json => json::string(fields.out, item),
            Encoding::Protobuf => fields.string(2, "", item),
        });
    }

    fn entries<'k, T>(
        &mut self,
        number: u32,
        name: &str,
        items: impl IntoIterator<Item = (&'k str, T)>,
        mut write: impl FnMut(&mut Fields<'_>, T),
    ) {
        let mut first = true;
        for (key, item) in items {
            match self.encoding {
                Encoding::Json => {
                    if first {
                        self.key(number, name, LENGTH);
                    }
                    self.out.push(if first { b'{' } else { b',' });
                    json::string(self.out, key);
                    self.out.push(b':');
                    write(self, item);
                }
                Encoding::Protobuf => self.object(number, name, |entry| {
                    entry.string(1, "", key);
                    write(entry, item);
                }),
            }
            first = false;
        }
        if !first && self.encoding == Encoding::Json {
            self.out.push(b'}');
        }
    }

    fn value(&mut self, write: impl FnOnce(&mut Fields<'_>)) {
        match self.encoding {
            Encoding::Json => object(self.out, write),
            Encoding::Protobuf => behind_length(self.out, write),
        }
    }

    fn key(&mut self, number: u32, name: &str, kind: u64) {
        match self.encoding {
            Encoding::Json => {
                if !self.empty {
                    self.out.push(b',');
                }
                self.out.push(b'"');
                self.out.extend_from_slice(name.as_bytes());
                self.out.extend_from_slice(b"\":");
            }
            Encoding::Protobuf => varint(self.out, u64::from(number) << 3 | kind),
        }
        self.empty = false;
    }

    fn number(&mut self, value: u64, signed: bool) {
        use std::io::Write;
        match self.encoding {
            Encoding::Protobuf => varint(self.out, value),
            Encoding::Json if signed => write!(self.out, "{}", value as i64).expect("a vector takes all"),
            Encoding::Json => write!(self.out, "{value}").expect("a vector takes all"),
        }
    }
}

/// Kinds of fields on the wire of Protobuf.
const VARINT: u64 = 0;
const LENGTH: u64 = 2;

fn object(out: &mut Vec<u8>, write: impl FnOnce(&mut Fields<'_>)) {
    out.push(b'{');
    write(&mut Fields {
        out,
        encoding: Encoding::Json,
        empty: true,
    });
    out.push(b'}');
}

/// Writes a message and puts its length before it. Most are short, so one byte is left for it.
fn behind_length(out: &mut Vec<u8>, write: impl FnOnce(&mut Fields<'_>)) {
    let start = out.len();
    out.push(0);
    write(&mut Fields {
        out,
        encoding: Encoding::Protobuf,
        empty: true,
    });
    let len = out.len() - start - 1;
    match u8::try_from(len) {
        Ok(len) if len < 0x80 => out[start] = len,
        _ => {
            let mut prefix = Vec::with_capacity(VARINT_MAX);
            varint(&mut prefix, len as u64);
            out.splice(start..=start, prefix);
        }
    }
}

fn length_and(out: &mut Vec<u8>, bytes: &[u8]) {
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
