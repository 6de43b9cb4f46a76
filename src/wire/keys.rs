//! Credentials of the dashboard, as stored in a note: hashes only.

use serde::{Deserialize, Serialize};

use super::json;
use crate::core::{
    authorization::{
        Role,
        keys::{
            Credentials, Guesses, Hash, Password, SESSION_LIFE, Session, TOKEN_LIFE, Token, ahead,
            behind, kept,
        },
    },
    format::hex,
    time::{Now, Wall},
};

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Shape {
    password: Option<PasswordShape>,
    tokens: Vec<KeyShape>,
    sessions: Vec<KeyShape>,
    guesses: Vec<GuessesShape>,
}

#[derive(Deserialize, Serialize)]
struct PasswordShape {
    salt: String,
    hash: String,
    rounds: u32,
    role: String,
}

#[derive(Deserialize, Serialize)]
struct KeyShape {
    sha256: String,
    role: String,
    until_ms: i64,
}

#[derive(Deserialize, Serialize)]
struct GuessesShape {
    source: String,
    count: u32,
    last_ms: i64,
}

/// The note.
pub fn write(keys: &Credentials, now: Now) -> String {
    let key = |hash: &Hash, role: Role, until| KeyShape {
        sha256: hex(&hash.0),
        role: role.as_str().to_owned(),
        until_ms: kept(until, now).millis(),
    };
    let password = keys.password.as_ref().map(|password| PasswordShape {
        salt: hex(&password.salt),
        hash: hex(&password.hash),
        rounds: password.rounds,
        role: password.role.as_str().to_owned(),
    });
    let tokens = keys.tokens.iter();
    let sessions = keys.sessions.iter();
    let guesses = keys.guesses.iter().map(|guesses| GuessesShape {
        source: guesses.source.clone(),
        count: guesses.count,
        last_ms: now.wall.millis().saturating_sub(
            i64::try_from(now.mono.since(guesses.last).as_millis()).unwrap_or(i64::MAX),
        ),
    });
    let shape = Shape {
        password,
        tokens: tokens
            .map(|one| key(&one.hash, one.role, one.until))
            .collect(),
        sessions: sessions
            .map(|one| key(&one.hash, one.role, one.until))
            .collect(),
        guesses: guesses.collect(),
    };
    // Texts and numbers: this does not fail.
    serde_json::to_string(&shape).unwrap_or_default()
}

/// Reads a note; `None` if it is not valid.
pub fn read(note: &str, now: Now) -> Option<Credentials> {
    let shape: Shape = json::read(note).ok()?;
    let mut keys = Credentials::default();
    if let Some(password) = shape.password {
        keys.password = Some(Password {
            salt: bytes(&password.salt)?,
            hash: bytes(&password.hash)?,
            rounds: password.rounds,
            role: Role::of_login(&password.role)?,
        });
    }
    for key in shape.tokens {
        keys.tokens.push(Token {
            hash: Hash(bytes(&key.sha256)?),
            role: Role::of_login(&key.role)?,
            until: ahead(Wall::from_millis(key.until_ms), TOKEN_LIFE, now),
        });
    }
    for key in shape.sessions {
        let hash = Hash(bytes(&key.sha256)?);
        keys.sessions.push(Session {
            name: hash.name(),
            hash,
            role: Role::of_login(&key.role)?,
            until: ahead(Wall::from_millis(key.until_ms), SESSION_LIFE, now),
        });
    }
    keys.guesses = shape
        .guesses
        .into_iter()
        .map(|guesses| Guesses {
            source: guesses.source,
            count: guesses.count,
            last: behind(Wall::from_millis(guesses.last_ms), now),
        })
        .collect();
    Some(keys)
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Mono;
    use std::time::Duration;

    #[test]
    fn what_was_kept_comes_back_and_anything_else_is_nothing() {
        let now = Now {
            mono: Mono::since_boot(Duration::from_secs(1000)),
            wall: Wall::from_millis(1_700_000_000_000),
        };
        let mut keys = Credentials {
            password: Some(Password {
                salt: [7; 16],
                hash: [8; 32],
                rounds: 600_000,
                role: Role::Viewer,
            }),
            ..Credentials::default()
        };
        keys.issue(Hash([1; 32]), Role::Operator, now.mono);
        keys.open(Hash([2; 32]), Role::Viewer, now.mono);
        keys.guess("192.0.2.1", now.mono);
        let note = write(&keys, now);
        assert_eq!(read(&note, now), Some(keys));
        for broken in ["", "{", &note.replace("0808", "zz08")] {
            assert_eq!(read(broken, now), None, "{broken}");
        }
    }
}
