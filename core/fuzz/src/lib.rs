//! The entry functions of the targets: the same that `cargo test` replays the corpus through.

#[path = "../../rooms/tests/common/mod.rs"]
mod common;

pub use common::{
    fuzz_broker, fuzz_client, fuzz_frames, fuzz_gateway, fuzz_handshake, fuzz_proxy, fuzz_records, fuzz_router,
};
