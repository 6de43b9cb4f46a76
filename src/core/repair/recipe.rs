//! Recipes of the repairs: the one description of each, which the keeper carries out and the doctor
//! prints as commands.

use super::{KernelLine, NotRepairable, kernel_line};

/// Effect of a repair on a machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recipe {
    /// Description of the change.
    pub does: String,
    /// Description of what it leaves alone.
    pub leaves: String,
    /// Description of the undo.
    pub undo: String,
    /// True if it takes effect with the next start of the machine only.
    pub needs_reboot: bool,
    /// Steps, in this order.
    pub steps: Vec<RecipeStep>,
}

/// One step of a repair.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RecipeStep {
    /// Gives a file of the agent's own this content.
    File {
        /// Absolute path.
        path: &'static str,
        /// Whole content.
        content: String,
    },
    /// Appends words to the first line of a file.
    Line {
        /// Absolute path.
        path: String,
        /// Words that are not there yet.
        words: Vec<&'static str>,
        /// Whole content of the file after it.
        content: String,
    },
    /// Sets a parameter of the kernel.
    Value {
        /// Absolute path below `/proc/sys`.
        path: String,
        value: String,
    },
    /// Runs a program.
    Run {
        /// Program and arguments, with blanks between them.
        forth: String,
        /// Program that takes it back.
        back: Option<&'static str>,
        /// Evidence that it worked.
        proof: Option<Proof>,
    },
    /// Runs a program that reads the files of the steps before it, both after they were written and
    /// after they were taken back.
    Reload {
        /// Program and arguments.
        run: &'static str,
        /// Evidence that it worked.
        proof: Option<Proof>,
    },
}

/// Evidence that a program did what it should.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Proof {
    /// This path exists.
    Path(String),
    /// This file contains this text.
    Text(&'static str, &'static str),
    /// This file does not contain this text.
    NoText(&'static str, String),
    /// This program prints exactly this.
    Says(&'static str, &'static str),
}

impl Recipe {
    /// The commands that do the same by hand.
    pub fn commands(&self) -> Vec<String> {
        let mut commands: Vec<_> = self.steps.iter().flat_map(RecipeStep::commands).collect();
        if self.needs_reboot {
            commands.push("sudo reboot".to_owned());
        }
        commands
    }

    /// Task that remains for a person.
    pub fn remains(&self) -> Option<String> {
        self.needs_reboot
            .then(|| "a reboot: sudo reboot".to_owned())
    }
}

impl RecipeStep {
    fn commands(&self) -> Vec<String> {
        match self {
            Self::File { path, content } => {
                let (folder, _) = path.rsplit_once('/').unwrap_or_default();
                vec![
                    format!("sudo mkdir -p {folder}"),
                    format!("printf '{}' | sudo tee {path}", escaped(content)),
                ]
            }
            Self::Line { path, words, .. } => vec![format!(
                "sudo sed -i.bak '1s/[[:space:]]*$/ {}/' {path}",
                words.join(" ")
            )],
            Self::Value { path, value } => {
                let name = path.trim_start_matches("/proc/sys/").replace('/', ".");
                vec![format!("sudo sysctl -w {name}={value}")]
            }
            Self::Run { forth, .. } => vec![format!("sudo {forth}")],
            Self::Reload { run, .. } => vec![format!("sudo {run}")],
        }
    }
}

/// A text as printf(1) takes it between single quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            '\\' => escaped.push_str("\\\\"),
            '%' => escaped.push_str("%%"),
            '\'' => escaped.push_str("\\047"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Limits of inotify: k3s and its Pods take one instance for each watched folder, and 128 are gone
/// with a dozen Pods.
const INOTIFY: [(&str, u64); 2] = [("max_user_instances", 8192), ("max_user_watches", 524_288)];

/// Raises the limits of inotify. `None` where both are high enough.
pub fn inotify(instances: u64, watches: u64) -> Option<Recipe> {
    const FILE: &str = "/etc/sysctl.d/90-pipeops-inotify.conf";
    let limits = INOTIFY.into_iter().zip([instances, watches]);
    // What is higher stays so, also after a reboot.
    let lines = limits
        .clone()
        .map(|((name, wanted), now)| format!("fs.inotify.{name} = {}\n", wanted.max(now)));
    let mut steps = vec![RecipeStep::File {
        path: FILE,
        content: lines.collect(),
    }];
    let low = limits.filter(|((_, wanted), now)| now < wanted);
    steps.extend(low.map(|((name, wanted), _)| RecipeStep::Value {
        path: format!("/proc/sys/fs/inotify/{name}"),
        value: wanted.to_string(),
    }));
    (steps.len() > 1).then(|| Recipe {
        does: format!(
            "raises the inotify limits to 8192 instances and 524288 watches: in {FILE}, and immediately"
        ),
        leaves: "limits that are higher already, and other files in /etc/sysctl.d".to_owned(),
        undo: format!("removes {FILE} and restores the previous limits"),
        needs_reboot: false,
        steps,
    })
}

/// Keeps NetworkManager away from the interfaces of Pods; it reads that at once where it runs.
pub fn network_manager(is_running: bool) -> Recipe {
    const FILE: &str = "/etc/NetworkManager/conf.d/90-pipeops-k3s.conf";
    let mut steps = vec![RecipeStep::File {
        path: FILE,
        content: "# Interfaces of Pods belong to k3s.\n[keyfile]\n\
            unmanaged-devices+=interface-name:cni*;interface-name:flannel*;interface-name:veth*\n"
            .to_owned(),
    }];
    if is_running {
        steps.push(RecipeStep::Reload {
            run: "nmcli general reload conf",
            proof: None,
        });
    }
    Recipe {
        does: format!(
            "makes NetworkManager ignore cni*, flannel* and veth* with {FILE}, and reloads its configuration"
        ),
        leaves: "all connections and all other interfaces".to_owned(),
        undo: format!("removes {FILE} and reloads the configuration of NetworkManager"),
        needs_reboot: false,
        steps,
    }
}

/// Modules that containers and their network need of the kernel, whatever the backend.
pub const MODULES: [&str; 3] = ["overlay", "br_netfilter", "nf_conntrack"];

/// Loads kernel modules, now and at every start.
pub fn kernel_modules(missing: &[&str]) -> Recipe {
    const FILE: &str = "/etc/modules-load.d/90-pipeops-k3s.conf";
    let mut steps = vec![RecipeStep::File {
        path: FILE,
        content: format!("{}\n", missing.join("\n")),
    }];
    steps.extend(missing.iter().map(|name| RecipeStep::Run {
        forth: format!("modprobe {name}"),
        back: None,
        proof: Some(Proof::Path(format!("/sys/module/{name}"))),
    }));
    Recipe {
        does: format!(
            "loads {}, now and, with {FILE}, at every boot",
            missing.join(", ")
        ),
        leaves: "all other modules and their options".to_owned(),
        undo: format!("removes {FILE}; the modules stay loaded until the next boot"),
        needs_reboot: false,
        steps,
    }
}

/// Lets systemd set the clock by the network.
pub fn clock() -> Recipe {
    Recipe {
        does: "enables network time synchronization (timedatectl set-ntp true)".to_owned(),
        leaves: "the time zone and the choice of time servers".to_owned(),
        undo: "disables it again; the clock is not set back".to_owned(),
        needs_reboot: false,
        steps: vec![RecipeStep::Run {
            forth: "timedatectl set-ntp true".to_owned(),
            back: Some("timedatectl set-ntp false"),
            proof: Some(Proof::Says(
                "timedatectl show --value --property=NTP",
                "yes",
            )),
        }],
    }
}

/// Gives the journal a limit.
pub fn journal() -> Recipe {
    const FILE: &str = "/etc/systemd/journald.conf.d/90-pipeops.conf";
    Recipe {
        does: format!(
            "limits the journal to 100 MB with {FILE}, and restarts journald, which deletes the oldest entries beyond that"
        ),
        leaves: "the newest 100 MB of the journal, and all other logs".to_owned(),
        undo: format!("removes {FILE} and restarts journald; deleted entries are not restored"),
        needs_reboot: false,
        steps: vec![
            RecipeStep::File {
                path: FILE,
                content: "# On a small disk the journal takes up to a tenth of it otherwise.\n\
                    [Journal]\nSystemMaxUse=100M\n"
                    .to_owned(),
            },
            RecipeStep::Reload {
                run: "systemctl restart systemd-journald.service",
                proof: None,
            },
        ],
    }
}

/// Stops swapping to a file that dphys-swapfile looks after.
pub fn swap_file(path: &str, is_enabled: bool) -> Recipe {
    let mut steps = vec![RecipeStep::Run {
        forth: "dphys-swapfile swapoff".to_owned(),
        back: Some("dphys-swapfile swapon"),
        proof: Some(Proof::NoText("/proc/swaps", path.to_owned())),
    }];
    if is_enabled {
        steps.push(RecipeStep::Run {
            forth: "systemctl disable dphys-swapfile.service".to_owned(),
            back: Some("systemctl enable dphys-swapfile.service"),
            proof: None,
        });
    }
    Recipe {
        does: format!(
            "disables swap on {path} (dphys-swapfile swapoff) and the service dphys-swapfile"
        ),
        leaves: format!("the file {path} itself, zram, and other swap"),
        undo: "enables dphys-swapfile and its swap file again".to_owned(),
        needs_reboot: false,
        steps,
    }
}

/// Folder of the drop-ins of rpi-swap.
pub const RPI_SWAP_FOLDER: &str = "/etc/rpi/swap.conf.d";

/// Keeps rpi-swap off the card.
pub fn rpi_swap() -> Recipe {
    const FILE: &str = "/etc/rpi/swap.conf.d/90-pipeops.conf";
    Recipe {
        does: format!("keeps swap in compressed memory (zram) instead of on the card, with {FILE}"),
        leaves: "the file /var/swap, and the size of zram".to_owned(),
        undo: format!("removes {FILE}; after a reboot swap is configured as before"),
        needs_reboot: true,
        steps: vec![RecipeStep::File {
            path: FILE,
            content: "[Main]\nMechanism=zram\n".to_owned(),
        }],
    }
}

/// Words that switch the memory controller on: older kernels want the first, newer ones the second;
/// neither minds the other.
const MEMORY: [&str; 2] = ["cgroup_memory=1", "cgroup_enable=memory"];

/// Switches the memory controller on in the file that holds the kernel's parameters in its one
/// line. `None` where they are there.
pub fn memory_in_line(path: &str, text: &str) -> Result<Option<Recipe>, NotRepairable> {
    let Some(KernelLine { missing, content }) = kernel_line(text, &MEMORY)? else {
        return Ok(None);
    };
    Ok(Some(Recipe {
        does: format!(
            "appends {:?} to the single line of {path}",
            missing.join(" ")
        ),
        leaves: "all other parameters in that line, and all other files of the boot partition"
            .to_owned(),
        undo: format!("restores {path}; a reboot disables the controller again"),
        needs_reboot: true,
        steps: vec![RecipeStep::Line {
            path: path.to_owned(),
            words: missing,
            content,
        }],
    }))
}

/// Drop-in of GRUB that switches the memory controller on, on Debian and its kin.
pub const GRUB_FILE: &str = "/etc/default/grub.d/90-pipeops.cfg";
/// Content of [`GRUB_FILE`].
pub const GRUB_CONTENT: &str = "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX cgroup_enable=memory\"\n";

/// Switches the memory controller on where GRUB reads drop-ins.
pub fn memory_in_grub() -> Recipe {
    Recipe {
        does: format!(
            "adds cgroup_enable=memory to the kernel command line with {GRUB_FILE}, and runs update-grub"
        ),
        leaves: "/etc/default/grub, and all other parameters".to_owned(),
        undo: format!(
            "removes {GRUB_FILE} and runs update-grub again; a reboot disables the controller again"
        ),
        needs_reboot: true,
        steps: vec![
            RecipeStep::File {
                path: GRUB_FILE,
                content: GRUB_CONTENT.to_owned(),
            },
            RecipeStep::Reload {
                run: "update-grub",
                proof: Some(Proof::Text("/boot/grub/grub.cfg", "cgroup_enable=memory")),
            },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_high_enough_is_kept_and_not_set() {
        let recipe = inotify(128, 1_000_000).unwrap();
        assert_eq!(
            recipe.commands(),
            [
                "sudo mkdir -p /etc/sysctl.d",
                "printf 'fs.inotify.max_user_instances = 8192\\nfs.inotify.max_user_watches = 1000000\\n' | sudo tee \
                 /etc/sysctl.d/90-pipeops-inotify.conf",
                "sudo sysctl -w fs.inotify.max_user_instances=8192",
            ]
        );
        assert_eq!(inotify(8192, 524_288), None);
    }

    #[test]
    fn what_printf_reads_is_the_content() {
        assert_eq!(escaped("a 100 %\n\\'$X\""), "a 100 %%\\n\\\\\\047$X\"");
    }

    #[test]
    fn only_the_words_that_are_missing_are_typed() {
        let recipe = memory_in_line("/boot/cmdline.txt", "root=/dev/sda1 cgroup_memory=1\n");
        assert_eq!(
            recipe.unwrap().unwrap().commands(),
            [
                "sudo sed -i.bak '1s/[[:space:]]*$/ cgroup_enable=memory/' /boot/cmdline.txt",
                "sudo reboot",
            ]
        );
    }
}
