//! Installation of k3s, of a server or a worker.

use super::{
    disable, enable,
    resume::{no_resume, resume},
    start,
};
use crate::core::k3s::{
    BINARY, DROP_IN, JOIN_TOKEN, KILLALL, LINKS, MADE, REGISTRIES, Role, Version, connect, data,
    proxy::ENVIRONMENT,
    shutdown,
    step::{Staged, Step, When, copy, directories, file, run},
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
pub(super) fn service(steps: &mut Vec<Step>, wanted: &Install, is_there: &dyn Fn(&str) -> bool) {
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
        }
        Init::OpenRc => {
            directories(steps, "/etc/logrotate.d", is_there);
            steps.push(file(ROTATION, texts::text("k3s.logrotate"), 0o644));
            steps.push(file(wanted.role.init_script(), text, 0o755));
            steps.extend(shutdown::files(init, &wanted.data_dir, &wanted.note.0));
        }
    }
    let disable = disable(init, role);
    steps.push(run(&enable(init, role), &disable));
    steps.push(run(&start(init, role), KILLALL));
    // Undone before k3s is stopped.
    steps.push(run("", &disable));
    steps.push(shutdown::start(init));
}

pub(super) fn files(steps: &mut Vec<Step>, wanted: &Install) {
    steps.push(file(DROP_IN, wanted.drop_in.content.clone(), 0o600));
    if let Some(content) = &wanted.registries {
        steps.push(file(REGISTRIES, content.clone(), 0o600));
    }
    if let Some(token) = &wanted.token {
        steps.push(copy(token, JOIN_TOKEN.to_owned(), 0o600));
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

/// The drop-in of systemd that protects a unit.
pub(super) fn protection(unit: &str) -> String {
    format!("/etc/systemd/system/{unit}.service.d/50-pipeops-k3s.conf")
}

/// Rotation of the log that OpenRC writes; with systemd the journal has it.
pub(super) const ROTATION: &str = "/etc/logrotate.d/k3s";
