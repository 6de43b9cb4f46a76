//! A file system whose reads hang, too: a folder shown elsewhere by a FUSE program, which is
//! stopped. A process of its own lets it go on after a time, whatever becomes of the test.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

use super::disk::{must, text};
use crate::agent::{clock, command, has, until};

/// Longest time that it stays stopped.
const STOPPED_S: u64 = 60;

/// Reason why none can be had here; `None` where one can.
pub(super) fn what_is_missing() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("skipped: it takes root to mount");
    }
    if !has("bindfs") {
        // It has said so.
        return Some("reads cannot be made to hang");
    }
    let device = std::fs::File::options().read(true).open("/dev/fuse");
    device
        .is_err()
        .then_some("impossible here: reads that hang take /dev/fuse")
}

/// The file system. Whoever makes it has mounts of its own, which end with it.
pub(super) struct Passthrough {
    place: PathBuf,
    program: Child,
}

impl Passthrough {
    pub(super) fn new(directory: &Path) -> Self {
        let [source, place] = ["source", "place"].map(|name| directory.join(name));
        for folder in [&source, &place] {
            std::fs::create_dir(folder).unwrap();
        }
        let program = command("bindfs")
            .arg("-f")
            .args([&source, &place])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
        let outside = device(directory);
        until("it is mounted", Duration::from_secs(30), || {
            (device(&place) != outside).then_some(())
        });
        Self { place, program }
    }

    pub(super) fn path(&self) -> &Path {
        &self.place
    }

    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.program.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// From here on whoever opens, reads or writes a file of it waits.
    pub(super) fn stop(&self) -> Stopped<'_> {
        let script = format!("sleep {STOPPED_S}; exec kill -CONT {}", self.program.id());
        let thaws = command("setsid")
            .args(["sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.send(Signal::SIGSTOP);
        Stopped {
            of: self,
            thaws,
            since: clock(),
        }
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        must(&["umount", "-l", &text(&self.place)]);
        self.program.kill().ok();
        self.program.wait().ok();
    }
}

/// A file system that hangs, until this is dropped.
pub(super) struct Stopped<'a> {
    of: &'a Passthrough,
    thaws: Child,
    since: Instant,
}

impl Stopped<'_> {
    pub(super) fn lasts(&self) -> Duration {
        clock() - self.since
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.of.send(Signal::SIGCONT);
        let group = Pid::from_raw(i32::try_from(self.thaws.id()).unwrap());
        killpg(group, Signal::SIGKILL).ok();
        self.thaws.wait().ok();
    }
}
