//! Archives of images that k3s imports: which there are, and whether their images are pinned.

use super::super::system::System;
use crate::{
    core::k3s::{
        images::{self, Archives, CACHE, FOLDER, OF_A_RELEASE},
        pins,
        step::{Step, file},
    },
    files::PRIVATE,
    host::facts,
};

impl System {
    /// Looks at the archives, and asks containerd for pins only where k3s skips an archive.
    pub(super) fn archives(&self, data_dir: &str) -> Archives {
        let names = self.archive_names(data_dir);
        let cache = self.text(&cache(data_dir)).unwrap_or_default();
        let is_skipped = names.iter().any(|name| images::is_skipped(&cache, name));
        let are_unpinned = is_skipped
            && self.is_there(pins::SOCKET)
            && self
                .images(Some(&pins::of_k3s()))
                .is_ok_and(|names| names.trim().is_empty());
        Archives {
            has_release: names.iter().any(|name| name.starts_with(OF_A_RELEASE)),
            are_unpinned,
        }
    }

    /// Step that has the next start of k3s import all archives, where it would skip some.
    pub(super) fn forget_imports(&self, data_dir: &str) -> Option<Step> {
        let cache = cache(data_dir);
        // k3s makes no such file by itself, so an empty one keeps what root wanted.
        self.is_there(&cache)
            .then(|| file(&cache, String::new(), PRIVATE))
    }

    /// Reason why an import did not help, if it did not.
    pub(super) fn still_lacks(&self, data_dir: &str, image: Option<&str>) -> Option<String> {
        if let Some(image) = image {
            let found = self.images(Some(&images::named(image))).ok()?;
            return (found.trim().is_empty())
                .then(|| format!("no archive in agent/images has the image {image}"));
        }
        self.archives(data_dir)
            .are_unpinned
            .then(|| "k3s has pinned no image again".to_owned())
    }

    /// Reason not to import archives now.
    pub(super) fn lacks_room_for_images(&self, data_dir: &str) -> Option<String> {
        let names = self.archive_names(data_dir);
        let lengths = names.iter().filter_map(|name| {
            let path = self.path(&format!("{data_dir}/{FOLDER}/{name}"));
            Some(std::fs::metadata(path).ok()?.len())
        });
        let space = facts::disk_space(&self.path(data_dir))?;
        images::lacks_room(lengths.sum(), space.available_bytes)
    }

    fn archive_names(&self, data_dir: &str) -> Vec<String> {
        let files = self.list(&format!("{data_dir}/{FOLDER}"), "");
        let names = files
            .iter()
            .filter_map(|path| Some(path.rsplit_once('/')?.1));
        names
            .filter(|name| images::is_archive(name))
            .map(str::to_owned)
            .collect()
    }
}

fn cache(data_dir: &str) -> String {
    format!("{data_dir}/{FOLDER}/{CACHE}")
}
