//! Manifests in a file, in the files of a folder, or on standard input.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    core::{
        apps::{joined, repository::is_manifest},
        order::OrderExt as _,
    },
    error::{Error, Result},
    files,
};

/// Most that is read of one app: the agent takes a megabyte.
const BYTES_MAX: usize = 1 << 20;
/// Files of one folder.
const FILES_MAX: usize = 200;

/// The manifests in a file, in all .yaml, .yml and .json files of a folder, or of `-`.
///
/// # Errors
/// They cannot be read, or are too many.
pub fn manifests(place: &Path) -> Result<String> {
    let cannot = || Error::new(format!("cannot read {}", place.display()));
    let paths = manifest_files(place)?;
    if paths.is_empty() || paths.len() > FILES_MAX {
        let found = paths.len();
        return Err(cannot().why(format!(
            "it has {found} files of manifests; 1 to {FILES_MAX} are possible"
        )));
    }
    let (mut texts, mut bytes) = (Vec::new(), 0_usize);
    for path in paths {
        let content = if path == Path::new("-") {
            let read = files::at_most(io::stdin(), BYTES_MAX);
            let read = read.map_err(|error| cannot().because(&error))?;
            read.ok_or_else(|| cannot().why(format!("it is longer than {BYTES_MAX} bytes")))?
        } else {
            files::read(&path, BYTES_MAX)?
        };
        let text = String::from_utf8(content).map_err(|error| {
            Error::new(format!("cannot read {}", path.display())).because(&error.utf8_error())
        })?;
        bytes = bytes.saturating_add(text.len());
        if bytes > BYTES_MAX {
            return Err(cannot()
                .why(format!("it has more than {BYTES_MAX} bytes of manifests"))
                .fix("make several apps of it"));
        }
        let name = path.file_name().unwrap_or_default();
        texts.push((name.to_string_lossy().into_owned(), text));
    }
    Ok(joined(
        texts
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str())),
    ))
}

/// The files that hold the manifests of a place: the file itself, or those of the folder in the
/// order of their names.
pub fn manifest_files(place: &Path) -> Result<Vec<PathBuf>> {
    if !place.is_dir() {
        return Ok(vec![place.to_owned()]);
    }
    // What were left out here would be deleted.
    let cannot =
        |error: &io::Error| files::explain(format!("cannot read {}", place.display()), error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(place).map_err(|error| cannot(&error))? {
        let path = entry.map_err(|error| cannot(&error))?.path();
        let name = path.file_name().unwrap_or_default();
        if is_manifest(&name.to_string_lossy()) {
            paths.push(path);
        }
    }
    paths.order();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use super::*;

    #[test]
    fn a_file_whose_name_is_no_text_is_not_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join(OsStr::from_bytes(b"b-\xff.yaml"));
        files::replace(&odd, b"b: 1", 0o644).unwrap();
        files::replace(&folder.path().join("a.yaml"), b"a: 1", 0o644).unwrap();
        assert_eq!(manifest_files(folder.path()).unwrap().len(), 2);
        assert!(manifests(folder.path()).unwrap().contains("b: 1"));
    }
}
