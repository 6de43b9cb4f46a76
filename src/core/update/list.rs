//! The signed list of a release: lines of `sha256sum`, and before them what `sha256sum` skips.
//!
//! ```text
//! # version 0.2.0
//! # sequence 1766000000
//! # expires 2027-01-01T00:00:00Z
//! # withdrawn 0.1.1 0.1.2
//! # rollout 100
//! # key 1 RWQ… RWT…
//! # bytes 7407616 pipeops-agent-0.2.0-linux-amd64
//! 4f5e…  pipeops-agent-0.2.0-linux-amd64
//! ```
//!
//! `key` lines replay all changes of the signing key in order: each has the new key, and the
//! signature of the key before it over `pipeops-agent key 1 RWQ…`.

use ring::digest::{SHA256, digest};

use super::{Version, signature::PublicKey};
use crate::{
    core::time::Wall,
    error::{Error, Result, Retry},
};

/// Longest list, and longest signature file.
pub const BYTES_MAX: usize = 64 * 1024;
/// Longest program: more is not one.
pub const PROGRAM_BYTES_MAX: u64 = 64 << 20;

/// Trust before a list is read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trust {
    /// The key that everything begins with.
    pub key: PublicKey,
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
pub struct List {
    /// Version of the release.
    pub version: Version,
    /// Its place in the order of lists.
    pub sequence: u64,
    /// Changes of the signing key so far.
    pub keys: u32,
    /// Time after which nothing is installed by itself.
    pub expires: Wall,
    /// Share of machines that install it by themselves, in percent.
    pub rollout: u8,
    withdrawn: Vec<Version>,
    files: Vec<(String, String)>,
    bytes: Vec<(String, u64)>,
}

/// A file of a release.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Exact length.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

/// Occasion of an update.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Occasion {
    /// The timer.
    Automatic,
    /// Somebody runs the command.
    ByHand,
}

/// This machine, as far as the choice depends on it.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// Version that is installed.
    pub current: Version,
    /// Versions that failed here.
    pub banned: &'a [Version],
    /// Before this time nothing is tried again by itself.
    pub not_before: Wall,
    /// Any text that stays the same on this machine.
    pub seed: &'a str,
    /// Current time.
    pub now: Wall,
}

/// Decision on the installation of a release.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Choice {
    /// It is.
    Install,
    /// It is installed already.
    Current,
    /// It is not, for this reason.
    Held(String),
}

fn odd(why: impl Into<String>) -> Error {
    Error::new("the list of the release cannot be used").why(why)
}

impl List {
    /// Reads a list, if it is signed by the trusted key or one that follows it, and not older than
    /// what was seen before.
    pub fn verified(text: &[u8], signature: &[u8], trust: &Trust) -> Result<Self> {
        let unsigned = || {
            odd("its signature is not good, so nothing of it was used")
                .fix("try again later; if that does not help, tell security@pipeops.io")
                .retry(Retry::Later)
        };
        let text = std::str::from_utf8(text).map_err(|error| unsigned().because(&error))?;
        let signature = String::from_utf8_lossy(signature);
        let signature = signature.lines().nth(1).unwrap_or_default();
        let (key, keys) = last_key(text, &trust.key);
        if !key.has_signed(text.as_bytes(), signature) {
            return Err(unsigned());
        }
        let list = Self::parse(text)?;
        let is_test = text.lines().any(|line| line == "# test");
        if is_test && trust.origin == KeyOrigin::BuiltIn {
            return Err(odd("it is a test release"));
        }
        if list.sequence < trust.sequence || keys < trust.keys {
            return Err(odd(format!(
                "it is older than one that was seen before (sequence {} after {})",
                list.sequence, trust.sequence
            ))
            .fix("nothing to do if it is newer tomorrow; else somebody serves old releases: look at update.url, proxies and DNS")
            .retry(Retry::Later));
        }
        Ok(Self { keys, ..list })
    }

    fn parse(text: &str) -> Result<Self> {
        let mut list = Self {
            rollout: 100,
            ..Self::default()
        };
        let (mut has_version, mut has_sequence, mut has_end) = (false, false, false);
        for line in text.lines() {
            let bad = || odd(format!("its line {line:?} has no meaning"));
            let Some(head) = line.strip_prefix("# ") else {
                let (sha256, name) = line.split_once("  ").ok_or_else(bad)?;
                list.files.push((name.to_owned(), sha256.to_owned()));
                continue;
            };
            let (word, value) = head.split_once(' ').unwrap_or((head, ""));
            match word {
                "version" => {
                    list.version = value.parse().map_err(|()| bad())?;
                    has_version = true;
                }
                "sequence" => {
                    list.sequence = value.parse().ok().ok_or_else(bad)?;
                    has_sequence = true;
                }
                "expires" => {
                    list.expires = Wall::parse_rfc3339(value).ok_or_else(bad)?;
                    has_end = true;
                }
                "withdrawn" => {
                    let versions = value.split_whitespace();
                    let versions = versions.map(|text| text.parse().map_err(|()| bad()));
                    list.withdrawn = versions.collect::<Result<_>>()?;
                }
                "rollout" => list.rollout = value.parse().ok().ok_or_else(bad)?,
                "bytes" => {
                    let (bytes, name) = value.split_once(' ').ok_or_else(bad)?;
                    let bytes = bytes.parse().ok().ok_or_else(bad)?;
                    list.bytes.push((name.to_owned(), bytes));
                }
                // Words of later versions.
                _ => {}
            }
        }
        if has_version && has_sequence && has_end {
            Ok(list)
        } else {
            Err(
                odd("it has no version, sequence and expires, which an update needs")
                    .fix("update by the package manager or install.sh, as docs/update.md says"),
            )
        }
    }

    /// The program for a system such as `linux-amd64`.
    pub fn program(&self, system: &str) -> Result<Program> {
        let name = format!("pipeops-agent-{}-{system}", self.version);
        let (sha256, bytes) = (only(&self.files, &name), only(&self.bytes, &name));
        match (sha256, bytes) {
            (Some(sha256), Some(bytes)) if bytes <= PROGRAM_BYTES_MAX => Ok(Program {
                name,
                bytes,
                sha256,
            }),
            _ => Err(odd(format!("it has no {name} with its length"))),
        }
    }

    /// Decides whether this release is installed.
    pub fn choose(&self, machine: &Machine<'_>, occasion: Occasion) -> Choice {
        let version = self.version;
        let held = |why: &str| Choice::Held(format!("{version} is not installed: {why}"));
        if self.withdrawn.contains(&version) {
            return held("it was withdrawn");
        }
        if version == machine.current {
            return Choice::Current;
        }
        if version < machine.current {
            return held(&format!(
                "{} is installed, and an update never goes back; to go back on purpose: install.sh --version {version}",
                machine.current
            ));
        }
        if occasion == Occasion::ByHand {
            return Choice::Install;
        }
        if machine.now > self.expires {
            return held(&format!(
                "the list of the release expired at {}, so a newer one may be withheld from this machine",
                self.expires.rfc3339()
            ));
        }
        if machine.banned.contains(&version) {
            return held("it failed on this machine before; by hand: sudo pipeops-agent update");
        }
        if machine.now < machine.not_before {
            return held(&format!(
                "the last try could not reach the control plane; the next is after {}",
                machine.not_before.rfc3339()
            ));
        }
        if bucket(machine.seed, version) >= self.rollout {
            return held(&format!(
                "it reaches {} % of all machines so far, and this one later",
                self.rollout
            ));
        }
        Choice::Install
    }

    /// Returns whether that version was withdrawn.
    pub fn withdraws(&self, version: Version) -> bool {
        self.withdrawn.contains(&version)
    }
}

/// The value of the only entry of that name.
fn only<T: Clone>(all: &[(String, T)], name: &str) -> Option<T> {
    let mut found = all.iter().filter(|(of, _)| of == name);
    let one = found.next()?;
    found.next().is_none().then(|| one.1.clone())
}

/// The key that follows from `first` by the changes that the list replays, and their number. A line that is not signed by the key before
/// it ends nothing: what precedes a built-in key cannot be verified any more.
fn last_key(text: &str, first: &PublicKey) -> (PublicKey, u32) {
    let mut last = (first.clone(), 0);
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
        if count > last.1 && last.0.has_signed(message.as_bytes(), signature) {
            last = (next, count);
        }
    }
    last
}

/// The place of a machine in the order of a rollout, from 0 to 99: another one for each version.
fn bucket(seed: &str, version: Version) -> u8 {
    let hash = digest(&SHA256, format!("{seed} {version}").as_bytes());
    let number = hash.as_ref().iter().take(4).fold(0_u32, |number, byte| {
        number.wrapping_shl(8) | u32::from(*byte)
    });
    u8::try_from(number % 100).unwrap_or(0)
}
