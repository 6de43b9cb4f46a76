//! The kernel's memory controller, which is switched on where the boot loader of this machine takes
//! its parameters from.

use super::{Planned, nothing};
use crate::{
    core::{
        procfs::{
            kernel::{controllers, controllers_v2, parameters},
            mounts::mount_of,
        },
        repair::recipe::{GRUB_CONTENT, GRUB_FILE, memory_in_grub, memory_in_line},
    },
    error::{Error, Result},
    keeper::system::System,
};

/// Paths of the kernel command line: Raspberry Pi OS from 12 on and Ubuntu, Raspberry Pi OS before,
/// Alpine.
const LINES: [&str; 3] = [
    "/boot/firmware/cmdline.txt",
    "/boot/cmdline.txt",
    "/media/mmcblk0p1/cmdline.txt",
];
const REBOOT: &str = "a reboot: sudo reboot";

pub(super) fn memory_controller(system: &System) -> Result<Planned> {
    if is_on(system) {
        return Ok(nothing("the kernel's memory controller is on"));
    }
    if let Some(path) = LINES.into_iter().find(|path| system.is_there(path)) {
        return in_line(system, path);
    }
    if system.is_there("/etc/default/grub") {
        return in_grub(system);
    }
    Err(cannot()
        .why("neither a cmdline.txt nor GRUB is on this machine")
        .fix("add cgroup_enable=memory to the kernel's parameters where your boot loader has them (a Raspberry Pi that boots over the network: on the TFTP server)"))
}

fn cannot() -> Error {
    Error::new("cannot switch the kernel's memory controller on")
}

/// The files differ by the version of cgroups: from kernel 6.12 on `/proc/cgroups` says nothing of
/// the second.
fn is_on(system: &System) -> bool {
    if let Some(controllers) = system.text("/sys/fs/cgroup/cgroup.controllers") {
        return controllers_v2(&controllers).any(|name| name == "memory");
    }
    let table = system.text("/proc/cgroups").unwrap_or_default();
    controllers(&table).any(|name| name == "memory")
}

fn in_line(system: &System, path: &str) -> Result<Planned> {
    let cannot = || cannot().why(format!("{path} is left alone"));
    let (folder, _) = path.rsplit_once('/').unwrap_or_default();
    let mounts = system.text("/proc/self/mountinfo").unwrap_or_default();
    let mount = mount_of(&mounts, path);
    // What is written beside the boot partition has no effect, and hides that.
    let Some(mount) = mount.filter(|mount| mount.point == folder && mount.kind == "vfat") else {
        return Err(cannot()
            .why(format!("the boot partition is not mounted at {folder}"))
            .fix(format!("sudo mount {folder}, then again")));
    };
    if mount.has("ro") {
        return Err(cannot()
            .why("the boot partition is mounted read-only")
            .fix(format!("sudo mount -o remount,rw {folder}, then again")));
    }
    let text = system.text(path).ok_or_else(|| {
        cannot()
            .why("it cannot be read, or is not plain text")
            .fix(format!("inspect it: sudo cat -A {path}"))
    })?;
    let recipe = memory_in_line(path, &text)
        .map_err(|left| cannot().why(left.why).fix(left.fix.replace("FILE", path)))?;
    match recipe {
        Some(recipe) => Ok(Planned::Work(recipe)),
        None => waits_or_is_ignored(system, path),
    }
}

/// The parameters are there and the controller is off all the same.
fn waits_or_is_ignored(system: &System, path: &str) -> Result<Planned> {
    let running = system.text("/proc/cmdline").unwrap_or_default();
    let is_known = parameters(&running).any(|word| word == "cgroup_enable=memory");
    if !is_known {
        return Ok(nothing(format!(
            "{path} has the parameters already; what remains is {REBOOT}"
        )));
    }
    Err(cannot()
        .why(format!(
            "the kernel was started with the parameters of {path} and does not know them"
        ))
        .fix("update the kernel: sudo apt full-upgrade && sudo reboot"))
}

fn in_grub(system: &System) -> Result<Planned> {
    // Only Debian and its kin read grub.d; others have a program of their own for it.
    if !system.has("update-grub") {
        return Err(cannot()
            .why("GRUB of this distribution reads no drop-in files")
            .fix("sudo grubby --update-kernel=ALL --args=cgroup_enable=memory && sudo reboot"));
    }
    if system
        .text(GRUB_FILE)
        .is_some_and(|text| text == GRUB_CONTENT)
    {
        return waits_or_is_ignored(system, GRUB_FILE);
    }
    Ok(Planned::Work(memory_in_grub()))
}
