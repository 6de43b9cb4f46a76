//! Whatever is asked for: what the API server would resolve is what was judged. An input is a line
//! of `tests/hostile`.

#![no_main]
#![expect(
    clippy::disallowed_methods,
    reason = "libfuzzer's macro creates a file"
)]

libfuzzer_sys::fuzz_target!(|line: &str| fuzz::request(line));
