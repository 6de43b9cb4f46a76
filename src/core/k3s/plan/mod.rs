//! Plans of what the keeper does for k3s: steps in order, each with what it is for people and how
//! it is undone.

mod install;
mod node;
mod restore;
mod resume;
mod uninstall;
mod upgrade;

pub use self::{
    install::{Install, install},
    node::{Node, NodeRemoval, node, remove_node},
    restore::{Content, Restore, SNAPSHOT, SettingsFile, restore},
    resume::{is_resume, no_resume, resume},
    uninstall::{Keep, Uninstall, trees, uninstall},
    upgrade::{Image, Kind, Upgrade, upgrade},
};
use super::{
    Role,
    step::{Step, run},
    texts::Init,
};

/// Command that starts k3s; with systemd nothing waits for it.
fn start(init: Init, role: Role) -> String {
    let name = role.name();
    match init {
        Init::Systemd => format!("systemctl start --no-block {name}"),
        Init::OpenRc => format!("rc-service {name} start"),
    }
}

/// Command that has k3s start at boot.
fn enable(init: Init, role: Role) -> String {
    let name = role.name();
    match init {
        Init::Systemd => format!("systemctl enable {name}"),
        Init::OpenRc => format!("rc-update add {name} default"),
    }
}

/// Command that keeps k3s from the next boot. While a change needs k3s to be stopped, nothing may
/// start it after a power cut, or it would begin with half of its data.
fn disable(init: Init, role: Role) -> String {
    let name = role.name();
    match init {
        Init::Systemd => format!("systemctl disable {name}"),
        Init::OpenRc => leave_runlevel(name),
    }
}

/// Step that keeps a k3s that starts at boot from doing so until [`started_again`].
fn kept_from_boot(init: Init, role: Role, is_enabled: bool) -> Option<Step> {
    is_enabled.then(|| run(&disable(init, role), &enable(init, role)))
}

/// Steps that start k3s after [`kept_from_boot`]; the undo keeps it from the next boot before it
/// stops it.
fn started_again(init: Init, role: Role, stop: &str, is_enabled: bool) -> Vec<Step> {
    let start = run(&start(init, role), stop);
    if !is_enabled {
        return vec![start];
    }
    let [enable, disable] = [enable(init, role), disable(init, role)];
    vec![run(&enable, ""), start, run("", &disable)]
}

/// Path that exists where k3s starts at boot.
pub fn enabled_path(init: Init, role: Role) -> String {
    let name = role.name();
    match init {
        Init::Systemd => {
            format!("/etc/systemd/system/multi-user.target.wants/{name}.service")
        }
        Init::OpenRc => format!("/etc/runlevels/default/{name}"),
    }
}

/// Command that keeps a service from the next boot. Unlike rc-update it does not fail where a cut
/// or somebody has done it already.
fn leave_runlevel(name: &str) -> String {
    format!("rm -f /etc/runlevels/default/{name}")
}

/// Command that stops k3s.
fn stop(init: Init, role: Role) -> String {
    let name = role.name();
    match init {
        Init::Systemd => format!("systemctl stop {name}"),
        Init::OpenRc => format!("rc-service {name} stop"),
    }
}

#[cfg(test)]
mod tests;
