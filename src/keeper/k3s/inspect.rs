//! State of the machine before k3s is installed, and while it runs: the doctor's facts, other
//! distributions, sizes, ends of certificates.

use std::{net::IpAddr, os::unix::fs::MetadataExt, path::Path};

use nix::sys::statvfs::{FsFlags, statvfs};

use super::{super::system::System, Install};
use crate::{
    core::{
        doctor::{CheckResult, judge},
        environment::Environment,
        facts::{Fact, Facts},
        format::size,
        gateway::Class,
        k3s::{
            self, BINARY, Role, Version,
            servers::Datastore,
            texts::{self, DropIn, Init, InstallOptions},
        },
        time::Wall,
        yaml,
    },
    error::{Error, Result},
    files,
    host::{
        clock,
        doctor::{self, certificate},
        exec::{self, Limits},
        network, sample,
    },
    wire::keeper::Finding,
};

/// Findings about a change, the worst first.
#[derive(Debug, Default)]
pub(super) struct FindingSet {
    /// Blocking findings.
    pub(super) refused: Vec<Finding>,
    /// Warnings.
    pub(super) warned: Vec<Finding>,
}

impl FindingSet {
    /// Removes blocking findings that are to be ignored.
    pub(super) fn ignore(&mut self, ignored: &[String]) {
        self.refused
            .retain(|finding| !ignored.contains(&finding.id));
    }

    /// Judges a web server on the ports of k3s' ingress: it is in nobody's way where no ingress
    /// comes. Whether one comes to a worker is its server's to say.
    pub(super) fn judge_web_ports(&mut self, ingress: Ingress) {
        let is_it = |finding: &Finding| finding.id == k3s::WEB_PORTS;
        match ingress {
            Ingress::None => {
                self.refused.retain(|finding| !is_it(finding));
                self.warned.retain(|finding| !is_it(finding));
            }
            Ingress::Here => {
                for finding in self.refused.iter_mut().filter(|finding| is_it(finding)) {
                    "install k3s without its ingress: --disable traefik; or move the other program to other ports: sudo ss -ltnp shows it".clone_into(&mut finding.fix);
                }
            }
            Ingress::OfServer => self
                .warned
                .extend(self.refused.extract_if(.., |finding| is_it(finding))),
        }
    }
}

/// Origin of k3s' ingress, which takes the ports 80 and 443 of each node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ingress {
    /// k3s gets no ingress.
    None,
    /// This installation brings it.
    Here,
    /// The server of this worker may have it.
    OfServer,
}

/// Settings that fix the address of the node, with their variables: an address, or the interface
/// that has it, which may be away for a while.
const FIXED_ADDRESS: [(&str, &str); 4] = [
    ("node-ip", ""),
    ("flannel-iface", ""),
    ("vpn-auth", "K3S_VPN_AUTH"),
    ("vpn-auth-file", "K3S_VPN_AUTH_FILE"),
];

/// Directory entries that are counted at most.
const ENTRIES_MAX: u32 = 200_000;

impl System {
    /// Inspects the machine as the doctor does, as if k3s was there already.
    pub(super) fn inspect(&self, data_dir: &str, ignored: &[String], built: Wall) -> FindingSet {
        let mut facts = Facts {
            now: clock::now().wall,
            built,
            data_dir: Some(data_dir.to_owned()),
            ..Facts::default()
        };
        doctor::read(self.root(), doctor::names(), |name, fact| {
            facts.found.insert(name, fact);
            true
        });
        let beside = self.settings_files().into_iter().skip(1);
        for path in beside.filter(|path| path != k3s::DROP_IN) {
            let text = self.text(&path).unwrap_or_default();
            facts.found.insert(path, Fact::Text(text));
        }
        facts.reading = sample::read_below(self.root(), &sample::space);
        // Whether two distributions would stand in each other's way is judged where k3s is.
        for name in [BINARY.to_owned(), format!("stat {BINARY}")] {
            facts.found.insert(name, Fact::Text(String::new()));
        }
        let verdicts = judge(&facts, &Environment::of(&facts));
        let found = k3s::findings(&verdicts, ignored);
        let mut findings = FindingSet {
            refused: found.refused.into_iter().map(finding).collect(),
            warned: found.warned.into_iter().map(finding).collect(),
        };
        if self.is_noexec(data_dir) {
            findings.refused.push(Finding {
                id: "disk.noexec".to_owned(),
                what: format!(
                    "programs cannot run from {data_dir}: its file system is mounted noexec"
                ),
                fix: "mount it without noexec, or choose another directory: --data-dir DIR"
                    .to_owned(),
            });
        }
        findings.ignore(ignored);
        findings
    }

    /// Findings that speak against this version.
    pub(super) fn refuses(
        &self,
        version: Version,
        data_dir: &str,
        ignored: &[String],
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        let is_v2 = self.is_there("/sys/fs/cgroup/cgroup.controllers");
        if (version.major, version.minor) >= (1, 35) && !is_v2 {
            found.push(Finding {
                id: "cgroup.v1".to_owned(),
                what: format!("k3s {version} does not start with cgroup version 1"),
                fix: "boot with systemd.unified_cgroup_hierarchy=1, or stay on 1.34".to_owned(),
            });
        }
        let need = 2 * 1024 * 1024 * 1024;
        let space = crate::host::facts::disk_space(&self.nearest(data_dir));
        if let Some(space) = space.filter(|space| space.available_bytes < need) {
            found.push(Finding {
                id: "disk.room".to_owned(),
                what: format!(
                    "{} are free for {data_dir}; k3s with its images needs {}",
                    size(space.available_bytes),
                    size(need)
                ),
                fix: "make room: du -xh / | sort -h | tail; or choose another disk: --data-dir DIR"
                    .to_owned(),
            });
        }
        found.retain(|finding| !ignored.contains(&finding.id));
        found
    }

    /// Units that the kernel is to end last when the memory is full; none where that is not wanted.
    pub(super) fn protected(&self, wanted: &Install, init: Init) -> Vec<&'static str> {
        if wanted.ignored.iter().any(|id| id == PROTECT) {
            return Vec::new();
        }
        let mut units = vec![wanted.options.role().name()];
        let agent = format!("systemd/system/{}.service", texts::AGENT);
        let is_there = |folder: &str| self.is_there(&format!("/{folder}/{agent}"));
        if init == Init::Systemd && ["etc", "usr/lib", "lib"].into_iter().any(is_there) {
            units.push(texts::AGENT);
        }
        units
    }

    /// Finding that this machine is reached from the internet, and the ports of k3s with it.
    pub(super) fn is_public(&self, options: &InstallOptions, drop_in: &DropIn) -> Option<Finding> {
        let mut settings = self.user_settings();
        settings.push(drop_in.content.clone());
        let fixed = k3s::setting(&settings, "node-ip");
        let fixed: Vec<IpAddr> = fixed
            .iter()
            .flat_map(|all| all.split(','))
            .filter_map(|address| address.parse().ok())
            .collect();
        let own = || network::all_addresses(self.root()).unwrap_or_default();
        let is_set = !fixed.is_empty();
        let found = if is_set { fixed } else { own() };
        // Without a setting k3s takes one of version 4 where there is one; of version 6 every home
        // network has public ones, behind its router.
        let mut others = found.iter().filter(|it| it.is_ipv4() && !it.is_loopback());
        let is_any = is_set || others.next().is_none();
        let is_public = |address: &IpAddr| {
            (is_any || address.is_ipv4()) && Class::of(*address) == Class::Public
        };
        let address = found.into_iter().find(is_public)?;
        let (tcp, more) = match options.role() {
            Role::Server => ("6443 (API), 10250 (kubelet)", "80 and 443 (ingress)"),
            Role::Worker => ("10250 (kubelet)", "80 and 443 (ingress)"),
        };
        Some(Finding {
            id: "network.public".to_owned(),
            what: format!(
                "{address} is a public address: {tcp}, {more} if used, and 8472/udp (VXLAN) are reachable from the internet; through VXLAN anyone can send packets to Pods"
            ),
            fix: "let only the other nodes and you through, in the firewall of the provider or here: sudo ufw allow from ADDRESS to any, for each; \
                  sudo ufw deny 6443/tcp; sudo ufw deny 10250/tcp; sudo ufw deny 8472/udp; or give k3s a private address: --node-ip ADDRESS"
                .to_owned(),
        })
    }

    /// The path itself, or what is above it and there.
    pub(super) fn nearest(&self, path: &str) -> std::path::PathBuf {
        let real = self.path(path);
        let there = real.ancestors().find(|path| path.exists());
        there.unwrap_or_else(|| Path::new("/")).to_owned()
    }

    pub(super) fn is_noexec(&self, path: &str) -> bool {
        statvfs(&self.nearest(path)).is_ok_and(|found| found.flags().contains(FsFlags::ST_NOEXEC))
    }

    /// All files of k3s' settings, ours too.
    pub(super) fn k3s_settings(&self) -> Vec<String> {
        let files = self.settings_files().into_iter();
        files.filter_map(|path| self.text(&path)).collect()
    }

    /// Refuses settings of k3s that cannot be read here.
    pub(super) fn check_settings(&self) -> Result<()> {
        for path in self.settings_files() {
            let text = self.text(&path).unwrap_or_default();
            if let Err(why) = yaml::parse_settings(&text) {
                return Err(Error::new(format!("cannot understand {path}"))
                    .why(why)
                    .fix(
                        "correct that line; where an anchor or an alias is, write the value itself",
                    ));
            }
        }
        Ok(())
    }

    /// Returns whether the node gets its address from a setting, and not from the default route;
    /// also where the settings cannot be read, which nobody can say then.
    pub(super) fn has_fixed_address(&self) -> bool {
        let role = self.role();
        let texts =
            [role.unit_path(), role.init_script()].map(|path| self.text(path).unwrap_or_default());
        let is_set = |(flag, variable): (&str, &str)| {
            self.k3s_value(flag, variable).is_some() || texts.iter().any(|text| text.contains(flag))
        };
        self.check_settings().is_err() || FIXED_ADDRESS.into_iter().any(is_set)
    }

    /// The files that k3s reads its settings from, in its order.
    pub(in super::super) fn settings_files(&self) -> Vec<String> {
        let is_read = |path: &String| {
            let path = path.to_ascii_lowercase();
            [".yaml", ".yml"]
                .iter()
                .any(|ending| path.ends_with(ending))
        };
        let below = self.list("/etc/rancher/k3s/config.yaml.d", "").into_iter();
        let files = [k3s::CONFIG.to_owned()].into_iter();
        files.chain(below.filter(is_read)).collect()
    }

    /// The user's own files of k3s' settings.
    pub(super) fn user_settings(&self) -> Vec<String> {
        let files = self.settings_files().into_iter();
        files
            .filter(|path| path != k3s::DROP_IN)
            .filter_map(|path| self.text(&path))
            .collect()
    }

    /// The word of the service manager for the service.
    pub(super) fn service_state(&self) -> Option<String> {
        let name = self.role().name();
        let argv = if self.is_there("/run/systemd/system") {
            ["systemctl", "is-active", name]
        } else {
            ["rc-service", name, "status"]
        };
        let ended = exec::run(self.root(), &argv, Limits::SHORT).ok()?;
        let word = ended
            .stdout
            .trim()
            .rsplit(' ')
            .next()
            .unwrap_or_default()
            .to_owned();
        Some(word).filter(|word| !word.is_empty())
    }

    /// Length of the datastore, with its log.
    pub(super) fn datastore_bytes(&self, data_dir: &str) -> Option<u64> {
        if self.datastore(data_dir) == Datastore::Etcd {
            let file = self.path(&format!("{data_dir}/server/db/etcd/member/snap/db"));
            return std::fs::metadata(file).ok().map(|found| found.len());
        }
        let [main, log] = self.datastore_lengths(data_dir)?;
        Some(main.saturating_add(log))
    }

    /// Length of the datastore of SQLite, and of its write-ahead log.
    pub(super) fn datastore_lengths(&self, data_dir: &str) -> Option<[u64; 2]> {
        let length = |name: &str| {
            let found = std::fs::metadata(self.path(&format!("{data_dir}/server/db/{name}")));
            found.ok().map(|found| found.len())
        };
        let main = length("state.db")?;
        Some([main, length("state.db-wal").unwrap_or(0)])
    }

    /// The certificate of this machine that ends first.
    pub(super) fn first_end(&self, data_dir: &str) -> Option<(String, Wall)> {
        self.ends(data_dir).min_by_key(|(_, end)| end.millis())
    }

    /// Certificates of k3s, with their ends.
    pub(super) fn ends(&self, data_dir: &str) -> impl Iterator<Item = (String, Wall)> {
        let all = self.certificates(data_dir);
        all.map(|(path, _, end)| (path, end))
    }

    /// Certificates of k3s with their validity.
    pub(super) fn certificates(
        &self,
        data_dir: &str,
    ) -> impl Iterator<Item = (String, Wall, Wall)> {
        let folders = ["server/tls", "agent"].map(|folder| format!("{data_dir}/{folder}"));
        let files = folders.map(|folder| self.list(&folder, ".crt"));
        files.into_iter().flatten().filter_map(|path| {
            let content = files::read(&self.path(&path), 256 * 1024).ok()?;
            let (start, end) = certificate::of_pem(&content)?;
            Some((path, start, end))
        })
    }

    /// Bytes of a file or a tree on this file system, as far as it is counted.
    pub(super) fn bytes_of(&self, path: &str) -> u64 {
        let mut open = vec![self.path(path)];
        let (mut bytes, mut left) = (0_u64, ENTRIES_MAX);
        while let (Some(path), Some(fewer)) = (open.pop(), left.checked_sub(1)) {
            left = fewer;
            let Ok(metadata) = std::fs::symlink_metadata(&path) else {
                continue;
            };
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512));
            if metadata.is_dir() {
                let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
                open.extend(entries.map(|entry| entry.path()));
            }
        }
        bytes
    }
}

fn finding(verdict: &CheckResult) -> Finding {
    let fix = verdict
        .fix
        .clone()
        .into_iter()
        .chain(verdict.commands.iter().cloned());
    Finding {
        id: verdict.check.id.to_owned(),
        what: format!("{}: {}", verdict.check.title, verdict.seen),
        fix: fix.collect::<Vec<_>>().join(": "),
    }
}

/// Finding that hands the protection from the end of memory to these units; without it they are
/// like others.
pub(super) fn protected(units: &[&str]) -> Option<Finding> {
    (!units.is_empty()).then(|| Finding {
        id: PROTECT.to_owned(),
        what: format!(
            "when the memory is full, the kernel ends Pods and other programs before {}",
            units.join(" and ")
        ),
        fix: format!("to leave the choice to the kernel: --ignore {PROTECT}"),
    })
}

/// Finding that k3s and the agent are protected.
const PROTECT: &str = "memory.protect";

/// Finding that parts are left out for want of memory.
pub(super) fn small_memory(memory: u64, drop_in: &DropIn) -> Finding {
    Finding {
        id: "memory.parts".to_owned(),
        what: format!(
            "with {} of memory k3s comes without {}",
            size(memory),
            drop_in.left_out.join(", ")
        ),
        fix: "to have them all the same: --all-parts".to_owned(),
    }
}
/// Paths that a sentence names at most.
pub(super) const NAMED_MAX: usize = 5;

/// The first of these paths, in words.
pub(super) fn first_paths(paths: &[String]) -> String {
    let named = paths.iter().take(NAMED_MAX).map(String::as_str);
    let named = named.collect::<Vec<_>>().join(", ");
    match paths.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Finding that nobody has to do anything about.
pub(super) fn finding_of(id: &str, what: String) -> Finding {
    Finding {
        id: id.to_owned(),
        what,
        fix: String::new(),
    }
}
