//! Identity of this agent and its permission to link, then the link itself until it is stopped.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use smol::{
    Task,
    channel::{Receiver, Sender, bounded},
    future::{self, FutureExt as _},
};

use super::{Agent, TEND_EVERY, wait, wiring};
use crate::{
    config::ControlPlane,
    core::{
        health::Severity,
        identity::{
            self, Decision, Evidence, Identity, IdentityEvent, Installed, Linking, Registration,
        },
        lease::{self as election, Candidate, Election},
        link::{self, Link, LinkCommand, Membership},
        stall::Job,
        time::Wall,
    },
    error::Error,
    host::{clock, random},
    link::dial::Caller,
    store,
    tasks::{
        lease_gate::Permission,
        link::{
            commands::Commands,
            lease, takeover,
            uplink::{self},
        },
        rights::credential::supply,
    },
};

/// Time for the release of the Lease. Without it the others wait for it to expire.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

impl Agent {
    /// Finds out who this agent is and holds the link as that one, if there is a control plane,
    /// until it is told to stop.
    pub(super) async fn link(
        self: Rc<Self>,
        loaded: store::Loaded,
        commands: Sender<LinkCommand>,
        received: Receiver<LinkCommand>,
    ) {
        if let Some(server) = self.settings.pipeops.control_plane.clone() {
            return self.link_to(server, loaded, (commands, received)).await;
        }
        self.shared_state.link.borrow_mut().is_off = true;
        let settled = async {
            self.settle(loaded).await;
            future::pending().await
        };
        until_stopped(&received).or(settled).await;
    }

    async fn link_to(
        self: Rc<Self>,
        server: ControlPlane,
        loaded: store::Loaded,
        (commands, received): (Sender<LinkCommand>, Receiver<LinkCommand>),
    ) {
        let notes = loaded.notes.clone();
        let certified = self.certified(loaded.clock);
        let settled = async {
            let identity = self.settle(loaded).await;
            let caller = self.caller(&server).await;
            Some((identity, caller))
        };
        let stopped = async {
            until_stopped(&received).await;
            None
        };
        let Some((identity, caller)) = settled.or(stopped).await else {
            return;
        };
        let supply = self.supply(&commands).await;
        let guard = self.cluster.clone().map(|client| {
            let namespace = self.settings.agent.go_state_namespace.clone();
            self.spawn(takeover::guard(
                client,
                namespace,
                Rc::clone(&self.shared_state),
                commands.clone(),
            ))
        });
        let lease = self.take_part(&identity, &notes, commands).await;
        let membership = wiring::membership(&identity);
        let mut settings = link::Settings::new(identity.agent_id.clone());
        settings.registers_first = self
            .delegate
            .as_ref()
            .is_some_and(|known| known.credential().is_due());
        settings.heartbeat_every = self.settings.agent.heartbeat;
        let seed = random::bytes::<8>().map_or(0, u64::from_ne_bytes);
        let machine = Link::new(settings, membership, seed, self.shared_state.now());
        let (token, jobs) = (server.token.clone(), self.jobs.clone());
        let read = move || -> uplink::TokenRead {
            let (token, jobs) = (token.clone(), jobs.clone());
            Box::pin(async move {
                let read = jobs.run(Job::Secret, move || token.read()).await;
                read.flatten().map(|secret| secret.reveal().to_owned())
            })
        };
        let dependencies = uplink::UplinkDependencies {
            api_url: server.api_url.clone(),
            caller: self.fresh_caller(server.clone(), caller),
            token: Rc::new(read),
            keep: self.keeper(identity),
            certified,
            registrar: Rc::clone(&self.registrar),
            proxy: Rc::clone(&self.proxy),
            delivery: Rc::clone(&self.delivery),
            edge_commands: self.edge_commands(),
            shared_state: Rc::clone(&self.shared_state),
            lease_gate: Rc::clone(&self.lease_gate),
            commands: received,
            executor: Rc::clone(&self.executor),
        };
        uplink::run(dependencies, machine).await;
        drop((guard, supply));
        // After the link was closed, never before.
        if let Some((task, stop)) = lease {
            drop(stop);
            task.or(wait(RELEASE_WITHIN)).await;
        }
    }

    /// Takes part in the election of the agent that links, where there is a cluster. The task ends,
    /// in order, when the sender is dropped.
    async fn take_part(
        &self,
        identity: &Identity,
        notes: &store::Notes,
        commands: Sender<LinkCommand>,
    ) -> Option<(Task<()>, Sender<()>)> {
        let client = self.cluster.clone()?;
        let name = wiring::lease_name(&self.store, notes).await;
        let settings = election::ElectionSettings {
            me: Candidate {
                id: format!("{}_{name}", identity.agent_id),
                agent: identity.agent_id.clone(),
                host: self.registrar.host().hostname.clone().unwrap_or_default(),
            },
            knows_rivals: notes.get(lease::NOTE_RIVALS) == Some(lease::RIVALS),
            ask_until: self.shared_state.started().mono.after(takeover::ASK_FOR),
        };
        let seed = random::bytes::<8>().map_or(0, u64::from_ne_bytes);
        let election = Election::new(settings, seed, self.shared_state.now().mono);
        let left = identity.left_behind.as_ref();
        let dependencies = lease::ElectionDependencies {
            client,
            namespace: self.settings.agent.namespace.to_string(),
            fix: wiring::manifest(&self.settings).command(),
            lease_gate: Rc::clone(&self.lease_gate),
            commands,
            shared_state: Rc::clone(&self.shared_state),
            store: self.store.clone(),
            copied_from: left.and_then(|left| left.cluster_id.clone()),
        };
        let (stop, stopped) = bounded(1);
        let task = self.spawn(lease::run(dependencies, election, stopped));
        Some((task, stop))
    }

    /// Takes commands of the control plane. Their deadlines are judged by the clock that
    /// certificates are judged by.
    fn edge_commands(&self) -> Rc<Commands> {
        let clock = self.network.clock();
        let executor = Rc::clone(&self.executor);
        Rc::new(Commands::new(
            self.apps.clone(),
            move || clock.now(),
            executor,
        ))
    }

    /// Keeps the control plane supplied with what it shows in place of a Kubernetes credential;
    /// with the first one already there, where it could be had.
    async fn supply(self: &Rc<Self>, commands: &Sender<LinkCommand>) -> Option<Task<()>> {
        let delegate = Rc::clone(self.delegate.as_ref()?);
        let revocation = Rc::clone(self.revocation.as_ref()?);
        let credential = delegate.credential();
        credential.prepare(&delegate, &revocation).await;
        let (agent, commands) = (Rc::clone(self), commands.clone());
        Some(self.spawn(async move {
            let dependencies = supply::SupplyDependencies {
                delegate: &delegate,
                revocation: &revocation,
                store: agent.store.clone(),
                shared_state: &agent.shared_state,
                commands,
            };
            let is_idle = || agent.proxy.load().exchanges == 0;
            delegate.credential().supply(dependencies, is_idle).await;
        }))
    }

    /// Decides who this agent is, after the cluster was asked where that matters, and while no Go
    /// agent runs there.
    async fn settle(&self, loaded: store::Loaded) -> Identity {
        let mut evidence = Evidence {
            database: loaded.database,
            file: loaded.file,
            configured_id: self.settings.pipeops.agent_id.clone(),
            fingerprint: self.registrar.host().fingerprint.clone(),
            installed: if self.cluster.is_some() {
                Installed::NotAsked
            } else {
                Installed::NoCluster
            },
            fresh_id: identity::random_id(&random::hex::<8>().unwrap_or_default()),
        };
        let namespace = &self.settings.agent.go_state_namespace;
        loop {
            let decision = identity::decide(&evidence);
            self.registrar.set_agent_id(&decision.identity.agent_id);
            match (decision.linking, &self.cluster) {
                (Linking::AfterCluster, Some(client)) => {
                    evidence.installed = takeover::ask(client, namespace, &self.shared_state).await;
                }
                (Linking::Held, Some(client)) => {
                    self.report(&decision);
                    let why = IdentityEvent::GoAgentRuns.sentence("");
                    self.lease_gate.set(Permission::Not(why));
                    evidence.installed = takeover::until_go_agent_is_gone(client, namespace).await;
                    self.shared_state.clear("identity.go-agent-runs");
                }
                (Linking::Free | Linking::AfterCluster | Linking::Held, _) => {
                    self.report(&decision);
                    if decision.is_changed {
                        wiring::keep(&self.store, decision.identity.clone()).await;
                    }
                    return decision.identity;
                }
            }
        }
    }

    fn report(&self, decision: &Decision) {
        for remark in &decision.remarks {
            let sentence = remark.sentence(&decision.identity.agent_id);
            match remark.condition() {
                Some((id, severity)) => self.shared_state.report(
                    id,
                    severity,
                    sentence,
                    remark.fix().map(str::to_owned),
                ),
                None => ::log::info!("{sentence}"),
            }
        }
    }

    /// Opens sessions; waits while its settings cannot be used (a CA file that is not there yet).
    async fn caller(&self, server: &ControlPlane) -> Caller {
        loop {
            match self.new_caller(server).await {
                Ok(caller) => {
                    self.shared_state.clear("link.settings");
                    return caller;
                }
                Err(error) => {
                    // Without a link it leaves the Lease to others.
                    self.lease_gate.set(Permission::Not(error.sentence()));
                    self.cannot_open_sessions(error);
                }
            }
            clock::tick(TEND_EVERY).await;
        }
    }

    fn cannot_open_sessions(&self, error: Error) {
        self.shared_state.report(
            "link.settings",
            Severity::Critical,
            error.sentence(),
            error.fix,
        );
    }

    /// Reads the files of certificates for each session. Those that cannot be read now leave the
    /// last ones in use.
    fn fresh_caller(self: &Rc<Self>, server: ControlPlane, first: Caller) -> uplink::CallerSource {
        let (agent, last) = (Rc::clone(self), Rc::new(RefCell::new(Rc::new(first))));
        let tls = &self.settings.tls;
        let has_files = tls.ca_file.is_some() || tls.client.is_some();
        Box::new(move || {
            let (agent, server, last) = (Rc::clone(&agent), server.clone(), Rc::clone(&last));
            Box::pin(async move {
                if has_files {
                    match agent.new_caller(&server).await {
                        Ok(caller) => {
                            agent.shared_state.clear("link.settings");
                            last.replace(Rc::new(caller));
                        }
                        Err(error) => agent.cannot_open_sessions(error),
                    }
                }
                let caller = last.borrow();
                Rc::clone(&caller)
            })
        })
    }

    /// Keeps on disk what the certificates of sessions prove about the time: that their first
    /// moment has been.
    fn certified(&self, recorded: Option<Wall>) -> uplink::SaveCertificateTime {
        let (store, clock) = (self.store.clone(), self.network.clock());
        let recorded = Rc::new(Cell::new(recorded));
        Box::new(move |not_before| {
            // Verification admits nothing that begins later than the time that is believed.
            let time = not_before.min(clock.now());
            if recorded.get().is_some_and(|known| time <= known) {
                return None;
            }
            let (store, recorded) = (store.clone(), Rc::clone(&recorded));
            Some(Box::pin(async move {
                match store.keep_clock(time).await {
                    Ok(()) => recorded.set(Some(time)),
                    Err(failure) => ::log::debug!("the clock record is not on disk: {failure}"),
                }
            }))
        })
    }

    /// Keeps on disk what a registration brought.
    fn keeper(&self, identity: Identity) -> uplink::SaveMembership {
        let (store, identity) = (self.store.clone(), Rc::new(RefCell::new(identity)));
        Box::new(move |membership: Membership| {
            let registration = Registration {
                cluster_id: membership.cluster_id,
                cluster_uuid: Some(membership.cluster_uuid),
                gateway_ws_url: membership.gateway_url,
            };
            let changed = identity.borrow().registered(&registration);
            let store = store.clone();
            if let Some(changed) = &changed {
                *identity.borrow_mut() = changed.clone();
            }
            Box::pin(async move {
                if let Some(changed) = changed {
                    wiring::keep(&store, changed).await;
                }
            })
        })
    }
}

/// Waits for the command to stop, or for the end of all who could give it.
async fn until_stopped(commands: &Receiver<LinkCommand>) {
    while !matches!(commands.recv().await, Ok(LinkCommand::Stop) | Err(_)) {}
}
