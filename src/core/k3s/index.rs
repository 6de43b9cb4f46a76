//! Signed index of releases of k3s: which versions a channel means, and length and hash of each
//! program. k3s signs nothing itself.
//!
//! ```text
//! # role k3s-index
//! # sequence 1766000000
//! # expires 2027-01-01T00:00:00Z
//! # channel stable v1.34.4+k3s1
//! # withdrawn v1.34.3+k3s1
//! # bytes 73138176 v1.34.4+k3s1/k3s-arm64
//! 4f5e…  v1.34.4+k3s1/k3s-arm64
//! ```

use std::fmt;

use super::{Names, Version};
use crate::{
    core::{
        time::Wall,
        update::signed::{Signed, SignedFile, Trust},
    },
    error::{Error, Result, Retry},
};

/// Name of the index; its signature has `.minisig` after it.
pub const FILE: &str = "k3s-index";
/// Longest program: k3s has 70 MB.
pub const PROGRAM_BYTES_MAX: u64 = 512 << 20;
/// Version that is installed where nothing else is named.
pub const PINNED: Version = Version {
    major: 1,
    minor: 34,
    patch: 4,
    release: 1,
};

/// Distinguishes an index from the list of a release, which the same key signs.
const ROLE: &str = "k3s-index";
const SUBJECT: &str = "the index of k3s";

/// An index whose signature was verified.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Index {
    /// Its place in the order of indexes.
    pub sequence: u64,
    /// Changes of the signing key so far.
    pub keys: u32,
    signed: Signed,
}

/// A version by its number or by a channel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Choice {
    Version(Version),
    /// The one that the channel means today.
    Channel(Channel),
}

/// A channel of k3s.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Channel {
    /// Recommendation of k3s.
    Stable,
    /// The newest.
    Latest,
    /// The last patch of a minor version.
    Minor(u32, u32),
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stable => f.write_str("stable"),
            Self::Latest => f.write_str("latest"),
            Self::Minor(major, minor) => write!(f, "v{major}.{minor}"),
        }
    }
}

impl std::str::FromStr for Channel {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let minor = |text: &str| {
            let (major, minor) = text.strip_prefix('v')?.split_once('.')?;
            Some(Self::Minor(major.parse().ok()?, minor.parse().ok()?))
        };
        match text {
            "stable" => Ok(Self::Stable),
            "latest" => Ok(Self::Latest),
            // One form only: +1 and 01 are numbers for the parser, too.
            _ => minor(text)
                .filter(|channel| channel.to_string() == text)
                .ok_or(()),
        }
    }
}

impl Index {
    /// Reads an index that is signed, not older than one that was seen before, and of today.
    pub fn verified(text: &[u8], signature: &[u8], trust: &Trust, now: Wall) -> Result<Self> {
        let signed = Signed::verified(SUBJECT, text, signature, trust)?;
        if signed.facts("role").ne([ROLE]) {
            return Err(unusable("it is a signed list of something else"));
        }
        if now > signed.expires {
            let end = signed.expires.rfc3339();
            return Err(unusable(format!(
                "it expired at {end}, so newer versions may be withheld from this machine"
            ))
            .fix("check k3s.index, proxies and the clock; or name version and hash: --version VERSION --sha256 HEX")
            .retry(Retry::Later));
        }
        Ok(Self {
            sequence: signed.sequence,
            keys: signed.keys,
            signed,
        })
    }

    /// The version that is meant.
    pub fn version(&self, choice: Choice) -> Result<Version> {
        let version = match choice {
            Choice::Version(version) => version,
            Choice::Channel(channel) => self.of_channel(channel)?,
        };
        let mut withdrawn = self
            .signed
            .facts("withdrawn")
            .flat_map(str::split_whitespace);
        if withdrawn.any(|text| text.parse() == Ok(version)) {
            return Err(Error::new(format!("k3s {version} was withdrawn"))
                .why("the index says that it must not be installed")
                .fix("take another version; to install it anyway, name its hash: --sha256 HEX"));
        }
        Ok(version)
    }

    fn of_channel(&self, channel: Channel) -> Result<Version> {
        let name = channel.to_string();
        let mut channels = self.signed.facts("channel");
        let found = channels.find_map(|fact| {
            let (of, version) = fact.split_once(' ')?;
            (of == name).then(|| version.parse::<Version>().ok())?
        });
        found.ok_or_else(|| {
            let names = self.signed.facts("channel");
            let names: Vec<_> = names.filter_map(|fact| fact.split(' ').next()).collect();
            Error::new(format!("{SUBJECT} has no channel {name}"))
                .fix(format!("its channels: {}", names.join(", ")))
        })
    }

    /// The program of a version for this machine.
    pub fn program(&self, version: Version, names: &Names) -> Result<SignedFile> {
        let name = format!("{version}/{}", names.binary);
        let file = self.signed.file(&name);
        file.filter(|file| file.bytes <= PROGRAM_BYTES_MAX && super::is_sha256(&file.sha256))
            .ok_or_else(|| unknown(format!("{SUBJECT} has no {name}"), names))
    }
}

/// The error of a program whose hash nobody says.
pub fn unknown(why: impl Into<String>, names: &Names) -> Error {
    let (list, binary) = (names.checksums, names.binary);
    Error::new("the hash of this k3s is not known").why(why).fix(format!(
        "take a version of the signed index (k3s.index in the settings); or look its hash up in {list} of the release, on another computer: --version VERSION --sha256 HEX (of {binary})"
    ))
}

/// Address of the program of a version below a mirror, as GitHub has it.
pub fn url(mirror: &str, version: Version, names: &Names) -> String {
    let (mirror, version) = (mirror.trim_end_matches('/'), version.to_string());
    format!("{mirror}/{}/{}", version.replace('+', "%2B"), names.binary)
}

fn unusable(why: impl Into<String>) -> Error {
    Error::new(format!("{SUBJECT} cannot be used")).why(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::update::{
        list::List,
        tests::{Signer, list},
    };

    const NOW: i64 = 1_790_000_000_000;

    fn text(head: &str) -> String {
        let hash = "a".repeat(64);
        format!(
            "# role k3s-index\n{head}# sequence 7\n# expires 2027-01-01T00:00:00Z\n# channel stable v1.34.4+k3s1\n# channel v1.35 v1.35.1+k3s1\n\
             # bytes 70 v1.34.4+k3s1/k3s\n{hash}  v1.34.4+k3s1/k3s\n"
        )
    }

    fn read(text: &str, now: i64) -> Result<Index> {
        let key = Signer::new(1);
        let now = Wall::from_millis(now);
        Index::verified(text.as_bytes(), &key.minisig(text), &key.trust(), now)
    }

    #[test]
    fn a_channel_is_a_version_and_a_version_has_a_program() {
        let index = read(&text(""), NOW).unwrap();
        let version = index.version(Choice::Channel(Channel::Stable)).unwrap();
        assert_eq!(version, PINNED);
        let names = super::super::names("x86_64").unwrap();
        assert_eq!(index.program(version, &names).unwrap().bytes, 70);
        let arm = super::super::names("aarch64").unwrap();
        let unknown = index.program(version, &arm).unwrap_err();
        assert!(unknown.sentence().contains("has no v1.34.4+k3s1/k3s-arm64"));
        let fix = unknown.fix.unwrap();
        assert!(
            fix.contains("--sha256") && fix.contains("k3s.index"),
            "{fix}"
        );
        let next = Choice::Channel(Channel::Minor(1, 35));
        assert_eq!(index.version(next).unwrap().patch, 1);
        let none = index.version(Choice::Channel(Channel::Latest)).unwrap_err();
        assert_eq!(none.fix.as_deref(), Some("its channels: stable, v1.35"));
        assert_eq!(
            url("https://a/b/", version, &names),
            "https://a/b/v1.34.4%2Bk3s1/k3s"
        );
    }

    #[test]
    fn a_channel_is_read_in_one_form_only() {
        for name in ["stable", "latest", "v1.35"] {
            assert_eq!(name.parse::<Channel>().unwrap().to_string(), name);
        }
        for wrong in ["", "1.35", "v1", "v1.035", "v1.+5", "v1.35.1", "testing"] {
            assert_eq!(wrong.parse::<Channel>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn no_index_is_used_that_is_old_withdrawn_or_of_another_kind() {
        let error_of = |text: &str, now| read(text, now).unwrap_err().sentence();
        let expired = error_of(&text(""), 1_900_000_000_000);
        assert!(expired.contains("expired at 2027-01-01"), "{expired}");
        let older = text("").replace("sequence 7", "sequence 4");
        assert!(error_of(&older, NOW).contains("sequence 4 after 5"));
        // The same key signs both: neither may stand for the other.
        let other = error_of(&list(""), NOW);
        assert!(other.contains("something else"), "{other}");
        let (key, index) = (Signer::new(1), text(""));
        assert!(List::verified(index.as_bytes(), &key.minisig(&index), &key.trust()).is_err());
        let index = read(&text("# withdrawn v1.0.0+k3s1 v1.34.4+k3s1\n"), NOW).unwrap();
        let withdrawn = index.version(Choice::Version(PINNED)).unwrap_err();
        assert!(withdrawn.sentence().contains("withdrawn"), "{withdrawn:?}");
    }
}
