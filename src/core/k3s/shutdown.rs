//! End of the Pods when the machine goes down.
//!
//! They outlive each stop of k3s, and systemd would wait for their shims, which ignore its signal,
//! until its own deadline.

use super::{
    step::{Step, file, run},
    texts::{self, Init},
};

const UNIT: &str = "/etc/systemd/system/pipeops-k3s-shutdown.service";
const WANTS_LINK: &str = "/etc/systemd/system/multi-user.target.wants/pipeops-k3s-shutdown.service";
const SERVICE: &str = "/etc/init.d/pipeops-k3s-shutdown";
const RUNLEVEL_LINK: &str = "/etc/runlevels/default/pipeops-k3s-shutdown";

/// File that is there where Pods are ended by it.
pub const fn unit_path(init: Init) -> &'static str {
    match init {
        Init::Systemd => UNIT,
        Init::OpenRc => SERVICE,
    }
}

/// Command before a removal: the service manager would keep the service in mind.
pub const fn stop_command(init: Init) -> &'static str {
    match init {
        Init::Systemd => "systemctl stop pipeops-k3s-shutdown.service",
        Init::OpenRc => "rc-service pipeops-k3s-shutdown stop",
    }
}

/// Paths that a removal of k3s takes.
pub const fn created_paths(init: Init) -> &'static [&'static str] {
    match init {
        Init::Systemd => &[WANTS_LINK, UNIT],
        Init::OpenRc => &[RUNLEVEL_LINK, SERVICE],
    }
}

/// Mark that k3s had stopped when the machine went down, beside the note that k3s is managed.
pub fn stopped(note: &str) -> String {
    format!("{note}.stopped")
}

/// The files. systemd has to read them anew before [`start`].
pub(super) fn files(init: Init, data_dir: &str, note: &str) -> [Step; 2] {
    let mode = match init {
        Init::Systemd => 0o644,
        Init::OpenRc => 0o755,
    };
    let (path, link) = match init {
        Init::Systemd => (UNIT, WANTS_LINK),
        Init::OpenRc => (SERVICE, RUNLEVEL_LINK),
    };
    [
        file(path, texts::shutdown(init, data_dir, &stopped(note)), mode),
        Step::Link {
            path: link.to_owned(),
            target: path.to_owned(),
        },
    ]
}

/// Start of the service, whose stop at a shutdown is what acts.
pub(super) fn start(init: Init) -> Step {
    let start = match init {
        Init::Systemd => "systemctl start pipeops-k3s-shutdown.service",
        Init::OpenRc => "rc-service pipeops-k3s-shutdown start",
    };
    run(start, stop_command(init))
}
