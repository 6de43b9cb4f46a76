//! A disk that can be made to hang: ext4 on a loop device, frozen by `fsfreeze`. A process of its
//! own thaws it after a time, whatever becomes of the test.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use crate::agent::{clock, command};

/// Longest time that it stays frozen.
const FROZEN_S: u64 = 60;

pub(super) fn must(words: &[&str]) {
    assert!(try_to(words), "{words:?}");
}

fn try_to(words: &[&str]) -> bool {
    let mut program = command(words[0]);
    let output = program.args(&words[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

pub(super) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Reason why no disk can be made to hang here; `None` where one can.
pub(super) fn what_is_missing() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("skipped: it takes root to make a disk hang");
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    let image = folder.path().join("image");
    std::fs::create_dir(&place).unwrap();
    make_image(&image);
    let [image, place] = [text(&image), text(&place)];
    let script =
        format!("mount -o loop {image} {place} && fsfreeze -f {place} && fsfreeze -u {place}");
    let can = try_to(&["mkfs.ext4", "-q", &image])
        && try_to(&["unshare", "--mount", "sh", "-c", &script]);
    (!can).then_some("impossible here: a disk that hangs takes loop devices and fsfreeze")
}

fn make_image(path: &Path) {
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    file.set_len(64 << 20).unwrap();
}

/// The disk. Whoever makes it has mounts of its own, which end with it.
pub(super) struct Disk {
    place: PathBuf,
}

impl Disk {
    pub(super) fn new(directory: &Path) -> Self {
        let [image, place] = ["disk.img", "disk"].map(|name| directory.join(name));
        make_image(&image);
        std::fs::create_dir(&place).unwrap();
        must(&["mkfs.ext4", "-q", &text(&image)]);
        must(&["mount", "-o", "loop", &text(&image), &text(&place)]);
        Self { place }
    }

    pub(super) fn path(&self) -> &Path {
        &self.place
    }

    /// From here on nothing is written; reads of what is in memory go on.
    pub(super) fn freeze(&self) -> Frozen<'_> {
        let place = text(&self.place);
        let script = format!("sleep {FROZEN_S}; exec fsfreeze -u {place}");
        let mut thaws = command("setsid");
        let thaws = thaws
            .args(["sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        must(&["fsfreeze", "-f", &place]);
        Frozen {
            disk: self,
            thaws,
            since: clock(),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a process of the test may still be in it. Its mounts end with the test in any
        // case.
        try_to(&["umount", "-l", &text(&self.place)]);
    }
}

/// A disk that hangs, until this is dropped.
pub(super) struct Frozen<'a> {
    disk: &'a Disk,
    thaws: Child,
    since: Instant,
}

impl Frozen<'_> {
    pub(super) fn lasts(&self) -> Duration {
        clock() - self.since
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let lasted = self.lasts();
        let thawed = try_to(&["fsfreeze", "-u", &text(&self.disk.place)]);
        // The whole group: the shell waits for its sleep.
        let group = nix::unistd::Pid::from_raw(i32::try_from(self.thaws.id()).unwrap());
        nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).ok();
        self.thaws.wait().ok();
        if !std::thread::panicking() {
            assert!(thawed, "it was thawed by its deadline: {lasted:?}");
        }
    }
}
