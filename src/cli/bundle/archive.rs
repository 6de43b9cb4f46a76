//! A `.tar.gz` of small files: the ustar format, as far as files with short names need it.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};

const BLOCK: usize = 512;

/// A file in an archive.
#[derive(Debug)]
pub(super) struct File {
    /// Its name: at most 100 bytes with that of its folder.
    pub(super) name: String,
    /// What is in it.
    pub(super) content: Vec<u8>,
}

/// The archive of `files` in a folder, all of one moment.
pub(super) fn packed(folder: &str, files: &[File], modified_s: u64) -> io::Result<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    for file in files {
        let name = format!("{folder}/{}", file.name);
        packer.write_all(&header(&name, file.content.len(), modified_s))?;
        packer.write_all(&file.content)?;
        let rest = file.content.len().next_multiple_of(BLOCK) - file.content.len();
        packer.write_all(&vec![0; rest])?;
    }
    packer.write_all(&[0; 2 * BLOCK])?;
    packer.finish()
}

/// Numbers are octal, the sum is of all bytes with its own place as spaces.
fn header(name: &str, length: usize, modified_s: u64) -> Vec<u8> {
    let fields = [
        (100, name.chars().take(99).collect::<String>()),
        (8, "0000600\0".to_owned()),
        (8, "0000000\0".to_owned()),
        (8, "0000000\0".to_owned()),
        (12, format!("{length:011o}\0")),
        (12, format!("{modified_s:011o}\0")),
        (8, " ".repeat(8)),
        (1, "0".to_owned()),
        (100, String::new()),
        (8, "ustar\u{0}00".to_owned()),
        (32, "root".to_owned()),
        (32, "root".to_owned()),
    ];
    let mut header = Vec::with_capacity(BLOCK);
    for (width, text) in fields {
        let end = header.len() + width;
        header.extend(text.bytes().take(width));
        header.resize(end, 0);
    }
    header.resize(BLOCK, 0);
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    let sum = format!("{sum:06o}\0 ");
    header.splice(148..156, sum.bytes());
    header
}
