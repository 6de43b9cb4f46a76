//! A disk that records: one file, served by FUSE, on which a loop device and a file system lie.
//! Every write and every flush of the block device comes here in its order, so that the disk can be
//! put back to any moment, and to any that a reordering cache could have left.
//!
//! The protocol is that of `fuse(4)`, version 7.31; the root of the mount is the file itself, so
//! nothing is looked up.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use nix::mount::{MsFlags, mount, umount};

/// What a disk writes at once, or not at all.
pub(super) const SECTORS: usize = 4096;
/// The largest write of one request.
const WRITE_BYTES_MAX: u32 = 128 * 1024;

/// What a block device was asked for.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Bytes are to be at a place, some day.
    Write(usize, Vec<u8>),
    /// All writes before this are durable.
    Flush,
}

/// The disk as it was when it was made, and what came after.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) first: Vec<u8>,
    pub(super) events: Vec<Event>,
}

/// A disk that is being recorded.
pub(super) struct Recorder {
    path: PathBuf,
    count: Arc<AtomicUsize>,
    server: Option<JoinHandle<Recording>>,
}

impl Recorder {
    /// Serves an image at `path`, which is made for it. It takes root.
    pub(super) fn start(path: &Path, image: Vec<u8>) -> Self {
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .unwrap();
        File::options()
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap();
        let options = format!(
            "fd={},rootmode=100000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = Some(options.as_str());
        mount(
            Some("recorder"),
            path,
            Some("fuse"),
            MsFlags::empty(),
            options,
        )
        .unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        #[expect(
            clippy::disallowed_methods,
            reason = "it ends with the mount, and is joined"
        )]
        let server = std::thread::spawn(move || serve(device, image, &counted));
        Self {
            path: path.to_owned(),
            count,
            server: Some(server),
        }
    }

    /// How many events there were. What was acknowledged before this is called is among them.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Ends it. The file system on it must be unmounted.
    pub(super) fn end(mut self) -> Recording {
        umount(&self.path).unwrap();
        self.server.take().unwrap().join().unwrap()
    }
}

impl Recording {
    /// The disk after the first `count` events. With `dice` it did with what was not flushed what a
    /// disk may: each sector of each such write is there or not.
    pub(super) fn after(
        &self,
        count: usize,
        mut dice: Option<&mut dyn FnMut() -> bool>,
    ) -> Vec<u8> {
        let events = &self.events[..count];
        let flushed = events
            .iter()
            .rposition(|event| matches!(event, Event::Flush))
            .unwrap_or(0);
        let mut image = self.first.clone();
        for (place, event) in events.iter().enumerate() {
            let Event::Write(at, bytes) = event else {
                continue;
            };
            let mut at = *at;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let length = (SECTORS - at % SECTORS).min(rest.len());
                let is_there = match &mut dice {
                    Some(dice) if place > flushed => dice(),
                    Some(_) | None => true,
                };
                if is_there {
                    image[at..at + length].copy_from_slice(&rest[..length]);
                }
                rest = &rest[length..];
                at += length;
            }
        }
        image
    }
}

/// Answers the kernel until the file is unmounted.
fn serve(mut device: File, mut image: Vec<u8>, count: &AtomicUsize) -> Recording {
    let first = image.clone();
    let mut events = Vec::new();
    let mut request = vec![0; usize::try_from(WRITE_BYTES_MAX).unwrap() + 8192];
    loop {
        let length = match device.read(&mut request) {
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => break,
            Err(error) => panic!("/dev/fuse: {error}"),
        };
        let number = |at: usize, bytes: usize| {
            let mut number = [0; 8];
            number[..bytes].copy_from_slice(&request[at..at + bytes]);
            usize::try_from(u64::from_le_bytes(number)).unwrap()
        };
        let (operation, unique) = (number(4, 4), number(8, 8));
        // Of reads and writes; of others it means nothing.
        let (at, size) = if length >= 60 {
            (number(48, 8), number(56, 4))
        } else {
            (0, 0)
        };
        let mut reply = Vec::new();
        let mut error = 0_i32;
        match operation {
            // FORGET, INTERRUPT, BATCH_FORGET: no reply.
            2 | 36 | 42 => continue,
            // GETATTR, SETATTR
            3 | 4 => reply = attributes(image.len()),
            // OPEN
            14 => reply = vec![0; 16],
            // READ
            15 => reply = image[at..(at + size).min(image.len())].to_vec(),
            // WRITE
            16 => {
                let bytes = &request[80..80 + size];
                image[at..at + size].copy_from_slice(bytes);
                events.push(Event::Write(at, bytes.to_vec()));
                count.store(events.len(), Ordering::SeqCst);
                reply.extend(u64::try_from(size).unwrap().to_le_bytes());
            }
            // FSYNC
            20 => {
                events.push(Event::Flush);
                count.store(events.len(), Ordering::SeqCst);
            }
            // RELEASE, FLUSH
            18 | 25 => {}
            // INIT
            26 => reply = greeting(number(48, 4)),
            _ => error = -nix::libc::ENOSYS,
        }
        let mut answer = Vec::with_capacity(16 + reply.len());
        answer.extend(u32::try_from(16 + reply.len()).unwrap().to_le_bytes());
        answer.extend(error.to_le_bytes());
        answer.extend(u64::try_from(unique).unwrap().to_le_bytes());
        answer.extend(reply);
        // An answer to a request that was given up meanwhile is an error.
        drop(device.write(&answer));
    }
    Recording { first, events }
}

/// `fuse_attr_out` of the image: a plain file of root.
fn attributes(size: usize) -> Vec<u8> {
    let size = u64::try_from(size).unwrap();
    let mut reply = Vec::new();
    // How long it may be kept; inode, size, blocks, three times.
    for long in [3600, 0, 1, size, size / 512, 0, 0, 0] {
        reply.extend(u64::to_le_bytes(long));
    }
    // Parts of the times, mode, links, owner, group, device, block size, flags.
    for short in [0, 0, 0, 0o100_600, 1, 0, 0, 0, 4096, 0] {
        reply.extend(u32::to_le_bytes(short));
    }
    reply
}

/// `fuse_init_out`.
fn greeting(readahead: usize) -> Vec<u8> {
    // Writes of more than a page.
    const BIG_WRITES: u32 = 1 << 5;
    let readahead = u32::try_from(readahead).unwrap();
    let mut reply = Vec::new();
    for number in [
        7,
        31,
        readahead,
        BIG_WRITES,
        0x0009_000c,
        WRITE_BYTES_MAX,
        1,
    ] {
        reply.extend(number.to_le_bytes());
    }
    reply.resize(64, 0);
    reply
}
