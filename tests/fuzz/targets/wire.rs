//! Bytes of the control plane: messages, frames of yamux and headers of streams.

#![no_main]
#![expect(
    clippy::disallowed_methods,
    reason = "libfuzzer's macro creates a file"
)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::control_plane_bytes(data));
