//! Service of the agent in the service manager of this machine.

use std::{path::Path, time::Duration};

use crate::{
    config::DEFAULT_FILE,
    core::k3s::{connect, texts::Init, watch},
    error::{Error, Result},
    host::exec,
};

/// The name of the service.
const NAME: &str = "pipeops-agent";

/// A stop may take as long as the agent's own, which is 25 s.
const LIMITS: exec::Limits = exec::Limits {
    within: Duration::from_secs(60),
    output_bytes_max: 16 * 1024,
};

/// Service manager that knows the agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Manager {
    Systemd,
    OpenRc,
}

/// The service manager below `root` that knows the agent.
pub(super) fn manager(root: &Path) -> Option<Manager> {
    let is_there = |path: &str| root.join(path).exists();
    let units = ["etc", "run", "usr/lib", "lib", "usr/local/lib"];
    let mut units = units
        .map(|folder| format!("{folder}/systemd/system/{NAME}.service"))
        .into_iter();
    if is_there("run/systemd/system") && units.any(|unit| is_there(&unit)) {
        Some(Manager::Systemd)
    } else if is_there("run/openrc") && is_there(&format!("etc/init.d/{NAME}")) {
        Some(Manager::OpenRc)
    } else {
        None
    }
}

/// Hint for starting the agent of this machine.
pub(super) fn start_line() -> &'static str {
    let is_set_up = Path::new(DEFAULT_FILE).exists();
    match manager(Path::new("/")) {
        Some(_) if !is_set_up => "set this machine up: sudo pipeops-agent up",
        Some(Manager::Systemd) => "start it: sudo systemctl start pipeops-agent",
        Some(Manager::OpenRc) => "start it: sudo rc-service pipeops-agent start",
        None => "start it: pipeops-agent run; a new machine is set up by sudo pipeops-agent up",
    }
}

/// Hint for finding the agent's log.
pub(super) fn log_line() -> &'static str {
    match manager(Path::new("/")) {
        Some(Manager::Systemd) => "see its log: journalctl -u pipeops-agent -n 50",
        Some(Manager::OpenRc) => "see its log: tail -n 50 /var/log/pipeops-agent.log",
        None => "see its output where it was started",
    }
}

/// Command that shows the log of the service of an update.
pub(super) fn log_of_update() -> &'static str {
    match manager(Path::new("/")) {
        Some(Manager::Systemd) | None => "journalctl -u pipeops-update",
        // The one of root's services.
        Some(Manager::OpenRc) => "tail -n 50 /var/log/pipeops-keeper.log",
    }
}

impl Manager {
    /// Starts the agent with the current settings, now and at boot.
    pub(super) fn start(self, root: &Path) -> Result<()> {
        let steps: [&[&str]; 2] = match self {
            Self::Systemd => [
                &["systemctl", "enable", NAME],
                &["systemctl", "restart", NAME],
            ],
            Self::OpenRc => [
                &["rc-update", "add", NAME, "default"],
                &["rc-service", NAME, "restart"],
            ],
        };
        steps.into_iter().try_for_each(|argv| run(root, argv))
    }

    /// Stops the agent and disables it at boot.
    pub(super) fn stop(self, root: &Path) -> Result<()> {
        match self {
            Self::Systemd => {
                run(root, &["systemctl", "stop", NAME])?;
                run(root, &["systemctl", "disable", NAME])
            }
            Self::OpenRc => {
                run(root, &["rc-service", NAME, "stop"])?;
                // To rc-update it is an error where the service does not start at boot.
                if root.join("etc/runlevels/default").join(NAME).is_symlink() {
                    run(root, &["rc-update", "delete", NAME, "default"])?;
                }
                Ok(())
            }
        }
    }
}

/// Stops the services that `pipeops-agent k3s` made; those that are not there are no matter.
pub(super) fn stop_for_k3s(root: &Path) {
    let stops = if root.join("run/systemd/system").exists() {
        vec![
            watch::stop_command(Init::Systemd),
            connect::stop_command(Init::Systemd),
        ]
    } else if root.join("run/openrc").exists() {
        vec![
            watch::stop_command(Init::OpenRc),
            connect::stop_command(Init::OpenRc),
        ]
    } else {
        vec![]
    };
    for stop in stops {
        let argv: Vec<_> = stop.split(' ').collect();
        drop(run(root, &argv));
    }
}

fn run(root: &Path, argv: &[&str]) -> Result<()> {
    let ended = exec::run(root, argv, LIMITS)?;
    if ended.success() {
        return Ok(());
    }
    let why = [ended.stderr.trim(), ended.stdout.trim()];
    let why = why
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or("it does not say why");
    Err(Error::new(format!("{:?} failed", argv.join(" ")))
        .why(why)
        .fix(format!("run it with sudo; {}", log_line())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::files;

    /// A machine whose service manager writes down what it is asked.
    fn machine(folders: &[&str], programs: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in folders.iter().chain(&["usr/bin"]) {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for program in programs {
            let path = root.path().join("usr/bin").join(program);
            let said = root.path().join("said");
            let script = format!("#!/bin/sh\necho {program} \"$@\" >> {}\n", said.display());
            files::replace(&path, script.as_bytes(), 0o755).unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o111, 0o111);
        }
        root
    }

    fn said(root: &Path) -> String {
        std::fs::read_to_string(root.join("said")).unwrap_or_default()
    }

    #[test]
    fn the_service_is_started_and_stopped_by_whoever_manages_services() {
        let root = machine(
            &[
                "run/systemd/system",
                "etc/systemd/system/pipeops-agent.service",
            ],
            &["systemctl"],
        );
        let manager = manager(root.path()).unwrap();
        assert_eq!(manager, Manager::Systemd);
        manager.start(root.path()).unwrap();
        manager.stop(root.path()).unwrap();
        assert_eq!(
            said(root.path()),
            "systemctl enable pipeops-agent\nsystemctl restart pipeops-agent\nsystemctl stop pipeops-agent\nsystemctl disable pipeops-agent\n"
        );
    }

    #[test]
    fn a_machine_with_openrc_is_asked_in_its_own_words() {
        let root = machine(
            &["run/openrc", "etc/init.d/pipeops-agent"],
            &["rc-update", "rc-service"],
        );
        let manager = manager(root.path()).unwrap();
        manager.start(root.path()).unwrap();
        stop_for_k3s(root.path());
        assert_eq!(
            said(root.path()),
            "rc-update add pipeops-agent default\nrc-service pipeops-agent restart\nrc-service pipeops-k3s-watch stop\nrc-service pipeops-k3s-connect stop\n"
        );
        // Somebody took it out of the boot already, which rc-update would call an error.
        manager.stop(root.path()).unwrap();
        assert!(!said(root.path()).contains("delete"));
        let runlevel = root.path().join("etc/runlevels/default");
        std::fs::create_dir_all(&runlevel).unwrap();
        std::os::unix::fs::symlink("/etc/init.d/pipeops-agent", runlevel.join(NAME)).unwrap();
        manager.stop(root.path()).unwrap();
        assert!(said(root.path()).ends_with("rc-update delete pipeops-agent default\n"));
    }

    #[test]
    fn where_the_agent_is_no_service_nobody_is_asked() {
        assert_eq!(manager(machine(&["run/systemd/system"], &[]).path()), None);
        assert_eq!(manager(machine(&[], &[]).path()), None);
    }

    #[test]
    fn what_the_service_manager_complains_about_is_told() {
        let root = machine(
            &[
                "run/systemd/system",
                "etc/systemd/system/pipeops-agent.service",
            ],
            &[],
        );
        let script = b"#!/bin/sh\necho access denied >&2\nexit 4\n";
        files::replace(&root.path().join("usr/bin/systemctl"), script, 0o755).unwrap();
        let error = Manager::Systemd.start(root.path()).unwrap_err();
        assert!(error.sentence().contains("access denied"), "{error}");
    }
}
