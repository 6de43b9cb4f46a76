//! Settings from files, environment and flags; every message has file:line and the fix.
//!
//! Three stages: values with their origin, layer by layer; merged, where the later layer wins for
//! each key; [`Settings`], typed and checked. The layers are the defaults, `config.toml`,
//! `config.d/*.toml` by name, the environment, the command line. One table, [`keys`], describes
//! every key. Nothing here logs or prints.

mod check;
pub mod keys;
mod layers;
mod settings;
mod token;
pub mod value;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use self::{
    check::ProcessContext,
    keys::{KEYS, Key, Secrecy},
    layers::Merged,
};
pub use self::{
    layers::{ConfigEntry, Origin, Override},
    settings::{
        Access, Agent, Allow, CertificateFiles, ControlPlane, Dashboard, K3s, K3sBackup, Keeper,
        Log, LogFormat, Notify, Pipeops, RemoteWrite, Roots, S3, ServiceEnvironment, Settings,
        Telemetry, Tls, Update,
    },
    token::{Credentials, TokenSource},
};
use crate::{core::order::GatherExt as _, error::Error};
use litemap::LiteMap;

/// The file that is read when no other is named.
pub const DEFAULT_FILE: &str = "/etc/pipeops-agent/config.toml";

/// The variable that names another file.
pub const FILE_VARIABLE: &str = "PIPEOPS_CONFIG";

/// Sources of the configuration: given as values, so that tests need no process of their own.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file that was named; it must be there. `None` is [`DEFAULT_FILE`], which may be missing.
    pub file: Option<PathBuf>,
    /// True if the file that was named is only going to be written, so that it need not be there.
    pub is_new: bool,
    pub environment: LiteMap<OsString, OsString>,
    /// `section.key=value` from the command line.
    pub assignments: Vec<String>,
    /// Values that are stronger than all others.
    pub options: Vec<Override>,
    /// The folder that relative paths are below.
    pub folder: PathBuf,
    /// True if the program runs as root.
    pub is_root: bool,
}

impl Sources {
    /// The sources of this process.
    pub fn of_process(file: Option<PathBuf>, assignments: Vec<String>) -> Self {
        let environment: LiteMap<_, _> = std::env::vars_os().gather();
        let named = environment.get(&OsString::from(FILE_VARIABLE));
        let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
        Self {
            file: file.or(named),
            is_new: false,
            environment,
            assignments,
            options: Vec::new(),
            // Without a current folder (it was removed) relative paths fail where they are used,
            // with their name.
            folder: std::env::current_dir().unwrap_or_default(),
            is_root: nix::unistd::geteuid().is_root(),
        }
    }

    fn main_file(&self) -> &Path {
        self.file
            .as_deref()
            .unwrap_or_else(|| Path::new(DEFAULT_FILE))
    }

    fn process(&self) -> ProcessContext {
        let folder = |name: &str| {
            let path = PathBuf::from(self.environment.get(&OsString::from(name))?);
            path.is_absolute().then_some(path)
        };
        ProcessContext {
            is_root: self.is_root,
            service_runtime_dir: folder("RUNTIME_DIRECTORY"),
            user_runtime_dir: folder("XDG_RUNTIME_DIR"),
        }
    }
}

/// Values from all sources.
#[derive(Debug)]
pub struct Loaded {
    merged: Merged,
    settings: Option<Settings>,
    socket: PathBuf,
    state_dir: PathBuf,
    files: Vec<PathBuf>,
}

/// A key as people look at it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shown {
    pub key: &'static Key,
    /// Its value, without secrets; `None` where it has none.
    pub value: Option<String>,
    pub origin: Origin,
}

/// Settings that hold until the files can be read: the defaults, the environment and the command
/// line say what they are.
#[derive(Clone, Debug)]
pub struct Provisional {
    /// The Unix socket of the command line.
    pub socket: PathBuf,
    /// The address where browsers ask; `None`: nowhere.
    pub listen: Option<SocketAddr>,
    /// True if the state of the machine is shown there without a login.
    pub shows_itself: bool,
    /// Log lines.
    pub log: Log,
    /// Surroundings of the process.
    pub surroundings: ServiceEnvironment,
}

/// Settings that are known without reading a file, and so without waiting for a disk.
pub fn provisional(sources: &Sources) -> Provisional {
    let mut merged = Merged::default();
    merged.add_defaults();
    merged.add_what_is_given(sources);
    Provisional {
        socket: merged.socket(&sources.process()),
        listen: merged.listen(),
        shows_itself: merged.shows_itself(),
        log: merged.log(),
        surroundings: ServiceEnvironment::of(&sources.environment),
    }
}

/// Settings whose files could not be read, for this reason: as much as is known without them.
pub fn unread(sources: &Sources, problem: Error) -> Loaded {
    let mut merged = Merged::default();
    merged.add_defaults();
    merged.problems.push(problem);
    merged.is_incomplete = true;
    loaded(merged, sources)
}

/// Reads and checks everything. Never fails as a whole: [`Loaded::settings`] tells.
pub fn load(sources: &Sources) -> Loaded {
    let mut merged = Merged::default();
    merged.add_defaults();
    let main = sources.main_file();
    let must_be_there = sources.file.is_some() && !sources.is_new;
    if must_be_there || !matches!(main.try_exists(), Ok(false)) {
        merged.add_file(main);
    }
    merged.add_drop_ins(main);
    loaded(merged, sources)
}

/// Adds what needs no file, and checks the whole.
fn loaded(mut merged: Merged, sources: &Sources) -> Loaded {
    merged.add_what_is_given(sources);
    let main = sources.main_file();
    let process = sources.process();
    let settings = merged.settings(&process).map(|settings| Settings {
        surroundings: ServiceEnvironment::of(&sources.environment),
        ..settings
    });
    let socket = merged.socket(&process);
    let state_dir = merged.state_dir();
    Loaded {
        merged,
        settings,
        socket,
        state_dir,
        files: vec![main.to_owned(), main.with_file_name("config.d")],
    }
}

impl Loaded {
    /// The settings, or every problem that stands against them.
    pub fn settings(self) -> Result<Settings, Vec<Error>> {
        let shown = self.shown();
        match self.settings {
            Some(settings) => Ok(Settings { shown, ..settings }),
            None => Err(self.merged.problems),
        }
    }

    /// Access settings, also while there is no token yet. `None` if anything else is wrong: a line
    /// that could not be read may have been about this.
    pub fn access(&self) -> Option<Access> {
        let is_about_token = |problem: &Error| problem.what.contains("token");
        let is_known = !self.merged.is_incomplete && self.problems().iter().all(is_about_token);
        is_known.then(|| self.merged.access())
    }

    /// Address of the page, and whether it is for everybody on this machine, also if other settings
    /// have problems. `None` if a file could not be understood: a line in it may have been about
    /// this. With a problem of its own the page is for nobody without a login.
    pub fn page(&self) -> Option<(Option<SocketAddr>, bool)> {
        let is_doubtful = |problem: &Error| problem.what.contains("dashboard");
        let shows_itself = self.merged.shows_itself() && !self.problems().iter().any(is_doubtful);
        (!self.merged.is_incomplete).then_some((self.merged.listen(), shows_itself))
    }

    /// Every problem that stands against running with this.
    pub fn problems(&self) -> &[Error] {
        &self.merged.problems
    }

    /// Warnings: doubtful, but no reason to stop.
    pub fn warnings(&self) -> &[Error] {
        &self.merged.warnings
    }

    /// The folder of the agent's files, also where other settings have problems.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The socket of the agent that these settings belong to, also where other settings have
    /// problems.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Configuration of the keeper, also if other settings have problems. With a problem of its own
    /// it allows the agent nothing.
    pub fn keeper(&self) -> Keeper {
        let mut keeper = self.merged.keeper();
        if self.doubt("keeper").is_some() {
            keeper.allow = Allow::default();
        }
        keeper
    }

    /// Sources of k3s, also if other settings have problems.
    pub fn k3s(&self) -> K3s {
        self.merged.k3s()
    }

    /// Backups of k3s, also if other settings have problems.
    ///
    /// # Errors
    /// A problem that may be about them: a line that could not be read may have asked for
    /// encryption.
    pub fn k3s_backup(&self) -> Result<K3sBackup, Error> {
        match self.doubt("k3s") {
            Some(problem) => Err(problem.clone()),
            None => self.merged.k3s_backup(),
        }
    }

    /// A problem that may be about the settings of `section`: one that names it, or any while a
    /// file could not be understood.
    pub fn doubt(&self, section: &str) -> Option<&Error> {
        // Values and paths may have such a word, too.
        let about = [": ", "unknown key \""].map(|before| format!("{before}{section}."));
        let itself = format!(": {section} must be a section");
        let meant = [format!("[{section}]"), format!("mean {section}.")];
        let has = |text: &str, words: &[String]| words.iter().any(|word| text.contains(word));
        self.problems().iter().find(|problem| {
            self.merged.is_incomplete
                || has(&problem.what, &about)
                || problem.what.ends_with(&itself)
                || problem.fix.as_deref().is_some_and(|fix| has(fix, &meant))
        })
    }

    /// Source of updates, also if other settings have problems.
    pub fn update(&self) -> Update {
        self.merged.update()
    }

    /// Every file that was looked for.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Entry of this key, secrets included.
    pub fn entry(&self, path: &str) -> Option<&ConfigEntry> {
        self.merged.entries.get(path)
    }

    /// Every key with its value and origin, in the order of the table.
    pub fn shown(&self) -> Vec<Shown> {
        KEYS.iter()
            .map(|key| {
                let entry = self.merged.entries.get(key.path);
                Shown {
                    key,
                    value: entry.map(|entry| shown_value(key, entry)),
                    origin: entry.map_or(Origin::Default, |entry| entry.origin.clone()),
                }
            })
            .collect()
    }
}

fn shown_value(key: &Key, entry: &ConfigEntry) -> String {
    let text = entry.value.to_string();
    match key.secrecy {
        Secrecy::Open => text,
        Secrecy::Hidden => "(set, hidden)".to_owned(),
        Secrecy::Password => match text.rsplit_once('@') {
            Some((_, host)) => format!("(password hidden)@{host}"),
            None => text,
        },
    }
}

#[cfg(test)]
mod tests;
