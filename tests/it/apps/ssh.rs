//! Apps that come by ssh: a real sshd on loopback, its key pinned or not.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use nix::unistd::geteuid;
use pipeops_agent::{
    core::apps::repository::{Cause, Failure, Repository},
    host::git::{Content, FETCHED_BYTES_MAX, Git, GitOptions},
};

use super::forge::Forge;
use crate::agent::{command, has, put, until};

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
const SOON: Duration = Duration::from_secs(60);

/// A server with one key of a host and one user, until it is dropped.
struct Server {
    folder: tempfile::TempDir,
    forge: Forge,
    port: u16,
    child: Child,
}

impl Server {
    fn start() -> Option<Self> {
        let Some(program) = sshd() else {
            eprintln!("no sshd here: skipped");
            return None;
        };
        if !geteuid().is_root() || !Path::new("/run/sshd").is_dir() || !has("ssh-keygen") {
            eprintln!("sshd needs root and its folder: skipped");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["host", "user", "stranger"] {
            let arguments = ["-q", "-t", "ed25519", "-N", "", "-f", &path(name)];
            assert!(
                command("ssh-keygen")
                    .args(arguments)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        put(
            Path::new(&path("authorized")),
            &fs::read_to_string(path("user.pub")).unwrap(),
        );
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\n",
            path("host"),
            path("authorized")
        );
        put(Path::new(&path("sshd_config")), &config);
        let child = command(program)
            .args(["-D", "-e", "-f", &path("sshd_config")])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self {
            folder,
            forge: Forge::start(),
            port,
            child,
        };
        server.forge.commit(&[("deploy/a.yaml", MAP)]);
        until("sshd listens", SOON, || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Some(server)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Pins the public key in this file.
    fn pin(&self, key: &str) {
        let key = fs::read_to_string(self.path(key)).unwrap();
        put(
            &self.path("known_hosts"),
            &format!("[127.0.0.1]:{} {key}", self.port),
        );
    }

    fn repository(&self, key: &str) -> Repository {
        let of = Repository {
            url: format!(
                "ssh://root@127.0.0.1:{}{}",
                self.port,
                self.forge.folder().display()
            ),
            path: "deploy".to_owned(),
            credentials: self.path(key).display().to_string(),
            ..Repository::default()
        };
        of.checked().unwrap()
    }

    fn read(&self, key: &str) -> Result<Content, Failure> {
        let of = self.repository(key);
        let git = Git::new(GitOptions {
            scratch: self.path("git"),
            known_hosts: self.path("known_hosts"),
            bytes_max: FETCHED_BYTES_MAX,
            ..GitOptions::default()
        });
        git.tip(&of).and_then(|tip| git.manifests(&of, &tip))
    }

    fn refused(&self, key: &str, cause: Cause) -> String {
        let failure = self.read(key).unwrap_err();
        assert_eq!(failure.cause, cause, "{}", failure.error);
        failure.error.to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn sshd() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders).chain([PathBuf::from("/usr/sbin")]);
    let mut programs = folders.map(|folder| folder.join("sshd"));
    programs.find(|program| program.is_file())
}

#[test]
fn only_a_host_with_a_pinned_key_is_talked_to() {
    let Some(server) = Server::start() else {
        return;
    };
    let said = server.refused("user", Cause::File);
    assert!(said.contains("ssh-keyscan -p"), "{said}");
    server.pin("host.pub");
    assert_eq!(server.read("user").unwrap().manifests, MAP);
    server.refused("stranger", Cause::Access);
    // Somebody else answers at that address.
    server.pin("stranger.pub");
    let said = server.refused("user", Cause::HostKey);
    assert!(said.contains("is not one of the pinned ones"), "{said}");
    put(&server.path("known_hosts"), "");
    server.refused("user", Cause::HostKey);
    let pinned = fs::read_to_string(server.path("known_hosts")).unwrap();
    assert_eq!(pinned, "", "nothing is trusted on first use");
    // Who can write the file can be any host.
    server.pin("host.pub");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(server.path("known_hosts"), everybody).unwrap();
    let said = server.refused("user", Cause::File);
    assert!(said.contains("users other than root can change"), "{said}");
}
