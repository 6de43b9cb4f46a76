//! Reads tokens and passwords from their files each time, so that a replaced one is used.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    core::secret::Secret,
    error::{Error, Result, Retry},
    files,
};

/// Source of the token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenSource {
    /// From `PIPEOPS_TOKEN` or `pipeops.token`: it stays what it is until a restart.
    Inline(Secret),
    /// From this file, which may change at any time and may be missing now.
    File(PathBuf),
}

/// Credentials of the agent at a receiver. Secrets are in files, which are read again each time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Credentials {
    /// By the token in this file.
    Bearer(PathBuf),
    /// By a user name and the password in a file.
    Basic {
        /// The name.
        username: String,
        password_file: PathBuf,
    },
}

// Real tokens have 36 characters; signed ones (JWT) a few thousand.
const TOKEN_BYTES_MAX: u64 = 16 * 1024;

impl TokenSource {
    /// The token as it is now. Reads the file: a short blocking call.
    pub fn read(&self) -> Result<Secret> {
        match self {
            Self::Inline(token) => Ok(token.clone()),
            Self::File(path) => read(path, "token", checked),
        }
    }
}

impl Credentials {
    /// The file with the secret.
    pub(super) fn file(&self) -> &Path {
        match self {
            Self::Bearer(file)
            | Self::Basic {
                password_file: file,
                ..
            } => file,
        }
    }

    /// The value of `Authorization` as it is now. Reads the file: a short blocking call.
    pub fn authorization(&self) -> Result<Secret> {
        match self {
            Self::Bearer(file) => {
                let token = read(file, "token", checked)?;
                Ok(Secret::new(format!("Bearer {}", token.reveal())))
            }
            Self::Basic {
                username,
                password_file,
            } => {
                let password = read(password_file, "password", checked_password)?;
                let pair = format!("{username}:{}", password.reveal());
                Ok(Secret::new(format!("Basic {}", STANDARD.encode(pair))))
            }
        }
    }
}

/// The token in `text`, without the white space around it. The error never repeats the text.
pub(super) fn checked(text: &str) -> std::result::Result<Secret, &'static str> {
    let token = text.trim();
    if token.is_empty() {
        return Err("it is empty");
    }
    // It becomes a header: a line end in it would start another one.
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "it contains characters that are not allowed in a token, such as spaces or line ends",
        );
    }
    Ok(Secret::new(token))
}

/// The password in `text`: its first line. It is encoded before it becomes a header, so any sign
/// may be in it.
fn checked_password(text: &str) -> std::result::Result<Secret, &'static str> {
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(Secret::new(password)),
        Some(_) | None => Err("it is empty"),
    }
}

pub(super) fn read(
    path: &Path,
    noun: &str,
    checked: impl Fn(&str) -> std::result::Result<Secret, &'static str>,
) -> Result<Secret> {
    let what =
        || Error::new(format!("cannot read the {noun} in {}", path.display())).retry(Retry::Later);
    let fix = format!("write the {noun} into the file, readable for the agent only");
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(TOKEN_BYTES_MAX + 1).read_to_end(&mut text))
        .map_err(|error| what().because(&error).fix(fix.as_str()))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > TOKEN_BYTES_MAX {
        return Err(what().why("it is larger than 16 KiB").fix(fix));
    }
    let text = String::from_utf8(text)
        .map_err(|error| what().because(&error.utf8_error()).fix(fix.as_str()))?;
    checked(&text).map_err(|why| what().why(why).fix(fix.as_str()))
}

/// Warning about the file of a token or password; `waits` describes what happens while it is
/// absent.
pub(super) fn doubts(path: &Path, waits: &str) -> Option<Error> {
    let name = path.display();
    match std::fs::metadata(path) {
        Err(error) => Some(
            Error::new(format!("cannot check the secret file {name}"))
                .because(&error)
                .fix(format!(
                    "{waits}: write the token or password into the file"
                )),
        ),
        Ok(_) => files::exposed(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_a_broken_one_is_refused() {
        assert_eq!(checked("  clt_1\n").unwrap().reveal(), "clt_1");
        for text in ["", " \n", "a b", "a\r\nX-Evil: 1", "é"] {
            assert!(checked(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_replaced_token_is_found_and_an_error_does_not_repeat_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let source = TokenSource::File(path.clone());
        assert_eq!(source.read().unwrap_err().retry, Retry::Later);
        for token in ["clt_one", "clt_two"] {
            write(&path, token);
            assert_eq!(source.read().unwrap().reveal(), token);
        }
        write(&path, "clt_secret with a space");
        assert!(
            !source
                .read()
                .unwrap_err()
                .to_string()
                .contains("clt_secret")
        );
        write(&path, &"x".repeat(20_000));
        assert!(source.read().unwrap_err().to_string().contains("16 KiB"));
    }

    #[test]
    fn a_token_that_others_can_read_is_doubtful() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(doubts(&path, "it waits").is_some());
        write(&path, "clt_1");
        if nix::unistd::geteuid().is_root() {
            chown(&path, None, Some(12_345)).unwrap();
        }
        let has_group = path.metadata().unwrap().gid() != 0;
        for (mode, is_doubtful) in [(0o600, false), (0o640, has_group), (0o644, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(doubts(&path, "it waits").is_some(), is_doubtful, "{mode:o}");
        }
    }

    fn write(path: &Path, text: &str) {
        use std::io::Write as _;
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.persist(path).unwrap();
    }
}
