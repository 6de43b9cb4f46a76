//! Plans of all repairs, found out by looking at the machine: the acts, and their description for
//! people.
//!
//! A repair that does not fit the machine is refused with what a person can do instead. Nothing is
//! changed here.

mod boot;
mod swap;

use super::system::System;
use crate::{
    core::repair::{
        Proof, Recipe, RecipeStep, Repair,
        recipe::{self, MODULES},
        settled,
    },
    error::{Error, Result},
    host::doctor::modules::{ModuleState, Modules},
    wire::keeper::{Act, Expectation},
};

/// Result of planning.
#[derive(Debug)]
pub(super) enum Planned {
    /// Nothing to repair; the reason.
    Nothing(String),
    Work(Recipe),
}

pub(super) fn plan(repair: Repair, system: &System) -> Result<Planned> {
    match repair {
        Repair::CgroupMemory => boot::memory_controller(system),
        Repair::Inotify => inotify(system),
        Repair::NetworkManager => Ok(network_manager(system)),
        Repair::SwapCard => swap::on_card(system),
        Repair::KernelModules => kernel_modules(system),
        Repair::ClockSync => clock(system),
        Repair::JournalSize => journal(system),
    }
}

/// The steps of a recipe as acts, each with what is there before it.
pub(super) fn acts(recipe: &Recipe, system: &System) -> Result<Vec<Act>> {
    let mut acts = Vec::new();
    // Undone last: it reads the files that were put back by then.
    for step in &recipe.steps {
        if let RecipeStep::Reload { run, .. } = step {
            acts.push(Act::Run {
                forth: Vec::new(),
                back: words(run),
                seen: None,
            });
        }
    }
    for step in &recipe.steps {
        match step {
            RecipeStep::File { path, content } => acts.extend(file(system, path, content.clone())?),
            RecipeStep::Line { path, content, .. } => {
                acts.extend(file(system, path, content.clone())?)
            }
            RecipeStep::Value { path, value } => acts.push(Act::Value {
                path: path.clone(),
                before: system.line(path).unwrap_or_default(),
                after: value.clone(),
            }),
            RecipeStep::Run { forth, back, proof } => acts.push(Act::Run {
                forth: words(forth),
                back: back.map(words).unwrap_or_default(),
                seen: proof.as_ref().map(seen),
            }),
            RecipeStep::Reload { run, proof } => acts.push(Act::Run {
                forth: words(run),
                back: Vec::new(),
                seen: proof.as_ref().map(seen),
            }),
        }
    }
    Ok(acts)
}

fn seen(proof: &Proof) -> Expectation {
    match proof {
        Proof::Path(path) => Expectation::Path(path.clone()),
        Proof::Text(path, text) => Expectation::Text((*path).to_owned(), (*text).to_owned()),
        Proof::NoText(path, text) => Expectation::NoText((*path).to_owned(), text.clone()),
        Proof::Says(run, text) => Expectation::Says(words(run), (*text).to_owned()),
    }
}

fn nothing(why: impl Into<String>) -> Planned {
    Planned::Nothing(why.into())
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A file of ours gets this content; its folder is made where only that is missing.
fn file(system: &System, path: &str, content: String) -> Result<Vec<Act>> {
    let mut acts = Vec::new();
    let (folder, _) = path.rsplit_once('/').unwrap_or_default();
    if !system.is_there(folder) {
        acts.push(Act::Directory {
            path: folder.to_owned(),
        });
    }
    let before = system.found(path)?;
    acts.push(Act::File {
        path: path.to_owned(),
        content,
        mode: before.as_ref().map_or(0o644, |found| found.attributes.mode),
        before: before.as_ref().map(super::system::before),
    });
    Ok(acts)
}

fn inotify(system: &System) -> Result<Planned> {
    let limit = |name: &str| {
        let path = format!("/proc/sys/fs/inotify/{name}");
        let number = system.line(&path).and_then(|text| text.parse().ok());
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

fn network_manager(system: &System) -> Planned {
    const FOLDER: &str = "/etc/NetworkManager";
    if !system.is_there(FOLDER) {
        return nothing("there is no NetworkManager on this machine");
    }
    let files = existing(system, &settled::NETWORK_MANAGER);
    let is_told = |path: &&String| {
        system
            .text(path)
            .is_some_and(|text| settled::spares_pods(&text))
    };
    if let Some(path) = files.iter().find(is_told) {
        return nothing(format!("{path} keeps NetworkManager away from them"));
    }
    let is_running = system.is_there("/run/NetworkManager") && system.has("nmcli");
    Planned::Work(recipe::network_manager(is_running))
}

fn kernel_modules(system: &System) -> Result<Planned> {
    let release = system
        .line("/proc/sys/kernel/osrelease")
        .unwrap_or_default();
    let folder = format!("/lib/modules/{release}");
    let cannot = || Error::new("cannot load the kernel modules that k3s needs");
    let modules = Modules::new(system.root(), &release);
    let missing: Vec<_> = MODULES
        .into_iter()
        .map(|name| (name, modules.state(name)))
        .filter(|(_, state)| !matches!(state, ModuleState::Loaded | ModuleState::BuiltIn))
        .collect();
    if missing.is_empty() {
        return Ok(nothing("the kernel modules that k3s needs are loaded"));
    }
    if release.is_empty() || !system.is_there(&folder) {
        return Err(cannot()
            .why(format!(
                "there is no {folder}: the kernel was updated, and the old one still runs"
            ))
            .fix("sudo reboot"));
    }
    let is_absent = |(_, state): &&(_, ModuleState)| *state != ModuleState::Installed;
    if let Some((name, _)) = missing.iter().find(is_absent) {
        return Err(cannot()
            .why(format!("{folder} has no module {name}"))
            .fix("install the rest of the kernel's modules: linux-modules-extra-raspi (Ubuntu on a Raspberry Pi), kernel-modules-extra (RHEL); then reboot"));
    }
    let missing: Vec<_> = missing.into_iter().map(|(name, _)| name).collect();
    Ok(Planned::Work(recipe::kernel_modules(&missing)))
}

fn clock(system: &System) -> Result<Planned> {
    let cannot = || Error::new("cannot enable network time synchronization");
    if !system.is_there("/run/systemd/system") || !system.has("timedatectl") {
        return Err(cannot()
            .why("this machine has no timedatectl")
            .fix("with OpenRC: rc-update add chronyd default && rc-service chronyd start (apk add chrony)"));
    }
    let property = |name: &str| {
        let asked = format!("timedatectl show --value --property={name}");
        system
            .run(&words(&asked))
            .map(|ended| ended.stdout.trim().to_owned())
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

fn journal(system: &System) -> Result<Planned> {
    if !system.is_there("/run/systemd/system") || !system.has("systemctl") {
        return Err(Error::new("cannot give the journal a limit")
            .why("this machine has no journald")
            .fix("install logrotate, so that /var/log/k3s.log does not grow for ever"));
    }
    let files = existing(system, &settled::JOURNAL);
    let is_limited = |path: &&String| {
        system
            .text(path)
            .is_some_and(|text| settled::limits_journal(&text))
    };
    if let Some(path) = files.iter().find(is_limited) {
        return Ok(nothing(format!("{path} gives the journal a limit")));
    }
    Ok(Planned::Work(recipe::journal()))
}

/// Files of these names, where a `*` stands for any.
fn existing(system: &System, names: &[&str]) -> Vec<String> {
    let files = names.iter().flat_map(|name| match name.split_once("/*") {
        Some((folder, end)) => system.list(folder, end),
        None => vec![(*name).to_owned()],
    });
    files.collect()
}
