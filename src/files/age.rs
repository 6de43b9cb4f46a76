//! Streams of age v1 in chunks of 64 KiB: encrypted while they are written, decrypted while they
//! are read, in a fixed amount of memory.
//!
//! A reader hands nothing out that was not authenticated, and ends with an error where the file was
//! cut. [`crate::core::age`] has the format.

use std::io::{self, BufRead, ErrorKind, Read, Write};

use ring::{
    error::Unspecified,
    rand::{SecureRandom, SystemRandom},
};

use crate::core::age::{
    CHUNK, ChunkPosition, Chunks, FileKey, Identity, NONCE, Recipient, TAG, Unreadable,
};

/// The longest header: some hundred recipients.
const HEADER_BYTES_MAX: u64 = 64 * 1024;

/// A key for a new file.
pub fn new_key() -> io::Result<FileKey> {
    random().map(FileKey::new)
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|Unspecified| io::Error::other("the kernel gives no random numbers"))?;
    Ok(bytes)
}

/// Encrypts everything that is written to it.
#[derive(Debug)]
pub struct Sealer<W: Write> {
    to: W,
    chunks: Chunks,
    chunk: Vec<u8>,
}

impl<W: Write> Sealer<W> {
    /// Begins a file that these recipients can read.
    pub fn new(mut to: W, key: &FileKey, recipients: &[Recipient]) -> io::Result<Self> {
        let nonce = random::<NONCE>()?;
        let secrets = recipients
            .iter()
            .map(|recipient| Ok((recipient, random()?)))
            .collect::<io::Result<Vec<_>>>()?;
        let header = key.header(&secrets).map_err(impossible)?;
        to.write_all(header.as_bytes())?;
        to.write_all(&nonce)?;
        Ok(Self {
            to,
            chunks: key.chunks(nonce).map_err(impossible)?,
            chunk: Vec::with_capacity(CHUNK + TAG),
        })
    }

    /// Ends the file. Without it a reader finds that it was cut.
    pub fn finish(mut self) -> io::Result<W> {
        self.pass(ChunkPosition::Last)?;
        Ok(self.to)
    }

    fn pass(&mut self, position: ChunkPosition) -> io::Result<()> {
        self.chunks
            .seal(&mut self.chunk, position)
            .map_err(impossible)?;
        self.to.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }
}

impl<W: Write> Write for Sealer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk waits for the next byte: it may be the last.
        if self.chunk.len() == CHUNK && !bytes.is_empty() {
            self.pass(ChunkPosition::Within)?;
        }
        let length = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk
            .extend_from_slice(bytes.get(..length).unwrap_or_default());
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Key to decrypt a file.
#[derive(Clone, Copy, Debug)]
pub enum DecryptionKey<'a> {
    /// Its own key, for whoever wrote it.
    Key(&'a FileKey),
    /// Private keys of recipients.
    Identities(&'a [Identity]),
}

/// Decrypts everything that is read from it.
#[derive(Debug)]
pub struct Opener<R: Read> {
    from: R,
    chunks: Chunks,
    /// Plain bytes, and how many of them were handed out.
    chunk: Vec<u8>,
    at: usize,
    /// First byte of the next chunk; none after the last one.
    next: Option<u8>,
}

impl<R: BufRead> Opener<R> {
    /// Reads the header. The outer error is one of reading.
    pub fn new(mut from: R, means: DecryptionKey<'_>) -> io::Result<Result<Self, Unreadable>> {
        let mut header = String::new();
        let mut limited = (&mut from).take(HEADER_BYTES_MAX);
        loop {
            let start = header.len();
            match limited.read_line(&mut header) {
                Ok(0) => return Ok(Err(Unreadable::Header)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Ok(Err(Unreadable::Header));
                }
                Err(error) => return Err(error),
            }
            if header
                .get(start..)
                .is_some_and(|line| line.starts_with("---"))
            {
                break;
            }
        }
        let key = match means {
            DecryptionKey::Key(key) => key.clone(),
            DecryptionKey::Identities(identities) => match FileKey::of(&header, identities) {
                Ok(key) => key,
                Err(unreadable) => return Ok(Err(unreadable)),
            },
        };
        let mut nonce = [0; NONCE];
        match from.read_exact(&mut nonce) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Ok(Err(Unreadable::Header));
            }
            Err(error) => return Err(error),
        }
        let mut opener = Self {
            from,
            chunks: key.chunks(nonce).map_err(impossible)?,
            chunk: Vec::with_capacity(CHUNK + TAG + 1),
            at: 0,
            next: None,
        };
        opener.advance(None)?;
        Ok(Ok(opener))
    }

    /// Decrypts the next chunk, which begins with the byte that was read before. One byte more
    /// tells whether it is the last.
    fn advance(&mut self, first: Option<u8>) -> io::Result<()> {
        self.at = 0;
        self.chunk.clear();
        self.chunk.extend(first);
        let wanted = CHUNK + TAG + 1 - self.chunk.len();
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        (&mut self.from).take(wanted).read_to_end(&mut self.chunk)?;
        let is_last = self.chunk.len() <= CHUNK + TAG;
        self.next = if is_last { None } else { self.chunk.pop() };
        let position = if is_last {
            ChunkPosition::Last
        } else {
            ChunkPosition::Within
        };
        let opened = self.chunks.open(&mut self.chunk, position);
        opened.map_err(|Unspecified| {
            self.chunk.clear();
            io::Error::new(ErrorKind::InvalidData, "it was changed or cut")
        })
    }
}

impl<R: BufRead> Read for Opener<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.chunk.len()
            && let Some(first) = self.next.take()
        {
            self.advance(Some(first))?;
        }
        let mut left = self.chunk.get(self.at..).unwrap_or_default();
        let length = left.read(buffer)?;
        self.at += length;
        Ok(length)
    }
}

/// Lengths are those of the format, so this does not happen.
fn impossible(_: Unspecified) -> io::Error {
    io::Error::other("the cryptography failed")
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        process::{Command, Stdio},
    };

    use flate2::read::ZlibDecoder;
    use ring::digest::{SHA256, digest};

    use super::*;
    use crate::core::format::hex;

    const IDENTITY: &str =
        "AGE-SECRET-KEY-1EGTZVFFV20835NWYV6270LXYVK2VKNX2MMDKWYKLMGR48UAWX40Q2P2LM0";
    const RECIPIENT: &str = "age1xmwwc06ly3ee5rytxm9mflaz2u56jjj36s0mypdrwsvlul66mv4q47ryef";

    fn sealed(text: &[u8], recipients: &[&str]) -> Vec<u8> {
        let recipients: Vec<_> = recipients
            .iter()
            .map(|text| Recipient::parse(text).unwrap())
            .collect();
        let mut sealer = Sealer::new(Vec::new(), &new_key().unwrap(), &recipients).unwrap();
        // Pieces that fit no chunk.
        for piece in text.chunks(10_007) {
            sealer.write_all(piece).unwrap();
        }
        sealer.finish().unwrap()
    }

    /// The end as the test vectors name it, and everything that came out before.
    fn opened(file: &[u8], identities: &[Identity]) -> (&'static str, Vec<u8>) {
        let mut text = Vec::new();
        let end = match Opener::new(file, DecryptionKey::Identities(identities)) {
            Err(_) => "payload failure",
            Ok(Err(Unreadable::Header)) => "header failure",
            Ok(Err(Unreadable::NoMatch)) => "no match",
            Ok(Err(Unreadable::Mac)) => "HMAC failure",
            Ok(Ok(mut opener)) => match opener.read_to_end(&mut text) {
                Ok(_) => "success",
                Err(_) => "payload failure",
            },
        };
        (end, text)
    }

    fn content(length: usize) -> Vec<u8> {
        let number = |at: usize| u8::try_from(at * 7 % 251).unwrap();
        (0..length).map(number).collect()
    }

    #[test]
    fn files_of_every_length_around_a_chunk_come_back() {
        let identities = Identity::parse_file(IDENTITY).unwrap();
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5] {
            let text = content(length);
            let file = sealed(&text, &[RECIPIENT]);
            assert!(opened(&file, &identities) == ("success", text), "{length}");
            // Cut anywhere at the end of a chunk, or within one, it is no file.
            for cut in [1, TAG, TAG + 1] {
                let (end, _) = opened(&file[..file.len() - cut], &identities);
                assert_ne!(end, "success", "{length} less {cut}");
            }
        }
    }

    /// The vectors of C2SP/CCTV, of all kinds that concern X25519.
    #[test]
    fn the_public_test_vectors_end_as_they_should() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/age");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some() {
                continue;
            }
            let all = std::fs::read(&path).unwrap();
            let end = all.windows(2).position(|pair| pair == b"\n\n").unwrap();
            let head = String::from_utf8(all[..end].to_vec()).unwrap();
            let field = |name: &str| {
                head.lines()
                    .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            };
            let mut file = all[end + 2..].to_vec();
            if field("compressed").is_some() {
                let mut whole = Vec::new();
                let mut decoder = ZlibDecoder::new(&*file);
                decoder.read_to_end(&mut whole).unwrap();
                file = whole;
            }
            let identities = field("identity").unwrap_or(IDENTITY);
            let identities = Identity::parse_file(identities).unwrap();
            let (end, text) = opened(&file, &identities);
            assert_eq!(Some(end), field("expect"), "{}", path.display());
            // Of a last chunk with garbage behind it others hand out the text before they fail;
            // here nothing comes out.
            if let Some(hash) = field("payload").filter(|_| end == "success") {
                let found = hex(digest(&SHA256, &text).as_ref());
                assert_eq!(found, hash, "{}", path.display());
            }
            count += 1;
        }
        assert!(count > 60, "{count} vectors");
    }

    /// `age`, where it is there: it reads ours, and we read what it wrote.
    #[test]
    fn age_reads_what_is_written_here_and_the_other_way_round() {
        let folder = tempfile::tempdir().unwrap();
        let identity = folder.path().join("identity");
        crate::files::replace(&identity, IDENTITY.as_bytes(), 0o600).unwrap();
        #[expect(clippy::disallowed_methods, reason = "another implementation")]
        let age = |options: &[&str], input: &[u8]| {
            let mut child = Command::new("age")
                .args(options)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .ok()?;
            let mut to = child.stdin.take().unwrap();
            let input = input.to_vec();
            let writer = std::thread::spawn(move || to.write_all(&input));
            let output = child.wait_with_output().unwrap();
            writer.join().unwrap().unwrap();
            assert!(output.status.success(), "{options:?}");
            Some(output.stdout)
        };
        let text = content(3 * CHUNK + 5);
        let other = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";
        let file = sealed(&text, &[other, RECIPIENT]);
        let Some(read) = age(&["-d", "-i", identity.to_str().unwrap()], &file) else {
            return;
        };
        assert!(read == text);
        let file = age(&["-r", other, "-r", RECIPIENT], &text).unwrap();
        let identities = Identity::parse_file(IDENTITY).unwrap();
        assert!(opened(&file, &identities) == ("success", text));
    }
}
