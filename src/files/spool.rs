//! Spool of large responses: unlinked files under one quota, gone with their owner or the process.
//!
//! Reads and writes run in the blocking pool, so a slow card delays one response and not the
//! executor.

use std::{
    cell::Cell,
    fmt,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use hyper::body::Bytes;
use nix::fcntl::OFlag;
use smol::future::FutureExt as _;

use super::{Jobs, PRIVATE, explain};
use crate::{
    core::stall::Job,
    error::{Error, Retry},
    executor,
};

/// Time that the disk may take for one piece.
const WITHIN: Duration = Duration::from_secs(30);

/// Maximum bytes of all spooled files together.
pub const SPOOLED_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes of one spooled file.
pub const SPOOLED_FILE_BYTES_MAX: u64 = 32 << 20;

/// The place for large answers, and what is left of its quota.
#[derive(Clone, Debug)]
pub struct Spool {
    directory: PathBuf,
    used: Rc<Cell<u64>>,
    jobs: Jobs,
}

/// One large answer on disk. Its room is given back when it is dropped.
#[derive(Debug)]
pub struct SpoolFile {
    /// There until it is dropped.
    file: Option<Arc<File>>,
    length: u64,
    used: Rc<Cell<u64>>,
    jobs: Jobs,
}

/// Reasons why an answer could not be spooled.
#[derive(Debug)]
pub enum SpoolFailure {
    /// This answer is larger than one answer may be.
    TooLarge,
    /// Other answers use the room now.
    Full,
    /// The disk refused.
    Disk(Error),
}

impl fmt::Display for SpoolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(
                f,
                "the answer is larger than {} MiB",
                SPOOLED_FILE_BYTES_MAX >> 20
            ),
            Self::Full => write!(
                f,
                "other large answers use all of the {} MiB that may wait on disk",
                SPOOLED_BYTES_MAX >> 20
            ),
            Self::Disk(error) => f.write_str(&error.sentence()),
        }
    }
}

impl std::error::Error for SpoolFailure {}

impl From<SpoolFailure> for Error {
    fn from(failure: SpoolFailure) -> Self {
        let text = failure.to_string();
        match failure {
            SpoolFailure::TooLarge => {
                Self::new(text).fix("ask for the streaming mode, or for less")
            }
            SpoolFailure::Full => Self::new(text)
                .fix("try again, or ask for the streaming mode")
                .retry(Retry::Soon),
            SpoolFailure::Disk(error) => error,
        }
    }
}

impl Spool {
    /// A spool in `directory`, which must exist when the first file is opened.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            used: Rc::default(),
            jobs: Jobs::default(),
        }
    }

    /// The same, and what it does stands in the list of `jobs`.
    #[must_use]
    pub fn listed(self, jobs: Jobs) -> Self {
        Self { jobs, ..self }
    }

    /// Opens an empty file that has no name.
    pub async fn open(&self) -> Result<SpoolFile, SpoolFailure> {
        let directory = self.directory.clone();
        let opened = work(&self.jobs, move || unnamed(&directory)).await;
        let file = opened.map_err(|error| disk("cannot spool an answer", &error))?;
        Ok(SpoolFile {
            file: Some(Arc::new(file)),
            length: 0,
            used: Rc::clone(&self.used),
            jobs: self.jobs.clone(),
        })
    }

    /// Bytes that wait on disk now, in all files.
    pub fn used_bytes(&self) -> u64 {
        self.used.get()
    }
}

impl SpoolFile {
    /// Writes a piece at the end. A piece that fails or is dropped half-way still counts against
    /// the quota until the file goes.
    pub async fn append(&mut self, piece: Bytes) -> Result<(), SpoolFailure> {
        let more = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        let length = self.length.saturating_add(more);
        let used = self.used.get().saturating_add(more);
        if length > SPOOLED_FILE_BYTES_MAX {
            return Err(SpoolFailure::TooLarge);
        }
        if used > SPOOLED_BYTES_MAX {
            return Err(SpoolFailure::Full);
        }
        let (file, at) = (self.file.clone(), self.length);
        self.used.set(used);
        self.length = length;
        let written = work(&self.jobs, move || {
            file.map_or(Ok(()), |file| file.write_all_at(&piece, at))
        })
        .await;
        written.map_err(|error| disk("cannot spool an answer", &error))
    }

    /// Reads up to `bytes_max` bytes from `at`; an empty piece is the end.
    pub async fn read(&self, at: u64, bytes_max: usize) -> Result<Bytes, SpoolFailure> {
        let left = self.length.saturating_sub(at);
        let length = usize::try_from(left).map_or(bytes_max, |left| left.min(bytes_max));
        let file = self.file.clone();
        let read = move || {
            let mut piece = vec![0; length];
            file.map_or(Ok(()), |file| file.read_exact_at(&mut piece, at))
                .map(|()| piece)
        };
        let piece = work(&self.jobs, read).await;
        piece
            .map(Bytes::from)
            .map_err(|error| disk("cannot read a spooled answer", &error))
    }

    /// Bytes in this file.
    pub const fn length(&self) -> u64 {
        self.length
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        self.used.set(self.used.get().saturating_sub(self.length));
        let file = self.file.take();
        // The file has no name: the last one that closes it frees its blocks, which waits for a
        // disk that hangs. A job that is dropped before it began is dropped by the pool.
        drop(executor::unblock(move || drop(file)));
    }
}

/// Does blocking work in the pool; fails where the disk hangs, or does not answer in time.
async fn work<T: Send + 'static>(
    jobs: &Jobs,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let unanswered = || io::Error::new(io::ErrorKind::TimedOut, "the disk does not answer");
    if jobs.is_store_hung() {
        return Err(unanswered());
    }
    let begun = jobs.begin(Job::Spool);
    let done = executor::unblock(move || {
        let _begun = begun;
        work()
    });
    let given_up = async {
        jobs.give_up(WITHIN).await;
        Err(unanswered())
    };
    done.or(given_up).await
}

fn disk(what: &str, error: &io::Error) -> SpoolFailure {
    SpoolFailure::Disk(explain(what, error))
}

/// A file that has no name, so that nothing is left of it however the process ends.
fn unnamed(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(PRIVATE);
    let without_name = options
        .clone()
        .custom_flags(OFlag::O_TMPFILE.bits())
        .open(directory);
    match without_name {
        // Some file systems (overlayfs of older kernels, NFS, FAT) cannot: there the name is taken
        // away at once.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::Unsupported | io::ErrorKind::IsADirectory
            ) =>
        {
            let path = directory.join(super::unfinished_name("spool".as_ref()));
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Ok(_) | Err(_) => without_name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 32 * 1024;

    async fn fill(file: &mut SpoolFile, bytes: u64) -> Result<(), SpoolFailure> {
        let piece = Bytes::from(vec![7; 1 << 20]);
        while file.length() < bytes {
            file.append(piece.clone()).await?;
        }
        Ok(())
    }

    #[test]
    fn what_is_appended_is_read_back_and_leaves_no_name() {
        let directory = tempfile::tempdir().unwrap();
        smol::block_on(async {
            let spool = Spool::new(directory.path());
            let mut file = spool.open().await.unwrap();
            let content: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
            for piece in content.chunks(PIECE) {
                file.append(Bytes::copy_from_slice(piece)).await.unwrap();
            }
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
            let mut back = Vec::new();
            loop {
                let at = u64::try_from(back.len()).unwrap();
                let piece = file.read(at, PIECE).await.unwrap();
                if piece.is_empty() {
                    break;
                }
                assert!(piece.len() <= PIECE);
                back.extend_from_slice(&piece);
            }
            assert_eq!(back, content);
        });
    }

    #[test]
    fn one_answer_and_all_answers_have_their_quota_and_a_drop_gives_it_back() {
        let directory = tempfile::tempdir().unwrap();
        smol::block_on(async {
            let spool = Spool::new(directory.path());
            let mut first = spool.open().await.unwrap();
            fill(&mut first, SPOOLED_FILE_BYTES_MAX).await.unwrap();
            let more = first.append(Bytes::from_static(b"x")).await;
            assert!(matches!(more, Err(SpoolFailure::TooLarge)));
            let mut second = spool.open().await.unwrap();
            fill(&mut second, SPOOLED_FILE_BYTES_MAX).await.unwrap();
            assert_eq!(spool.used_bytes(), SPOOLED_BYTES_MAX);
            let mut third = spool.open().await.unwrap();
            let full = third.append(Bytes::from_static(b"x")).await;
            assert!(matches!(full, Err(SpoolFailure::Full)));
            drop(first);
            third.append(Bytes::from_static(b"x")).await.unwrap();
            drop((second, third));
            assert_eq!(spool.used_bytes(), 0);
        });
    }

    #[test]
    fn a_missing_directory_is_the_disks_fault_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path().join("gone"));
        let failure = smol::block_on(spool.open()).unwrap_err();
        assert!(matches!(failure, SpoolFailure::Disk(_)), "{failure}");
        assert!(Error::from(failure).sentence().contains("cannot spool"));
    }

    #[test]
    fn a_file_system_that_needs_names_works_too() {
        // Both ways end in the same: a file that can be read, and no name.
        let directory = tempfile::tempdir().unwrap();
        let file = unnamed(directory.path()).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        let mut back = [0; 3];
        file.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(&back, b"abc");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
