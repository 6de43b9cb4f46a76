//! Archives in the ustar format: plain files with a name, a mode and a content, in order.
//!
//! It reads what it writes, and no more: links, devices and the extensions of GNU and pax are
//! refused.

use std::io::{self, ErrorKind, Read, Write};

const BLOCK: usize = 512;
/// Length of the field for a name, and of the one for the folders before it.
const NAME: usize = 100;
const PREFIX: usize = 155;
/// Numbers in the header, one behind the other: mode, user, group, length, time, sum.
const MODE: (usize, usize) = (100, 8);
const LENGTH: (usize, usize) = (124, 12);
const SUM: (usize, usize) = (148, 8);

/// A file in an archive.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TarEntry {
    /// Relative name.
    pub name: String,
    /// Permissions.
    pub mode: u32,
    /// Length.
    pub bytes: u64,
}

/// Writes an archive.
#[derive(Debug)]
pub struct Writer<W: Write> {
    to: W,
    modified_s: u64,
}

impl<W: Write> Writer<W> {
    /// An archive of files that are all of one moment, in seconds since 1970.
    pub fn new(to: W, modified_s: u64) -> Self {
        Self { to, modified_s }
    }

    /// Adds a file; `from` must have exactly its length.
    pub fn add(&mut self, entry: &TarEntry, from: &mut dyn Read) -> io::Result<()> {
        self.to.write_all(&header(entry, self.modified_s)?)?;
        let written = io::copy(&mut from.take(entry.bytes), &mut self.to)?;
        if written != entry.bytes {
            let why = format!("{} became shorter while it was read", entry.name);
            return Err(io::Error::new(ErrorKind::UnexpectedEof, why));
        }
        self.to.write_all(&vec![0; padding(entry.bytes)])
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.write_all(&[0; 2 * BLOCK])?;
        Ok(self.to)
    }
}

/// Reads an archive: the content of an entry is read from here after [`TarReader::advance`]
/// returned it.
#[derive(Debug)]
pub struct TarReader<R: Read> {
    from: R,
    /// Bytes of the entry that were not read yet, and those that fill its last block.
    left: u64,
    padding: usize,
}

impl<R: Read> TarReader<R> {
    /// An archive from its beginning.
    pub fn new(from: R) -> Self {
        Self {
            from,
            left: 0,
            padding: 0,
        }
    }

    /// Skips to the next file; `None` at the end.
    pub fn advance(&mut self) -> io::Result<Option<TarEntry>> {
        let rest = self
            .left
            .saturating_add(u64::try_from(self.padding).unwrap_or(0));
        let skipped = io::copy(&mut (&mut self.from).take(rest), &mut io::sink())?;
        if skipped != rest {
            return Err(broken("it ends in the middle of a file"));
        }
        let mut header = [0; BLOCK];
        self.from.read_exact(&mut header)?;
        if header == [0; BLOCK] {
            (self.left, self.padding) = (0, 0);
            return Ok(None);
        }
        let entry = parsed(&header)?;
        (self.left, self.padding) = (entry.bytes, padding(entry.bytes));
        Ok(Some(entry))
    }

    /// Reads what is behind the last file, so that a source that checks its end has done so.
    pub fn end(mut self) -> io::Result<()> {
        io::copy(&mut self.from, &mut io::sink()).map(drop)
    }
}

impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = (&mut self.from).take(self.left).read(buffer)?;
        self.left = self
            .left
            .saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
        Ok(length)
    }
}

fn padding(bytes: u64) -> usize {
    let over = usize::try_from(bytes % 512).unwrap_or(0);
    over.next_multiple_of(BLOCK).saturating_sub(over)
}

fn broken(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Numbers are octal, the sum is of all bytes with its own place as spaces.
fn header(entry: &TarEntry, modified_s: u64) -> io::Result<Vec<u8>> {
    let (prefix, name) = split(&entry.name)
        .ok_or_else(|| broken("a name is too long for an archive: 100 bytes, 155 before it"))?;
    let fields = [
        (NAME, name.to_owned()),
        (8, format!("{:07o}\0", entry.mode & 0o7777)),
        (8, "0000000\0".to_owned()),
        (8, "0000000\0".to_owned()),
        (12, format!("{:011o}\0", entry.bytes)),
        (12, format!("{modified_s:011o}\0")),
        (8, " ".repeat(8)),
        (1, "0".to_owned()),
        (100, String::new()),
        (8, "ustar\u{0}00".to_owned()),
        (32, "root".to_owned()),
        (32, "root".to_owned()),
        (16, String::new()),
        (PREFIX, prefix.to_owned()),
    ];
    let mut header = Vec::with_capacity(BLOCK);
    for (width, text) in fields {
        let end = header.len() + width;
        header.extend(text.bytes().take(width));
        header.resize(end, 0);
    }
    header.resize(BLOCK, 0);
    let sum = format!("{:06o}\0 ", sum(&header));
    header.splice(148..156, sum.bytes());
    Ok(header)
}

/// A name in its two fields.
fn split(name: &str) -> Option<(&str, &str)> {
    if name.len() <= NAME {
        return Some(("", name));
    }
    let ends = name.match_indices('/').map(|(at, _)| name.split_at(at));
    let mut halves = ends.map(|(prefix, rest)| (prefix, rest.trim_start_matches('/')));
    halves.find(|(prefix, rest)| prefix.len() <= PREFIX && rest.len() <= NAME)
}

fn sum(header: &[u8]) -> u32 {
    header.iter().copied().map(u32::from).sum()
}

fn parsed(header: &[u8; BLOCK]) -> io::Result<TarEntry> {
    let field = |at: usize, width: usize| header.get(at..at + width).unwrap_or_default();
    let text = |at: usize, width: usize| {
        let text = field(at, width).split(|byte| *byte == 0).next();
        let text = std::str::from_utf8(text.unwrap_or_default());
        text.map_err(|_not_utf8| broken("a name in it is not text"))
    };
    let number = |(at, width): (usize, usize)| {
        let digits = text(at, width)?.trim();
        u64::from_str_radix(digits, 8).map_err(|_not_octal| broken("a number in it is none"))
    };
    let mut blank = header.to_vec();
    blank.splice(SUM.0..SUM.0 + SUM.1, std::iter::repeat_n(b' ', SUM.1));
    if number(SUM)? != u64::from(sum(&blank)) {
        return Err(broken("a sum in it is wrong"));
    }
    if !matches!(field(156, 1), b"0" | b"\0") {
        return Err(broken("it contains something other than plain files"));
    }
    let (prefix, name) = (text(345, PREFIX)?, text(0, NAME)?);
    Ok(TarEntry {
        name: match prefix {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        },
        mode: u32::try_from(number(MODE)?).unwrap_or(0),
        bytes: number(LENGTH)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), 1_700_000_000);
        for (name, content) in files {
            let entry = TarEntry {
                name: (*name).to_owned(),
                mode: 0o600,
                bytes: u64::try_from(content.len()).unwrap(),
            };
            writer.add(&entry, &mut &**content).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn what_was_packed_is_read_back_whole_or_skipped() {
        let long = format!("{}/{}", "a".repeat(150), "b".repeat(99));
        let whole = [7; 1024];
        let files: [(&str, &[u8]); 4] = [("a", b"x"), (&long, b""), ("c/d", &whole), ("e", b"y")];
        let archive = packed(&files);
        let mut reader = TarReader::new(&*archive);
        for (place, (name, content)) in files.iter().enumerate() {
            let entry = reader.advance().unwrap().unwrap();
            assert_eq!((&*entry.name, entry.mode), (*name, 0o600));
            if place != 2 {
                let mut found = Vec::new();
                reader.read_to_end(&mut found).unwrap();
                assert_eq!(found, *content);
            }
        }
        assert_eq!(reader.advance().unwrap(), None);
    }

    #[test]
    fn the_archive_is_one_that_tar_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        super::super::replace(&path, &packed(&[("x/y", b"content")]), 0o600).unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "tar itself says what it makes of it"
        )]
        let output = std::process::Command::new("tar")
            .arg("-xOf")
            .arg(&path)
            .arg("x/y")
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"content", "{output:?}");
    }

    #[test]
    fn what_is_cut_changed_or_no_plain_file_is_refused() {
        let archive = packed(&[("a", b"content"), ("b", b"")]);
        let walk = |bytes: &[u8]| {
            let mut reader = TarReader::new(bytes);
            while reader.advance()?.is_some() {}
            io::Result::Ok(())
        };
        assert!(walk(&archive).is_ok());
        for length in [10, 512, 700, 1500, 2047] {
            assert!(walk(&archive[..length]).is_err(), "{length}");
        }
        let mut changed = archive.clone();
        changed[3] = b'x';
        assert!(walk(&changed).is_err());
        let mut link = archive;
        link[156] = b'2';
        let sum = sum(&{
            let mut blank = link[..BLOCK].to_vec();
            blank[148..156].fill(b' ');
            blank
        });
        link[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(walk(&link).unwrap_err().to_string().contains("plain"));
        let long = TarEntry {
            name: "a".repeat(101),
            mode: 0,
            bytes: 0,
        };
        assert!(
            Writer::new(Vec::new(), 0)
                .add(&long, &mut io::empty())
                .is_err()
        );
    }
}
