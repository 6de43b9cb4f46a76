//! Everything that the plane's one thread knows, shared by its tasks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use smol::{LocalExecutor, Task};

use crate::exchange::Past;
use crate::net::{Ending, Flow, Gate};
use crate::options::{Behaviour, Options};
use crate::record::{Record, Role};
use crate::records::Records;
use crate::session::Session;
use crate::state::{self, Access, Cluster, Failure, State};

/// Where the plane listens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) tls: Vec<SocketAddr>,
    pub(crate) gateway: Option<SocketAddr>,
    pub(crate) plaintext: Option<SocketAddr>,
}

/// The state of the plane's thread.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) addresses: Addresses,
    pub(crate) state: RefCell<State>,
    pub(crate) behaviour: RefCell<Behaviour>,
    pub(crate) record: Record,
    /// What agents delivered.
    pub(crate) records: RefCell<Records>,
    pub(crate) past: Past,
    pub(crate) tasks: Tasks,
    pub(crate) sessions: RefCell<BTreeMap<u64, Rc<Session>>>,
    pub(crate) gates: RefCell<BTreeMap<u64, Gate>>,
    prefix: String,
    next_id: Cell<u64>,
}

impl World {
    pub(crate) fn new(
        options: Options,
        addresses: Addresses,
        (state, records): (State, Records),
        behaviour: Behaviour,
        executor: Rc<LocalExecutor<'static>>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            record: Record::new(options.record_frames_max),
            options,
            addresses,
            state: RefCell::new(state),
            records: RefCell::new(records),
            behaviour: RefCell::new(behaviour),
            past: Past::default(),
            tasks: Tasks::new(executor),
            sessions: RefCell::default(),
            gates: RefCell::default(),
            prefix: state::random_prefix()?,
            next_id: Cell::new(1),
        })
    }

    /// A number that no other thing of this start has.
    pub(crate) fn number(&self) -> u64 {
        let number = self.next_id.get();
        self.next_id.set(number.wrapping_add(1));
        number
    }

    /// A request id that no other start used either.
    pub(crate) fn request_id(&self, what: &str) -> String {
        format!("{what}-{}-{}", self.prefix, self.number())
    }

    /// A copy of one part of the behaviour.
    pub(crate) fn behaviour<T>(&self, part: impl FnOnce(&Behaviour) -> T) -> T {
        part(&self.behaviour.borrow())
    }

    /// The newest session that can carry requests for a cluster (any, without an id).
    pub(crate) fn session(&self, cluster_id: Option<&str>) -> Option<Rc<Session>> {
        self.sessions
            .borrow()
            .values()
            .rev()
            .find(|session| session.carries(cluster_id))
            .map(Rc::clone)
    }

    /// The newest session of a kind, ready or not.
    pub(crate) fn newest(&self, role: Option<Role>) -> Option<Rc<Session>> {
        self.sessions
            .borrow()
            .values()
            .rev()
            .find(|session| role.is_none_or(|role| session.role == role))
            .map(Rc::clone)
    }

    /// `https://host:port` of the first listener.
    pub(crate) fn api_url(&self) -> String {
        match (self.addresses.tls.first(), self.addresses.plaintext) {
            (Some(address), _) => format!("https://{address}"),
            (None, Some(address)) => format!("http://{address}"),
            (None, None) => String::new(),
        }
    }

    /// The gateway's address for an agent that came with or without TLS.
    pub(crate) fn gateway_url(&self, security: Security) -> String {
        let first = || self.addresses.tls.first().copied();
        let tls = self.addresses.gateway.or_else(first);
        match (security, self.addresses.plaintext, tls) {
            (Security::Plaintext, Some(address), _) | (Security::Tls, Some(address), None) => {
                format!("ws://{address}/ws")
            }
            (_, _, Some(address)) => format!("wss://{address}/ws"),
            (_, None, None) => String::new(),
        }
    }

    /// Where kubectl finds a cluster.
    pub(crate) fn cluster_url(&self, cluster_id: &str) -> String {
        format!(
            "{}/api/v1/clusters/agent/{cluster_id}/proxy",
            self.api_url()
        )
    }

    /// Takes a registration into the state, and writes what hangs on it.
    pub(crate) fn register(&self, registering: Cluster) -> Result<Cluster, Failure> {
        let mut state = self.state.borrow_mut();
        let cluster = state.register(registering)?;
        if let Some(dir) = &self.options.state_dir {
            state.save(dir)?;
            let text = state::kubeconfig(
                &self.cluster_url(&cluster.cluster_id),
                &state.ca_pem,
                &state.user_token,
                &cluster.name,
            );
            let own = dir.join(format!(
                "kubeconfig-{}.yaml",
                file_name(&cluster.cluster_id)
            ));
            state::replace(&own, text.as_bytes(), Access::Owner)?;
            // The newest one under a fixed name, so that one cluster needs no looking up.
            let newest = dir.join("kubeconfig.yaml");
            state::replace(&newest, text.as_bytes(), Access::Owner)?;
            log::info!(
                "kubeconfig of {} written to {}",
                cluster.name,
                own.display()
            );
        }
        Ok(cluster)
    }

    /// The known cluster of an id.
    pub(crate) fn cluster(&self, cluster_id: &str) -> Option<Cluster> {
        let state = self.state.borrow();
        let mut clusters = state.clusters.iter();
        clusters
            .find(|cluster| cluster.cluster_id == cluster_id)
            .cloned()
    }

    /// Cuts every connection.
    pub(crate) fn cut_all(&self, ending: Ending) {
        for gate in self.gates.borrow().values() {
            gate.set(Flow::Cut(ending));
        }
        for session in self.sessions.borrow().values() {
            session.gate.set(Flow::Cut(ending));
        }
    }
}

/// An id is foreign text: what could leave the directory becomes a dash.
fn file_name(id: &str) -> String {
    id.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(64)
        .collect()
}

/// True if a connection has TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    Tls,
    Plaintext,
}

/// Owns the tasks that have no other owner; all end with it.
#[derive(Debug)]
pub(crate) struct Tasks {
    executor: Rc<LocalExecutor<'static>>,
    running: RefCell<BTreeMap<u64, Task<()>>>,
    ended: Rc<RefCell<Vec<u64>>>,
    next: Cell<u64>,
}

impl Tasks {
    fn new(executor: Rc<LocalExecutor<'static>>) -> Self {
        Self {
            executor,
            running: RefCell::default(),
            ended: Rc::default(),
            next: Cell::new(0),
        }
    }

    /// Starts a task that ends by itself or with the plane.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let ended = Rc::clone(&self.ended);
        let task = self.executor.spawn(async move {
            future.await;
            // A task cannot drop its own handle while it runs: the next spawn does.
            ended.borrow_mut().push(number);
        });
        let mut running = self.running.borrow_mut();
        for number in self.ended.borrow_mut().drain(..) {
            running.remove(&number);
        }
        running.insert(number, task);
    }

    /// Starts a task that ends when the caller drops it.
    pub(crate) fn own<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.executor.spawn(future)
    }

    /// Tasks that run or have just ended.
    pub(crate) fn count(&self) -> usize {
        self.running.borrow().len()
    }

    /// Ends all tasks.
    pub(crate) fn clear(&self) {
        drop(self.running.take());
    }
}
