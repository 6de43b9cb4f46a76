//! Opens a browser with a login, which is passed in a file that only its user can read: every user
//! can read a command line.

use std::{
    ffi::OsString,
    fs::{DirBuilder, OpenOptions},
    io::{self, Read, Write},
    os::unix::{
        fs::{DirBuilderExt, OpenOptionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command as Program, Stdio},
    time::Duration,
};

use nix::unistd::{Uid, User, geteuid};
use smol::{Timer, block_on, future};

use crate::{
    error::{Error, Result},
    files,
    host::{clock, random, signals::Signals},
};

/// Life of the file: a board with a slow card takes half a minute to start a browser.
const LIFE: Duration = Duration::from_secs(60);
/// Interval between checks for use of the file.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Longest address that is taken from standard input.
const URL_BYTES_MAX: usize = 4096;
/// Option by which the program runs itself as the user of the desktop.
pub(super) const ON_INPUT: &str = "address-on-stdin";

/// Variables that a browser of the user who typed sudo needs.
const PASSED_ON: [&str; 8] = [
    "PATH",
    "LANG",
    "LC_ALL",
    "DISPLAY",
    "XAUTHORITY",
    "XDG_CURRENT_DESKTOP",
    "XDG_SESSION_TYPE",
    "BROWSER",
];

/// The user whose desktop shows the browser.
#[derive(Debug)]
struct Desktop {
    user: Option<(u32, u32)>,
    name: Option<String>,
    home: Option<PathBuf>,
    runtime: Option<PathBuf>,
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u32> {
    variable(name)?.into_string().ok()?.parse().ok()
}

impl Desktop {
    /// The user who called sudo, or the user of this process.
    fn of_process() -> Self {
        let sudo = number("SUDO_UID").filter(|uid| geteuid().is_root() && *uid != 0);
        let Some(uid) = sudo else {
            return Self {
                user: None,
                name: None,
                home: variable("HOME").map(PathBuf::from),
                runtime: variable("XDG_RUNTIME_DIR").map(PathBuf::from),
            };
        };
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
        let gid = user.as_ref().map(|user| user.gid.as_raw());
        Self {
            user: Some((uid, gid.or_else(|| number("SUDO_GID")).unwrap_or(uid))),
            name: user.as_ref().map(|user| user.name.clone()),
            home: user.map(|user| user.dir),
            runtime: Some(PathBuf::from(format!("/run/user/{uid}"))),
        }
    }

    /// The display that the environment names. sudo leaves out that of Wayland, which has a usual
    /// name.
    fn wayland(&self) -> Option<OsString> {
        let usual = || {
            let socket = self.runtime.as_ref()?.join("wayland-0");
            let is_there = self.user.is_some() && socket.exists();
            is_there.then(|| OsString::from("wayland-0"))
        };
        variable("WAYLAND_DISPLAY").or_else(usual)
    }
}

/// True if there is a desktop to open a browser on.
pub(super) fn has_screen() -> bool {
    let by_ssh = variable("SSH_CONNECTION").is_some();
    let has_display = || variable("DISPLAY").is_some() || Desktop::of_process().wayland().is_some();
    !by_ssh && has_display()
}

/// Opens `url` in a browser of the desktop's user and waits until `is_used`, at most [`LIFE`].
///
/// # Errors
/// No folder takes the file, or no program opens it.
pub(super) fn open(url: &str, is_used: impl FnMut() -> bool) -> Result<()> {
    let desktop = Desktop::of_process();
    match desktop.user {
        None => here(url, &desktop, is_used),
        Some((uid, gid)) => as_user(url, &desktop, (uid, gid), is_used),
    }
}

/// Opens the address that comes in, and waits until the input ends: the other half of [`as_user`].
pub(super) fn open_from_input() -> Result<()> {
    let mut line = Vec::new();
    let mut input = io::stdin().lock();
    loop {
        let mut byte = [0];
        let count = input
            .read(&mut byte)
            .map_err(|error| Error::new("cannot read the address").because(&error))?;
        if count == 0 || byte == *b"\n" || line.len() >= URL_BYTES_MAX {
            break;
        }
        line.extend(byte);
    }
    drop(input);
    let url = String::from_utf8(line)
        .ok()
        .filter(|url| url.starts_with("http://") || url.starts_with("https://"))
        .ok_or_else(|| Error::new("standard input has no URL"))?;
    here(&url, &Desktop::of_process(), has_input_ended)
}

/// True once the other end of standard input is closed.
fn has_input_ended() -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let input = io::stdin();
    let mut fds = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// Runs this program as the desktop's user: a home is only changed with the rights of its owner.
fn as_user(
    url: &str,
    desktop: &Desktop,
    (uid, gid): (u32, u32),
    mut is_used: impl FnMut() -> bool,
) -> Result<()> {
    let cannot = |error: io::Error| {
        Error::new("cannot start a browser for the user who ran sudo").because(&error)
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "it lives in the session of the desktop's user, and is waited for here with a deadline"
    )]
    let mut program = Program::new("/proc/self/exe");
    program
        .arg0("pipeops-agent")
        .args(["dashboard", "open"])
        .arg(format!("--{ON_INPUT}"))
        .uid(uid)
        .gid(gid)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Root's environment may hold secrets.
    program.env_clear();
    for name in PASSED_ON {
        if let Some(value) = variable(name) {
            program.env(name, value);
        }
    }
    if let Some(name) = &desktop.name {
        program.env("USER", name).env("LOGNAME", name);
    }
    if let Some(home) = &desktop.home {
        program.env("HOME", home);
    }
    if let Some(runtime) = &desktop.runtime {
        program.env("XDG_RUNTIME_DIR", runtime);
        let mut bus = OsString::from("unix:path=");
        bus.push(runtime.join("bus"));
        program.env("DBUS_SESSION_BUS_ADDRESS", bus);
    }
    if let Some(display) = desktop.wayland() {
        program.env("WAYLAND_DISPLAY", display);
    }
    let mut child = program.spawn().map_err(cannot)?;
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        input
            .write_all(format!("{url}\n").as_bytes())
            .map_err(cannot)?;
    }
    let mut has_ended = || matches!(child.try_wait(), Ok(Some(_)) | Err(_));
    wait(|| is_used() || has_ended());
    // Its end of the input tells the child to tidy up.
    drop(input);
    let status = child.wait().map_err(cannot)?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::new(
            "cannot start a browser for the user who ran sudo",
        ))
    }
}

/// Opens the browser as the user of this process.
fn here(url: &str, desktop: &Desktop, mut is_used: impl FnMut() -> bool) -> Result<()> {
    let page = Page::write(url, desktop)?;
    let mut opener = start(&page.file)?;
    // An opener that fails at once has found no browser; one that ends well has handed the file on.
    wait(|| is_used() || matches!(opener.try_wait(), Ok(Some(status)) if !status.success()));
    match opener.try_wait() {
        Ok(Some(status)) if !status.success() => {
            Err(Error::new("xdg-open found no browser").why(status.to_string()))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

fn start(file: &Path) -> Result<Child> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a browser lives in the session of its user, with that environment, and outlives this command"
    )]
    let mut program = Program::new("xdg-open");
    program
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Error::new("cannot start xdg-open").because(&error))
}

/// Waits until `is_over`, a signal, or the end of the file's life.
fn wait(mut is_over: impl FnMut() -> bool) {
    let until = clock::now().mono.after(LIFE);
    let looks = async {
        while !is_over() && !until.since(clock::now().mono).is_zero() {
            Timer::after(POLL_INTERVAL).await;
        }
    };
    let signalled = async {
        match Signals::new() {
            Ok(mut signals) => drop(signals.next().await),
            Err(_) => future::pending().await,
        }
    };
    block_on(future::or(looks, signalled));
}

/// A page that leads on to an address, in a folder of its own. Dropping it removes both.
#[derive(Debug)]
struct Page {
    folder: PathBuf,
    file: PathBuf,
}

impl Page {
    fn write(url: &str, desktop: &Desktop) -> Result<Self> {
        // Browsers that come as a snap read nothing hidden and nothing in /tmp: a folder in the
        // home that is not hidden.
        let places = [
            desktop.home.clone(),
            desktop.runtime.clone(),
            Some(std::env::temp_dir()),
        ];
        let name = format!("pipeops-agent-login-{}", random::hex::<8>()?);
        let mut trouble = None;
        for place in places.into_iter().flatten().filter(|it| it.is_absolute()) {
            let folder = place.join(&name);
            match Self::write_in(folder, url) {
                Ok(page) => return Ok(page),
                Err(error) => trouble = trouble.or(Some((place, error))),
            }
        }
        let what = "cannot write the file that logs a browser in";
        Err(match trouble {
            Some((place, error)) => {
                files::explain(format!("{what} into {}", place.display()), &error)
            }
            None => Error::new(what).why("this user has no home directory"),
        })
    }

    fn write_in(folder: PathBuf, url: &str) -> io::Result<Self> {
        // Neither may be there: what another user put in the way is an error and is not used.
        DirBuilder::new().mode(0o700).create(&folder)?;
        let page = Self {
            file: folder.join("login.html"),
            folder,
        };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(files::PRIVATE)
            .open(&page.file)?;
        file.write_all(content(url).as_bytes())?;
        Ok(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.file));
        drop(std::fs::remove_dir(&self.folder));
    }
}

/// A page that leads on at once. The address stands in an attribute, so it is escaped for one.
fn content(url: &str) -> String {
    let mut safe = String::with_capacity(url.len());
    for character in url.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            other => safe.push(other),
        }
    }
    format!(
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta http-equiv=\"refresh\" content=\"0; url={safe}\">\n\
         <title>pipeops-agent</title><p><a href=\"{safe}\">Open the dashboard of this machine</a></p>\n"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn desktop(home: &Path) -> Desktop {
        Desktop {
            user: None,
            name: None,
            home: Some(home.to_owned()),
            runtime: None,
        }
    }

    #[test]
    fn the_page_is_for_its_user_alone_and_does_not_outlive_its_owner() {
        let home = tempfile::tempdir().unwrap();
        let url = "https://box.lan:7480/#token=0123456789abcdef";
        let page = Page::write(url, &desktop(home.path())).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&page.folder), mode(&page.file)), (0o700, 0o600));
        assert!(std::fs::read_to_string(&page.file).unwrap().contains(url));
        let hidden = page.folder.file_name().unwrap().to_str().unwrap();
        assert!(!hidden.starts_with('.'), "snaps read nothing hidden");
        drop(page);
        assert_eq!(home.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn an_address_cannot_leave_its_attribute() {
        let page = content("http://a/\"><script>'&");
        assert!(page.contains("http://a/&quot;&gt;&lt;script&gt;&#39;&amp;"));
        assert!(!page.contains("<script"));
    }

    #[test]
    fn a_home_that_takes_nothing_is_passed_over() {
        let runtime = tempfile::tempdir().unwrap();
        let mut desktop = desktop(Path::new("/nonexistent/home"));
        desktop.runtime = Some(runtime.path().to_owned());
        let page = Page::write("http://a/", &desktop).unwrap();
        assert!(page.file.starts_with(runtime.path()));
    }
}
