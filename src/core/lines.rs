//! Sanitizer of foreign log lines: whole lines of bounded length, valid UTF-8, no control sequences
//! for a terminal or a page.
//!
//! Input may break off anywhere: in a line, in a character or in an escape sequence.

use super::format::is_unprintable;

/// The longest line that is shown; the rest of it is left out, and that is said.
const LINE_BYTES_MAX: usize = 4096;
/// Mark at the end of a truncated line.
const CUT: &str = " … (cut)";

/// Splits bytes into sanitized lines.
#[derive(Debug, Default)]
pub struct Lines {
    // Never longer than LINE_BYTES_MAX.
    line: Vec<u8>,
    is_cut: bool,
    escape: Escape,
}

/// Position of the last byte in an escape sequence.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Escape {
    #[default]
    None,
    /// Behind ESC.
    Begun,
    /// In a sequence that ends with a letter.
    Control,
    /// In a string that ends with BEL or ESC and a backslash.
    Text,
    /// Behind the ESC at the end of such a string.
    TextEnds,
}

impl Lines {
    /// Feeds bytes; appends complete lines to `out`, each with its line end.
    pub fn take(&mut self, bytes: &[u8], out: &mut String) {
        for byte in bytes {
            if *byte == b'\n' {
                self.end(out);
            } else if self.is_text(*byte) {
                self.push(*byte);
            }
        }
    }

    /// Nothing more comes: what there is of a last line is one.
    pub fn finish(&mut self, out: &mut String) {
        if !self.line.is_empty() {
            self.end(out);
        }
    }

    fn push(&mut self, byte: u8) {
        if self.line.len() < LINE_BYTES_MAX {
            self.line.push(byte);
        } else {
            self.is_cut = true;
        }
    }

    fn end(&mut self, out: &mut String) {
        // A character that was cut in its middle is left out, not shown as broken.
        let text = if self.is_cut {
            self.line.utf8_chunks().map(|chunk| chunk.valid()).collect()
        } else {
            String::from_utf8_lossy(&self.line).into_owned()
        };
        let is_shown = |character: &char| !is_unprintable(*character) || *character == '\t';
        out.extend(text.chars().filter(is_shown));
        if self.is_cut {
            out.push_str(CUT);
        }
        out.push('\n');
        self.line.clear();
        self.is_cut = false;
        // A sequence that never ended must not swallow what follows.
        self.escape = Escape::None;
    }

    /// Returns whether a byte is text, and not part of what commands a terminal (ECMA-48).
    const fn is_text(&mut self, byte: u8) -> bool {
        let (next, is_text) = match (self.escape, byte) {
            (Escape::None | Escape::Begun, 0x1b) => (Escape::Begun, false),
            (Escape::None, _) => (Escape::None, true),
            (Escape::Begun, b'[') => (Escape::Control, false),
            (Escape::Begun, b']' | b'P' | b'X' | b'^' | b'_') => (Escape::Text, false),
            // Such as the choice of an alphabet: one more byte follows.
            (Escape::Begun, 0x20..=0x2f) => (Escape::Begun, false),
            (Escape::Begun, _) => (Escape::None, false),
            (Escape::Control, 0x40..=0x7e) => (Escape::None, false),
            (Escape::Control, _) => (Escape::Control, false),
            (Escape::Text | Escape::TextEnds, 0x1b) => (Escape::TextEnds, false),
            (Escape::Text, 0x07) | (Escape::TextEnds, b'\\') => (Escape::None, false),
            (Escape::Text | Escape::TextEnds, _) => (Escape::Text, false),
        };
        self.escape = next;
        is_text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let (mut lines, mut out) = (Lines::default(), String::new());
        for piece in pieces {
            lines.take(piece, &mut out);
        }
        lines.finish(&mut out);
        out
    }

    #[test]
    fn what_commands_a_terminal_is_left_out_wherever_it_breaks_off() {
        let line = "\u{1b}[1;31mred\u{1b}[0m \u{1b}]0;title\u{7}a\u{1b}]8;;http://x\u{1b}\\b\u{1b}(B c\r\0\u{8}\td\u{9b}2J\n";
        let whole = shown(&[line.as_bytes()]);
        assert_eq!(whole, "red ab c\td2J\n");
        for cut in 0..line.len() {
            let (one, other) = line.as_bytes().split_at(cut);
            assert_eq!(shown(&[one, other]), whole, "{cut}");
        }
    }

    #[test]
    fn a_sequence_without_an_end_costs_one_line() {
        assert_eq!(shown(&[b"a\x1b]never ends\nb\n"]), "a\nb\n");
        assert_eq!(shown(&[b"a\x1b[\nb\n"]), "a\nb\n");
    }

    #[test]
    fn what_turns_the_direction_of_a_text_is_left_out() {
        let line = "abc\u{202e}txt\u{2066}.exe\u{200f}\u{2028}\n";
        assert_eq!(shown(&[line.as_bytes()]), "abctxt.exe\n");
    }

    #[test]
    fn a_line_of_a_megabyte_is_cut_and_the_next_is_whole() {
        let mut long = "é".repeat(500_000).into_bytes();
        long.push(b'\n');
        let text = shown(&[b"x", &long, b"next\n"]);
        assert!(
            text.len() < 5000 && text.ends_with("é … (cut)\nnext\n"),
            "{} bytes",
            text.len()
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such() {
        assert_eq!(
            shown(&[b"a\xffb\n\xc3", b"\xa9\n", b"end"]),
            "a\u{fffd}b\né\nend\n"
        );
    }
}
