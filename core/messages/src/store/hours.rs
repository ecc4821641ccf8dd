//! All hours of the store, and the counts over them.
//!
//! Owns: the hours, how many messages have not ended, how many bytes wait for a flush. Must not know: the index, the
//! log, when files are flushed.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeBounds;

use super::files::{FileName, Files};
use super::hour::{hour_of, Hour, Load, DEAD_BASE};
use super::jobs::Snapshot;
use super::manifest::{HourMark, Manifest};
use super::op::{Kind, Op, OP_BYTES};
use super::record::Record;
use crate::wheel::Millis;

/// The hours by number.
#[derive(Default)]
pub(super) struct Hours {
    hours: BTreeMap<u32, Hour>,
    /// Messages that have not ended, and requests ahead of messages.
    live: u64,
    /// Bytes that are not flushed yet.
    buffered: usize,
    /// Hours up to this one are loaded, or are being loaded.
    loaded: u32,
}

impl Hours {
    /// The hours that a manifest names, none of them loaded.
    pub fn of(manifest: &Manifest) -> Self {
        let mut hours = Hours {
            loaded: manifest.loaded,
            ..Hours::default()
        };
        for mark in &manifest.hours {
            let hour = Hour::new(mark.hour, mark.ops, mark.body_bytes, mark.live, Load::Far);
            hours.live += u64::from(hour.live);
            hours.hours.insert(mark.hour, hour);
        }
        hours
    }

    pub fn len(&self) -> usize {
        self.hours.len()
    }

    pub fn live(&self) -> u64 {
        self.live
    }

    pub fn buffered(&self) -> usize {
        self.buffered
    }

    pub fn loaded(&self) -> u32 {
        self.loaded
    }

    /// Bytes of memory in use.
    pub fn memory(&self) -> usize {
        self.hours.values().map(Hour::memory).sum()
    }

    pub fn has(&self, number: u32) -> bool {
        self.hours.contains_key(&number)
    }

    pub fn find(&self, number: u32) -> Option<&Hour> {
        self.hours.get(&number)
    }

    /// An hour that the index or a list of numbers names.
    pub fn get(&self, number: u32) -> &Hour {
        &self.hours[&number]
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Hour> {
        self.hours.get_mut(&number)
    }

    /// Numbers of the hours in a range, in order.
    pub fn numbers(&self, range: impl RangeBounds<u32>) -> Vec<u32> {
        self.hours.range(range).map(|(number, _)| *number).collect()
    }

    /// The hours that are loaded or being loaded, in order.
    pub fn loaded_mut(&mut self) -> impl Iterator<Item = (u32, &mut Hour)> {
        let hours = self.hours.range_mut(..=self.loaded);
        hours.map(|(number, hour)| (*number, hour))
    }

    /// The operations of an hour at this moment.
    pub fn snapshot(&self, number: u32) -> Snapshot {
        let hour = self.get(number);
        Snapshot {
            hour: number,
            flushed: hour.ops.flushed(),
            tail: hour.ops.buffered().to_vec(),
        }
    }

    /// The same of some hours, and the number of their messages that have not ended.
    pub fn snapshots(&self, numbers: &[u32]) -> (Vec<Snapshot>, usize) {
        let messages = numbers.iter().map(|number| self.get(*number).live as usize).sum();
        (numbers.iter().map(|number| self.snapshot(*number)).collect(), messages)
    }

    /// All hours as they are, in order.
    pub fn marks(&self) -> Vec<HourMark> {
        let mark = |hour: &Hour| HourMark {
            hour: hour.hour,
            ops: hour.op_count(),
            body_bytes: hour.bodies.len(),
            live: hour.live,
        };
        self.hours.values().map(mark).collect()
    }

    /// Moves the end of the loaded hours up to `wanted`. Returns the hours to be loaded for that.
    pub fn load_up_to(&mut self, wanted: u32) -> Vec<u32> {
        if wanted <= self.loaded {
            return Vec::new();
        }
        let numbers = self.numbers(self.loaded + 1..=wanted);
        self.loaded = wanted;
        numbers
    }

    /// Appends a record of the log to its hour, and notes in another one that the message has left. Returns the number
    /// of the operation there. `replaying`: the log is read again.
    pub fn take_in(&mut self, record: &Record<'_>, replaying: bool) -> Result<u32, String> {
        let Record { op, home, .. } = *record;
        let loaded = self.loaded;
        let hour = self.hours.entry(home).or_insert_with(|| {
            // Everything in an hour that is created now comes after its loading.
            let load = if home <= loaded && !replaying {
                Load::Loaded
            } else {
                Load::Far
            };
            Hour::new(home, 0, 0, 0, load)
        });
        let before = hour.buffered();
        if let Some(body) = record.body {
            if op.body_at != hour.bodies.len() {
                return Err(format!(
                    "body in hour {home:08x} goes to {}, not {}",
                    hour.bodies.len(),
                    op.body_at
                ));
            }
            hour.append_body(op.id, body);
        }
        let number = hour.append_op(record.op_bytes);
        hour.dirty = true;
        let is_live = op.kind.is_live();
        hour.live += u32::from(is_live);
        self.buffered += hour.buffered() - before;
        self.live += u64::from(is_live);
        let left = self
            .hours
            .get_mut(&record.from.unwrap_or(home))
            .ok_or("message leaves an unknown hour")?;
        left.live = left
            .live
            .checked_sub(u32::from(record.was_live))
            .ok_or("hour lost count of its messages")?;
        self.live -= u64::from(record.was_live);
        if record.from.is_some() {
            let gone = Op { kind: Kind::Gone, ..op };
            left.append_op(&gone.encode());
            left.dirty = true;
            self.buffered += OP_BYTES;
        }
        // Messages stay in any loaded hour; after a crash they must not have to wait for that hour.
        if replaying && home < DEAD_BASE && op.wake_at().is_some_and(|at| hour_of(at) < home) {
            self.loaded = self.loaded.max(home);
        }
        Ok(number)
    }

    /// The first hour from `from` on with bytes to flush.
    pub fn next_buffered(&self, from: u32) -> Option<u32> {
        let mut hours = self.hours.range(from..);
        hours.find(|(_, hour)| hour.buffered() > 0).map(|(number, _)| *number)
    }

    /// Writes an hour's bytes; returns their number. `None`: there is no such hour.
    pub fn flush<F: Files>(&mut self, number: u32, files: &F) -> Option<io::Result<usize>> {
        let hour = self.hours.get_mut(&number)?;
        let before = hour.buffered();
        let flushed = hour.flush(files);
        self.buffered -= before - hour.buffered();
        Some(flushed)
    }

    /// The files that were written since the last call.
    pub fn take_dirty(&mut self) -> Vec<FileName> {
        let mut names = Vec::new();
        for hour in self.hours.values_mut().filter(|hour| hour.dirty) {
            hour.dirty = false;
            names.push(FileName::Bodies(hour.hour));
            names.push(FileName::Ops(hour.hour));
        }
        names
    }

    /// An hour whose messages can be forgotten: one of the clock below `floor` in which all have ended, or a day of
    /// dead letters before `dead_day`.
    pub fn outlived(&self, floor: u32, dead_day: u32) -> Option<u32> {
        let over = |hour: &Hour| hour.live == 0 && hour.load == Load::Loaded;
        let of_clock = self.hours.range(..floor).find(|(_, hour)| over(hour));
        let of_dead = self.hours.range(DEAD_BASE..DEAD_BASE + dead_day);
        let (number, _) = of_clock.or_else(|| of_dead.into_iter().next())?;
        Some(*number)
    }

    /// Removes an hour. `false`: there is none.
    pub fn remove(&mut self, number: u32) -> bool {
        let removed = self.hours.remove(&number);
        self.buffered -= removed.as_ref().map_or(0, Hour::buffered);
        removed.is_some()
    }

    /// Sets the order of an hour that was read.
    pub fn set_sorted(&mut self, number: u32, sorted: Vec<(Millis, u32)>) {
        if let Some(hour) = self.hours.get_mut(&number) {
            hour.set_sorted(sorted);
        }
    }
}
