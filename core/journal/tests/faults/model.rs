//! The journal's guarantees as plain vectors, over a disk with faults.

use crate::disk::Disk;
use muster_journal::{AppendError, Corruption, Group, Log, OpenError, ReadError, HEADER_BYTES};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// A header and two pages of frames: segments roll every few groups.
pub const SEGMENT_BYTES: u64 = 3 * HEADER_BYTES;

type Faulty = Log<Disk>;

#[derive(Clone, Debug)]
pub enum Step {
    /// Lengths of the records of one group.
    Append(Vec<u16>),
    /// Drop the records below this share of the log, in percent.
    Trim(u8),
    /// Begin a clean segment and drop all before; let segments be used again or not.
    BeginClean(bool),
    /// Close and open.
    Close,
    /// Drop without closing, and open again.
    Leave,
    /// The power fails after this many steps of the disk.
    Crash(u32, u64),
    /// Read from this share of the log, in percent.
    Read(u8),
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => proptest::collection::vec(0..900u16, 1..8).prop_map(Step::Append),
        2 => (0..110u8).prop_map(Step::Trim),
        1 => any::<bool>().prop_map(Step::BeginClean),
        1 => Just(Step::Close),
        1 => Just(Step::Leave),
        3 => (0..12u32, any::<u64>()).prop_map(|(steps, seed)| Step::Crash(steps, seed)),
        2 => (0..100u8).prop_map(Step::Read),
    ];
    proptest::collection::vec(step, 1..60)
}

fn open(disk: &Disk) -> Result<Faulty, OpenError> {
    let epoch = disk.claim();
    Log::with_storage(disk.clone(), epoch, SEGMENT_BYTES)
}

fn read_all(log: &Faulty, from: u64) -> Result<Vec<(u64, Vec<u8>)>, ReadError> {
    let mut reader = log.reader(from)?;
    let mut read = Vec::new();
    while let Some(records) = reader.next_group()? {
        read.extend(records.map(|(offset, bytes)| (offset, bytes.to_vec())));
    }
    Ok(read)
}

/// The acknowledged records, and the one group that may be there besides.
#[derive(Default)]
struct Model {
    answered: Vec<Vec<u8>>,
    unanswered: Vec<Vec<u8>>,
    trimmed: u64,
    written: u64,
}

impl Model {
    /// Records that differ at each byte position, so that none can be mistaken for another.
    fn group(&mut self, lens: &[u16]) -> (Group, Vec<Vec<u8>>) {
        let mut group = Group::new();
        let mut records = Vec::new();
        for &len in lens {
            self.written += 1;
            let mut record = self.written.to_le_bytes().to_vec();
            record.extend((0..len).map(|at| (at as u64 + self.written) as u8 | 1));
            group.push(&record).unwrap();
            records.push(record);
        }
        (group, records)
    }

    /// After an opening the log holds the acknowledged records, and all or nothing of one further group.
    fn check_opened(&mut self, log: &Faulty) -> Result<(), String> {
        let unanswered = std::mem::take(&mut self.unanswered);
        let answered = self.answered.len() as u64;
        if log.end() == answered + unanswered.len() as u64 {
            self.answered.extend(unanswered);
        } else if log.end() != answered {
            return Err(format!(
                "log ends at {}, {answered} acknowledged, {} not",
                log.end(),
                unanswered.len()
            ));
        }
        self.check_read(log, log.start())
    }

    fn check_read(&self, log: &Faulty, from: u64) -> Result<(), String> {
        if log.start() > self.trimmed {
            return Err(format!("log starts at {}, trimmed to {}", log.start(), self.trimmed));
        }
        let from = from.max(log.start());
        let read = read_all(log, from).map_err(|error| error.to_string())?;
        let wanted: Vec<_> = (from..).zip(self.answered[from as usize..].iter().cloned()).collect();
        (read == wanted)
            .then_some(())
            .ok_or_else(|| format!("read differs from offset {from}"))
    }

    fn at(&self, percent: u8) -> u64 {
        self.answered.len() as u64 * u64::from(percent) / 100
    }
}

/// Runs `steps` and compares each result.
pub fn check_steps(steps: &[Step]) -> Result<(), String> {
    let disk = Disk::default();
    let mut model = Model::default();
    let mut log = Some(open(&disk).map_err(|error| error.to_string())?);
    let mut seed = None;
    for step in steps {
        match step {
            Step::Append(lens) => {
                let Some(running) = &mut log else { continue };
                let (mut group, records) = model.group(lens);
                match running.append(&mut group) {
                    Ok(offsets) if offsets.start == model.answered.len() as u64 => model.answered.extend(records),
                    Ok(offsets) => return Err(format!("appended at {offsets:?}")),
                    Err(AppendError::Failed(_)) => model.unanswered = records,
                    Err(AppendError::Refused) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            Step::Trim(percent) => {
                let Some(running) = &mut log else { continue };
                let below = model.at((*percent).min(100));
                model.trimmed = model.trimmed.max(below);
                let _ = running.trim(below);
            }
            Step::BeginClean(reuse) => {
                let Some(running) = &mut log else { continue };
                let Ok(first) = running.begin_clean() else { continue };
                if first != model.answered.len() as u64 {
                    return Err(format!("clean segment begins at {first}"));
                }
                model.trimmed = first;
                if running.trim(first).is_ok_and(|start| start == first) {
                    // The shortest ones are like numbers in headers.
                    let old = model.answered.iter().filter(|record| record.len() > 40);
                    if old.rev().take(5).any(|record| disk.holds(record)) {
                        return Err("a file has a record from before the clean segment".into());
                    }
                }
                if *reuse {
                    running.reuse_again();
                }
            }
            Step::Close => {
                if let Some(running) = log.take() {
                    let _ = running.close();
                }
            }
            Step::Leave => log = None,
            Step::Crash(steps, random) => {
                disk.fail_power_after(*steps);
                seed = Some(*random);
            }
            Step::Read(percent) => {
                let Some(running) = &log else { continue };
                model.check_read(running, model.at(*percent))?;
            }
        }
        if log.is_none() {
            log = open(&disk).ok();
            match &log {
                Some(opened) => model.check_opened(opened)?,
                None if seed.is_none() => return Err("log does not open".into()),
                None => {}
            }
        }
    }
    drop(log);
    let mut random = seed.unwrap_or(1) | 1;
    disk.restore_power(|| {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        random >> 63 == 1
    });
    let log = open(&disk).map_err(|error| format!("after the crash: {error}"))?;
    model.check_opened(&log)
}

/// Writes groups of a log, for damage to be done to them.
fn written(groups: u32, records: u32) -> (Disk, Faulty, Model) {
    let disk = Disk::default();
    let mut log = open(&disk).unwrap();
    let mut model = Model::default();
    for _ in 0..groups {
        let (mut group, written) = model.group(&vec![100; records as usize]);
        log.append(&mut group).unwrap();
        model.answered.extend(written);
    }
    (disk, log, model)
}

/// One flipped bit anywhere is reported, unless it changed nothing that is read. `marked`: the acknowledged offset is
/// known.
pub fn check_flip(place: f64, closed: bool, marked: bool) -> Result<(), String> {
    let (disk, log, model) = written(12, 5);
    if closed {
        log.close().unwrap();
    } else {
        drop(log);
    }
    let names = disk.names();
    let segment = ((place * names.len() as f64) as usize).min(names.len() - 1);
    let within = (place * names.len() as f64).fract();
    disk.flip(names[segment], (within * SEGMENT_BYTES as f64 * 8.0) as usize);
    if !marked {
        disk.forget_acked();
    }
    let log = match open(&disk) {
        Err(OpenError::Corrupt(_)) => return Ok(()),
        Err(error) => return Err(error.to_string()),
        Ok(log) => log,
    };
    let read = match read_all(&log, log.start()) {
        Err(ReadError::Corrupt(_)) => return Ok(()),
        Err(error) => return Err(error.to_string()),
        Ok(read) => read,
    };
    let wanted: Vec<_> = (0..).zip(model.answered).collect();
    // Without a seal and a mark the last group looks torn: it alone may be missing, and as a whole.
    let torn = !closed && !marked && read.len() + 5 == wanted.len();
    let whole = read.len() == wanted.len();
    (wanted.starts_with(&read) && (whole || torn))
        .then_some(())
        .ok_or_else(|| format!("{} of {} records read, no damage reported", read.len(), wanted.len()))
}

/// A tail cut at any byte is reported with the missing records, if there are any.
pub fn check_cut(segment: usize, bytes: usize, closed: bool) -> Result<(), String> {
    let (disk, log, model) = written(40, 5);
    if closed {
        log.close().unwrap();
    } else {
        drop(log);
    }
    let names = disk.names();
    let segment = segment.min(names.len() - 1);
    for &name in &names[segment + 1..] {
        disk.lose(name);
    }
    disk.shorten(names[segment], bytes);
    match open(&disk) {
        Err(OpenError::Corrupt(Corruption::Cut { acked, offset, .. })) if acked == 200 && offset < acked => Ok(()),
        Err(OpenError::Corrupt(Corruption::Header(_))) if bytes < HEADER_BYTES as usize => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(log) if log.end() == 200 => model.check_read(&log, 0),
        Ok(log) => Err(format!("opens with {} of 200 records", log.end())),
    }
}

/// After a failed sync of any group, all acknowledged records are there at the next opening; and what that opening
/// found survives a power loss.
pub fn check_failed_sync(after: u32) -> Result<(), String> {
    let (disk, mut log, mut model) = written(3, 5);
    disk.fail_sync_after(after);
    for _ in 0..8 {
        let (mut group, records) = model.group(&[100; 5]);
        match log.append(&mut group) {
            Ok(_) => {
                model.answered.append(&mut model.unanswered);
                model.answered.extend(records);
            }
            Err(AppendError::Failed(_)) => model.unanswered = records,
            Err(AppendError::Refused) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    drop(log);
    let log = open(&disk).map_err(|error| error.to_string())?;
    model.check_opened(&log)?;
    drop(log);
    disk.restore_power(|| false);
    let log = open(&disk).map_err(|error| error.to_string())?;
    model.check_opened(&log)
}

/// A second owner takes the log over before any step of the first one: no record is acknowledged by the first and
/// unknown to the second.
pub fn check_takeover(after: u32) -> Result<(), String> {
    let (disk, mut log, mut model) = written(2, 5);
    let taken: Arc<Mutex<Option<(Faulty, u64)>>> = Arc::default();
    let (others, place) = (disk.clone(), Arc::clone(&taken));
    disk.intrude_after(after, move || {
        let second = open(&others).unwrap();
        let end = second.end();
        *place.lock().unwrap() = Some((second, end));
    });
    let mut fenced = false;
    for _ in 0..6 {
        let (mut group, records) = model.group(&[100; 5]);
        match log.append(&mut group) {
            Ok(_) => model.answered.extend(records),
            Err(AppendError::Fenced { .. }) if !fenced => {
                model.unanswered = records;
                fenced = true;
            }
            Err(AppendError::Refused) if fenced => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let Some((mut second, end)) = taken.lock().unwrap().take() else {
        return if fenced { Err("fenced by nobody".into()) } else { Ok(()) };
    };
    if (model.answered.len() as u64) > end {
        return Err(format!(
            "first owner acknowledged {}, second one begins at {end}",
            model.answered.len()
        ));
    }
    model.check_opened(&second)?;
    let (mut group, records) = model.group(&[50; 3]);
    second.append(&mut group).map_err(|error| error.to_string())?;
    model.answered.extend(records);
    model.check_read(&second, 0)?;
    drop((log, second));
    let third = open(&disk).map_err(|error| error.to_string())?;
    model.check_opened(&third)
}

/// Bytes in records that imitate frames stay invalid once their segment is reused.
pub fn check_forged_frames() -> Result<(), String> {
    let (disk, mut log) = (Disk::default(), None);
    let mut record = 0_u64;
    let mut append = |log: &mut Faulty| {
        let mut group = Group::new();
        record += 1;
        group.push_parts(&[&record.to_le_bytes(), b"12.."]).unwrap(); // a frame of 48 bytes
        log.append(&mut group).unwrap();
    };
    let log: &mut Faulty = log.insert(open(&disk).unwrap());
    while disk.names().len() < 2 {
        append(log);
    }
    log.trim(log.end() - 1).unwrap();
    let end = log.end() + 200; // in the next segment, the first one that is reused
    let donor = Disk::with_salts_from(1_000);
    let mut other = open(&donor).unwrap();
    while other.end() <= end {
        append(&mut other);
    }
    disk.plant_in_spares(&donor.last_written(), HEADER_BYTES as usize);
    while log.end() < end {
        append(log);
    }
    let opened = open(&disk).map_err(|error| error.to_string())?;
    (opened.end() == end)
        .then_some(())
        .ok_or_else(|| format!("log ends at {}, not {end}", opened.end()))
}
