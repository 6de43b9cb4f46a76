//! Plans of what the keeper does for k3s: steps in order, each with what it is for people and how
//! it is undone.

use super::{
    BINARY, DROP_IN, KILLALL, KUBECONFIG, LINKS, MADE, REGISTRIES, Role, Version, connect,
    data::{self, aside, kept, settings_aside, unpacked},
    proxy::ENVIRONMENT,
    runtimes::Use,
    servers::{Datastore, LEASE_LABEL},
    shutdown,
    step::{Drain, Extent, Replaced, Staged, Step, When, directories, file, run},
    texts::{self, DropIn, Init},
    watch,
};

/// Parts of an installation.
#[derive(Clone, Debug)]
pub struct Install {
    /// Service manager.
    pub init: Init,
    /// Part of a cluster.
    pub role: Role,
    /// The token of the server that a worker joins.
    pub token: Option<Staged>,
    /// Environment with the proxy of k3s.
    pub proxy: Option<Staged>,
    /// The program.
    pub binary: Staged,
    pub version: Version,
    /// Archives of images, with the names that they get.
    pub images: Vec<(String, Staged)>,
    /// Data directory.
    pub data_dir: String,
    /// Name of the node.
    pub node: String,
    /// Our settings.
    pub drop_in: DropIn,
    /// Content of `registries.yaml`.
    pub registries: Option<String>,
    /// Path of this program, which finishes the change after a power cut.
    pub program: String,
    /// True if the agent gets a credential.
    pub connects: bool,
    /// Units that the kernel ends last when the memory is full.
    pub protected: Vec<&'static str>,
    /// The note that says that k3s is managed here, and its content.
    pub note: (String, String),
}

/// The steps of an installation. Undone from the end, the file system is what it was.
pub fn install(wanted: &Install, is_there: &dyn Fn(&str) -> bool) -> Vec<Step> {
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    directories(&mut steps, "/etc/rancher/k3s/config.yaml.d", is_there);
    let (above, _) = wanted.data_dir.rsplit_once('/').unwrap_or_default();
    directories(&mut steps, above, is_there);
    // k3s makes these when it starts: they go with it, unless they were there before; the
    // directories above them after them.
    for path in MADE {
        if !is_there(path) {
            steps.push(Step::Made {
                path: path.to_owned(),
            });
        }
    }
    let data = &wanted.data_dir;
    let made = if is_there(data) {
        // What somebody else has in it stays.
        let names = data::WHOLE.into_iter().chain([data::PROGRAMS]);
        names.map(|name| format!("{data}/{name}")).collect()
    } else {
        vec![data.clone()]
    };
    let made = made.into_iter().filter(|path| !is_there(path));
    steps.extend(made.map(|path| Step::Made { path }));
    // The service of OpenRC does not start without the data directory.
    let inside = if wanted.images.is_empty() {
        data.clone()
    } else {
        format!("{data}/agent/images")
    };
    directories(&mut steps, &inside, is_there);
    for (name, staged) in &wanted.images {
        steps.push(copy(
            staged,
            format!("{}/agent/images/{name}", wanted.data_dir),
            0o600,
        ));
    }
    directories(&mut steps, "/usr/local/bin", is_there);
    steps.push(copy(&wanted.binary, BINARY.to_owned(), 0o755));
    files(&mut steps, wanted);
    for name in LINKS {
        let path = format!("/usr/local/bin/{name}");
        if !is_there(&path) && !is_there(&format!("/usr/bin/{name}")) {
            steps.push(Step::Link {
                path,
                target: "k3s".to_owned(),
            });
        }
    }
    service(&mut steps, wanted, is_there);
    steps.push(Step::Ready {
        node: wanted.node.clone(),
        version: Some(wanted.version),
        when: When::Forth,
    });
    if wanted.connects {
        steps.extend(connect::steps(wanted.init, &wanted.program, is_there));
    }
    steps.extend(watch::steps(wanted.init, &wanted.program, is_there));
    steps.extend(no_resume(wanted.init));
    steps
}

/// The service, started.
fn service(steps: &mut Vec<Step>, wanted: &Install, is_there: &dyn Fn(&str) -> bool) {
    let (init, role, protected) = (wanted.init, wanted.role, &wanted.protected);
    let text = texts::service(init, role, &wanted.data_dir, protected);
    match init {
        Init::Systemd => {
            steps.push(run("", "systemctl daemon-reload"));
            // After the unit, so that the undo of the reload above comes after the unit is gone.
            steps.push(file(wanted.role.unit_path(), text, 0o644));
            steps.extend(shutdown::files(init, &wanted.data_dir, &wanted.note.0));
            for unit in protected {
                let path = protection(unit);
                let (folder, _) = path.rsplit_once('/').unwrap_or_default();
                directories(steps, folder, is_there);
                steps.push(file(&path, texts::protection(unit), 0o644));
            }
            steps.push(run("systemctl daemon-reload", ""));
            let name = wanted.role.name();
            steps.push(run(
                &format!("systemctl enable {name}"),
                &format!("systemctl disable {name}"),
            ));
        }
        Init::OpenRc => {
            directories(steps, "/etc/logrotate.d", is_there);
            let rotation = include_str!("texts/k3s.logrotate").to_owned();
            steps.push(file(ROTATION, rotation, 0o644));
            steps.push(file(wanted.role.init_script(), text, 0o755));
            steps.extend(shutdown::files(init, &wanted.data_dir, &wanted.note.0));
            let name = wanted.role.name();
            steps.push(run(
                &format!("rc-update add {name} default"),
                &leave_runlevel(name),
            ));
        }
    }
    steps.push(run(&start(init, role), KILLALL));
    steps.push(shutdown::start(init));
}

fn files(steps: &mut Vec<Step>, wanted: &Install) {
    steps.push(file(DROP_IN, wanted.drop_in.content.clone(), 0o600));
    if let Some(content) = &wanted.registries {
        steps.push(file(REGISTRIES, content.clone(), 0o600));
    }
    if let Some(token) = &wanted.token {
        steps.push(copy(token, super::JOIN_TOKEN.to_owned(), 0o600));
    }
    if let Some(proxy) = &wanted.proxy {
        steps.push(copy(proxy, ENVIRONMENT.to_owned(), 0o600));
    }
    let (role, data_dir) = (wanted.role, &wanted.data_dir);
    steps.push(file(KILLALL, texts::killall(role, data_dir), 0o755));
    let uninstall = texts::uninstall(role, data_dir);
    steps.push(file(role.uninstall_script(), uninstall, 0o755));
    let (path, content) = &wanted.note;
    steps.push(file(path, content.clone(), 0o600));
}

fn copy(staged: &Staged, path: String, mode: u32) -> Step {
    Step::Copy {
        from: staged.path.clone(),
        path,
        sha256: staged.sha256.clone(),
        bytes: staged.bytes,
        mode,
        before: None,
    }
}

/// The drop-in of systemd that protects a unit.
fn protection(unit: &str) -> String {
    format!("/etc/systemd/system/{unit}.service.d/50-pipeops-k3s.conf")
}

/// Rotation of the log that OpenRC writes; with systemd the journal has it.
const ROTATION: &str = "/etc/logrotate.d/k3s";

const RESUME_UNIT: &str = "/etc/systemd/system/pipeops-k3s-resume.service";
const RESUME_WANTS_LINK: &str =
    "/etc/systemd/system/multi-user.target.wants/pipeops-k3s-resume.service";
const RESUME_SERVICE: &str = "/etc/init.d/pipeops-k3s-resume";
const RESUME_RUNLEVEL_LINK: &str = "/etc/runlevels/default/pipeops-k3s-resume";

/// The service that goes on after a power cut, for the time of a change.
pub fn resume(init: Init, program: &str, data_dir: &str) -> Vec<Step> {
    let text = texts::resume(init, program, data_dir);
    let link = |path: &str, target: &str| Step::Link {
        path: path.to_owned(),
        target: target.to_owned(),
    };
    match init {
        Init::Systemd => vec![
            file(RESUME_UNIT, text, 0o644),
            link(RESUME_WANTS_LINK, RESUME_UNIT),
        ],
        Init::OpenRc => vec![
            file(RESUME_SERVICE, text, 0o755),
            link(RESUME_RUNLEVEL_LINK, RESUME_SERVICE),
        ],
    }
}

/// The end of [`resume`].
pub fn no_resume(init: Init) -> Vec<Step> {
    let paths = match init {
        Init::Systemd => [RESUME_WANTS_LINK, RESUME_UNIT],
        Init::OpenRc => [RESUME_RUNLEVEL_LINK, RESUME_SERVICE],
    };
    paths.map(gone).into()
}

fn gone(path: &str) -> Step {
    Step::Gone {
        path: path.to_owned(),
        extent: Extent::Whole,
    }
}

fn empty(path: &str) -> Step {
    Step::Gone {
        path: path.to_owned(),
        extent: Extent::Empty,
    }
}

/// Parts of a removal of k3s.
#[derive(Clone, Debug)]
pub struct Uninstall {
    /// Service manager.
    pub init: Init,
    /// Part of a cluster.
    pub role: Role,
    /// Data directory.
    pub data_dir: String,
    /// Path of this program.
    pub program: String,
    /// The note that says that k3s is managed here.
    pub note: String,
    /// Places that were there before k3s, and stay.
    pub kept: Vec<String>,
    /// Places that others use, too: of them only what is empty goes.
    pub shared: Vec<Use>,
    /// Data, settings and the name of the node stay.
    pub keep: Keep,
    /// Links of other programs' names to k3s.
    pub links: Vec<String>,
    /// Paths in the data directory that are removed. It goes itself where nothing else is in it.
    pub data: Vec<String>,
}

/// The rest that a removal leaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Keep {
    /// Nothing of k3s.
    Nothing,
    /// Data directory, settings, and what names the node.
    Data,
}

/// Trees that `--keep-data` leaves, besides the data directory.
const DATA: [&str; 2] = ["/etc/rancher/node", "/etc/rancher/k3s"];

/// The steps of a removal. There is no way back: each may be repeated until all are done.
pub fn uninstall(wanted: &Uninstall, is_there: &dyn Fn(&str) -> bool) -> Vec<Step> {
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    let init = wanted.init;
    let looks: [(&str, &str, &[&str]); 3] = [
        (
            watch::unit_path(init),
            watch::stop_command(init),
            watch::created_paths(init),
        ),
        (
            connect::unit_path(init),
            connect::stop_command(init),
            connect::created_paths(init),
        ),
        (
            shutdown::unit_path(init),
            shutdown::stop_command(init),
            shutdown::created_paths(init),
        ),
    ];
    for (mark, stop, made) in looks {
        if is_there(mark) {
            steps.push(run(stop, ""));
            steps.extend(made.iter().map(|path| gone(path)));
            steps.extend([connect::WANTS, connect::DIRECTORY].map(empty));
        }
    }
    // It may be missing after half a removal, or be another's.
    let (role, name) = (wanted.role, wanted.role.name());
    steps.push(file(KILLALL, texts::killall(role, &wanted.data_dir), 0o755));
    steps.push(run(KILLALL, ""));
    let (unit, disable) = match wanted.init {
        Init::Systemd => (role.unit_path(), format!("systemctl disable {name}")),
        Init::OpenRc => (role.init_script(), leave_runlevel(name)),
    };
    if is_there(unit) {
        steps.push(run(&disable, ""));
    }
    let of_user = format!("/etc/systemd/system/{name}.service.env");
    steps.extend([unit, &of_user, ENVIRONMENT].map(gone));
    for path in [name, texts::AGENT].map(protection) {
        if is_there(&path) {
            steps.push(gone(&path));
            let (folder, _) = path.rsplit_once('/').unwrap_or_default();
            steps.push(empty(folder));
        }
    }
    match wanted.init {
        Init::Systemd => steps.push(run("systemctl daemon-reload", "")),
        Init::OpenRc => steps.push(gone(ROTATION)),
    }
    steps.extend(trees(wanted, is_there).iter().map(|path| gone(path)));
    let shared = wanted.shared.iter().map(|it| it.path);
    steps.extend(shared.filter(|path| is_there(path)).map(empty));
    if wanted.keep == Keep::Nothing {
        let programs = format!("{}/{}", wanted.data_dir, data::PROGRAMS);
        steps.extend([&programs, &wanted.data_dir].map(|path| empty(path)));
    }
    steps.extend(wanted.links.iter().map(|path| gone(path)));
    steps.extend([BINARY, role.uninstall_script(), KILLALL].map(gone));
    steps.extend([&wanted.note, &shutdown::stopped(&wanted.note)].map(|path| gone(path)));
    // The last of what k3s had there; where somebody has more in it, it stays.
    if wanted.keep == Keep::Nothing {
        steps.extend(["/etc/rancher/k3s/config.yaml.d", "/etc/rancher/k3s"].map(empty));
    }
    steps.extend(["/etc/rancher", "/var/lib/rancher"].map(empty));
    steps.extend(no_resume(wanted.init));
    steps
}

/// Trees that a removal takes, as far as they are there.
pub fn trees(wanted: &Uninstall, is_there: &dyn Fn(&str) -> bool) -> Vec<String> {
    let data = wanted.data.iter().map(String::as_str);
    let made = MADE
        .into_iter()
        .filter(|path| !path.starts_with("/etc/rancher/k3s/"));
    let is_kept = |path: &&str| {
        let is_data = wanted.data.iter().any(|data| data == path) || DATA.contains(path);
        let is_shared = wanted.shared.iter().any(|it| it.path == *path);
        let is_earlier = wanted.kept.iter().any(|kept| kept == path);
        (wanted.keep == Keep::Data && is_data) || is_shared || is_earlier
    };
    let is_setting = |kept: &String| kept.starts_with("/etc/rancher/k3s/") && kept != KUBECONFIG;
    let has_settings = wanted.keep == Keep::Nothing && wanted.kept.iter().any(is_setting);
    let settings: &[&str] = if has_settings {
        &[DROP_IN, REGISTRIES, super::JOIN_TOKEN, KUBECONFIG]
    } else {
        &["/etc/rancher/k3s"]
    };
    let all = data.chain(settings.iter().copied()).chain(made);
    all.filter(|path| !is_kept(path))
        .filter(|path| is_there(path))
        .map(str::to_owned)
        .collect()
}

/// Parts of a restore.
#[derive(Clone, Debug)]
pub struct Restore {
    /// Service manager.
    pub init: Init,
    /// Path of this program.
    pub program: String,
    /// Data directory.
    pub data_dir: String,
    /// Name of the node.
    pub node: String,
    /// Version of the program that is here.
    pub version: Version,
    /// Names below `server` that the backup has.
    pub items: Vec<String>,
    /// Those of them that are there.
    pub there: Vec<String>,
    /// Settings of the backup.
    pub settings: Vec<SettingsFile>,
    /// Datastore of the backup.
    pub datastore: Datastore,
    /// Options of the node that only the command line of its service has.
    pub options: Vec<String>,
}

/// A file of settings of a backup.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    pub path: String,
    pub content: Content,
}

/// Content of a file of settings.
#[derive(Clone, Debug)]
pub enum Content {
    /// A short text, which the journal can hold.
    Text(String),
    /// Anything else: bytes that are no text, and what is long.
    Checked {
        /// The checked copy.
        copy: Staged,
        /// The file that it replaces; `None`: there is none.
        before: Option<Replaced>,
    },
}

/// Parts of a change of this node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Service manager.
    pub init: Init,
    /// Path of this program.
    pub program: String,
    /// Data directory.
    pub data_dir: String,
    /// Name of the node.
    pub node: String,
    /// True if it takes no new Pods now, which an undo then leaves so.
    pub is_cordoned: bool,
    /// Its Pods go; `None`: they stay.
    pub drain: Option<Drain>,
}

/// The steps of a cordon or a drain.
pub fn node(wanted: &Node) -> Vec<Step> {
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    steps.extend(moved(wanted));
    steps.extend(no_resume(wanted.init));
    steps
}

fn moved(wanted: &Node) -> Vec<Step> {
    let mut steps = Vec::new();
    if !wanted.is_cordoned {
        steps.push(Step::Cordon {
            node: wanted.node.clone(),
        });
    }
    steps.extend(wanted.drain.iter().map(|drain| Step::Drain {
        node: wanted.node.clone(),
        drain: drain.clone(),
    }));
    steps
}

/// Removal of a worker from its cluster.
#[derive(Clone, Debug)]
pub struct NodeRemoval {
    /// The drain; `None`: its machine does not answer, or its node is gone.
    pub node: Option<Node>,
    /// Service manager.
    pub init: Init,
    /// Path of this program.
    pub program: String,
    /// Data directory of this server.
    pub data_dir: String,
    /// Name of the worker.
    pub worker: String,
    /// Address of the API that forgets it; `None`: that of this machine.
    pub api: Option<String>,
}

/// Steps that remove a worker from its cluster. The node comes first: k3s makes its
/// password again as long as there is one.
pub fn remove_node(wanted: &NodeRemoval) -> Vec<Step> {
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    steps.extend(wanted.node.iter().flat_map(moved));
    let worker = &wanted.worker;
    let mut kubectl = KUBECTL.to_owned();
    if let Some(api) = &wanted.api {
        kubectl.push_str(" --server=");
        kubectl.push_str(api);
    }
    for what in [
        format!("delete node {worker}"),
        format!("-n kube-system delete secret {worker}.node-password.k3s"),
    ] {
        steps.push(run(
            &format!("{kubectl} {what} --ignore-not-found --timeout=60s"),
            "",
        ));
    }
    steps.extend(no_resume(wanted.init));
    steps
}

/// Client of the cluster.
const KUBECTL: &str = "/usr/local/bin/k3s kubectl --cache-dir=/run/k3s/kubectl";

/// Command that gives the Lease of an upgrade back, where this node still has it.
fn no_lease(node: &str) -> String {
    format!("{KUBECTL} -n kube-system delete lease -l {LEASE_LABEL}={node} --timeout=60s")
}

/// Kind of an upgrade.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Both versions read the same datastore.
    Patch,
    /// The old version does not read what the new one wrote.
    Minor,
}

/// An archive of images of an upgrade.
#[derive(Clone, Debug)]
pub struct Image {
    pub name: String,
    /// The checked copy.
    pub staged: Staged,
    /// True if one of that name is there already.
    pub is_there: bool,
}

/// Parts of an upgrade.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// Service manager.
    pub init: Init,
    /// Part of a cluster.
    pub role: Role,
    /// Path of this program.
    pub program: String,
    /// Data directory.
    pub data_dir: String,
    /// Name of the node.
    pub node: String,
    /// Version of now.
    pub from: Version,
    /// Version of then.
    pub to: Version,
    /// Step between them.
    pub kind: Kind,
    /// The new program.
    pub binary: Staged,
    /// Copy of the old program.
    pub before: Staged,
    /// Archives of images.
    pub images: Vec<Image>,
    /// Number of servers; 0 where the cluster does not say it.
    pub servers: usize,
    /// Datastore of a server.
    pub datastore: Datastore,
    /// Eviction of the Pods before k3s stops; `None`: they stay, and may restart.
    pub drain: Option<Drain>,
}

/// The steps of an upgrade. Undone from the end, the old version runs; after a minor version with
/// the datastore that it left.
pub fn upgrade(wanted: &Upgrade) -> Vec<Step> {
    let [_, _, before, _] = kept(&wanted.data_dir);
    let ready = |version: Version, when: When| Step::Ready {
        node: wanted.node.clone(),
        version: Some(version),
        when,
    };
    let directory = |path: &str| Step::Directory {
        path: path.to_owned(),
    };
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    if wanted.drain.is_some() {
        // Undone last, when the old version answers again.
        steps.push(Step::Cordon {
            node: wanted.node.clone(),
        });
    }
    let is_one_of_many = wanted.role == Role::Server && wanted.servers > 1;
    if is_one_of_many {
        steps.push(run("", &no_lease(&wanted.node)));
    }
    steps.push(ready(wanted.from, When::Back));
    steps.push(run("", &start(wanted.init, wanted.role)));
    steps.extend(new_images(wanted));
    steps.extend(wanted.drain.iter().map(|drain| Step::Drain {
        node: wanted.node.clone(),
        drain: drain.clone(),
    }));
    let stop = stop(wanted.init, wanted.role);
    steps.push(run(&stop, ""));
    // The datastore of several servers is no single one's to put back.
    let is_alone = match wanted.datastore {
        Datastore::Sqlite => true,
        Datastore::Etcd => wanted.servers == 1,
        Datastore::Elsewhere => false,
    };
    if wanted.kind == Kind::Minor && wanted.role == Role::Server && is_alone {
        let name = match wanted.datastore {
            Datastore::Sqlite | Datastore::Elsewhere => "state.db",
            Datastore::Etcd => "etcd",
        };
        steps.push(directory(&before));
        steps.push(Step::Datastore {
            path: format!("{}/server/db/{name}", wanted.data_dir),
            copy: format!("{before}/{name}"),
        });
    }
    steps.push(Step::Copy {
        from: wanted.binary.path.clone(),
        path: BINARY.to_owned(),
        sha256: wanted.binary.sha256.clone(),
        bytes: wanted.binary.bytes,
        mode: 0o755,
        before: Some(Replaced {
            copy: wanted.before.clone(),
            mode: 0o755,
        }),
    });
    steps.push(run(&start(wanted.init, wanted.role), &stop));
    steps.push(ready(wanted.to, When::Forth));
    if wanted.drain.is_some() {
        steps.push(run(&format!("{KUBECTL} uncordon {}", wanted.node), ""));
    }
    if is_one_of_many {
        steps.push(run(&no_lease(&wanted.node), ""));
    }
    steps.extend(no_resume(wanted.init));
    steps
}

/// Archives of images take the place of those of the same names.
fn new_images(wanted: &Upgrade) -> Vec<Step> {
    let [_, _, _, before] = kept(&wanted.data_dir);
    let images = format!("{}/agent/images", wanted.data_dir);
    let mut steps = Vec::new();
    if !wanted.images.is_empty() {
        let directories = [&images, &before].map(|path| Step::Directory { path: path.clone() });
        steps.extend(directories);
    }
    for image in &wanted.images {
        let path = format!("{images}/{}", image.name);
        if image.is_there {
            steps.push(Step::Move {
                from: path.clone(),
                to: format!("{before}/{}", image.name),
            });
        }
        steps.push(copy(&image.staged, path, 0o600));
    }
    steps
}

/// Bytes that steps write.
pub fn bytes(steps: &[Step]) -> u64 {
    let bytes = steps.iter().map(|step| match step {
        Step::Copy { bytes, .. } => *bytes,
        Step::File { content, .. } => u64::try_from(content.len()).unwrap_or(0),
        Step::Directory { .. }
        | Step::Link { .. }
        | Step::Made { .. }
        | Step::Run { .. }
        | Step::Ready { .. }
        | Step::Move { .. }
        | Step::Datastore { .. }
        | Step::Cordon { .. }
        | Step::Drain { .. }
        | Step::Gone { .. } => 0,
    });
    bytes.fold(0, u64::saturating_add)
}

/// Returns whether a path is of the service that goes on after a power cut.
pub fn is_resume(path: &str) -> bool {
    [
        RESUME_UNIT,
        RESUME_WANTS_LINK,
        RESUME_SERVICE,
        RESUME_RUNLEVEL_LINK,
    ]
    .contains(&path)
}

fn start(init: Init, role: Role) -> String {
    let name = role.name();
    match init {
        Init::Systemd => format!("systemctl start --no-block {name}"),
        Init::OpenRc => format!("rc-service {name} start"),
    }
}

/// Command that keeps a service from the next boot. Unlike rc-update it does not fail where a cut
/// or somebody has done it already.
fn leave_runlevel(name: &str) -> String {
    format!("rm -f /etc/runlevels/default/{name}")
}

fn stop(init: Init, role: Role) -> String {
    let name = role.name();
    match init {
        Init::Systemd => format!("systemctl stop {name}"),
        Init::OpenRc => format!("rc-service {name} stop"),
    }
}

/// The steps of a restore. Undone from the end, the cluster of before runs again.
pub fn restore(wanted: &Restore, is_there: &dyn Fn(&str) -> bool) -> Vec<Step> {
    let server = format!("{}/server", wanted.data_dir);
    let (aside, unpacked) = (aside(&wanted.data_dir), unpacked(&wanted.data_dir));
    let ready = |when: When| Step::Ready {
        node: wanted.node.clone(),
        version: Some(wanted.version),
        when,
    };
    let mut steps = resume(wanted.init, &wanted.program, &wanted.data_dir);
    let keeps = |settings: &SettingsFile| {
        matches!(
            settings.content,
            Content::Checked {
                before: Some(_),
                ..
            }
        )
    };
    if wanted.settings.iter().any(keeps) {
        // Its undo comes last: until then the copies are needed.
        steps.push(Step::Made {
            path: settings_aside(&wanted.data_dir),
        });
    }
    steps.push(Step::Made {
        path: unpacked.clone(),
    });
    // The cluster of before and the restored one know other accounts and keys.
    let connects = is_there(connect::unit_path(wanted.init)).then(|| connect::again(wanted.init));
    steps.extend(connects.map(|again| run("", again)));
    steps.extend([
        ready(When::Back),
        run("", &start(wanted.init, Role::Server)),
        run(KILLALL, ""),
        Step::Directory {
            path: aside.clone(),
        },
    ]);
    if wanted.datastore == Datastore::Etcd {
        // Of the member, which is moved without the snapshots beside it.
        steps.push(Step::Directory {
            path: format!("{aside}/db"),
        });
    }
    steps.extend(wanted.there.iter().map(|item| Step::Move {
        from: format!("{server}/{item}"),
        to: format!("{aside}/{item}"),
    }));
    steps.extend(wanted.items.iter().map(|item| Step::Move {
        from: format!("{unpacked}/data/server/{item}"),
        to: format!("{server}/{item}"),
    }));
    settings(&mut steps, &wanted.settings, is_there);
    if wanted.datastore == Datastore::Etcd {
        steps.extend(reset(wanted));
    }
    steps.push(run(&start(wanted.init, Role::Server), KILLALL));
    steps.push(ready(When::Forth));
    steps.extend(connects.map(|again| run(again, "")));
    steps.push(gone(&unpacked));
    steps.extend(no_resume(wanted.init));
    steps
}

fn settings(steps: &mut Vec<Step>, files: &[SettingsFile], is_there: &dyn Fn(&str) -> bool) {
    for SettingsFile { path, content } in files {
        let (above, _) = path.rsplit_once('/').unwrap_or_default();
        directories(steps, above, is_there);
        steps.push(match content {
            Content::Text(text) => file(path, text.clone(), 0o600),
            Content::Checked {
                copy: staged,
                before,
            } => Step::Copy {
                from: staged.path.clone(),
                path: path.clone(),
                sha256: staged.sha256.clone(),
                bytes: staged.bytes,
                mode: 0o600,
                before: before.clone(),
            },
        });
    }
}

/// Name of the snapshot of etcd in a backup.
pub const SNAPSHOT: &str = "data/server/db/etcd-snapshot";

/// The steps that make a cluster of one member of a snapshot, the token and the CA being there.
fn reset(wanted: &Restore) -> [Step; 3] {
    let data_dir = &wanted.data_dir;
    let snapshot = format!("{}/{SNAPSHOT}", unpacked(data_dir));
    // An adopted k3s may have its data directory, and what its member of etcd is called and reached
    // at, from its command line only. With a bucket in its settings it would look for the snapshot
    // there.
    let command = [
        format!(
            "{BINARY} server --data-dir={data_dir} --cluster-reset --cluster-reset-restore-path={snapshot} --etcd-s3=false"
        ),
        wanted.options.join(" "),
    ];
    [
        Step::Made {
            path: format!("{data_dir}/server/db/etcd"),
        },
        // k3s refuses a second reset without a start between them; this one may be repeated.
        gone(&format!("{data_dir}/server/db/reset-flag")),
        run(command.join(" ").trim_end(), ""),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::k3s::texts::{InstallOptions, drop_in};

    fn staged(name: &str) -> Staged {
        Staged {
            path: format!("/staged/{name}"),
            sha256: "a".repeat(64),
            bytes: 7,
        }
    }

    fn wanted() -> Install {
        Install {
            init: Init::Systemd,
            role: Role::Server,
            token: None,
            proxy: None,
            binary: staged("k3s"),
            version: "v1.34.4+k3s1".parse().unwrap(),
            images: vec![("images.tar".to_owned(), staged("images"))],
            data_dir: "/mnt/ssd/k3s".to_owned(),
            node: "pi".to_owned(),
            drop_in: drop_in(&InstallOptions::default(), &[], 1 << 40),
            registries: None,
            program: "/usr/bin/pipeops-agent".to_owned(),
            connects: false,
            protected: Vec::new(),
            note: ("/note".to_owned(), String::new()),
        }
    }

    fn made(steps: &[Step]) -> Vec<&str> {
        let made = steps.iter().filter_map(|step| match step {
            Step::Made { path } => Some(path.as_str()),
            Step::Directory { .. }
            | Step::File { .. }
            | Step::Copy { .. }
            | Step::Link { .. }
            | Step::Run { .. }
            | Step::Ready { .. }
            | Step::Move { .. }
            | Step::Datastore { .. }
            | Step::Cordon { .. }
            | Step::Drain { .. }
            | Step::Gone { .. } => None,
        });
        made.collect()
    }

    fn at(steps: &[Step], found: impl Fn(&Step) -> bool) -> usize {
        steps.iter().position(found).unwrap()
    }

    #[test]
    fn what_was_there_before_is_not_removed_by_the_undo() {
        let there = [
            "/mnt",
            "/mnt/ssd",
            "/var/lib/kubelet",
            "/usr/local/bin",
            "/usr/local/bin/kubectl",
        ];
        let is_there = |path: &str| there.contains(&path);
        let steps = install(&wanted(), &is_there);
        let made = made(&steps);
        assert!(
            !made.contains(&"/var/lib/kubelet") && made.contains(&"/run/k3s"),
            "{made:?}"
        );
        assert!(made.contains(&"/mnt/ssd/k3s"), "{made:?}");
        let touched = |wanted: &str| {
            steps.iter().any(|step| {
                matches!(step, Step::Directory { path } | Step::Link { path, .. } if path == wanted)
            })
        };
        assert!(
            !touched("/mnt/ssd") && !touched("/usr/local/bin/kubectl"),
            "{steps:?}"
        );
        assert!(
            touched("/etc/rancher/k3s/config.yaml.d") && touched("/usr/local/bin/ctr"),
            "{steps:?}"
        );
    }

    #[test]
    fn nothing_starts_before_everything_is_in_its_place_and_the_way_back_stands() {
        let steps = install(&wanted(), &|_| false);
        let start = at(
            &steps,
            |step| matches!(step, Step::Run { forth, .. } if forth.contains(&"start".to_owned())),
        );
        let ready = at(&steps, |step| matches!(step, Step::Ready { .. }));
        for path in [
            BINARY,
            DROP_IN,
            KILLALL,
            Role::Server.uninstall_script(),
            Role::Server.unit_path(),
            RESUME_UNIT,
            "/note",
        ] {
            let written = at(
                &steps,
                |step| matches!(step, Step::File { path: found, .. } | Step::Copy { path: found, .. } if found == path),
            );
            assert!(written < start && start < ready, "{path}");
        }
        // With the data directory, and the three files of the watch in memory.
        let last = made(&steps).len();
        assert_eq!(last, MADE.len() + 4);
        assert!(
            steps
                .iter()
                .all(|step| !matches!(step, Step::Made { path } if path == "/"))
        );
    }

    #[test]
    fn openrc_finds_its_data_directory_and_a_log_that_is_rotated() {
        let wanted = Install {
            init: Init::OpenRc,
            // From the network k3s has no archive of images.
            images: Vec::new(),
            ..wanted()
        };
        let steps = install(&wanted, &|_| false);
        let data = at(
            &steps,
            |step| matches!(step, Step::Directory { path } if path == "/mnt/ssd/k3s"),
        );
        let undone = at(
            &steps,
            |step| matches!(step, Step::Made { path } if path == "/mnt/ssd/k3s"),
        );
        let rotated = at(&steps, |step| {
            matches!(step, Step::File { path, content, .. }
                if path == ROTATION && content.contains("/var/log/k3s.log {"))
        });
        let start = at(
            &steps,
            |step| matches!(step, Step::Run { forth, .. } if forth.contains(&"start".to_owned())),
        );
        assert!(undone < data && data < start && rotated < start);
        let all = made(&steps);
        assert!(
            all.contains(&"/var/log/k3s.log.1") && all.contains(&"/var/log/k3s.log.2"),
            "{all:?}"
        );
    }

    #[test]
    fn a_node_goes_before_its_password_and_its_pods_before_both() {
        let drain = Drain {
            within: Duration::from_secs(60),
            is_forced: false,
            pods: Vec::new(),
        };
        let wanted = NodeRemoval {
            node: Some(Node {
                init: Init::Systemd,
                program: "/usr/bin/pipeops-agent".to_owned(),
                data_dir: "/d".to_owned(),
                node: "pi".to_owned(),
                is_cordoned: false,
                drain: Some(drain),
            }),
            init: Init::Systemd,
            program: "/usr/bin/pipeops-agent".to_owned(),
            data_dir: "/d".to_owned(),
            worker: "pi".to_owned(),
            api: None,
        };
        let steps = remove_node(&wanted);
        let ran = |word: &str| {
            at(
                &steps,
                |step| matches!(step, Step::Run { forth, .. } if forth.iter().any(|part| part == word)),
            )
        };
        let drained = at(&steps, |step| matches!(step, Step::Drain { .. }));
        assert!(drained < ran("node") && ran("node") < ran("secret"));
    }

    fn upgraded(datastore: Datastore, servers: usize, kind: Kind) -> Vec<Step> {
        upgrade(&wanted_upgrade(datastore, servers, kind))
    }

    fn wanted_upgrade(datastore: Datastore, servers: usize, kind: Kind) -> Upgrade {
        Upgrade {
            init: Init::Systemd,
            role: Role::Server,
            program: "/usr/bin/pipeops-agent".to_owned(),
            data_dir: "/d".to_owned(),
            node: "pi".to_owned(),
            from: "v1.34.4+k3s1".parse().unwrap(),
            to: "v1.35.1+k3s1".parse().unwrap(),
            kind,
            binary: staged("k3s"),
            before: staged("before"),
            images: Vec::new(),
            servers,
            datastore,
            drain: None,
        }
    }

    #[test]
    fn pods_move_before_an_upgrade_and_the_node_takes_pods_again_in_the_end_in_both_ways() {
        let drain = Drain {
            within: Duration::from_secs(60),
            is_forced: false,
            pods: Vec::new(),
        };
        let steps = upgrade(&Upgrade {
            drain: Some(drain),
            ..wanted_upgrade(Datastore::Etcd, 2, Kind::Minor)
        });
        let ran = |word: &str| {
            at(
                &steps,
                |step| matches!(step, Step::Run { forth, .. } if forth.iter().any(|part| part == word)),
            )
        };
        let ready = |wanted: When| {
            at(
                &steps,
                |step| matches!(step, Step::Ready { when, .. } if *when == wanted),
            )
        };
        let cordoned = at(&steps, |step| matches!(step, Step::Cordon { .. }));
        let drained = at(&steps, |step| matches!(step, Step::Drain { .. }));
        assert!(cordoned < drained && drained < ran("stop"));
        assert!(ready(When::Forth) < ran("uncordon"));
        // The undo goes from the end: the old version is Ready before its node is opened.
        assert!(cordoned < ready(When::Back));
    }

    #[test]
    fn only_the_datastore_of_a_single_server_is_put_back_and_only_several_have_a_lease() {
        let kept = |steps: &[Step]| {
            steps.iter().find_map(|step| {
                let Step::Datastore { path, .. } = step else {
                    return None;
                };
                Some(path.clone())
            })
        };
        for (datastore, servers, kind, wanted) in [
            (
                Datastore::Sqlite,
                1,
                Kind::Minor,
                Some("/d/server/db/state.db"),
            ),
            (Datastore::Sqlite, 1, Kind::Patch, None),
            (Datastore::Etcd, 1, Kind::Minor, Some("/d/server/db/etcd")),
            (Datastore::Etcd, 2, Kind::Minor, None),
            // Nobody could count them.
            (Datastore::Etcd, 0, Kind::Minor, None),
        ] {
            let steps = upgraded(datastore, servers, kind);
            assert_eq!(kept(&steps).as_deref(), wanted, "{datastore:?} {servers}");
            let is_given_back = |words: &[String]| words.iter().any(|word| word == "lease");
            let leases = steps.iter().filter(|step| {
                matches!(step, Step::Run { forth, back } if is_given_back(forth) || is_given_back(back))
            });
            assert_eq!(leases.count(), if servers > 1 { 2 } else { 0 });
        }
        // Forth at the end, back before nothing else than the service of the resume.
        let steps = upgraded(Datastore::Etcd, 3, Kind::Patch);
        let given_back = at(
            &steps,
            |step| matches!(step, Step::Run { back, .. } if back.iter().any(|word| word == "lease")),
        );
        let first_wait = at(&steps, |step| matches!(step, Step::Ready { .. }));
        assert!(given_back < first_wait);
    }

    fn of_etcd() -> Restore {
        Restore {
            init: Init::Systemd,
            program: "/usr/bin/pipeops-agent".to_owned(),
            data_dir: "/d".to_owned(),
            node: "pi".to_owned(),
            version: "v1.34.4+k3s1".parse().unwrap(),
            items: vec!["token".to_owned(), "tls".to_owned()],
            there: vec!["tls".to_owned(), "db/etcd".to_owned()],
            settings: vec![SettingsFile {
                path: "/etc/rancher/k3s/config.yaml".to_owned(),
                content: Content::Text(String::new()),
            }],
            datastore: Datastore::Etcd,
            options: vec!["--node-ip=10.0.0.2".to_owned()],
        }
    }

    #[test]
    fn etcd_is_reset_to_the_snapshot_between_the_settings_and_the_start() {
        let steps = restore(&of_etcd(), &|_| true);
        let ran = |word: &str| {
            at(
                &steps,
                |step| matches!(step, Step::Run { forth, .. } if forth.iter().any(|part| part.contains(word))),
            )
        };
        let aside = at(
            &steps,
            |step| matches!(step, Step::Move { from, to } if from == "/d/server/db/etcd" && to == "/d/server/before-restore/db/etcd"),
        );
        let text = at(
            &steps,
            |step| matches!(step, Step::File { path, .. } if path.ends_with("config.yaml")),
        );
        let made = at(
            &steps,
            |step| matches!(step, Step::Made { path } if path == "/d/server/db/etcd"),
        );
        let reset =
            ran("--cluster-reset-restore-path=/d/server/restoring/data/server/db/etcd-snapshot");
        assert!(aside < made && text < reset && made < reset && reset < ran("start"));
        assert_eq!(ran("--node-ip=10.0.0.2"), reset);
        // The snapshot is a file, whatever bucket the settings name.
        assert_eq!(ran("--etcd-s3=false"), reset);
    }

    #[test]
    fn the_agent_gets_a_credential_of_the_cluster_that_is_there() {
        let steps = restore(&of_etcd(), &|_| true);
        let ready = |wanted: When| {
            at(
                &steps,
                |step| matches!(step, Step::Ready { when, .. } if *when == wanted),
            )
        };
        let again = |command: &[String]| command.join(" ") == connect::again(Init::Systemd);
        let made = at(
            &steps,
            |step| matches!(step, Step::Run { forth, .. } if again(forth)),
        );
        let made_back = at(
            &steps,
            |step| matches!(step, Step::Run { back, .. } if again(back)),
        );
        // An undo goes from the end.
        assert!(ready(When::Forth) < made && made_back < ready(When::Back));
        let steps = restore(&of_etcd(), &|_| false);
        let is_such =
            |step: &Step| matches!(step, Step::Run { forth, back } if again(forth) || again(back));
        assert!(!steps.iter().any(is_such));
    }

    #[test]
    fn a_removal_takes_what_k3s_made_and_leaves_what_it_is_asked_to() {
        let mut wanted = Uninstall {
            init: Init::Systemd,
            role: Role::Server,
            data_dir: "/mnt/ssd/k3s".to_owned(),
            program: "/usr/bin/pipeops-agent".to_owned(),
            note: "/note".to_owned(),
            kept: vec!["/var/lib/cni".to_owned()],
            shared: vec![Use {
                path: "/run/netns",
                why: String::new(),
            }],
            keep: Keep::Nothing,
            links: Vec::new(),
            data: vec!["/mnt/ssd/k3s".to_owned()],
        };
        let all = trees(&wanted, &|_| true);
        assert!(
            all.contains(&"/mnt/ssd/k3s".to_owned())
                && all.contains(&"/etc/rancher/k3s".to_owned())
        );
        for kept in ["/var/lib/cni", "/run/netns"] {
            assert!(!all.contains(&kept.to_owned()), "{all:?}");
        }
        assert!(all.contains(&"/run/containerd".to_owned()), "{all:?}");
        wanted.keep = Keep::Data;
        let some = trees(&wanted, &|_| true);
        assert!(some.contains(&"/var/lib/kubelet".to_owned()));
        assert!(
            !some
                .iter()
                .any(|path| path.starts_with("/mnt") || path.starts_with("/etc/rancher")),
            "{some:?}"
        );
        let steps = uninstall(&wanted, &|_| true);
        let killed = at(
            &steps,
            |step| matches!(step, Step::Run { forth, .. } if forth == &[KILLALL]),
        );
        let gone = at(
            &steps,
            |step| matches!(step, Step::Gone { path, .. } if path == "/var/lib/kubelet"),
        );
        assert!(killed < gone);
    }
}
