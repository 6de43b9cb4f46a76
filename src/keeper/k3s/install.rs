//! Installation of k3s, and what speaks against it on this machine.

use std::time::Duration;

use super::{
    super::{Keeper, now, system::System},
    NOTE, Program, Source, describe,
    inspect::{self, FindingSet, Ingress, first_paths},
    join::{self, Join},
    note_text, refuse,
};
use crate::{
    core::{
        k3s::{
            self, BINARY, Role, Version, data, plan,
            proxy::{Place, Proxy, is_destination},
            step::{self, Staged, Step},
            texts::{self, DropIn, InstallOptions},
        },
        time::Wall,
        url::Url,
    },
    error::{Error, Result},
    host::{facts, network},
    wire::keeper::{Done, Finding, K3sPlan, Managed, Record},
};

/// A wanted installation.
#[derive(Clone, Debug)]
pub struct Install {
    /// The program.
    pub binary: Program,
    /// Archives of images.
    pub images: Vec<Source>,
    /// Version that the program must have; `None`: whichever it is.
    pub version: Option<Version>,
    /// Settings.
    pub options: InstallOptions,
    /// Content of `registries.yaml`.
    pub registries: Option<String>,
    /// Findings to ignore (`--ignore`).
    pub ignored: Vec<String>,
    /// True if the cluster in the data directory is to go on.
    pub reuses_data: bool,
    /// Time for the node to become Ready.
    pub within: Duration,
    /// The server to join as a worker; `None`: it becomes a server itself.
    pub join: Option<Join>,
    /// Proxy of k3s itself.
    pub proxy: Option<Proxy>,
    /// True if the agent gets a credential, where systemd can renew it.
    pub connects: bool,
    /// Path of this program.
    pub program: String,
    /// Date of this program: the clock is wrong where it is earlier.
    pub built: Wall,
}

impl Keeper {
    /// The plan of an installation.
    pub fn k3s_install_plan(&self, wanted: &Install) -> Result<K3sPlan> {
        let _lock = self.open()?;
        self.only_settled()?;
        let prepared = self.prepare(wanted).inspect_err(|_| self.unstage())?;
        self.unstage();
        let undo = wanted.join.as_ref().map_or(UNDO, |_| join::UNDO);
        Ok(Self::shown(&prepared, undo))
    }

    /// Installs k3s, and waits until its node is Ready. What fails is undone.
    pub fn k3s_install(&self, wanted: &Install, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        let prepared = self.prepare(wanted).inspect_err(|_| self.unstage())?;
        let (cannot, check, opposite) = match wanted.join {
            None => ("k3s cannot be installed here", "k3s.install", UNDO),
            Some(_) => ("this machine cannot join", "k3s.join", join::UNDO),
        };
        if let Some(error) = refuse(cannot, &prepared.findings.refused) {
            self.unstage();
            return Err(error);
        }
        let record = Record {
            opposite: Some(opposite.to_owned()),
            ..Record::new(check, who, now(), prepared.does)
        };
        let done = self.begin_steps(&journal, record, prepared.steps, wanted.within);
        self.unstage();
        done
    }

    /// The data directory of an installation, where nothing is in its way.
    pub(super) fn place(&self, wanted: &Install) -> Result<String> {
        check_words(&wanted.options)?;
        self.system.check_settings()?;
        let services = Role::ALL.map(|role| [role.unit_path(), role.init_script()]);
        let mut services = services.iter().flatten();
        if self.system.is_there(BINARY) || services.any(|path| self.system.is_there(path)) {
            return Err(Error::new("k3s is on this machine already")
                .fix("inspect it: sudo pipeops-agent k3s status; or remove it: sudo pipeops-agent k3s uninstall"));
        }
        let data_dir = texts::data_dir(&wanted.options, &self.system.k3s_settings());
        check_data_dir(&data_dir)?;
        if self.system.is_there(&format!("{data_dir}/server/db")) && !wanted.reuses_data {
            return Err(Error::new(format!("{data_dir} has the data of a cluster"))
                .fix("go on with that cluster: --reuse-data; or move it away; or choose another directory: --data-dir DIR"));
        }
        Ok(data_dir)
    }

    /// Copies what is to be installed into a place of root's, checks it there, and makes the plan.
    pub(super) fn prepare(&self, wanted: &Install) -> Result<Prepared> {
        let init = self.system.init()?;
        let data_dir = self.place(wanted)?;
        let others = self.system.others(wanted, &data_dir)?;
        let node = self.node_name(wanted.options.node_name.as_deref())?;
        let mut found = self
            .system
            .inspect(&data_dir, &wanted.ignored, wanted.built);
        found.refused.extend(others);
        let (binary, version) = self.stage_binary(&wanted.binary, wanted.version)?;
        let mut images = Vec::new();
        for image in &wanted.images {
            images.push((image.name.clone(), self.stage(image, 0o600)?));
        }
        found
            .refused
            .extend(self.system.refuses(version, &data_dir, &wanted.ignored));
        found
            .refused
            .extend(self.system.etcd_on_card(wanted, &data_dir));
        let token = match &wanted.join {
            None => None,
            Some(join) => {
                self.doubt(join, &node, version, &wanted.ignored, &mut found);
                Some(self.stage_token(join)?)
            }
        };
        let memory =
            facts::memory(self.system.root()).map_or(u64::MAX, |memory| memory.total_bytes);
        let drop_in = texts::drop_in(&wanted.options, &self.system.user_settings(), memory);
        if !drop_in.left_out.is_empty() {
            found.warned.push(inspect::small_memory(memory, &drop_in));
        }
        let proxy = self.stage_proxy(wanted, (&node, &drop_in.content), &mut found)?;
        found.judge_web_ports(ingress(wanted, &drop_in, &self.system.user_settings()));
        let protected = self.system.protected(wanted, init);
        found.warned.extend(inspect::protected(&protected));
        let public = self.system.is_public(&wanted.options, &drop_in);
        found.warned.extend(public);
        let is_there = |path: &str| self.system.is_there(path);
        let managed = Managed {
            how: "installed".to_owned(),
            data_dir: data_dir.clone(),
            node: node.clone(),
            kept: self.system.kept(wanted),
        };
        let parts = plan::Install {
            init,
            role: wanted.options.role(),
            token,
            proxy,
            binary,
            version,
            images,
            data_dir: data_dir.clone(),
            node: node.clone(),
            drop_in,
            registries: wanted.registries.clone(),
            program: wanted.program.clone(),
            connects: wanted.connects,
            protected,
            note: (self.own(NOTE), note_text(&managed)?),
        };
        Ok(Prepared {
            does: wanted.join.as_ref().map_or_else(
                || format!("install k3s {version} with its data in {data_dir}"),
                |join| join.sentence(&node, version, &data_dir),
            ),
            steps: plan::install(&parts, &is_there),
            findings: found,
        })
    }

    pub(super) fn shown(prepared: &Prepared, undo: &str) -> K3sPlan {
        K3sPlan {
            does: prepared.does.clone(),
            refused: prepared.findings.refused.clone(),
            warned: prepared.findings.warned.clone(),
            steps: describe::steps(&prepared.steps),
            bytes: step::bytes(&prepared.steps),
            undo: format!("{undo}; a failure on the way is undone automatically"),
            ..K3sPlan::default()
        }
    }

    /// The environment with the proxy of k3s; what is to be known of it becomes a finding.
    pub(super) fn stage_proxy(
        &self,
        wanted: &Install,
        (node, drop_in): (&str, &str),
        findings: &mut FindingSet,
    ) -> Result<Option<Staged>> {
        let Some(proxy) = &wanted.proxy else {
            return Ok(None);
        };
        let mut settings = self.system.user_settings();
        settings.push(drop_in.to_owned());
        let addresses = network::all_addresses(self.system.root()).unwrap_or_default();
        let server = wanted.options.server.as_deref();
        let server = server.and_then(|server| Url::parse(server).ok());
        let direct = proxy.direct(Place {
            settings: &settings,
            addresses: &addresses,
            node,
            server: server.as_ref().map(|server| server.host.as_str()),
        });
        if let Some(wrong) = direct.iter().find(|it| !is_destination(it)) {
            return Err(
                Error::new(format!("{wrong:?} cannot be reached without the proxy")).fix(
                    "name hosts, .domains, addresses and networks: --no-proxy .lan,192.0.2.0/24",
                ),
            );
        }
        let staged = self.stage_text("proxy", proxy.environment(&direct).reveal())?;
        findings.warned.push(Finding {
            id: "k3s.proxy".to_owned(),
            what: format!(
                "k3s reaches the network by the proxy {}, and without it {}",
                proxy.shown(),
                direct.join(", ")
            ),
            fix: "another proxy: --proxy URL; none: --proxy off; more without it: --no-proxy LIST"
                .to_owned(),
        });
        Ok(Some(staged))
    }
}

/// The way back from an installation.
pub(super) const UNDO: &str = "sudo pipeops-agent k3s uninstall";

/// Finding that a data directory has files of others.
pub(super) const MIXED: &str = "disk.mixed";

pub(super) struct Prepared {
    does: String,
    steps: Vec<Step>,
    findings: FindingSet,
}

/// The ingress that an installation brings.
pub(super) fn ingress(wanted: &Install, drop_in: &DropIn, user: &[String]) -> Ingress {
    let is_ingress = |name: &str| k3s::INGRESS.contains(&name.trim());
    let mut disabled = wanted.options.disable.iter().flat_map(|all| all.split(','));
    // "traefik (about 60 MB)"
    let names = drop_in.left_out.iter();
    let mut left_out = names.filter_map(|part| part.split(' ').next());
    let is_set = user.iter().any(|text| k3s::leaves_ingress_out(text));
    if disabled.any(is_ingress) || left_out.any(is_ingress) || is_set {
        Ingress::None
    } else if wanted.options.role() == Role::Worker {
        Ingress::OfServer
    } else {
        Ingress::Here
    }
}

/// Refuses a data directory, of the options or of the settings, that would mean something else in a
/// script or a unit.
pub(super) fn check_data_dir(path: &str) -> Result<()> {
    // With a slash at its end it is the same one.
    let plain = path.strip_suffix('/').unwrap_or(path);
    let is_plain = plain.starts_with('/')
        && plain.len() > 1
        && !plain.ends_with('/')
        && !plain.contains("//")
        && plain.split('/').all(|part| part != ".." && part != ".")
        && plain
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if is_plain {
        return Ok(());
    }
    Err(Error::new(format!("{path:?} cannot be the data directory"))
        .why("it must be an absolute path of letters, digits, dots, dashes and underscores")
        .fix("choose another one, or mount the disk at such a path"))
}

/// Refuses what would mean something else in a script, a unit or a file of settings.
pub(super) fn check_words(options: &InstallOptions) -> Result<()> {
    let words = [&options.node_ip, &options.node_name].into_iter().flatten();
    let words = words
        .chain(&options.node_labels)
        .chain(&options.tls_san)
        .chain(&options.disable);
    let is_word =
        |word: &&String| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    match words.into_iter().find(|word| !is_word(word)) {
        Some(word) => Err(Error::new(format!("{word:?} is not a single word"))),
        None => Ok(()),
    }
}

impl System {
    /// Finding that the data directory has files of others, with which k3s would mix its own.
    pub(super) fn others(&self, wanted: &Install, data_dir: &str) -> Result<Option<Finding>> {
        if wanted.reuses_data {
            return Ok(None);
        }
        let fix = format!("give k3s its own directory: --data-dir {data_dir}/k3s");
        if let Some(path) = data::taken(data_dir, &|folder| self.list(folder, "")) {
            return Err(
                Error::new(format!("{path} has files that k3s did not make"))
                    .why("k3s would put its own there, and a removal of k3s would take both")
                    .fix(fix),
            );
        }
        let others = self.data_entries(data_dir).others;
        let is_ignored = wanted.ignored.iter().any(|id| id == MIXED);
        Ok((!others.is_empty() && !is_ignored).then(|| Finding {
            id: MIXED.to_owned(),
            what: format!("{data_dir} has files of others: {}", first_paths(&others)),
            fix,
        }))
    }

    /// Places of k3s that are there before it; what an earlier one left with its data is k3s' own.
    pub(super) fn kept(&self, wanted: &Install) -> Vec<String> {
        let is_earlier = |path: &str| wanted.reuses_data && path.starts_with("/etc/rancher/");
        let there = k3s::MADE
            .into_iter()
            .filter(|path| self.is_there(path) && !is_earlier(path));
        let folder = "/etc/rancher/k3s/config.yaml.d";
        let registries = wanted.registries.is_none() && !wanted.reuses_data;
        let settings = [k3s::CONFIG.to_owned()]
            .into_iter()
            .chain(registries.then(|| k3s::REGISTRIES.to_owned()))
            .chain(self.list(folder, ""));
        let settings = settings.filter(|path| path != k3s::DROP_IN && self.is_there(path));
        there.map(str::to_owned).chain(settings).collect()
    }
}
