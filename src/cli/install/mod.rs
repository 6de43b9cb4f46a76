//! Shared steps of `up`, `token rotate` and `replace-go-agent`: the configuration, the token, the
//! service.

use std::{
    ffi::OsStr,
    fs::{DirBuilder, Permissions},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::unistd::{AccessFlags, User, access, geteuid};

use super::{
    args::Args,
    ask,
    output::Output,
    service,
    table::{Opt, Takes},
};
use crate::{
    config::{
        self, DEFAULT_FILE, FILE_VARIABLE, Loaded, Origin, Override, Settings, Sources,
        TokenSource,
        keys::{self, Secrecy},
    },
    core::secret::Secret,
    daemon::oneshot::{self, TrialResult},
    error::{Error, Result},
    files,
};

mod carried;

use carried::{Copy, is_secret};
pub(super) use carried::{copy_names, from_environment};

/// Drop-in for the written keys, if there is a settings file already.
const DROP_IN: &str = "up.toml";

/// Everybody may read settings, and only root may write them: no secret is in them.
const OPEN: u32 = 0o644;
/// Settings with a password in them are for root and the group of the agent.
const SECRET: u32 = 0o640;

/// A token that was not shown to the control plane.
pub(super) const UNCHECKED: Opt = Opt::flag(
    "unchecked",
    "Do not verify the token with the control plane",
);

/// File of the new token.
pub(super) const TOKEN_FILE: Opt = Opt::value(
    "token-file",
    Takes::File,
    "FILE",
    "Read the token from this file (default: PIPEOPS_TOKEN, or a prompt)",
);

/// Sources that the settings of a plan are taken from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Basis {
    /// The files alone: what a service reads.
    Files,
    /// The files and the environment of this command, as an agent that is started by hand has it.
    Process,
}

/// The settings as they will be.
#[derive(Debug)]
pub(super) struct Plan {
    /// The main file, which may not be there yet.
    pub(super) file: PathBuf,
    /// Keys that are written.
    pub(super) keys: Vec<Override>,
    /// The resulting settings.
    pub(super) settings: Settings,
    /// User and group of the agent.
    pub(super) owner: Option<(u32, u32)>,
    copies: Vec<Copy>,
}

/// The current settings, complete or not.
pub(super) fn now(args: &Args) -> (PathBuf, Loaded) {
    let named = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty());
    let named = args.path("config").or_else(|| named.map(PathBuf::from));
    let file = named.unwrap_or_else(|| DEFAULT_FILE.into());
    let file = std::path::absolute(&file).unwrap_or(file);
    let loaded = config::load(&sources(&file, Basis::Process));
    (file, loaded)
}

/// The files and, where that is wanted, the environment but for tokens in it: those are here to be
/// written into a file.
fn sources(file: &Path, basis: Basis) -> Sources {
    let mut sources = Sources::of_process(Some(file.to_owned()), Vec::new());
    sources.is_new = true;
    sources.environment.retain(|name, _| match basis {
        Basis::Process => {
            name != OsStr::new("PIPEOPS_TOKEN") && name != OsStr::new("PIPEOPS_TOKEN_FILE")
        }
        Basis::Files => name.to_str().is_none_or(|name| !keys::is_variable(name)),
    });
    sources
}

/// Refuses `command` before it asks anything, if it could not write to the folder of `file`.
pub(super) fn check_may_write(file: &Path, command: &str) -> Result<()> {
    let folder = file.ancestors().skip(1).find(|folder| folder.exists());
    let folder = folder.unwrap_or_else(|| Path::new("/"));
    let needs_root = || {
        Error::new(format!("{command} needs root"))
            .why(format!("only root may change {}", file.display()))
            .fix(format!("sudo pipeops-agent {command}"))
    };
    if file == Path::new(DEFAULT_FILE) && !geteuid().is_root() {
        return Err(needs_root());
    }
    match access(folder, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Ok(()),
        Err(_) if !geteuid().is_root() => Err(needs_root()),
        Err(error) => Err(files::explain(
            format!("cannot write in {}", folder.display()),
            &error.into(),
        )),
    }
}

/// A value that came by an option of its own.
pub(super) fn override_of(
    key: &'static str,
    text: impl Into<String>,
    option: &'static str,
) -> Override {
    Override {
        key,
        text: text.into(),
        origin: Origin::Flag(option),
    }
}

impl Plan {
    /// The settings of `file` with these keys over them, or everything that is wrong with them.
    pub(super) fn new(
        file: PathBuf,
        keys: Vec<Override>,
        basis: Basis,
        output: &mut Output,
    ) -> Result<Self> {
        let before = sources(&file, basis);
        let wanted = Sources {
            options: keys.clone(),
            ..before.clone()
        };
        let loaded = config::load(&wanted);
        let user = User::from_name(&loaded.keeper().user).ok().flatten();
        let owner = user.map(|user| (user.uid.as_raw(), user.gid.as_raw()));
        let mut copies = carried::copies(&keys, &file, owner)?;
        let before = config::load(&before);
        carried::check_order(&keys, &loaded, &before, &written_file(&file))?;
        let mut keys = keys;
        keys.retain(|entry| !carried::is_there(entry, &copies, &loaded, &before));
        copies.retain(|copy| keys.iter().any(|entry| entry.key == copy.key));
        match loaded.settings() {
            Ok(settings) => Ok(Self {
                file,
                keys,
                settings,
                owner,
                copies,
            }),
            Err(problems) => {
                for problem in &problems {
                    output.error(problem);
                }
                Err(Error::new("the agent cannot run with these settings")
                    .fix("fix the problems above, then try again"))
            }
        }
    }

    /// Files of the settings that the agent's user cannot read, as far as owners and modes tell.
    pub(super) fn unreadable(&self) -> Vec<&Path> {
        let Some(owner) = self.owner else {
            return Vec::new();
        };
        let pair = self.settings.tls.client.as_ref();
        let certificate = pair
            .into_iter()
            .flat_map(|pair| [&pair.cert_file, &pair.key_file]);
        let token = self.settings.pipeops.token_file();
        let named = self.settings.tls.ca_file.iter().chain(certificate);
        let named = named.map(PathBuf::as_path).chain(token);
        let is_copied = |path: &Path| self.copies.iter().any(|copy| copy.from == path);
        named
            .filter(|path| !is_copied(path) && !carried::is_readable(path, owner))
            .collect()
    }

    /// The file of the token.
    pub(super) fn token_file(&self) -> Result<&Path> {
        self.settings.pipeops.control_plane()?;
        self.settings.pipeops.token_file().ok_or_else(|| {
            Error::new("the token is not in a file of its own")
                .why("it is in pipeops.token")
                .fix("write it into a file, name that by pipeops.token_file, and remove pipeops.token")
        })
    }

    /// Shows `token` to the control plane, unless that is not wanted.
    pub(super) fn check(&self, token: &Secret, args: &Args, output: &mut Output) -> Result<()> {
        if args.has(UNCHECKED.long) {
            return Ok(());
        }
        match oneshot::token(&self.settings, token)? {
            TrialResult::Taken => {
                if !args.has("json") {
                    let url = &self.settings.pipeops.control_plane()?.api_url;
                    output.line(&format!("The control plane at {url} accepted the token."));
                }
                Ok(())
            }
            TrialResult::Refused(error) => Err(error
                .within("the control plane rejected this token, so nothing was changed")
                .fix("copy the token of this cluster again from the control plane")),
            TrialResult::NotAsked(error) => {
                let skip = "continue without verification: --unchecked";
                let fix = match &error.fix {
                    Some(fix) => format!("{fix}; or {skip}"),
                    None => skip.to_owned(),
                };
                Err(error
                    .within("this token could not be verified, so nothing was changed")
                    .fix(fix))
            }
        }
    }

    /// Writes the token, which only the agent's user and root may read: members of the agent's
    /// group may look at the agent, and no more.
    pub(super) fn write_token(&self, token: &Secret) -> Result<()> {
        let path = self.token_file()?;
        make_folder(path)?;
        let content = format!("{}\n", token.reveal());
        files::replace_secret(path, content.as_bytes(), self.owner)
    }

    /// Writes the keys to the settings file, or to a drop-in if that exists. Returns the path, if
    /// any. The service needs the file, even if all settings are in drop-ins.
    pub(super) fn write_keys(&self) -> Result<Option<PathBuf>> {
        if self.keys.is_empty() && self.file.exists() {
            return Ok(None);
        }
        make_folder(&self.file)?;
        for copy in &self.copies {
            copy.write(self.owner)?;
        }
        let path = written_file(&self.file);
        make_folder(&path)?;
        // What an earlier `up` wrote and this one does not name stays.
        let mut lines = match files::read_if_there(&path, 1 << 20)? {
            Some(before) => assigned(&String::from_utf8_lossy(&before)),
            None => Vec::new(),
        };
        for Override { key, text, .. } in &self.keys {
            let value = match self.copies.iter().find(|copy| copy.key == *key) {
                Some(copy) => copy.value(),
                None => carried::toml(key, text),
            };
            lines.retain(|(known, _)| known != key);
            lines.push(((*key).to_owned(), value));
        }
        // A file of settings is never written again: later runs have a drop-in of their own.
        let again = if path.ends_with(DROP_IN) {
            ", which overwrites it"
        } else {
            ""
        };
        let mut text = format!(
            "# Written by pipeops-agent (up, dashboard expose){again}. All settings: pipeops-agent config example\n"
        );
        for (key, value) in lines {
            text.push_str(&key);
            text.push_str(" = ");
            text.push_str(&value);
            text.push('\n');
        }
        let (mode, owner) = match self.owner {
            _ if !self.keys.iter().any(is_secret) => (OPEN, None),
            Some((_, group)) => (SECRET, Some((0, group))),
            None => (files::PRIVATE, None),
        };
        if mode != OPEN && path.exists() {
            // Before the secret is in it: a file that is written again keeps the mode that it has.
            let closed = std::fs::set_permissions(&path, Permissions::from_mode(mode));
            let cannot = || format!("cannot close {} to others", path.display());
            closed.map_err(|error| files::explain(cannot(), &error))?;
        }
        files::replace_as_it_was(&path, text.as_bytes(), mode, owner)?;
        Ok(Some(path))
    }
}

/// The file that keys are written into.
fn written_file(file: &Path) -> PathBuf {
    if file.exists() {
        file.with_file_name("config.d").join(DROP_IN)
    } else {
        file.to_owned()
    }
}

/// The lines that [`Plan::write_keys`] wrote: `section.key = value`.
fn assigned(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(" = "));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Makes the folder of `path`, where it is missing: the agent reads settings in it, whatever the
/// umask of this command is.
fn make_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    let made = DirBuilder::new().mode(0o755).create(folder);
    match made.and_then(|()| std::fs::set_permissions(folder, Permissions::from_mode(0o755))) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(files::explain(
            format!("cannot make the folder {}", folder.display()),
            &error,
        )),
    }
}

/// True if the command line or the environment has a token.
pub(super) fn is_token_given(args: &Args) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    args.has(TOKEN_FILE.long) || is_set("PIPEOPS_TOKEN_FILE") || is_set("PIPEOPS_TOKEN")
}

/// The token from the command line, or from a prompt if `question` is given.
pub(super) fn new_token(args: &Args, question: Option<&str>) -> Result<Option<Secret>> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let file = args
        .path(TOKEN_FILE.long)
        .or_else(|| variable("PIPEOPS_TOKEN_FILE").map(PathBuf::from));
    let token = if let Some(file) = file {
        TokenSource::File(file).read()?
    } else if let Some(token) = variable("PIPEOPS_TOKEN") {
        Secret::new(token.to_string_lossy())
    } else if let Some(question) = question {
        ask::secret(question)?
    } else {
        return Ok(None);
    };
    let token = Secret::new(token.reveal().trim());
    if token.reveal().is_empty() {
        return Err(Error::new("no token was given").fix(
            "pass it in a file: --token-file FILE; or in PIPEOPS_TOKEN, or type it on a terminal",
        ));
    }
    // It becomes a header, and a line of a file.
    if !token.reveal().bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::new("that is not a token")
            .why("a token is one word of letters, digits and symbols")
            .fix("copy the token of this cluster again, without quotes or line ends"));
    }
    Ok(Some(token))
}

/// Starts the agent with the current settings if it is a service; otherwise returns the command
/// that runs it.
pub(super) fn start(plan: &Plan) -> Result<Option<String>> {
    let root = Path::new("/");
    let is_usual = plan.file == Path::new(DEFAULT_FILE);
    match service::manager(root).filter(|_| is_usual) {
        Some(manager) => manager.start(root).map(|()| None),
        None if is_usual => Ok(Some("pipeops-agent run".to_owned())),
        None => Ok(Some(format!(
            "pipeops-agent run --config {}",
            plan.file.display()
        ))),
    }
}
