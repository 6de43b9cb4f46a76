//! age v1: header and keys of files that are encrypted to X25519 recipients, as
//! <https://c2sp.org/age> specifies them.
//!
//! Of other kinds of recipients it knows that they are there. [`crate::files::age`] is the stream;
//! random numbers come from there.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    error::Unspecified,
    hkdf::{HKDF_SHA256, Salt},
    hmac,
};
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

mod bech32;

/// Text before a recipient and before an identity.
const RECIPIENT: &str = "age";
const IDENTITY: &str = "age-secret-key-";
const VERSION: &str = "age-encryption.org/v1\n";
const LABEL: &[u8] = b"age-encryption.org/v1/X25519";
/// The longest line of a body in a header.
const COLUMNS: usize = 64;
/// Plain bytes of a chunk, and what encryption adds to each.
pub const CHUNK: usize = 64 * 1024;
/// Length of the tag of a chunk.
pub const TAG: usize = 16;
/// Length of the number before the first chunk.
pub const NONCE: usize = 16;
/// Beginning of every file.
pub const MAGIC: &[u8] = b"age-encryption.org/";

/// Somebody who can read a file: `age1…`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recipient {
    text: String,
    key: [u8; 32],
}

impl Recipient {
    /// Reads a recipient; else the reason.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (prefix, bytes) = bech32::decode(text).ok_or("a letter in it is wrong or missing")?;
        if prefix == IDENTITY {
            return Err("it is a private key, which never belongs on this machine");
        }
        let key = <[u8; 32]>::try_from(bytes);
        let key = key.ok().filter(|_| prefix == RECIPIENT);
        let key =
            key.ok_or("it is not an X25519 key, which begins with age1 and has 62 characters")?;
        match agreed([1; 32], key) {
            None => Err("nobody can have its private key"),
            Some(_) => Ok(Self {
                text: text.to_owned(),
                key,
            }),
        }
    }

    /// The text that it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A private key: `AGE-SECRET-KEY-1…`.
#[derive(Clone)]
pub struct Identity([u8; 32]);

impl Identity {
    /// Reads a file of `age-keygen`: a line for each identity, and comments.
    pub fn parse_file(text: &str) -> Option<Vec<Self>> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let found: Option<Vec<_>> = lines.map(Self::parse).collect();
        found.filter(|found| !found.is_empty())
    }

    fn parse(text: &str) -> Option<Self> {
        let (prefix, bytes) = bech32::decode(text)?;
        let key = bytes.try_into().ok()?;
        (prefix == IDENTITY).then_some(Self(key))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The key of one file.
#[derive(Clone)]
pub struct FileKey([u8; 16]);

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Reason that a file cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unreadable {
    /// The header is not as specified.
    Header,
    /// It is encrypted to somebody else.
    NoMatch,
    /// The header was changed.
    Mac,
}

impl FileKey {
    /// The key made of random bytes.
    pub fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// The header of a file for these recipients, each with 32 random bytes of its own.
    pub fn header(&self, recipients: &[(&Recipient, [u8; 32])]) -> Result<String, Unspecified> {
        let mut header = VERSION.to_owned();
        for (recipient, secret) in recipients {
            let share = x25519(*secret, X25519_BASEPOINT_BYTES);
            let shared = agreed(*secret, recipient.key).ok_or(Unspecified)?;
            let key = wrapping(&shared, &share, &recipient.key)?;
            let mut body = self.0.to_vec();
            let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
            key.seal_in_place_append_tag(nonce, Aad::empty(), &mut body)?;
            let (share, body) = (BASE64.encode(share), BASE64.encode(body));
            header += &["-> X25519 ", &share, "\n", &body, "\n"].concat();
        }
        header.push_str("---");
        let mac = hmac::sign(&self.mac()?, header.as_bytes());
        header += &[" ", &BASE64.encode(mac), "\n"].concat();
        Ok(header)
    }

    /// The key in a header, for one of these identities.
    pub fn of(header: &str, identities: &[Identity]) -> Result<Self, Unreadable> {
        let header = Header::parse(header).ok_or(Unreadable::Header)?;
        let mut found = None;
        for stanza in &header.stanzas {
            for identity in identities {
                found = found.or(stanza.opened(identity)?);
            }
        }
        let key = found.ok_or(Unreadable::NoMatch)?;
        let mac = key.mac().map_err(|Unspecified| Unreadable::Mac)?;
        hmac::verify(&mac, header.covered.as_bytes(), &header.mac)
            .map_err(|Unspecified| Unreadable::Mac)?;
        Ok(key)
    }

    fn mac(&self) -> Result<hmac::Key, Unspecified> {
        let key = derived(&self.0, &[], b"header")?;
        Ok(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// The chunks of the file with that random number.
    pub fn chunks(&self, nonce: [u8; NONCE]) -> Result<Chunks, Unspecified> {
        let key = derived(&self.0, &nonce, b"payload")?;
        Ok(Chunks {
            key: LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &key)?),
            count: 0,
        })
    }
}

/// Position of a chunk in its file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChunkPosition {
    /// Others follow.
    Within,
    /// None does.
    Last,
}

/// Encrypts or decrypts chunks in their order.
pub struct Chunks {
    key: LessSafeKey,
    count: u64,
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks").finish_non_exhaustive()
    }
}

impl Chunks {
    /// Encrypts the next chunk, which grows by [`TAG`].
    pub fn seal(
        &mut self,
        chunk: &mut Vec<u8>,
        position: ChunkPosition,
    ) -> Result<(), Unspecified> {
        let nonce = self.nonce(position);
        self.key
            .seal_in_place_append_tag(nonce, Aad::empty(), chunk)
    }

    /// Decrypts the next chunk, which shrinks by [`TAG`]. Only the first of a file may be empty.
    pub fn open(
        &mut self,
        chunk: &mut Vec<u8>,
        position: ChunkPosition,
    ) -> Result<(), Unspecified> {
        let is_first = self.count == 0;
        let nonce = self.nonce(position);
        let length = self.key.open_in_place(nonce, Aad::empty(), chunk)?.len();
        chunk.truncate(length);
        if length == 0 && !is_first {
            return Err(Unspecified);
        }
        Ok(())
    }

    /// 11 bytes of the number of the chunk, and one that tells the last.
    fn nonce(&mut self, position: ChunkPosition) -> Nonce {
        let last: u128 = match position {
            ChunkPosition::Within => 0,
            ChunkPosition::Last => 1,
        };
        let [_, _, _, _, nonce @ ..] = (u128::from(self.count) << 8 | last).to_be_bytes();
        // 2^64 chunks are more than any disk has.
        self.count = self.count.saturating_add(1);
        Nonce::assume_unique_for_key(nonce)
    }
}

/// A header, read.
struct Header<'a> {
    stanzas: Vec<Stanza<'a>>,
    /// The part that the code at its end is about.
    covered: &'a str,
    mac: Vec<u8>,
}

/// The key of the file, encrypted to one recipient.
struct Stanza<'a> {
    arguments: Vec<&'a str>,
    body: Vec<u8>,
}

impl<'a> Header<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let end = text.find("\n---")?.checked_add(4)?;
        let (covered, mac) = text.split_at_checked(end)?;
        let mac = mac.strip_prefix(' ')?.strip_suffix('\n')?;
        let mac = BASE64.decode(mac).ok().filter(|mac| mac.len() == 32)?;
        let stanzas = covered.strip_prefix(VERSION)?.strip_suffix("---")?;
        let mut lines = stanzas.split_terminator('\n');
        let mut stanzas = Vec::new();
        while let Some(line) = lines.next() {
            let arguments: Vec<_> = line.strip_prefix("-> ")?.split(' ').collect();
            let is_word =
                |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
            if !arguments.iter().all(is_word) {
                return None;
            }
            let mut body = String::new();
            loop {
                let line = lines.next().filter(|line| line.len() <= COLUMNS)?;
                body.push_str(line);
                if line.len() < COLUMNS {
                    break;
                }
            }
            let body = BASE64.decode(body).ok()?;
            stanzas.push(Stanza { arguments, body });
        }
        // A passphrase is no recipient among others: whoever has the file could guess it.
        let is_passphrase = |stanza: &Stanza<'_>| stanza.arguments.first() == Some(&"scrypt");
        let is_mixed = stanzas.len() > 1 && stanzas.iter().any(is_passphrase);
        (!stanzas.is_empty() && !is_mixed).then_some(Self {
            stanzas,
            covered,
            mac,
        })
    }
}

impl Stanza<'_> {
    /// The key in it; `None`: it is for somebody else.
    fn opened(&self, identity: &Identity) -> Result<Option<FileKey>, Unreadable> {
        let share = match self.arguments.as_slice() {
            ["X25519", share] => BASE64.decode(share).ok(),
            ["X25519", ..] => None,
            _ => return Ok(None),
        };
        let share = share.and_then(|share| <[u8; 32]>::try_from(share).ok());
        let share = share.ok_or(Unreadable::Header)?;
        if self.body.len() != 16 + TAG {
            return Err(Unreadable::Header);
        }
        let shared = agreed(identity.0, share).ok_or(Unreadable::Header)?;
        let own = x25519(identity.0, X25519_BASEPOINT_BYTES);
        let key = wrapping(&shared, &share, &own).map_err(|Unspecified| Unreadable::Header)?;
        let mut body = self.body.clone();
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let opened = key.open_in_place(nonce, Aad::empty(), &mut body);
        let key = opened.ok().and_then(|key| <[u8; 16]>::try_from(&*key).ok());
        Ok(key.map(FileKey))
    }
}

/// The shared secret; `None` where the other side sent a point that makes it known to everybody.
fn agreed(secret: [u8; 32], share: [u8; 32]) -> Option<[u8; 32]> {
    Some(x25519(secret, share)).filter(|shared| *shared != [0; 32])
}

/// The key that the key of the file is encrypted with.
fn wrapping(
    shared: &[u8; 32],
    share: &[u8; 32],
    recipient: &[u8; 32],
) -> Result<LessSafeKey, Unspecified> {
    let key = derived(shared, &[*share, *recipient].concat(), LABEL)?;
    Ok(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &key)?))
}

fn derived(secret: &[u8], salt: &[u8], purpose: &[u8]) -> Result<[u8; 32], Unspecified> {
    let mut key = [0; 32];
    let extracted = Salt::new(HKDF_SHA256, salt).extract(secret);
    extracted.expand(&[purpose], HKDF_SHA256)?.fill(&mut key)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipient_that_is_none_is_refused_with_the_reason() {
        let good = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";
        assert_eq!(Recipient::parse(good).unwrap().text(), good);
        for (wrong, why) in [
            ("", "letter"),
            (
                "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwk",
                "letter",
            ),
            (
                "AGE-SECRET-KEY-1EGTZVFFV20835NWYV6270LXYVK2VKNX2MMDKWYKLMGR48UAWX40Q2P2LM0",
                "private key",
            ),
            // A valid text of Bech32, of another kind.
            ("a12uel5l", "not an X25519 key"),
            // 32 zeros: a point of low order.
            (
                "age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqj3d90w",
                "",
            ),
        ] {
            let refused = Recipient::parse(wrong).unwrap_err();
            assert!(refused.contains(why), "{wrong}: {refused}");
        }
    }

    #[test]
    fn a_file_of_identities_has_comments_and_nothing_else() {
        let text = "# created: 2026-11-23\n# public key: age1…\nAGE-SECRET-KEY-1EGTZVFFV20835NWYV6270LXYVK2VKNX2MMDKWYKLMGR48UAWX40Q2P2LM0\n";
        let found = Identity::parse_file(text).unwrap();
        assert_eq!(format!("{found:?}"), "[(hidden)]");
        for wrong in ["", "# nothing\n", "secret\n"] {
            assert!(Identity::parse_file(wrong).is_none(), "{wrong}");
        }
    }
}
