//! Copies of long files: hashed on the way, and renamed into place only when they are complete and
//! have the expected hash.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use ring::digest::{Context, SHA256};

use super::{PRIVATE, explain, split, sync_directory, unfinished_name};
use crate::{
    core::format::hex,
    error::{Error, Result},
};

/// Bytes read at a time; progress is told after each.
const CHUNK_BYTES: usize = 1 << 20;

/// Hash and length of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sum {
    /// SHA-256, in hexadecimal.
    pub sha256: String,
    pub bytes: u64,
}

/// The sum of a file; `None` where there is none.
pub fn sum(path: &Path) -> Result<Option<Sum>> {
    let what = || format!("cannot read {}", path.display());
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(explain(what(), &error)),
        Ok(file) => {
            let sum = pass(file, &mut io::sink(), u64::MAX, &mut |_| {});
            sum.map(Some).map_err(|error| explain(what(), &error))
        }
    }
}

/// Copies `from` to `to`, where it appears whole or not at all. With `sha256` it must have that
/// one, else nothing is there. A file longer than `bytes_max` is refused. `told` is called
/// with the number of bytes so far.
pub fn copy(
    from: &Path,
    to: &Path,
    mode: u32,
    sha256: Option<&str>,
    limits: (u64, &mut dyn FnMut(u64)),
) -> Result<Sum> {
    let (bytes_max, progress) = limits;
    let what = || format!("cannot copy {} to {}", from.display(), to.display());
    let source = File::open(from).map_err(|error| explain(what(), &error))?;
    let is_file = source.metadata().is_ok_and(|found| found.is_file());
    if !is_file {
        return Err(Error::new(what()).why("it is not a regular file"));
    }
    let (directory, name) = split(to).ok_or_else(|| Error::new(what()).why("not a file name"))?;
    let unfinished = directory.join(unfinished_name(name));
    let written = (|| {
        let mut target = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(PRIVATE)
            .open(&unfinished)?;
        let sum = pass(source, &mut target, bytes_max, progress)?;
        target.set_permissions(std::fs::Permissions::from_mode(mode))?;
        target.sync_all()?;
        Ok(sum)
    })();
    let placed = written
        .map_err(|error: io::Error| explain(what(), &error))
        .and_then(|sum| match sha256 {
            Some(wanted) if wanted != sum.sha256 => Err(Error::new(format!(
                "{} is not the file that it should be",
                from.display()
            ))
            .why(format!("its SHA-256 is {}, not {wanted}", sum.sha256))
            .fix("fetch it again: it was cut, changed, or belongs to another version")),
            Some(_) | None => std::fs::rename(&unfinished, to)
                .and_then(|()| sync_directory(directory))
                .map(|()| sum)
                .map_err(|error| explain(what(), &error)),
        });
    placed.inspect_err(|_| {
        // The first error is the one to tell.
        drop(std::fs::remove_file(&unfinished));
    })
}

/// Passes all bytes on, and returns their sum. More than `bytes_max` are refused. `told` is
/// called with the number of bytes so far.
pub fn pass(
    mut from: impl Read,
    to: &mut dyn Write,
    bytes_max: u64,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Sum> {
    let mut context = Context::new(&SHA256);
    let mut piece = vec![0; CHUNK_BYTES];
    let mut bytes = 0_u64;
    loop {
        let length = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let part = piece.get(..length).unwrap_or_default();
        bytes = bytes.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        if bytes > bytes_max {
            let why = format!("it is longer than {bytes_max} bytes");
            return Err(io::Error::new(ErrorKind::FileTooLarge, why));
        }
        context.update(part);
        to.write_all(part)?;
        progress(bytes);
    }
    Ok(Sum {
        sha256: hex(context.finish().as_ref()),
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_there_only_if_it_is_the_right_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        super::super::replace(&at("from"), b"abc", 0o644).unwrap();
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let copied = |sha256, bytes_max| {
            copy(
                &at("from"),
                &at("to"),
                0o755,
                sha256,
                (bytes_max, &mut |_| {}),
            )
        };
        assert!(copied(Some("0"), 3).unwrap_err().sentence().contains(right));
        assert!(copied(Some(right), 2).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let sum_of_it = copied(Some(right), 3).unwrap();
        assert_eq!(sum(&at("to")).unwrap(), Some(sum_of_it));
        assert_eq!(
            std::fs::metadata(at("to")).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(sum(&at("nothing")).unwrap(), None);
    }
}
