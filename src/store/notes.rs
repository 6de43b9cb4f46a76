//! Notes: small values that must survive a restart and a damaged database, such as the access level
//! set by hand and hashes of credentials.
//!
//! They are one small file next to the database. An unreadable file differs from a missing one, and
//! the caller is told.

use std::{collections::BTreeMap, path::Path};

use super::{
    Failure, Handle,
    disk::{Disk, NOTES},
};
use crate::{
    error::{Error, Result},
    files,
};

/// A hundred times what is kept.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// Notes: short words by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Notes {
    words: BTreeMap<String, String>,
    /// True if there is a file that could not be read, so that what was in it is not known.
    pub is_unreadable: bool,
}

impl Notes {
    /// The word under a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.words.get(name).map(String::as_str)
    }
}

impl Handle {
    /// Keeps a word under a name, or forgets it. On disk when this returns; after an error it is
    /// kept in memory, and the next word that is kept writes it too.
    pub async fn keep_note(
        &self,
        name: &'static str,
        word: Option<String>,
    ) -> std::result::Result<(), Failure> {
        self.call(move |disk| {
            match word {
                Some(word) => disk.notes.words.insert(name.to_owned(), word),
                None => disk.notes.words.remove(name),
            };
            write(disk).map_err(Failure::Disk)
        })
        .await
    }
}

fn write(disk: &mut Disk) -> Result<()> {
    if let Some(newer) = disk.newer() {
        return Err(newer.clone());
    }
    let path = disk.directory().join(NOTES);
    let mut content = serde_json::to_vec_pretty(&disk.notes.words)
        .map_err(|error| Error::new(format!("cannot write {}", path.display())).because(&error))?;
    content.push(b'\n');
    files::replace(&path, &content, files::PRIVATE)
}

/// Reads the file.
pub(super) fn read(directory: &Path) -> Notes {
    let unreadable = Notes {
        is_unreadable: true,
        ..Notes::default()
    };
    match files::read_if_there(&directory.join(NOTES), FILE_BYTES_MAX) {
        Ok(None) => Notes::default(),
        Ok(Some(content)) => serde_json::from_slice(&content).map_or(unreadable, |words| Notes {
            words,
            is_unreadable: false,
        }),
        Err(_) => unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{core::time::Wall, store::Store};
    use smol::block_on;

    fn open(directory: &Path) -> (Store, Notes) {
        let (store, loaded) = block_on(Store::open(directory, Wall::default())).unwrap();
        (store, loaded.notes)
    }

    #[test]
    fn a_word_outlives_a_restart_and_the_database() {
        let directory = tempfile::tempdir().unwrap();
        let (store, notes) = open(directory.path());
        assert_eq!(notes, Notes::default());
        let keep = |name, word: Option<&str>| {
            block_on(store.handle().keep_note(name, word.map(str::to_owned))).unwrap();
        };
        keep("one", Some("1"));
        keep("other", Some("2"));
        keep("one", None);
        block_on(store.close()).unwrap();
        files::replace(
            &directory.path().join("state.db"),
            b"damaged",
            files::PRIVATE,
        )
        .unwrap();
        let (_store, notes) = open(directory.path());
        assert_eq!((notes.get("one"), notes.get("other")), (None, Some("2")));
        assert!(!notes.is_unreadable);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_the_same_as_none() {
        let directory = tempfile::tempdir().unwrap();
        // Not whole, and larger than any.
        for content in [b"{".to_vec(), vec![b' '; FILE_BYTES_MAX + 1]] {
            files::replace(&directory.path().join(NOTES), &content, files::PRIVATE).unwrap();
            let (store, notes) = open(directory.path());
            assert!(notes.is_unreadable);
            block_on(store.close()).unwrap();
        }
    }

    #[test]
    fn what_a_newer_program_keeps_beside_its_database_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = open(directory.path());
        block_on(store.close()).unwrap();
        let other = rusqlite::Connection::open(directory.path().join("state.db")).unwrap();
        for number in ["user_version", "application_id"] {
            other.pragma_update(None, number, 99).unwrap();
        }
        let (store, _) = open(directory.path());
        let handle = store.handle();
        block_on(handle.keep_note("one", Some("1".to_owned()))).unwrap_err();
        block_on(handle.keep_clock(Wall::from_millis(1))).unwrap_err();
        for name in [NOTES, crate::store::CLOCK] {
            assert!(!directory.path().join(name).exists(), "{name}");
        }
        block_on(store.close()).unwrap();
    }
}
