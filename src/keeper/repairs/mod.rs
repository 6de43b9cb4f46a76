//! What each repair would do on this machine, found out by looking: the acts, and what people are told of them beforehand.
//!
//! A repair that does not fit the machine is refused with what a person can do instead. Nothing is changed here.

mod boot;
mod swap;

use super::place::Place;
use crate::{
    core::repair::Repair,
    error::{Error, Result},
    wire::keeper::{Act, Before, Seen},
};

/// What a repair would do.
#[derive(Debug)]
pub(super) struct Proposal {
    pub(super) does: String,
    pub(super) leaves: String,
    pub(super) undo: String,
    pub(super) remains: Option<String>,
    pub(super) acts: Vec<Act>,
}

/// Whether there is something to do.
#[derive(Debug)]
pub(super) enum Planned {
    /// There is not, and why.
    Nothing(String),
    /// This.
    Work(Proposal),
}

pub(super) fn plan(repair: Repair, place: &Place) -> Result<Planned> {
    match repair {
        Repair::CgroupMemory => boot::memory_controller(place),
        Repair::Inotify => inotify(place),
        Repair::NetworkManager => network_manager(place),
        Repair::SwapCard => swap::on_card(place),
        Repair::KernelModules => kernel_modules(place),
        Repair::ClockSync => clock(place),
        Repair::JournalSize => journal(place),
    }
}

fn nothing(why: impl Into<String>) -> Planned {
    Planned::Nothing(why.into())
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A program that is run forth, and nothing back.
fn run(forth: &str, seen: Option<Seen>) -> Act {
    Act::Run {
        forth: words(forth),
        back: Vec::new(),
        seen,
    }
}

/// A program that is run when all that came after it was taken back.
fn run_back(back: &str) -> Act {
    Act::Run {
        forth: Vec::new(),
        back: words(back),
        seen: None,
    }
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
        mode: before.as_ref().map_or(0o644, |found| found.mode),
        before: before.map(|found| Before {
            copy: String::new(),
            sha256: found.sha256(),
            mode: found.mode,
        }),
    });
    Ok(acts)
}

/// k3s and its Pods take one instance for each watched folder: 128 are gone with a dozen Pods.
const INOTIFY: [(&str, u64); 2] = [("max_user_instances", 8192), ("max_user_watches", 524_288)];

fn inotify(place: &Place) -> Result<Planned> {
    const FILE: &str = "/etc/sysctl.d/90-pipeops-inotify.conf";
    let mut values = Vec::new();
    let mut lines = Vec::new();
    for (name, wanted) in INOTIFY {
        let path = format!("/proc/sys/fs/inotify/{name}");
        let before = place.line(&path);
        let Some(number) = before.as_ref().and_then(|text| text.parse::<u64>().ok()) else {
            return Err(Error::new(format!(
                "cannot raise the limits of inotify: {path} cannot be read"
            ))
            .fix("the kernel was built without inotify, or /proc is not mounted"));
        };
        // What is higher stays so, also after a reboot.
        lines.push(format!("fs.inotify.{name} = {}\n", wanted.max(number)));
        if number < wanted {
            values.push(Act::Value {
                path,
                before: before.unwrap_or_default(),
                after: wanted.to_string(),
            });
        }
    }
    if values.is_empty() {
        return Ok(nothing("the limits of inotify are high enough"));
    }
    let mut acts = file(place, FILE, lines.concat())?;
    acts.extend(values);
    Ok(Planned::Work(Proposal {
        does: format!(
            "sets the limits of inotify to 8192 instances and 524288 watches: in {FILE}, and at once"
        ),
        leaves: "all other limits, and other files of /etc/sysctl.d".to_owned(),
        undo: format!("removes {FILE} and sets the limits to what they were"),
        remains: None,
        acts,
    }))
}

fn network_manager(place: &Place) -> Result<Planned> {
    const FOLDER: &str = "/etc/NetworkManager";
    const FILE: &str = "/etc/NetworkManager/conf.d/90-pipeops-k3s.conf";
    const CONTENT: &str = "# Interfaces of Pods belong to k3s.\n[keyfile]\n\
        unmanaged-devices+=interface-name:cni*;interface-name:flannel*;interface-name:veth*\n";
    if !place.is_there(FOLDER) {
        return Ok(nothing("there is no NetworkManager on this machine"));
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
        return Ok(nothing(format!(
            "{path} keeps NetworkManager away from them"
        )));
    }
    let is_running = place.is_there("/run/NetworkManager") && place.has("nmcli");
    let mut acts = Vec::new();
    if is_running {
        acts.push(run_back("nmcli general reload conf"));
    }
    acts.extend(file(place, FILE, CONTENT.to_owned())?);
    if is_running {
        acts.push(run("nmcli general reload conf", None));
    }
    Ok(Planned::Work(Proposal {
        does: format!(
            "tells NetworkManager in {FILE} to leave cni*, flannel* and veth* alone, and lets it read that"
        ),
        leaves: "all connections and every other interface".to_owned(),
        undo: format!("removes {FILE} and lets NetworkManager read its settings again"),
        remains: None,
        acts,
    }))
}

/// What containers and their network need of the kernel, whatever the backend.
const MODULES: [&str; 3] = ["overlay", "br_netfilter", "nf_conntrack"];

fn kernel_modules(place: &Place) -> Result<Planned> {
    const FILE: &str = "/etc/modules-load.d/90-pipeops-k3s.conf";
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
    let mut acts = file(place, FILE, format!("{}\n", missing.join("\n")))?;
    for name in &missing {
        let seen = Seen::Path(format!("/sys/module/{name}"));
        acts.push(run(&format!("modprobe {name}"), Some(seen)));
    }
    let names = missing.join(", ");
    Ok(Planned::Work(Proposal {
        does: format!("loads {names}, now and, by {FILE}, at every start"),
        leaves: "all other modules and their options".to_owned(),
        undo: format!("removes {FILE}; the modules stay loaded until the next start"),
        remains: None,
        acts,
    }))
}

/// Whether a list of `depmod` has the module. Its lines are `kernel/net/bridge/br_netfilter.ko.xz: …`.
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
    let seen = Seen::Says(
        words("timedatectl show --value --property=NTP"),
        "yes".to_owned(),
    );
    let act = Act::Run {
        forth: words("timedatectl set-ntp true"),
        back: words("timedatectl set-ntp false"),
        seen: Some(seen),
    };
    Ok(Planned::Work(Proposal {
        does: "switches on that the clock is set by the network (timedatectl set-ntp true)"
            .to_owned(),
        leaves: "the time zone, and which servers are asked".to_owned(),
        undo: "switches it off again; the clock is not set back".to_owned(),
        remains: None,
        acts: vec![act],
    }))
}

fn journal(place: &Place) -> Result<Planned> {
    const FILE: &str = "/etc/systemd/journald.conf.d/90-pipeops.conf";
    const RESTART: &str = "systemctl restart systemd-journald.service";
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
    let mut acts = vec![run_back(RESTART)];
    acts.extend(file(
        place,
        FILE,
        "# On a small disk the journal takes up to a tenth of it otherwise.\n[Journal]\nSystemMaxUse=100M\n".to_owned(),
    )?);
    acts.push(run(RESTART, None));
    Ok(Planned::Work(Proposal {
        does: format!(
            "limits the journal to 100 MB in {FILE}, and restarts journald; its oldest entries beyond that are deleted"
        ),
        leaves: "the newest 100 MB of the journal, and all other logs".to_owned(),
        undo: format!("removes {FILE} and restarts journald; deleted entries do not come back"),
        remains: None,
        acts,
    }))
}
