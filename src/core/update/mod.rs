//! Self-update: the signed list of a release, the choice that follows from it, and the trial of a
//! new version.
//!
//! A release is one list, `SHA256SUMS`: its signature covers version, sequence number, end,
//! withdrawals, and name, length and hash of each file, so that nothing of it can be combined with
//! another release.

pub mod list;
pub mod signature;
pub mod signed;
pub mod trial;

use std::{fmt, str::FromStr};

/// A version of this program: `0.2.1`. Versions before a release (`0.2.0-rc.1`) are no updates.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Version {
    numbers: [u32; 3],
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut numbers = [0; 3];
        let mut parts = text.split('.');
        for number in &mut numbers {
            let part = parts.next().ok_or(())?;
            let is_plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            *number = part.parse().ok().filter(|_| is_plain).ok_or(())?;
        }
        parts.next().is_none().then_some(Self { numbers }).ok_or(())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
pub(crate) mod tests;
