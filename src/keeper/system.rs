//! System that the keeper works on: its files and programs, below `/` or below a tree of a test.

use std::{
    io::ErrorKind,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use nix::unistd::geteuid;
use ring::digest::{SHA256, digest};

use crate::{
    core::{
        format::{hex, one_line},
        order::{GatherExt as _, OrderExt as _},
    },
    error::{Error, Result, Retry},
    files::{self, Attributes},
    host::exec::{self, Limits, ProcessOptions, ProcessOutput},
    wire::keeper::Before,
};

/// Directory that is open to the group of the system's log where Debian's and Ubuntu's rsyslog is:
/// nothing of ours is followed below it.
const LOGS: &str = "/var/log";
/// There where SELinux is in use.
pub(super) const SELINUX: &str = "/sys/fs/selinux/enforce";
/// Files of settings are short. What is longer is not what it seems.
const FILE_BYTES_MAX: usize = 64 * 1024;
/// `update-grub` on a slow card looks at every kernel.
const RUN: Limits = Limits {
    within: Duration::from_secs(300),
    output_bytes_max: 64 * 1024,
};

/// Words of dpkg, apt, dnf 4 (which waits for another dnf, and not for rpm) and dnf 5 (which waits
/// for nobody) about a lock that another one holds.
const LOCKED: [&str; 4] = [
    "locked by another process",
    "Could not get lock",
    "Could not run transaction",
    "Failed to obtain rpm transaction lock",
];

/// Hears what a change is doing.
pub type Watch = fn(&str);

/// Files and programs below one root.
#[derive(Debug)]
pub(super) struct System {
    root: PathBuf,
    pub(super) watch: Watch,
    /// Group of the agent, which may read the step of a change before anything else is there for
    /// it.
    pub(super) group: Option<u32>,
}

/// Content and attributes of an existing file.
#[derive(Debug)]
pub(super) struct FileSnapshot {
    pub(super) content: Vec<u8>,
    pub(super) attributes: Attributes,
}

impl FileSnapshot {
    pub(super) fn sha256(&self) -> String {
        sha256(&self.content)
    }
}

/// Backup of a file that is about to be replaced. Its copy gets its name when it is made.
pub(super) fn before(found: &FileSnapshot) -> Before {
    let Attributes {
        mode,
        group,
        extended,
    } = &found.attributes;
    let extended = extended
        .iter()
        .map(|(name, value)| (name.clone(), BASE64.encode(value)));
    Before {
        copy: String::new(),
        sha256: found.sha256(),
        mode: *mode,
        group: *group,
        attributes: extended.gather(),
    }
}

/// The attributes of a file as they were. One whose value is no Base64 was never written by this
/// program.
pub(super) fn attributes(before: &Before) -> Attributes {
    let extended = before
        .attributes
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), BASE64.decode(value).ok()?)));
    Attributes {
        mode: before.mode,
        group: before.group,
        extended: extended.gather(),
    }
}

pub(super) fn sha256(content: &[u8]) -> String {
    hex(digest(&SHA256, content).as_ref())
}

/// One line of a length that a person reads.
pub(super) fn plain(text: &str) -> String {
    one_line(text, 400)
}

impl System {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            watch: |_| {},
            group: None,
        }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// An absolute path of the machine, where it is for this process.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(super) fn is_there(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file, where it is there, readable, not too long and UTF-8.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(files::read(&self.path(path), FILE_BYTES_MAX).ok()?).ok()
    }

    /// A short file without the blanks around it.
    pub(super) fn line(&self, path: &str) -> Option<String> {
        self.text(path).map(|text| text.trim().to_owned())
    }

    /// Returns whether the system has a program of that name.
    pub(super) fn has(&self, program: &str) -> bool {
        exec::find(&self.root, program).is_some()
    }

    /// The files of a folder with that ending, by name.
    pub(super) fn list(&self, folder: &str, ending: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder));
        let names = entries.into_iter().flatten().flatten();
        let mut names: Vec<_> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.ends_with(ending))
            .map(|name| format!("{folder}/{name}"))
            .collect();
        names.order();
        names
    }

    /// Runs a program that must end well.
    pub(super) fn run<S: AsRef<str>>(&self, argv: &[S]) -> Result<ProcessOutput> {
        let argv: Vec<&str> = argv.iter().map(AsRef::as_ref).collect();
        self.run_unattended(&argv, RUN, &[])
    }

    /// Runs a program that must end well, with these limits and variables. The error of one that
    /// found a lock may be tried again soon.
    pub(super) fn run_unattended(
        &self,
        argv: &[&str],
        limits: Limits,
        variables: &[(&str, &str)],
    ) -> Result<ProcessOutput> {
        let options = ProcessOptions {
            variables,
            folder: Path::new("/"),
            guard: &|| None,
        };
        let ended = exec::run_with(&self.root, argv, limits, &options)?;
        if ended.success() {
            return Ok(ended);
        }
        let said = if ended.stderr.trim().is_empty() {
            &ended.stdout
        } else {
            &ended.stderr
        };
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let how = ended
            .code
            .map_or_else(|| "a signal".to_owned(), |code| format!("code {code}"));
        let error = Error::new(format!("{:?} ended with {how}", argv.join(" ")));
        if LOCKED.iter().any(|words| ended.stderr.contains(words)) {
            return Err(error
                .why("another program holds its lock")
                .retry(Retry::Soon));
        }
        Err(match last {
            Some(last) => error.why(last.trim().chars().take(200).collect::<String>()),
            None => error,
        })
    }

    /// The file at that path; `None` where there is nothing. A link or a device is an error.
    pub(super) fn found(&self, path: &str) -> Result<Option<FileSnapshot>> {
        let cannot = || format!("cannot read {path}");
        let real = self.path(path);
        let metadata = match std::fs::symlink_metadata(&real) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(files::explain(cannot(), &error)),
        };
        if !metadata.is_file() {
            return Err(Error::new(cannot())
                .why("it is not a regular file")
                .fix(format!("inspect it: ls -ld {path}")));
        }
        Ok(Some(FileSnapshot {
            content: files::read(&real, FILE_BYTES_MAX)?,
            attributes: Attributes::of(&real).map_err(|error| files::explain(cannot(), &error))?,
        }))
    }

    /// Refuses a path that somebody else than root could lead elsewhere: every folder on the way,
    /// and the file, must be root's, and nobody else may write there.
    pub(super) fn guard(&self, path: &str) -> Result<()> {
        let mut at = self.root.clone();
        // In a folder like /tmp, where everybody makes things and nobody takes away another's, what
        // is there counts, not what could be.
        let mut is_shared = false;
        for part in Path::new(path.trim_start_matches('/')) {
            if part == ".." {
                return Err(
                    Error::new(format!("cannot work at {path}")).why("the path contains ..")
                );
            }
            at.push(part);
            let metadata = match std::fs::symlink_metadata(&at) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound && !is_shared => return Ok(()),
                Err(error) => return Err(files::explain(format!("cannot work at {path}"), &error)),
            };
            let mode = metadata.permissions().mode();
            is_shared = metadata.is_dir() && mode & 0o1002 == 0o1002;
            // A link has no permissions of its own; it is its owner and its folder that count.
            let others = if at == self.path(LOGS) { 0o002 } else { 0o022 };
            let is_open = !metadata.is_symlink() && !is_shared && mode & others != 0;
            if metadata.uid() != geteuid().as_raw() || is_open {
                let shown = at.display();
                return Err(Error::new(format!("cannot trust {path}"))
                    .why(format!("users other than root can change {shown}"))
                    .fix(format!(
                        "sudo chown root {shown} && sudo chmod go-w {shown}"
                    )));
            }
        }
        Ok(())
    }
}
