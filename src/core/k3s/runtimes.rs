//! Other container runtimes of a machine: which of the places that k3s fills they use as well.
//!
//! An installation notes what was there before it; this is about those that came later.

/// State of every containerd.
const CONTAINERD: &str = "/run/containerd";
/// Network namespaces.
const NAMESPACES: &str = "/run/netns";
/// State of network plugins.
const PLUGINS: &str = "/var/lib/cni";
/// Places that other runtimes fill as well.
pub const SHARED: [&str; 3] = [CONTAINERD, NAMESPACES, PLUGINS];
/// Runtimes by the names of their processes, which the kernel cuts after 15 characters.
const PROCESSES: [(&str, &str); 7] = [
    ("dockerd", "Docker"),
    ("containerd", "containerd"),
    ("containerd-shim", "containerd"),
    ("podman", "Podman"),
    ("conmon", "Podman or CRI-O"),
    ("crio", "CRI-O"),
    ("buildkitd", "BuildKit"),
];
/// Name of k3s' network.
const NETWORK: &str = "cbr0";

/// A process, as `/proc` has it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Process {
    /// Its number.
    pub id: u32,
    pub name: String,
    /// Path of its program.
    pub program: String,
    /// Its command line, words separated by blanks.
    pub command: String,
}

/// Use of a place by others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Use {
    pub path: &'static str,
    /// Sign of it.
    pub why: String,
}

/// The places that others use, too. `list` gives the paths in a directory.
pub fn uses(processes: &[Process], data_dir: &str, list: &dyn Fn(&str) -> Vec<String>) -> Vec<Use> {
    let runtime = processes
        .iter()
        .find_map(|process| running(process, data_dir));
    let entry = |folder: &str, is_other: &dyn Fn(&str) -> bool| {
        let found = list(folder).into_iter();
        let mut found = found.filter(|path| is_other(path.rsplit('/').next().unwrap_or_default()));
        found.next().map(|path| format!("k3s did not make {path}"))
    };
    let found = SHARED.into_iter().filter_map(|path| {
        let why = runtime.clone().or_else(|| match path {
            CONTAINERD => entry(path, &|name| name == "containerd.sock"),
            NAMESPACES => entry(path, &|name| !name.starts_with("cni-")),
            _ => entry(&format!("{path}/networks"), &|name| name != NETWORK),
        });
        why.map(|why| Use { path, why })
    });
    found.collect()
}

/// The runtime that a process is part of, if it is none of k3s.
fn running(process: &Process, data_dir: &str) -> Option<String> {
    let (_, runtime) = PROCESSES.iter().find(|(name, _)| *name == process.name)?;
    let is_own = process.program.starts_with(&format!("{data_dir}/data/"))
        || [data_dir, "/run/k3s/"]
            .iter()
            .any(|path| process.command.contains(path));
    let Process { id, name, .. } = process;
    (!is_own).then(|| format!("{runtime} runs (process {id}, {name})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, program: &str, command: &str) -> Process {
        Process {
            id: 812,
            name: name.to_owned(),
            program: program.to_owned(),
            command: command.to_owned(),
        }
    }

    #[test]
    fn k3s_own_processes_and_entries_are_of_no_other_runtime() {
        let own = [
            process("containerd", "/d/data/0a/bin/k3s", "containerd"),
            process(
                "containerd",
                "/usr/bin/x",
                "containerd -c /d/agent/etc/containerd/config.toml",
            ),
            process(
                "containerd-shim",
                "/x",
                "shim -address /run/k3s/containerd/containerd.sock",
            ),
            process("sshd", "/usr/sbin/sshd", "sshd"),
        ];
        let list = |folder: &str| match folder {
            "/run/containerd" => vec!["/run/containerd/s".to_owned()],
            "/run/netns" => vec!["/run/netns/cni-1".to_owned()],
            _ => vec!["/var/lib/cni/networks/cbr0".to_owned()],
        };
        assert_eq!(uses(&own, "/d", &list), []);
    }

    #[test]
    fn another_runtime_that_runs_uses_all_and_an_entry_its_own_place() {
        let docker = [process("dockerd", "/usr/bin/dockerd", "dockerd -H fd://")];
        let found = uses(&docker, "/d", &|_| Vec::new());
        assert_eq!(found.len(), SHARED.len());
        assert_eq!(found[0].why, "Docker runs (process 812, dockerd)");
        let list = |folder: &str| match folder {
            "/run/netns" => vec!["/run/netns/cni-1".to_owned(), "/run/netns/vpn".to_owned()],
            _ => Vec::new(),
        };
        let found = uses(&[], "/d", &list);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].path, found[0].why.as_str()),
            ("/run/netns", "k3s did not make /run/netns/vpn")
        );
    }
}
