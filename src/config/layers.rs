//! Raw values with their origin, layer by layer, and the merged result. Problems are collected, so
//! that all are reported at once.

use std::{
    ffi::OsString,
    fmt,
    io::Read,
    path::{Path, PathBuf},
};

use litemap::LiteMap;
use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use super::{
    Sources,
    keys::{self, KEYS, Key, SECTIONS, Secrecy},
    value::{InvalidValue, Value},
};
use crate::{
    core::{nearest::nearest, order::OrderExt as _},
    error::{Error, Result},
};

/// Origin of a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// The table of keys.
    Default,
    /// A file and the line in it.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// This variable.
    Environment(String),
    /// This option of the command line: `--set`, or one of its own such as `--api-url`.
    Flag(&'static str),
}

/// Option of the command line that takes any key.
const SET: &str = "--set";

/// Value of a key that did not come by `--set` and is to hold like one that did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Override {
    /// Path of the key.
    pub key: &'static str,
    /// Value as it would be written in the environment.
    pub text: String,
    /// Source that messages name.
    pub origin: Origin,
}

impl Override {
    /// Value without a secret in it.
    pub fn shown(&self) -> &str {
        let secrecy = keys::find(self.key).map(|key| key.secrecy);
        match secrecy {
            Some(Secrecy::Hidden) => "(set, hidden)",
            Some(Secrecy::Password) => self.text.rsplit('@').next().unwrap_or_default(),
            Some(Secrecy::Open) | None => &self.text,
        }
    }
}

/// The layer that an origin belongs to: a later one wins.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Layer {
    Default,
    File,
    Environment,
    Flag,
}

impl Origin {
    pub(super) fn layer(&self) -> Layer {
        match self {
            Self::Default => Layer::Default,
            Self::File { .. } => Layer::File,
            Self::Environment(_) => Layer::Environment,
            Self::Flag(_) => Layer::Flag,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(option) => f.write_str(option),
        }
    }
}

/// A value with its key and origin.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigEntry {
    pub key: &'static Key,
    /// The value, of the key's kind.
    pub value: Value,
    pub origin: Origin,
}

/// All layers merged: what counts for each key that has a value.
#[derive(Debug, Default)]
pub(super) struct Merged {
    pub(super) entries: LiteMap<&'static str, ConfigEntry>,
    pub(super) problems: Vec<Error>,
    pub(super) warnings: Vec<Error>,
    /// True if a file could not be read in full, so that what is missing may stand in it.
    pub(super) is_incomplete: bool,
}

// A file of settings is a page or two; whoever points us at a disk image is told so.
const FILE_BYTES_MAX: u64 = 256 * 1024;
// One forgotten bracket can make everything behind it wrong.
const SYNTAX_PROBLEMS_MAX: usize = 10;
const DROP_INS_MAX: usize = 256;

impl Merged {
    pub(super) fn add_defaults(&mut self) {
        for key in KEYS {
            if let Some(Ok(value)) = key
                .default
                .map(|text| key.kind.read_text(text, Path::new("/")))
            {
                self.put(key, value, Origin::Default);
            }
        }
    }

    fn put(&mut self, key: &'static Key, value: Value, origin: Origin) {
        self.entries
            .insert(key.path, ConfigEntry { key, value, origin });
    }

    fn refused(&mut self, key: &Key, origin: &Origin, refusal: InvalidValue) {
        // What stands in a secret is not repeated, not even where it is wrong.
        let why = match key.secrecy {
            Secrecy::Open => refusal.why,
            Secrecy::Hidden | Secrecy::Password => "is not usable".to_owned(),
        };
        self.problems
            .push(Error::new(format!("{origin}: {} {why}", key.path)).fix(refusal.fix));
    }

    /// Reads a file that must be there.
    pub(super) fn add_file(&mut self, path: &Path) {
        match read_file(path) {
            Ok(text) => self.add_text(path, &text),
            Err(error) => {
                self.is_incomplete = true;
                self.problems.push(error);
            }
        }
    }

    /// Reads `config.d/*.toml` beside the main file, by name. A missing folder is fine.
    pub(super) fn add_drop_ins(&mut self, main: &Path) {
        let folder = main.with_file_name("config.d");
        match drop_ins(&folder) {
            Ok(paths) => {
                for path in paths {
                    self.add_file(&path);
                }
            }
            Err(error) => {
                self.is_incomplete = true;
                self.problems.push(error);
            }
        }
    }

    pub(super) fn add_text(&mut self, path: &Path, text: &str) {
        let at = |span: std::ops::Range<usize>| Origin::File {
            path: path.to_owned(),
            line: line_of(text, span.start),
        };
        let before = self.problems.len();
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors.into_iter().take(SYNTAX_PROBLEMS_MAX) {
            let origin = at(error.span().unwrap_or_default());
            self.problems.push(
                Error::new(format!("{origin}: this is not TOML"))
                    .why(error.message().to_owned())
                    .fix("'pipeops-agent config example' prints a valid file"),
            );
        }
        let problem_count = self.problems.len();
        let is_guess = problem_count > before;
        self.is_incomplete |= is_guess;
        for (name, value) in in_order(table.get_ref()) {
            let known = SECTIONS
                .iter()
                .find(|(section, _)| *section == name.get_ref());
            match (known, value.get_ref()) {
                (Some((section, _)), DeValue::Table(keys)) => self.add_section(section, keys, &at),
                (Some(_), _) => self.problems.push(
                    Error::new(format!(
                        "{}: {} must be a section",
                        at(name.span()),
                        name.get_ref()
                    ))
                    .fix(format!(
                        "write [{}] in a line of its own, its keys below",
                        name.get_ref()
                    )),
                ),
                (None, value) => {
                    let error = unknown_at_top(&at(name.span()), name.get_ref(), value);
                    self.problems.push(error);
                }
            }
        }
        if is_guess {
            // What the parser made of the rest is a guess, and so would be the problems with it.
            self.problems.truncate(problem_count);
        }
    }

    fn add_section(
        &mut self,
        section: &str,
        keys: &DeTable<'_>,
        at: &impl Fn(std::ops::Range<usize>) -> Origin,
    ) {
        for (name, value) in in_order(keys) {
            let origin = at(name.span());
            let path = format!("{section}.{}", name.get_ref());
            if let DeValue::Table(below) = value.get_ref()
                && SECTIONS.iter().any(|(known, _)| *known == path)
            {
                self.add_section(&path, below, at);
                continue;
            }
            let Some(key) = keys::find(&path) else {
                self.problems
                    .push(unknown_key(&origin, section, name.get_ref()));
                continue;
            };
            match key.kind.read_toml(value.get_ref()) {
                Ok(value) => self.put(key, value, origin),
                Err(refusal) => self.refused(key, &origin, refusal),
            }
        }
    }

    /// Reads what was given to the process, which stands above all files.
    pub(super) fn add_what_is_given(&mut self, sources: &Sources) {
        self.add_environment(&sources.environment, &sources.folder);
        self.add_assignments(&sources.assignments, &sources.folder);
        self.add_options(&sources.options, &sources.folder);
    }

    /// Reads the variables of the environment. Unknown ones warn: Kubernetes puts some there that
    /// look like ours.
    pub(super) fn add_environment(
        &mut self,
        environment: &LiteMap<OsString, OsString>,
        folder: &Path,
    ) {
        for key in KEYS {
            let regular = key.variable();
            let names = std::iter::once(regular.as_str()).chain(key.older_names.iter().copied());
            // An empty variable is what `docker compose` and manifests make of a value that nobody
            // gave.
            let found = names
                .filter_map(|name| Some((name, environment.get(&OsString::from(name))?)))
                .find(|(_, text)| !text.is_empty());
            let Some((name, text)) = found else {
                continue;
            };
            let origin = Origin::Environment(name.to_owned());
            let Some(text) = text.to_str() else {
                let fix = "set it to valid UTF-8".to_owned();
                self.refused(
                    key,
                    &origin,
                    InvalidValue {
                        why: "is not UTF-8".to_owned(),
                        fix,
                    },
                );
                continue;
            };
            let text = if name == "KUBECONFIG" {
                self.one_kubeconfig(text)
            } else {
                text
            };
            match key.kind.read_text(text, folder) {
                Ok(value) => self.put(key, value, origin),
                Err(refusal) => self.refused(key, &origin, refusal),
            }
        }
        for name in environment.keys().filter_map(|name| name.to_str()) {
            self.warn_of_unknown(name);
        }
    }

    /// kubectl merges a list of files; this agent serves one cluster, so it takes the first.
    fn one_kubeconfig<'a>(&mut self, text: &'a str) -> &'a str {
        let mut files = text.split(':').filter(|part| !part.is_empty());
        let first = files.next().unwrap_or(text);
        if files.next().is_some() {
            self.warnings.push(
                Error::new(format!(
                    "KUBECONFIG names more than one file; only {first} is read"
                ))
                .fix("set PIPEOPS_AGENT_KUBECONFIG to the file that is meant"),
            );
        }
        first
    }

    fn warn_of_unknown(&mut self, name: &str) {
        let is_ours = name.starts_with("PIPEOPS_")
            && !name.starts_with("PIPEOPS_TEST_")
            && name != super::FILE_VARIABLE;
        if !is_ours || is_service_variable(name) || variables().any(|known| known == name) {
            return;
        }
        let known: Vec<String> = variables().collect();
        let mut warning = Error::new(format!("{name} is not a setting and has no effect"));
        if let Some(meant) = nearest(name, known.iter().map(String::as_str)) {
            warning = warning.fix(format!("did you mean {meant}?"));
        }
        self.warnings.push(warning);
    }

    /// Reads `section.key=value` of the command line.
    pub(super) fn add_assignments(&mut self, assignments: &[String], folder: &Path) {
        for assignment in assignments {
            let Some((path, text)) = assignment.split_once('=') else {
                self.problems.push(
                    // The text may be a secret that was meant as a value.
                    Error::new("--set without a value").fix("write --set section.key=value"),
                );
                continue;
            };
            let path = path.trim();
            let Some(key) = keys::find(path) else {
                let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
                self.problems
                    .push(unknown_key(&Origin::Flag(SET), section, name));
                continue;
            };
            if key.secrecy == Secrecy::Hidden {
                self.problems.push(
                    Error::new(format!(
                        "--set: {} is not accepted on the command line",
                        key.path
                    ))
                    .why("every user of this machine can read the command line")
                    .fix(format!("save it to a file and set {}_FILE", key.variable())),
                );
                continue;
            }
            self.assign(key, text, Origin::Flag(SET), folder);
        }
    }

    /// Reads values that came by options of their own.
    pub(super) fn add_options(&mut self, options: &[Override], folder: &Path) {
        for given in options {
            if let Some(key) = keys::find(given.key) {
                self.assign(key, &given.text, given.origin.clone(), folder);
            }
        }
    }

    fn assign(&mut self, key: &'static Key, text: &str, origin: Origin, folder: &Path) {
        match key.kind.read_text(text, folder) {
            Ok(value) => self.put(key, value, origin),
            Err(refusal) => self.refused(key, &origin, refusal),
        }
    }
}

fn variables() -> impl Iterator<Item = String> {
    KEYS.iter().flat_map(|key| {
        std::iter::once(key.variable()).chain(key.older_names.iter().map(|name| (*name).to_owned()))
    })
}

/// The pairs of a table as they stand in the file.
fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t Spanned<DeString<'i>>, &'t Spanned<DeValue<'i>>)> {
    let mut pairs: Vec<_> = table.iter().collect();
    pairs.order_by_key(|(name, _)| name.span().start);
    pairs
}

/// Kubernetes describes each Service of the namespace by variables; a Service called
/// `pipeops-agent` gives `PIPEOPS_AGENT_PORT=tcp://…`, `PIPEOPS_AGENT_SERVICE_HOST`,
/// `PIPEOPS_AGENT_PORT_8080_TCP_ADDR` and more.
fn is_service_variable(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name
            .split_once("_PORT_")
            .is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn unknown_at_top(origin: &Origin, name: &str, value: &DeValue<'_>) -> Error {
    if !matches!(value, DeValue::Table(_)) {
        let error = Error::new(format!("{origin}: {name:?} is before the first section"));
        let home = KEYS.iter().find(|key| key.name() == name);
        return error.fix(home.map_or_else(
            || "put it below its section, for example [pipeops]".to_owned(),
            |key| format!("put it below [{}]", key.section()),
        ));
    }
    let error = Error::new(format!("{origin}: unknown section [{name}]"));
    let sections = || SECTIONS.iter().map(|(section, _)| *section);
    error.fix(match nearest(name, sections()) {
        Some(meant) => format!("did you mean [{meant}]?"),
        None => format!(
            "the sections are {}",
            sections().collect::<Vec<_>>().join(", ")
        ),
    })
}

fn unknown_key(origin: &Origin, section: &str, name: &str) -> Error {
    let path = match section {
        "" => name.to_owned(),
        _ => format!("{section}.{name}"),
    };
    let error = Error::new(format!("{origin}: unknown key {path:?}"));
    let here = KEYS.iter().filter(|key| key.section() == section);
    if let Some(meant) = nearest(name, here.clone().map(Key::name)) {
        return error.fix(format!("did you mean {meant}?"));
    }
    if let Some(elsewhere) = KEYS.iter().find(|key| key.name() == name) {
        return error.fix(format!("{name} belongs below [{}]", elsewhere.section()));
    }
    if let Some(meant) = nearest(&path, KEYS.iter().map(|key| key.path)) {
        return error.fix(format!("did you mean {meant}?"));
    }
    let known: Vec<_> = here.map(Key::name).collect();
    error.fix(if known.is_empty() {
        "'pipeops-agent config example' prints all keys".to_owned()
    } else {
        format!("[{section}] knows {}", known.join(", "))
    })
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    before.matches('\n').count() + 1
}

fn read_file(path: &Path) -> Result<String> {
    let what = || Error::new(format!("cannot read {}", path.display()));
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| {
        let kind = error.kind();
        let fix = if kind == std::io::ErrorKind::PermissionDenied {
            "run as root, or: chmod 640 and chgrp pipeops-agent"
        } else if kind == std::io::ErrorKind::NotFound {
            "use an existing file with --config"
        } else {
            "check the file and its disk"
        };
        what().because(&error).fix(fix)
    })?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(what()
            .why("it is larger than 256 KiB")
            .fix("use a configuration file"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error
            .as_bytes()
            .iter()
            .take(valid)
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        Error::new(format!("{}:{line}: this is not UTF-8", path.display()))
            .fix("save the file as UTF-8")
    })
}

fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>> {
    let what = || Error::new(format!("cannot list {}", folder.display()));
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(what()
                .because(&error)
                .fix("run as root, or: chmod 755 the folder"));
        }
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| what().because(&error))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_toml = path
            .extension()
            .is_some_and(|extension| extension == "toml");
        if is_toml && !name.starts_with('.') {
            paths.push(path);
        }
        if paths.len() > DROP_INS_MAX {
            return Err(what()
                .why(format!("it contains more than {DROP_INS_MAX} files"))
                .fix("merge some of them"));
        }
    }
    paths.order();
    Ok(paths)
}
