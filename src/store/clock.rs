//! Clock record: a time that has certainly been, for the start of a machine whose clock is not set.

use std::path::Path;

use super::{
    Failure, Handle,
    disk::{CLOCK, Disk},
};
use crate::{
    core::time::Wall,
    error::Result,
    files,
    wire::state::{read_clock, write_clock},
};

/// A record has 80 bytes.
const FILE_BYTES_MAX: usize = 4096;

impl Handle {
    /// Keeps the first moment of a certificate that was verified.
    pub async fn keep_clock(&self, not_before: Wall) -> std::result::Result<(), Failure> {
        self.queue(move |disk| write(disk, not_before).map_err(Failure::Disk))
            .await
    }
}

fn write(disk: &Disk, not_before: Wall) -> Result<()> {
    if let Some(newer) = disk.newer() {
        return Err(newer.clone());
    }
    let path = disk.directory().join(CLOCK);
    files::replace(&path, &write_clock(not_before), files::PRIVATE)
}

/// The record. A missing or damaged one is none: the next verified certificate replaces it.
pub(super) fn read(directory: &Path) -> Option<Wall> {
    let path = directory.join(CLOCK);
    let content = files::read_if_there(&path, FILE_BYTES_MAX).ok()??;
    let time = read_clock(&content);
    if time.is_none() {
        log::warn!(
            "{} is damaged and ignored; the next session writes it again",
            path.display()
        );
    }
    time
}

#[cfg(test)]
mod tests {
    use smol::block_on;

    use super::*;
    use crate::store::Store;

    fn open(directory: &Path) -> (Store, Option<Wall>) {
        let (store, loaded) = block_on(Store::open(directory, Wall::default())).unwrap();
        (store, loaded.clock)
    }

    #[test]
    fn a_record_outlives_a_restart_and_a_damaged_one_is_ignored_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (store, clock) = open(directory.path());
        assert_eq!(clock, None);
        let time = Wall::from_millis(1_781_589_028_000);
        block_on(store.handle().keep_clock(time)).unwrap();
        block_on(store.close()).unwrap();
        let (store, clock) = open(directory.path());
        assert_eq!(clock, Some(time));
        block_on(store.close()).unwrap();
        let path = directory.path().join(CLOCK);
        let mut content = std::fs::read(&path).unwrap();
        content[0] = b'9';
        files::replace(&path, &content, files::PRIVATE).unwrap();
        let (store, clock) = open(directory.path());
        assert_eq!(clock, None);
        block_on(store.handle().keep_clock(time)).unwrap();
        block_on(store.close()).unwrap();
        assert_eq!(open(directory.path()).1, Some(time));
    }
}
