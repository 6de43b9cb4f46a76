//! k3s on this machine: installation, state and removal, as changes of the keeper's journal.

mod acts;
mod adopt;
mod archive;
mod backup;
mod connect;
mod datastore;
mod describe;
mod handover;
mod images;
mod inspect;
mod join;
mod kubeconfig;
mod leave;
mod node;
mod pins;
mod ready;
mod restore;
mod servers;
mod shared;
mod status;
mod tree;
mod upgrade;
mod watch;

use std::{io::Read as _, path::PathBuf, time::Duration};

use self::acts::COPY_BYTES_MAX;
use self::inspect::{FindingSet, Ingress};
pub(super) use self::restore::guards;
pub use self::{
    backup::{Backup, Target},
    connect::Connect,
    join::{Invitation, InviteRequest, Join},
    kubeconfig::View,
    leave::Leave,
    node::{Maintenance, Node},
    restore::Restore,
    upgrade::Upgrade,
    watch::{Repaired, WatchOptions},
};
use super::{Keeper, end, journal::LockedJournal, now, system::System};
use crate::{
    core::{
        journal::Outcome,
        k3s::{
            self, BINARY, Role, Version, data,
            plan::{self, Keep},
            proxy::{Place, Proxy, is_destination},
            step::{Extent, Staged, Step, When},
            texts::{self, DropIn, Init, InstallOptions},
        },
        time::Wall,
        update::signed::remembered,
        url::Url,
    },
    error::{Error, Result},
    files,
    host::{
        exec::{self, Limits},
        facts, network,
    },
    wire::keeper::{Act, Done, Earlier, Finding, IndexNote, K3sPlan, Managed, Record},
};

/// A file to install, and what it must hash to.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path, which anybody may have written: it is copied before it is checked.
    pub path: PathBuf,
    /// SHA-256, in hexadecimal.
    pub sha256: String,
    /// Name that it gets.
    pub name: String,
}

/// The program of a release.
#[derive(Clone, Debug)]
pub enum Program {
    /// Its file is on this machine.
    Here(Source),
    /// A file that is fetched later: enough for a plan.
    Promised {
        version: Version,
        /// SHA-256, in hexadecimal.
        sha256: String,
        /// Length; 0 if nobody knows it yet.
        bytes: u64,
    },
}

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

/// A wanted removal.
#[derive(Clone, Debug)]
pub struct Uninstall {
    /// True if data and settings stay.
    pub keeps_data: bool,
    /// True if a k3s goes, too, that was not installed by this program.
    pub takes_found: bool,
    /// Path of this program.
    pub program: String,
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

    /// The plan of a removal.
    pub fn k3s_uninstall_plan(&self, wanted: &Uninstall) -> Result<K3sPlan> {
        let removal = self.removal(wanted)?;
        self.removal_plan(wanted, &removal)
    }

    fn removal_plan(&self, wanted: &Uninstall, removal: &plan::Uninstall) -> Result<K3sPlan> {
        let is_there = |path: &str| self.system.is_there(path);
        let mut trees = plan::trees(removal, &is_there);
        trees.extend(removal.links.iter().cloned());
        let bytes = trees.iter().map(|path| self.system.bytes_of(path)).sum();
        Ok(K3sPlan {
            does: removal_sentence(wanted),
            warned: {
                let mut warned = adopt::removal(self.managed()?.as_ref());
                warned.extend(self.abandoned(removal));
                warned.extend(self.system.stays(removal));
                warned.extend(self.system.left_to_others(removal));
                warned
            },
            steps: describe::steps(&plan::uninstall(removal, &is_there)),
            bytes,
            undo: if removal.role == Role::Worker {
                "there is none: join again with a new token of the server".to_owned()
            } else if wanted.keeps_data {
                format!(
                    "install it again over the data in {}: sudo pipeops-agent k3s install --reuse-data",
                    removal.data_dir
                )
            } else {
                "there is none: the cluster and its data are gone then".to_owned()
            },
            ..K3sPlan::default()
        })
    }

    /// Removes k3s. It may be repeated until nothing is left.
    pub fn k3s_uninstall(&self, wanted: &Uninstall, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        let removal = self.removal(wanted)?;
        let record = Record {
            is_one_way: true,
            ..Record::new("k3s.uninstall", who, now(), removal_sentence(wanted))
        };
        self.remove_k3s(&journal, record, &removal)
    }

    fn remove_k3s(
        &self,
        journal: &LockedJournal,
        record: Record,
        removal: &plan::Uninstall,
    ) -> Result<Done> {
        let steps = plan::uninstall(removal, &|path| self.system.is_there(path));
        for left in self
            .system
            .stays(removal)
            .iter()
            .chain(&self.system.left_to_others(removal))
        {
            self.system.tell(&left.what);
        }
        let done = self.begin_steps(journal, record, steps, Duration::ZERO)?;
        // What an installation did is no longer in force.
        for mut earlier in journal.records()? {
            if earlier.check.starts_with("k3s.")
                && earlier.outcome.as_deref() == Some(Outcome::Done.as_str())
                && done.outcome == Outcome::Done.as_str()
                && Some(earlier.id()) != done.change
            {
                end(&mut earlier, Outcome::Undone);
                journal.write(&earlier)?;
            }
        }
        if done.outcome == Outcome::Done.as_str() {
            // What stays takes room and does no harm.
            drop(std::fs::remove_file(self.directory.join(upgrade::BEFORE)));
        }
        Ok(done)
    }

    /// Finishes or undoes what was interrupted, with all that this takes: not for a process in a
    /// sandbox.
    pub fn k3s_resume(&self) -> Result<Vec<Done>> {
        let journal = self.open()?;
        let done = self.settle(&journal)?;
        self.unstage();
        Ok(done)
    }

    /// Refuses a plan while a change is unfinished: that one comes to its end first, and the
    /// machine is another one then.
    fn only_settled(&self) -> Result<()> {
        let Some(id) = self.unfinished()? else {
            return Ok(());
        };
        Err(Error::new("nothing can be planned yet")
            .why(format!("the change {id} was interrupted and must be finished first"))
            .fix("sudo pipeops-agent k3s resume finishes or undoes it; the command without --dry-run does so, too"))
    }

    /// Refuses what only a server can do.
    fn only_on_servers(&self, command: &str) -> Result<()> {
        if self.system.role() == Role::Server {
            return Ok(());
        }
        let server = k3s::setting(&self.system.k3s_settings(), "server").unwrap_or_default();
        Err(Error::new(format!("{command} needs a server of k3s"))
            .why(format!("this machine is a worker of {server}"))
            .fix(format!("run it there: sudo pipeops-agent {command}")))
    }

    /// The signed index of k3s, as far as it was seen.
    pub fn k3s_index(&self) -> Result<IndexNote> {
        let note = files::read_if_there(&self.directory.join(INDEX_NOTE), 4096)?;
        // A broken note is as none: the signature and the end of the index stay.
        let note = note.and_then(|content| serde_json::from_slice(&content).ok());
        Ok(note.unwrap_or_default())
    }

    /// Records that this index was seen: an older one is refused from now on.
    pub fn k3s_index_seen(&self, note: IndexNote) -> Result<()> {
        let _lock = self.open()?;
        let note = IndexNote {
            sequence: remembered(note.sequence, now()),
            ..note
        };
        let text = serde_json::to_vec(&note).map_err(|error| {
            Error::new("cannot write down which index of k3s was seen").because(&error)
        })?;
        files::replace(&self.directory.join(INDEX_NOTE), &text, files::PRIVATE)
    }

    /// The version of the installed program.
    pub fn k3s_version(&self) -> Option<Version> {
        let ended = exec::run(self.system.root(), &[BINARY, "--version"], Limits::SHORT).ok()?;
        k3s::version_in(&ended.output)
    }

    /// A path in the keeper's own directory, as the machine has it.
    fn own(&self, name: &str) -> String {
        let below = self.directory.strip_prefix(self.system.root());
        let below = below.unwrap_or(&self.directory);
        format!("/{}/{name}", below.display())
    }

    fn managed(&self) -> Result<Option<Managed>> {
        let path = self.directory.join(NOTE);
        let Some(content) = files::read_if_there(&path, 64 * 1024)? else {
            return Ok(None);
        };
        let note = serde_json::from_slice(&content).map_err(|error| {
            Error::new(format!("cannot understand {}", path.display()))
                .because(&error)
                .fix("it was written by a newer version, or is damaged: move it away, then: sudo pipeops-agent k3s adopt")
        })?;
        Ok(Some(note))
    }

    fn data_dir(&self, note: Option<&Managed>) -> String {
        let found = || self.system.k3s_value("data-dir", "K3S_DATA_DIR");
        let usual = || k3s::DATA_DIR.to_owned();
        note.map_or_else(
            || found().unwrap_or_else(usual),
            |note| note.data_dir.clone(),
        )
    }

    fn node_name(&self, wanted: Option<&str>) -> Result<String> {
        let set = || self.system.k3s_value("node-name", "K3S_NODE_NAME");
        // As k3s does.
        let set = || set().map(|name| name.to_lowercase());
        let host = || facts::hostname(self.system.root()).map(|name| name.to_lowercase());
        let name = wanted.map(str::to_owned).or_else(set).or_else(host);
        let name = name.unwrap_or_default();
        if k3s::is_node_name(&name) {
            return self.with_id(name);
        }
        Err(Error::new(format!("{name:?} cannot be the name of a node"))
            .why("it must be lowercase letters, digits, dots and dashes, 63 at most")
            .fix("choose one: --node-name NAME"))
    }

    /// The name that k3s takes for its node now, where it is another one than that of the note: the
    /// machine was renamed, or its settings were changed.
    fn renamed(&self, note: &Managed) -> Option<String> {
        // Of settings that cannot be read nobody knows what they name.
        self.system.check_settings().ok()?;
        let now = self.node_name(None).ok()?;
        (now != note.node).then_some(now)
    }

    /// The name that the node gets of this one: with `with-node-id` k3s adds what it makes up once.
    fn with_id(&self, name: String) -> Result<String> {
        let init = self.system.init().ok();
        let service = init.and_then(|init| self.system.found_service(init));
        let has_flag = service.is_some_and(|(_, service)| service.has(NODE_ID));
        if !has_flag && !k3s::is_on(&self.system.k3s_settings(), NODE_ID) {
            return Ok(name);
        }
        match self.system.line("/etc/rancher/node/id") {
            Some(id) => Ok(format!("{name}-{id}")),
            None => Err(Error::new("the name of the node is not known")
                .why(format!("with {NODE_ID} k3s appends a random id at its first start"))
                .fix(format!("remove {NODE_ID} from /etc/rancher/k3s/config.yaml, and choose a name: --node-name NAME"))),
        }
    }

    /// The data directory of an installation, where nothing is in its way.
    fn place(&self, wanted: &Install) -> Result<String> {
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
    fn prepare(&self, wanted: &Install) -> Result<Prepared> {
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

    fn shown(prepared: &Prepared, undo: &str) -> K3sPlan {
        K3sPlan {
            does: prepared.does.clone(),
            refused: prepared.findings.refused.clone(),
            warned: prepared.findings.warned.clone(),
            steps: describe::steps(&prepared.steps),
            bytes: plan::bytes(&prepared.steps),
            undo: format!("{undo}; a failure on the way is undone automatically"),
            ..K3sPlan::default()
        }
    }

    fn removal(&self, wanted: &Uninstall) -> Result<plan::Uninstall> {
        let note = self.managed()?;
        let half = Role::ALL.map(|role| {
            [
                role.unit_path(),
                role.init_script(),
                role.uninstall_script(),
            ]
        });
        let is_half = half.iter().flatten().any(|path| self.system.is_there(path));
        if note.is_none() && !is_half && !self.system.is_there(BINARY) {
            return Err(
                Error::new("there is no k3s on this machine").fix("nothing needs to be done")
            );
        }
        if note.is_none() && !wanted.takes_found {
            return Err(Error::new("k3s is not removed")
                .why("pipeops-agent did not install it")
                .fix("see what would go: sudo pipeops-agent k3s uninstall --found --dry-run; then the same without --dry-run"));
        }
        if let Some(path) = self.system.named_services().first() {
            return Err(Error::new("k3s is not removed")
                .why(format!(
                    "{path} is a service of the same program, and would stay without it"
                ))
                .fix(
                    "remove that one first, by its own script: ls /usr/local/bin/k3s-*uninstall.sh",
                ));
        }
        let links = k3s::LINKS.into_iter().flat_map(|name| {
            ["/usr/local/bin", "/usr/bin"].map(|folder| format!("{folder}/{name}"))
        });
        let links = links
            .filter(|path| self.system.is_link(path, "k3s") || self.system.is_link(path, BINARY));
        let data_dir = self.data_dir(note.as_ref());
        Ok(plan::Uninstall {
            init: self.system.init()?,
            role: self.system.role(),
            data: self.system.data_entries(&data_dir).own,
            shared: self.system.uses(&data_dir),
            data_dir,
            program: wanted.program.clone(),
            note: self.own(NOTE),
            kept: note.map_or_else(adopt::shared, |note| note.kept),
            keep: if wanted.keeps_data {
                Keep::Data
            } else {
                Keep::Nothing
            },
            links: links.collect(),
        })
    }

    /// The program in a place of root's, and the version that it says.
    fn stage_binary(
        &self,
        program: &Program,
        pinned: Option<Version>,
    ) -> Result<(Staged, Version)> {
        let source = match program {
            Program::Here(source) => source,
            Program::Promised {
                version,
                sha256,
                bytes,
            } => {
                let staged = Staged {
                    path: self.own(&format!("{STAGED}/k3s")),
                    sha256: sha256.clone(),
                    bytes: *bytes,
                };
                return Ok((staged, *version));
            }
        };
        let binary = self.stage(source, 0o700)?;
        self.check_processor(source)?;
        let argv = [binary.path.as_str(), "--version"];
        let said = exec::run(self.system.root(), &argv, Limits::SHORT).map_err(|error| {
            if self.system.is_noexec(&binary.path) {
                let what = "this k3s cannot be tried: the keeper's directory is mounted noexec";
                let fix = "mount it without noexec meanwhile: sudo mount -o remount,exec /var; or set keeper.state_dir to another disk";
                return error.within(what).fix(fix);
            }
            error.within("this k3s does not run on this machine: is it for another processor?")
        })?;
        let version = k3s::version_in(&said.output).ok_or_else(|| {
            Error::new("cannot read the k3s version of this program")
                .why(said.output.chars().take(80).collect::<String>())
        })?;
        match pinned.filter(|pinned| *pinned != version) {
            Some(pinned) => Err(Error::new(format!("this is k3s {version}, not {pinned}"))
                .fix("name the version that it is, or fetch the other one")),
            None => Ok((binary, version)),
        }
    }

    /// Refuses a checked copy that is for another processor.
    fn check_processor(&self, source: &Source) -> Result<()> {
        let mut head = Vec::new();
        let copy = self.directory.join(STAGED).join(&source.name);
        let read = std::fs::File::open(&copy)
            .and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
        read.map_err(|error| files::explain(format!("cannot read {}", copy.display()), &error))?;
        let machine = facts::architecture().unwrap_or_default();
        if k3s::is_for(&machine, &head) {
            return Ok(());
        }
        Err(Error::new("this k3s is for another processor")
            .why(format!("this machine is {machine}"))
            .fix("take the program of the release that docs/k3s.md names for it"))
    }

    /// A copy in the keeper's own directory that has that hash.
    fn stage(&self, source: &Source, mode: u32) -> Result<Staged> {
        let folder = self.directory.join(STAGED);
        files::create_directory(&folder)?;
        files::remove_unfinished(&folder)?;
        self.system
            .tell(&format!("checking {}", source.path.display()));
        let sum = files::copy(
            &source.path,
            &folder.join(&source.name),
            mode,
            Some(&source.sha256),
            (COPY_BYTES_MAX, &mut |_| {}),
        )?;
        Ok(Staged {
            path: self.own(&format!("{STAGED}/{}", source.name)),
            sha256: sum.sha256,
            bytes: sum.bytes,
        })
    }

    /// A text with a secret in a place of root's. The journal has its hash only.
    fn stage_text(&self, name: &str, text: &str) -> Result<Staged> {
        let folder = self.directory.join(STAGED);
        files::create_directory(&folder)?;
        files::replace(&folder.join(name), text.as_bytes(), files::PRIVATE)?;
        Ok(Staged {
            path: self.own(&format!("{STAGED}/{name}")),
            sha256: super::system::sha256(text.as_bytes()),
            bytes: u64::try_from(text.len()).unwrap_or(0),
        })
    }

    /// The environment with the proxy of k3s; what is to be known of it becomes a finding.
    fn stage_proxy(
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

    /// Removes the checked copies; what stays takes room and does no harm.
    fn unstage(&self) {
        drop(std::fs::remove_dir_all(self.directory.join(STAGED)));
    }

    /// Writes a change of these steps down and carries it out.
    fn begin_steps(
        &self,
        journal: &LockedJournal,
        record: Record,
        steps: Vec<Step>,
        within: Duration,
    ) -> Result<Done> {
        let acts = steps
            .into_iter()
            .map(|step| self.system.act_of(step, within));
        let acts = acts.collect::<Result<Vec<_>>>()?;
        self.begin(journal, record, acts)
    }
}

/// Error of a change that findings block.
fn refuse(cannot: &str, refused: &[Finding]) -> Option<Error> {
    let (first, others) = refused.split_first()?;
    let error = Error::new(cannot).why(first.what.clone()).fix(format!(
        "{}; or continue anyway: --ignore {}",
        first.fix, first.id
    ));
    Some(match others.len() {
        0 => error,
        more => error.why(format!("and {more} more: see --dry-run")),
    })
}

/// Setting by which k3s adds to the name of a node.
const NODE_ID: &str = "with-node-id";
/// The way back from an installation.
const UNDO: &str = "sudo pipeops-agent k3s uninstall";
/// The note that k3s is managed, in the keeper's directory.
const NOTE: &str = "k3s.managed";
/// The note about the signed index, in the same place.
const INDEX_NOTE: &str = "k3s.index";
/// Bytes at the beginning of a program that name its processor.
const HEAD_BYTES: u64 = 20;
/// The folder of checked copies there.
const STAGED: &str = "staged";

/// Finding that a data directory has files of others.
const MIXED: &str = "disk.mixed";
/// Paths that a sentence names at most.
const NAMED_MAX: usize = 5;

/// The first of these paths, in words.
fn first_paths(paths: &[String]) -> String {
    let named = paths.iter().take(NAMED_MAX).map(String::as_str);
    let named = named.collect::<Vec<_>>().join(", ");
    match paths.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Finding that nobody has to do anything about.
fn finding_of(id: &str, what: String) -> Finding {
    Finding {
        id: id.to_owned(),
        what,
        fix: String::new(),
    }
}

struct Prepared {
    does: String,
    steps: Vec<Step>,
    findings: FindingSet,
}

/// The ingress that an installation brings.
fn ingress(wanted: &Install, drop_in: &DropIn, user: &[String]) -> Ingress {
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

fn note_text(note: &Managed) -> Result<String> {
    serde_json::to_string_pretty(note)
        .map_err(|error| Error::new("cannot write down that k3s is managed").because(&error))
}

fn removal_sentence(wanted: &Uninstall) -> String {
    if wanted.keeps_data {
        "remove k3s, and keep its data and settings".to_owned()
    } else {
        "remove k3s with its data".to_owned()
    }
}

/// Refuses a data directory, of the options or of the settings, that would mean something else in a
/// script or a unit.
fn check_data_dir(path: &str) -> Result<()> {
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
fn check_words(options: &InstallOptions) -> Result<()> {
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
    /// Entries of a data directory.
    fn data_entries(&self, data_dir: &str) -> data::Entries {
        data::entries(data_dir, &|folder| self.list(folder, ""))
    }

    /// Finding that the data directory has files of others, with which k3s would mix its own.
    fn others(&self, wanted: &Install, data_dir: &str) -> Result<Option<Finding>> {
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

    /// Finding that a removal leaves files of others in the data directory.
    fn stays(&self, removal: &plan::Uninstall) -> Option<Finding> {
        let others = self.data_entries(&removal.data_dir).others;
        let what = format!(
            "k3s did not make this, and it stays: {}",
            first_paths(&others)
        );
        (!others.is_empty() && removal.keep == Keep::Nothing)
            .then(|| finding_of("uninstall.others", what))
    }

    /// Places of k3s that are there before it; what an earlier one left with its data is k3s' own.
    fn kept(&self, wanted: &Install) -> Vec<String> {
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

    /// A step as an act, with what is there before it.
    fn act_of(&self, step: Step, within: Duration) -> Result<Act> {
        Ok(match step {
            Step::Directory { path } => Act::Directory { path },
            Step::File {
                path,
                content,
                mode,
            } => {
                let before = self.found(&path)?;
                Act::File {
                    path,
                    content,
                    mode,
                    before: before.as_ref().map(super::system::before),
                }
            }
            Step::Copy {
                from,
                path,
                sha256,
                mode,
                before,
                bytes: _,
            } => Act::Copy {
                from,
                path,
                sha256,
                mode,
                before: before.map(|replaced| Earlier {
                    copy: replaced.copy.path,
                    sha256: replaced.copy.sha256,
                    mode: replaced.mode,
                }),
            },
            Step::Link { path, target } => Act::Link { path, target },
            Step::Made { path } => Act::Made { path },
            Step::Run { forth, back } => Act::Run {
                forth,
                back,
                seen: None,
            },
            Step::Ready {
                node,
                version,
                when,
            } => Act::Ready {
                node,
                version: version.map(|version| version.to_string()),
                within_s: within.as_secs(),
                is_back: when == When::Back,
            },
            Step::Move { from, to } => Act::Move { from, to },
            Step::Datastore { path, copy } => Act::Datastore { path, copy },
            Step::Cordon { node } => Act::Cordon { node },
            Step::Drain { node, drain } => Act::Drain {
                node,
                within_s: drain.within.as_secs(),
                is_forced: drain.is_forced,
            },
            Step::Gone { path, extent } => Act::Gone {
                path,
                only_empty: extent == Extent::Empty,
            },
        })
    }

    /// Part of a cluster that the k3s of this machine is.
    pub(super) fn role(&self) -> Role {
        let worker = Role::Worker;
        let marks = [
            worker.unit_path(),
            worker.init_script(),
            worker.uninstall_script(),
        ];
        let server = [Role::Server.unit_path(), Role::Server.init_script()];
        let is_there = |path: &&str| self.is_there(path);
        // Of a server that was a worker once.
        if marks.iter().any(is_there) && !server.iter().any(is_there) {
            Role::Worker
        } else {
            Role::Server
        }
    }

    /// The service manager of this machine.
    fn init(&self) -> Result<Init> {
        if self.is_there("/run/systemd/system") {
            return Ok(Init::Systemd);
        }
        if self.is_there("/run/openrc") && self.has("rc-service") {
            return Ok(Init::OpenRc);
        }
        Err(Error::new("k3s cannot be managed here")
            .why("this machine runs neither systemd nor OpenRC")
            .fix("start k3s by hand, and let the agent connect to it by its kubeconfig"))
    }
}

/// An act in words, for whoever waits for it.
pub(super) fn describe_act(act: &Act) -> Option<String> {
    describe::act(act)
}

/// Returns whether a change is one of k3s, which a sandbox cannot carry out.
pub(super) fn is_k3s(record: &Record) -> bool {
    ["k3s.", "node."]
        .iter()
        .any(|begin| record.check.starts_with(begin))
}
