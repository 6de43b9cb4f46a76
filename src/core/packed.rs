//! Texts that the program carries compressed.

use std::io::Read as _;

use flate2::bufread::GzDecoder;

/// Unpacks a text. Of a program that is damaged it is empty, which `kubectl` refuses and no shell
/// runs, and never a part.
pub fn unpacked(packed: &[u8]) -> String {
    let mut text = String::new();
    if GzDecoder::new(packed).read_to_string(&mut text).is_err() {
        text.clear();
    }
    text
}

/// Units, scripts and short manifests as `build.rs` compressed them: each after its path, with a
/// zero byte after both.
const SCRIPTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scripts.gz"));

/// A unit, a script or a short manifest, by its path in the sources; empty where `build.rs` does
/// not list it.
pub fn script(path: &str) -> String {
    let all = unpacked(SCRIPTS);
    let mut parts = all.split('\0');
    while let (Some(name), Some(text)) = (parts.next(), parts.next()) {
        if name == path {
            return text.to_owned();
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_as_it_was_written() {
        for (path, written) in [
            (
                "openrc/pipeops-agent",
                include_str!("../../openrc/pipeops-agent"),
            ),
            (
                "systemd/pipeops-keeper.socket",
                include_str!("../../systemd/pipeops-keeper.socket"),
            ),
        ] {
            assert_eq!(script(path), written);
        }
        assert_eq!(script("openrc"), "");
    }
}
