//! A disk in memory that loses power, tears writes, flips bits, fails syncs, fills up and lets another owner in.

use muster_journal::{SegmentFile, SegmentName, Storage};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

/// What a disk writes atomically.
const SECTOR: usize = 512;

#[derive(Clone, Default)]
struct Bytes {
    /// The content after a power loss.
    durable: Vec<u8>,
    /// The content as read and written now.
    cached: Vec<u8>,
    unsynced: Vec<(usize, usize)>,
}

#[derive(Default)]
struct State {
    files: Vec<Bytes>,
    names: BTreeMap<SegmentName, usize>,
    spares: Vec<usize>,
    owner: u64,
    /// The offset written last, and the one that a power loss leaves.
    acked: Option<(u64, u64)>,
    salts: u64,
    last_written: Vec<u8>,
    /// Steps until the power fails.
    power: Option<u32>,
    segments_left: Option<u32>,
    syncs_to_failure: Option<u32>,
    steps_to_intrusion: Option<u32>,
    intruder: Option<Box<dyn FnOnce() + Send>>,
}

/// Shared by the owners of one log.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Clone)]
pub struct DiskFile {
    disk: Disk,
    at: usize,
}

impl Disk {
    pub fn with_salts_from(salts: u64) -> Disk {
        Disk(Arc::new(Mutex::new(State {
            salts,
            ..State::default()
        })))
    }

    /// Claims the log for the next epoch.
    pub fn claim(&self) -> u64 {
        let mut state = self.0.lock().unwrap();
        state.owner += 1;
        state.owner
    }

    /// The power fails after `steps` further steps.
    pub fn fail_power_after(&self, steps: u32) {
        self.0.lock().unwrap().power = Some(steps);
    }

    /// The power is back: each sector that was not synced has the old bytes or the new ones.
    pub fn restore_power(&self, mut random: impl FnMut() -> bool) {
        let mut state = self.0.lock().unwrap();
        state.power = None;
        state.syncs_to_failure = None;
        for file in &mut state.files {
            for (from, to) in std::mem::take(&mut file.unsynced) {
                let mut at = from;
                while at < to {
                    let end = (at / SECTOR * SECTOR + SECTOR).min(to);
                    if random() {
                        file.durable[at..end].copy_from_slice(&file.cached[at..end]);
                    }
                    at = end;
                }
            }
            file.cached = file.durable.clone();
        }
        if let Some((cached, durable)) = &mut state.acked {
            if random() {
                *durable = *cached;
            }
            *cached = *durable;
        }
    }

    /// Forgets the acknowledged offset, as in a folder of an earlier version.
    pub fn forget_acked(&self) {
        self.0.lock().unwrap().acked = None;
    }

    /// Truncates a segment to `bytes` without the log's knowledge.
    pub fn shorten(&self, name: SegmentName, bytes: usize) {
        let mut state = self.0.lock().unwrap();
        let at = state.names[&name];
        state.files[at].durable.truncate(bytes);
        state.files[at].cached.truncate(bytes);
    }

    pub fn leave_room_for(&self, segments: u32) {
        self.0.lock().unwrap().segments_left = Some(segments);
    }

    /// The sync after `syncs` further ones fails and drops the data, as on Linux.
    pub fn fail_sync_after(&self, syncs: u32) {
        self.0.lock().unwrap().syncs_to_failure = Some(syncs);
    }

    /// Runs `intruder` before the step after `steps` further ones.
    pub fn intrude_after(&self, steps: u32, intruder: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock().unwrap();
        state.steps_to_intrusion = Some(steps);
        state.intruder = Some(Box::new(intruder));
    }

    pub fn names(&self) -> Vec<SegmentName> {
        self.0.lock().unwrap().names.keys().copied().collect()
    }

    pub fn flip(&self, name: SegmentName, bit: usize) {
        let mut state = self.0.lock().unwrap();
        let at = state.names[&name];
        let file = &mut state.files[at];
        file.durable[bit / 8] ^= 1 << (bit % 8);
        file.cached = file.durable.clone();
    }

    /// Whether any file, one kept for reuse included, has these bytes.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let state = self.0.lock().unwrap();
        let mut files = state.names.values().chain(&state.spares);
        files.any(|&at| {
            let file = &state.files[at].cached;
            file.windows(bytes.len()).any(|window| window == bytes)
        })
    }

    pub fn last_written(&self) -> Vec<u8> {
        self.0.lock().unwrap().last_written.clone()
    }

    pub fn lose(&self, name: SegmentName) {
        self.0.lock().unwrap().names.remove(&name);
    }

    /// Writes `bytes` into all files that a later segment may reuse.
    pub fn plant_in_spares(&self, bytes: &[u8], from: usize) {
        let mut state = self.0.lock().unwrap();
        for at in state.spares.clone() {
            for copy in state.files[at].durable[from..].chunks_exact_mut(bytes.len()) {
                copy.copy_from_slice(bytes);
            }
            state.files[at].cached = state.files[at].durable.clone();
        }
    }

    /// Counts a step; fails once the power is gone.
    fn step(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.steps_to_intrusion == Some(0) {
            state.steps_to_intrusion = None;
            if let Some(intruder) = state.intruder.take() {
                drop(state);
                intruder();
                state = self.0.lock().unwrap();
            }
        }
        if let Some(steps) = &mut state.steps_to_intrusion {
            *steps -= 1;
        }
        match &mut state.power {
            Some(0) => Err(io::Error::other("power lost")),
            Some(steps) => {
                *steps -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Storage for Disk {
    type File = DiskFile;

    fn list(&mut self) -> io::Result<Vec<SegmentName>> {
        self.step()?;
        Ok(self.names())
    }

    fn open(&mut self, name: SegmentName) -> io::Result<DiskFile> {
        self.step()?;
        Ok(DiskFile {
            disk: self.clone(),
            at: self.0.lock().unwrap().names[&name],
        })
    }

    fn begin(&mut self, name: SegmentName, header: &[u8], bytes: u64) -> io::Result<DiskFile> {
        self.step()?;
        let at = {
            let mut state = self.0.lock().unwrap();
            if state.spares.is_empty() {
                match &mut state.segments_left {
                    Some(0) => return Err(io::ErrorKind::StorageFull.into()),
                    Some(left) => *left -= 1,
                    None => {}
                }
                let zeros = vec![0; bytes as usize];
                state.files.push(Bytes {
                    durable: zeros.clone(),
                    cached: zeros,
                    unsynced: Vec::new(),
                });
                let made = state.files.len() - 1;
                state.spares.push(made);
            }
            let at = *state.spares.last().unwrap();
            let file = &mut state.files[at];
            file.durable[..header.len()].copy_from_slice(header);
            file.cached[..header.len()].copy_from_slice(header);
            at
        };
        self.step()?;
        let mut state = self.0.lock().unwrap();
        state.spares.pop();
        assert_eq!(state.names.insert(name, at), None, "two segments of one name");
        Ok(DiskFile { disk: self.clone(), at })
    }

    fn prepare(&mut self, _: u64) {}

    fn remove(&mut self, name: SegmentName, reusable: bool) -> io::Result<()> {
        self.step()?;
        let mut state = self.0.lock().unwrap();
        match (state.names.remove(&name), &mut state.segments_left) {
            (Some(at), _) if reusable => state.spares.push(at),
            (Some(_), Some(left)) => *left += 1,
            _ => {}
        }
        Ok(())
    }

    fn drop_spares(&mut self) -> io::Result<()> {
        self.step()?;
        let mut state = self.0.lock().unwrap();
        let dropped = state.spares.drain(..).count();
        if let Some(left) = &mut state.segments_left {
            *left += dropped as u32;
        }
        Ok(())
    }

    fn owner(&self) -> io::Result<u64> {
        self.step()?;
        Ok(self.0.lock().unwrap().owner)
    }

    fn salt(&mut self) -> u64 {
        let mut state = self.0.lock().unwrap();
        state.salts += 1;
        state.salts
    }

    fn acked(&self) -> io::Result<Option<u64>> {
        self.step()?;
        Ok(self.0.lock().unwrap().acked.map(|(cached, _)| cached))
    }

    fn keep_acked(&mut self, end: u64, synced: bool) -> io::Result<()> {
        self.step()?;
        let mut state = self.0.lock().unwrap();
        let durable = state.acked.map_or(0, |(_, durable)| durable);
        state.acked = Some((end, if synced { end } else { durable }));
        Ok(())
    }
}

impl SegmentFile for DiskFile {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.0.lock().unwrap();
        let bytes = state.files[self.at].cached.get(at as usize..).unwrap_or(&[]);
        let read = bytes.len().min(buf.len());
        buf[..read].copy_from_slice(&bytes[..read]);
        Ok(read)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let alive = self.disk.step();
        let mut state = self.disk.0.lock().unwrap();
        state.last_written = bytes.to_vec();
        let file = &mut state.files[self.at];
        let (from, to) = (at as usize, at as usize + bytes.len());
        if to > file.cached.len() {
            file.cached.resize(to, 0); // a fenced owner writes behind the cut
            file.durable.resize(to, 0);
        }
        file.cached[from..to].copy_from_slice(bytes);
        file.unsynced.push((from, to));
        alive // the write during the power loss may be torn
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.step()?;
        let mut state = self.disk.0.lock().unwrap();
        let fails = state.syncs_to_failure == Some(0);
        state.syncs_to_failure = state.syncs_to_failure.and_then(|syncs| syncs.checked_sub(1));
        let file = &mut state.files[self.at];
        let unsynced = std::mem::take(&mut file.unsynced);
        if fails {
            return Err(io::Error::other("sync failed")); // the bytes stay in the cache marked clean, and never reach the disk
        }
        for (from, to) in unsynced {
            file.durable[from..to].copy_from_slice(&file.cached[from..to]);
        }
        Ok(())
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.disk.step()?;
        let mut state = self.disk.0.lock().unwrap();
        let file = &mut state.files[self.at];
        file.cached.truncate(bytes as usize);
        file.durable.truncate(bytes as usize);
        file.unsynced.clear();
        Ok(())
    }
}
