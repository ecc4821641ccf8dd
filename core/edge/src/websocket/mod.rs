//! WebSocket (RFC 6455) at the server's end: upgrade, frames both ways, close codes.
//!
//! Must not know: the messages' content.

mod close;
mod frame;
mod reader;
mod upgrade;

pub use close::{Close, Violation};
pub use frame::{mask, put_head, Opcode};
pub use reader::{Read, Reader};
pub use upgrade::{Headed, Origins, Refusal, Upgrade};
