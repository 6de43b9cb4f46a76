//! Version of a package in the databases of dpkg and apk. The database of rpm would need its
//! library.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use crate::core::facts::Fact;

/// The database of a desktop has 6 MB.
const DATABASE_BYTES_MAX: u64 = 32 << 20;

/// File, the line that begins a package, and what its version begins with.
const DATABASES: [(&str, &str, &str); 2] = [
    ("var/lib/dpkg/status", "Package: ", "Version: "),
    ("lib/apk/db/installed", "P:", "V:"),
];

/// Its version; missing where it is not installed, or nobody knows.
pub(super) fn version(root: &Path, package: &str) -> Fact {
    for (file, name, version) in DATABASES {
        let Ok(file) = File::open(root.join(file)) else {
            continue;
        };
        let mut is_it = false;
        let lines = BufReader::new(file.take(DATABASE_BYTES_MAX)).lines();
        for line in lines.map_while(Result::ok) {
            if let Some(other) = line.strip_prefix(name) {
                is_it = other == package;
            } else if let (true, Some(version)) = (is_it, line.strip_prefix(version)) {
                return Fact::Text(version.to_owned());
            }
        }
    }
    Fact::Missing
}
