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
