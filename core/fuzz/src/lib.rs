//! The entry functions of the targets: `cargo test` replays the corpus through the same functions.

#[path = "../../rooms/tests/common/mod.rs"]
mod common;

#[path = "../../edge/tests/fuzz/mod.rs"]
mod edge;

pub use common::{
    fuzz_broker, fuzz_client, fuzz_frames, fuzz_gateway, fuzz_handshake, fuzz_proxy, fuzz_records, fuzz_router,
};
pub use edge::{fuzz_edge_head, fuzz_edge_json, fuzz_edge_protobuf, fuzz_edge_stream};
