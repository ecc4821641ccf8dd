//! A thread that appends groups, so that an event loop never waits for a disk.
//!
//! Owns the thread and the descriptor that wakes the loop. Knows no frame and no record.

use crate::directory::Claims;
use crate::error::{AppendError, ReadError};
use crate::format::Group;
use crate::reader::Reader;
use crate::shared::Shared;
use crate::{Journal, JournalReader};
use rustix::event::{eventfd, EventfdFlags};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A group that was appended or not, and comes back for its memory to be used again.
pub struct Appended {
    pub group: Group,
    pub result: Result<Range<u64>, AppendError>,
}

enum Order {
    Append(Group),
    Trim(u64),
}

/// The journal in a thread of its own.
pub struct Committer {
    orders: Option<Sender<Order>>,
    /// Locked, so that a committer may be shared.
    appended: Mutex<Receiver<Appended>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<Journal>>,
    shared: Arc<Shared<File>>,
    claims: Claims,
    epoch: u64,
}

impl Committer {
    pub fn new(mut journal: Journal) -> io::Result<Committer> {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (orders, taken) = channel();
        let (tell, appended) = channel();
        let waker = Arc::clone(&wake);
        let (shared, epoch) = (journal.shared(), journal.epoch());
        let claims = journal.storage().claims()?;
        let run = move || {
            for order in taken {
                match order {
                    Order::Append(mut group) => {
                        let result = journal.append(&mut group);
                        let told = tell.send(Appended { group, result });
                        // Of a full counter the loop has been told already.
                        let _ = rustix::io::write(&*waker, &1_u64.to_ne_bytes());
                        if told.is_err() {
                            break;
                        }
                    }
                    // A failure shows in the next append; the segments are dropped by a later trim.
                    Order::Trim(below) => drop(journal.trim(below)),
                }
            }
            journal
        };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(run)?;
        Ok(Committer {
            orders: Some(orders),
            appended: Mutex::new(appended),
            wake,
            thread: Some(thread),
            shared,
            claims,
            epoch,
        })
    }

    /// The epoch of this owner.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether no later owner has claimed the log: then nobody else has appended to it. Reads 16 bytes of a file that is in memory.
    pub fn owns(&self) -> io::Result<bool> {
        self.claims.are_latest()
    }

    /// The offset of the oldest record that the log still holds.
    pub fn start(&self) -> u64 {
        self.shared.start()
    }

    /// The offset of the next record: all below are durable.
    pub fn end(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// A reader as [`crate::Log::reader`] gives it.
    pub fn reader(&self, from: u64) -> Result<JournalReader, ReadError> {
        Reader::new(Arc::clone(&self.shared), from)
    }

    /// Appends `group` behind those before it; [`Committer::poll`] tells when it is durable.
    pub fn append(&self, group: Group) {
        self.order(Order::Append(group));
    }

    /// Drops segments as [`crate::Log::trim`] does.
    pub fn trim(&self, below: u64) {
        self.order(Order::Trim(below));
    }

    /// The next group that is done, in the order of their appending.
    pub fn poll(&self) -> Option<Appended> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count); // empty: another call has taken the count
        self.appended.lock().expect("no panic holds this lock").try_recv().ok()
    }

    /// Waits for the groups under way and ends the log cleanly.
    pub fn close(mut self) -> Result<(), AppendError> {
        self.orders = None;
        let thread = self.thread.take().expect("the thread is joined once");
        thread.join().expect("the journal's thread does not panic").close()
    }

    fn order(&self, order: Order) {
        let sent = self.orders.as_ref().map(|orders| orders.send(order));
        assert!(
            matches!(sent, Some(Ok(()))),
            "the journal's thread runs until it is closed"
        );
    }
}

impl AsFd for Committer {
    /// Readable while [`Committer::poll`] has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Committer {
    /// Without a seal, as after a crash.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
