//! The signed list of a release: besides what every signed list has, its version, and who gets it.
//!
//! ```text
//! # version 0.2.0
//! # withdrawn 0.1.1 0.1.2
//! # rollout 100
//! ```

use ring::digest::{SHA256, digest};

use super::{
    Version,
    signed::{Signed, SignedFile, Trust, meaningless, unusable},
};
use crate::{
    core::time::{DAY_MS, Wall},
    error::Result,
};

/// Longest program, or package of it: more is not one.
pub const PROGRAM_BYTES_MAX: u64 = 64 << 20;

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
    /// Versions that nobody shall install.
    pub withdrawn: Vec<Version>,
    signed: Signed,
}

/// Trigger of an update.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trigger {
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
    /// Versions that the newest list withdrew which was seen here.
    pub withdrawn: &'a [Version],
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
    Install,
    /// It is installed already.
    Current,
    /// It is not, for this reason.
    Held(String),
}

const SUBJECT: &str = "the list of the release";

impl List {
    /// Reads a list, if it is signed by the trusted key or one that follows it, and not older than
    /// what was seen before.
    pub fn verified(text: &[u8], signature: &[u8], trust: &Trust) -> Result<Self> {
        let signed = Signed::verified(SUBJECT, text, signature, trust)?;
        let bad = |word: &str, value: &str| meaningless(SUBJECT, &format!("# {word} {value}"));
        let Some(version) = signed.facts("version").last() else {
            return Err(
                unusable(SUBJECT, "it has no version, which an update needs")
                    .fix("update by the package manager or install.sh, as docs/update.md says"),
            );
        };
        let version = version.parse().map_err(|()| bad("version", version))?;
        let withdrawn = signed.facts("withdrawn").flat_map(str::split_whitespace);
        let withdrawn = withdrawn.map(|text| {
            let version = text.parse::<Version>();
            version.map_err(|()| bad("withdrawn", text))
        });
        let rollout = match signed.facts("rollout").last() {
            Some(value) => value.parse().ok().ok_or_else(|| bad("rollout", value))?,
            None => 100,
        };
        Ok(Self {
            version,
            rollout,
            withdrawn: withdrawn.collect::<Result<_>>()?,
            sequence: signed.sequence,
            keys: signed.keys,
            expires: signed.expires,
            signed,
        })
    }

    /// The program for a system such as `linux-amd64`.
    pub fn program(&self, system: &str) -> Result<SignedFile> {
        self.file(&format!("pipeops-agent-{}-{system}", self.version))
    }

    /// The file of that name.
    pub fn file(&self, name: &str) -> Result<SignedFile> {
        let file = self.signed.file(name);
        file.filter(|file| file.bytes <= PROGRAM_BYTES_MAX)
            .ok_or_else(|| unusable(SUBJECT, format!("it has no {name} with its length")))
    }

    /// Decides whether this release is installed.
    pub fn choose(&self, machine: &Machine<'_>, occasion: Trigger) -> Choice {
        let version = self.version;
        let held = |why: &str| Choice::Held(format!("{version} is not installed: {why}"));
        if version == machine.current {
            return Choice::Current;
        }
        if self.withdrawn.contains(&version) || machine.withdrawn.contains(&version) {
            return held("it was withdrawn");
        }
        if version < machine.current {
            return held(&format!(
                "{} is installed, and an update never goes back; to go back on purpose: install.sh --version {version}",
                machine.current
            ));
        }
        if occasion == Trigger::ByHand {
            return Choice::Install;
        }
        if let Some(why) = self.expired(machine.now) {
            return held(&why);
        }
        if machine.banned.contains(&version) {
            return held(
                "it failed on this machine before; to install it anyway: sudo pipeops-agent update",
            );
        }
        // It lasts a day. A longer one was noted while the clock was ahead.
        let rest = machine
            .not_before
            .millis()
            .saturating_sub(machine.now.millis());
        if (1..=DAY_MS).contains(&rest) {
            return held(&format!(
                "the last try failed for a reason that may pass; the next is after {}",
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

    /// Warning that this list is too old, if it expired before `now`.
    pub fn expired(&self, now: Wall) -> Option<String> {
        (now > self.expires).then(|| {
            let at = self.expires.rfc3339();
            format!("the list of the release expired at {at}, so a newer one may be withheld from this machine")
        })
    }

    /// Returns whether that version was withdrawn.
    pub fn withdraws(&self, version: Version) -> bool {
        self.withdrawn.contains(&version)
    }
}

/// The place of a machine in the order of a rollout, from 0 to 99: another one for each version.
fn bucket(seed: &str, version: Version) -> u8 {
    let hash = digest(&SHA256, format!("{seed} {version}").as_bytes());
    let number = hash.as_ref().iter().take(4).fold(0_u32, |number, byte| {
        number.wrapping_shl(8) | u32::from(*byte)
    });
    u8::try_from(number % 100).unwrap_or(0)
}
