//! Kernel log: the lines that checks look for.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use nix::{errno::Errno, fcntl::OFlag};

use crate::core::{doctor::is_of_interest, facts::Fact};

/// The log has a few thousand records.
const RECORDS_MAX: usize = 20_000;
/// The newest lines of interest; one tells as much as a hundred.
const LINES_MAX: usize = 50;
const LINE_LENGTH_MAX: usize = 300;

/// Lines of interest, the newest last: `6,1234,98765,-;text`.
pub(super) fn read(path: &Path) -> Fact {
    let opened = OpenOptions::new()
        .read(true)
        // Without it the read behind the last record would wait for the next one.
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path);
    let mut log = match opened {
        Ok(log) => log,
        Err(error) => return super::failed(&error),
    };
    let mut lines: Vec<String> = Vec::new();
    let mut buffer = vec![0; 8192];
    // One read is one record; of a captured tree it is a piece of the file.
    for _ in 0..RECORDS_MAX {
        let length = match log.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            // A record was overwritten while it was read: the next one is there.
            Err(error) if error.raw_os_error().map(Errno::from_raw) == Some(Errno::EPIPE) => {
                continue;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return super::failed(&error),
        };
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        let shown = text
            .lines()
            .filter(|line| is_of_the_kernel(line) && is_of_interest(line));
        lines.extend(shown.map(|line| line.chars().take(LINE_LENGTH_MAX).collect()));
    }
    let newest = lines.len().saturating_sub(LINES_MAX);
    Fact::Text(lines.split_off(newest).join("\n"))
}

/// Priorities from 8 on are not the kernel's: what any program writes there, a container's too.
fn is_of_the_kernel(line: &str) -> bool {
    let priority = line
        .split(',')
        .next()
        .and_then(|number| number.parse().ok());
    priority.is_some_and(|priority: u32| priority < 8)
}
