//! Redaction of secrets in text that leaves this machine: tokens, passwords, keys.
//!
//! It hides too much rather than too little: known secrets wherever they occur, and everything that
//! looks like one.

use super::secret::Secret;

/// Text in the place of a secret.
pub const HIDDEN: &str = "(hidden)";
/// A shorter text is a word that stands in many places.
const KNOWN_BYTES_MIN: usize = 6;
/// A shorter value behind a name that speaks of secrets is a number or a word of a sentence: `the
/// token: 401`.
const VALUE_BYTES_MIN: usize = 6;

/// Names whose value is a secret, wherever they stand in a longer one.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "api-key",
    "private_key",
    "credential",
    "authorization",
];
/// Suffixes of names that stand for the place of a secret, not for its value.
const PLACES: &[&str] = &[
    "_file",
    "-file",
    "_path",
    "_dir",
    "_name",
    "expiration",
    "_until",
];
/// Prefixes of words that are secrets by themselves.
const BEGINNINGS: &[&str] = &[
    "clt_",
    "eyJ",
    "K10",
    "ghp_",
    "github_pat_",
    "glpat-",
    "xoxb-",
];

/// `text` without what must not be read.
pub fn redacted(text: &str, known: &[Secret]) -> String {
    let mut text = text.to_owned();
    let known = known.iter().map(Secret::reveal);
    for secret in known.filter(|secret| secret.len() >= KNOWN_BYTES_MIN) {
        text = text.replace(secret, HIDDEN);
    }
    let mut is_key = false;
    let mut awaits_value = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        let begins = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY");
        if begins {
            is_key = !line.contains("-----END ");
            lines.push(HIDDEN.to_owned());
        } else if is_key {
            is_key = !line.contains("-----END ");
        } else {
            let hidden = if awaits_value {
                first_value(line)
            } else {
                line.to_owned()
            };
            awaits_value = ends_with_option(line);
            lines.push(words(&addresses(&values(&hidden))));
        }
    }
    let mut safe = lines.join("\n");
    if text.ends_with('\n') {
        safe.push('\n');
    }
    safe
}

/// Values that stand behind a name of a secret: `token = "x"`, `"password": "x"`, `PASSWORD=x`,
/// `Authorization: Bearer x`, `--token x`.
fn values(line: &str) -> String {
    let mut safe = String::new();
    let mut rest = line;
    while let Some((before, name, after)) = next_name(rest) {
        safe.push_str(before);
        safe.push_str(name);
        let is_argument = is_option(name) && !after.trim_start().starts_with([':', '=']);
        let (between, value, behind) = if is_argument {
            argument(after)
        } else {
            value_of(after)
        };
        safe.push_str(between);
        // Behind an option stands its value, however short.
        let bytes_min = if is_option(name) { 1 } else { VALUE_BYTES_MIN };
        safe.push_str(if value.len() >= bytes_min {
            HIDDEN
        } else {
            value
        });
        rest = behind;
    }
    safe + rest
}

/// Returns whether a name is an option of a command line: `--token`, `-token`.
fn is_option(name: &str) -> bool {
    name.trim_start_matches('-').len() < name.len()
}

/// Characters between an option and its value, in a command line, a list of words or a file of
/// `/proc`.
const BETWEEN: &[char] = &[' ', '\t', '\0', '"', '\'', '\\', ','];

/// Splits the text behind an option into separator, value and rest, where the value is the next
/// word: `--token x`, `"--token", "x"`.
fn argument(after: &str) -> (&str, &str, &str) {
    let value = after.trim_start_matches(BETWEEN);
    let (between, _) = after.split_at(after.len() - value.len());
    let ends: &[char] = match between.chars().last() {
        // An option without a value, or the name goes on: `--token)`.
        None => return ("", "", after),
        Some(quote @ ('"' | '\'')) => &[quote, '\\'],
        Some(_) => &[' ', '\t', '\0', '"', '\'', '\\', ',', ']'],
    };
    let (value, behind) = value.split_at(value.find(ends).unwrap_or(value.len()));
    // Another option follows. Few secrets begin with a dash, and those have capitals or digits.
    let is_plain = |c: char| c.is_ascii_lowercase() || c == '-';
    if value.starts_with('-')
        && value
            .split('=')
            .next()
            .unwrap_or(value)
            .chars()
            .all(is_plain)
    {
        return ("", "", after);
    }
    (between, value, behind)
}

/// Returns whether the last word of a line is an option whose value follows in the next line, as in
/// a list of YAML or JSON.
fn ends_with_option(line: &str) -> bool {
    let line = line.trim_end_matches(BETWEEN);
    let word = line
        .rsplit([' ', '"', '\'', '[', ','])
        .next()
        .unwrap_or(line);
    is_option(word)
        && next_name(word).is_some_and(|(_, name, rest)| name == word && rest.is_empty())
}

/// A line of a list whose value is a secret: `- x`, `"x",`.
fn first_value(line: &str) -> String {
    let value = line.trim_start_matches([' ', '\t', '"', '\'']);
    let value = value.strip_prefix("- ").unwrap_or(value);
    let value = value.trim_start_matches([' ', '"', '\'']);
    let end = value.find(['"', '\'', ',']).unwrap_or(value.len());
    if end == 0 {
        return line.to_owned();
    }
    let (before, _) = line.split_at(line.len() - value.len());
    let (_, behind) = value.split_at(end);
    format!("{before}{HIDDEN}{behind}")
}

/// Splits a text at the next name of a secret: text before it, name, text after it.
fn next_name(text: &str) -> Option<(&str, &str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut from = 0;
    loop {
        let rest = text.get(from..)?;
        let start = from + rest.find(is_part)?;
        let rest = text.get(start..)?;
        let end = start + rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let name = text.get(start..end)?;
        let lower = name.to_ascii_lowercase();
        let speaks = NAMES.iter().any(|word| lower.contains(word));
        if speaks && !PLACES.iter().any(|word| lower.contains(word)) {
            return Some((text.get(..start)?, name, text.get(end..)?));
        }
        from = end;
    }
}

/// Splits the text after a name: separator, value, rest. The value is empty if none follows.
fn value_of(after: &str) -> (&str, &str, &str) {
    let nothing = ("", "", after);
    let no_quote = after.trim_start_matches(['"', '\'', '\\', ' ']);
    let Some(value) = no_quote.strip_prefix([':', '=']) else {
        return nothing;
    };
    let value = value.trim_start_matches(' ');
    let value = value.trim_start_matches('\\');
    let (value, ends): (&str, &[char]) = match value.strip_prefix(['"', '\'']) {
        Some(quoted) => (quoted, &['"', '\'', '\\']),
        None => (value, &[' ', ',', ';', '&', '"', '\'', '}', ']', ')']),
    };
    // The scheme of a header is no secret, what follows it is.
    let scheme = ["Bearer ", "bearer ", "Basic ", "basic "];
    let value = scheme
        .iter()
        .find_map(|word| value.strip_prefix(word))
        .unwrap_or(value);
    let end = value.find(ends).unwrap_or(value.len());
    let start = after.len() - value.len();
    match (after.get(..start), value.get(..end), value.get(end..)) {
        (Some(between), Some(value), Some(behind)) => (between, value, behind),
        _ => nothing,
    }
}

/// `scheme://user:password@host`.
fn addresses(line: &str) -> String {
    let mut safe = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("://") {
        safe.push_str(before);
        safe.push_str("://");
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '/' | '"' | '\'' | '?'));
        let authority = after.get(..end.unwrap_or(after.len())).unwrap_or_default();
        rest = match authority.rsplit_once('@') {
            Some((_, host)) => {
                safe.push_str(HIDDEN);
                safe.push('@');
                after
                    .get(authority.len() - host.len()..)
                    .unwrap_or_default()
            }
            None => after,
        };
    }
    safe + rest
}

/// Words that are secrets by their looks.
fn words(line: &str) -> String {
    let is_part =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '+' | '/' | '=');
    let mut safe = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let begin = rest.find(is_part).unwrap_or(rest.len());
        let (between, word) = rest.split_at(begin);
        safe.push_str(between);
        let (word, after) = word.split_at(word.find(|c| !is_part(c)).unwrap_or(word.len()));
        let is_secret = word.len() >= 12
            && BEGINNINGS.iter().any(|beginning| {
                word.starts_with(beginning) || word.contains(&format!("={beginning}"))
            });
        safe.push_str(if is_secret { HIDDEN } else { word });
        rest = after;
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_wherever_they_stand() {
        for (text, safe) in [
            ("token = \"abcdefgh\"", "token = \"(hidden)\""),
            (
                "{\"password\": \"a b c d e\", \"x\": 1}",
                "{\"password\": \"(hidden)\", \"x\": 1}",
            ),
            (
                "{\\\"api_key\\\":\\\"abcdefgh\\\"}",
                "{\\\"api_key\\\":\\\"(hidden)\\\"}",
            ),
            ("K3S_TOKEN=abcdefgh DEBUG=1", "K3S_TOKEN=(hidden) DEBUG=1"),
            (
                "Authorization: Bearer abcdefgh",
                "Authorization: Bearer (hidden)",
            ),
            (
                "GET https://me:hunter2@host/x?token=abcdefgh&y=1",
                "GET https://(hidden)@host/x?token=(hidden)&y=1",
            ),
            ("dial clt_0123456789ab failed", "dial (hidden) failed"),
            (
                "got eyJhbGciOiJIUzI1NiJ9.e30.abc, retry",
                "got (hidden), retry",
            ),
            (
                "-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nnext\n",
                "(hidden)\nnext\n",
            ),
            (
                "k3s agent --token abcdefgh --debug",
                "k3s agent --token (hidden) --debug",
            ),
            (
                "k3s agent --token=abcdefgh --debug",
                "k3s agent --token=(hidden) --debug",
            ),
            ("k3s agent -token abc x", "k3s agent -token (hidden) x"),
            ("k3s agent -token=abc x", "k3s agent -token=(hidden) x"),
            (
                "run --db-password 'a b' --x",
                "run --db-password '(hidden)' --x",
            ),
            ("run --token -aB3def --x", "run --token (hidden) --x"),
            (
                "[\"--token\",\"abcdefgh\",\"x\"]",
                "[\"--token\",\"(hidden)\",\"x\"]",
            ),
            (
                "['--token', 'abcdefgh', 'x']",
                "['--token', '(hidden)', 'x']",
            ),
            ("k3s\0--token\0abcdefgh\0x", "k3s\0--token\0(hidden)\0x"),
            (
                "args:\n- --token\n- abcdefgh\n- next\n",
                "args:\n- --token\n- (hidden)\n- next\n",
            ),
            (
                "[\n  \"--token\",\n  \"abcdefgh\",\n  \"next\"\n]",
                "[\n  \"--token\",\n  \"(hidden)\",\n  \"next\"\n]",
            ),
            ("it says my-own-word here", "it says (hidden) here"),
        ] {
            assert_eq!(redacted(text, &[Secret::new("my-own-word")]), safe);
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "the control plane refuses the token: 401",
            "pipeops.token_file = /etc/pipeops-agent/token",
            "link: ready -> waiting (no pong for 20 s); next attempt in 4.2 s",
            "https://api.example.com/x?y=1",
            "k3s agent --token-file /run/token --debug",
            "k3s agent --token --debug",
            "- a list\n- of words",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
            "",
        ] {
            assert_eq!(redacted(text, &[Secret::new("")]), text);
        }
    }

    #[test]
    fn any_text_is_read_to_its_end() {
        for text in [
            "token",
            "token=",
            "token=\"",
            "://@",
            "a://b@",
            "Ω token: Ωωωωωωωω Ω",
            "eyJ",
        ] {
            assert!(redacted(text, &[]).len() <= text.len() + HIDDEN.len());
        }
    }

    /// Written out, so that a pattern that is lost is a test that fails.
    #[test]
    fn every_pattern_hides_what_it_is_there_for() {
        for name in [
            "password",
            "passwd",
            "passphrase",
            "secret",
            "token",
            "api_key",
            "apikey",
            "api-key",
            "private_key",
            "credential",
            "authorization",
        ] {
            for name in [name.to_owned(), format!("MY_{}", name.to_uppercase())] {
                let text = format!("{name}=abcdef rest");
                assert_eq!(redacted(&text, &[]), format!("{name}=(hidden) rest"));
            }
        }
        for word in [
            "clt_01234567",
            "eyJhbGciOiJI",
            "K10a1b2c3d4e",
            "ghp_01234567",
            "github_pat_0",
            "glpat-012345",
            "xoxb-0123456",
        ] {
            assert_eq!(redacted(&format!("a {word}, b"), &[]), "a (hidden), b");
            let text = format!("a --option={word} b");
            assert_eq!(redacted(&text, &[]), "a (hidden) b");
        }
        for name in [
            "token_file",
            "token-file",
            "token_path",
            "secret_dir",
            "secret_name",
            "token_expiration",
            "token_valid_until",
        ] {
            let text = format!("{name} = /etc/pipeops-agent");
            assert_eq!(redacted(&text, &[]), text);
        }
    }

    #[test]
    fn a_value_is_hidden_from_its_sixth_byte_on_and_a_word_from_its_twelfth() {
        for (text, safe) in [
            ("token=abcde", "token=abcde"),
            ("token=abcdef", "token=(hidden)"),
            ("clt_1234567", "clt_1234567"),
            ("clt_12345678", "(hidden)"),
        ] {
            assert_eq!(redacted(text, &[]), safe);
        }
        let known = |word| redacted("it is abcdef", &[Secret::new(word)]);
        assert_eq!(known("abcde"), "it is abcdef");
        assert_eq!(known("abcdef"), "it is (hidden)");
    }
}
