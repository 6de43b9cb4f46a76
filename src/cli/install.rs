//! What `up`, `token rotate` and `replace-go-agent` share: the settings that are to hold, the token, the service.

use std::{
    ffi::OsString,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use nix::unistd::User;

use super::{
    ask,
    given::Given,
    output::Output,
    service,
    table::{Opt, Takes},
};
use crate::{
    config::{self, DEFAULT_FILE, Loaded, Settings, Sources, TokenSource},
    core::secret::Secret,
    daemon::trial::{self, Verdict},
    error::{Error, Result},
    files,
};

/// What is written here belongs to the drop-in of this name, where there is a file of settings already.
const DROP_IN: &str = "up.toml";

/// Everybody may read settings, and only root may write them: no secret is in them.
const OPEN: u32 = 0o644;

/// A token that was not shown to the control plane.
pub(super) const UNCHECKED: Opt = Opt::flag(
    "unchecked",
    "Do without asking the control plane whether it takes the token",
);

/// Where a new token is.
pub(super) const TOKEN_FILE: Opt = Opt::value(
    "token-file",
    Takes::File,
    "FILE",
    "Take the token out of this file; else out of PIPEOPS_TOKEN, else it is asked for",
);

/// The settings as they will be.
#[derive(Debug)]
pub(super) struct Plan {
    /// The main file, which may not be there yet.
    pub(super) file: PathBuf,
    /// Keys that are written.
    pub(super) keys: Vec<(&'static str, String)>,
    /// What will hold.
    pub(super) settings: Settings,
    /// Who the agent runs as: user and group.
    pub(super) owner: Option<(u32, u32)>,
}

/// What holds now, whether it is enough to run with or not.
pub(super) fn now(given: &Given) -> (PathBuf, Loaded) {
    let file = given.path("config").unwrap_or_else(|| DEFAULT_FILE.into());
    let file = std::path::absolute(&file).unwrap_or(file);
    let loaded = config::load(&sources(&file, Vec::new()));
    (file, loaded)
}

/// The files and the environment, but for tokens in it: those are here to be written into a file.
fn sources(file: &Path, assignments: Vec<String>) -> Sources {
    let mut sources = Sources::of_process(Some(file.to_owned()), assignments);
    sources.is_new = true;
    for name in ["PIPEOPS_TOKEN", "PIPEOPS_TOKEN_FILE"] {
        sources.environment.remove(&OsString::from(name));
    }
    sources
}

impl Plan {
    /// The settings of `file` with these keys over them, or everything that is wrong with them.
    pub(super) fn new(
        file: PathBuf,
        keys: Vec<(&'static str, String)>,
        output: &mut Output,
    ) -> Result<Self> {
        let assignments = keys
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let loaded = config::load(&sources(&file, assignments));
        let user = User::from_name(&loaded.keeper().user).ok().flatten();
        let owner = user.map(|user| (user.uid.as_raw(), user.gid.as_raw()));
        match loaded.settings() {
            Ok(settings) => Ok(Self {
                file,
                keys,
                settings,
                owner,
            }),
            Err(problems) => {
                for problem in &problems {
                    output.error(problem);
                }
                Err(Error::new("the agent cannot run with these settings")
                    .fix("mend what is said above, then try again"))
            }
        }
    }

    /// The file of the token.
    pub(super) fn token_file(&self) -> Result<&Path> {
        match &self.settings.pipeops.token {
            TokenSource::File(path) => Ok(path),
            TokenSource::Inline(_) => Err(Error::new("the token is no file of its own")
                .why("it is in pipeops.token")
                .fix("write it into a file, name that by pipeops.token_file, and remove pipeops.token")),
        }
    }

    /// Shows `token` to the control plane, unless that is not wanted.
    pub(super) fn check(&self, token: &Secret, given: &Given, output: &mut Output) -> Result<()> {
        if given.has(UNCHECKED.long) {
            return Ok(());
        }
        match trial::token(&self.settings, token)? {
            Verdict::Taken => {
                if !given.has("json") {
                    let url = &self.settings.pipeops.api_url;
                    output.line(&format!("The control plane at {url} takes the token."));
                }
                Ok(())
            }
            Verdict::Refused(error) => Err(error
                .within("the control plane refuses this token, so nothing was changed")
                .fix("copy the token of this cluster again from the control plane")),
            Verdict::NotAsked(error) => {
                let fix = error.fix.clone().unwrap_or_default();
                let error = error.within(
                    "nobody could be asked whether this token is good, so nothing was changed",
                );
                Err(error.fix(
                    format!("{fix}; or go on without asking: --unchecked").trim_start_matches("; "),
                ))
            }
        }
    }

    /// Writes the token, which only the agent's user and root may read: members of the agent's group may look at the agent, and no more.
    pub(super) fn write_token(&self, token: &Secret) -> Result<()> {
        let path = self.token_file()?;
        make_folder(path)?;
        let content = format!("{}\n", token.reveal());
        files::replace_secret(path, content.as_bytes(), self.owner)
    }

    /// Writes the keys: the file itself where there is none, else one beside it that is read after it. Says which, where any.
    pub(super) fn write_keys(&self) -> Result<Option<PathBuf>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        make_folder(&self.file)?;
        let path = if self.file.exists() {
            let path = self.file.with_file_name("config.d").join(DROP_IN);
            make_folder(&path)?;
            path
        } else {
            self.file.clone()
        };
        // What an earlier `up` wrote and this one does not name stays.
        let mut keys = match files::read_if_there(&path, 1 << 20)? {
            Some(before) => assigned(&String::from_utf8_lossy(&before)),
            None => Vec::new(),
        };
        for (key, value) in &self.keys {
            keys.retain(|(known, _)| known != key);
            keys.push(((*key).to_owned(), format!("{value:?}")));
        }
        let mut text = "# Written by pipeops-agent (up, dashboard expose), which writes it anew. All settings: pipeops-agent config example\n".to_owned();
        for (key, value) in keys {
            text.push_str(&key);
            text.push_str(" = ");
            text.push_str(&value);
            text.push('\n');
        }
        files::replace_as_it_was(&path, text.as_bytes(), OPEN, None)?;
        Ok(Some(path))
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

fn make_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    match std::fs::create_dir(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(files::explain(
            format!("cannot make the folder {}", folder.display()),
            &error,
        )),
    }
}

/// The token of this command line, or of somebody who is asked for it. `None` where there is none and nobody is asked.
pub(super) fn new_token(given: &Given, question: Option<&str>) -> Result<Option<Secret>> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let file = given
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
            "name a file that has it: --token-file FILE; or put it into PIPEOPS_TOKEN, or type it on a terminal",
        ));
    }
    // It becomes a header, and a line of a file.
    if !token.reveal().bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::new("that is no token")
            .why("a token is one word of letters, digits and signs")
            .fix("copy the token of this cluster again, without quotes or line ends"));
    }
    Ok(Some(token))
}

/// Starts the agent with the settings as they are now, where it is a service; else the line that runs it.
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
