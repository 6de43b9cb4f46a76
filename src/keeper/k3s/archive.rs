//! The file of a backup: a compressed archive, its manifest first, every file with its hash.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use flate2::{Compression, bufread::MultiGzDecoder, write::GzEncoder};

use crate::{
    core::{
        age::{FileKey, Identity, MAGIC, Recipient, Unreadable},
        k3s::backup::is_member,
    },
    error::{Error, Result},
    files::{
        self, PRIVATE,
        age::{DecryptionKey, Opener, Sealer, new_key},
        tar::{TarEntry, TarReader, Writer},
    },
    wire::backup::{FORMAT, MANIFEST, MANIFEST_BYTES_MAX, Manifest, Packed},
};

/// Bytes that a file has in an archive at most: a datastore of 177 GB was seen, of which nobody
/// wants a copy on a card.
const FILE_BYTES_MAX: u64 = 64 << 30;

/// Writes the archive of the files in `folder` that the manifest names, encrypted where there are
/// recipients; it appears at `path` once it was read back.
pub(super) fn write(
    path: &Path,
    manifest: &Manifest,
    folder: &Path,
    recipients: &[Recipient],
) -> Result<u64> {
    let cannot = || format!("cannot write {}", path.display());
    let mut unfinished = path.to_owned().into_os_string();
    unfinished.push(".new");
    let unfinished = Path::new(&unfinished);
    let packed = new_key()
        .and_then(|key| Ok((pack(unfinished, manifest, folder, (&key, recipients))?, key)))
        .map_err(|error| files::explain(cannot(), &error))
        .and_then(|(bytes, key)| unpack(unfinished, None, DecryptionKey::Key(&key)).map(|_| bytes))
        .and_then(|bytes| {
            let placed = std::fs::rename(unfinished, path);
            let above = path.parent().unwrap_or_else(|| Path::new("/"));
            placed
                .and_then(|()| files::sync_directory(above))
                .map_err(|error| files::explain(cannot(), &error))?;
            Ok(bytes)
        });
    packed.inspect_err(|_| {
        // The first error is the one to tell.
        drop(std::fs::remove_file(unfinished));
    })
}

fn pack(
    path: &Path,
    manifest: &Manifest,
    folder: &Path,
    (key, recipients): (&FileKey, &[Recipient]),
) -> io::Result<u64> {
    // One that a power cut left.
    drop(std::fs::remove_file(path));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(path)?;
    let mut to = BufWriter::new(file);
    if recipients.is_empty() {
        fill(&mut to, manifest, folder)?;
    } else {
        let mut sealer = Sealer::new(to, key, recipients)?;
        fill(&mut sealer, manifest, folder)?;
        to = sealer.finish()?;
    }
    to.flush()?;
    let file = to.get_ref();
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

fn fill(to: &mut dyn Write, manifest: &Manifest, folder: &Path) -> io::Result<()> {
    let packer = GzEncoder::new(to, Compression::fast());
    let seconds = u64::try_from(manifest.at_ms.div_euclid(1000)).unwrap_or(0);
    let mut archive = Writer::new(packer, seconds);
    let text = serde_json::to_vec_pretty(manifest)?;
    let entry = TarEntry {
        name: MANIFEST.to_owned(),
        mode: PRIVATE,
        bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
    };
    archive.add(&entry, &mut &*text)?;
    for packed in &manifest.files {
        let entry = TarEntry {
            name: packed.name.clone(),
            mode: packed.mode,
            bytes: packed.bytes,
        };
        archive.add(&entry, &mut File::open(folder.join(&packed.name))?)?;
    }
    archive.finish()?.finish().map(drop)
}

fn damaged(path: &Path) -> Error {
    Error::new(format!("the backup {} is damaged", path.display()))
        .fix("take another one: sudo pipeops-agent k3s status lists them")
}

type Archive = TarReader<MultiGzDecoder<BufReader<Box<dyn Read>>>>;

fn open(path: &Path, key: DecryptionKey<'_>) -> Result<Archive> {
    let cannot = |error| files::explain(format!("cannot read {}", path.display()), &error);
    let mut file = BufReader::new(File::open(path).map_err(cannot)?);
    let is_encrypted = file.fill_buf().map_err(cannot)?.starts_with(MAGIC);
    let from: Box<dyn Read> = if is_encrypted {
        let opened = Opener::new(file, key).map_err(cannot)?;
        Box::new(opened.map_err(|unreadable| locked(path, unreadable, key))?)
    } else {
        Box::new(file)
    };
    Ok(TarReader::new(MultiGzDecoder::new(BufReader::new(from))))
}

fn locked(path: &Path, unreadable: Unreadable, key: DecryptionKey<'_>) -> Error {
    let cannot = Error::new(format!("cannot read {}", path.display()));
    match (unreadable, key) {
        (Unreadable::NoMatch, DecryptionKey::Identities([])) => cannot
            .why("it is encrypted")
            .fix("name the file with the private key of its recipient: --identity FILE"),
        (Unreadable::NoMatch, _) => cannot
            .why("it is not encrypted to any key in that file")
            .fix("name the file with the private key of its recipient: --identity FILE"),
        (Unreadable::Header | Unreadable::Mac, _) => {
            damaged(path).why("its encryption has a header that is none, or was changed")
        }
    }
}

/// Returns whether a file begins as encrypted ones do.
pub(super) fn is_encrypted(path: &Path) -> bool {
    let file = File::open(path).map(BufReader::new);
    file.is_ok_and(|mut file| file.fill_buf().is_ok_and(|start| start.starts_with(MAGIC)))
}

/// The manifest of an archive.
pub(super) fn manifest(path: &Path, identities: &[Identity]) -> Result<Manifest> {
    first(
        path,
        &mut open(path, DecryptionKey::Identities(identities))?,
    )
}

fn first(path: &Path, archive: &mut TarReader<impl Read>) -> Result<Manifest> {
    let damaged = || damaged(path);
    let entry = archive
        .advance()
        .map_err(|error| damaged().because(&error))?
        .filter(|entry| entry.name == MANIFEST && entry.bytes <= MANIFEST_BYTES_MAX)
        .ok_or_else(|| damaged().why("it does not begin with a manifest"))?;
    let mut text = Vec::new();
    let read = archive.take(entry.bytes).read_to_end(&mut text);
    read.map_err(|error| damaged().because(&error))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| damaged().because(&error))?;
    if manifest.format > FORMAT {
        return Err(Error::new(format!("cannot read {}", path.display()))
            .why("a newer pipeops-agent made it")
            .fix("update pipeops-agent"));
    }
    match manifest.files.iter().find(|file| !is_member(&file.name)) {
        Some(file) => Err(damaged().why(format!("it has a file {:?}", file.name))),
        None => Ok(manifest),
    }
}

/// Reads the whole archive, compares all hashes, and writes the files below `into` where that is
/// given.
pub(super) fn unpack(path: &Path, into: Option<&Path>, key: DecryptionKey<'_>) -> Result<Manifest> {
    let mut archive = open(path, key)?;
    let manifest = first(path, &mut archive)?;
    for packed in &manifest.files {
        let damaged = |why: &str| damaged(path).why(format!("{}: {why}", packed.name));
        archive
            .advance()
            .map_err(|error| damaged(&error.to_string()))?
            .filter(|entry| entry.name == packed.name && entry.bytes == packed.bytes)
            .ok_or_else(|| damaged("it is missing, or of another length"))?;
        let sum = match into {
            Some(folder) => written(&mut archive, packed, folder)?,
            None => passed(&mut archive, &mut io::sink())
                .map_err(|error| damaged(&error.to_string()))?,
        };
        if sum != packed.sha256 {
            return Err(damaged("it is not what the manifest says"));
        }
    }
    match archive.advance() {
        Ok(None) => match archive.end() {
            Ok(()) => Ok(manifest),
            Err(error) => Err(damaged(path).because(&error)),
        },
        Ok(Some(_)) => Err(damaged(path).why("it has more files than its manifest")),
        Err(error) => Err(damaged(path).because(&error)),
    }
}

/// Writes one file below `folder`; the sum of what was read.
fn written(from: &mut impl Read, packed: &Packed, folder: &Path) -> Result<String> {
    let path = folder.join(&packed.name);
    let above = path.parent().unwrap_or(folder);
    let written = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(above)
        .and_then(|()| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(PRIVATE)
                .open(&path)?;
            let sum = passed(from, &mut file)?;
            file.set_permissions(std::fs::Permissions::from_mode(packed.mode & 0o700))?;
            file.sync_all()?;
            files::sync_directory(above)?;
            Ok(sum)
        });
    written.map_err(|error| files::explain(format!("cannot write {}", path.display()), &error))
}

fn passed(from: &mut impl Read, to: &mut dyn Write) -> io::Result<String> {
    let sum = files::pass(from, to, FILE_BYTES_MAX, &mut |_| {})?;
    Ok(sum.sha256)
}
