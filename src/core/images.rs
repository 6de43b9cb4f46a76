//! Digests of images.

use std::fmt;

/// Digest of the manifest of an image: `sha256:` and 64 hexadecimal digits in lower case.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ImageDigest(String);

impl ImageDigest {
    /// The digest that a text is; `None`: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        is_digest(text).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns whether a text is a digest.
pub fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_nothing_but_sha256_and_its_digits() {
        let hex = "0123456789abcdef".repeat(4);
        let digest = format!("sha256:{hex}");
        assert_eq!(ImageDigest::parse(&digest).unwrap().to_string(), digest);
        for other in [
            hex.clone(),
            format!("sha512:{hex}"),
            format!("sha256:{hex}0"),
            format!("sha256:{}", hex.to_uppercase()),
            format!("web@{digest}"),
            format!("{digest}\n"),
            format!("sha256:../{}", "0".repeat(61)),
            String::new(),
        ] {
            assert_eq!(ImageDigest::parse(&other), None, "{other:?}");
        }
    }
}
