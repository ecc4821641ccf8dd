//! The inner epoll and its timer: the outer event loop watches one descriptor and schedules nothing.
//!
//! Owns: [`Poll`], [`Timer`]. A socket's POLLERR stays inside; an outer loop such as libuv would close its handle on
//! it and receive nothing more.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use muster_transport::Micros;

/// Maximum number of events that one wait returns; the rest is level-triggered and comes with the next one.
pub const EVENTS_MAX: usize = 256;

/// One descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub token: u64,
    /// Data or a pending error: receiving clears either.
    pub readable: bool,
    pub writable: bool,
}

/// A level-triggered epoll.
pub struct Poll {
    epoll: OwnedFd,
    events: Box<[libc::epoll_event; EVENTS_MAX]>,
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is checked before it is owned.
        let epoll = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
        Ok(Poll {
            epoll,
            events: Box::new([libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX]),
        })
    }

    /// Watches `fd` for data; `token` identifies it when it is ready.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, libc::EPOLLIN)
    }

    /// Also watches `fd` for space to send, or stops that.
    pub fn set_writable(&self, fd: BorrowedFd<'_>, token: u64, writable: bool) -> io::Result<()> {
        self.watch(fd, token, true, writable)
    }

    /// Watches `fd` for data, for space to send, for both or for neither. An error or the end of both directions is
    /// always reported, as data is.
    pub fn watch(&self, fd: BorrowedFd<'_>, token: u64, readable: bool, writable: bool) -> io::Result<()> {
        let wanted = |wanted: bool, bit| if wanted { bit } else { 0 };
        let events = wanted(readable, libc::EPOLLIN) | wanted(writable, libc::EPOLLOUT);
        self.control(libc::EPOLL_CTL_MOD, fd, token, events)
    }

    /// Waits until something is ready, at most `timeout`, and returns how many descriptors are.
    pub fn wait(&mut self, timeout: Duration) -> usize {
        let wait_ms = match timeout.subsec_micros() % 1_000 {
            0 => i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            _ if self.is_ready_within(timeout) => 0,
            _ => return 0,
        };
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: the array has EVENTS_MAX entries.
        let count = unsafe { libc::epoll_wait(epoll, events, EVENTS_MAX as i32, wait_ms) };
        // EINTR is the only possible error: the descriptor and the array are valid.
        usize::try_from(count).unwrap_or(0)
    }

    /// epoll_wait counts in milliseconds, which is too coarse for an open-loop schedule.
    fn is_ready_within(&self, timeout: Duration) -> bool {
        let mut watched = libc::pollfd {
            fd: self.epoll.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: one entry, and all outlive the call.
        unsafe { libc::ppoll(&mut watched, 1, &time, std::ptr::null()) > 0 }
    }

    /// The `index`-th result of the last wait.
    pub fn ready(&self, index: usize) -> Ready {
        let event = self.events[index];
        let (bits, token) = (event.events, event.u64);
        Ready {
            token,
            readable: bits & (libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0,
            writable: bits & libc::EPOLLOUT as u32 != 0,
        }
    }

    fn control(&self, operation: i32, fd: BorrowedFd<'_>, token: u64, wanted: i32) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: wanted as u32,
            u64: token,
        };
        // SAFETY: both descriptors are open and `event` outlives the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) })
    }
}

impl AsFd for Poll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// One deadline on the clock of [`crate::monotonic_now`], as a descriptor.
pub struct Timer {
    timer: OwnedFd,
}

impl Timer {
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no pointers; the descriptor is checked before it is owned.
        let timer = unsafe { owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags))? };
        Ok(Timer { timer })
    }

    /// Arms the timer for `at` (at once if that is past). Clears an expiry that was not read yet, so the timer never
    /// needs to be read.
    pub fn set(&self, at: Micros) {
        // All zero would disarm it.
        let at = at.max(1);
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: (at / 1_000_000) as libc::time_t,
                tv_nsec: (at % 1_000_000 * 1_000) as libc::c_long,
            },
        };
        // SAFETY: `spec` outlives the call and no old value is requested.
        let result = unsafe {
            libc::timerfd_settime(
                self.timer.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &spec,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(result, 0, "timerfd_settime accepts every valid time");
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// The last error, unless `result` is zero or above.
pub(crate) fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// # Safety
/// `fd` is a new descriptor that nothing else owns, or negative.
pub(crate) unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: open, and ours by the contract above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monotonic_now;

    #[test]
    fn a_wait_is_not_rounded_to_milliseconds() {
        let mut poll = Poll::new().unwrap();
        let shortest = (0..50).map(|_| {
            let from = monotonic_now();
            poll.wait(Duration::from_micros(100));
            monotonic_now() - from
        });
        assert!((100..1_000).contains(&shortest.min().unwrap()));
    }

    #[test]
    fn timer_makes_the_nested_epoll_readable_until_it_is_set_again() {
        let (mut inner, timer, mut outer) = (Poll::new().unwrap(), Timer::new().unwrap(), Poll::new().unwrap());
        inner.add(timer.as_fd(), 7).unwrap();
        outer.add(inner.as_fd(), 9).unwrap();
        assert_eq!(outer.wait(Duration::ZERO), 0);
        timer.set(monotonic_now() + 1_000);
        assert_eq!(outer.wait(Duration::from_secs(100)), 1);
        assert_eq!(
            outer.ready(0),
            Ready {
                token: 9,
                readable: true,
                writable: false
            }
        );
        assert_eq!(inner.wait(Duration::ZERO), 1);
        assert_eq!(inner.ready(0).token, 7);
        timer.set(monotonic_now() + 60_000_000);
        assert_eq!(outer.wait(Duration::ZERO), 0);
        timer.set(0);
        assert_eq!(outer.wait(Duration::from_secs(100)), 1, "a past deadline fires at once");
    }
}
