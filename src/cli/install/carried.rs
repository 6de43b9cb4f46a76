//! Settings from the environment of `up`: they are saved to the configuration, and files that the
//! agent could not read later are copied.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{OPEN, Override, Secrecy};
use crate::{
    config::{
        Loaded, Origin,
        keys::{self, KEYS, Key},
        value::{Value, ValueKind},
    },
    error::{Error, Result},
    files,
};

/// Certificates, keys and tokens are short.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Folders that are emptied, or that a service may not look into.
const FLEETING: [&str; 4] = ["/tmp", "/var/tmp", "/run", "/dev/shm"];
const PERSONAL: [&str; 2] = ["/home", "/root"];

/// Keys that the environment sets and the files do not. `KUBECONFIG` is taken over where the
/// command uses the cluster.
pub(in crate::cli) fn from_environment(loaded: &Loaded, uses_cluster: bool) -> Vec<Override> {
    let of_environment = |key: &'static Key| {
        let entry = loaded.entry(key.path)?;
        let Origin::Environment(variable) = &entry.origin else {
            return None;
        };
        // A secret is written by its owner, in a file of its own.
        let is_taken = key.secrecy != Secrecy::Hidden && (uses_cluster || variable != "KUBECONFIG");
        is_taken.then(|| Override {
            key: key.path,
            text: entry.value.to_string(),
            origin: entry.origin.clone(),
        })
    };
    KEYS.iter().filter_map(of_environment).collect()
}

/// True if the value must not be world-readable.
pub(super) fn is_secret(entry: &Override) -> bool {
    let secrecy = keys::find(entry.key).map(|key| key.secrecy);
    match secrecy {
        Some(Secrecy::Hidden) => true,
        Some(Secrecy::Password) => entry.text.contains('@'),
        Some(Secrecy::Open) | None => false,
    }
}

/// The value in the syntax of a settings file. It was parsed before, so it is valid.
pub(super) fn toml(key: &str, text: &str) -> String {
    let value = keys::find(key).and_then(|key| key.kind.read_text(text, Path::new("/")).ok());
    value.map_or_else(|| Value::Text(text.to_owned()).toml(), |value| value.toml())
}

/// Refuses keys that a file which is read later than `written` sets to something else.
pub(super) fn check_order(
    overrides: &[Override],
    wanted: &Loaded,
    before: &Loaded,
    written: &Path,
) -> Result<()> {
    for by_option in overrides {
        let key = by_option.key;
        let (Some(entry), Some(now)) = (wanted.entry(key), before.entry(key)) else {
            continue;
        };
        let Origin::File { path, .. } = &now.origin else {
            continue;
        };
        let is_drop_in = |path: &Path| path.parent().is_some_and(|it| it.ends_with("config.d"));
        let is_later = is_drop_in(path) && (!is_drop_in(written) || path.as_path() > written);
        if is_later && now.value != entry.value {
            return Err(
                Error::new(format!("{key} cannot be set to {}", by_option.shown()))
                    .why(format!("{} overrides it", now.origin))
                    .fix("change it there or remove it, then try again"),
            );
        }
    }
    Ok(())
}

/// True if the files already have the value of the environment.
pub(super) fn is_there(
    entry: &Override,
    copies: &[Copy],
    wanted: &Loaded,
    before: &Loaded,
) -> bool {
    let Some(now) = before.entry(entry.key) else {
        return false;
    };
    let is_same = match copies.iter().find(|copy| copy.key == entry.key) {
        Some(copy) => {
            now.value == Value::Path(copy.to.clone())
                && files::read(&copy.to, FILE_BYTES_MAX).is_ok_and(|there| there == copy.content)
        }
        None => wanted
            .entry(entry.key)
            .is_some_and(|entry| entry.value == now.value),
    };
    is_same && matches!(entry.origin, Origin::Environment(_))
}

/// A file that is copied to the folder of the settings.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) key: &'static str,
    pub(super) from: PathBuf,
    to: PathBuf,
    content: Vec<u8>,
    /// True if everybody may read it.
    is_open: bool,
}

impl Copy {
    /// The value of the key, as it is written in a file of settings.
    pub(super) fn value(&self) -> String {
        Value::Path(self.to.clone()).toml()
    }

    pub(super) fn write(&self, owner: Option<(u32, u32)>) -> Result<()> {
        if self.is_open {
            files::replace_as_it_was(&self.to, &self.content, OPEN, None)
        } else {
            files::replace_secret(&self.to, &self.content, owner)
        }
    }
}

/// Files named by the environment that the agent could not read, or that a reboot would remove.
pub(super) fn copies(
    overrides: &[Override],
    file: &Path,
    owner: Option<(u32, u32)>,
) -> Result<Vec<Copy>> {
    let mut copies = Vec::new();
    for entry in overrides {
        let Some(key) = keys::find(entry.key) else {
            continue;
        };
        let from = Path::new(&entry.text);
        let is_from_here = matches!(entry.origin, Origin::Environment(_));
        let is_file = key.kind == ValueKind::Path && key.path.ends_with("_file");
        if !is_from_here || !is_file || lasts(from, owner) {
            continue;
        }
        let content = files::read(from, FILE_BYTES_MAX)
            .map_err(|error| error.within(format!("{} cannot be used", entry.origin)))?;
        let is_certificate = matches!(key.name(), "ca_file" | "cert_file");
        copies.push(Copy {
            key: key.path,
            from: from.to_owned(),
            to: file.with_file_name(copy_name(key)),
            content,
            is_open: is_certificate,
        });
    }
    Ok(copies)
}

/// Name of a copy: `tls-ca.pem`.
fn copy_name(key: &Key) -> String {
    let stem = key.path.trim_end_matches("_file").replace('.', "-");
    match key.name() {
        "ca_file" | "cert_file" | "key_file" => format!("{stem}.pem"),
        _ => stem,
    }
}

/// Every name that a copy can have.
pub(in crate::cli) fn copy_names() -> impl Iterator<Item = String> {
    let files = KEYS.iter().filter(|key| key.path.ends_with("_file"));
    files.map(copy_name)
}

/// True if the file survives a reboot and the agent may read it.
fn lasts(path: &Path, owner: Option<(u32, u32)>) -> bool {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let is_below = |folders: &[&str]| folders.iter().any(|folder| real.starts_with(folder));
    if is_below(&FLEETING) || (owner.is_some() && is_below(&PERSONAL)) {
        return false;
    }
    owner.is_none_or(|owner| is_readable(&real, owner))
}

/// True if owners and modes let a user read the file.
pub(super) fn is_readable(path: &Path, (user, group): (u32, u32)) -> bool {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real.ancestors().all(|part| {
        let Ok(metadata) = part.metadata() else {
            return false;
        };
        let wanted = if metadata.is_dir() { 0o1 } else { 0o4 };
        let shift = match (metadata.uid() == user, metadata.gid() == group) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        metadata.mode() >> shift & wanted != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = copy_names().collect();
        assert_eq!(names.len(), copy_names().count());
        assert!(
            names.contains("tls-ca.pem") && names.contains("tls-key.pem"),
            "{names:?}"
        );
    }

    #[test]
    fn a_file_lasts_where_the_user_of_the_agent_reaches_it() {
        assert!(lasts(Path::new("/etc/passwd"), Some((65_533, 65_533))));
        assert!(!lasts(Path::new("/etc/shadow"), Some((65_533, 65_533))));
        assert!(!lasts(
            Path::new("/home/somebody/ca.pem"),
            Some((65_533, 65_533))
        ));
        assert!(lasts(Path::new("/home/somebody/ca.pem"), None));
        assert!(!lasts(Path::new("/tmp/ca.pem"), None));
    }

    #[test]
    fn a_value_is_written_so_that_it_is_read_as_the_same() {
        for (key, text, wanted) in [
            ("pipeops.allow_plaintext", "yes", "true"),
            (
                "agent.labels",
                "site=berlin,rack=4",
                r#"{ "rack" = "4", "site" = "berlin" }"#,
            ),
            (
                "access.expose",
                "NodePort,LoadBalancer",
                "[\"NodePort\", \"LoadBalancer\"]",
            ),
            ("telemetry.interval", "90s", "\"1 min 30 s\""),
            ("pipeops.cluster_name", r#"a "b" \c"#, r#""a \"b\" \\c""#),
        ] {
            assert_eq!(toml(key, text), wanted);
        }
    }
}
