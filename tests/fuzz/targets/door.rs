//! Whoever asks the dashboard for whatever: what is answered was asked under a name of this machine, by somebody who may.

#![no_main]

libfuzzer_sys::fuzz_target!(|line: &str| fuzz::door(line));
