//! The store's needs of a file system beyond the log's, and a folder that provides them.
//!
//! Owns file names and open files. Must not know: the content of files.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of open files kept: an hour of messages takes two, and few hours are in use at a time.
const OPEN_MAX: usize = 64;

/// A file of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileName {
    Manifest,
    /// The operations of an hour.
    Ops(u32),
    /// The bodies of an hour.
    Bodies(u32),
}

/// Files of a store, for several threads.
pub trait Files: Send + Sync + 'static {
    fn list(&self) -> io::Result<Vec<FileName>>;

    /// The length in bytes; 0 if there is no such file.
    fn len(&self, name: FileName) -> io::Result<u64>;

    /// Fills `buf` from byte `at`; returns the bytes read, fewer only at the end of the file.
    fn read_at(&self, name: FileName, at: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at byte `at`; creates the file if necessary.
    fn write_at(&self, name: FileName, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns once all writes to the file so far survive a power loss. After an error their state is unknown.
    fn sync(&self, name: FileName) -> io::Result<()>;

    /// The same for the names of new files.
    fn sync_names(&self) -> io::Result<()>;

    /// Replaces the whole file, durably: after a crash it holds the old bytes or the new ones.
    fn replace(&self, name: FileName, bytes: &[u8]) -> io::Result<()>;

    fn remove(&self, name: FileName) -> io::Result<()>;
}

/// Files in a folder.
pub struct Folder {
    path: PathBuf,
    handle: File,
    open: Mutex<HashMap<FileName, Arc<File>>>,
}

impl Folder {
    /// Uses the folder `path`; creates it if necessary.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Folder> {
        let path = path.as_ref().to_path_buf();
        fs::create_dir_all(&path)?;
        let handle = File::open(&path)?;
        let open = Mutex::new(HashMap::new());
        Ok(Folder { path, handle, open })
    }

    fn path(&self, name: FileName) -> PathBuf {
        self.path.join(match name {
            FileName::Manifest => "manifest".to_owned(),
            FileName::Ops(hour) => format!("{hour:08x}.ops"),
            FileName::Bodies(hour) => format!("{hour:08x}.bodies"),
        })
    }

    fn file(&self, name: FileName, make: bool) -> io::Result<Arc<File>> {
        // A panic leaves the map consistent: no operation here is partial.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&name) {
            return Ok(Arc::clone(file));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(make).truncate(false);
        let file = Arc::new(options.open(self.path(name))?);
        if open.len() >= OPEN_MAX {
            open.clear();
        }
        open.insert(name, Arc::clone(&file));
        Ok(file)
    }

    fn forget(&self, name: FileName) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
    }
}

impl Files for Folder {
    fn list(&self) -> io::Result<Vec<FileName>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            if name == "manifest" {
                names.push(FileName::Manifest);
            } else if let Some((hour, kind)) = name.split_once('.') {
                match (u32::from_str_radix(hour, 16), kind) {
                    (Ok(hour), "ops") => names.push(FileName::Ops(hour)),
                    (Ok(hour), "bodies") => names.push(FileName::Bodies(hour)),
                    _ => {}
                }
            }
        }
        Ok(names)
    }

    fn len(&self, name: FileName) -> io::Result<u64> {
        match fs::metadata(self.path(name)) {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn read_at(&self, name: FileName, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let file = self.file(name, false)?;
        let mut read = 0;
        while read < buf.len() {
            match file.read_at(&mut buf[read..], at + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, name: FileName, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(name, true)?.write_all_at(bytes, at)
    }

    fn sync(&self, name: FileName) -> io::Result<()> {
        self.file(name, true)?.sync_data()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn replace(&self, name: FileName, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(name);
        let new = path.with_extension("new");
        let file = File::create(&new)?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        self.forget(name);
        self.handle.sync_all()
    }

    fn remove(&self, name: FileName) -> io::Result<()> {
        self.forget(name);
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
