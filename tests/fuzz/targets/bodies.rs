//! Bodies of writes in JSON, YAML and protobuf: what passes is harmless for every reader.

#![no_main]
#![expect(
    clippy::disallowed_methods,
    reason = "libfuzzer's macro creates a file"
)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::body(data));
