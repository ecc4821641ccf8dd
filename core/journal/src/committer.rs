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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A group after its append, successful or not; it is returned so that its memory can be reused.
pub struct Appended {
    pub group: Group,
    pub result: Result<Range<u64>, AppendError>,
}

enum Order {
    Append(Group),
    Trim(u64),
    BeginClean,
    ReuseAgain,
}

/// How far orders besides appends are.
#[derive(Default)]
struct Done {
    /// Number of orders that were carried out.
    orders: u64,
    /// The first offset of the last clean segment, or why there is none.
    clean: Option<Result<u64, String>>,
}

/// The journal in its own thread.
pub struct Committer {
    orders: Option<Sender<Order>>,
    /// Locked, so that a committer may be shared.
    appended: Mutex<Receiver<Appended>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<Journal>>,
    shared: Arc<Shared<File>>,
    claims: Claims,
    epoch: u64,
    /// Number of orders besides appends.
    ordered: AtomicU64,
    done: Arc<Mutex<Done>>,
}

impl Committer {
    pub fn new(mut journal: Journal) -> io::Result<Committer> {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (orders, taken) = channel();
        let (tell, appended) = channel();
        let waker = Arc::clone(&wake);
        let (shared, epoch) = (journal.shared(), journal.epoch());
        let claims = journal.storage().claims()?;
        let done = Arc::new(Mutex::new(Done::default()));
        let carried_out = Arc::clone(&done);
        let run = move || {
            let count = |clean: Option<Result<u64, String>>| {
                let mut done = carried_out.lock().expect("no panic holds this lock");
                done.orders += 1;
                done.clean = clean.or(done.clean.take());
            };
            for order in taken {
                match order {
                    Order::Append(mut group) => {
                        let result = journal.append(&mut group);
                        let told = tell.send(Appended { group, result });
                        // If the counter is full, the loop has been woken already.
                        let _ = rustix::io::write(&*waker, &1_u64.to_ne_bytes());
                        if told.is_err() {
                            break;
                        }
                    }
                    // A failure shows in the next append; a later trim drops the segments.
                    Order::Trim(below) => {
                        let _ = journal.trim(below);
                        count(None);
                    }
                    Order::BeginClean => {
                        let clean = journal.begin_clean().map_err(|error| error.to_string());
                        count(Some(clean));
                    }
                    Order::ReuseAgain => {
                        journal.reuse_again();
                        count(None);
                    }
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
            ordered: AtomicU64::new(0),
            done,
        })
    }

    /// The epoch of this owner.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether no later owner has claimed the log, so that nobody else has appended to it. Reads 16 bytes of a cached
    /// file.
    pub fn owns(&self) -> io::Result<bool> {
        self.claims.are_latest()
    }

    /// The offset of the oldest record that the log still holds.
    pub fn start(&self) -> u64 {
        self.shared.start()
    }

    /// The offset of the next record: all below it are durable.
    pub fn end(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// A reader, as from [`crate::Log::reader`].
    pub fn reader(&self, from: u64) -> Result<JournalReader, ReadError> {
        Reader::new(Arc::clone(&self.shared), from)
    }

    /// Appends `group` behind earlier ones; [`Committer::poll`] returns it when it is durable.
    pub fn append(&self, group: Group) {
        self.order(Order::Append(group));
    }

    /// Drops segments, like [`crate::Log::trim`].
    pub fn trim(&self, below: u64) {
        self.order(Order::Trim(below));
    }

    /// Begins a clean segment, like [`crate::Log::begin_clean`]; [`Committer::clean`] has its first offset once
    /// [`Committer::is_idle`].
    pub fn begin_clean(&self) {
        self.order(Order::BeginClean);
    }

    /// Trimmed segments may be used again, like [`crate::Log::reuse_again`].
    pub fn reuse_again(&self) {
        self.order(Order::ReuseAgain);
    }

    /// Whether all trims and clean segments that were ordered are done.
    pub fn is_idle(&self) -> bool {
        let done = self.done.lock().expect("no panic holds this lock").orders;
        done == self.ordered.load(Ordering::Relaxed)
    }

    /// The first offset of the last clean segment, or why none was begun; `None`: none was ordered.
    pub fn clean(&self) -> Option<Result<u64, String>> {
        self.done.lock().expect("no panic holds this lock").clean.clone()
    }

    /// Number of segments that the log holds.
    pub fn segments(&self) -> usize {
        self.shared.segments.lock().expect("no panic holds this lock").len()
    }

    /// The next finished group, in the order of appending.
    pub fn poll(&self) -> Option<Appended> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count); // empty: another call has read the counter
        self.appended.lock().expect("no panic holds this lock").try_recv().ok()
    }

    /// Waits for the groups in progress and closes the log cleanly.
    pub fn close(mut self) -> Result<(), AppendError> {
        self.orders = None;
        let thread = self.thread.take().expect("the thread is joined once");
        thread.join().expect("the journal's thread does not panic").close()
    }

    fn order(&self, order: Order) {
        if !matches!(order, Order::Append(_)) {
            self.ordered.fetch_add(1, Ordering::Relaxed);
        }
        let sent = self.orders.as_ref().map(|orders| orders.send(order));
        assert!(
            matches!(sent, Some(Ok(()))),
            "the journal's thread runs until it is closed"
        );
    }
}

impl AsFd for Committer {
    /// Readable while [`Committer::poll`] has something to return.
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
