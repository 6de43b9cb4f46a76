//! Whatever is asked for: what the API server would resolve is what was judged. An input is a line
//! of `tests/hostile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|line: &str| fuzz::request(line));
