//! The agent as its users run it: the real program, its environment, its state folder, its socket.

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, fs::chown, net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use plane::Plane;
use serde_json::Value;

/// Longest wait of a test for what must happen soon. It ends a test that would wait for ever, and
/// is long enough for a machine that does ten other things: no promise is measured with it.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Looks at a level until it gives something; panics with what was awaited when the limit passes.
pub(crate) fn until<T>(what: &str, limit: Duration, level: impl FnMut() -> Option<T>) -> T {
    until_every(Duration::from_millis(20), what, limit, level)
}

/// The same at this interval, where each look costs something.
pub(crate) fn until_every<T>(
    interval: Duration,
    what: &str,
    limit: Duration,
    mut level: impl FnMut() -> Option<T>,
) -> T {
    let deadline = clock() + limit;
    loop {
        if let Some(found) = level() {
            return found;
        }
        assert!(clock() < deadline, "not within {limit:?}: {what}");
        pause(interval);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test that waits reads the clock here and nowhere else"
)]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the pause between two looks at a level, with the deadline of `until`"
)]
fn pause(interval: Duration) {
    std::thread::sleep(interval);
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests start real programs, and end them when dropped"
)]
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(program)
}

/// The program that is tested: the one that was built with the tests, or the one of
/// `PIPEOPS_TEST_AGENT` that figures are taken of.
pub(crate) fn program() -> PathBuf {
    let other = std::env::var_os("PIPEOPS_TEST_AGENT");
    other.map_or_else(|| env!("CARGO_BIN_EXE_pipeops-agent").into(), PathBuf::from)
}

/// The program in another place, for every user. Another process writes it: one that another test
/// is just starting would hold a file that is written here, and what is held for writing cannot be
/// started.
pub(crate) fn copy_program(place: &Path) {
    let copied = command("install")
        .args(["-m", "755"])
        .arg(program())
        .arg(place)
        .status();
    assert!(copied.unwrap().success(), "{}", place.display());
}

/// Returns whether a program that the agent is held against is here; where not, says so.
pub(crate) fn has(tool: &str) -> bool {
    let answers = command(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !answers {
        println!("skipped: {tool} is not installed: tests/setup installs it");
    }
    answers
}

/// A running agent with a folder of its own. Dropping it kills it.
pub(crate) struct Agent {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
    /// What it is started by; empty: by the test itself.
    launcher: Vec<String>,
    /// The user that it runs as, where that is not the one who tests.
    user: Option<u32>,
    child: Option<Child>,
}

impl Agent {
    /// An agent for this control plane, not started yet: full access, no cluster.
    pub(crate) fn new(plane: &Plane) -> Self {
        let folder = tempfile::tempdir().unwrap();
        put(&folder.path().join("ca.pem"), plane.ca_pem());
        put(&folder.path().join("token"), plane.token());
        let path = |name: &str| folder.path().join(name).display().to_string();
        let environment = [
            ("PIPEOPS_API_URL", plane.api_url().to_owned()),
            ("PIPEOPS_TOKEN_FILE", path("token")),
            ("PIPEOPS_CLUSTER_NAME", "test".to_owned()),
            ("PIPEOPS_STATE_DIR", path("state")),
            ("PIPEOPS_DASHBOARD_SOCKET", path("agent.sock")),
            ("PIPEOPS_DASHBOARD_LISTEN", "off".to_owned()),
            ("PIPEOPS_TLS_CA_FILE", path("ca.pem")),
            ("PIPEOPS_ACCESS_LEVEL", "full".to_owned()),
            ("PIPEOPS_LOG_LEVEL", "debug".to_owned()),
            ("PIPEOPS_CONFIG", path("config.toml")),
        ];
        put(&folder.path().join("config.toml"), "");
        let environment = environment
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        Self {
            folder,
            environment,
            launcher: Vec::new(),
            user: None,
            child: None,
        }
    }

    /// A started agent for this control plane.
    pub(crate) fn start_for(plane: &Plane) -> Self {
        let mut agent = Self::new(plane);
        agent.start();
        agent
    }

    /// Sets a variable of the next start.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.set(name, value);
        self
    }

    /// The same of an agent that ran before.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        assert!(
            self.child.is_none(),
            "{name} is for the next start, and the agent runs: start it afterwards"
        );
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.into()));
    }

    /// Starts it by a program that becomes it: `unshare -T`.
    pub(crate) fn under(mut self, launcher: &[&str]) -> Self {
        self.launcher = launcher.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Lets it run as another user, who owns its folder. Takes root.
    pub(crate) fn owned_by(mut self, user: u32) -> Self {
        for entry in std::fs::read_dir(self.folder()).unwrap().flatten() {
            chown(entry.path(), Some(user), Some(user)).unwrap();
        }
        chown(self.folder(), Some(user), Some(user)).unwrap();
        open_to_all(self.folder());
        self.user = Some(user);
        self
    }

    /// The program, where every user can reach it.
    fn program(&self) -> PathBuf {
        let built = program();
        if self.user.is_none() {
            return built;
        }
        let reachable = self.folder().join("pipeops-agent");
        if !reachable.exists() {
            copy_program(&reachable);
        }
        reachable
    }

    /// Its folder: `ca.pem`, `token`, `state/`, `agent.sock`, `log`.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A file in its state folder.
    pub(crate) fn state(&self, name: &str) -> PathBuf {
        self.folder().join("state").join(name)
    }

    /// Replaces the token file.
    pub(crate) fn set_token(&self, token: &str) {
        put(&self.folder().join("token"), token);
    }

    /// Starts it.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "already running");
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.folder().join("log"))
            .unwrap();
        let mut program = match self.launcher.split_first() {
            None => command(self.program()),
            Some((launcher, more)) => {
                let mut launcher = command(launcher);
                launcher.args(more).arg(self.program());
                launcher
            }
        };
        if let Some(user) = self.user {
            program.uid(user).gid(user);
        }
        let child = program
            .arg("run")
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.as_ref().unwrap().id()).unwrap()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Returns whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().unwrap();
        child.try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    pub(crate) fn wait_end(&mut self, limit: Duration) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        until("the agent ends", limit, || child.try_wait().unwrap())
    }

    /// SIGTERM, and the end that follows.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait_end(SOON)
    }

    /// SIGKILL: what a power cut does to the process.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait_end(SOON);
    }

    /// Everything it logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }

    /// What `GET /api/v1/status` says, once it answers.
    pub(crate) fn status(&self) -> Value {
        until("the agent answers on its socket", SOON, || self.look())
    }

    /// Waits until the status has what is looked for.
    pub(crate) fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut level: impl FnMut(&Value) -> Option<T>,
    ) -> T {
        until(what, limit, || level(&self.look()?))
    }

    /// Waits until the link is ready.
    pub(crate) fn until_linked(&self) -> Value {
        self.until("the link is ready", SOON, |status| {
            (status["link"]["state"] == "ready").then(|| status.clone())
        })
    }

    /// Waits for a condition and returns it.
    pub(crate) fn until_condition(&self, id: &str, limit: Duration) -> Value {
        self.until(&format!("condition {id}"), limit, |status| {
            status["conditions"]
                .as_array()?
                .iter()
                .find(|condition| condition["id"] == id)
                .cloned()
        })
    }

    /// Runs a command of the same program with the same environment: its exit code and what it
    /// printed.
    pub(crate) fn cli(&self, arguments: &[&str]) -> (i32, String) {
        self.cli_of(command(self.program()), arguments)
    }

    /// The same as another user of that group. Takes root.
    pub(crate) fn cli_as(&self, user: u32, group: u32, arguments: &[&str]) -> (i32, String) {
        let mut program = command(self.program());
        program.uid(user).gid(group);
        self.cli_of(program, arguments)
    }

    /// A command of the same program with the same environment, not started yet.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut program = command(self.program());
        self.prepare(&mut program);
        program.args(words);
        program
    }

    /// A command of it at a terminal of its own. What is written to its input is typed there.
    pub(crate) fn at_terminal(&self, words: &[&str]) -> Command {
        let line = format!("{} {}", self.program().display(), words.join(" "));
        let mut terminal = command("script");
        self.prepare(&mut terminal);
        terminal
            .args(["-qefc", &line, "/dev/null"])
            .env("PATH", "/usr/bin:/bin")
            .env("TERM", "xterm")
            .stdin(Stdio::piped());
        terminal
    }

    fn prepare(&self, program: &mut Command) {
        let environment = self.environment.iter();
        program
            .env_clear()
            .envs(environment.map(|(name, value)| (name, value)));
    }

    fn cli_of(&self, mut program: Command, arguments: &[&str]) -> (i32, String) {
        let output = program
            .args(arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text.into_owned())
    }

    /// What the socket answers at a path: the status code and the body.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        self.exchange(&format!("GET {path} HTTP/1.0\r\nHost: agent\r\n\r\n"))
    }

    /// Asks for something to be done.
    pub(crate) fn post(&self, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: agent\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.exchange(&request).expect("the agent answers")
    }

    /// HTTP/1.0, so that a body that flows ends with its connection.
    fn exchange(&self, request: &str) -> Option<(u16, String)> {
        let mut socket = UnixStream::connect(self.folder().join("agent.sock")).ok()?;
        socket.set_read_timeout(Some(SOON)).ok()?;
        socket.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        Some((code, body.to_owned()))
    }

    /// What a view of the local API shows.
    pub(crate) fn view(&self, path: &str) -> Value {
        let (code, body) = self.get(path).expect("the agent answers");
        assert_eq!(code, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    fn look(&self) -> Option<Value> {
        let (code, body) = self.get("/api/v1/status")?;
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).ok()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the agent\n{}", self.log());
        }
    }
}

/// Returns whether this test runs as root; if not, prints that it is skipped and why.
pub(crate) fn is_root_or_skip(why: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("skipped: {why}");
    }
    is_root
}

/// Everything that a command printed.
pub(crate) fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Writes a small file that only its owner can read.
#[expect(
    clippy::disallowed_methods,
    reason = "a test's own file need not survive a power cut"
)]
pub(crate) fn put(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}
