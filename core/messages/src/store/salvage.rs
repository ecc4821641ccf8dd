//! Reads the files of a store that may be damaged, message by message, and makes a new store of the intact ones.
//!
//! Owns: which operation of a message is its last, and where its body is. Must not know: a running store.
//!
//! Each operation, each body and each group of the log has a checksum of its own. Damaged ones are skipped: the
//! message is then restored from its previous operation, or lost. A damaged or missing manifest would only have given
//! the lengths of files, so files are read to their ends.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use muster_journal::{Options, Records};

use super::files::{FileName, Files, Folder};
use super::manifest::Manifest;
use super::op::{frame_head, Kind, Op, FRAME_BYTES, OP_BYTES};
use super::record::Record;
use super::{CommitError, Denied, FolderStore, Inserted, NewMessage, OpenError, Settings};
use crate::schedule::{MessageId, State};
use crate::wheel::Millis;

/// Maximum number of faults that are described; all are counted.
const FAULTS_MAX: usize = 1_000;

/// Messages per group of the new log.
const GROUP: usize = 256;

/// A damaged position in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its path in the store's folder.
    pub file: String,
    pub at: u64,
    pub text: String,
}

/// The result of reading the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of intact messages.
    pub messages: u64,
    /// Messages that have an operation but no body.
    pub lost: Vec<u64>,
    pub faults: Vec<Fault>,
    pub fault_count: u64,
}

enum Body {
    File { hour: u32, at: u64 },
    Log(Vec<u8>),
}

struct LatestOperation {
    op: Op,
    body: Option<Body>,
}

/// The intact contents of a store's folder.
pub struct Salvage {
    pub found: Found,
    files: Folder,
    known: HashMap<u64, LatestOperation>,
}

impl Salvage {
    /// Reads the store in folder `path`. Changes nothing.
    pub fn read(path: impl AsRef<Path>) -> io::Result<Salvage> {
        let path = path.as_ref();
        let mut salvage = Salvage {
            found: Found::default(),
            files: Folder::open(path.join("hours"))?,
            known: HashMap::new(),
        };
        let manifest = salvage.manifest()?;
        salvage.read_hours(manifest.as_ref())?;
        salvage.read_log(&path.join("log"), manifest.as_ref())?;
        for (id, known) in &salvage.known {
            match (known.op.kind, &known.body) {
                (Kind::Message(state), None) if needs_body(state) => salvage.found.lost.push(*id),
                (Kind::Message(_), _) => salvage.found.messages += 1,
                _ => {}
            }
        }
        salvage.found.lost.sort_unstable();
        Ok(salvage)
    }

    /// Makes a store of the intact messages in folder `path`, which must not hold one. Returns their number.
    pub fn write(&self, path: impl AsRef<Path>, options: Options, now: Millis) -> Result<u64, WriteError> {
        let mut store = FolderStore::open(path, options, Settings::default(), now)?;
        let mut written = 0;
        let all: Vec<(&u64, &LatestOperation)> = self.known.iter().collect();
        for some in all.chunks(GROUP) {
            let mut later = Vec::new();
            for (id, known) in some {
                let id = MessageId(**id);
                match known.op.kind {
                    Kind::Message(state) => {
                        let body = match self.body(known)? {
                            None if needs_body(state) => continue,
                            body => body.unwrap_or_default(),
                        };
                        let message = known.op.message().expect("its kind is a message");
                        let new = NewMessage {
                            id,
                            topic: known.op.topic,
                            due_at: message.due_at,
                            expires_at: message.expires_at,
                            body: &body,
                        };
                        let inserted = match store.insert(new) {
                            Err(Denied::CommitFirst) => {
                                store.commit()?;
                                store.insert(new)?
                            }
                            inserted => inserted?,
                        };
                        if !matches!(inserted, Inserted::New(made) if made == message) {
                            later.push(message);
                        }
                        written += 1;
                    }
                    Kind::Ahead(ahead) => drop(store.put_ahead(now, id, ahead)?),
                    Kind::Gone => {}
                }
            }
            store.commit()?;
            for message in later {
                match store.put(now, message) {
                    Err(Denied::CommitFirst) => {
                        store.commit()?;
                        store.put(now, message)?;
                    }
                    put => drop(put?),
                }
            }
            store.commit()?;
        }
        store.close()?;
        Ok(written)
    }

    fn fault(&mut self, file: impl Into<String>, at: u64, text: impl Into<String>) {
        self.found.fault_count += 1;
        if self.found.faults.len() < FAULTS_MAX {
            self.found.faults.push(Fault {
                file: file.into(),
                at,
                text: text.into(),
            });
        }
    }

    fn manifest(&mut self) -> io::Result<Option<Manifest>> {
        if !self.files.list()?.contains(&FileName::Manifest) {
            return Ok(None);
        }
        let mut bytes = vec![0; self.files.len(FileName::Manifest)? as usize];
        let read = self.files.read_at(FileName::Manifest, 0, &mut bytes)?;
        let manifest = Manifest::decode(&bytes[..read]);
        if manifest.is_none() {
            self.fault("hours/manifest", 0, "the manifest is damaged");
        }
        Ok(manifest)
    }

    fn read_hours(&mut self, manifest: Option<&Manifest>) -> io::Result<()> {
        let mut hours: Vec<u32> = match manifest {
            Some(manifest) => manifest.hours.iter().map(|mark| mark.hour).collect(),
            None => {
                let names = self.files.list()?;
                let hour = |name| match name {
                    FileName::Ops(hour) => Some(hour),
                    _ => None,
                };
                names.into_iter().filter_map(hour).collect()
            }
        };
        hours.sort_unstable();
        for hour in hours {
            let mark = manifest.and_then(|manifest| manifest.hours.iter().find(|mark| mark.hour == hour));
            let bytes = self.files.len(FileName::Ops(hour))?;
            let whole = mark.map_or(bytes / OP_BYTES as u64, |mark| u64::from(mark.ops));
            if whole * OP_BYTES as u64 > bytes {
                let missing = whole - bytes / OP_BYTES as u64;
                self.fault(
                    ops_name(hour),
                    bytes,
                    format!("the end is missing: {missing} operations"),
                );
            }
            self.read_ops(hour, whole.min(bytes / OP_BYTES as u64))?;
            let bodies = self.files.len(FileName::Bodies(hour))?;
            if let Some(mark) = mark.filter(|mark| mark.body_bytes > bodies) {
                let missing = mark.body_bytes - bodies;
                self.fault(
                    bodies_name(hour),
                    bodies,
                    format!("the end is missing: {missing} bytes"),
                );
            }
        }
        Ok(())
    }

    fn read_ops(&mut self, hour: u32, count: u64) -> io::Result<()> {
        let mut bytes = vec![0; OP_BYTES * 4_096];
        let mut number = 0;
        while number < count {
            let some = (count - number).min(4_096) as usize;
            let read = self.files.read_at(
                FileName::Ops(hour),
                number * OP_BYTES as u64,
                &mut bytes[..some * OP_BYTES],
            )?;
            let ops: Vec<Option<Op>> = bytes[..read].chunks_exact(OP_BYTES).map(Op::decode).collect();
            for op in ops {
                match op {
                    Some(op) => self.take(op, Some(hour), None)?,
                    None => self.fault(ops_name(hour), number * OP_BYTES as u64, "an operation is damaged"),
                }
                number += 1;
            }
            if read < some * OP_BYTES {
                break;
            }
        }
        Ok(())
    }

    fn read_log(&mut self, path: &Path, manifest: Option<&Manifest>) -> io::Result<()> {
        let applied = manifest.map_or(0, |manifest| manifest.applied);
        let mut failed = Ok(());
        let mut unknown = Vec::new();
        let checked = muster_journal::check(path, |records: Records<'_>| {
            for (offset, bytes) in records.filter(|(offset, _)| *offset >= applied) {
                match Record::decode(bytes) {
                    Some(record) if failed.is_ok() => {
                        failed = self.take(record.op, None, record.body.map(<[u8]>::to_vec));
                    }
                    Some(_) => {}
                    None => unknown.push(offset),
                }
            }
        })?;
        failed?;
        for fault in checked.faults {
            let lost = fault.lost.end.saturating_sub(fault.lost.start.max(applied));
            let text = match fault.lost.is_empty() {
                true => fault.text,
                false => format!("{}: {lost} changes that no other file has", fault.text),
            };
            self.fault(format!("log/{}", fault.file), fault.at, text);
        }
        for offset in unknown {
            self.fault("log", 0, format!("record {offset} has an unknown form"));
        }
        if manifest.is_none() && checked.records.start > 0 {
            self.fault("hours/manifest", 0, "the manifest is missing");
        }
        if checked.records.end < applied {
            let end = checked.records.end;
            self.fault(
                "log",
                0,
                format!("the log ends at offset {end}, and files have all below {applied}"),
            );
        }
        Ok(())
    }

    /// Takes an operation of a message: the one with the greatest version is the last.
    fn take(&mut self, op: Op, hour: Option<u32>, body: Option<Vec<u8>>) -> io::Result<()> {
        if op.kind == Kind::Gone {
            return Ok(());
        }
        let mut place = body.map(Body::Log);
        if let (Some(hour), Kind::Message(_)) = (hour, op.kind) {
            let known = self.known.get(&op.id.0);
            let same = known.is_some_and(|known| {
                matches!(&known.body, Some(Body::File { hour: there, at }) if *there == hour && *at == op.body_at)
            });
            if !same {
                match self.body_is_whole(hour, &op)? {
                    true => place = Some(Body::File { hour, at: op.body_at }),
                    false => self.fault(
                        bodies_name(hour),
                        op.body_at,
                        format!("the body of message {:016x} is damaged or missing", op.id.0),
                    ),
                }
            }
        }
        let known = self.known.entry(op.id.0).or_insert(LatestOperation { op, body: None });
        let message = |kind| matches!(kind, Kind::Message(_));
        // A move requested ahead has no version: the message itself is newer.
        let later = match (message(known.op.kind), message(op.kind)) {
            (true, false) => false,
            (false, true) => true,
            _ => op.version >= known.op.version,
        };
        if later {
            known.op = op;
        }
        if place.is_some() {
            known.body = place;
        }
        Ok(())
    }

    fn body_is_whole(&self, hour: u32, op: &Op) -> io::Result<bool> {
        let mut bytes = vec![0; FRAME_BYTES + op.body_bytes as usize];
        let read = match self.files.read_at(FileName::Bodies(hour), op.body_at, &mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            read => read?,
        };
        Ok(read == bytes.len() && frame_head(op.id, &bytes[FRAME_BYTES..]) == bytes[..FRAME_BYTES])
    }

    fn body(&self, known: &LatestOperation) -> io::Result<Option<Vec<u8>>> {
        match &known.body {
            None => Ok(None),
            Some(Body::Log(bytes)) => Ok(Some(bytes.clone())),
            Some(Body::File { hour, at }) => {
                let mut bytes = vec![0; known.op.body_bytes as usize];
                let read = self
                    .files
                    .read_at(FileName::Bodies(*hour), at + FRAME_BYTES as u64, &mut bytes)?;
                Ok((read == bytes.len()).then_some(bytes))
            }
        }
    }
}

/// Whether the message may still be called back. Of others only the end matters.
fn needs_body(state: State) -> bool {
    !state.is_terminal() || state == State::Dead
}

/// Why the new store could not be made.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn ops_name(hour: u32) -> String {
    format!("hours/{hour:08x}.ops")
}

fn bodies_name(hour: u32) -> String {
    format!("hours/{hour:08x}.bodies")
}
