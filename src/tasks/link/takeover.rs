//! Takeover from the Go agent: reads what an earlier installation left in the cluster, and whether
//! that agent still runs.
//!
//! It only reads: nothing of the earlier installation is changed or removed.

use std::{rc::Rc, time::Duration};

use smol::{Timer, channel::Sender};

use crate::{
    core::{
        health::Severity,
        identity::{ClusterState, IdentityEvent, Installed},
        link::LinkCommand,
    },
    kube::{self, Client},
    tasks::state::SharedState,
    wire::kube::{ConfigMap, HeadOnly, List},
};

/// ConfigMap in which the Go agent keeps its state.
const STATE: &str = "pipeops-agent-state";
/// The label that all manifests and charts of the Go agent give its pods.
const GO_AGENT_PODS: &str = "labelSelector=app.kubernetes.io%2Fname%3Dpipeops-agent&fieldSelector=status.phase%3DRunning&limit=1";
/// Time that a new machine waits for its cluster before it registers without having asked it.
pub const ASK_FOR: Duration = Duration::from_secs(20);
/// Between two questions while the cluster does not answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Interval between checks for a running Go agent. One small request.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// The same while it does run and somebody waits for the take-over.
const POLL_INTERVAL_HELD: Duration = Duration::from_secs(5);

/// Reads the installation in the cluster; an error if it does not answer or denies access.
pub async fn read_installation(client: &Client, namespace: &str) -> Result<Installed, kube::Error> {
    if go_agent_runs(client, namespace).await? {
        return Ok(Installed::GoAgentRuns);
    }
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{STATE}");
    let state: ConfigMap = match client.get(&path).await {
        Ok(state) => state,
        Err(error) if error.is_not_found() => return Ok(Installed::Nothing),
        Err(error) => return Err(error),
    };
    let value = |key: &str| state.data.get(key).cloned().unwrap_or_default();
    Ok(Installed::State(ClusterState {
        agent_id: value("agent_id"),
        cluster_id: value("cluster_id"),
        gateway_ws_url: value("gateway_ws_url"),
    }))
}

async fn go_agent_runs(client: &Client, namespace: &str) -> Result<bool, kube::Error> {
    let path = format!("/api/v1/namespaces/{namespace}/pods?{GO_AGENT_PODS}");
    let pods: List<HeadOnly> = client.get(&path).await?;
    Ok(!pods.items.is_empty())
}

/// Asks the cluster until it answers, but not for ever: a box must link even where its cluster is
/// broken.
pub async fn ask(client: &Client, namespace: &str, shared_state: &SharedState) -> Installed {
    let began = shared_state.now().mono;
    loop {
        match read_installation(client, namespace).await {
            Ok(installed) => return installed,
            Err(error) if shared_state.now().mono.since(began) >= ASK_FOR => {
                log::warn!("cannot ask the cluster for an earlier installation: {error}");
                return Installed::NoCluster;
            }
            Err(_) => Timer::after(ASK_AGAIN).await,
        };
    }
}

/// Waits until no Go agent runs any more.
pub async fn until_go_agent_is_gone(client: &Client, namespace: &str) -> Installed {
    loop {
        Timer::after(POLL_INTERVAL_HELD).await;
        match read_installation(client, namespace).await {
            Ok(Installed::GoAgentRuns) | Err(_) => {}
            Ok(installed) => return installed,
        }
    }
}

/// Holds the link while a Go agent runs, should one be started beside us.
pub async fn guard(
    client: Client,
    namespace: String,
    shared_state: Rc<SharedState>,
    commands: Sender<LinkCommand>,
) {
    let remark = IdentityEvent::GoAgentRuns;
    let mut holds = false;
    loop {
        Timer::after(if holds {
            POLL_INTERVAL_HELD
        } else {
            POLL_INTERVAL
        })
        .await;
        let Ok(runs) = go_agent_runs(&client, &namespace).await else {
            continue;
        };
        if runs == holds {
            continue;
        }
        holds = runs;
        let command = if runs {
            shared_state.report(
                "identity.go-agent-runs",
                Severity::Critical,
                remark.sentence(""),
                remark.fix().map(str::to_owned),
            );
            LinkCommand::Hold(remark.sentence(""))
        } else {
            shared_state.clear("identity.go-agent-runs");
            LinkCommand::Release
        };
        if commands.send(command).await.is_err() {
            return;
        }
    }
}
