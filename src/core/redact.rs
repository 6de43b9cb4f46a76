//! What a stranger must not read in a text that leaves this machine: tokens, passwords, keys.
//!
//! It hides too much rather than too little. What a secret looks like is guessed; those that are known are hidden wherever they stand.

use super::secret::Secret;

const HIDDEN: &str = "(hidden)";
/// A shorter text is a word that stands in many places.
const KNOWN_BYTES_MIN: usize = 6;
/// A shorter value behind a name that speaks of secrets is a number or a word of a sentence: `the token: 401`.
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
/// What says that such a name is only about the place of a secret.
const PLACES: &[&str] = &[
    "_file",
    "-file",
    "_path",
    "_dir",
    "_name",
    "expiration",
    "_until",
];
/// How words begin that are secrets by themselves.
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
    let mut lines = Vec::new();
    for line in text.lines() {
        let begins = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY");
        if begins {
            is_key = !line.contains("-----END ");
            lines.push(HIDDEN.to_owned());
        } else if is_key {
            is_key = !line.contains("-----END ");
        } else {
            lines.push(words(&addresses(&values(line))));
        }
    }
    let mut safe = lines.join("\n");
    if text.ends_with('\n') {
        safe.push('\n');
    }
    safe
}

/// Values that stand behind a name of a secret: `token = "x"`, `"password": "x"`, `PASSWORD=x`, `Authorization: Bearer x`.
fn values(line: &str) -> String {
    let mut safe = String::new();
    let mut rest = line;
    while let Some((before, name, after)) = next_name(rest) {
        safe.push_str(before);
        safe.push_str(name);
        let (between, value, behind) = value_of(after);
        safe.push_str(between);
        safe.push_str(if value.len() >= VALUE_BYTES_MIN {
            HIDDEN
        } else {
            value
        });
        rest = behind;
    }
    safe + rest
}

/// What stands before the next name of a secret, the name, and what stands behind it.
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

/// What stands between a name and its value, the value, and the rest. The value is empty where none follows.
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
}
