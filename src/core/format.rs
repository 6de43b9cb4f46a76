//! Formatting: sizes, hexadecimal digits, and characters that must not reach a terminal.

use std::fmt::Write;

/// Bytes in powers of 1000: `4.1 GB`.
pub fn size(bytes: u64) -> String {
    for (unit, size) in [
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("KB", 1000),
    ] {
        if bytes >= size {
            let tenths = bytes / (size / 10);
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

/// Bytes as lower-case hexadecimal digits, two a byte: how hashes and ids are written everywhere.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _infallible = write!(text, "{byte:02x}").is_ok();
        text
    })
}

/// Returns whether a character must not be printed, because it commands the terminal or page that
/// shows it: control characters, and those that change the direction of what stands around them or
/// end a line in some programs and not in others.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// One line of foreign text, at most `chars_max` characters: what a terminal would obey becomes a
/// space.
pub fn one_line(text: &str, chars_max: usize) -> String {
    let shown = text
        .chars()
        .map(|c| if is_unprintable(c) { ' ' } else { c });
    shown.take(chars_max).collect()
}

/// A basic string of TOML, and a scalar of YAML: two characters need an escape where control
/// characters were refused before.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The parts that are there, with commas between them; `None` where none is.
pub fn joined(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [(0, "0 B"), (1234, "1.2 KB"), (4_123_456_789, "4.1 GB")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn one_line_neither_ends_nor_turns_around_and_is_cut_between_characters() {
        let foreign = "a\nb\t\u{1b}[2J\u{61c}\u{200e}\u{200f}\u{2028}\u{202e}\u{2066}é";
        assert_eq!(one_line(foreign, 400), "a b  [2J      é");
        assert_eq!(one_line("éé", 1), "é");
    }
}
