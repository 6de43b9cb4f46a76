//! Last lines of containers as evidence, and the trouble that they name.

use serde_json::Value;

use super::{
    Cause, Key, Object, Observation,
    object::{list, text},
};

/// Kind of the objects of an observation that hold last lines.
pub const LAST_LINES: &str = "LastLines";

/// Key of the last lines of a container in an observation.
pub(super) fn key(namespace: &str, pod: &str, container: &str) -> Key {
    Key {
        kind: LAST_LINES.to_owned(),
        namespace: namespace.to_owned(),
        name: format!("{pod}/{container}"),
    }
}

/// Last lines of one container, as an observation has them.
#[derive(Debug, Default)]
pub(super) struct ContainerLines<'a> {
    lines: Vec<&'a str>,
    hidden: &'a str,
}

impl<'a> ContainerLines<'a> {
    /// Lines of a container that ended; of no other that ran in its place.
    pub(super) fn of(pod: &Object, name: &str, ended: &Value, seen: &'a Observation) -> Self {
        let found = seen.get(&key(pod.text("/metadata/namespace"), pod.name(), name));
        let is_it = |found: &&Object| found.text("/id") == text(ended, "/containerID");
        let Some(found) = found.filter(is_it) else {
            return Self::default();
        };
        let lines = list(found.value(), "/lines").filter_map(Value::as_str);
        Self {
            lines: lines.collect(),
            hidden: found.text("/hidden"),
        }
    }

    /// Evidence with these lines below it.
    pub(super) fn below(&self, evidence: String) -> String {
        let mut all = vec![evidence];
        all.extend(self.lines.iter().map(|line| (*line).to_owned()));
        if !self.hidden.is_empty() {
            all.push(format!("its last lines are not shown: {}", self.hidden));
        }
        all.join("\n")
    }

    /// Returns whether the kernel refused to start the program: the container runtime writes that
    /// into the log of the container.
    pub(super) fn is_foreign_program(&self) -> bool {
        let last = self.lines.last();
        last.is_some_and(|line| line.to_lowercase().ends_with(FOREIGN_PROGRAM))
    }

    /// The trouble that the last of the lines names which names one.
    pub(super) fn trouble(&self) -> Option<&'static Trouble> {
        let known = |line: &&str| {
            let line = format!("{line}\n");
            let lower = line.to_lowercase();
            TROUBLES.iter().find(|trouble| {
                let mut signs = trouble.signs.iter();
                signs.any(|sign| line.contains(sign) || lower.contains(sign))
            })
        };
        self.lines.iter().rev().find_map(known)
    }
}

/// `; its last lines speak of a file that is missing`, where they do.
pub(super) fn trouble_suffix(trouble: Option<&Trouble>) -> String {
    let name = trouble.map(|trouble| trouble.name);
    name.map_or_else(String::new, |name| {
        format!("; its last lines speak of {name}")
    })
}

/// Words of the kernel about a program of another processor.
const FOREIGN_PROGRAM: &str = "exec format error";

/// Trouble that programs of all languages name in the same words.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Trouble {
    /// Words, lower case where their case varies; a line break is the end of the line.
    signs: &'static [&'static str],
    /// The trouble, behind "its last lines speak of".
    pub(super) name: &'static str,
    /// Action for a person.
    pub(super) fix: &'static str,
    /// Cause outside the app, where the words leave no doubt.
    outside: Option<Cause>,
}

impl Trouble {
    /// Cause of a container that ends because of it, else `cause`.
    pub(super) fn cause_or(trouble: Option<&Self>, cause: Cause) -> Cause {
        trouble.and_then(|trouble| trouble.outside).unwrap_or(cause)
    }
}

const TROUBLES: &[Trouble] = &[
    Trouble {
        signs: &[FOREIGN_PROGRAM],
        name: "a program of another processor",
        fix: "use an image for this node's processor: kubectl get nodes -L kubernetes.io/arch; a script needs a first line such as #!/bin/sh",
        outside: None,
    },
    Trouble {
        signs: &["address already in use", "address in use", "EADDRINUSE"],
        name: "a port that is taken",
        fix: "have the program listen on another port: containers of one Pod share its ports, and with hostNetwork those of the node",
        outside: None,
    },
    Trouble {
        signs: &["number of file watchers reached"],
        name: "a limit of the node for watched files (inotify)",
        fix: "raise it on the node: sudo sysctl fs.inotify.max_user_watches=524288, and in /etc/sysctl.d for the next start",
        outside: Some(Cause::NodePressure),
    },
    // Before the disk, which these words mean as well: they are limits of the container.
    Trouble {
        signs: &[
            "shared memory segment",
            "could not create semaphores",
            "system call was semget",
        ],
        name: "shared memory or semaphores that are used up",
        fix: "mount an emptyDir with medium: Memory at /dev/shm, whose 64 MB are often too little; for semaphores raise kernel.sem (securityContext.sysctls)",
        outside: None,
    },
    Trouble {
        signs: &["disk quota exceeded", "EDQUOT"],
        name: "a quota of disk space that is used up",
        fix: "write less, or raise the quota",
        outside: None,
    },
    Trouble {
        signs: &["no space left on device", "ENOSPC"],
        name: "a disk or volume that is full",
        fix: "free space or enlarge the volume; for the disk of the node: sudo pipeops-agent doctor",
        outside: Some(Cause::NodePressure),
    },
    Trouble {
        signs: &["read-only file system", "EROFS"],
        name: "a file system that is read-only",
        fix: "mount a volume where the program writes (emptyDir is enough), or turn off readOnlyRootFilesystem",
        outside: None,
    },
    // Databases and object stores: the kernel says "permission denied", and no more.
    Trouble {
        signs: &[
            "access denied",
            "authentication failed",
            "permission denied for ",
            "permission denied to ",
            "AccessDenied)",
            "AccessDenied:",
            "AccessDenied;",
        ],
        name: "credentials or rights that another service refuses",
        fix: "correct user and password, or key, in the app's Secret, or grant them the right in the database or object store",
        outside: None,
    },
    Trouble {
        signs: &[
            "permission denied",
            "operation not permitted",
            "EACCES",
            "EPERM",
        ],
        name: "a permission that it lacks",
        fix: "compare the user of the container (runAsUser, fsGroup) with the owner of the files; ports below 1024 may need another port",
        outside: None,
    },
    Trouble {
        signs: &[
            "no such file or directory",
            "cannot open shared object file",
            "filenotfounderror",
            "modulenotfounderror",
            "cannot find module",
            "can't open",
            "ENOENT",
        ],
        name: "a file that is missing",
        fix: "add the file to the image or mount it, or correct its path in command, args or the environment",
        outside: None,
    },
    Trouble {
        signs: &[
            "temporary failure in name resolution",
            "server misbehaving",
            "EAI_AGAIN",
            // musl, where the server refuses or does not answer.
            ": Try again\n",
            ": Try again (",
            "[Errno -3]",
            "address information: Try again",
            "no servers could be reached",
            // Go, where the server refuses or does not answer.
            ":53: read udp",
        ],
        name: "DNS that does not answer",
        fix: "DNS of the cluster: kubectl -n kube-system get pods; that of the machine: sudo pipeops-agent doctor; it then continues automatically",
        outside: Some(Cause::DnsUnavailable),
    },
    Trouble {
        signs: &[
            "no such host",
            "name or service not known",
            "name does not resolve",
            "name resolution",
            "could not resolve host",
            "bad address",
            "ENOTFOUND",
        ],
        name: "a host whose name is not found",
        fix: "correct the name of the host in the app's configuration (a Service is NAME.NAMESPACE.svc); DNS itself: kubectl -n kube-system get pods",
        outside: None,
    },
    Trouble {
        signs: &["connection refused", "ECONNREFUSED"],
        name: "a connection that was refused",
        fix: "correct address and port in the app's configuration, or start first what it connects to",
        outside: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn name(lines: &[&'static str]) -> Option<&'static str> {
        let last_lines = ContainerLines {
            lines: lines.to_vec(),
            hidden: "",
        };
        last_lines.trouble().map(|trouble| trouble.name)
    }

    #[test]
    fn what_a_database_refuses_is_neither_a_file_nor_a_full_disk() {
        for line in [
            "[Error] SQLSTATE[HY000] [1045] Access denied for user 'app'@'10.42.0.9' (using password: YES)",
            "ERROR:  permission denied for schema public (SQLSTATE 42501)",
            "FATAL:  password authentication failed for user \"app\"",
            "ERROR:  permission denied to create database",
            "An error occurred (AccessDenied) when calling the ListObjectsV2 operation: Access Denied",
        ] {
            let wanted = "credentials or rights that another service refuses";
            assert_eq!(name(&[line]), Some(wanted), "{line}");
        }
        for line in [
            "ERROR:  could not resize shared memory segment \"/PostgreSQL.1804289383\" to 8388608 bytes: No space left on device",
            "FATAL:  could not create semaphores: No space left on device",
            "DETAIL:  Failed system call was semget(5432004, 17, 03600).",
        ] {
            let wanted = "shared memory or semaphores that are used up";
            assert_eq!(name(&[line]), Some(wanted), "{line}");
        }
    }

    #[test]
    fn a_trouble_is_named_by_the_last_line_that_speaks_of_one() {
        assert_eq!(
            name(&["listen tcp :80: bind: Address already in use", "exiting"]),
            Some("a port that is taken")
        );
        assert_eq!(
            name(&[
                "Error: ENOENT: x",
                "listen EADDRINUSE: address already in use :::80"
            ]),
            Some("a port that is taken")
        );
        assert_eq!(
            name(&["sh: can't open '/x': No such file or directory"]),
            Some("a file that is missing")
        );
        assert_eq!(
            name(&["open /data/db: permission denied"]),
            Some("a permission that it lacks")
        );
        assert_eq!(
            name(&["lookup db on 10.43.0.10:53: no such host"]),
            Some("a host whose name is not found")
        );
        assert_eq!(
            name(&[
                "Error: ENOSPC: System limit for number of file watchers reached, watch '/app'"
            ]),
            Some("a limit of the node for watched files (inotify)")
        );
        assert_eq!(
            name(&["getaddrinfo EAI_AGAIN db"]),
            Some("DNS that does not answer")
        );
        for line in [
            "socket.gaierror: [Errno -3] Try again",
            "could not translate host name \"db\" to address: Try again",
            "getaddrinfo: Try again (SocketError)",
            ";; connection timed out; no servers could be reached",
            "lookup db on 10.43.0.10:53: read udp 10.42.0.9:34241->10.43.0.10:53: read: connection refused",
            "lookup db on 10.43.0.10:53: read udp 10.42.0.9:34241->10.43.0.10:53: i/o timeout",
        ] {
            assert_eq!(name(&[line]), Some("DNS that does not answer"), "{line}");
        }
        assert_eq!(
            name(&["getaddrinfo for db failed: Name does not resolve"]),
            Some("a host whose name is not found")
        );
        for line in ["all is well", "wrong password: Try again later"] {
            assert_eq!(name(&[line]), None, "{line}");
        }
    }
}
