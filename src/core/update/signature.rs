//! Signatures of minisign: Ed25519 over the message itself, as `minisign -S -l` makes them.
//!
//! The form over a BLAKE2b hash, which minisign makes without `-l`, is refused: *ring* has no
//! BLAKE2b, and a list is short.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::signature::{ED25519, UnparsedPublicKey};

/// A public key, as in the second line of `minisign.pub`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PublicKey {
    id: [u8; 8],
    key: [u8; 32],
}

impl PublicKey {
    /// Reads a key.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text.trim()).ok()?;
        let (algorithm, rest) = bytes.split_first_chunk::<2>()?;
        let (id, key) = rest.split_first_chunk::<8>()?;
        let key = key.try_into().ok()?;
        (algorithm == b"Ed").then_some(Self { id: *id, key })
    }

    /// Returns whether this key signed `message`; `signature` is the second line of a `.minisig`.
    pub fn has_signed(&self, message: &[u8], signature: &str) -> bool {
        let Ok(bytes) = BASE64.decode(signature.trim()) else {
            return false;
        };
        let Some((algorithm, rest)) = bytes.split_first_chunk::<2>() else {
            return false;
        };
        let Some((id, signature)) = rest.split_first_chunk::<8>() else {
            return false;
        };
        algorithm == b"Ed"
            && *id == self.id
            && UnparsedPublicKey::new(&ED25519, self.key)
                .verify(message, signature)
                .is_ok()
    }
}
