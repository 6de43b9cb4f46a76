//! Manifests of apps: what is read lies in one namespace.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| fuzz::manifests(text));
