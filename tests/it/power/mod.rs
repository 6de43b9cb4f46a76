//! Power cuts of `state.db`, the identity, the notes and the keeper's journal, at every write and
//! every flush of a real block device: what was acknowledged is there afterwards, once, and what
//! was begun is finished or taken back.

mod recorder;
mod work;

use std::{
    fs::File,
    io::{Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use nix::mount::{MsFlags, mount};
use smol::block_on;

use crate::store::{CHILD, again, said};
use recorder::{Recorder, Recording, SECTORS};
use work::Done;

const TEST: &str = "power::a_power_cut_at_any_write_loses_nothing_that_was_acknowledged";
/// Cuts of a test, and of `make torture`.
const CUTS: [usize; 2] = [100, 1_000];
/// Rounds of work that are recorded.
const ROUNDS: [u64; 2] = [4, 30];
const DISK_BYTES: usize = 24 << 20;

/// A command that must work.
fn must(words: &[&str]) {
    assert!(try_to(words), "{words:?}");
}

fn try_to(words: &[&str]) -> bool {
    #[expect(
        clippy::disallowed_methods,
        reason = "mount and its like end by themselves"
    )]
    let output = Command::new(words[0]).args(&words[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Why this machine cannot record a disk, where it cannot.
fn what_is_missing() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("skipped: it takes root to mount a disk whose power is cut");
    }
    if File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .is_err()
    {
        return Some("impossible here: recording a disk takes /dev/fuse");
    }
    if !try_to(&["mkfs.ext4", "-V"]) {
        return Some("skipped: there is no mkfs.ext4 (apt-get install e2fsprogs)");
    }
    let folder = tempfile::tempdir().unwrap();
    let [image, place] = ["probe.img", "place"].map(|name| text(&folder.path().join(name)));
    std::fs::create_dir(&place).unwrap();
    let may = try_to(&["truncate", "-s", "16M", &image])
        && try_to(&["mkfs.ext4", "-q", &image])
        && try_to(&["unshare", "--mount", "mount", "-o", "loop", &image, &place]);
    (!may).then_some(
        "impossible here: cutting the power of a disk takes loop devices that may be mounted",
    )
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_power_cut_at_any_write_loses_nothing_that_was_acknowledged() {
    if let Some(directory) = std::env::var_os(CHILD) {
        return cut_all(Path::new(&directory));
    }
    if let Some(why) = what_is_missing() {
        println!("{why}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // In mounts of its own: whatever happens, they end with it.
    let own_mounts = ["unshare", "--mount", "--propagation", "private"];
    let told = said(again(TEST, directory.path(), &own_mounts));
    let report = told.lines().find(|line| line.contains(" cuts"));
    println!("{}", report.unwrap_or(&told));
    assert!(told.contains("1 passed"), "{told}");
}

/// Numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap()
    }
}

fn cut_all(directory: &Path) {
    let is_long = usize::from(std::env::var_os("PIPEOPS_TORTURE").is_some());
    // Nothing of it needs to reach a real disk.
    let memory = Some("size=256m");
    mount(
        Some("tmpfs"),
        directory,
        Some("tmpfs"),
        MsFlags::empty(),
        memory,
    )
    .unwrap();
    let (recording, done) = record(directory, ROUNDS[is_long]);
    let cuts = places(&recording, &done, CUTS[is_long]);
    let flushes = recording
        .events
        .iter()
        .filter(|event| matches!(event, recorder::Event::Flush))
        .count();
    let mut dice = Dice(7);
    let mut reordered = 0;
    for (number, place) in cuts.iter().enumerate() {
        // Every second one with a disk that had not got to all of what was not flushed.
        let mut toss = || dice.next().is_multiple_of(2);
        let is_reordered = !number.is_multiple_of(2);
        reordered += usize::from(is_reordered);
        let toss: Option<&mut dyn FnMut() -> bool> =
            if is_reordered { Some(&mut toss) } else { None };
        let image = recording.after(*place, toss);
        let what = format!("cut {number} after event {place}, reordered: {is_reordered}");
        let after = Mounted::new(directory, number, &image);
        block_on(work::check(&after.place, &done, *place, &what));
        drop(after);
    }
    println!(
        "{} cuts ({reordered} reordered) of {} writes and {flushes} flushes, {} things acknowledged",
        cuts.len(),
        recording.events.len() - flushes,
        done.len()
    );
}

/// Works on a disk that is recorded.
fn record(directory: &Path, rounds: u64) -> (Recording, Vec<Done>) {
    let [plain, disk, place] = ["plain.img", "disk.img", "disk"].map(|name| directory.join(name));
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(&plain)
        .unwrap();
    file.set_len(u64::try_from(DISK_BYTES).unwrap()).unwrap();
    must(&[
        "mkfs.ext4",
        "-q",
        "-b",
        "4096",
        "-J",
        "size=4",
        &text(&plain),
    ]);
    let recorder = Recorder::start(&disk, std::fs::read(&plain).unwrap());
    std::fs::remove_file(&plain).unwrap();
    std::fs::create_dir(&place).unwrap();
    must(&["mount", "-o", "loop", &text(&disk), &text(&place)]);
    let done = block_on(work::work(&place, rounds, || recorder.count()));
    must(&["umount", &text(&place)]);
    (recorder.end(), done)
}

/// Where the power is cut: right after each thing that was acknowledged, and anywhere.
fn places(recording: &Recording, done: &[Done], count: usize) -> Vec<usize> {
    let first = done.first().unwrap().begun;
    let all = recording.events.len() - first;
    let mut places: Vec<_> = done.iter().map(|done| done.acknowledged).collect();
    let each = places.len().div_ceil(count / 2);
    places = places.into_iter().step_by(each).collect();
    let rest = count - places.len();
    places.extend((0..rest).map(|place| first + all * place / rest));
    places
}

/// The disk of a machine that starts again.
struct Mounted {
    image: PathBuf,
    place: PathBuf,
}

impl Mounted {
    /// Each is a file of its own: nothing of another one is remembered for it.
    fn new(directory: &Path, number: usize, content: &[u8]) -> Self {
        let image = directory.join(format!("cut-{number}.img"));
        let place = directory.join(format!("cut-{number}"));
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .open(&image)
            .unwrap();
        file.set_len(u64::try_from(content.len()).unwrap()).unwrap();
        for (number, block) in content.chunks(SECTORS).enumerate() {
            if block != &[0; SECTORS][..block.len()] {
                let at = u64::try_from(number * SECTORS).unwrap();
                file.seek(SeekFrom::Start(at)).unwrap();
                file.write_all(block).unwrap();
            }
        }
        std::fs::create_dir(&place).unwrap();
        must(&["mount", "-o", "loop", &text(&image), &text(&place)]);
        Self { image, place }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let place = text(&self.place);
        let mut tries = 0;
        while !try_to(&["umount", &place]) {
            tries += 1;
            assert!(
                tries < 1_000 || std::thread::panicking(),
                "{place} stays busy"
            );
            if tries >= 1_000 {
                return;
            }
            block_on(async { smol::Timer::after(Duration::from_millis(10)).await });
        }
        std::fs::remove_file(&self.image).ok();
    }
}
