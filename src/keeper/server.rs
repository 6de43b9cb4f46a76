//! The socket of the keeper: a line in, a line out, one peer after the other, and only those that
//! the kernel says may ask.
//!
//! A job holds up everything else on purpose: two changes at once could not be told apart in the
//! journal. Without a peer nothing runs. Where no service manager holds the socket, the process
//! begins again once nobody asks, and waits for the next peer before anything else: what it was in
//! memory is gone.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixStream as Plain,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        UnixAddr, getsockname, getsockopt,
        sockopt::{AcceptConn, PeerCredentials},
    },
    unistd::{Gid, chown},
};
use serde::Serialize;
use smol::{
    Timer,
    future::FutureExt as _,
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::{UnixListener, UnixStream},
};

use super::Keeper;
use crate::{
    core::{accept::Accepts, images::ImageDigest, k3s::pins::PINS_MAX},
    error::{Error, Result},
    files,
    host::{clock, exec, random, signals},
    wire::{
        api::{ChangeList, ErrorBody},
        json,
        keeper::{Ask, LINE_BYTES_MAX},
    },
};

/// Time for a peer to send its request, and to read the answer.
const PEER_DEADLINE: Duration = Duration::from_secs(5);
/// Root, and the agent's group; of that group only the agent's user is served.
const SOCKET_MODE: u32 = 0o660;
/// End of the name under which a socket is made.
const BESIDE: &str = "~";
/// Changes that fit into a line.
const CHANGES_MAX: usize = 100;
/// Longest refusal, in characters.
const REFUSAL_CHARS_MAX: usize = 1_000;

/// Users that may ask, besides root.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Allowed {
    /// The agent's user.
    pub uid: Option<u32>,
    /// The agent's group, which gets the socket.
    pub gid: Option<u32>,
    /// True if the agent's user may have something changed.
    pub repair: bool,
}

/// A user on the other end, who may ask.
pub(super) struct Peer {
    who: String,
    may_change: bool,
    may_undo: Extent,
}

/// Changes that a peer may have undone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Extent {
    /// Those of everybody.
    All,
    /// Those that the agent asked for.
    Own,
}

/// Beginning of the name by which the journal knows the agent.
const AGENT: &str = "the agent (uid ";

impl Peer {
    /// The agent's user.
    pub(super) fn agent(uid: u32, allowed: Allowed) -> Self {
        Self {
            who: format!("{AGENT}{uid})"),
            may_change: allowed.repair,
            may_undo: Extent::Own,
        }
    }
}

/// The listening socket. Dropping it removes its path, where it made that itself.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    own: Option<Own>,
    allowed: Allowed,
}

/// A path that this process made.
#[derive(Debug)]
struct Own {
    path: PathBuf,
    inode: u64,
}

impl Server {
    /// Listens at `path`. Its folder is made where it is missing. A socket that a dead keeper left
    /// is replaced.
    pub fn bind(path: &Path, allowed: Allowed) -> Result<Self> {
        let cannot = |error: io::Error| {
            files::explain(format!("cannot listen on {}", path.display()), &error)
        };
        if let Some(folder) = path.parent()
            && let Err(error) = std::fs::DirBuilder::new().mode(0o755).create(folder)
            && !folder.is_dir()
        {
            return Err(cannot(error));
        }
        refuse_taken(path)?;
        // Made beside it and renamed, so that nobody can connect before owner and mode are right.
        let mut beside = path.to_owned().into_os_string();
        beside.push(BESIDE);
        let beside = PathBuf::from(beside);
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&beside).map_err(cannot)?;
        chown(&beside, None, allowed.gid.map(Gid::from_raw))
            .map_err(|errno| cannot(errno.into()))?;
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(SOCKET_MODE))
            .and_then(|()| std::fs::rename(&beside, path))
            .map_err(cannot)?;
        let own = Own::at(path.to_owned()).map_err(cannot)?;
        Ok(Self {
            listener,
            own: Some(own),
            allowed,
        })
    }

    /// Listens on the standard input, where a service manager put a socket that listens
    /// (`StandardInput=socket`), or this process before it began again. It stays there for the next
    /// start.
    pub fn inherited(allowed: Allowed) -> Result<Option<Self>> {
        let input = io::stdin();
        if getsockopt(&input.as_fd(), AcceptConn) != Ok(true) {
            return Ok(None);
        }
        let listener = input.as_fd().try_clone_to_owned().and_then(|socket| {
            let listener = std::os::unix::net::UnixListener::from(socket);
            // Of another family it has no such address, and nobody's user would be known.
            listener.local_addr()?;
            UnixListener::try_from(listener)
        });
        let listener = listener.map_err(|error| {
            Error::new("cannot listen on the socket of the service manager").because(&error)
        })?;
        Ok(Some(Self {
            listener,
            own: own_path(&input).and_then(|path| Own::at(path).ok()),
            allowed,
        }))
    }

    /// Returns whether this process made the socket, so that nobody else keeps it open.
    pub const fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Begins the program again in the place of this process, with the socket: see
    /// [`wait_for_connection`]. It returns only where that fails.
    pub fn begin_again(&self) -> Error {
        let socket = self.listener.as_fd().try_clone_to_owned();
        let error = socket.map_or_else(|error| error, exec::again);
        Error::new("cannot restart the root helper").because(&error)
    }

    /// Serves one peer after the other until nobody asked for `idle`.
    pub async fn serve(&self, keeper: &Keeper, idle: Duration) {
        let mut accepts = Accepts::default();
        loop {
            let accepted = async { Some(self.listener.accept().await) };
            let waited_enough = async {
                Timer::after(idle).await;
                None
            };
            let Some(accepted) = accepted.or(waited_enough).await else {
                return;
            };
            let now = clock::now().mono;
            match accepted {
                Ok((stream, _)) => {
                    if let Some(over) = accepts.accepted(now) {
                        log::info!("{over}");
                    }
                    self.answer(stream, keeper).await;
                }
                Err(error) => {
                    let pause = accepts.failed(now, random::jitter());
                    if pause.is_news {
                        log::warn!(
                            "nobody can connect: {error}; fix: sudo systemctl restart pipeops-keeper (with OpenRC: sudo rc-service pipeops-keeper restart)"
                        );
                    }
                    Timer::after(pause.wait).await;
                }
            }
        }
    }

    async fn answer(&self, mut stream: UnixStream, keeper: &Keeper) {
        let answer = match self.peer(&stream) {
            Ok(peer) => match in_time(line(&mut stream)).await {
                Ok(asked) => act(keeper, &asked, &peer).unwrap_or_else(|error| refusal(&error)),
                // Who says nothing hears nothing.
                Err(error) => {
                    log::debug!("a peer did not ask: {error}");
                    return;
                }
            },
            Err(error) => refusal(&error),
        };
        let answered = async {
            stream.write_all(answer.as_bytes()).await?;
            stream.write_all(b"\n").await
        };
        if let Err(error) = in_time(answered).await {
            log::debug!("a peer did not take its answer: {error}");
        }
    }

    /// Describes the peer, if it may ask.
    fn peer(&self, stream: &UnixStream) -> Result<Peer> {
        let known = getsockopt(&stream.as_fd(), PeerCredentials).map(|peer| peer.uid());
        match known {
            Ok(0) => Ok(Peer {
                who: "root".to_owned(),
                may_change: true,
                may_undo: Extent::All,
            }),
            Ok(uid) if Some(uid) == self.allowed.uid => Ok(Peer::agent(uid, self.allowed)),
            Ok(uid) => {
                log::warn!("uid {uid} asked and may not");
                Err(Error::new("the root helper does not serve you")
                    .why(format!(
                        "it serves root and the agent, and you are uid {uid}"
                    ))
                    .fix("run the command with sudo"))
            }
            Err(errno) => Err(
                Error::new("the kernel does not identify the user of the socket").because(&errno),
            ),
        }
    }
}

/// Waits until somebody connects, where this process began again with its own socket as standard
/// input; elsewhere it returns at once.
///
/// It is the first thing that the program does: each function that runs brings 64 KB of the program
/// into memory, and without a service manager that holds the socket one process has to stay.
/// Signals act as in any program meanwhile: nothing is under way. SIGHUP waits for who logs it.
pub fn wait_for_connection() {
    let input = io::stdin();
    if own_path(&input).is_some() {
        signals::unblock_ends();
        // Cut short, it serves nobody for a while and begins again.
        let mut waited = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        poll(&mut waited, PollTimeout::NONE).unwrap_or_default();
    }
}

/// The path of a socket that this program made: its name was another one then.
fn own_path(socket: &io::Stdin) -> Option<PathBuf> {
    let address: UnixAddr = getsockname(socket.as_raw_fd()).ok()?;
    let path = address.path()?.to_str()?;
    path.strip_suffix(BESIDE).map(PathBuf::from)
}

impl Own {
    fn at(path: PathBuf) -> io::Result<Self> {
        let inode = std::fs::symlink_metadata(&path)?.ino();
        Ok(Self { path, inode })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Another keeper may have taken the path in the meantime.
        let Some(own) = &self.own else {
            return;
        };
        let is_ours =
            std::fs::symlink_metadata(&own.path).is_ok_and(|found| found.ino() == own.inode);
        if is_ours {
            drop(std::fs::remove_file(&own.path));
        }
    }
}

/// Leaves alone what is not the socket of a dead keeper.
fn refuse_taken(path: &Path) -> Result<()> {
    let cannot = || Error::new(format!("cannot listen on {}", path.display()));
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(cannot()
            .why("it is not a socket")
            .fix(format!("inspect it, then: sudo rm {}", path.display())));
    }
    match Plain::connect(path) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) =>
        {
            Ok(())
        }
        Ok(_) | Err(_) => Err(cannot()
            .why("another root helper answers there")
            .fix("stop that one first: sudo systemctl stop pipeops-keeper (with OpenRC: sudo rc-service pipeops-keeper stop)")),
    }
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = async {
        Timer::after(PEER_DEADLINE).await;
        Err(io::ErrorKind::TimedOut.into())
    };
    work.or(late).await
}

/// The line that a peer says, without its end.
async fn line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let length = stream.read(&mut piece).await?;
        let new = piece.get(..length).unwrap_or_default();
        if let Some(end) = new.iter().position(|byte| *byte == b'\n') {
            read.extend_from_slice(new.get(..end).unwrap_or_default());
            return Ok(read);
        }
        read.extend_from_slice(new);
        if length == 0 || read.len() > LINE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Does what is asked.
pub(super) fn act(keeper: &Keeper, asked: &[u8], peer: &Peer) -> Result<String> {
    let ask: Ask = json::shape(asked).map_err(|error| {
        Error::new("the root helper does not understand what it is asked").because(&error)
    })?;
    let named = |value: &Option<String>, what: &str| {
        value.clone().ok_or_else(|| {
            Error::new(format!("{:?} needs a {what}", ask.verb)).fix(format!(
                "name it: {{\"verb\":{:?},{what:?}:\"…\"}}",
                ask.verb
            ))
        })
    };
    let who = &peer.who;
    if matches!(ask.verb.as_str(), "fix" | "undo" | "pin") && !peer.may_change {
        return Err(Error::new("root allows the agent no repairs")
            .why("keeper.allow does not list repair")
            .fix("run the command with sudo; or let root add it to keeper.allow, and mend what 'sudo pipeops-agent config check' finds"));
    }
    match ask.verb.as_str() {
        "inspect" => json(&keeper.inspect()),
        "plan" => json(&keeper.plan(&named(&ask.check, "check")?)?),
        "fix" => json(&keeper.fix(&named(&ask.check, "check")?, who)?),
        "undo" => {
            let change = named(&ask.change, "change")?;
            if peer.may_undo == Extent::Own {
                keeper.only_by(&change, AGENT)?;
            }
            json(&keeper.undo(&change, who)?)
        }
        "changes" => {
            let mut changes = keeper.changes()?;
            changes.truncate(CHANGES_MAX);
            json(&ChangeList { changes })
        }
        "pin" => json(&keeper.k3s_pin(&digests(ask.images)?)?),
        _ => Err(Error::new("the root helper does not do that")
            .fix("it does inspect, plan, fix, undo, changes and pin, and nothing else")),
    }
}

/// Images that are to be pinned: digests and nothing else, and not too many.
fn digests(images: Option<Vec<String>>) -> Result<Vec<ImageDigest>> {
    let digests = images.filter(|images| images.len() <= PINS_MAX);
    let digests = digests.and_then(|images| {
        let parsed = images.iter().map(|image| ImageDigest::parse(image));
        parsed.collect()
    });
    digests.ok_or_else(|| {
        Error::new("\"pin\" needs the digests of images").fix(format!(
            "name {PINS_MAX} at most: {{\"verb\":\"pin\",\"images\":[\"sha256:…\"]}}"
        ))
    })
}

fn json(answer: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(answer)
        .map_err(|error| Error::new("the root helper cannot write its answer").because(&error))?;
    if text.len() >= LINE_BYTES_MAX {
        return Err(Error::new("the answer is too long for the socket")
            .fix("ask as root, without the socket: sudo pipeops-agent doctor"));
    }
    Ok(text)
}

fn refusal(error: &Error) -> String {
    // It may repeat what the peer said.
    let sentence = error.sentence();
    let refusal = ErrorBody {
        error: sentence.chars().take(REFUSAL_CHARS_MAX).collect(),
        fix: error.fix.clone(),
    };
    serde_json::to_string(&refusal).unwrap_or_default()
}
