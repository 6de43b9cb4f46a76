//! Signed lists: lines of `sha256sum`, and before them facts that `sha256sum` skips.
//!
//! ```text
//! # sequence 1766000000
//! # expires 2027-01-01T00:00:00Z
//! # key 1 RWQ… RWT…
//! # bytes 7407616 pipeops-agent-0.2.0-linux-amd64
//! 4f5e…  pipeops-agent-0.2.0-linux-amd64
//! ```
//!
//! `key` lines replay all changes of the signing key in order: each has the new key, and the
//! signature of the key before it over `pipeops-agent key 1 RWQ…`.

use super::signature::PublicKey;
use crate::{
    core::time::{DAY_MS, Wall},
    error::{Error, Result, Retry},
};

/// Longest list, and longest signature file.
pub const BYTES_MAX: usize = 64 * 1024;

/// Trust before a list is read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trust {
    /// The key that everything begins with.
    pub key: PublicKey,
    /// Changes of the signing key that led to that key.
    pub number: u32,
    /// Origin of that key.
    pub origin: KeyOrigin,
    /// Highest sequence number that was accepted on this machine.
    pub sequence: u64,
    /// Changes of the signing key that were seen on this machine.
    pub keys: u32,
}

/// Origin of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyOrigin {
    /// Built into the program. It signs no test releases.
    BuiltIn,
    /// `update.key` of root's settings.
    Settings,
}

/// A list whose signature was verified.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Signed {
    /// Its place in the order of lists.
    pub sequence: u64,
    /// Changes of the signing key so far.
    pub keys: u32,
    /// Time after which it is too old.
    pub expires: Wall,
    facts: Vec<(String, String)>,
    files: Vec<(String, String)>,
    bytes: Vec<(String, u64)>,
}

/// A file that a list names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SignedFile {
    pub name: String,
    /// Exact length.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

impl Signed {
    /// Reads a list, if it is signed by the trusted key or one that follows it, and not older than
    /// what was seen before. `subject` names the list in errors.
    pub fn verified(subject: &str, text: &[u8], signature: &[u8], trust: &Trust) -> Result<Self> {
        let unusable = |why: String| unusable(subject, why);
        let unsigned = || {
            unusable("its signature is invalid, so nothing of it was used".to_owned())
                .fix("try again later; if that does not help, tell security@pipeops.io")
                .retry(Retry::Later)
        };
        let text = std::str::from_utf8(text).map_err(|error| unsigned().because(&error))?;
        let signature = String::from_utf8_lossy(signature);
        let signature = signature.lines().nth(1).unwrap_or_default();
        let (key, keys) = last_key(text, trust);
        if !key.has_signed(text.as_bytes(), signature) {
            return Err(unsigned());
        }
        let list = Self::parse(subject, text)?;
        let is_test = text.lines().any(|line| line == "# test");
        if is_test && trust.origin == KeyOrigin::BuiltIn {
            return Err(unusable("it is a test release".to_owned()));
        }
        if keys < trust.keys {
            let mut fix =
                "use a list that was signed since: an old one is being served, or kept in a folder"
                    .to_owned();
            if trust.origin == KeyOrigin::Settings {
                fix.push_str("; if update.key is the new key, write its number before it (1 RW…), as the line \"# key\" of the list has it");
            }
            let why = "its key was replaced by another, which this machine has seen".to_owned();
            return Err(unusable(why).fix(fix));
        }
        // A new key begins a new order: whoever had the one before may have signed any number.
        if keys == trust.keys && list.sequence < trust.sequence {
            return Err(list.is_older(subject, trust.sequence));
        }
        Ok(Self { keys, ..list })
    }

    fn parse(subject: &str, text: &str) -> Result<Self> {
        let mut list = Self::default();
        let (mut has_sequence, mut has_end) = (false, false);
        for line in text.lines() {
            let bad = || meaningless(subject, line);
            let Some(head) = line.strip_prefix("# ") else {
                let (sha256, name) = line.split_once("  ").ok_or_else(bad)?;
                list.files.push((name.to_owned(), sha256.to_owned()));
                continue;
            };
            let (word, value) = head.split_once(' ').unwrap_or((head, ""));
            match word {
                "sequence" => {
                    list.sequence = value.parse().ok().ok_or_else(bad)?;
                    has_sequence = true;
                }
                "expires" => {
                    list.expires = Wall::parse_rfc3339(value).ok_or_else(bad)?;
                    has_end = true;
                }
                "bytes" => {
                    let (bytes, name) = value.split_once(' ').ok_or_else(bad)?;
                    let bytes = bytes.parse().ok().ok_or_else(bad)?;
                    list.bytes.push((name.to_owned(), bytes));
                }
                // For the reader of this kind of list, or words of later versions.
                _ => list.facts.push((word.to_owned(), value.to_owned())),
            }
        }
        if has_sequence && has_end {
            Ok(list)
        } else {
            Err(unusable(subject, "it has no sequence and expires")
                .fix("its format is outdated: install manually (docs/install.md)"))
        }
    }

    /// The error of a list that was signed before one that was seen.
    fn is_older(&self, subject: &str, than: u64) -> Error {
        let mut fix = "nothing to do if it is newer tomorrow; otherwise an old list is being served: check the address in the settings, proxies and DNS".to_owned();
        if let Some(version) = self.facts("version").last() {
            fix.push_str("; to use this one on purpose: --to ");
            fix.push_str(version);
        }
        let sequence = self.sequence;
        unusable(
            subject,
            format!("it is older than one that was seen before (sequence {sequence} after {than})"),
        )
        .fix(fix)
        .retry(Retry::Later)
    }

    /// Values of the facts of that name, in order.
    pub fn facts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let facts = self.facts.iter().filter(move |(word, _)| word == name);
        facts.map(|(_, value)| value.as_str())
    }

    /// The only file of that name, if its length is known.
    pub fn file(&self, name: &str) -> Option<SignedFile> {
        Some(SignedFile {
            name: name.to_owned(),
            bytes: only(&self.bytes, name)?,
            sha256: only(&self.files, name)?,
        })
    }
}

/// The sequence number to remember of a list that was accepted: its own, and at most that of a list
/// signed a day from now. `packaging/sign` numbers lists by the second in which it signs them. One
/// from far ahead, by a wrong clock or a stolen key, would make all later ones older for ever.
pub fn remembered(sequence: u64, now: Wall) -> u64 {
    let tomorrow = now.millis().saturating_add(DAY_MS) / 1000;
    sequence.min(u64::try_from(tomorrow).unwrap_or(0))
}

/// The error of a list that cannot be used.
pub(super) fn unusable(subject: &str, why: impl Into<String>) -> Error {
    Error::new(format!("{subject} cannot be used")).why(why)
}

/// The error of a line that makes no sense.
pub(super) fn meaningless(subject: &str, line: &str) -> Error {
    unusable(subject, format!("its line {line:?} has no meaning"))
}

/// The value of the only entry of that name.
fn only<T: Clone>(all: &[(String, T)], name: &str) -> Option<T> {
    let mut found = all.iter().filter(|(of, _)| of == name);
    let one = found.next()?;
    found.next().is_none().then(|| one.1.clone())
}

/// The key that follows from the trusted one by the changes that the list replays, and their
/// number. A line that is not signed by the key before it ends nothing: what precedes a built-in
/// key cannot be verified any more. Numbers follow each other, so that none uses up all others.
fn last_key(text: &str, trust: &Trust) -> (PublicKey, u32) {
    let mut last = (trust.key.clone(), trust.number);
    for line in text.lines() {
        let Some(change) = line.strip_prefix("# key ") else {
            continue;
        };
        let mut words = change.split(' ');
        let (Some(number), Some(key), Some(signature)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let (Ok(count), Some(next)) = (number.parse(), PublicKey::parse(key)) else {
            continue;
        };
        let message = format!("pipeops-agent key {number} {key}\n");
        if last.1.checked_add(1) == Some(count) && last.0.has_signed(message.as_bytes(), signature)
        {
            last = (next, count);
        }
    }
    last
}
