//! Randomness from the kernel.

use ring::rand::{SecureRandom, SystemRandom};

use crate::{
    core::format,
    error::{Error, Result},
};

/// Random bytes that nobody can guess.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        // The error of ring says nothing by design.
        .map_err(|ring::error::Unspecified| Error::new("the kernel gives no random numbers"))?;
    Ok(bytes)
}

/// `N` random bytes as lower-case hexadecimal digits, two a byte.
pub fn hex<const N: usize>() -> Result<String> {
    Ok(format::hex(&bytes::<N>()?))
}

/// A random number for [`crate::core::backoff::Backoff`]. Zero where the kernel has none: then the
/// wait is the shortest one.
pub fn jitter() -> u16 {
    bytes().map_or(0, u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ids_differ_and_are_hexadecimal() {
        let (one, other) = (hex::<8>().unwrap(), hex::<8>().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), 16);
        assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn jitter_is_spread() {
        let distinct: std::collections::BTreeSet<_> = (0..100).map(|_| jitter()).collect();
        assert!(distinct.len() > 80, "{} of 100 differ", distinct.len());
    }
}
