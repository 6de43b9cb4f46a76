//! Requests to the dashboard: what is answered was asked under a name of this machine, by somebody
//! who may.

#![no_main]

libfuzzer_sys::fuzz_target!(|line: &str| fuzz::dashboard_request(line));
