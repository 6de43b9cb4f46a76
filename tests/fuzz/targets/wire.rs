//! Bytes of the control plane: messages, frames of yamux and headers of streams.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::control_plane_bytes(data));
