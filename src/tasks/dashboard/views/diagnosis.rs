//! "Link or node?": the probe, run on demand, and cached for a while unless something has changed.

use std::{cell::Cell, path::Path, rc::Rc, time::Duration};

use smol::future::BoxedLocal;

use super::cached::Cached;
use crate::{
    core::{
        diagnosis::{PathStep, Probe, Side, StepResult, verdict},
        link::{Holder, LinkState},
        secret::Secret,
        time::{Now, in_words},
        verdict::{UNREACHABLE, sentences},
    },
    executor,
    host::network,
    link::{
        dial::{Caller, TOKEN_FIX},
        probe,
    },
    tasks::state::SharedState,
    wire::{
        api::{self, Diagnosis},
        handshake::DialTarget,
    },
};

/// Time for which an answer is reused: anybody on this machine may ask.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Credentials that are shown to the control plane.
#[derive(Debug)]
pub struct Read {
    /// Opens connections.
    pub caller: Caller,
    /// The token, where it may be shown at that address.
    pub token: Option<Secret>,
}

/// Files that are being read; fails with why they cannot be used.
pub type Reading = BoxedLocal<Result<Read, String>>;

/// Dependencies of a [`Prober`].
pub struct ProberDependencies {
    /// The control plane, where there is one.
    pub server: Option<Server>,
    /// The state of link and cluster.
    pub shared_state: Rc<SharedState>,
    /// Both clocks.
    pub clock: fn() -> Now,
}

impl std::fmt::Debug for ProberDependencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProberDependencies({:?})", self.server)
    }
}

/// The control plane to test.
pub struct Server {
    pub target: DialTarget,
    /// Reads the files that are shown to it.
    pub read: Box<dyn Fn() -> Reading>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({:?})", self.target)
    }
}

/// State on which an answer rests: it is good for as long as this stays.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Grounds {
    link: LinkState,
    is_refused: bool,
    /// True if the cluster is silent.
    is_silent: bool,
    /// True if the cluster does not answer.
    is_unreachable: bool,
}

/// The way to the control plane, and what was last seen of it.
pub struct Prober {
    dependencies: ProberDependencies,
    last: Cached<Diagnosis>,
    /// State in which that was seen.
    grounds: Cell<Grounds>,
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Prober")
    }
}

impl Prober {
    /// Nothing was seen yet. What cannot be used of the settings is said when somebody asks.
    pub fn new(dependencies: ProberDependencies) -> Self {
        let last = Cached::new(dependencies.clock, KEPT_FOR);
        Self {
            dependencies,
            last,
            grounds: Cell::default(),
        }
    }

    /// Tests every step, or says what was seen a moment ago, where nothing has changed since.
    pub async fn diagnosis(&self) -> Rc<Diagnosis> {
        let grounds = self.grounds();
        if self.grounds.replace(grounds) != grounds {
            self.last.forget();
        }
        self.last.get(self.test()).await
    }

    fn grounds(&self) -> Grounds {
        let shared_state = &self.dependencies.shared_state;
        let link = shared_state.link.borrow();
        let status = link.status.as_ref();
        Grounds {
            link: link.state(),
            is_refused: status.is_some_and(|status| status.is_refused),
            is_silent: shared_state.with_conditions(|list| list.get(UNREACHABLE).is_some()),
            is_unreachable: shared_state.cluster.borrow().why.is_some(),
        }
    }

    async fn test(&self) -> Diagnosis {
        let mut probes = executor::unblock(|| network::probes(Path::new("/")))
            .await
            .to_vec();
        let (side, sentence) = match &self.dependencies.server {
            None => {
                probes.push(self.cluster());
                (Side::None, sentences::NOT_CONFIGURED.to_owned())
            }
            Some(server) => {
                let unusable = self.test_steps(server, &mut probes).await.err();
                self.complete(&mut probes);
                match unusable {
                    Some(why) => (Side::Node, format!("the configuration is invalid: {why}")),
                    None => verdict(&probes),
                }
            }
        };
        Diagnosis {
            side: side.as_str().to_owned(),
            sentence,
            at: (self.dependencies.clock)().wall.rfc3339(),
            steps: probes.into_iter().map(shape).collect(),
        }
    }

    /// Tests the steps from this machine to the control plane; fails where the settings cannot be
    /// used.
    async fn test_steps(&self, server: &Server, probes: &mut Vec<Probe>) -> Result<(), String> {
        let read = (server.read)().await;
        let Read { caller, token } = read?;
        let token = token.as_ref().map(Secret::reveal);
        probes.extend(
            probe::test_steps(&caller, &server.target, token, self.dependencies.clock).await,
        );
        Ok(())
    }

    /// Adds what the running agent knows: its session and its cluster.
    fn complete(&self, probes: &mut Vec<Probe>) {
        let session = self.session();
        let answer = probes.iter_mut().find(|probe| probe.step == PathStep::Http);
        let is_answered = answer
            .as_ref()
            .is_none_or(|answer| answer.outcome == StepResult::Ok);
        if session.outcome == StepResult::Ok {
            // Whatever an odd request is answered: a session is the better proof.
            if let Some(answer) = answer.filter(|_| !is_answered) {
                *answer = Probe::new(PathStep::Http, StepResult::Ok, "the session is alive");
            }
            probes.push(session);
        } else if is_answered || matches!(session.outcome, StepResult::Failed(_)) {
            probes.push(session);
        } else {
            probes.push(Probe::skipped(PathStep::Session));
        }
        probes.push(self.cluster());
    }

    fn session(&self) -> Probe {
        let shared_state = &self.dependencies.shared_state;
        let link = shared_state.link.borrow();
        let probe = |outcome, seen: String| Probe::new(PathStep::Session, outcome, seen);
        let Some(status) = &link.status else {
            return probe(
                StepResult::Unknown,
                "no session has been started yet".to_owned(),
            );
        };
        let why = &status.why;
        if status.state == LinkState::Ready {
            return probe(
                StepResult::Ok,
                "the control plane holds a session".to_owned(),
            );
        }
        match status.held_by {
            Some(Holder::Lease) => return probe(StepResult::Skipped, why.clone()),
            Some(_) => return probe(StepResult::Failed(Side::Node), why.clone()),
            None => {}
        }
        if status.is_refused {
            let seen = format!("the token was rejected: {why}");
            return probe(StepResult::Failed(Side::Node), seen).fix(TOKEN_FIX);
        }
        let next = status.next_attempt.map(in_words);
        let next = next.map_or_else(String::new, |wait| format!("; next attempt in {wait}"));
        let seen = match why.as_str() {
            "" => "connecting".to_owned(),
            why => format!("no session yet: {why}{next}"),
        };
        probe(StepResult::Unknown, seen)
    }

    fn cluster(&self) -> Probe {
        let shared_state = &self.dependencies.shared_state;
        let view = shared_state.cluster.borrow();
        let probe = |outcome, seen: String| Probe::new(PathStep::Cluster, outcome, seen);
        if view.server.is_none() {
            return probe(StepResult::Skipped, "no cluster is configured".to_owned());
        }
        let heard = view
            .last_heard()
            .unwrap_or_else(|| shared_state.started().mono);
        let silent = shared_state.with_conditions(|list| list.get(UNREACHABLE).cloned());
        if let Some(condition) = silent {
            let seen = sentences::cluster_silent(shared_state.now().mono.since(heard));
            let failed = probe(StepResult::Failed(Side::Node), seen);
            return Probe {
                fix: condition.fix,
                ..failed
            };
        }
        match (&view.why, view.last_heard()) {
            (Some(why), _) => probe(StepResult::Failed(Side::Node), why.clone()),
            (None, Some(_)) => probe(StepResult::Ok, "the API server answers".to_owned()),
            (None, None) => probe(
                StepResult::Unknown,
                "connecting to the API server".to_owned(),
            ),
        }
    }
}

fn shape(probe: Probe) -> api::Probe {
    let (id, title) = probe.step.words();
    api::Probe {
        id: id.to_owned(),
        title: title.to_owned(),
        outcome: probe.outcome.as_str().to_owned(),
        seen: probe.seen,
        took_ms: probe
            .took
            .map(|took| (took.as_secs_f64() * 1e4).round() / 10.0),
        fix: probe.fix,
    }
}
