//! Blocks of series: what can be read is written and read as the same.

#![no_main]
#![expect(
    clippy::disallowed_methods,
    reason = "libfuzzer's macro creates a file"
)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::block(data));
