//! Where the token comes from, and how it is read: from a file each time anew, so that a replaced token is found.

use std::{
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    core::secret::Secret,
    error::{Error, Result, Retry},
};

/// Where the token comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenSource {
    /// From `PIPEOPS_TOKEN` or `pipeops.token`: it stays what it is until a restart.
    Inline(Secret),
    /// From this file, which may change at any time and may be missing now.
    File(PathBuf),
}

// Real tokens have 36 letters; signed ones (JWT) a few thousand.
const TOKEN_BYTES_MAX: u64 = 16 * 1024;

impl TokenSource {
    /// The token as it is now. Reads the file: a short blocking call.
    pub fn read(&self) -> Result<Secret> {
        match self {
            Self::Inline(token) => Ok(token.clone()),
            Self::File(path) => read(path).map_err(|error| error.retry(Retry::Later)),
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
        return Err("it has spaces, line ends or other signs that no token has");
    }
    Ok(Secret::new(token))
}

fn read(path: &Path) -> Result<Secret> {
    let what = || Error::new(format!("cannot read the token in {}", path.display()));
    let fix = "write the token into the file, readable for the agent only";
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(TOKEN_BYTES_MAX + 1).read_to_end(&mut text))
        .map_err(|error| what().because(&error).fix(fix))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > TOKEN_BYTES_MAX {
        return Err(what().why("it is larger than 16 KiB").fix(fix));
    }
    let text =
        String::from_utf8(text).map_err(|error| what().because(&error.utf8_error()).fix(fix))?;
    checked(&text).map_err(|why| what().why(why).fix(fix))
}

/// What is doubtful about the file of a token.
pub(super) fn doubts(path: &Path) -> Option<Error> {
    let name = path.display();
    match std::fs::metadata(path) {
        Err(error) => Some(
            Error::new(format!("cannot look at the token file {name}"))
                .because(&error)
                .fix("the link waits for it: write the token into the file"),
        ),
        Ok(facts) if facts.permissions().mode() & 0o004 != 0 => Some(
            Error::new(format!(
                "every user of this machine can read the token in {name}"
            ))
            .fix(format!("chmod 600 {name}")),
        ),
        Ok(_) => None,
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
    fn a_token_that_everybody_can_read_is_doubtful() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(doubts(&path).is_some());
        write(&path, "clt_1");
        for (mode, is_doubtful) in [(0o600, false), (0o640, false), (0o644, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(doubts(&path).is_some(), is_doubtful, "{mode:o}");
        }
    }

    fn write(path: &Path, text: &str) {
        use std::io::Write as _;
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.persist(path).unwrap();
    }
}
