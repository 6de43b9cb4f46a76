//! Plans of all repairs, found out by looking at the machine: the acts, and their description for
//! people.
//!
//! A repair that does not fit the machine is refused with what a person can do instead. Nothing is
//! changed here.

mod boot;
mod swap;

use super::place::Place;
use crate::{
    core::repair::{
        Proof, Recipe, Repair, Step,
        recipe::{self, MODULES},
    },
    error::{Error, Result},
    wire::keeper::{Act, Seen},
};

/// Result of planning.
#[derive(Debug)]
pub(super) enum Planned {
    /// There is not, and why.
    Nothing(String),
    /// This.
    Work(Recipe),
}

pub(super) fn plan(repair: Repair, place: &Place) -> Result<Planned> {
    match repair {
        Repair::CgroupMemory => boot::memory_controller(place),
        Repair::Inotify => inotify(place),
        Repair::NetworkManager => Ok(network_manager(place)),
        Repair::SwapCard => swap::on_card(place),
        Repair::KernelModules => kernel_modules(place),
        Repair::ClockSync => clock(place),
        Repair::JournalSize => journal(place),
    }
}

/// The steps of a recipe as acts, each with what is there before it.
pub(super) fn acts(recipe: &Recipe, place: &Place) -> Result<Vec<Act>> {
    let mut acts = Vec::new();
    // Undone last: it reads the files that were put back by then.
    for step in &recipe.steps {
        if let Step::Reload { run, .. } = step {
            acts.push(Act::Run {
                forth: Vec::new(),
                back: words(run),
                seen: None,
            });
        }
    }
    for step in &recipe.steps {
        match step {
            Step::File { path, content } => acts.extend(file(place, path, content.clone())?),
            Step::Line { path, content, .. } => acts.extend(file(place, path, content.clone())?),
            Step::Value { path, value } => acts.push(Act::Value {
                path: path.clone(),
                before: place.line(path).unwrap_or_default(),
                after: value.clone(),
            }),
            Step::Run { forth, back, proof } => acts.push(Act::Run {
                forth: words(forth),
                back: back.map(words).unwrap_or_default(),
                seen: proof.as_ref().map(seen),
            }),
            Step::Reload { run, proof } => acts.push(Act::Run {
                forth: words(run),
                back: Vec::new(),
                seen: proof.as_ref().map(seen),
            }),
        }
    }
    Ok(acts)
}

fn seen(proof: &Proof) -> Seen {
    match proof {
        Proof::Path(path) => Seen::Path(path.clone()),
        Proof::Text(path, text) => Seen::Text((*path).to_owned(), (*text).to_owned()),
        Proof::NoText(path, text) => Seen::NoText((*path).to_owned(), text.clone()),
        Proof::Says(run, text) => Seen::Says(words(run), (*text).to_owned()),
    }
}

fn nothing(why: impl Into<String>) -> Planned {
    Planned::Nothing(why.into())
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A file of ours gets this content; its folder is made where only that is missing.
fn file(place: &Place, path: &str, content: String) -> Result<Vec<Act>> {
    let mut acts = Vec::new();
    let (folder, _) = path.rsplit_once('/').unwrap_or_default();
    if !place.is_there(folder) {
        acts.push(Act::Directory {
            path: folder.to_owned(),
        });
    }
    let before = place.found(path)?;
    acts.push(Act::File {
        path: path.to_owned(),
        content,
        mode: before.as_ref().map_or(0o644, |found| found.attributes.mode),
        before: before.as_ref().map(super::place::before),
    });
    Ok(acts)
}

fn inotify(place: &Place) -> Result<Planned> {
    let limit = |name: &str| {
        let path = format!("/proc/sys/fs/inotify/{name}");
        let number = place.line(&path).and_then(|text| text.parse().ok());
        number.ok_or_else(|| {
            Error::new(format!(
                "cannot raise the limits of inotify: {path} cannot be read"
            ))
            .fix("the kernel was built without inotify, or /proc is not mounted")
        })
    };
    let recipe = recipe::inotify(limit("max_user_instances")?, limit("max_user_watches")?);
    Ok(recipe.map_or_else(
        || nothing("the limits of inotify are high enough"),
        Planned::Work,
    ))
}

fn network_manager(place: &Place) -> Planned {
    const FOLDER: &str = "/etc/NetworkManager";
    if !place.is_there(FOLDER) {
        return nothing("there is no NetworkManager on this machine");
    }
    let mut files = place.list("/etc/NetworkManager/conf.d", ".conf");
    files.push("/etc/NetworkManager/NetworkManager.conf".to_owned());
    let is_told = |path: &String| {
        place.text(path).is_some_and(|text| {
            let mut lines = text
                .lines()
                .filter(|line| !line.trim_start().starts_with('#'));
            lines.any(|line| {
                line.contains("unmanaged-devices")
                    && line.contains("cni")
                    && line.contains("flannel")
            })
        })
    };
    if let Some(path) = files.iter().find(|path| is_told(path)) {
        return nothing(format!("{path} keeps NetworkManager away from them"));
    }
    let is_running = place.is_there("/run/NetworkManager") && place.has("nmcli");
    Planned::Work(recipe::network_manager(is_running))
}

fn kernel_modules(place: &Place) -> Result<Planned> {
    let release = place.line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let folder = format!("/lib/modules/{release}");
    let cannot = || Error::new("cannot load the kernel modules that k3s needs");
    let missing: Vec<_> = MODULES
        .into_iter()
        .filter(|name| !place.is_there(&format!("/sys/module/{name}")))
        .filter(|name| !is_listed(place, &format!("{folder}/modules.builtin"), name))
        .collect();
    if missing.is_empty() {
        return Ok(nothing("the kernel modules that k3s needs are loaded"));
    }
    if release.is_empty() || !place.is_there(&folder) {
        return Err(cannot()
            .why(format!(
                "there is no {folder}: the kernel was updated, and the old one still runs"
            ))
            .fix("sudo reboot"));
    }
    if let Some(name) = missing
        .iter()
        .find(|name| !is_listed(place, &format!("{folder}/modules.dep"), name))
    {
        return Err(cannot()
            .why(format!("{folder} has no module {name}"))
            .fix("install the rest of the kernel's modules: linux-modules-extra-raspi (Ubuntu on a Raspberry Pi), kernel-modules-extra (RHEL); then reboot"));
    }
    Ok(Planned::Work(recipe::kernel_modules(&missing)))
}

/// Returns whether a list of `depmod` has the module. Its lines are
/// `kernel/net/bridge/br_netfilter.ko.xz: …`.
fn is_listed(place: &Place, list: &str, name: &str) -> bool {
    let content = crate::files::read(&place.path(list), 8 << 20).unwrap_or_default();
    let (dashes, file) = (name.replace('_', "-"), |name: &str| format!("/{name}.ko"));
    let (one, other) = (file(name), file(&dashes));
    content.split(|byte| *byte == b'\n').any(|line| {
        let path = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let path = String::from_utf8_lossy(path);
        path.contains(&one) || path.contains(&other)
    })
}

fn clock(place: &Place) -> Result<Planned> {
    let cannot = || Error::new("cannot have the clock set by the network");
    if !place.is_there("/run/systemd/system") || !place.has("timedatectl") {
        return Err(cannot()
            .why("this machine has no timedatectl")
            .fix("with OpenRC: rc-update add chronyd default && rc-service chronyd start (apk add chrony)"));
    }
    let property = |name: &str| {
        let asked = format!("timedatectl show --value --property={name}");
        place
            .run(&words(&asked))
            .map(|ended| ended.output.trim().to_owned())
    };
    if property("NTP")? == "yes" {
        return Ok(nothing(
            "the clock is set by the network already, when a server answers: timedatectl timesync-status",
        ));
    }
    if property("CanNTP")? == "no" {
        return Err(cannot()
            .why("no program that does it is installed")
            .fix("sudo apt install systemd-timesyncd, or chrony"));
    }
    Ok(Planned::Work(recipe::clock()))
}

fn journal(place: &Place) -> Result<Planned> {
    if !place.is_there("/run/systemd/system") || !place.has("systemctl") {
        return Err(Error::new("cannot give the journal a limit")
            .why("this machine has no journald")
            .fix("install logrotate, so that /var/log/k3s.log does not grow for ever"));
    }
    let mut files = vec!["/etc/systemd/journald.conf".to_owned()];
    for folder in ["/etc", "/run", "/usr/lib"] {
        files.extend(place.list(&format!("{folder}/systemd/journald.conf.d"), ".conf"));
    }
    let is_limited = |path: &&String| {
        place.text(path).is_some_and(|text| {
            let mut lines = text.lines().filter_map(|line| line.trim().split_once('='));
            lines.any(|(key, value)| key.trim() == "SystemMaxUse" && !value.trim().is_empty())
        })
    };
    if let Some(path) = files.iter().find(is_limited) {
        return Ok(nothing(format!("{path} gives the journal a limit")));
    }
    Ok(Planned::Work(recipe::journal()))
}
