//! Manifests of apps: what is read lies in one namespace.

#![no_main]
#![expect(
    clippy::disallowed_methods,
    reason = "libfuzzer's macro creates a file"
)]

libfuzzer_sys::fuzz_target!(|text: &str| fuzz::manifests(text));
