//! Requests to the dashboard: what is answered was asked under a name of this machine, by somebody
//! who may.

#![no_main]
#![expect(
    clippy::disallowed_methods,
    reason = "libfuzzer's macro creates a file"
)]

libfuzzer_sys::fuzz_target!(|line: &str| fuzz::dashboard_request(line));
