//! Placeholders in fixes, and the commands that replace them on this machine.

use super::{Environment, Init, Loader, Packages};

/// Placeholders in braces that are no commands themselves: see [`Environment::filled`].
const COMMANDS: &[&str] = &[
    "install", "upgrade", "start", "stop", "restart", "enable", "disable", "log", "kernel",
];

/// Way to add a parameter to the kernel command line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BootFix {
    /// Instruction in words.
    pub sentence: String,
    /// Commands to type.
    pub commands: Vec<String>,
}

impl Environment {
    /// An advice in words, with everything in braces replaced: `{about}` by `about`, `{boot}` by
    /// the boot file, `{k3s}` by the name of its service, `{kernel WORDS}` by how the kernel gets
    /// these words, commands (`{restart NAME}`) by the command.
    pub fn filled(&self, template: &str, about: &str) -> String {
        let mut filled = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((word, behind)) = after.split_once('}') else {
                break;
            };
            filled.push_str(before);
            filled.push_str(&self.word(word, about));
            rest = behind;
        }
        filled.push_str(rest);
        filled
    }

    /// The commands of an advice: one template may become several, or none where this machine has
    /// no such command.
    pub fn typed(&self, templates: &[&str], about: &str) -> Vec<String> {
        let mut commands = Vec::new();
        for template in templates {
            let words = template.strip_prefix("{kernel ");
            if let Some(words) = words.and_then(|words| words.strip_suffix('}')) {
                commands.extend(self.boot_fix(words).commands);
                continue;
            }
            let command = self.filled(template, about);
            let is_whole = !command.is_empty() && !command.contains("(by hand)");
            commands.extend(is_whole.then_some(command));
        }
        commands
    }

    fn word(&self, word: &str, about: &str) -> String {
        match word {
            "about" => return about.to_owned(),
            "boot" => {
                return self
                    .boot_file
                    .clone()
                    .unwrap_or_else(|| "the boot file".to_owned());
            }
            "firmware" => return self.firmware_file().to_owned(),
            "k3s" => return self.k3s.to_owned(),
            "distribution" => {
                let name = self.distribution.as_deref();
                return name.unwrap_or("this system").to_owned();
            }
            _ => {}
        }
        let (verb, thing) = word.split_once(' ').unwrap_or((word, ""));
        debug_assert!(COMMANDS.contains(&verb), "no such word: {{{word}}}");
        let thing = if thing == "k3s" { self.k3s } else { thing };
        match verb {
            "install" => self.install(thing),
            "upgrade" => self.upgrade().to_owned(),
            "kernel" => self.boot_fix(thing).sentence,
            _ => self.service(verb, thing),
        }
    }

    /// `config.txt` of a Raspberry Pi, beside the file with the kernel's words.
    fn firmware_file(&self) -> &'static str {
        match self.boot_file.as_deref() {
            Some("/boot/cmdline.txt") => "/boot/config.txt",
            Some("/media/mmcblk0p1/cmdline.txt") => "/media/mmcblk0p1/usercfg.txt",
            _ => "/boot/firmware/config.txt",
        }
    }

    fn install(&self, package: &str) -> String {
        let verb = match self.packages {
            Packages::Apt => "sudo apt install",
            Packages::Dnf => "sudo dnf install",
            Packages::Apk => "sudo apk add",
            Packages::Pacman => "sudo pacman -S",
            Packages::Zypper => "sudo zypper install",
            Packages::None => return format!("install {package} (by hand)"),
        };
        format!("{verb} {package}")
    }

    const fn upgrade(&self) -> &'static str {
        match self.packages {
            Packages::Apt => "sudo apt update && sudo apt full-upgrade",
            Packages::Dnf => "sudo dnf upgrade",
            Packages::Apk => "sudo apk upgrade --update-cache",
            Packages::Pacman => "sudo pacman -Syu",
            Packages::Zypper => "sudo zypper update",
            Packages::None => "upgrade the system (by hand)",
        }
    }

    fn service(&self, verb: &str, name: &str) -> String {
        match (self.init, verb) {
            (Init::Systemd, "enable" | "disable") => format!("sudo systemctl {verb} --now {name}"),
            (Init::Systemd, "log") => format!("journalctl -u {name} -n 50"),
            (Init::Systemd, _) => format!("sudo systemctl {verb} {name}"),
            (Init::OpenRc, "enable") => {
                format!("sudo rc-update add {name} default && sudo rc-service {name} start")
            }
            (Init::OpenRc, "disable") => {
                format!("sudo rc-service {name} stop; sudo rc-update del {name}")
            }
            (Init::OpenRc, "log") => format!("tail -n 50 /var/log/{name}.log"),
            (Init::OpenRc, _) => format!("sudo rc-service {name} {verb}"),
            (Init::Other, _) => format!("{verb} {name} (by hand)"),
        }
    }

    /// Returns how to add `words` to the kernel command line on this board with this boot loader.
    pub fn boot_fix(&self, words: &str) -> BootFix {
        let file = self.boot_file.as_deref().unwrap_or_default();
        let (sentence, commands) = match self.loader {
            Loader::RaspberryPi if file.is_empty() => (
                format!(
                    "this Raspberry Pi boots from the network: append \"{words}\" to the single line of cmdline.txt on its TFTP server, then restart it"
                ),
                vec![],
            ),
            Loader::RaspberryPi => (
                format!(
                    "append \"{words}\" to the single line of {file}, then restart the machine"
                ),
                vec![format!("sudo sed -i.bak '1s/$/ {words}/' {file}")],
            ),
            Loader::Grub => self.grub(words),
            Loader::Extlinux => (
                format!(
                    "append \"{words}\" to the line \"append\" of {file}, then restart the machine"
                ),
                vec![format!(
                    "sudo sed -i.bak '/^[[:space:]]*append/I s/$/ {words}/' {file}"
                )],
            ),
            Loader::AlpineExtlinux => (
                format!(
                    "add \"{words}\" to default_kernel_opts in {file}, run update-extlinux, then restart the machine"
                ),
                vec![
                    format!("sudo sed -i.bak 's/^default_kernel_opts=\"/&{words} /' {file}"),
                    "sudo update-extlinux".to_owned(),
                ],
            ),
            Loader::Armbian => (
                format!("append \"{words}\" to extraargs= in {file}, then restart the machine"),
                vec![format!(
                    "grep -q ^extraargs= {file} && sudo sed -i.bak 's/^extraargs=/&{words} /' {file} || echo 'extraargs={words}' | sudo tee -a {file}"
                )],
            ),
            Loader::SystemdBoot => (
                format!(
                    "append \"{words}\" to the line \"options\" of {file}, then restart the machine"
                ),
                vec![format!("sudo sed -i.bak '/^options/s/$/ {words}/' {file}")],
            ),
            Loader::Windows => (
                format!(
                    "in Windows, add kernelCommandLine={words} below [wsl2] in %UserProfile%\\.wslconfig, then: wsl --shutdown"
                ),
                vec![],
            ),
            Loader::Host => (
                format!(
                    "the host of this container provides the kernel: add \"{words}\" to its command line there"
                ),
                vec![],
            ),
            Loader::Unknown => (
                format!(
                    "add \"{words}\" to the kernel command line in the configuration of your boot loader, then restart the machine"
                ),
                vec![],
            ),
        };
        let mut commands = commands;
        if !commands.is_empty() {
            commands.push("sudo reboot".to_owned());
        }
        BootFix { sentence, commands }
    }

    fn grub(&self, words: &str) -> (String, Vec<String>) {
        let write = if self.packages == Packages::Apt {
            "update-grub"
        } else if self.packages == Packages::Zypper {
            "grub2-mkconfig -o /boot/grub2/grub.cfg"
        } else {
            "grub-mkconfig -o /boot/grub/grub.cfg"
        };
        // Entries of the Red Hat family are files of their own, which only grubby changes all.
        if self.packages == Packages::Dnf {
            return (
                format!("add \"{words}\" to all kernels with grubby, then restart the machine"),
                vec![format!(
                    "sudo grubby --update-kernel=ALL --args=\"{words}\""
                )],
            );
        }
        (
            format!(
                "add \"{words}\" to GRUB_CMDLINE_LINUX in /etc/default/grub, run {write}, then restart the machine"
            ),
            vec![
                format!("sudo sed -i.bak 's/^GRUB_CMDLINE_LINUX=\"/&{words} /' /etc/default/grub"),
                format!("sudo {write}"),
            ],
        )
    }
}
