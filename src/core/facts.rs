//! Facts about the machine, by the names that checks ask for. Parses texts and reads nothing.
//!
//! A name is a path (`/proc/cmdline`: the text of that file), a path with a slash at its end
//! (`/boot/`: the names in that folder), or a word and a path: `stat` (octal mode, user, group,
//! bytes and the second of the last change since 1970), `elf` (32 or 64), `dates` (the first and
//! the last moment of a certificate, in milliseconds). A `*` stands for any one name, `{release}`
//! for the release of the running kernel. What was asked over the network has names of its own,
//! without a slash: `dns 192.0.2.1`, `control plane`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use serde_json::Value;

use crate::core::{
    order::GatherExt as _,
    procfs::{
        kernel,
        mounts::{self, Mount},
        net::{self, Route},
    },
    rates::{FileSystem, Reading},
    time::Wall,
    yaml,
};

/// Fact with the table of mounts.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Fact under one name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fact {
    Text(String),
    /// There is no such thing.
    Missing,
    /// It is not for the eyes of this user.
    Forbidden,
    /// It could not be read, and why.
    Failed(String),
}

/// Everything that was found.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Facts by name.
    pub found: BTreeMap<String, Fact>,
    /// The counters of the machine.
    pub reading: Reading,
    /// The time by the wall clock, which may be wrong.
    pub now: Wall,
    /// Time when this program was built: the true time is later.
    pub built: Wall,
    /// Data directory of a k3s that is about to come.
    pub data_dir: Option<String>,
}

/// An IPv4 network that this machine is in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Network {
    /// Its lowest address.
    pub address: Ipv4Addr,
    /// Bits of the network.
    pub prefix: u32,
}

impl Network {
    /// Reads `10.42.0.0/16`.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.trim().split_once('/')?;
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
        Some(Self {
            address: address.parse().ok()?,
            prefix,
        })
    }

    /// Returns whether the two have addresses in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        let bits = self.prefix.min(other.prefix);
        let high = |address: Ipv4Addr| u32::from(address).checked_shr(32 - bits).unwrap_or(0);
        high(self.address) == high(other.address)
    }
}

impl From<Route<'_>> for Network {
    fn from(route: Route<'_>) -> Self {
        Self {
            address: route.network,
            prefix: route.prefix,
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Facts {
    /// The text under a name.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.found.get(name)? {
            Fact::Text(text) => Some(text),
            Fact::Missing | Fact::Forbidden | Fact::Failed(_) => None,
        }
    }

    /// The first line of it, without what surrounds it and without the NUL of device trees. `None`
    /// where it is empty.
    pub fn word(&self, name: &str) -> Option<&str> {
        let line = self.text(name)?.split(['\n', '\0']).next()?.trim();
        (!line.is_empty()).then_some(line)
    }

    /// The number that it is.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.word(name)?.parse().ok()
    }

    /// Returns whether there is something under that name, readable or not. `None` where nobody can
    /// tell.
    pub fn is_there(&self, name: &str) -> Option<bool> {
        match self.found.get(name)? {
            Fact::Text(_) | Fact::Forbidden => Some(true),
            Fact::Missing => Some(false),
            Fact::Failed(_) => None,
        }
    }

    /// Returns whether there is certainly something under that name.
    pub fn has(&self, name: &str) -> bool {
        self.is_there(name) == Some(true)
    }

    /// The names in a folder; none where it is not there.
    pub fn names(&self, folder: &str) -> impl Iterator<Item = &str> {
        self.text(folder).unwrap_or_default().lines()
    }

    /// All texts under names with one `*`, with what stands in its place.
    pub fn each<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let (before, after) = pattern.split_once('*').unwrap_or((pattern, ""));
        let from_here = self.found.range::<str, _>((
            std::ops::Bound::Included(before),
            std::ops::Bound::Unbounded,
        ));
        from_here
            .take_while(move |(name, _)| name.starts_with(before))
            .filter_map(move |(name, fact)| {
                let star = name.strip_prefix(before)?.strip_suffix(after)?;
                match fact {
                    Fact::Text(text) if !star.contains('/') => Some((star, text.as_str())),
                    Fact::Text(_) | Fact::Missing | Fact::Forbidden | Fact::Failed(_) => None,
                }
            })
    }

    /// Returns whether anything that a name or pattern stands for is not for the eyes of this user.
    pub fn is_forbidden(&self, name: &str) -> bool {
        match name.split_once('*') {
            None => matches!(self.found.get(name), Some(Fact::Forbidden)),
            Some((before, after)) => self.found.iter().any(|(found, fact)| {
                *fact == Fact::Forbidden && found.starts_with(before) && {
                    // A folder that cannot be listed stands for all that would be in it.
                    found.ends_with(after) || found.as_str() == before
                }
            }),
        }
    }

    /// Replaces facts that this user could not read by those that root read.
    pub fn complete(&mut self, by_root: BTreeMap<String, Fact>) {
        for (name, fact) in by_root {
            let known = self.found.get(&name);
            if matches!(known, None | Some(Fact::Forbidden | Fact::Failed(_))) {
                self.found.insert(name, fact);
            }
        }
    }

    /// The words that the kernel was started with.
    pub fn kernel_words(&self) -> impl Iterator<Item = &str> {
        kernel::parameters(self.text("/proc/cmdline").unwrap_or_default())
    }

    /// All mounts.
    pub fn mounts(&self) -> impl Iterator<Item = Mount<'_>> {
        mounts::mounts(self.text(MOUNTS).unwrap_or_default())
    }

    /// Returns the mount at exactly this path; of several, the topmost.
    pub fn mounted_at(&self, path: &str) -> Option<Mount<'_>> {
        self.mounts().filter(|mount| mount.point == path).last()
    }

    /// The mount that holds a path.
    pub fn mount_of(&self, path: &str) -> Option<Mount<'_>> {
        mounts::mount_of(self.text(MOUNTS).unwrap_or_default(), path)
    }

    /// The disk of this machine that holds a path, with its space.
    pub fn disk_of(&self, path: &str) -> Option<(&str, &FileSystem)> {
        let device = mounts::unescaped(self.mount_of(path)?.device);
        // What is mounted twice is there once, under its shortest path.
        let mut disks = self.reading.file_systems.iter();
        let (path, disk) = disks.find(|(_, disk)| disk.device == device)?;
        Some((path, disk))
    }

    /// Returns whether a unit of systemd runs: it has a control group then.
    pub fn is_running(&self, unit: &str) -> bool {
        let folders = [
            "/sys/fs/cgroup/system.slice/",
            "/sys/fs/cgroup/systemd/system.slice/",
        ];
        folders.iter().any(|folder| {
            self.names(folder)
                .any(|name| name.strip_suffix(".service") == Some(unit))
        })
    }

    /// Returns whether a process of that name runs.
    pub fn has_process(&self, name: &str) -> bool {
        self.each("/proc/*/comm")
            .any(|(_, comm)| comm.trim() == name)
    }

    /// Routes of IPv4.
    pub fn routes(&self) -> impl Iterator<Item = Route<'_>> {
        net::routes(self.text("/proc/self/net/route").unwrap_or_default())
    }

    /// Addresses of IPv4 that this machine has, without loopback.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        net::addresses_v4(self.text("/proc/self/net/fib_trie").unwrap_or_default())
    }

    /// TCP ports that something listens on, with the owner's number.
    pub fn listening(&self) -> BTreeMap<u16, u32> {
        let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
        let texts = tables.into_iter().filter_map(|table| self.text(table));
        let listeners = texts.flat_map(net::listeners);
        listeners.map(|socket| (socket.port, socket.user)).gather()
    }

    /// The name servers of a resolv.conf.
    pub fn name_servers(&self, path: &str) -> Vec<IpAddr> {
        let words = self.resolver_words(path, "nameserver");
        words.filter_map(|address| address.parse().ok()).collect()
    }

    /// The words behind a keyword of a resolv.conf.
    pub fn resolver_words<'a>(
        &'a self,
        path: &str,
        keyword: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let lines = self.text(path).unwrap_or_default().lines();
        lines.flat_map(move |line| {
            let mut words = line.split_ascii_whitespace();
            let is_it = words.next() == Some(keyword);
            words.filter(move |_| is_it)
        })
    }

    /// A value of the configuration of k3s and the files beside it, of the last one that has it; a
    /// switch as `true` or `false`.
    pub fn k3s_setting(&self, key: &str) -> Option<String> {
        let value = self.k3s_value(key)?;
        Some(yaml::words(&value).join(",")).filter(|text| !text.is_empty())
    }

    /// Values of a key in the configuration of k3s and the files beside it, of the last one that
    /// has it: those of a list, or of a text with commas.
    pub fn k3s_values(&self, key: &str) -> Vec<String> {
        let found = self.k3s_value(key);
        found.as_ref().map(yaml::words).unwrap_or_default()
    }

    fn k3s_value(&self, key: &str) -> Option<Value> {
        const CONFIG: &str = "/etc/rancher/k3s/config.yaml";
        let files = self.found.range(CONFIG.to_owned()..);
        let files = files.take_while(|(name, _)| name.starts_with(CONFIG));
        let texts: Vec<_> = files.filter_map(|(name, _)| self.text(name)).collect();
        let mut texts = texts.iter().rev();
        texts.find_map(|text| yaml::parse_settings(text).ok()?.get(key).cloned())
    }
}

/// The first two numbers of a version.
pub fn version(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text
        .trim_start_matches(|sign: char| !sign.is_ascii_digit())
        .split(|sign: char| !sign.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_of_k3s_is_read_from_the_files_beside_its_configuration_too() {
        let mut facts = Facts::default();
        for (path, text) in [
            ("config.yaml", "flannel-backend: vxlan\nselinux: true\n"),
            (
                "config.yaml.d/50-pipeops-agent.yaml",
                "prefer-bundled-bin: \"true\"\nflannel-backend: host-gw\n",
            ),
        ] {
            let path = format!("/etc/rancher/k3s/{path}");
            facts.found.insert(path, Fact::Text(text.to_owned()));
        }
        for (key, wanted) in [
            ("prefer-bundled-bin", Some("true")),
            ("selinux", Some("true")),
            ("flannel-backend", Some("host-gw")),
            ("node-name", None),
        ] {
            assert_eq!(facts.k3s_setting(key).as_deref(), wanted, "{key}");
        }
    }
}
