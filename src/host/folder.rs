//! Folder whose files and sub-folders are apps: the state of each, and manifests that nobody but
//! root could have written.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use litemap::LiteMap;
use ring::digest::{Context, SHA256, digest};

use super::manifests::{manifest_files, manifests};
use crate::{
    core::{
        apps::{is_name, repository::is_manifest},
        format::hex,
        order::{GatherExt as _, OrderExt as _},
    },
    error::{Error, Result, Retry},
    files,
};

/// Things in the folder that are looked at.
const ENTRIES_MAX: usize = 500;

/// A file or sub-folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FolderEntry {
    /// Its path; several where they name the same app.
    places: Vec<PathBuf>,
    /// Digest of the times, sizes, rights and numbers of its files: one that was changed has
    /// another.
    marks: String,
}

/// Content of the folder.
#[derive(Debug, Default)]
pub struct FolderContent {
    /// Files and sub-folders by the name of their app.
    pub apps: LiteMap<String, FolderEntry>,
    /// One whose name is none of an app.
    pub odd: Option<Error>,
}

/// Looks at the files and sub-folders. Hidden ones and files that hold no manifests are left out.
/// It blocks.
///
/// # Errors
/// The folder cannot be read, or is not root's alone.
pub fn look(folder: &Path) -> Result<FolderContent> {
    files::only_roots(folder)?;
    let cannot =
        |error: &std::io::Error| files::explain(format!("cannot read {}", folder.display()), error);
    let mut found = FolderContent::default();
    let mut places: LiteMap<String, Vec<PathBuf>> = LiteMap::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).map_err(|error| cannot(&error))? {
        let path = entry.map_err(|error| cannot(&error))?.path();
        let Some(app) = app_of(&path) else { continue };
        seen += 1;
        if seen > ENTRIES_MAX {
            return Err(
                Error::new(format!("{} is not used", folder.display())).why(format!(
                    "it has more than {ENTRIES_MAX} files and sub-folders"
                )),
            );
        }
        if is_name(&app) {
            places.entry(app).or_default().push(path);
        } else {
            found.odd = Some(
                Error::new(format!("{} does not name an app", path.display()))
                    .fix("rename it: up to 40 lowercase letters, digits and dashes"),
            );
        }
    }
    let entry = |(app, mut places): (String, Vec<PathBuf>)| {
        places.order();
        let marks = marks(&places);
        (app, FolderEntry { places, marks })
    };
    found.apps = places.into_iter().map(entry).gather();
    Ok(found)
}

/// Name of the app that a file or sub-folder would be.
fn app_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    if name.starts_with('.') {
        return None;
    }
    if path.is_dir() {
        return Some(name.into_owned());
    }
    let stem = name.rsplit_once('.')?.0;
    is_manifest(&name).then(|| stem.to_owned())
}

fn marks(places: &[PathBuf]) -> String {
    let mut all = Context::new(&SHA256);
    let mut mark = |path: &Path| {
        // What cannot be looked at is refused where it is read.
        let marks = std::fs::symlink_metadata(path).map_or([0; 7], |it| {
            let times = [it.ctime(), it.ctime_nsec(), it.mtime(), it.mtime_nsec()];
            let [a, b, c, d] = times.map(i64::cast_unsigned);
            [a, b, c, d, it.size(), it.ino(), it.mode().into()]
        });
        all.update(path.as_os_str().as_encoded_bytes());
        for mark in marks {
            all.update(&mark.to_le_bytes());
        }
    };
    for place in places {
        mark(place);
        for path in manifest_files(place).unwrap_or_default() {
            mark(&path);
        }
    }
    hex(all.finish().as_ref())
}

impl FolderEntry {
    /// Its path in words.
    pub fn place(&self) -> String {
        let place = self.places.first();
        place
            .map(|place| place.display().to_string())
            .unwrap_or_default()
    }

    /// Reads its manifests, and makes a digest of them. It blocks.
    ///
    /// # Errors
    /// They cannot be read, others than root could have written them, or somebody is writing them.
    pub fn read(&self) -> Result<(String, String)> {
        let [place] = self.places.as_slice() else {
            let names: Vec<_> = self
                .places
                .iter()
                .map(|it| it.display().to_string())
                .collect();
            return Err(
                Error::new(format!("{} name the same app", names.join(" and ")))
                    .fix("move all but one of them to another place"),
            );
        };
        files::only_roots(place)?;
        for file in manifest_files(place)? {
            files::only_roots(&file)?;
            // A pipe would be waited for, and a device has no end.
            if !file.is_file() {
                return Err(
                    Error::new(format!("{} is not an ordinary file", file.display()))
                        .fix("move it to another place"),
                );
            }
        }
        let text = manifests(place)?;
        if marks(&self.places) != self.marks {
            return Err(
                Error::new(format!("{} is being written", place.display())).retry(Retry::Soon)
            );
        }
        let digest = hex(digest(&SHA256, text.as_bytes()).as_ref());
        Ok((text, digest))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use nix::unistd::geteuid;

    use super::*;

    fn put(path: &Path, text: &str) {
        files::replace(path, text.as_bytes(), 0o644).unwrap();
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn read(folder: &Path, app: &str) -> Result<(String, String)> {
        look(folder)?.apps.get(app).unwrap().read()
    }

    #[test]
    fn files_and_folders_are_apps_and_a_change_shows() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let path = |name: &str| folder.join(name);
        put(&path("web.yaml"), "a: 1");
        put(&path("README.md"), "");
        put(&path(".web.yaml"), "");
        std::fs::create_dir(path("shop")).unwrap();
        put(&path("shop/b.yml"), "b: 1");
        put(&path("shop/a.yml"), "a: 1");
        // One that is just written, and the lock of an editor.
        put(&path("shop/.c.yml"), "c: [");
        symlink("somebody@here.1", path("shop/.#a.yml")).unwrap();
        let before = look(folder).unwrap();
        assert_eq!(before.apps.keys().collect::<Vec<_>>(), ["shop", "web"]);
        assert!(before.odd.is_none());
        assert_eq!(before.apps, look(folder).unwrap().apps);
        let (text, digest) = read(folder, "shop").unwrap();
        assert_eq!(
            (text.as_str(), digest.len()),
            ("--- # file a.yml\na: 1\n--- # file b.yml\nb: 1\n", 64)
        );
        // One that is written again while it is read is not what was seen.
        std::fs::remove_file(path("shop/b.yml")).unwrap();
        let error = before.apps.get("shop").unwrap().read().unwrap_err();
        assert_eq!(
            (error.retry, error.sentence().contains("is being written")),
            (Retry::Soon, true)
        );
        let after = look(folder).unwrap().apps;
        assert_ne!(before.apps.get("shop").unwrap(), after.get("shop").unwrap());
        assert_eq!(before.apps.get("web").unwrap(), after.get("web").unwrap());
        put(&path("shop.json"), "{}");
        assert!(
            read(folder, "shop")
                .unwrap_err()
                .sentence()
                .contains("name the same app")
        );
        std::fs::rename(path("shop.json"), path("Shop.json")).unwrap();
        let odd = look(folder).unwrap();
        assert!(
            odd.odd
                .unwrap()
                .sentence()
                .contains("Shop.json does not name an app")
        );
        assert_eq!(odd.apps, after, "the others go on");
    }

    #[test]
    fn what_others_could_have_written_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let file = folder.join("web.yaml");
        put(&file, "a: 1");
        assert!(read(folder, "web").is_ok());
        let refused = |wanted: &str| {
            let said = read(folder, "web").unwrap_err().to_string();
            assert!(said.contains(wanted), "{said}");
        };
        mode(&file, 0o664);
        refused("chmod go-w");
        mode(&file, 0o644);
        mode(folder, 0o775);
        refused("chmod go-w");
        mode(folder, 0o755);
        chown(&file, Some(1), None).unwrap();
        refused("chown root");
        // Links, out of the folder or in it, pipes, and what is too large.
        std::fs::remove_file(&file).unwrap();
        symlink("/etc/hostname", &file).unwrap();
        refused("symbolic link");
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
        refused("not an ordinary file");
        std::fs::remove_file(&file).unwrap();
        put(&file, "");
        let large = std::fs::OpenOptions::new().write(true).open(&file);
        large.unwrap().set_len(100 << 20).unwrap();
        refused("it is longer than 1048576 bytes");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(folder.join("web")).unwrap();
        refused("it has 0 files of manifests");
        put(&folder.join("web/a.yaml"), &"#".repeat(600_000));
        put(&folder.join("web/b.yaml"), &"#".repeat(600_000));
        refused("more than 1048576 bytes");
        symlink("/etc/ssl", folder.join("web/c.yaml")).unwrap();
        refused("symbolic link");
    }
}
