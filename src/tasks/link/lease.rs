//! Leader election over the Lease: joins `core::lease` to the cluster's API, the lease gate and the
//! disk.

use std::rc::Rc;

use smol::{
    channel::{Receiver, Sender},
    future::{self, FutureExt as _},
};

use super::super::lease_gate::{LeaseGate, Permission};
use crate::{
    core::{
        health::Severity,
        lease::{CALL_WITHIN, Change, Election, Input, LeaseState, Output, Record},
        link::LinkCommand,
        time::Wall,
    },
    host::clock,
    kube::{Client, Error, Patch},
    net::{self, deadline},
    store,
    tasks::state::{STANDBY, SharedState},
    wire::lease::{Lease, NAME, Write},
};

/// Under which name it is kept on disk what tells this agent from others with the same id.
pub const NOTE_NAME: &str = "lease.name";
/// The same for whether rivals are known; the word is [`RIVALS`].
pub const NOTE_RIVALS: &str = "lease.rivals";
/// The word for it.
pub const RIVALS: &str = "known";

/// Components that the task needs.
#[derive(Debug)]
pub struct ElectionDependencies {
    /// The way to the API.
    pub client: Client,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Fix that grants the right to use it.
    pub fix: String,
    /// Permission for the uplink.
    pub lease_gate: Rc<LeaseGate>,
    /// Wakes the uplink.
    pub commands: Sender<LinkCommand>,
    /// State with the link's cluster id, and for conditions.
    pub shared_state: Rc<SharedState>,
    /// Keeps whether rivals are known.
    pub store: store::Handle,
    /// The id of a cluster that this one is a copy of: the Lease was copied too.
    pub copied_from: Option<String>,
}

/// The permission before the first answer.
pub fn not_asked_yet() -> Permission {
    permission(LeaseState::Asking)
}

/// Takes part until `stop` is closed; then leaves the Lease to the others.
pub async fn run(dependencies: ElectionDependencies, mut election: Election, stop: Receiver<()>) {
    let mut is_stopping = false;
    let mut registrations = 0;
    let heard = dependencies.client.heard();
    let mut chances = heard.chances();
    loop {
        let now = dependencies.shared_state.now();
        let view = dependencies.shared_state.link.borrow().clone();
        if let Some(id) = view.cluster_id {
            election.handle(Input::ClusterId(id), now.mono);
        }
        if view.registrations != registrations {
            registrations = view.registrations;
            election.handle(Input::Registered, now.mono);
        }
        let output = election.poll(now.mono);
        // A poll may bring the fence nearer: before what it asks for is done.
        dependencies.show(&election).await;
        let work = async {
            match output {
                Output::Log(line) => log::info!("{line}"),
                Output::KeepRivals(knows) => dependencies.keep(knows).await,
                Output::Wait(until) => {
                    let time = clock::until(until);
                    time.or(heard.chance(chances)).await;
                    if heard.chances() != chances {
                        return Event::Again;
                    }
                }
                Output::Done => return Event::Done,
                Output::Get => return Event::Answer(dependencies.get().await),
                Output::Create(record) => {
                    let change = Change::Acquired;
                    return Event::Answer(dependencies.write(&record, change, now.wall).await);
                }
                Output::Update(record, change) => {
                    return Event::Answer(dependencies.write(&record, change, now.wall).await);
                }
            }
            Event::Nothing
        };
        let stopped = async {
            if is_stopping {
                future::pending::<()>().await;
            }
            // Nothing is ever sent: it is closed.
            stop.recv().await.ok();
            Event::Stop
        };
        match work.or(stopped).await {
            Event::Nothing => {}
            Event::Again => {
                chances = heard.chances();
                election.handle(Input::LookAgain, dependencies.shared_state.now().mono);
            }
            Event::Answer(input) => {
                if let Input::Unanswered(why) | Input::ClockBehind(why) = &input {
                    log::debug!("lease: no answer: {why}");
                }
                election.handle(input, dependencies.shared_state.now().mono);
            }
            Event::Stop => {
                is_stopping = true;
                election.handle(Input::Stop, dependencies.shared_state.now().mono);
            }
            Event::Done => return,
        }
    }
}

enum Event {
    Nothing,
    /// Rights may be other ones, or the API answers again.
    Again,
    Answer(Input),
    Stop,
    Done,
}

fn permission(standing: LeaseState) -> Permission {
    Permission::Not(match standing {
        LeaseState::Open(until) => return Permission::Until(until),
        LeaseState::Asking => "asking the cluster which agent holds the link".to_owned(),
        LeaseState::StandingBy(holder) => {
            format!("{} holds the link of this cluster", holder.words())
        }
        LeaseState::Blind => {
            "the Kubernetes API does not answer, and another agent of this cluster may hold the link"
                .to_owned()
        }
    })
}

impl ElectionDependencies {
    /// Tells the uplink and the people what is so now.
    async fn show(&self, election: &Election) {
        let now = self.shared_state.now().mono;
        let standing = election.standing(now);
        let was_open = self.lease_gate.is_open(now);
        let is_open = matches!(standing, LeaseState::Open(_));
        if is_open && !was_open {
            self.introduce(election).await;
        }
        self.report(&standing, election.barred());
        let permission = permission(standing);
        let before = self.lease_gate.set(permission.clone());
        if is_open != was_open || (!is_open && permission != before) {
            // Where the queue is full the uplink is about to look anyway.
            drop(self.commands.try_send(LinkCommand::CheckLeaseGate));
        }
    }

    /// Says what the link must know before it is made.
    async fn introduce(&self, election: &Election) {
        let id = election
            .cluster_id()
            .filter(|id| self.copied_from.as_deref() != Some(*id));
        let adopt = id.map(|id| LinkCommand::AdoptClusterId(id.to_owned()));
        let register = election.must_register().then_some(LinkCommand::Register);
        for command in [adopt, register].into_iter().flatten() {
            // The uplink is gone only where the agent stops.
            drop(self.commands.send(command).await);
        }
    }

    fn report(&self, standing: &LeaseState, barred: Option<&str>) {
        let shared_state = &self.shared_state;
        match standing {
            LeaseState::StandingBy(holder) => shared_state.report(
                STANDBY,
                Severity::Note,
                format!(
                    "{} holds the link of this cluster; this agent stands by",
                    holder.words()
                ),
                None,
            ),
            LeaseState::Open(_) | LeaseState::Asking | LeaseState::Blind => {
                shared_state.clear(STANDBY)
            }
        }
        if *standing == LeaseState::Blind {
            let sentence = "not linked: the Kubernetes API does not answer, and another agent of this cluster may hold the link";
            let fix = "kubectl get --raw /readyz on this host; the agent keeps trying";
            shared_state.report(
                "lease.unreachable",
                Severity::Warning,
                sentence,
                Some(fix.to_owned()),
            );
        } else {
            shared_state.clear("lease.unreachable");
        }
        let Some(why) = barred else {
            return shared_state.clear("lease.rbac");
        };
        let sentence = format!(
            "the agent cannot use the Lease {NAME} in namespace {}: {why}; it connects as if it were the only agent of this cluster, and two agents would disconnect each other",
            self.namespace
        );
        let fix = Some(self.fix.clone());
        shared_state.report("lease.rbac", Severity::Warning, sentence, fix);
    }

    async fn keep(&self, knows_rivals: bool) {
        let word = knows_rivals.then(|| RIVALS.to_owned());
        if let Err(failure) = self.store.keep_note(NOTE_RIVALS, word).await {
            log::warn!("lease: cannot save whether there are other agents: {failure}");
        }
    }

    fn collection(&self) -> String {
        format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            self.namespace
        )
    }

    async fn get(&self) -> Input {
        let path = format!("{}/{NAME}", self.collection());
        let found = self.client.get::<Lease>(&path);
        answer(found, |lease| Input::Found(lease.record())).await
    }

    async fn write(&self, record: &Record, change: Change, wall: Wall) -> Input {
        let write = match Write::new(record, change, wall) {
            Ok(write) => write,
            Err(error) => return Input::Unanswered(error.to_string()),
        };
        let written = |lease: Lease| Input::Written(lease.version().to_owned());
        if record.version.is_empty() {
            let path = self.collection();
            return answer(self.client.create(&path, &write), written).await;
        }
        let path = format!("{}/{NAME}", self.collection());
        answer(self.client.patch(&path, Patch::Merge, &write), written).await
    }
}

/// Converts the answer of a call into an input of the election.
async fn answer(
    call: impl Future<Output = Result<Lease, Error>>,
    good: impl FnOnce(Lease) -> Input,
) -> Input {
    match deadline(CALL_WITHIN, call).await {
        Ok(Ok(lease)) => good(lease),
        Ok(Err(Error::Refused { status: 404, .. })) => Input::NotFound,
        Ok(Err(Error::Refused { status: 409, .. })) => Input::Conflict,
        Ok(Err(Error::Refused {
            status: 403,
            message,
            ..
        })) => Input::Forbidden(message),
        Ok(Err(Error::Connection(error)))
            if matches!(error.kind, net::ErrorKind::CertificateNotYetValid { .. }) =>
        {
            Input::ClockBehind(error.to_string())
        }
        Ok(Err(error)) => Input::Unanswered(error.to_string()),
        Err(elapsed) => Input::Unanswered(elapsed.to_string()),
    }
}
