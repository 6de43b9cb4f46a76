//! Adoption of a k3s that came from somewhere else: a note that it is managed from now on, and the
//! watch over it. Nothing of its own is changed.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use super::{
    super::{Keeper, journal::Journal, now, system::System},
    NOTE, describe, note_text, refuse,
};
use crate::{
    core::{
        journal::Outcome,
        k3s::{
            self, BINARY, Role,
            adopt::{Mark, OTHERS, Other, Service},
            step::Step,
            texts::Init,
        },
    },
    error::{Error, Result},
    files,
    wire::keeper::{Done, Finding, K3sPlan, Managed, Record},
};

/// Descriptions of containers that are looked at, and the bytes of each.
const CONTAINERS_MAX: usize = 200;
const CONTAINER_BYTES_MAX: usize = 256 * 1024;
const CHANGE: &str = "k3s.adopt";
/// Change by which a node of another name takes the place of the one that is managed.
const RENAMING: &str = "k3s.rename";
/// Places that k3s shares with other programs: nobody knows who made them.
const SHARED: [&str; 4] = [
    "/run/containerd",
    "/run/netns",
    "/usr/libexec/kubernetes",
    "/var/lib/cni",
];

struct Prepared {
    plan: K3sPlan,
    steps: Vec<Step>,
    change: &'static str,
}

impl Keeper {
    /// The plan of an adoption.
    pub fn k3s_adopt_plan(&self, ignored: &[String], program: &str) -> Result<K3sPlan> {
        Ok(self.prepare_adoption(ignored, program)?.plan)
    }

    /// Adopts the k3s of this machine: it is managed and watched from now on, and nothing of it is
    /// restarted or rewritten.
    pub fn k3s_adopt(&self, ignored: &[String], program: &str, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        let prepared = self.prepare_adoption(ignored, program)?;
        if let Some(error) = refuse("k3s cannot be adopted", &prepared.plan.refused) {
            return Err(error);
        }
        let record = Record::new(prepared.change, who, now(), prepared.plan.does);
        self.begin_steps(&journal, record, prepared.steps, Duration::ZERO)
    }

    /// The plan to take an adoption back.
    pub fn k3s_unadopt_plan(&self) -> Result<K3sPlan> {
        self.only_settled()?;
        let record = self.adoption()?;
        Ok(K3sPlan {
            does: "stop managing k3s on this machine; k3s keeps running unchanged".to_owned(),
            steps: describe::undo(&record.acts),
            undo: "sudo pipeops-agent k3s adopt".to_owned(),
            ..K3sPlan::default()
        })
    }

    /// Takes an adoption back: k3s is no longer managed, and goes on as it is.
    pub fn k3s_unadopt(&self, who: &str) -> Result<Done> {
        let adoption = self.adoption()?.id();
        // The note is as the adoption wrote it once these are taken back.
        let records = Journal::open(&self.directory)?.records()?.into_iter().rev();
        let is_done = |record: &Record| record.outcome.as_deref() == Some(Outcome::Done.as_str());
        for record in records.filter(|it| it.check == RENAMING && is_done(it)) {
            self.undo(&record.id(), who)?;
        }
        self.undo(&adoption, who)
    }

    /// The adoption that is in force.
    fn adoption(&self) -> Result<Record> {
        let is_adopted = self.managed()?.is_some_and(|note| note.how == ADOPTED);
        let records = Journal::open(&self.directory)?.records()?;
        let is_it = |record: &&Record| {
            record.check == CHANGE && record.outcome.as_deref() == Some(Outcome::Done.as_str())
        };
        let found = records.iter().rfind(is_it).filter(|_| is_adopted);
        found.cloned().ok_or_else(|| {
            Error::new("there is no adopted k3s on this machine")
                .fix("sudo pipeops-agent k3s status")
        })
    }

    fn prepare_adoption(&self, ignored: &[String], program: &str) -> Result<Prepared> {
        self.system.check_settings()?;
        if let Some(note) = self.managed()? {
            return self.prepare_renaming(ignored, note);
        }
        let others = self.system.other_distributions();
        let init = self.system.init()?;
        let Some((path, service)) = self.system.found_service(init) else {
            return nothing_to_adopt(&others, &self.system.named_services());
        };
        let settings = self.system.k3s_settings();
        let named = service.value("node-name", "K3S_NODE_NAME", &settings);
        let node = self.node_name(named.map(|name| name.to_lowercase()).as_deref())?;
        let data_dir = service.value("data-dir", "K3S_DATA_DIR", &settings);
        let data_dir = data_dir.unwrap_or_else(|| k3s::DATA_DIR.to_owned());
        let version = self.k3s_version().ok_or_else(|| {
            Error::new("k3s cannot be adopted")
                .why(format!("{BINARY} does not say its version"))
                .fix("see whether it runs: k3s --version")
        })?;
        let mut refused: Vec<_> = service.refusal().into_iter().map(finding).collect();
        refused.extend(self.system.unreadable(&service, &settings));
        refused.extend(self.system.lacks_node(&node));
        refused.retain(|finding| !ignored.contains(&finding.id));
        let shared = SHARED.into_iter().filter(|path| self.system.is_there(path));
        let managed = Managed {
            how: ADOPTED.to_owned(),
            data_dir: data_dir.clone(),
            node: node.clone(),
            kept: shared.map(str::to_owned).collect(),
        };
        let mut steps = vec![Step::File {
            path: self.own(NOTE),
            content: note_text(&managed)?,
            mode: files::PRIVATE,
        }];
        if !self.is_watched()? {
            steps.extend(self.watch_steps(program)?);
        }
        let plan = K3sPlan {
            does: format!("manage k3s {version} of this machine from now on"),
            warned: self.doubts(&service, &settings, &node, &others),
            refused,
            manages: vec![
                format!("{BINARY}: `k3s upgrade` replaces it"),
                format!("{path}: upgrades and restores stop and start it"),
                format!("{data_dir}: `k3s backup` copies it, `k3s restore` replaces its datastore"),
                format!("the node {node}: `node cordon` and `node drain`"),
                "its health: root looks at it each minute, starts or restarts it for the faults of docs/faults.md, and backs it up each day; \
                 keeper.allow says which of these it may"
                    .to_owned(),
            ],
            unchanged: self.unchanged(init, &path, &service),
            steps: describe::steps(&steps),
            undo: "sudo pipeops-agent k3s adopt --undo".to_owned(),
            ..K3sPlan::default()
        };
        let change = CHANGE;
        Ok(Prepared {
            plan,
            steps,
            change,
        })
    }

    /// The plan to go on with a node that has another name now.
    fn prepare_renaming(&self, ignored: &[String], managed: Managed) -> Result<Prepared> {
        let node = self.node_name(None)?;
        if node == managed.node {
            return Err(
                Error::new(format!("k3s is managed already: {}", managed.how))
                    .fix("nothing needs to be done"),
            );
        }
        let refused = self.system.lacks_node(&node).into_iter();
        let plan = K3sPlan {
            does: format!("manage the node {node} in place of {}", managed.node),
            refused: refused
                .filter(|finding| !ignored.contains(&finding.id))
                .collect(),
            manages: vec![format!("the node {node}, as {} before", managed.node)],
            undo: "sudo pipeops-agent undo ID".to_owned(),
            ..K3sPlan::default()
        };
        let steps = vec![Step::File {
            path: self.own(NOTE),
            content: note_text(&Managed { node, ..managed })?,
            mode: files::PRIVATE,
        }];
        Ok(Prepared {
            plan: K3sPlan {
                steps: describe::steps(&steps),
                ..plan
            },
            steps,
            change: RENAMING,
        })
    }

    /// Warnings for its owner.
    fn doubts(
        &self,
        service: &Service,
        settings: &[String],
        node: &str,
        others: &[Other],
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut add = |id, what: String, fix: &str| found.push(finding((id, what, fix.to_owned())));
        if !service.arguments().is_empty() {
            add(
                "adopt.arguments",
                format!(
                    "arguments are in its service, which the official script forgets when it is run again: {}",
                    service.arguments().join(" ")
                ),
                "move them to /etc/rancher/k3s/config.yaml when k3s is restarted next",
            );
        }
        let drift = service.drift(settings);
        if !drift.is_empty() {
            add(
                "adopt.drift",
                format!(
                    "the settings differ from the command line, which wins: {}",
                    drift.join(" ")
                ),
                "leave one of the two in place",
            );
        }
        let endpoint = ("datastore-endpoint", "K3S_DATASTORE_ENDPOINT");
        if service.value(endpoint.0, endpoint.1, settings).is_some() {
            add(
                "adopt.datastore",
                "its datastore is another server: `k3s backup`, `restore` and `upgrade` refuse it"
                    .to_owned(),
                "back that server up by its own means",
            );
        }
        let mode = std::fs::metadata(self.system.path(k3s::KUBECONFIG));
        if mode.is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
            add(
                "adopt.kubeconfig",
                format!(
                    "users other than root can read {}, which makes them administrators of the cluster",
                    k3s::KUBECONFIG
                ),
                "set write-kubeconfig-mode: \"0600\" in /etc/rancher/k3s/config.yaml",
            );
        }
        match self.system.node(node) {
            Ok(found) if found.is_ready => {}
            Ok(_) => add(
                "adopt.node",
                format!("the node {node} is not Ready"),
                "sudo pipeops-agent doctor",
            ),
            Err(why) => add("adopt.node", why, "sudo pipeops-agent doctor"),
        }
        for other in others {
            add(
                "adopt.other",
                format!("{} is here, too", other.name),
                &other.connection(),
            );
        }
        found
    }

    /// Files of it that stay as they are, with what is in them.
    fn unchanged(&self, init: Init, path: &str, service: &Service) -> Vec<String> {
        let mut all = vec![format!(
            "{path} with its arguments: {}",
            service.arguments().join(" ")
        )];
        let variables = service.variables();
        if !variables.is_empty() {
            let files = environment(init, service.role).into_iter();
            let files: Vec<_> = files.filter(|path| self.system.is_there(path)).collect();
            all.push(format!(
                "{} with {}",
                files.join(" and "),
                variables.join(", ")
            ));
        }
        let files = self.system.settings_files().into_iter();
        let files = files.chain([k3s::REGISTRIES.to_owned()]);
        let files = files.chain([k3s::KILLALL, Role::Server.uninstall_script()].map(str::to_owned));
        all.extend(files.filter(|path| self.system.is_there(path)));
        all
    }
}

/// The answer where there is no k3s: what is there is named, with the way to connect it.
fn nothing_to_adopt(others: &[Other], named: &[String]) -> Result<Prepared> {
    if let [path, ..] = named {
        return Err(Error::new("k3s cannot be adopted")
            .why(format!("its service has a name of its own: {path}"))
            .fix("install it again as the service k3s, without INSTALL_K3S_NAME: its data stays"));
    }
    if others.is_empty() {
        return Err(Error::new("there is no k3s with a service on this machine")
            .fix("install it: sudo pipeops-agent k3s install"));
    }
    let refused = others.iter().map(|other| {
        finding((
            "adopt.other",
            format!("{} is on this machine, and no k3s", other.name),
            other.connection(),
        ))
    });
    let plan = K3sPlan {
        does: "adopt nothing: only k3s is managed".to_owned(),
        refused: refused.collect(),
        ..K3sPlan::default()
    };
    Ok(Prepared {
        plan,
        steps: Vec::new(),
        change: CHANGE,
    })
}

/// The word of the note for an adopted k3s.
pub(super) const ADOPTED: &str = "adopted";

/// Files of the environment that k3s' own unit and script read, of which the last wins.
fn environment(init: Init, role: Role) -> Vec<String> {
    let name = role.name();
    match init {
        Init::Systemd => vec![
            format!("/etc/default/{name}"),
            format!("/etc/sysconfig/{name}"),
            format!("{UNITS}/{name}.service.env"),
        ],
        Init::OpenRc => vec![format!("/etc/rancher/k3s/{name}.env")],
    }
}

const UNITS: &str = "/etc/systemd/system";
const SCRIPTS: &str = "/etc/init.d";

fn finding((id, what, fix): (&str, String, String)) -> Finding {
    Finding {
        id: id.to_owned(),
        what,
        fix,
    }
}

/// Findings before the removal of a k3s that was not installed from here.
pub(super) fn removal(note: Option<&Managed>) -> Vec<Finding> {
    let is_ours = note.is_some_and(|note| note.how != ADOPTED);
    let found = (!is_ours).then(|| {
        finding((
            "uninstall.foreign",
            "pipeops-agent did not install this k3s: its service, its own settings in /etc/rancher/k3s and its scripts go, too".to_owned(),
            "to keep data and settings: --keep-data; to leave k3s alone: sudo pipeops-agent k3s adopt --undo".to_owned(),
        ))
    });
    found.into_iter().collect()
}

/// Places that the removal of a foreign k3s leaves: other programs may have made them.
pub(super) fn shared() -> Vec<String> {
    SHARED.map(str::to_owned).to_vec()
}

impl System {
    /// Other distributions on this machine, each once.
    pub(super) fn other_distributions(&self) -> Vec<Other> {
        let containers = self.containers();
        let is_here = |other: &Other| match other.mark {
            Mark::Path(path) => self.is_there(path),
            Mark::Label(label) => {
                let label = format!("\"{label}\"");
                containers.iter().any(|text| text.contains(&label))
            }
        };
        let mut found: Vec<Other> = OTHERS.into_iter().filter(is_here).collect();
        found.dedup_by_key(|other| other.name);
        found
    }

    /// Descriptions of Docker's containers.
    fn containers(&self) -> Vec<String> {
        let folders = self.list("/var/lib/docker/containers", "");
        let texts = folders.iter().take(CONTAINERS_MAX).filter_map(|folder| {
            let path = self.path(&format!("{folder}/config.v2.json"));
            let content = files::read(&path, CONTAINER_BYTES_MAX).ok()?;
            String::from_utf8(content).ok()
        });
        texts.collect()
    }

    /// The service of a k3s, a server before a worker, and its path.
    pub(super) fn found_service(&self, init: Init) -> Option<(String, Service)> {
        Role::ALL.into_iter().find_map(|role| {
            let path = match init {
                Init::Systemd => role.unit_path(),
                Init::OpenRc => role.init_script(),
            };
            let files = environment(init, role).into_iter();
            let texts: Vec<_> = files.filter_map(|path| self.text(&path)).collect();
            let service = Service::read(init, &self.text(path)?, &texts.join("\n"))?;
            Some((path.to_owned(), service))
        })
    }

    /// Services of k3s that have another name than its own, which its script gives them where
    /// somebody sets `INSTALL_K3S_NAME`.
    pub(in super::super) fn named_services(&self) -> Vec<String> {
        let units = self.list(UNITS, ".service").into_iter();
        let units = units.map(|path| (Init::Systemd, path));
        let scripts = self.list(SCRIPTS, "").into_iter();
        let all = units.chain(scripts.map(|path| (Init::OpenRc, path)));
        let is_named = |(init, path): &(Init, String)| {
            let name = path.rsplit('/').next().unwrap_or_default();
            let is_usual = Role::ALL
                .iter()
                .any(|role| path == role.unit_path() || path == role.init_script());
            // One of somebody's own that calls k3s once in a while is none.
            let runs_k3s = || {
                let service = Service::read(*init, &self.text(path)?, "")?;
                (service.program == BINARY).then_some(())
            };
            name.starts_with("k3s-") && !is_usual && runs_k3s().is_some()
        };
        all.filter(is_named).map(|(_, path)| path).collect()
    }

    /// Finding that the API has no such node: the watch would take it for one that was deleted, and
    /// restart k3s.
    fn lacks_node(&self, node: &str) -> Option<Finding> {
        self.is_unknown(node).then(|| {
            finding((
                "adopt.no-node",
                format!("the API answers, and has no node {node}"),
                "see which it has: sudo /usr/local/bin/k3s kubectl get nodes; name it in /etc/rancher/k3s/config.yaml: node-name: NAME; a server without a node (disable-agent) cannot be managed".to_owned(),
            ))
        })
    }

    /// Findings about a service whose settings are elsewhere than they are read here, or that has
    /// no API of its own.
    fn unreadable(&self, service: &Service, settings: &[String]) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut add = |id, what: String, fix: &str| found.push(finding((id, what, fix.to_owned())));
        let file = service.value("config", "K3S_CONFIG_FILE", &[]);
        if let Some(file) = file.filter(|file| file != k3s::CONFIG) {
            add(
                "adopt.config",
                format!("it reads its settings from {file}"),
                "move them to /etc/rancher/k3s/config.yaml",
            );
        }
        let folder = format!("{UNITS}/{}.service.d", service.role.name());
        let overrides = |path: &String| {
            let text = self.text(path).unwrap_or_default();
            let moves_it = |line: &str| {
                let line = line.trim_start();
                // A proxy, for one, changes nothing of what is read here.
                let is_ours = line.starts_with("Environment=") && line.contains("K3S_");
                is_ours || line.starts_with("ExecStart=") || line.starts_with("EnvironmentFile=")
            };
            text.lines().any(moves_it)
        };
        if let Some(path) = self.list(&folder, ".conf").into_iter().find(overrides) {
            add(
                "adopt.drop-in",
                format!("{path} changes the command or the environment of its service"),
                "move what it sets to /etc/rancher/k3s/config.yaml, and a file of its environment to /etc/systemd/system/k3s.service.env",
            );
        }
        let worker = Role::Worker;
        let others = [worker.unit_path(), worker.init_script()].into_iter();
        let mut others = others.filter(|path| service.role == Role::Server && self.is_there(path));
        if let Some(path) = others.next() {
            add(
                "adopt.roles",
                format!("it is a server, and {path} is the service of a worker"),
                "stop, disable and delete the service that is left over; do not run its uninstall script, which would remove k3s",
            );
        }
        let off = "disable-apiserver";
        if k3s::is_on(settings, off) || service.has(off) {
            add(
                "adopt.no-api",
                "it is a server without an API server, which cannot be asked for its node"
                    .to_owned(),
                "adopt a server that has one",
            );
        }
        found
    }
}
