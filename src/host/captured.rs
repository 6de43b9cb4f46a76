//! Captured trees of files for tests: `/proc` and `/sys` of other machines.

use crate::files;

/// A tree with these files.
pub(super) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        files::replace(&path, content.as_bytes(), files::PRIVATE).unwrap();
    }
    directory
}
