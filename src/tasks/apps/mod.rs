//! Apps: what is deployed here, whether it works, why not, and back to what worked.
//!
//! One path for every change: read and judge the manifests, compare with the inventory, try
//! everything, write the intent, and only then write to the cluster.
//!
//! | module | contains |
//! |---|---|
//! | [`accept`] | a request becomes a change: apply, roll back, remove |
//! | [`leadership`] | the agent that changes apps: it goes on with what is unfinished; others wait |
//! | [`operate`] | requests in a few words: deploy, restart, scale, pause |
//! | [`requester`] | who asks, and whose apps they may change |
//! | [`cancel`] | the end of a change that nobody wants any more |
//! | [`charts`] | whose charts are deployed, and where |
//! | [`command`] | the same requests as commands of the control plane |
//! | [`custom`] | what custom resources are called in the API |
//! | [`fail_points`] | ends of the process that tests ask for |
//! | [`active`], [`slots`] | changes under way, and how far they are; those that wait for their turn |
//! | [`change`] | one change, step by step |
//! | [`drift`] | a good revision is kept as it was deployed |
//! | [`describe`], [`inspect`] | answers: list, verdict, history; Pods, events, differences |
//! | [`cluster`], [`observe`], [`watched`] | the cluster under [`account`]: single objects, one look, a watch |
//! | [`source`], [`folder`] | apps that come from a Git repository, or from a folder of root's |
//! | [`suggest`] | requests and limits that fit the stored usage |
//! | [`stage`] | namespaces and definitions that root has created before an app |
//! | [`pins`] | images that stay on this node |
//! | [`ledger`] | records and revisions |
//! | [`verdict`] | meaning of errors and looks for an app |

mod accept;
pub mod account;
mod active;
mod cancel;
mod change;
mod charts;
pub mod cluster;
mod command;
pub mod custom;
mod describe;
mod drift;
mod fail_points;
mod folder;
mod inspect;
mod leadership;
pub mod ledger;
pub mod observe;
mod operate;
mod pins;
mod redact;
mod requester;
mod slots;
mod source;
mod stage;
mod suggest;
mod verdict;
mod watched;

use std::{
    cell::{Cell, RefCell},
    path::PathBuf,
    rc::Rc,
    time::Duration,
};

use litemap::LiteMap;

use self::{
    account::Account,
    active::{ActiveChange, AppLock},
    cluster::Cluster,
    drift::Drift,
    ledger::{AppRecord, Ledger, api_error},
    pins::Pins,
    source::Sources,
};
pub use self::{inspect::Values, operate::Automation, pins::PinImages, requester::Requester};
use super::{audit::AuditWriter, lease_gate::LeaseGate, state::SharedState};
use crate::{
    core::{
        apps::{App, GitHost, Owner, Problem, is_name},
        time::Now,
    },
    error::{Error, Result},
    executor::Executor,
    host::git::Git,
    kube::Client,
    store::{self},
};

/// The apps of this cluster.
pub struct Apps {
    client: Client,
    accounts: Accounts,
    ledger: Ledger,
    store: store::Handle,
    audit: AuditWriter,
    executor: Rc<Executor>,
    shared_state: Rc<SharedState>,
    lease_gate: Rc<LeaseGate>,
    /// True once it is known what is under way.
    is_ready: Cell<bool>,
    sources: Sources,
    drift: Drift,
    pins: Pins,
    now: fn() -> Now,
    has_ended: Box<dyn Fn()>,
    /// Changes under way, by app.
    active_changes: RefCell<LiteMap<String, ActiveChange>>,
    /// Apps whose next change is being accepted.
    app_locks: RefCell<LiteMap<String, AppLock>>,
    /// Records as they were read or written last, for the time when the API server is away.
    known: RefCell<LiteMap<String, App>>,
}

impl std::fmt::Debug for Apps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Apps")
    }
}

/// Accounts under which apps are changed.
#[derive(Debug)]
pub struct Accounts {
    /// For those of this machine.
    pub machine: Account,
    /// For those of the control plane.
    pub control_plane: Account,
}

/// Dependencies of [`Apps`].
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub struct AppsDependencies {
    /// Connection to the cluster.
    pub client: Client,
    /// Accounts that deploy.
    pub accounts: Accounts,
    /// Journal.
    pub store: store::Handle,
    /// Audit.
    pub audit: AuditWriter,
    /// Runs the changes.
    pub executor: Rc<Executor>,
    /// Conditions.
    pub shared_state: Rc<SharedState>,
    /// Permission to change apps.
    pub lease_gate: Rc<LeaseGate>,
    /// Fetches from repositories.
    pub git: Git,
    /// Time between two polls of a repository.
    pub interval: Duration,
    /// Folder whose files and sub-folders are apps.
    pub folder: Option<PathBuf>,
    /// Hosts of repositories from which the control plane may deploy.
    pub git_hosts: Vec<GitHost>,
    /// Pins images on this node.
    pub pin: PinImages,
    /// Both clocks.
    pub now: fn() -> Now,
    /// Hears that a change has ended, so that its outcome is on its way.
    pub ended: Box<dyn Fn()>,
}

impl Apps {
    /// The apps of a cluster. Asks nothing yet.
    pub fn new(dependencies: AppsDependencies) -> Self {
        let ledger = Ledger::new(
            dependencies.client.clone(),
            Rc::clone(&dependencies.lease_gate),
            dependencies.accounts.machine.own_namespace(),
        );
        Self {
            client: dependencies.client,
            accounts: dependencies.accounts,
            ledger,
            store: dependencies.store,
            audit: dependencies.audit,
            executor: dependencies.executor,
            shared_state: dependencies.shared_state,
            lease_gate: dependencies.lease_gate,
            is_ready: Cell::new(false),
            sources: Sources::new(
                dependencies.git,
                (dependencies.interval, dependencies.git_hosts),
                dependencies.folder,
            ),
            drift: Drift::default(),
            pins: Pins::new(dependencies.pin),
            now: dependencies.now,
            has_ended: dependencies.ended,
            active_changes: RefCell::default(),
            app_locks: RefCell::default(),
            known: RefCell::default(),
        }
    }

    fn now(&self) -> Now {
        (self.now)()
    }

    const fn store(&self) -> &store::Handle {
        &self.store
    }

    const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    const fn account(&self, owner: Owner) -> &Account {
        match owner {
            Owner::Machine => &self.accounts.machine,
            Owner::ControlPlane => &self.accounts.control_plane,
        }
    }

    /// The cluster, as the owner of an app may change it.
    fn cluster(&self, owner: Owner) -> Cluster<'_> {
        Cluster {
            client: &self.client,
            account: self.account(owner),
            lease_gate: &self.lease_gate,
        }
    }

    async fn record(&self, app: &str) -> Result<Option<AppRecord>> {
        if !is_name(app) {
            return Ok(None);
        }
        let found = self.ledger.read(app).await.map_err(api_error)?;
        if let Some(read) = &found {
            self.remember(&read.app);
        }
        Ok(found)
    }

    async fn require_record(&self, app: &str) -> Result<AppRecord> {
        self.record(app).await?.ok_or_else(|| self.unknown(app))
    }

    /// There is no such app; or not yet, because what its source has was refused.
    fn unknown(&self, app: &str) -> Error {
        match self.sources.failure(app) {
            Some(error) => error.within(format!("there is no app {app} yet")),
            None => Error::new(format!("there is no app {app}")).fix("pipeops-agent apps list"),
        }
    }

    fn remember(&self, app: &App) {
        self.known
            .borrow_mut()
            .insert(app.name.clone(), app.clone());
    }

    fn forget(&self, app: &str) {
        self.forget_drift(app);
        self.known.borrow_mut().remove(app);
        self.clear_failure(app);
    }
}

/// Refuses what cannot be the name of an app.
fn check_name(app: &str) -> Result<()> {
    if is_name(app) {
        return Ok(());
    }
    let what = format!("{app:?} cannot be the name of an app");
    Err(Error::new(what).fix("use up to 40 lowercase letters, digits and dashes"))
}

fn problem_error(problem: Problem) -> Error {
    Error::new(problem.what).why(problem.why).fix(problem.fix)
}
