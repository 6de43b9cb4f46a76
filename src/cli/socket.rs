//! Client of the running agent: one request, or one event stream, on its Unix socket.
//!
//! The server is our own, so this is the part of HTTP/1.1 that it uses: one request per connection,
//! responses with a length, in chunks or until the end. It blocks, because a command has nothing
//! else to do, and needs no executor.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{args::Args, load, service, view::View};
use crate::{
    config::Loaded,
    core::time::Mono,
    error::{Error, Result, Retry},
    host::clock,
    net::head::Head,
    wire::json::{self, Shape},
};

/// Socket of an agent that runs as a service.
const SERVICE_SOCKET: &str = "/run/pipeops-agent/agent.sock";

// The agent answers from memory in a millisecond; a board that swaps may take seconds.
const DEADLINE: Duration = Duration::from_secs(5);
// Tests of the network and of the machine have deadlines of their own, which come to less than
// this.
const TEST_DEADLINE: Duration = Duration::from_secs(30);
// A question to a server and a fetch, behind those of another app, and calls to the cluster; or the
// dry run of an app. The agent gives up ten seconds earlier.
const FETCH_DEADLINE: Duration = Duration::from_secs(280);
// Ten thousand conditions would fit.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
const HEAD_LINE_BYTES_MAX: u64 = 16 << 10;
const HEAD_LINES_MAX: usize = 100;
// A line of a stream: a status with all its conditions is 20 KB.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// An answer that came back.
#[derive(Debug)]
pub(super) struct ApiResponse {
    /// The status code.
    pub(super) code: u16,
    body: Vec<u8>,
}

impl ApiResponse {
    /// The JSON as received: a newer agent may send more than this program knows.
    pub(super) fn json(&self) -> Result<Value> {
        let value: Value =
            serde_json::from_slice(&self.body).map_err(|error| unexpected(error.to_string()))?;
        if value.is_object() {
            Ok(value)
        } else {
            Err(unexpected("it is not a JSON object"))
        }
    }

    /// The fields that this program knows.
    pub(super) fn understood<T: Shape + Default>(&self) -> Result<T> {
        if !self.body.trim_ascii_start().starts_with(b"{") {
            return Err(unexpected("it is not a JSON object"));
        }
        json::shape(&self.body).map_err(|error| unexpected(error.to_string()))
    }

    /// The JSON of a successful answer; otherwise the refusal, headed `what`.
    pub(super) fn fine(&self, what: &str) -> Result<Value> {
        if self.code == 200 {
            self.json()
        } else {
            Err(self.refusal(what))
        }
    }

    /// The refusal of a request as an error headed `what`.
    pub(super) fn refusal(&self, what: &str) -> Error {
        let view: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let view = View::new(&view);
        if view.text("error").is_empty() {
            return unexpected(format!("HTTP status {}", self.code));
        }
        Error {
            fix: view.maybe("fix").map(str::to_owned),
            retry: match self.code {
                503 => Retry::Soon,
                _ => Retry::Never,
            },
            ..Error::new(what).why(view.text("error"))
        }
    }
}

/// The fields of an answer that this program knows.
pub(super) fn understood<T: Shape + Default>(value: &Value) -> Result<T> {
    json::shape(value.to_string().as_bytes()).map_err(|error| unexpected(error.to_string()))
}

/// Error for an answer that this program does not understand.
pub(super) fn unexpected(why: impl Into<String>) -> Error {
    Error::new("the agent sent an answer that this program does not understand")
        .why(why)
        .fix("check that both have the same version: pipeops-agent version")
}

/// Failure to get an answer.
#[derive(Debug)]
pub(super) struct RequestFailure {
    /// For people.
    pub(super) error: Error,
    /// True if apparently no agent runs.
    pub(super) is_down: bool,
}

impl RequestFailure {
    fn of(error: Error) -> Self {
        Self {
            error,
            is_down: false,
        }
    }
}

/// A request.
#[derive(Debug)]
pub(super) enum Ask<'a> {
    /// GET of this path with its query.
    Get(&'a str),
    /// GET whose answer takes tests of the network or of the machine.
    Test(&'a str),
    /// GET of an event stream, resumed after the message of this number.
    EventStream(&'a str, Option<u64>),
    /// POST of this JSON.
    Post(&'a str, Value),
    /// POST whose answer takes calls to the cluster.
    Slow(&'a str, Value),
    /// POST whose answer takes the download of a repository, or the dry run of an app.
    Fetch(&'a str, Value),
    /// PUT of this JSON.
    Put(&'a str, Value),
    /// DELETE of this path.
    Delete(&'a str),
}

/// Sockets to try.
#[derive(Debug)]
pub(super) struct Sockets {
    paths: Vec<PathBuf>,
    /// The first problem of the settings, for which an agent does not start.
    problem: Option<Error>,
}

/// The sockets to try: the one that was named, else the one of these settings and the one of the
/// service.
pub(super) fn candidates(args: &Args, of_settings: &Loaded) -> Sockets {
    match args.path("socket") {
        Some(named) => Sockets {
            paths: vec![named],
            problem: None,
        },
        None => candidates_of(of_settings),
    }
}

/// Sockets to try for a command without `--socket`.
pub(super) fn candidates_of(of_settings: &Loaded) -> Sockets {
    let mut paths = vec![of_settings.socket().to_owned()];
    if of_settings.socket() != Path::new(SERVICE_SOCKET) {
        paths.push(PathBuf::from(SERVICE_SOCKET));
    }
    // What this user may not read, the agent may.
    let mut problems = of_settings.problems().iter();
    let problem = problems.find(|problem| !problem.is_denied());
    Sockets {
        paths,
        problem: problem.cloned(),
    }
}

/// Sends `what` to the agent of this command line; a refusal is an error headed `cannot`.
pub(super) fn request(args: &Args, what: &Ask<'_>, cannot: &str) -> Result<Value> {
    let answer = ask(&candidates(args, &load(args)), what);
    let answer = answer.map_err(|failure| failure.error.retry(Retry::Soon))?;
    answer.fine(cannot)
}

/// Asks the first of `sockets` behind which an agent listens.
pub(super) fn ask(
    sockets: &Sockets,
    ask: &Ask<'_>,
) -> std::result::Result<ApiResponse, RequestFailure> {
    let within = match ask {
        Ask::Test(_) | Ask::EventStream(..) | Ask::Slow(..) | Ask::Delete(_) => TEST_DEADLINE,
        Ask::Fetch(..) => FETCH_DEADLINE,
        Ask::Get(_) | Ask::Post(..) | Ask::Put(..) => DEADLINE,
    };
    let (stream, socket) = connect(sockets)?;
    let wire = Wire {
        stream,
        until: Some(clock::now().mono.after(within)),
        is_flow: false,
    };
    let answer = converse(wire, ask).and_then(|(code, mut body)| {
        let mut all = Vec::new();
        body.by_ref()
            .take(ANSWER_BYTES_MAX + 1)
            .read_to_end(&mut all)?;
        let is_long = u64::try_from(all.len()).is_ok_and(|length| length > ANSWER_BYTES_MAX);
        if is_long {
            return Err(io::Error::other("its answer is longer than 4 MiB"));
        }
        Ok(ApiResponse { code, body: all })
    });
    answer.map_err(|error| RequestFailure::of(broken(&error, socket, within)))
}

/// Event stream of the agent.
#[derive(Debug)]
pub(super) struct Flow {
    body: BufReader<Body>,
    silence: Option<Duration>,
    socket: PathBuf,
}

/// Reason for the early end of a stream.
#[derive(Debug)]
pub(super) enum Lost {
    /// Standard output has no reader.
    Reader,
    /// The agent is gone, or hangs.
    Agent(Error),
}

/// Opens a stream at `path`; a refusal is an error headed `cannot`. `silence` is its longest pause;
/// with `last_id` it resumes after that message.
pub(super) fn flow(
    args: &Args,
    path: &str,
    (silence, last_id): (Option<Duration>, Option<u64>),
    cannot: &str,
) -> Result<Flow> {
    let sockets = candidates(args, &load(args));
    let (stream, socket) = connect(&sockets).map_err(|failure| failure.error.retry(Retry::Soon))?;
    let wire = Wire {
        stream,
        until: Some(clock::now().mono.after(TEST_DEADLINE)),
        is_flow: false,
    };
    let (code, mut body) = converse(wire, &Ask::EventStream(path, last_id))
        .map_err(|error| broken(&error, socket, TEST_DEADLINE))?;
    if code != 200 {
        let mut answer = Vec::new();
        drop(body.by_ref().take(64 << 10).read_to_end(&mut answer));
        let answer = ApiResponse { code, body: answer };
        return Err(answer.refusal(cannot));
    }
    // From here on it may be long until something comes.
    body.reader.get_mut().is_flow = true;
    Ok(Flow {
        body: BufReader::new(body),
        silence,
        socket: socket.clone(),
    })
}

impl Flow {
    /// The next line without its end, at most [`LINE_BYTES_MAX`] of it; `None` where there are no
    /// more.
    pub(super) fn line(&mut self) -> std::result::Result<Option<String>, Lost> {
        let until = self.silence.map(|silence| clock::now().mono.after(silence));
        self.body.get_mut().reader.get_mut().until = until;
        let mut line = Vec::new();
        let mut part = self.body.by_ref().take(LINE_BYTES_MAX);
        let read = part.read_until(b'\n', &mut line);
        let read = read.map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                return Lost::Reader;
            }
            let within = self.silence.unwrap_or(DEADLINE);
            Lost::Agent(broken(&error, &self.socket, within))
        })?;
        if read == 0 {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&line);
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }
}

fn broken(error: &io::Error, socket: &Path, within: Duration) -> Error {
    let is_late = matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    );
    if is_late {
        let what = format!("the agent has not answered for {} s", within.as_secs());
        return Error::new(what).fix(service::log_line()).retry(Retry::Soon);
    }
    let is_over = matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    );
    let place = socket.display();
    let what = if is_over {
        format!("the agent at {place} stopped in the middle of an answer")
    } else {
        format!("the agent at {place} sent an invalid answer")
    };
    Error::new(what)
        .because(error)
        .fix(service::log_line())
        .retry(Retry::Soon)
}

fn connect(sockets: &Sockets) -> std::result::Result<(UnixStream, &PathBuf), RequestFailure> {
    let mut first_failure = None;
    for socket in &sockets.paths {
        match connected(socket) {
            Ok(stream) => return Ok((stream, socket)),
            // The first is the one in the settings: its failure is the most useful, unless it does
            // not exist.
            Err(error) => {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                let replaces = first_failure
                    .as_ref()
                    .is_none_or(|(_, was_missing)| *was_missing && !is_missing);
                if replaces {
                    first_failure = Some((unreachable(socket, &error, sockets), is_missing));
                }
            }
        }
    }
    Err(first_failure.map_or_else(
        || RequestFailure::of(Error::new("no socket was named")),
        |(silence, _)| silence,
    ))
}

fn connected(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.connect_timeout(&SockAddr::unix(path)?, DEADLINE)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

fn unreachable(socket: &Path, error: &io::Error, looked_at: &Sockets) -> RequestFailure {
    let is_down = |error| RequestFailure {
        error,
        is_down: true,
    };
    let is_absent = matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    );
    if let Some(problem) = looked_at.problem.as_ref().filter(|_| is_absent) {
        let error = problem
            .clone()
            .within("the agent is not running, and does not start with its settings");
        return is_down(error);
    }
    let name = socket.display();
    let kind = error.kind();
    if kind == io::ErrorKind::NotFound {
        let paths: Vec<_> = looked_at
            .paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let error = Error::new("the agent is not running")
            .why(format!("there is no socket at {}", paths.join(" nor at ")))
            .fix(format!(
                "{}; if it runs with other settings, name its socket with --socket",
                service::start_line()
            ));
        return is_down(error);
    }
    if kind == io::ErrorKind::ConnectionRefused {
        let error = Error::new("the agent is not running").why(format!(
            "nothing listens at {name}, a leftover of an earlier run"
        ));
        return is_down(error.fix(service::start_line()));
    }
    let error = Error::new(format!("cannot connect to the agent at {name}")).because(error);
    RequestFailure::of(error.fix(if kind == io::ErrorKind::PermissionDenied {
        "run as root, or join its group: usermod -aG pipeops-agent USER, then log in again"
    } else {
        service::start_line()
    }))
}

/// The socket, with a deadline for everything that is read together.
#[derive(Debug)]
struct Wire {
    stream: UnixStream,
    until: Option<Mono>,
    /// True if a wait also ends when standard output has no reader.
    is_flow: bool,
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.map(|until| until.since(clock::now().mono));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.is_flow {
            wait(&self.stream, left)?;
        } else {
            self.stream.set_read_timeout(left)?;
        }
        self.stream.read(into)
    }
}

/// Waits for data, or until standard output has no reader.
fn wait(stream: &UnixStream, time: Option<Duration>) -> io::Result<()> {
    let output = io::stdout();
    let mut ends = [
        PollFd::new(stream.as_fd(), PollFlags::POLLIN),
        // No event is requested, so any event is its end.
        PollFd::new(output.as_fd(), PollFlags::empty()),
    ];
    let time = match time {
        None => PollTimeout::NONE,
        Some(time) => PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX),
    };
    let ready = loop {
        match poll(&mut ends, time) {
            // A program that was stopped and goes on.
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(ready) => break ready,
        }
    };
    let [_, reader] = &ends;
    if reader.any().unwrap_or(true) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    if ready == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(())
}

/// The rest of an answer.
#[derive(Debug)]
struct Body {
    reader: BufReader<Wire>,
    left: Left,
}

/// Remainder of a body.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// This number of bytes.
    Bytes(u64),
    /// Rest of this chunk in bytes, then other chunks; true if its line end is unread.
    Chunk(u64, bool),
    /// All bytes until the connection closes.
    All,
    Nothing,
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunk(0, is_begun) = self.left {
            self.left = self.next_chunk(is_begun)?;
        }
        let most = match self.left {
            Left::Nothing | Left::Bytes(0) => return Ok(0),
            Left::Bytes(left) | Left::Chunk(left, _) => left,
            Left::All => u64::MAX,
        };
        let read = self.reader.by_ref().take(most).read(into)?;
        let bytes = u64::try_from(read).unwrap_or(u64::MAX);
        self.left = match self.left {
            Left::Bytes(_) | Left::Chunk(..) if read == 0 && !into.is_empty() => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Left::Bytes(left) => Left::Bytes(left.saturating_sub(bytes)),
            Left::Chunk(left, _) => Left::Chunk(left.saturating_sub(bytes), true),
            other @ (Left::All | Left::Nothing) => other,
        };
        Ok(read)
    }
}

impl Body {
    fn next_chunk(&mut self, is_begun: bool) -> io::Result<Left> {
        if is_begun {
            line(&mut self.reader)?;
        }
        let head = line(&mut self.reader)?;
        let size = head.split(';').next().unwrap_or_default().trim();
        match u64::from_str_radix(size, 16) {
            Ok(0) => Ok(Left::Nothing),
            Ok(size) => Ok(Left::Chunk(size, false)),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// A line of a head without its end.
fn line(reader: &mut BufReader<Wire>) -> io::Result<String> {
    let mut line = Vec::new();
    let mut part = reader.by_ref().take(HEAD_LINE_BYTES_MAX);
    part.read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// Sends the request and reads the head of the answer.
fn converse(mut wire: Wire, ask: &Ask<'_>) -> io::Result<(u16, Body)> {
    let (method, path, body) = match ask {
        Ask::Get(path) | Ask::Test(path) | Ask::EventStream(path, _) => ("GET", path, None),
        Ask::Post(path, body) | Ask::Slow(path, body) | Ask::Fetch(path, body) => {
            ("POST", path, Some(body))
        }
        Ask::Put(path, body) => ("PUT", path, Some(body)),
        Ask::Delete(path) => ("DELETE", path, None),
    };
    let body = body.map(Value::to_string).unwrap_or_default();
    let length = match body.len() {
        0 if method != "POST" => String::new(),
        length => format!("content-type: application/json\r\ncontent-length: {length}\r\n"),
    };
    let resume = if let Ask::EventStream(_, Some(last_id)) = ask {
        format!("last-event-id: {last_id}\r\n")
    } else {
        String::new()
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{resume}{length}\r\n{body}"
    );
    wire.stream.set_write_timeout(Some(DEADLINE))?;
    wire.stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(wire);
    let mut bytes = Vec::new();
    for _ in 0..HEAD_LINES_MAX {
        let line = line(&mut reader)?;
        bytes.extend_from_slice(line.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        if line.is_empty() {
            let head = Head::parse(&bytes);
            let head = head.ok_or_else(|| io::Error::other("its answer is not HTTP"))?;
            let left = match (
                head.header("transfer-encoding"),
                head.header("content-length"),
            ) {
                (Some("chunked"), _) => Left::Chunk(0, false),
                (_, Some(length)) => Left::Bytes(length.parse().map_err(io::Error::other)?),
                (_, None) => Left::All,
            };
            return Ok((head.status, Body { reader, left }));
        }
    }
    Err(io::Error::other("its answer has too many headers"))
}
