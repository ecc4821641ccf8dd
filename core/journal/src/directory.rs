//! A log's segments as files of one folder.
//!
//! Owns file names, the owner's lock and epoch, spare segments and filling them. Knows no frame.
//!
//! | file | |
//! |---|---|
//! | `owner` | the highest epoch that claimed the log, written in place |
//! | `lock` | locked by the running owner |
//! | `acked` | the offset below which records were acknowledged, twice: written alternately after each group, in place |
//! | `EPOCH-ID.segment` | a segment, both numbers in 16 hexadecimal digits |
//! | `N.spare` | a file of one segment's size whose blocks are allocated, to become a segment |
//! | `N.filling` | a spare that is not filled yet |

use crate::error::OpenError;
use crate::format::SegmentName;
use crate::log::Log;
use crate::storage::{SegmentFile, Storage};
use rustix::fs::{fallocate, flock, FallocateFlags, FlockOperation};
use rustix::io::Errno;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Maximum number of trimmed segments that are kept as spares; more are deleted.
const SPARES_MAX: usize = 2;

/// Zeros written between two syncs of a file that is filled in parallel with commits: 4 MiB, some milliseconds of a
/// disk's time.
const FILL_BYTES: usize = 4 << 20;

/// How the log's owner is determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The only process that uses the folder: does not wait, and fails while another process has it open.
    Sole,
    /// The owner appointed by a registry. The epoch must be higher than all before; earlier owners are fenced even if
    /// they still run.
    Epoch(u64),
}

/// The options of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The size of one file in bytes. The log takes one segment more than its records need, plus up to two spares.
    pub segment_bytes: u64,
    pub owner: Owner,
    /// The least first offset of a log without records: earlier records are stored elsewhere.
    pub begin: u64,
    /// A sole owner gets an epoch above this one, which is an owner's known elsewhere.
    pub after: u64,
}

impl Default for Options {
    /// 128 MiB: 1,300 groups of 512 records of 200 bytes.
    fn default() -> Options {
        Options {
            segment_bytes: 128 << 20,
            owner: Owner::Sole,
            begin: 0,
            after: 0,
        }
    }
}

impl Log<Directory> {
    /// Opens or creates the journal in folder `path`.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Log<Directory>, OpenError> {
        let directory = Directory::claim(path.as_ref(), options)?;
        let epoch = directory.epoch;
        let opening = directory.owner.try_clone()?;
        let log = Log::with_storage_from(directory, epoch, options.segment_bytes, options.begin)?;
        flock(&opening, FlockOperation::Unlock).map_err(io::Error::from)?;
        Ok(log)
    }
}

/// The folder of one log, claimed by this process.
pub struct Directory {
    path: PathBuf,
    handle: File,
    owner: Lock,
    acked: Acked,
    epoch: u64,
    /// Spares that are ready.
    spares: Vec<PathBuf>,
    filling: Option<Filling>,
    next_spare: u64,
    /// Held for life: dropping it releases the lock.
    _lock: Lock,
}

/// Checks whether an owner is still the latest one, from any thread.
pub(crate) struct Claims {
    owner: File,
    epoch: u64,
}

impl Claims {
    /// Whether no later owner has claimed the log.
    pub fn are_latest(&self) -> io::Result<bool> {
        Ok(read_owner(&self.owner)?.is_some_and(|by| by <= self.epoch))
    }
}

struct Filling {
    thread: JoinHandle<io::Result<PathBuf>>,
    stop: Arc<AtomicBool>,
}

impl Directory {
    fn claim(path: &Path, options: Options) -> Result<Directory, OpenError> {
        fs::create_dir_all(path)?;
        if let Some(parent) = path.canonicalize()?.parent() {
            File::open(parent)?.sync_all()?;
        }
        let handle = File::open(path)?;
        let lock = Lock(open_or_make(&path.join("lock"))?);
        let owner = Lock(open_or_make(&path.join("owner"))?);
        let locked = lock_now(&lock)?;
        if !locked && options.owner == Owner::Sole {
            return Err(OpenError::Locked);
        }
        // Held until the log is open: two concurrent openers could remove or cut each other's segments.
        if !lock_now(&owner)? {
            return Err(OpenError::Locked);
        }
        // A fenced owner that still runs may be about to use its spares.
        let (segments, spares) = scan(path, if locked { options.segment_bytes } else { 0 })?;
        let newest = segments.iter().map(|name| name.epoch).max().unwrap_or(0);
        let former = read_owner(&owner)?.unwrap_or(0).max(newest);
        let epoch = match options.owner {
            Owner::Sole => former.max(options.after) + 1,
            Owner::Epoch(epoch) if epoch > former => epoch,
            Owner::Epoch(_) => return Err(OpenError::Fenced { by: former }),
        };
        let acked = Acked::open(path)?;
        owner.write_all_at(&number_bytes(epoch), 0)?;
        owner.sync_all()?;
        handle.sync_all()?;
        let next_spare = spares.len() as u64;
        let (path, _lock) = (path.to_path_buf(), lock);
        Ok(Directory {
            path,
            handle,
            owner,
            acked,
            epoch,
            spares,
            filling: None,
            next_spare,
            _lock,
        })
    }

    pub(crate) fn claims(&self) -> io::Result<Claims> {
        let owner = self.owner.try_clone()?;
        Ok(Claims {
            owner,
            epoch: self.epoch,
        })
    }

    fn segment_path(&self, name: SegmentName) -> PathBuf {
        self.path.join(format!("{:016x}-{:016x}.segment", name.epoch, name.id))
    }

    /// A name that no other owner uses, since epochs are unique.
    fn spare_path(&mut self) -> PathBuf {
        self.next_spare += 1;
        self.path.join(format!("{:016x}-{}.spare", self.epoch, self.next_spare))
    }

    fn begin_from(&self, spare: &Path, name: SegmentName, header: &[u8]) -> io::Result<File> {
        let file = File::options().read(true).write(true).open(spare)?;
        file.write_all_at(header, 0)?;
        file.sync_all()?;
        fs::rename(spare, self.segment_path(name))?;
        self.handle.sync_all()?;
        Ok(file)
    }

    /// A file of `bytes` whose blocks are allocated.
    fn take_spare(&mut self, bytes: u64) -> io::Result<PathBuf> {
        if let Some(spare) = self.spares.pop() {
            return Ok(spare);
        }
        if let Some(filling) = self.filling.take() {
            if let Ok(spare) = filling.thread.join().expect("filling a file does not panic") {
                return Ok(spare);
            }
        }
        let path = self.spare_path();
        fill(&path, bytes, &AtomicBool::new(false))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(filling) = self.filling.take() {
            filling.stop.store(true, Ordering::Relaxed);
            let _ = filling.thread.join();
        }
    }
}

impl Storage for Directory {
    type File = File;

    fn list(&mut self) -> io::Result<Vec<SegmentName>> {
        Ok(scan_names(&self.path)?.0)
    }

    fn open(&mut self, name: SegmentName) -> io::Result<File> {
        File::options().read(true).write(true).open(self.segment_path(name))
    }

    fn begin(&mut self, name: SegmentName, header: &[u8], bytes: u64) -> io::Result<File> {
        let spare = self.take_spare(bytes)?;
        let begun = self.begin_from(&spare, name, header);
        if begun.is_err() && spare.exists() {
            self.spares.push(spare);
        }
        begun
    }

    fn prepare(&mut self, bytes: u64) {
        if !self.spares.is_empty() || self.filling.is_some() {
            return;
        }
        let path = self.spare_path();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("journal-fill".into())
            .spawn(move || fill(&path, bytes, &seen));
        self.filling = thread.ok().map(|thread| Filling { thread, stop }); // without a thread, `begin` fills it
    }

    fn remove(&mut self, name: SegmentName, reusable: bool) -> io::Result<()> {
        let path = self.segment_path(name);
        let keep = reusable && self.spares.len() + usize::from(self.filling.is_some()) < SPARES_MAX;
        let spare = keep.then(|| self.spare_path());
        let removed = match &spare {
            Some(spare) => fs::rename(path, spare),
            None => fs::remove_file(path),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.handle.sync_all(),
            removed => removed?,
        }
        self.handle.sync_all()?; // the old name must be gone durably before the bytes change
        self.spares.extend(spare);
        Ok(())
    }

    fn drop_spares(&mut self) -> io::Result<()> {
        // A file that is being filled has zeros alone.
        while let Some(spare) = self.spares.last() {
            fs::remove_file(spare)?;
            self.spares.pop();
        }
        self.handle.sync_all()
    }

    fn owner(&self) -> io::Result<u64> {
        read_owner(&self.owner)?.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "owner file is damaged"))
    }

    fn salt(&mut self) -> u64 {
        RandomState::new().hash_one(self.next_spare)
    }

    fn acked(&self) -> io::Result<Option<u64>> {
        Ok(Acked::places(&self.acked.file)?.into_iter().flatten().max())
    }

    fn keep_acked(&mut self, end: u64, synced: bool) -> io::Result<()> {
        self.acked.keep(end, synced)
    }
}

/// The file with the offset below which records were acknowledged.
///
/// Two copies in separate sectors, written alternately: a torn write leaves the other one intact. Without a sync, a
/// power loss may revert the newest, and then the file contains a lower offset than the true one. Never a higher one:
/// it is written after the records are durable.
pub(crate) struct Acked {
    file: File,
    place: usize,
}

impl Acked {
    const PLACES: usize = 2;
    pub(crate) const APART: u64 = 4_096;

    fn open(folder: &Path) -> io::Result<Acked> {
        let file = open_or_make(&folder.join("acked"))?;
        if file.metadata()?.len() == 0 {
            file.write_all_at(&[0; 16], Self::APART)?; // allocates its blocks before a disk is full
            file.write_all_at(&[0; 16], 0)?;
        }
        Ok(Acked { file, place: 0 })
    }

    /// The content of each copy; `None` for one that is new or damaged.
    pub(crate) fn places(file: &File) -> io::Result<[Option<u64>; Self::PLACES]> {
        let at = |place| read_number(file, place as u64 * Self::APART);
        Ok([at(0)?, at(1)?])
    }

    fn keep(&mut self, end: u64, synced: bool) -> io::Result<()> {
        self.file
            .write_all_at(&number_bytes(end), self.place as u64 * Self::APART)?;
        self.place = (self.place + 1) % Self::PLACES;
        match synced {
            true => self.file.sync_data(),
            false => Ok(()),
        }
    }
}

impl SegmentFile for File {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < buf.len() {
            match FileExt::read_at(self, &mut buf[read..], at + read as u64) {
                Ok(0) => break,
                Ok(some) => read += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

fn open_or_make(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// A file that may be locked. Dropping it unlocks at once, even while a freshly forked child has a copy of the
/// descriptor.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock); // no effect on a file that is not locked
    }
}

impl Deref for Lock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

fn lock_now(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A number and its checksum: 16 bytes of one sector.
fn number_bytes(number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..8]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The number at a byte; `None` if the file is new or damaged there.
pub(crate) fn read_number(file: &File, at: u64) -> io::Result<Option<u64>> {
    let mut bytes = [0; 16];
    let read = SegmentFile::read_at(file, at, &mut bytes)?;
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    Ok((read == bytes.len() && number_bytes(number) == bytes).then_some(number))
}

fn read_owner(file: &File) -> io::Result<Option<u64>> {
    read_number(file, 0)
}

/// The segments, and the spares of the right size; deletes other spares.
fn scan(path: &Path, segment_bytes: u64) -> io::Result<(Vec<SegmentName>, Vec<PathBuf>)> {
    let (segments, others) = scan_names(path)?;
    let mut spares = Vec::new();
    for spare in others {
        let whole = spare.extension().is_some_and(|kind| kind == "spare") && spare.metadata()?.len() == segment_bytes;
        if whole && spares.len() < SPARES_MAX {
            spares.push(spare);
        } else {
            fs::remove_file(spare)?;
        }
    }
    Ok((segments, spares))
}

pub(crate) fn scan_names(path: &Path) -> io::Result<(Vec<SegmentName>, Vec<PathBuf>)> {
    let (mut segments, mut spares) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        match (
            file.file_stem().and_then(|stem| stem.to_str()),
            file.extension().and_then(|kind| kind.to_str()),
        ) {
            (Some(stem), Some("segment")) => segments.extend(segment_name(stem)),
            (Some(_), Some("spare" | "filling")) => spares.push(file),
            _ => {}
        }
    }
    Ok((segments, spares))
}

fn segment_name(stem: &str) -> Option<SegmentName> {
    let (epoch, id) = stem.split_once('-')?;
    Some(SegmentName {
        epoch: u64::from_str_radix(epoch, 16).ok()?,
        id: u64::from_str_radix(id, 16).ok()?,
    })
}

/// Writes zeros, so that no later sync must allocate blocks. Leaves nothing behind if it fails.
fn fill(spare: &Path, bytes: u64, stop: &AtomicBool) -> io::Result<PathBuf> {
    let filling = spare.with_extension("filling");
    let filled = fill_file(&filling, bytes, stop).and_then(|()| fs::rename(&filling, spare));
    match filled {
        Ok(()) => Ok(spare.to_path_buf()),
        Err(error) => {
            let _ = fs::remove_file(&filling);
            Err(error)
        }
    }
}

fn fill_file(path: &Path, bytes: u64, stop: &AtomicBool) -> io::Result<()> {
    let file = File::options().write(true).create(true).truncate(true).open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    let zeros = vec![0; FILL_BYTES.min(bytes as usize)];
    let mut at = 0;
    while at < bytes {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let part = (bytes - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..part as usize], at)?;
        file.sync_data()?;
        at += part;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_owner_releases_its_lock_despite_a_forked_childs_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            segment_bytes: 1 << 20,
            ..Options::default()
        };
        let directory = Directory::claim(folder.path(), options).unwrap();
        let copies = [
            directory._lock.try_clone().unwrap(),
            directory.owner.try_clone().unwrap(),
        ];
        assert!(matches!(
            Directory::claim(folder.path(), options),
            Err(OpenError::Locked)
        ));
        drop(directory);
        assert!(
            Directory::claim(folder.path(), options).is_ok(),
            "the copies are still open"
        );
        drop(copies);
    }
}
