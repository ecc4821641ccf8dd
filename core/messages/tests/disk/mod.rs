//! A disk in memory that loses unsynced writes: all or parts of them, in any order between files.
#![allow(dead_code)] // Each test uses a part.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use muster_journal::{SegmentFile, SegmentName, Storage};
use muster_messages::store::{FileName, Files};

const SECTOR: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Segment(SegmentName),
    Manifest,
    Ops(u32),
    Bodies(u32),
}

#[derive(Default)]
struct Content {
    synced: Vec<u8>,
    /// Writes since the last sync.
    pending: Vec<(usize, Vec<u8>)>,
    bytes: Vec<u8>,
    name_synced: bool,
}

#[derive(Default)]
struct State {
    files: BTreeMap<Name, Content>,
    owner: u64,
    /// The log's latest acknowledged entries, and the earlier ones.
    acked: Vec<u64>,
    random: u64,
    /// Operations until the power fails.
    fuse: Option<u32>,
    dead: bool,
    /// Total bytes of all files.
    capacity: Option<usize>,
    pub bit_flips: bool,
}

#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl State {
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn operation(&mut self) -> io::Result<()> {
        if let Some(fuse) = &mut self.fuse {
            match fuse.checked_sub(1) {
                Some(left) => *fuse = left,
                None => self.dead = true,
            }
        }
        match self.dead {
            true => Err(io::Error::other("power is gone")),
            false => Ok(()),
        }
    }

    fn room(&self, more: usize) -> io::Result<()> {
        let used: usize = self.files.values().map(|file| file.bytes.len()).sum();
        match self.capacity {
            Some(capacity) if used + more > capacity => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn write(&mut self, name: Name, at: usize, bytes: &[u8]) -> io::Result<()> {
        let len = self.files.get(&name).map_or(0, |file| file.bytes.len());
        self.room((at + bytes.len()).saturating_sub(len))?;
        let done = self.operation();
        let file = self.files.entry(name).or_default();
        put(&mut file.bytes, at, bytes);
        file.pending.push((at, bytes.to_vec()));
        done
    }

    fn read(&mut self, name: Name, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        if self.dead {
            return Err(io::Error::other("power is gone"));
        }
        let file = self.files.get(&name).ok_or(io::ErrorKind::NotFound)?;
        let from = (at as usize).min(file.bytes.len());
        let read = buf.len().min(file.bytes.len() - from);
        buf[..read].copy_from_slice(&file.bytes[from..from + read]);
        Ok(read)
    }

    fn sync(&mut self, name: Name) -> io::Result<()> {
        self.operation()?;
        let file = self.files.entry(name).or_default();
        file.synced = file.bytes.clone();
        file.pending.clear();
        Ok(())
    }
}

fn put(to: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if to.len() < at + bytes.len() {
        to.resize(at + bytes.len(), 0);
    }
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

impl Disk {
    pub fn new(seed: u64) -> Disk {
        let disk = Disk::default();
        disk.state().random = seed;
        disk
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The power fails after this many more operations.
    pub fn burn(&self, operations: Option<u32>) {
        self.state().fuse = operations;
    }

    pub fn limit(&self, bytes: Option<usize>) {
        self.state().capacity = bytes;
    }

    pub fn used(&self) -> usize {
        self.state().files.values().map(|file| file.bytes.len()).sum()
    }

    /// The machine restarts: each unsynced write is present, torn or lost, independently.
    pub fn crash(&self) {
        let mut state = self.state();
        let mut files = std::mem::take(&mut state.files);
        for file in files.values_mut() {
            let mut bytes = std::mem::take(&mut file.synced);
            for (at, written) in file.pending.drain(..) {
                match state.draw(3) {
                    0 => {}
                    1 => put(&mut bytes, at, &written),
                    _ => {
                        // Any of its sectors.
                        for (number, sector) in written.chunks(SECTOR).enumerate() {
                            if state.draw(2) == 0 {
                                put(&mut bytes, at + number * SECTOR, sector);
                            }
                        }
                    }
                }
            }
            file.synced = bytes.clone();
            file.bytes = bytes;
        }
        files.retain(|_, file| file.name_synced || state.draw(2) == 0);
        for file in files.values_mut() {
            file.name_synced = true;
        }
        state.files = files;
        if state.acked.len() > 1 && state.draw(2) == 0 {
            state.acked.pop();
        }
        state.fuse = None;
        state.dead = false;
    }

    /// Whether the power is gone.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// Changes one byte of an hour's file.
    pub fn damage(&self, name: FileName, at: usize) {
        let mut state = self.state();
        let file = state.files.get_mut(&of(name)).expect("the file is there");
        file.bytes[at] ^= 0x40;
        file.synced = file.bytes.clone();
    }

    /// Segments of the log.
    pub fn segments(&self) -> usize {
        self.state()
            .files
            .keys()
            .filter(|name| matches!(name, Name::Segment(_)))
            .count()
    }

    pub fn files(&self) -> Vec<FileName> {
        Files::list(self).unwrap()
    }
}

fn of(name: FileName) -> Name {
    match name {
        FileName::Manifest => Name::Manifest,
        FileName::Ops(hour) => Name::Ops(hour),
        FileName::Bodies(hour) => Name::Bodies(hour),
    }
}

impl Files for Disk {
    fn list(&self) -> io::Result<Vec<FileName>> {
        let state = self.state();
        let names = state.files.keys().filter_map(|name| match name {
            Name::Segment(_) => None,
            Name::Manifest => Some(FileName::Manifest),
            Name::Ops(hour) => Some(FileName::Ops(*hour)),
            Name::Bodies(hour) => Some(FileName::Bodies(*hour)),
        });
        Ok(names.collect())
    }

    fn len(&self, name: FileName) -> io::Result<u64> {
        Ok(self
            .state()
            .files
            .get(&of(name))
            .map_or(0, |file| file.bytes.len() as u64))
    }

    fn read_at(&self, name: FileName, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.state().read(of(name), at, buf)
    }

    fn write_at(&self, name: FileName, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.state().write(of(name), at as usize, bytes)
    }

    fn sync(&self, name: FileName) -> io::Result<()> {
        self.state().sync(of(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        for file in state.files.values_mut() {
            file.name_synced = true;
        }
        Ok(())
    }

    fn replace(&self, name: FileName, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.room(bytes.len())?;
        let done = state.operation();
        // If the power fails meanwhile, either file may remain.
        if done.is_ok() || state.draw(2) == 0 {
            let content = Content {
                synced: bytes.to_vec(),
                pending: Vec::new(),
                bytes: bytes.to_vec(),
                name_synced: true,
            };
            state.files.insert(of(name), content);
        }
        done
    }

    fn remove(&self, name: FileName) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        // A removed name may return; it may also stay removed if another removal was synced.
        if state.draw(4) > 0 {
            state.files.remove(&of(name));
        }
        Ok(())
    }
}

pub struct Segment {
    disk: Disk,
    name: SegmentName,
}

impl SegmentFile for Segment {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.disk.state().read(Name::Segment(self.name), at, buf)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let done = state.operation();
        let file = state.files.entry(Name::Segment(self.name)).or_default();
        put(&mut file.bytes, at as usize, bytes);
        file.pending.push((at as usize, bytes.to_vec()));
        done
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.state().sync(Name::Segment(self.name))
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.operation()?;
        let file = state.files.entry(Name::Segment(self.name)).or_default();
        file.bytes.truncate(bytes as usize);
        file.synced = file.bytes.clone();
        file.pending.clear();
        Ok(())
    }
}

/// The log's side of a disk.
pub struct Segments(pub Disk);

impl Segments {
    /// Claims the log for the next owner.
    pub fn claim(disk: &Disk) -> (Segments, u64) {
        let mut state = disk.state();
        state.owner += 1;
        (Segments(disk.clone()), state.owner)
    }
}

impl Storage for Segments {
    type File = Segment;

    fn list(&mut self) -> io::Result<Vec<SegmentName>> {
        let state = self.0.state();
        let names = state.files.keys().filter_map(|name| match name {
            Name::Segment(name) => Some(*name),
            _ => None,
        });
        Ok(names.collect())
    }

    fn open(&mut self, name: SegmentName) -> io::Result<Segment> {
        Ok(Segment {
            disk: self.0.clone(),
            name,
        })
    }

    fn begin(&mut self, name: SegmentName, header: &[u8], bytes: u64) -> io::Result<Segment> {
        let mut state = self.0.state();
        state.room(bytes as usize)?;
        state.operation()?;
        let mut content = vec![0; bytes as usize];
        content[..header.len()].copy_from_slice(header);
        let content = Content {
            synced: content.clone(),
            pending: Vec::new(),
            bytes: content,
            name_synced: true,
        };
        state.files.insert(Name::Segment(name), content);
        drop(state);
        self.open(name)
    }

    fn prepare(&mut self, _bytes: u64) {}

    fn remove(&mut self, name: SegmentName, _reusable: bool) -> io::Result<()> {
        let mut state = self.0.state();
        state.operation()?;
        state.files.remove(&Name::Segment(name));
        Ok(())
    }

    fn drop_spares(&mut self) -> io::Result<()> {
        Ok(()) // none are kept
    }

    fn owner(&self) -> io::Result<u64> {
        Ok(self.0.state().owner)
    }

    fn salt(&mut self) -> u64 {
        self.0.state().draw(u64::MAX >> 31)
    }

    fn acked(&self) -> io::Result<Option<u64>> {
        Ok(self.0.state().acked.last().copied())
    }

    fn keep_acked(&mut self, end: u64, _synced: bool) -> io::Result<()> {
        let mut state = self.0.state();
        state.operation()?;
        state.acked.push(end);
        if state.acked.len() > 2 {
            state.acked.remove(0);
        }
        Ok(())
    }
}
