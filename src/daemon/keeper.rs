//! The root helper as a process of its own: start, serve, stop. It shares nothing with the agent
//! but the program.

use std::{ffi::OsStr, path::Path, pin::pin, time::Duration};

use nix::unistd::{User, geteuid};
use smol::future::{self, FutureExt as _};

use super::{VERSION, log_of_root};
use crate::{
    config,
    error::{Error, Exit, Result},
    host::{
        notify::Notifier,
        signals::{self, Signal, Signals},
    },
    keeper::{Allowed, Keeper, Server, trust_all},
};

/// Time without a request after which the helper exits if a service manager holds its socket.
const IDLE: Duration = Duration::from_secs(60);
/// The same where it holds the socket itself and begins again, which takes some milliseconds. The
/// threads that read the settings have ended by then.
const IDLE_OF_OWN: Duration = Duration::from_secs(10);

/// Start parameters.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub settings: &'a config::Keeper,
    /// Files that those were read from.
    pub files: &'a [std::path::PathBuf],
    /// `/`, or a tree that stands for it.
    pub root: &'a Path,
    pub notify_socket: Option<&'a OsStr>,
    pub journal_stream: Option<&'a str>,
}

/// Runs it until it is told to stop, or nobody asks. What is under way then is brought to its end
/// first.
pub fn run(start: Start<'_>) -> Result<Exit> {
    if !geteuid().is_root() {
        return Err(Error::new("the root helper cannot run")
            .why("it is not root")
            .fix("sudo systemctl start pipeops-keeper (with OpenRC: sudo rc-service pipeops-keeper start)"));
    }
    trust_all(start.files)
        .map_err(|error| error.within("the root helper cannot read its configuration"))?;
    log_of_root(start.journal_stream)?;
    smol::block_on(live(start))
}

async fn live(start: Start<'_>) -> Result<Exit> {
    let settings = start.settings;
    let mut signals = Signals::new()?;
    signals::unblock();
    let notifier = Notifier::new(start.notify_socket);
    let allowed = allowed(settings);
    let inherited = Server::inherited(allowed)?;
    let keeper = Keeper::new(start.root, &settings.state_dir).in_sandbox();
    // One that began again has done this. It serves those who only look while another process makes
    // a change.
    if !inherited.as_ref().is_some_and(Server::is_own) {
        ::log::info!("pipeops-agent {VERSION}: keeper started");
        // What a power cut interrupted comes before anybody can ask for more.
        for done in keeper.resume()? {
            ::log::info!("{}: {}", done.outcome, done.sentence);
        }
    }
    let server = match inherited {
        Some(server) => server,
        None => Server::bind(&settings.socket, allowed)?,
    };
    notifier.ready("waiting for requests");
    let mut stopped = pin!(async {
        while signals.next().await == Some(Signal::Reload) {
            ::log::info!("SIGHUP: restart to apply a changed configuration");
        }
    });
    // A service manager that holds the socket starts the helper again for the next request.
    let idle = if server.is_own() { IDLE_OF_OWN } else { IDLE };
    let is_told = async {
        stopped.as_mut().await;
        true
    };
    let work = async {
        server.serve(&keeper, idle).await;
        false
    };
    let is_told = is_told.or(work).await;
    if !is_told && server.is_own() {
        signals::block();
        // One that came before that would be lost.
        if future::poll_once(stopped).await.is_none() {
            return Err(server.begin_again());
        }
    }
    notifier.stopping();
    ::log::info!("stopped");
    Ok(Exit::Fine)
}

/// The agent's user and group. Where there is no such user, root alone is served.
fn allowed(settings: &config::Keeper) -> Allowed {
    let user = &settings.user;
    let Ok(Some(known)) = User::from_name(user) else {
        ::log::warn!("user {user:?} (keeper.user) does not exist: only root is served");
        return Allowed::default();
    };
    Allowed {
        uid: Some(known.uid.as_raw()),
        gid: Some(known.gid.as_raw()),
        repair: settings.allow.repair,
    }
}
