//! A `.tar.gz` of small files in one folder.

use std::io;

use flate2::{Compression, write::GzEncoder};

use crate::files::{PRIVATE, tar};

/// A file in an archive.
#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// The archive of `files` in a folder, all of one moment.
pub(super) fn packed(folder: &str, files: &[File], modified_s: u64) -> io::Result<Vec<u8>> {
    let packer = GzEncoder::new(Vec::new(), Compression::default());
    let mut archive = tar::Writer::new(packer, modified_s);
    for file in files {
        let entry = tar::TarEntry {
            name: format!("{folder}/{}", file.name),
            mode: PRIVATE,
            bytes: u64::try_from(file.content.len()).unwrap_or(u64::MAX),
        };
        archive.add(&entry, &mut &*file.content)?;
    }
    archive.finish()?.finish()
}
