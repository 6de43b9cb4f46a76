//! Git: the commit that a server has, and manifests in it, by the `git` of the system.
//!
//! Nothing is checked out and nothing is kept: files are read out of a repository that exists for
//! one fetch. So no hook, filter, link or submodule of a repository can do anything, and no Secret
//! in it stays on this disk.

use std::{
    cell::Cell,
    fs::DirBuilder,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use nix::unistd::{getegid, geteuid};

use super::{
    exec::{self, Limits, ProcessError, ProcessOptions, ProcessOutput},
    random,
};
use crate::{
    core::{
        apps::{
            joined,
            repository::{
                Cause, Failure, Item, ItemKind, RemoteHead, Repository, is_file, is_manifest, items,
            },
        },
        format::size,
        secret::Secret,
    },
    error::Error,
    files,
};

/// The first version that reads no configuration but that which is named, and takes some from its
/// environment.
const OLDEST: (u32, u32) = (2, 32);
/// A question to a server. A slow line takes seconds for TLS.
const ASK: Limits = Limits {
    within: Duration::from_secs(25),
    output_bytes_max: 64 << 10,
};
const FETCH: Limits = Limits {
    within: Duration::from_secs(90),
    output_bytes_max: 64 << 10,
};
/// A question to the repository on this disk.
const READ: Limits = Limits {
    within: Duration::from_secs(20),
    output_bytes_max: MANIFESTS_BYTES_MAX + 1,
};
/// Bytes of one fetch on the disk. A repository of manifests has a hundredth of that; memory and
/// cards are small.
pub const FETCHED_BYTES_MAX: u64 = 64 << 20;
/// The manifests of an app, as at the other doors.
const MANIFESTS_BYTES_MAX: usize = 1 << 20;
/// Files of manifests.
const FILES_MAX: usize = 200;
/// The longest token or password.
const CREDENTIALS_BYTES_MAX: usize = 16 << 10;
/// Folder of the certificates of the system, beside those of `tls.ca_file`.
const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs";
/// The same in one file, where the folder has no index that OpenSSL could read: Fedora and RHEL.
const SYSTEM_BUNDLE: &str = "/etc/pki/tls/certs/ca-bundle.crt";
/// Most that is read of the file or the one of `tls.ca_file`.
const BUNDLE_BYTES_MAX: usize = 4 << 20;

/// Settings of every call that change what git does: nothing of the repository runs, and memory
/// stays small.
const SETTINGS: [&str; 18] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.fsync=none",
    "core.bigFileThreshold=512k",
    "core.deltaBaseCacheLimit=2m",
    "core.packedGitWindowSize=1m",
    "core.packedGitLimit=8m",
    "credential.helper=",
    "fetch.recurseSubmodules=false",
    "fetch.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
    "http.followRedirects=false",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=20",
    "pack.threads=1",
    "protocol.version=2",
    "submodule.recurse=false",
];

/// Variables of every call: no configuration, attributes or questions of this machine, and two
/// protocols.
const VARIABLES: [(&str, &str); 10] = [
    // For one allocation. An object that is put together from others takes three of them: 68 MB,
    // and the unit of the agent has 128 MB.
    ("GIT_ALLOC_LIMIT", "24m"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ALLOW_PROTOCOL", "https:ssh"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("GIT_SSH_VARIANT", "ssh"),
    // Neither settings of a shell nor .netrc are there.
    ("HOME", "/dev/null"),
];

/// Options of ssh.
const SSH: [&str; 15] = [
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "GlobalKnownHostsFile=/dev/null",
    "UpdateHostKeys=no",
    "VerifyHostKeyDNS=no",
    "PasswordAuthentication=no",
    "KbdInteractiveAuthentication=no",
    "GSSAPIAuthentication=no",
    "IdentityAgent=none",
    "IdentitiesOnly=yes",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "ConnectTimeout=15",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=2",
];

/// Name of the folder for repositories that exist for one fetch. It is in a folder that may be
/// somebody else's as well, and removed with all that is in it.
pub const SCRATCH: &str = "pipeops-git";

/// The `git` of this machine.
#[derive(Clone, Debug)]
pub struct Git {
    scratch: PathBuf,
    known_hosts: PathBuf,
    ca_file: Option<PathBuf>,
    proxy: Option<Secret>,
    no_proxy: String,
    credentials: PathBuf,
    bytes_max: u64,
}

#[derive(Clone, Debug, Default)]
pub struct GitOptions {
    /// Folder for repositories that exist for one fetch.
    pub scratch: PathBuf,
    /// File with the pinned keys of hosts.
    pub known_hosts: PathBuf,
    /// PEM file of more authorities.
    pub ca_file: Option<PathBuf>,
    /// URL of the HTTP proxy; it may hold a password.
    pub proxy: Option<Secret>,
    /// Hosts that are reached without it.
    pub no_proxy: String,
    /// Folder with credentials that the owner laid down for hosts.
    pub credentials: PathBuf,
    /// Bytes of one fetch on the disk.
    pub bytes_max: u64,
}

/// Manifests of a commit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Content {
    pub commit: String,
    /// YAML or JSON, with three dashes between files.
    pub manifests: String,
}

impl Git {
    /// Starts nothing yet.
    pub fn new(options: GitOptions) -> Self {
        Self {
            scratch: options.scratch,
            known_hosts: options.known_hosts,
            ca_file: options.ca_file,
            proxy: options.proxy,
            no_proxy: options.no_proxy,
            credentials: options.credentials,
            bytes_max: options.bytes_max,
        }
    }

    /// Removes what a power cut left behind.
    pub fn clean(&self) {
        let _not_there = std::fs::remove_dir_all(&self.scratch).is_err();
    }

    /// Asks the server for the commit that is to be deployed. It blocks.
    ///
    /// # Errors
    /// Reason why it is not known.
    pub fn tip(&self, of: &Repository) -> Result<RemoteHead, Failure> {
        let session = self.session(of, Path::new("/"))?;
        if let Some(commit) = of.commit() {
            return Ok(RemoteHead {
                reference: commit.to_owned(),
                commit: commit.to_owned(),
            });
        }
        let candidates = of.candidates();
        let mut argv = vec!["ls-remote", "--quiet", "--", &of.url];
        argv.extend(candidates.iter().map(String::as_str));
        let listed = session.git(&argv, ASK)?;
        of.choose(&listed)
    }

    /// Fetches a commit and reads its manifests. It blocks.
    ///
    /// # Errors
    /// Reason why they are not known.
    pub fn manifests(&self, of: &Repository, tip: &RemoteHead) -> Result<Content, Failure> {
        let scratch = Scratch::new(&self.scratch).map_err(|error| of.unusable(&error))?;
        let session = self.session(of, &scratch.0)?;
        let format = match tip.commit.len() {
            64 => "--object-format=sha256",
            _ => "--object-format=sha1",
        };
        session.git(
            &["init", "--quiet", "--bare", "--template=", format, "."],
            READ,
        )?;
        let wanted = format!("+{}:refs/pipeops/tip", tip.reference);
        session.git(
            &[
                "fetch",
                "--quiet",
                "--depth=1",
                "--no-tags",
                "--no-recurse-submodules",
                "--no-write-fetch-head",
                "--",
                &of.url,
                &wanted,
            ],
            FETCH,
        )?;
        let commit = session.git(
            &[
                "rev-parse",
                "--verify",
                "--quiet",
                "refs/pipeops/tip^{commit}",
            ],
            READ,
        )?;
        let manifests = session.texts(commit.trim())?;
        // A fixed one is compared as it is written, also where it is in capitals or names a tag.
        let commit = of.commit().unwrap_or_else(|| commit.trim()).to_owned();
        Ok(Content { commit, manifests })
    }

    /// A repository with the credentials that the owner laid down for its host, and the file where
    /// they are looked for. It blocks.
    ///
    /// # Errors
    /// The file cannot be named to ssh.
    pub fn with_host_credentials(&self, of: Repository) -> Result<(Repository, String), Failure> {
        let scheme = if of.is_ssh() { "ssh" } else { "https" };
        let host = of.git_host().map(|host| host.file_name());
        let file = format!("{scheme}_{}", host.unwrap_or_default());
        let path = self.credentials.join(file);
        let file = path.display().to_string();
        if !is_file(&file) {
            let error = Error::new(format!("{file:?} cannot be used"))
                .fix("name a folder of plain characters: apps.git_credentials");
            return Err(of.unusable(&error));
        }
        let exists = path.try_exists().map_err(|error| {
            of.unusable(&files::explain(format!("cannot look for {file}"), &error))
        })?;
        let credentials = if exists { file.clone() } else { String::new() };
        Ok((Repository { credentials, ..of }, file))
    }

    /// The credentials and host keys of one conversation.
    fn session<'a>(&'a self, of: &'a Repository, folder: &'a Path) -> Result<Session<'a>, Failure> {
        let own = self.ca_file.as_deref().filter(|_| !of.is_ssh());
        let authorities = own.map(|own| {
            let bundle = Path::new(SYSTEM_BUNDLE);
            Authorities::new(own, bundle, &self.scratch)
        });
        let authorities = authorities.transpose();
        let mut session = Session {
            git: self,
            of,
            folder,
            authorities: authorities.map_err(|error| of.unusable(&error))?,
            variables: Vec::new(),
        };
        session.check_version()?;
        if of.is_ssh() {
            let command = self.ssh(of).map_err(|error| of.unusable(&error))?;
            session
                .variables
                .push(("GIT_SSH_COMMAND", Secret::new(command)));
        } else if !of.credentials.is_empty() {
            let header = basic(Path::new(&of.credentials)).map_err(|error| of.unusable(&error))?;
            session.variables.extend([
                ("GIT_CONFIG_COUNT", Secret::new("1")),
                ("GIT_CONFIG_KEY_0", Secret::new("http.extraHeader")),
                ("GIT_CONFIG_VALUE_0", header),
            ]);
        }
        if let Some(proxy) = &self.proxy {
            session.variables.extend([
                ("https_proxy", proxy.clone()),
                ("no_proxy", Secret::new(self.no_proxy.as_str())),
            ]);
        }
        Ok(session)
    }

    /// The line with which git starts ssh, by a shell: the pinned keys, one key of ours, and
    /// nothing else of this machine.
    fn ssh(&self, of: &Repository) -> Result<String, Error> {
        let known_hosts = self.known_hosts.display().to_string();
        if !is_file(&known_hosts) {
            return Err(Error::new(format!("{known_hosts:?} cannot be used"))
                .fix("name a file of plain characters: apps.known_hosts"));
        }
        if !self.known_hosts.exists() {
            let pinned = of.explained("host key verification failed", &known_hosts);
            return Err(Error {
                fix: pinned.error.fix,
                ..Error::new(format!("there is no {known_hosts}"))
                    .why("no host is trusted by itself; its key has to be in there")
            });
        }
        files::only_roots(&self.known_hosts)?;
        let identity = if of.credentials.is_empty() {
            "none"
        } else {
            private(Path::new(&of.credentials))?;
            &of.credentials
        };
        let options = SSH.map(|option| format!(" -o {option}")).concat();
        Ok(format!(
            "ssh -F none{options} -o UserKnownHostsFile={known_hosts} -o IdentityFile={identity}"
        ))
    }
}

/// One conversation with a server.
struct Session<'a> {
    git: &'a Git,
    of: &'a Repository,
    folder: &'a Path,
    authorities: Option<Authorities>,
    variables: Vec<(&'static str, Secret)>,
}

impl Session<'_> {
    fn check_version(&self) -> Result<(), Failure> {
        if exec::find(Path::new("/"), "git").is_none() {
            return Err(self.of.failure(
                Cause::Program,
                "there is no git on this machine",
                Some("install git, such as: sudo apt install git"),
            ));
        }
        let said = self.git(&["version"], READ)?;
        let mut numbers = said
            .split_ascii_whitespace()
            .nth(2)
            .unwrap_or_default()
            .split('.')
            .map(|number| number.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < OLDEST {
            let why = format!("git {}.{} is too old", version.0, version.1);
            let fix = format!("install git {}.{} or later", OLDEST.0, OLDEST.1);
            return Err(self.of.failure(Cause::Program, &why, Some(&fix)));
        }
        Ok(())
    }

    /// Runs git to its end, and returns what it said.
    fn git(&self, words: &[&str], limits: Limits) -> Result<String, Failure> {
        let mut argv = vec!["git"];
        argv.extend(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        let ca_file = self.authorities.as_ref();
        let ca_file = ca_file.map(|all| format!("http.sslCAInfo={}", all.file.display()));
        let ca_path = format!("http.sslCAPath={SYSTEM_CERTIFICATES}");
        if let Some(ca_file) = &ca_file {
            argv.extend(["-c", ca_file, "-c", &ca_path]);
        }
        argv.extend(words);
        let mut variables = VARIABLES.to_vec();
        let more = self.variables.iter();
        variables.extend(more.map(|(name, value)| (*name, value.reveal())));
        let is_too_large = Cell::new(false);
        let guard = || {
            let is_fetch = limits == FETCH;
            is_too_large.set(is_fetch && folder_bytes(self.folder) > self.git.bytes_max);
            is_too_large.get().then(|| "it is too large".to_owned())
        };
        let options = ProcessOptions {
            variables: &variables,
            folder: self.folder,
            guard: &guard,
        };
        let ended = exec::run_with(Path::new("/"), &argv, limits, &options);
        let known_hosts = self.git.known_hosts.display().to_string();
        match ended {
            Ok(ended) if ended.is_truncated => {
                let why = "it has more names of files or references than are read";
                let fix = "keep manifests in a folder with few other files: --path deploy/";
                Err(self.of.failure(Cause::TooLarge, why, Some(fix)))
            }
            Ok(ended) if ended.success() => Ok(ended.stdout),
            _ if is_too_large.get() => {
                let why = format!("its commit takes more than {}", size(self.git.bytes_max));
                let fix = "keep manifests in a repository of their own";
                Err(self.of.failure(Cause::TooLarge, &why, Some(fix)))
            }
            Ok(ProcessOutput { stderr, .. }) => Err(self.of.explained(&stderr, &known_hosts)),
            // What was run is of no interest to anybody.
            Err(ProcessError::TimedOut(error)) => {
                let why = error.why.join(": ");
                Err(self
                    .of
                    .failure_of(timeout_cause(limits), &why, &known_hosts))
            }
            Err(ProcessError::Failed(error)) => {
                Err(self.of.explained(&error.why.join(": "), &known_hosts))
            }
        }
    }

    /// The manifests of a commit.
    fn texts(&self, commit: &str) -> Result<String, Failure> {
        let place = self.place(commit)?;
        let files = if place.kind == ItemKind::File {
            vec![place]
        } else {
            let listed = self.git(&["ls-tree", "-l", "-z", &place.id], READ)?;
            items(&listed)
                .into_iter()
                .filter(|item| item.kind != ItemKind::Folder && is_manifest(&item.name))
                .collect()
        };
        let shown = self.shown();
        if files.is_empty() || files.len() > FILES_MAX {
            let why = format!(
                "{shown} has {} files of manifests; 1 to {FILES_MAX} are possible",
                files.len()
            );
            let fix = "name the folder with the .yaml files: --path deploy/";
            return Err(self.of.failure(Cause::Path, &why, Some(fix)));
        }
        if files.iter().map(|file| file.size).sum::<usize>() > MANIFESTS_BYTES_MAX {
            let why = format!("the manifests in {shown} are larger than a megabyte");
            let fix = "deploy them as several apps";
            return Err(self.of.failure(Cause::TooLarge, &why, Some(fix)));
        }
        let texts: Vec<_> = files
            .iter()
            .map(|file| self.text(file))
            .collect::<Result<_, _>>()?;
        let named = files.iter().zip(&texts);
        Ok(joined(
            named.map(|(file, text)| (file.name.as_str(), text.as_str())),
        ))
    }

    /// The file or folder that is meant. Each step has to be a plain folder: nothing leads out of
    /// the repository.
    fn place(&self, commit: &str) -> Result<Item, Failure> {
        let mut place = Item {
            kind: ItemKind::Folder,
            id: commit.to_owned(),
            size: 0,
            name: String::new(),
        };
        for step in self.of.path.split('/').filter(|step| !step.is_empty()) {
            let inside = place.kind == ItemKind::Folder;
            let listed = if inside {
                self.git(&["ls-tree", "-l", "-z", &place.id, "--", step], READ)?
            } else {
                String::new()
            };
            place = items(&listed).into_iter().next().ok_or_else(|| {
                let why = format!("there is no {} in commit {commit:.12}", self.of.path);
                let fix = "check --path, or push the folder";
                self.of.failure(Cause::Path, &why, Some(fix))
            })?;
            self.check_regular_file(&place)?;
        }
        Ok(place)
    }

    /// Refuses what leads elsewhere.
    fn check_regular_file(&self, item: &Item) -> Result<(), Failure> {
        let (what, fix) = match item.kind {
            ItemKind::File | ItemKind::Folder => return Ok(()),
            ItemKind::Link => ("a symbolic link", "put the file itself there"),
            ItemKind::Submodule => ("a submodule", "name the other repository itself: --git URL"),
        };
        let why = format!("{} is {what}, and those are not followed", item.name);
        Err(self.of.failure(Cause::Link, &why, Some(fix)))
    }

    fn text(&self, file: &Item) -> Result<String, Failure> {
        self.check_regular_file(file)?;
        let text = self.git(&["cat-file", "blob", &file.id], READ)?;
        // Bytes that are no UTF-8 were replaced by longer ones.
        if text.len() == file.size && !text.starts_with("version https://git-lfs.") {
            return Ok(text);
        }
        let why = format!("{} is not text", file.name);
        let fix = "manifests are UTF-8, and not in Git LFS";
        Err(self.of.failure(Cause::Manifests, &why, Some(fix)))
    }

    fn shown(&self) -> &str {
        match self.of.path.as_str() {
            "" => "the root of the repository",
            path => path,
        }
    }
}

/// File with the authorities of `tls.ca_file`; of the system as well where git does not find them
/// by their folder, because it takes one file.
struct Authorities {
    file: PathBuf,
    _folder: Option<Scratch>,
}

impl Authorities {
    #[expect(
        clippy::disallowed_methods,
        reason = "it is written for each conversation, and need not survive a power cut"
    )]
    fn new(own: &Path, bundle: &Path, scratch: &Path) -> Result<Self, Error> {
        if !bundle.exists() {
            return Ok(Self {
                file: own.to_owned(),
                _folder: None,
            });
        }
        let read = |file| files::read(file, BUNDLE_BYTES_MAX);
        let all = [read(own)?, read(bundle)?].join(&b'\n');
        let folder = Scratch::new(scratch)?;
        let file = folder.0.join("ca.pem");
        std::fs::write(&file, all)
            .map_err(|error| files::explain(format!("cannot write {}", file.display()), &error))?;
        Ok(Self {
            file,
            _folder: Some(folder),
        })
    }
}

/// A folder that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(below: &Path) -> Result<Self, Error> {
        let folder = below.join(random::hex::<8>()?);
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        // Nothing in there has to survive a power cut.
        let made = private.create(&folder);
        made.map_err(|error| {
            files::explain(format!("cannot create {}", folder.display()), &error)
        })?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            log::debug!("{} is not removed: {error}", self.0.display());
        }
    }
}

/// The header with the credentials of a file: `user:password`, or a token alone.
fn basic(file: &Path) -> Result<Secret, Error> {
    private(file)?;
    let content = files::read(file, CREDENTIALS_BYTES_MAX)?;
    let text = std::str::from_utf8(&content).map_or("", str::trim);
    if text.is_empty() || text.contains(['\n', '\r', '\0']) {
        return Err(
            Error::new(format!("{} holds no credentials", file.display()))
                .fix("write one line into it: user:password, or a token alone"),
        );
    }
    // Servers that know tokens take any user name with them.
    let pair = if text.contains(':') {
        text.to_owned()
    } else {
        format!("git:{text}")
    };
    Ok(Secret::new(format!(
        "Authorization: Basic {}",
        BASE64.encode(pair)
    )))
}

/// Refuses a secret that others than root and the agent can read or write.
fn private(file: &Path) -> Result<(), Error> {
    let name = file.display();
    let found = std::fs::metadata(file)
        .map_err(|error| files::explain(format!("cannot read {name}"), &error))?;
    let is_ours = found.uid() == 0 || found.uid() == geteuid().as_raw();
    let is_our_group = found.gid() == 0 || found.gid() == getegid().as_raw();
    let group_bits = if is_our_group { 0o020 } else { 0o060 };
    if found.is_file() && is_ours && found.mode() & (0o007 | group_bits) == 0 {
        return Ok(());
    }
    Err(Error::new(format!(
        "users other than root and the agent can access {name}"
    ))
    .fix(format!("chown root:pipeops-agent {name}; chmod 640 {name}")))
}

/// Cause of a call of git that did not end in time.
fn timeout_cause(limits: Limits) -> Cause {
    if limits == FETCH {
        Cause::Slow
    } else {
        Cause::Unreachable
    }
}

/// Bytes of the files of a folder that git is just writing.
fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_gone) => 0,
    };
    entries.filter_map(Result::ok).map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authorities_of_the_system_are_added_where_they_are_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let [own, bundle] = ["own", "bundle"].map(|name| folder.path().join(name));
        let scratch = folder.path().join("git");
        let text = |of: &Authorities| std::fs::read_to_string(&of.file).unwrap();
        files::replace(&own, b"own", 0o644).unwrap();
        let alone = Authorities::new(&own, &bundle, &scratch).unwrap();
        assert_eq!((&alone.file, text(&alone).as_str()), (&own, "own"));
        files::replace(&bundle, b"system", 0o444).unwrap();
        let all = Authorities::new(&own, &bundle, &scratch).unwrap();
        assert_eq!(text(&all), "own\nsystem");
        drop(all);
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    }

    #[test]
    fn a_fetch_that_is_ended_is_told_as_slow() {
        assert_eq!(timeout_cause(FETCH), Cause::Slow);
        assert_eq!(timeout_cause(ASK), Cause::Unreachable);
    }
}
