//! Parts of the daemon for one command: they are wired as they always are, and gone with its
//! answer.

use std::{rc::Rc, time::Duration};

use super::wiring::{self, FoundCluster, Network};
use crate::{
    config::Settings,
    core::{link::DialFailure, namespace::OwnNamespace, secret::Secret, time::Wall},
    error::{Error, Result},
    executor::Executor,
    files::Jobs,
    host::clock,
    kube::{Client, rbac::Manifest},
    outside::transport::Transport,
    tasks::state::SharedState,
    wire::handshake::DialTarget,
};

/// Time for the control plane to accept or refuse a token.
const TOKEN_WITHIN: Duration = Duration::from_secs(20);
/// The socket is closed as by an agent that stops.
const CLOSED: u16 = 1000;

/// Result of a trial of a token.
#[derive(Debug)]
pub enum TrialResult {
    /// The token was accepted.
    Taken,
    /// The token was refused.
    Refused(Error),
    /// Nobody could be asked: no network, or a control plane that has trouble of its own.
    NotAsked(Error),
}

/// The agent's objects in the cluster, and the namespace of its accounts.
pub fn manifest(settings: &Settings) -> (OwnNamespace, Manifest) {
    (settings.agent.namespace.clone(), wiring::manifest(settings))
}

/// Transport to servers that a setting names.
pub fn transport(settings: &Settings) -> Result<Transport> {
    Network::new(settings, Wall::default()).named_transport(settings)
}

/// Shows `token` to the control plane of `settings`, as the link does, and registers nothing.
pub fn token(settings: &Settings, token: &Secret) -> Result<TrialResult> {
    let network = Network::new(settings, Wall::default());
    let server = settings.pipeops.control_plane()?;
    let caller = network.caller(settings, server)?;
    let target = DialTarget::controller(&server.api_url);
    let answer = smol::block_on(async {
        let session = caller.call(&target, token.reveal(), TOKEN_WITHIN).await?;
        session.close(CLOSED, "the token was checked").await;
        Ok(())
    });
    Ok(match answer {
        Ok(()) => TrialResult::Taken,
        Err(crate::link::dial::Failure { kind, error }) => match kind {
            DialFailure::Refused => TrialResult::Refused(error),
            DialFailure::Status(..) | DialFailure::Network | DialFailure::NotAdmitted => {
                TrialResult::NotAsked(error)
            }
        },
    })
}

/// Lets `work` speak to the API of the cluster that these settings name.
pub fn with_cluster<T>(
    settings: &Settings,
    work: impl AsyncFnOnce(Client) -> Result<T>,
) -> Result<T> {
    let shared_state = SharedState::new(clock::now);
    let network = Network::new(settings, Wall::default());
    let executor = Rc::new(Executor::new());
    let named = settings.agent.kubeconfig.as_deref();
    let Some(client) = wiring::cluster(
        FoundCluster::read(named, &settings.surroundings),
        &network,
        &shared_state,
        (&executor, &Jobs::default()),
    ) else {
        return Err(Error::new("no cluster is configured").fix(
            "set one: KUBECONFIG=/path/to/kubeconfig, or agent.kubeconfig in the configuration",
        ));
    };
    smol::block_on(executor.run(work(client)))
}
