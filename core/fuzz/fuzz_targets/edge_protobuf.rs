#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| muster_fuzz::fuzz_edge_protobuf(data));
