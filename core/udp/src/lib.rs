//! Batch datagram sockets for Linux; besides `ahead` and `tcp` the only crate of Muster with `unsafe` code.
//!
//! Owns: sockets and their options, the headers for recvmmsg and sendmmsg, the meaning of each errno, the inner epoll
//! and its timer, mailboxes between sockets of one process, the clock and the kernel's entropy. Must not know:
//! machines, turns, budgets, faults.
#![deny(unsafe_op_in_unsafe_fn)]

mod address;
mod counters;
mod entropy;
mod mailboxes;
mod poll;
mod receiver;
mod sender;
mod socket;
mod syscalls;

pub use counters::Counters;
pub use entropy::KernelEntropy;
pub use mailboxes::{Mailboxes, Near, NearCounters, MAILBOXES_MAX};
pub use poll::{Poll, Ready, Timer, EVENTS_MAX};
pub use receiver::{Received, Receiver, GRO_SLOTS, GRO_SLOT_BYTES, PLAIN_SLOTS, PLAIN_SLOT_BYTES};
pub use sender::{Cursor, Sender, Sent};
pub use socket::{Buffers, Socket, SocketOptions};
pub use syscalls::{monotonic_now, thread_cpu_now, Errno, Incoming, Kernel, Outgoing, Syscalls};
