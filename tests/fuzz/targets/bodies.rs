//! Bodies of writes in JSON, YAML and protobuf: what passes is harmless for every reader.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::body(data));
