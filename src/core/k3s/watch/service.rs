//! Units and files by which the watch runs.

use crate::core::k3s::{
    connect,
    copies::SPOOL,
    step::{Step, directories, file, run},
    texts::{self, Init},
};

/// File with the state of the watch, which the agent reads: root's, in memory.
pub const STATE: &str = "/run/pipeops-k3s/watch";

/// File with the state of k3s as of the last run, for the agent: root's, in memory.
pub const STATUS: &str = "/run/pipeops-k3s/status";

/// Longest such state: some hundred volumes.
pub const STATUS_BYTES_MAX: usize = 256 * 1024;

/// File with the progress of a change, for the agent: root's, in memory.
pub const PROGRESS: &str = "/run/pipeops-k3s/doing";

/// Permissions of these files: the agent's group may read them.
pub const STATE_MODE: u32 = 0o640;

/// Unit of the service that runs the watch once.
pub const UNIT: &str = "/etc/systemd/system/pipeops-k3s-watch.service";

/// Unit of the timer of that service.
pub const TIMER: &str = "/etc/systemd/system/pipeops-k3s-watch.timer";

const WANTS_LINK: &str = "/etc/systemd/system/timers.target.wants/pipeops-k3s-watch.timer";

/// Init script for OpenRC, which has no timers: a loop that sleeps.
pub const SERVICE: &str = "/etc/init.d/pipeops-k3s-watch";

const RUNLEVEL_LINK: &str = "/etc/runlevels/default/pipeops-k3s-watch";

/// Path of a unit that exists where k3s is watched.
pub const fn unit_path(init: Init) -> &'static str {
    match init {
        Init::Systemd => TIMER,
        Init::OpenRc => SERVICE,
    }
}

/// Command that stops the watch.
pub const fn stop_command(init: Init) -> &'static str {
    match init {
        Init::Systemd => "systemctl stop pipeops-k3s-watch.timer pipeops-k3s-watch.service",
        Init::OpenRc => "rc-service pipeops-k3s-watch stop",
    }
}

/// Paths that the watch creates, and a removal of k3s removes.
pub const fn created_paths(init: Init) -> &'static [&'static str] {
    match init {
        Init::Systemd => &[WANTS_LINK, TIMER, UNIT, STATE, STATUS, PROGRESS, SPOOL],
        Init::OpenRc => &[RUNLEVEL_LINK, SERVICE, STATE, STATUS, PROGRESS, SPOOL],
    }
}

/// Steps that set up the watch.
pub fn steps(init: Init, program: &str, is_there: &dyn Fn(&str) -> bool) -> Vec<Step> {
    let mut steps = Vec::new();
    directories(&mut steps, connect::DIRECTORY, is_there);
    // Undone last: until then the service may write them.
    let files = [STATE, STATUS, PROGRESS].map(|path| Step::Made {
        path: path.to_owned(),
    });
    steps.extend(files);
    match init {
        Init::Systemd => {
            directories(&mut steps, connect::WANTS, is_there);
            steps.extend([
                run("", "systemctl daemon-reload"),
                file(UNIT, texts::watch(init, program), 0o644),
                file(TIMER, texts::text("watch.timer"), 0o644),
                Step::Link {
                    path: WANTS_LINK.to_owned(),
                    target: TIMER.to_owned(),
                },
                run("systemctl daemon-reload", ""),
                run(
                    "systemctl start pipeops-k3s-watch.timer",
                    stop_command(init),
                ),
            ]);
        }
        Init::OpenRc => steps.extend([
            file(SERVICE, texts::watch(init, program), 0o755),
            Step::Link {
                path: RUNLEVEL_LINK.to_owned(),
                target: SERVICE.to_owned(),
            },
            run("rc-service pipeops-k3s-watch start", stop_command(init)),
        ]),
    }
    steps
}
