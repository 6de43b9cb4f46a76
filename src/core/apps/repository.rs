//! Git repository as the source of an app: its address, the reference and path in it, and failures
//! of `git` in words.

use super::manifests::{Problem, problem};
use crate::{
    core::{format::is_unprintable, url::Authority},
    error::{Error, Retry},
};

/// Maximum bytes of an address, a reference or a path.
const TEXT_BYTES_MAX: usize = 500;
/// Maximum characters of a line of `git` in a message.
const GIT_LINE_CHARS_MAX: usize = 200;

/// Reference of the default branch.
pub const HEAD: &str = "HEAD";

/// Place of manifests in a Git repository. Secrets are in files.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Repository {
    /// Address: `https://host/path` or `ssh://user@host/path`.
    pub url: String,
    /// Branch, tag or commit; [`HEAD`]: the default branch.
    pub reference: String,
    /// File or folder in the repository; empty: all of it.
    pub path: String,
    /// File with the password or token (https) or with the private key (ssh); empty: none.
    pub credentials: String,
}

impl Repository {
    /// Checks what a person wrote; `git@host:path` becomes `ssh://git@host/path`.
    ///
    /// # Errors
    /// Reason why it cannot be used.
    pub fn checked(self) -> Result<Self, Problem> {
        let url = address(&self.url)?;
        let reference = match self.reference.as_str() {
            "" => HEAD.to_owned(),
            text if is_reference(text) => text.to_owned(),
            text => {
                return Err(problem(
                    format!("the reference {text:?} cannot be used"),
                    "it is neither the name of a branch or tag nor a whole commit",
                    "write it like main, v1.2 or refs/tags/v1.2",
                ));
            }
        };
        let path = self.path.trim_matches('/').trim_start_matches("./");
        let path = if path == "." { "" } else { path };
        let is_step =
            |step: &str| !["", ".", ".."].contains(&step) && is_plain(&step.replace(' ', ""));
        if path.len() > TEXT_BYTES_MAX || !(path.is_empty() || path.split('/').all(is_step)) {
            return Err(problem(
                format!("the path {:?} cannot be used", self.path),
                "it does not stay in the repository, or has characters that are not supported",
                "write it like deploy/ or deploy/web.yaml",
            ));
        }
        if !self.credentials.is_empty() && !is_file(&self.credentials) {
            return Err(problem(
                format!("the file {:?} cannot be used", self.credentials),
                "only an absolute path of plain characters can be",
                "write it like /etc/pipeops-agent/git-token",
            ));
        }
        Ok(Self {
            url,
            reference,
            path: path.to_owned(),
            credentials: self.credentials,
        })
    }

    /// Returns whether it is reached by SSH.
    pub fn is_ssh(&self) -> bool {
        self.url.starts_with("ssh://")
    }

    /// Host, with its port where one is named.
    pub fn host(&self) -> &str {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or_default();
        authority
            .rsplit_once('@')
            .map_or(authority, |(_, host)| host)
    }

    /// The commit that it is fixed to.
    pub fn commit(&self) -> Option<&str> {
        is_commit(&self.reference).then_some(self.reference.as_str())
    }

    /// References of the server that this one may mean, the strongest first.
    pub fn candidates(&self) -> Vec<String> {
        let name = &self.reference;
        let peeled = |name: &str| [format!("{name}^{{}}"), name.to_owned()];
        if name == HEAD || name.starts_with("refs/heads/") {
            vec![name.clone()]
        } else if name.starts_with("refs/") {
            peeled(name).to_vec()
        } else {
            let [tag_commit, tag] = peeled(&format!("refs/tags/{name}"));
            vec![format!("refs/heads/{name}"), tag_commit, tag]
        }
    }

    /// Chooses from what `git ls-remote` said the reference to fetch and its commit.
    ///
    /// # Errors
    /// The repository does not have it, or both a branch and a tag of that name.
    pub fn choose(&self, listed: &str) -> Result<RemoteHead, Failure> {
        let lines = listed.lines().filter_map(|line| line.split_once('\t'));
        let known: Vec<_> = lines
            .filter(|(commit, _)| is_commit(commit))
            .map(|(commit, name)| (name, commit))
            .collect();
        let find = |name: &String| known.iter().find(|(known, _)| known == name);
        let found: Vec<_> = self.candidates().iter().filter_map(find).collect();
        let is_branch = |name: &str| name.starts_with("refs/heads/");
        let Some((name, commit)) = found.first() else {
            let why = if self.reference == HEAD {
                "its default branch has no commit".to_owned()
            } else {
                format!("it has no branch and no tag {}", self.reference)
            };
            let fix = "name a branch or a tag: --ref main";
            return Err(self.failure(Cause::Reference, &why, Some(fix)));
        };
        if is_branch(name) && found.iter().any(|(other, _)| !is_branch(other)) {
            let why = format!("{} is a branch and a tag", self.reference);
            let fix = format!(
                "name one: --ref refs/heads/{name} or --ref refs/tags/{name}",
                name = self.reference
            );
            return Err(self.failure(Cause::Reference, &why, Some(&fix)));
        }
        Ok(RemoteHead {
            reference: name.trim_end_matches("^{}").to_owned(),
            commit: (*commit).to_owned(),
        })
    }

    /// A failure that has to do with this repository.
    pub fn failure(&self, cause: Cause, why: &str, fix: Option<&str>) -> Failure {
        let error = Error::new(format!("cannot read {}", self.url))
            .why(why)
            .retry(cause.retry());
        Failure {
            cause,
            error: match fix {
                Some(fix) => error.fix(fix),
                None => error,
            },
        }
    }

    /// A failure of a file or folder of this machine.
    pub fn unusable(&self, error: &Error) -> Failure {
        Failure {
            cause: Cause::File,
            error: error.clone().within(format!("cannot read {}", self.url)),
        }
    }

    /// Failure of `git` by its standard error.
    pub fn explained(&self, stderr: &str, known_hosts: &str) -> Failure {
        let said = stderr.to_ascii_lowercase();
        let cause = SIGNS
            .iter()
            .find(|(_, signs)| signs.iter().any(|sign| said.contains(sign)))
            .map_or(Cause::Unknown, |(cause, _)| *cause);
        self.failure_of(cause, stderr, known_hosts)
    }

    /// Failure of `git` whose cause is known, with its standard error or the reason of its end.
    pub fn failure_of(&self, cause: Cause, stderr: &str, known_hosts: &str) -> Failure {
        let why = cause.why(self, stderr);
        self.failure(cause, &why, cause.fix(self, known_hosts).as_deref())
    }
}

/// Reference of a remote repository, with its commit: the head of a branch, or a tag.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RemoteHead {
    /// Whole name of the reference, or a commit.
    pub reference: String,
    pub commit: String,
}

/// Cause of a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// There is no `git`, or one that is too old.
    Program,
    /// There is no `ssh`.
    NoSsh,
    /// The server refused the credentials, or wants some.
    Access,
    /// A file with credentials or host keys cannot be used.
    File,
    /// The key of the host is not the pinned one.
    HostKey,
    /// The certificate of the host is not trusted.
    Certificate,
    /// There is no such repository.
    Missing,
    /// The server names another address.
    Moved,
    /// There is no such branch, tag or commit.
    Reference,
    /// There is no such file or folder.
    Path,
    /// The place is a link or another repository.
    Link,
    /// More than is fetched or read.
    TooLarge,
    /// The manifests cannot be read.
    Manifests,
    /// The server is not reached.
    Unreachable,
    /// The fetch takes too long.
    Slow,
    Disk,
    /// The control plane may not deploy from there.
    Host,
    /// Something else.
    Unknown,
}

impl Cause {
    /// Stable id.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Program => "source.no-git",
            Self::NoSsh => "source.no-ssh",
            Self::Access => "source.unauthorised",
            Self::File => "source.file",
            Self::HostKey => "source.host-key",
            Self::Certificate => "source.certificate",
            Self::Missing => "source.not-found",
            Self::Moved => "source.moved",
            Self::Reference => "source.ref-not-found",
            Self::Path => "source.path-missing",
            Self::Link => "source.link",
            Self::TooLarge => "source.too-large",
            Self::Manifests => "source.unreadable",
            Self::Unreachable => "source.unreachable",
            Self::Slow => "source.slow",
            Self::Disk => "source.disk",
            Self::Host => "source.host-not-listed",
            Self::Unknown => "source.failed",
        }
    }

    /// Chance that it goes away by itself.
    const fn retry(self) -> Retry {
        match self {
            Self::Unreachable | Self::Slow | Self::Disk | Self::Unknown => Retry::Later,
            Self::Program
            | Self::NoSsh
            | Self::Access
            | Self::File
            | Self::HostKey
            | Self::Certificate
            | Self::Missing
            | Self::Moved
            | Self::Reference
            | Self::Path
            | Self::Link
            | Self::TooLarge
            | Self::Manifests
            | Self::Host => Retry::Never,
        }
    }

    fn why(self, of: &Repository, stderr: &str) -> String {
        let host = of.host();
        match self {
            Self::Access if of.credentials.is_empty() => {
                format!("{host} asks for credentials, and none are named")
            }
            Self::Access => format!("{host} does not accept the credentials"),
            Self::HostKey => format!("the key of {host} is not one of the pinned ones"),
            Self::Certificate => format!("the certificate of {host} is not trusted"),
            Self::Missing => format!("{host} has no such repository, or does not show it"),
            Self::Moved => format!("{host} names another address for it"),
            Self::Unreachable => format!("{host} is not reached ({})", last_line(stderr)),
            Self::NoSsh => "there is no ssh on this machine".to_owned(),
            Self::TooLarge => "one of its files takes more than 24 MiB of memory".to_owned(),
            Self::Slow => format!("fetching its commit is too slow ({})", last_line(stderr)),
            Self::Program
            | Self::File
            | Self::Reference
            | Self::Path
            | Self::Link
            | Self::Manifests
            | Self::Disk
            | Self::Host
            | Self::Unknown => last_line(stderr),
        }
    }

    fn fix(self, of: &Repository, known_hosts: &str) -> Option<String> {
        let fix = match self {
            Self::Access if of.is_ssh() => {
                "name the file of a deploy key that may read the repository: --credentials FILE"
            }
            Self::Access => {
                "name a file with a token that may read the repository: --credentials FILE"
            }
            Self::HostKey => {
                return Some(format!(
                    "compare the key with what the operator of the host publishes, then: ssh-keyscan {} | sudo tee -a {known_hosts}",
                    keyscan(of.host())
                ));
            }
            Self::Certificate => {
                "check the clock of this machine; for a CA of your own set tls.ca_file"
            }
            Self::Missing => "check the address; of a private repository: --credentials FILE",
            Self::Moved => "look the address up in a browser and name the new one",
            Self::Reference => "name a branch or a tag: --ref main",
            Self::Disk => "make room on the disk of agent.state_dir",
            Self::NoSsh => "install it, such as: sudo apt install openssh-client",
            Self::TooLarge | Self::Slow => "keep manifests in a repository of their own",
            Self::Program
            | Self::File
            | Self::Path
            | Self::Link
            | Self::Manifests
            | Self::Unreachable
            | Self::Host
            | Self::Unknown => return None,
        };
        Some(fix.to_owned())
    }
}

/// Parts of messages of git, ssh and curl (as of git 2.39 and OpenSSH 9.2), in lower case; the
/// first cause that fits holds.
const SIGNS: &[(Cause, &[&str])] = &[
    // A shell names its command line with it, which has words of the others.
    (Cause::NoSsh, &["ssh: not found", "ssh: command not found"]),
    (Cause::TooLarge, &["attempting to allocate"]),
    (
        Cause::Disk,
        &["no space left on device", "disk quota exceeded"],
    ),
    (
        Cause::HostKey,
        &[
            "host key verification failed",
            "remote host identification has changed",
            "host key is known for",
        ],
    ),
    (
        Cause::Certificate,
        &[
            "certificate problem",
            "certificate verification failed",
            "server verification failed",
            "certificate verify failed",
        ],
    ),
    (
        Cause::Access,
        &[
            "authentication failed",
            "could not read username",
            "could not read password",
            "returned error: 401",
            "returned error: 403",
            "permission denied",
            "http basic: access denied",
            "load key",
        ],
    ),
    (
        Cause::Moved,
        &[
            "returned error: 301",
            "returned error: 302",
            "returned error: 307",
            "returned error: 308",
            "url base from redirection",
        ],
    ),
    (
        Cause::Missing,
        &[
            "repository not found",
            "returned error: 404",
            "does not appear to be a git repository",
            "not found: did you run",
            "' not found",
            "could not be found",
        ],
    ),
    (
        Cause::Reference,
        &[
            "couldn't find remote ref",
            "not our ref",
            "does not allow request for unadvertised object",
            "no such remote ref",
        ],
    ),
    (
        Cause::Unreachable,
        &[
            "could not resolve",
            "failed to connect",
            "couldn't connect",
            "connection refused",
            "connection reset",
            "connection closed",
            "connection timed out",
            "timed out",
            "timeout",
            "network is unreachable",
            "no route to host",
            "returned error: 5",
            "hung up unexpectedly",
            "early eof",
            "operation too slow",
            "rpc failed",
            "handshake() failed",
            "ssl_connect",
            "ssl_error",
            "unexpected eof",
        ],
    ),
];

/// A failure: its cause, and the sentence with its fix.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    pub cause: Cause,
    /// Sentence.
    pub error: Error,
}

/// An object of a tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Item {
    pub kind: ItemKind,
    /// Id of the object.
    pub id: String,
    /// Size of a file.
    pub size: usize,
    /// Its name, with the path that was asked for.
    pub name: String,
}

/// Kind of an object of a tree.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ItemKind {
    /// Plain file.
    File,
    Folder,
    /// Symbolic link.
    Link,
    /// Commit of another repository.
    Submodule,
}

/// Reads what `git ls-tree -l -z` said.
pub fn items(listed: &str) -> Vec<Item> {
    let item = |line: &str| {
        let (head, name) = line.split_once('\t')?;
        let mut fields = head.split_ascii_whitespace();
        let (mode, _, id, size) = (
            fields.next()?,
            fields.next()?,
            fields.next()?,
            fields.next()?,
        );
        let kind = match mode {
            "100644" | "100755" | "100664" => ItemKind::File,
            "040000" => ItemKind::Folder,
            "120000" => ItemKind::Link,
            "160000" => ItemKind::Submodule,
            _ => return None,
        };
        Some(Item {
            kind,
            id: id.to_owned(),
            size: size.parse().unwrap_or(0),
            name: name.to_owned(),
        })
    };
    listed.split('\0').filter_map(item).collect()
}

/// Returns whether a file with this name holds manifests. One whose name begins with a dot belongs
/// to a tool, or is being written.
pub fn is_manifest(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    !name.starts_with('.') && matches!(ending, Some("yaml" | "yml" | "json"))
}

fn address(text: &str) -> Result<String, Problem> {
    let cannot =
        |why: &str, fix: &str| problem("the address of the repository cannot be used", why, fix);
    let example = "write it like https://git.example/shop/web.git or git@git.example:shop/web.git";
    if text.len() > TEXT_BYTES_MAX || !is_plain(text) {
        return Err(cannot(
            "it is too long, or has characters that are not valid in an address",
            example,
        ));
    }
    let url = match text.split_once("://") {
        Some(("https" | "ssh", _)) => text.to_owned(),
        Some(("http" | "git", _)) => {
            return Err(cannot(
                "the connection is neither encrypted nor authenticated",
                "use https:// or ssh://",
            ));
        }
        Some((scheme, _)) => {
            return Err(cannot(
                &format!("{scheme}:// is not supported"),
                "use https:// or ssh://",
            ));
        }
        None => match text.split_once(':') {
            // `ext::` and the like are no hosts.
            Some((host, path))
                if !path.is_empty() && !path.starts_with(':') && !host.contains('/') =>
            {
                format!("ssh://{host}/{}", path.trim_start_matches('/'))
            }
            Some(_) | None => return Err(cannot("it names no host", example)),
        },
    };
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if user.contains(':') || (scheme == "https" && !user.is_empty()) {
        return Err(cannot(
            "it has a user name or a password, which every user of this machine could read",
            "write user:token into a file and name that: --credentials FILE",
        ));
    }
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:".contains(&byte);
    let is_user = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_named = Authority::parse(host).is_ok_and(|it| {
        let is_whole = !it.host.is_empty() && !it.host.starts_with(['-', '.', ':']);
        (is_whole || it.is_bracketed) && it.host.bytes().all(is_host) && it.port().is_ok()
    });
    if !is_named
        || user.starts_with('-')
        || !user.bytes().all(is_user)
        || path.trim_matches('/').is_empty()
        || path.contains(['?', '#'])
    {
        return Err(cannot("it names no host and path", example));
    }
    Ok(url)
}

fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_graphic() && !b"\"'\\`$*<>|".contains(&byte))
        && !text.starts_with('-')
}

/// Returns whether a path can be named in the line of a shell: it has no letter that means
/// something there or to ssh.
pub fn is_file(path: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@".contains(&byte);
    path.starts_with('/') && path.len() <= TEXT_BYTES_MAX && path.bytes().all(is_letter)
}

fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The rules of `git check-ref-format`, and a bit less than that.
fn is_reference(text: &str) -> bool {
    let is_step = |step: &str| {
        !step.is_empty() && !step.starts_with('.') && step.strip_suffix(".lock").is_none()
    };
    text.len() <= TEXT_BYTES_MAX
        && is_plain(text)
        && !text.contains("..")
        && !text.contains("@{")
        && !text.contains(['~', '^', ':', '?', '*', '['])
        && !text.ends_with('.')
        && text.split('/').all(is_step)
}

/// `-p 2222 host`, for `ssh-keyscan`.
fn keyscan(host: &str) -> String {
    let Ok(Authority { host, port, .. }) = Authority::parse(host) else {
        return host.to_owned();
    };
    port.map_or_else(|| host.to_owned(), |port| format!("-p {port} {host}"))
}

/// The line that says most: the last one of git itself, without what could not be printed.
fn last_line(stderr: &str) -> String {
    let lines: Vec<_> = stderr
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let is_fatal = |line: &&&str| line.starts_with("fatal:") || line.starts_with("error:");
    let says_nothing = |line: &&&str| {
        line.contains("Could not read from remote repository")
            || line.contains("the remote end hung up")
    };
    let best = lines
        .iter()
        .filter(|line| !says_nothing(line))
        .rfind(is_fatal)
        .or_else(|| lines.first());
    let line = best.map_or("git did not say why", |line| {
        line.trim_start_matches("fatal: ")
            .trim_start_matches("error: ")
    });
    line.chars()
        .filter(|c| !is_unprintable(*c))
        .take(GIT_LINE_CHARS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(url: &str, reference: &str, path: &str) -> Result<Repository, Problem> {
        let written = Repository {
            url: url.to_owned(),
            reference: reference.to_owned(),
            path: path.to_owned(),
            credentials: String::new(),
        };
        written.checked()
    }

    #[test]
    fn addresses_are_https_or_ssh_and_hold_no_password() {
        let url = |text: &str| {
            repository(text, "", "")
                .map(|it| it.url)
                .map_err(|it| it.fix)
        };
        assert_eq!(
            url("git@git.example:shop/web.git").unwrap(),
            "ssh://git@git.example/shop/web.git"
        );
        assert_eq!(
            url("ssh://git@[::1]:2222/web").unwrap(),
            "ssh://git@[::1]:2222/web"
        );
        let https = repository("https://git.example:8443/a/b", "", "").unwrap();
        assert_eq!((https.host(), https.is_ssh()), ("git.example:8443", false));
        let credentials = "write user:token into a file and name that: --credentials FILE";
        for with_password in [
            "https://a:b@git.example/x",
            "https://token@git.example/x",
            "ssh://a:b@h/x",
        ] {
            assert_eq!(url(with_password).unwrap_err(), credentials);
        }
        for odd in [
            "http://git.example/x",
            "git://git.example/x",
            "file:///etc",
            "ext::sh -c id",
            "ext::sh",
            "/srv/web.git",
            "../web.git",
            "-oProxyCommand=id:x",
            "ssh://-oProxyCommand=id/x",
            "https://git.example",
            "https:///x",
            "https://git.example/x?y",
            "git@host:",
            "",
        ] {
            assert!(url(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn references_and_paths_stay_in_the_repository() {
        let is_fine =
            |reference: &str, path: &str| repository("https://h/x", reference, path).is_ok();
        for reference in ["", "main", "release/1.2", "refs/tags/v1", "v1.2-rc.1"] {
            assert!(is_fine(reference, ""), "{reference}");
        }
        for reference in [
            "-u", "a..b", "a b", "a~1", "a^", "a:b", "a*", "@{u}", "/a", "a/", "a.lock", "a//b",
            ".a",
        ] {
            assert!(!is_fine(reference, ""), "{reference}");
        }
        for (path, cleaned) in [
            ("", ""),
            (".", ""),
            ("/", ""),
            ("deploy/", "deploy"),
            ("./a/b.yaml", "a/b.yaml"),
            ("my dir/a b.yaml", "my dir/a b.yaml"),
        ] {
            assert_eq!(repository("https://h/x", "", path).unwrap().path, cleaned);
        }
        for path in ["..", "a/../..", "a//b", "-x", " -x", "a\tb", "a/./b"] {
            assert!(!is_fine("", path), "{path}");
        }
        assert!(
            is_file("/etc/pipeops-agent/key")
                && !is_file("key")
                && !is_file("/a b")
                && !is_file("/a;b")
        );
    }

    #[test]
    fn a_branch_goes_before_nothing_and_a_tag_is_its_commit() {
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        let listed = format!(
            "{one}\trefs/tags/v1\n{two}\trefs/tags/v1^{{}}\n{one}\trefs/heads/x/refs/tags/v1\n"
        );
        let of = |reference: &str| repository("https://h/x", reference, "").unwrap();
        let tip = of("v1").choose(&listed).unwrap();
        assert_eq!(
            (tip.reference.as_str(), tip.commit),
            ("refs/tags/v1", two.clone())
        );
        let head = of("").choose(&format!("{one}\tHEAD\n")).unwrap();
        assert_eq!((head.reference.as_str(), head.commit), (HEAD, one.clone()));
        assert_eq!(of("").choose("").unwrap_err().cause, Cause::Reference);
        let both = format!("{one}\trefs/heads/v1\n{two}\trefs/tags/v1\n");
        assert_eq!(of("v1").choose(&both).unwrap_err().cause, Cause::Reference);
        assert_eq!(of("refs/heads/v1").choose(&both).unwrap().commit, one);
        assert_eq!(of(&two).commit(), Some(two.as_str()));
    }

    #[test]
    fn the_key_of_a_host_is_asked_for_by_address_and_port() {
        assert_eq!(keyscan("git.example"), "git.example");
        assert_eq!(keyscan("git.example:2222"), "-p 2222 git.example");
        assert_eq!(keyscan("[fd00::1]"), "fd00::1");
        assert_eq!(keyscan("[fd00::1]:2222"), "-p 2222 fd00::1");
    }

    /// Address, words of git or ssh, cause, and a part of the fix.
    const SAID: [(&str, &str, Cause, &str); 12] = [
        (
            "git@git.example:x",
            "ssh -F none -o ConnectTimeout=15: 1: ssh: not found\nfatal: Could not read from remote repository.",
            Cause::NoSsh,
            "openssh-client",
        ),
        (
            "git@git.example:x",
            "ssh -F none -o ConnectTimeout=15: line 1: ssh: command not found\nfatal: Could not read from remote repository.",
            Cause::NoSsh,
            "openssh-client",
        ),
        (
            "https://git.example/x",
            "fatal: attempting to allocate 1000000001 over limit 25165824\nfatal: fetch-pack: invalid index-pack output",
            Cause::TooLarge,
            "a repository of their own",
        ),
        (
            "git@git.example:x",
            "No ED25519 host key is known for [git.example]:22 and you have requested strict checking.\nHost key verification failed.\nfatal: Could not read from remote repository.",
            Cause::HostKey,
            "ssh-keyscan git.example | sudo tee -a /k",
        ),
        (
            "git@git.example:x",
            "git@git.example: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            Cause::Access,
            "deploy key",
        ),
        (
            "https://git.example/x",
            "fatal: could not read Username for 'https://git.example': terminal prompts disabled",
            Cause::Access,
            "token",
        ),
        (
            "https://git.example/x",
            "fatal: unable to access 'https://git.example/x/': server certificate verification failed. CAfile: none",
            Cause::Certificate,
            "tls.ca_file",
        ),
        (
            "https://git.example/x",
            "fatal: repository 'https://git.example/x/' not found",
            Cause::Missing,
            "address",
        ),
        (
            "https://git.example/x",
            "fatal: couldn't find remote ref refs/heads/main",
            Cause::Reference,
            "--ref",
        ),
        (
            "https://git.example/x",
            "fatal: unable to access 'https://git.example/x/': Could not resolve host: git.example",
            Cause::Unreachable,
            "",
        ),
        (
            "https://git.example/x",
            "error: file write error: No space left on device",
            Cause::Disk,
            "room",
        ),
        (
            "https://git.example/x",
            "fatal: something \u{1b}[2J else",
            Cause::Unknown,
            "",
        ),
    ];

    #[test]
    fn what_git_says_has_a_cause_a_sentence_and_a_fix() {
        for (url, said, cause, fix) in SAID {
            let failure = repository(url, "main", "").unwrap().explained(said, "/k");
            assert_eq!(failure.cause, cause, "{said}");
            let advice = failure.error.fix.clone().unwrap_or_default();
            assert!(advice.contains(fix), "{}", failure.error);
            assert!(!failure.error.sentence().contains('\u{1b}'));
        }
        let ssh = repository("git@git.example:x", "main", "").unwrap();
        let away = ssh.explained("Connection refused", "/k").error;
        assert!(
            away.sentence()
                .ends_with("is not reached (Connection refused)")
        );
    }

    #[test]
    fn a_tree_is_read_with_odd_names() {
        let listed = "100644 blob 1111 12\ta b\tc.yaml\x00120000 blob 2222 4\tl\x00160000 commit 3333 -\ts\x00040000 tree 4444 -\td\x00";
        let kinds: Vec<_> = items(listed)
            .into_iter()
            .map(|item| (item.kind, item.name, item.size))
            .collect();
        assert_eq!(
            kinds,
            [
                (ItemKind::File, "a b\tc.yaml".to_owned(), 12),
                (ItemKind::Link, "l".to_owned(), 4),
                (ItemKind::Submodule, "s".to_owned(), 0),
                (ItemKind::Folder, "d".to_owned(), 0),
            ]
        );
        assert!(is_manifest("a.yml") && !is_manifest("yaml") && !is_manifest("a.yaml.orig"));
        for of_a_tool in [".gitlab-ci.yml", ".a.yaml", ".#a.yaml", ".json"] {
            assert!(!is_manifest(of_a_tool), "{of_a_tool}");
        }
    }
}
