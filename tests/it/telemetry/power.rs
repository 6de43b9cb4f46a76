//! Power cuts: the state directory lies on an ext4 image whose own file lies on XFS, and a copy of
//! that file that takes no time (`cp --reflink`) is what a disk has at the moment of a cut: nothing
//! that was not synced.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smol::block_on;

use super::{check, live, open};
use crate::store::{CHILD, again};

const TEST: &str = "telemetry::power::a_power_cut_at_any_moment_costs_no_sample_that_was_flushed";
/// Cuts of a test, and of `make torture`.
const CUTS: [u64; 2] = [50, 1_000];

/// A command that must work.
fn must(words: &[&str]) {
    #[expect(
        clippy::disallowed_methods,
        reason = "mount and its like end by themselves"
    )]
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn is_unmounted(path: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "umount ends by itself")]
    let output = Command::new("umount").arg(path).output();
    output.unwrap().status.success()
}

/// Returns whether this machine can mount images, and has what makes them.
fn can_mount() -> bool {
    #[expect(clippy::disallowed_methods, reason = "it ends by itself")]
    let has_xfs = Command::new("mkfs.xfs").arg("-V").output().is_ok();
    has_xfs && nix::unistd::geteuid().is_root()
}

/// Returns whether the kernel lets this process mount an image: a container often may not, whoever
/// runs in it.
fn may_mount(folder: &Path) -> bool {
    let image = folder.join("probe.img").display().to_string();
    let place = folder.join("outer").display().to_string();
    must(&["truncate", "-s", "16M", &image]);
    must(&["mkfs.ext4", "-q", &image]);
    #[expect(clippy::disallowed_methods, reason = "mount ends by itself")]
    let mounted = Command::new("mount")
        .args(["-o", "loop", &image, &place])
        .output();
    mounted.is_ok_and(|output| output.status.success()) && is_unmounted(&place)
}

/// Mounted images in a directory of their own; unmounted when dropped.
struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    /// `None` where the kernel does not let this process mount anything.
    fn new() -> Option<Self> {
        let bench = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        for folder in ["outer", "inner", "after"] {
            std::fs::create_dir(bench.path(folder)).unwrap();
        }
        if !may_mount(bench.directory.path()) {
            return None;
        }
        let [outer, inner, image, disk] =
            ["outer", "inner", "outer.img", "outer/disk.img"].map(|name| bench.text(name));
        must(&["truncate", "-s", "400M", &image]);
        must(&["mkfs.xfs", "-q", "-m", "reflink=1", &image]);
        must(&["mount", "-o", "loop", &image, &outer]);
        must(&["truncate", "-s", "48M", &disk]);
        must(&["mkfs.ext4", "-q", &disk]);
        must(&["mount", "-o", "loop", &disk, &inner]);
        Some(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// What the disk has now, handed to `look` as a state directory. Each cut is a file of its own:
    /// a namespace that another test makes while one is mounted keeps it mounted, and to mount the
    /// same file again would show what was kept of it in memory.
    fn cut(&self, number: u64, told: &AtomicU64, look: impl FnOnce(&Path, u64)) {
        let [disk, after] = ["outer/disk.img", "after"].map(|name| self.text(name));
        let copy = self.text(&format!("outer/cut-{number}.img"));
        // What was told before the cut is on the disk; what is told while it is copied may be.
        let told = told.load(Ordering::SeqCst);
        must(&["cp", "--reflink=always", &disk, &copy]);
        must(&["mount", "-o", "loop", &copy, &after]);
        look(&self.path("after/state"), told);
        // A process that another test is just starting holds all files until it is another program.
        let mut tries = 0;
        while !is_unmounted(&after) {
            tries += 1;
            assert!(tries < 1_000, "{after} stays busy");
            block_on(async { smol::Timer::after(Duration::from_millis(10)).await });
        }
        std::fs::remove_file(copy).unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for folder in ["after", "inner", "outer"] {
            // Somebody else's namespace may still hold what lies on it.
            #[expect(clippy::disallowed_methods, reason = "umount ends by itself")]
            drop(
                Command::new("umount")
                    .arg("--lazy")
                    .arg(self.path(folder))
                    .output(),
            );
        }
    }
}

/// The program that writes; killed when dropped, so that its disk can be unmounted.
struct Writer(std::process::Child);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_power_cut_at_any_moment_costs_no_sample_that_was_flushed() {
    if let Some(directory) = std::env::var_os(CHILD) {
        block_on(async {
            let (telemetry, _) = open(Path::new(&directory), "boot", 1).await;
            live(&telemetry.handle(), 1, u64::MAX).await;
        });
        return;
    }
    if !can_mount() {
        println!("skipped: it takes root and xfsprogs to mount a disk whose power is cut");
        return;
    }
    let Some(bench) = Bench::new() else {
        println!(
            "impossible here: cutting the power of a disk takes loop devices that may be mounted"
        );
        return;
    };
    let mut child = Writer(
        again(TEST, &bench.path("inner/state"), &[])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let told = Arc::new(AtomicU64::new(0));
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let heard = Arc::clone(&told);
    #[expect(clippy::disallowed_methods, reason = "it ends with the child")]
    let listener = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if let Some((_, number)) = line.rsplit_once("told flushed ") {
                heard.store(number.parse().unwrap(), Ordering::SeqCst);
            }
        }
    });
    while told.load(Ordering::SeqCst) == 0 {
        assert!(child.0.try_wait().unwrap().is_none(), "the child ended");
        block_on(async { smol::Timer::after(Duration::from_millis(5)).await });
    }
    let cuts = CUTS[usize::from(std::env::var_os("PIPEOPS_TORTURE").is_some())];
    for number in 0..cuts {
        bench.cut(number, &told, |state, told| {
            block_on(check(state, told, &format!("cut {number}")));
        });
        // Not always at the same place of a minute.
        let pause = Duration::from_micros(number * 7_919 % 20_000);
        block_on(async { smol::Timer::after(pause).await });
    }
    println!(
        "{cuts} cuts, the last behind tick {}",
        told.load(Ordering::SeqCst)
    );
    drop(child);
    listener.join().unwrap();
}
