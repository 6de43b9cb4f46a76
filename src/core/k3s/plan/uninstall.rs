//! Removal of k3s.

use super::{
    disable,
    install::{ROTATION, protection},
    resume::{no_resume, resume},
};
use crate::core::k3s::{
    BINARY, DROP_IN, JOIN_TOKEN, KILLALL, KUBECONFIG, MADE, REGISTRIES, Role, connect, data,
    proxy::ENVIRONMENT,
    runtimes::Use,
    shutdown,
    step::{Step, empty, file, gone, run},
    texts::{self, Init},
    watch,
};

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
pub(super) const DATA: [&str; 2] = ["/etc/rancher/node", "/etc/rancher/k3s"];

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
    let unit = match wanted.init {
        Init::Systemd => role.unit_path(),
        Init::OpenRc => role.init_script(),
    };
    if is_there(unit) {
        steps.push(run(&disable(wanted.init, role), ""));
    }
    steps.push(file(KILLALL, texts::killall(role, &wanted.data_dir), 0o755));
    steps.push(run(KILLALL, ""));
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
        &[DROP_IN, REGISTRIES, JOIN_TOKEN, KUBECONFIG]
    } else {
        &["/etc/rancher/k3s"]
    };
    let all = data.chain(settings.iter().copied()).chain(made);
    all.filter(|path| !is_kept(path))
        .filter(|path| is_there(path))
        .map(str::to_owned)
        .collect()
}
