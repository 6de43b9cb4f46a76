//! `dashboard open` on a desktop: the login of the browser, seen by the other users of the machine.

use std::{
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::json;

use crate::{
    agent::{SOON, command, is_root_or_skip, put, until},
    login::House,
};

/// The user of the desktop, and another one.
const USER: u32 = 4_321;
const OTHER: u32 = 4_322;

/// A desktop whose browser writes down how it was started, reads its file, and stays until it is
/// told to go.
struct Desktop {
    folder: tempfile::TempDir,
}

impl Desktop {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let open = |path: &Path| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        };
        open(folder.path());
        let home = folder.path().display();
        put(
            &path("xdg-open"),
            &format!(
                "#!/bin/sh\ncat \"$1\" > {home}/page\nid -u > {home}/uid\nprintf '%s' \"$*\" > {home}/half\n\
                 mv {home}/half {home}/argv\nread line < {home}/go\n"
            ),
        );
        open(&path("xdg-open"));
        mkfifo(&path("go"), Mode::from_bits_truncate(0o666)).unwrap();
        open(&path("go"));
        Self { folder }
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.path().join(name)).ok()
    }

    /// `dashboard open`, started by the user with sudo.
    fn opening(&self, house: &House) -> Child {
        let path = format!("{}:/usr/bin:/bin", self.folder.path().display());
        house
            .agent
            .command(&["dashboard", "open"])
            .env("PATH", path)
            .env("DISPLAY", ":9")
            .env("SUDO_UID", USER.to_string())
            .env("SUDO_GID", USER.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Lets the browser end.
    fn close(&self) {
        let mut go = std::fs::File::options()
            .write(true)
            .open(self.folder.path().join("go"))
            .unwrap();
        go.write_all(b"go\n").unwrap();
    }
}

/// The command lines of all processes that have this text.
fn shown_in_process_list(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) {
            found.push(line);
        }
    }
    found
}

/// Returns whether a user of this machine can read a file.
fn can_read(user: u32, file: &Path) -> bool {
    use std::os::unix::process::CommandExt;
    let read = command("cat")
        .arg(file)
        .uid(user)
        .gid(user)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    read.unwrap().success()
}

#[test]
fn a_browser_gets_its_login_by_a_file_that_nobody_else_can_read() {
    if !is_root_or_skip("only root starts the browser of another user") {
        return;
    }
    let (house, desktop) = (House::new(&[]), Desktop::new());
    let opening = desktop.opening(&house);
    let argv = until("the browser is started", SOON, || {
        let shown = shown_in_process_list("#token=");
        assert!(shown.is_empty(), "{shown:?}");
        desktop.read("argv")
    });
    let file = PathBuf::from(argv);
    assert_eq!(desktop.read("uid").unwrap().trim(), USER.to_string());
    let folder = file.parent().unwrap();
    let facts = |path: &Path| {
        let found = path.metadata().unwrap();
        (found.uid(), found.mode() & 0o777)
    };
    assert_eq!(
        (facts(folder), facts(&file)),
        ((USER, 0o700), (USER, 0o600))
    );
    assert!(can_read(USER, &file) && !can_read(OTHER, &file));

    let page = desktop.read("page").unwrap();
    let (_, rest) = page.split_once("#token=").expect("a login");
    let token: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
    assert_eq!(token.len(), 32);
    let shown = shown_in_process_list(&token);
    assert!(shown.is_empty(), "{shown:?}");

    // It logs in once. Then the file is gone, while the browser goes on.
    let how = json!({ "token": token }).to_string();
    let heard = house.ask("POST /api/v1/session", "", &how);
    assert_eq!(heard.code, 200, "{}", heard.body);
    let output = opening.wait_with_output().unwrap();
    assert!(output.status.success());
    until("the file is removed", SOON, || {
        (!folder.exists()).then_some(())
    });
    assert_eq!(house.ask("POST /api/v1/session", "", &how).code, 401);
    desktop.close();
}

#[test]
fn a_login_does_not_stay_behind_when_the_command_is_interrupted() {
    if !is_root_or_skip("only root starts the browser of another user") {
        return;
    }
    let (house, desktop) = (House::new(&[]), Desktop::new());
    let mut opening = desktop.opening(&house);
    let argv = until("the browser is started", SOON, || desktop.read("argv"));
    let file = PathBuf::from(argv);
    assert!(file.exists());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(opening.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    until("the command ends", SOON, || opening.try_wait().unwrap());
    until("the file is removed", SOON, || {
        (!file.exists()).then_some(())
    });
    desktop.close();
}
