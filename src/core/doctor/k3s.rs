//! Checks of k3s: its program, service, files, certificates and API.

#![expect(
    clippy::items_after_statements,
    reason = "an advice stands where it is given"
)]

use super::{Advice, Check, Fact, Facts, Judgement, Problem, network::has_k3s, ok, unread};
use crate::core::{
    environment::{Environment, Init},
    health::Severity::{Critical, Note, Warning},
    time::DAY_MS,
};

const BINARY: &str = "stat /usr/local/bin/k3s";
const KUBECONFIG: &str = "stat /etc/rancher/k3s/k3s.yaml";
const NOT_INSTALLED: &str = "k3s is not installed";
const CERTIFICATES: [&str; 3] = [
    "dates /var/lib/rancher/k3s/server/tls/*.crt",
    "dates /var/lib/rancher/k3s/agent/*.crt",
    "dates /var/lib/rancher/k3s/server/tls/etcd/*.crt",
];
/// Files that are never empty, but after a power cut.
const PRECIOUS: [&str; 5] = [
    "stat /var/lib/rancher/k3s/server/tls/*.crt",
    "stat /var/lib/rancher/k3s/agent/*.crt",
    "stat /var/lib/rancher/k3s/server/db/state.db",
    "stat /var/lib/rancher/k3s/server/token",
    "stat /etc/rancher/node/password",
];

/// Length of a datastore that slows the API down.
pub const DATASTORE_BYTES_MAX: u64 = 2_000_000_000;
/// Length of its write-ahead log that does.
pub const DATASTORE_LOG_BYTES_MAX: u64 = 1_000_000_000;

/// The table.
pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "k3s.program",
        title: "k3s binary",
        severity: Critical,
        after: &[],
        reads: &[BINARY, "elf /usr/local/bin/k3s"],
        why: "k3s does not start",
        judge: program,
    },
    Check {
        id: "k3s.config",
        title: "k3s configuration",
        severity: Critical,
        after: &["k3s.program"],
        reads: &["/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/"],
        why: "k3s does not start with an unreadable configuration",
        judge: config,
    },
    Check {
        id: "k3s.empty-files",
        title: "k3s files truncated by a power cut",
        severity: Critical,
        after: &["k3s.program"],
        reads: &[
            BINARY,
            PRECIOUS[0],
            PRECIOUS[1],
            PRECIOUS[2],
            PRECIOUS[3],
            PRECIOUS[4],
        ],
        why: "k3s does not start with them, or creates a new, empty cluster",
        judge: empty,
    },
    Check {
        id: "k3s.certificates",
        title: "k3s certificates",
        severity: Critical,
        after: &["clock.wrong", "k3s.empty-files"],
        reads: &CERTIFICATES,
        why: "they are valid for a year and renewed only when k3s starts; after they expire, no part of the cluster trusts another",
        judge: certificates,
    },
    Check {
        id: "k3s.service",
        title: "k3s service",
        severity: Critical,
        after: &[
            "k3s.program",
            "k3s.config",
            "k3s.empty-files",
            "k3s.certificates",
            "cgroup.memory",
            "cgroup.controllers",
            "system.container",
            "clock.wrong",
            "disk.volatile",
            "disk.network-root",
            "disk.read-only",
            "disk.space",
            "disk.zfs",
            "network.route",
            "network.node-ip",
            "network.other-kubernetes",
            "network.ports",
        ],
        reads: &[BINARY, "/sys/fs/cgroup/system.slice/", "/proc/*/comm"],
        why: "applications keep running, but nothing monitors, starts or moves them",
        judge: service,
    },
    Check {
        id: "k3s.datastore",
        title: "Size of the k3s database",
        severity: Warning,
        after: &["k3s.empty-files"],
        reads: &[
            "stat /var/lib/rancher/k3s/server/db/state.db",
            "stat /var/lib/rancher/k3s/server/db/state.db-wal",
        ],
        why: "a large database slows down the API and never shrinks on its own",
        judge: datastore,
    },
    Check {
        id: "k3s.kubeconfig-mode",
        title: "Permissions of the kubeconfig",
        severity: Warning,
        after: &[],
        reads: &[KUBECONFIG],
        why: "anyone who can read it has full access to the cluster",
        judge: kubeconfig_mode,
    },
    Check {
        id: "k3s.kubeconfig",
        title: "Kubeconfig",
        severity: Critical,
        after: &["k3s.service"],
        reads: &[],
        why: "the agent connects to the cluster with it",
        judge: kubeconfig,
    },
    Check {
        id: "k3s.kubeconfig-certificate",
        title: "Certificate in the kubeconfig",
        severity: Critical,
        after: &["clock.wrong", "k3s.certificates", "k3s.kubeconfig"],
        reads: &[],
        why: "the API server rejects clients whose certificate has expired",
        judge: kubeconfig_certificate,
    },
    Check {
        id: "k3s.api",
        title: "Kubernetes API",
        severity: Critical,
        after: &[
            "k3s.service",
            "k3s.kubeconfig",
            "k3s.kubeconfig-certificate",
        ],
        reads: &[],
        why: "the cluster cannot be viewed or changed",
        judge: api,
    },
];

/// The bytes that `stat` told.
fn bytes(stat: &str) -> Option<u64> {
    stat.split(' ').nth(3)?.parse().ok()
}

fn program(facts: &Facts, environment: &Environment) -> Judgement {
    let Some(stat) = facts.word(BINARY) else {
        return Judgement::NotHere(NOT_INSTALLED);
    };
    const ADVICE: Advice = Advice {
        fix: "reinstall k3s: configuration and data are kept",
        commands: &[
            "curl -sfL https://get.k3s.io -o /tmp/k3s.sh",
            "sudo sh /tmp/k3s.sh",
            "{restart k3s}",
        ],
    };
    let seen = match facts.found.get("elf /usr/local/bin/k3s") {
        _ if bytes(stat) == Some(0) => "/usr/local/bin/k3s is empty",
        Some(Fact::Failed(_)) => "/usr/local/bin/k3s is not a program",
        Some(Fact::Text(bits))
            if bits == "64" && !environment.is_64_bit() && environment.architecture.is_some() =>
        {
            "/usr/local/bin/k3s is built for a 64-bit processor"
        }
        Some(Fact::Text(_) | Fact::Missing | Fact::Forbidden) | None => return ok("it is intact"),
    };
    Problem::new(seen, &ADVICE).into()
}

fn config(facts: &Facts, environment: &Environment) -> Judgement {
    let Some(text) = facts.text("/etc/rancher/k3s/config.yaml") else {
        return ok("there is none, and none is needed");
    };
    const TABS: Advice = Advice {
        fix: "indent with spaces in /etc/rancher/k3s/config.yaml, and use Unix line endings",
        commands: &[
            "sudo sed -i.bak 's/\\t/  /g; s/\\r$//' /etc/rancher/k3s/config.yaml",
            "{restart k3s}",
        ],
    };
    const SERVER: Advice = Advice {
        fix: "remove server settings from /etc/rancher/k3s/config.yaml: this node is an agent",
        commands: &[
            "sudo sed -i.bak '/^{about}:/d' /etc/rancher/k3s/config.yaml",
            "{restart k3s}",
        ],
    };
    let at_fault = |line: &str| {
        line.contains('\r')
            || line
                .split(|c| c != ' ' && c != '\t')
                .next()
                .is_some_and(|indent| indent.contains('\t'))
    };
    if let Some(at) = text.split('\n').position(at_fault) {
        return Problem::new(
            format!("line {} has a tab or a carriage return", at + 1),
            &TABS,
        )
        .into();
    }
    let of_server = [
        "flannel-backend",
        "disable",
        "cluster-init",
        "cluster-cidr",
        "service-cidr",
        "tls-san",
    ];
    let wrong = of_server.into_iter().find(|key| {
        text.lines().any(|line| {
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(':'))
        })
    });
    match wrong {
        Some(key) if environment.k3s == "k3s-agent" => Problem::new(
            format!("{key} is a setting of servers, and this node is an agent"),
            &SERVER,
        )
        .about(key)
        .into(),
        Some(_) | None => ok("no problems found"),
    }
}

fn empty(facts: &Facts, _: &Environment) -> Judgement {
    if !facts.has(BINARY) {
        return Judgement::NotHere(NOT_INSTALLED);
    }
    const CERTIFICATE: Advice = Advice {
        fix: "stop k3s, move {about} away and let k3s create it again; if it does not, restore it from a backup",
        commands: &[
            "{stop k3s}",
            "sudo mv {about} {about}.empty",
            "sudo /usr/local/bin/k3s certificate rotate",
            "{start k3s}",
        ],
    };
    const DATABASE: Advice = Advice {
        fix: "stop k3s before it creates an empty cluster, and restore {about} from the latest backup",
        commands: &["{stop k3s}"],
    };
    for pattern in PRECIOUS {
        let found = facts.each(pattern).find(|(_, stat)| bytes(stat) == Some(0));
        let Some((star, _)) = found else {
            continue;
        };
        let path = pattern.trim_start_matches("stat ").replace('*', star);
        let advice = if path.strip_suffix(".crt").is_some() {
            &CERTIFICATE
        } else {
            &DATABASE
        };
        return Problem::new(format!("{path} is empty"), advice)
            .about(path)
            .into();
    }
    ok("no file is empty")
}

fn certificates(facts: &Facts, _: &Environment) -> Judgement {
    let mut first: Option<(i64, String)> = None;
    for pattern in CERTIFICATES {
        for (name, dates) in facts.each(pattern) {
            let Some((from, to)) = times(dates) else {
                continue;
            };
            if from > facts.now.millis() {
                const EARLY: Advice = Advice {
                    fix: "they were created while the clock was wrong: rotate them now that it is right",
                    commands: &[
                        "{stop k3s}",
                        "sudo /usr/local/bin/k3s certificate rotate",
                        "{start k3s}",
                    ],
                };
                return Problem::new(format!("{name}.crt is not valid yet"), &EARLY).into();
            }
            if first.as_ref().is_none_or(|(end, _)| to < *end) {
                first = Some((to, format!("{name}.crt")));
            }
        }
    }
    let Some((end, name)) = first else {
        return Judgement::NotHere("k3s has created none here");
    };
    ends(facts, end, &name, &RENEW)
}

const RENEW: Advice = Advice {
    fix: "restart k3s, which renews them; if that does not help, rotate all of them",
    commands: &[
        "{restart k3s}",
        "sudo /usr/local/bin/k3s certificate check",
        "sudo /usr/local/bin/k3s certificate rotate && {restart k3s}",
    ],
};

/// `from to`, in milliseconds.
fn times(dates: &str) -> Option<(i64, i64)> {
    let (from, to) = dates.split_once(' ')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

fn ends(facts: &Facts, end: i64, name: &str, advice: &'static Advice) -> Judgement {
    let days = (end - facts.now.millis()).div_euclid(DAY_MS);
    if days < 0 {
        return Problem::new(format!("{name} expired {} days ago", -days), advice).into();
    }
    let seen = format!("{name} expires in {days} days");
    // k3s renews at a start within 120 days of the end (older ones: 90).
    match days {
        0..14 => Problem::new(seen, advice).into(),
        14..60 => Problem::new(seen, advice).severity(Warning).into(),
        60..90 => Problem::new(seen, advice).severity(Note).into(),
        _ => ok(seen),
    }
}

fn service(facts: &Facts, environment: &Environment) -> Judgement {
    if !facts.has(BINARY) {
        return Judgement::NotHere(NOT_INSTALLED);
    }
    if has_k3s(facts) {
        return ok("it is running");
    }
    const ADVICE: Advice = Advice {
        fix: "find out why it stopped, then start it",
        commands: &["{log k3s}", "{enable k3s}"],
    };
    const FOREIGN: Advice = Advice {
        fix: "start k3s with the init system of this machine",
        commands: &["sudo /usr/local/bin/k3s server"],
    };
    let advice = if environment.init == Init::Other {
        &FOREIGN
    } else {
        &ADVICE
    };
    Problem::new("k3s is installed but not running", advice).into()
}

fn datastore(facts: &Facts, _: &Environment) -> Judgement {
    const PATH: &str = "stat /var/lib/rancher/k3s/server/db/state.db";
    let size = |name: &str| facts.word(name).and_then(bytes);
    if facts.is_there(PATH) != Some(true) {
        return Judgement::NotHere("this node has no SQLite database of k3s");
    }
    let Some(main) = size(PATH) else {
        return Judgement::Unknown(super::NEEDS_ROOT.to_owned());
    };
    let log = size("stat /var/lib/rancher/k3s/server/db/state.db-wal").unwrap_or(0);
    const ADVICE: Advice = Advice {
        fix: "at a quiet time: stop k3s, keep a copy, compact the database (this needs as much free space as the database), start k3s; then find out what writes so much",
        commands: &[
            "{stop k3s}",
            "sudo cp -a /var/lib/rancher/k3s/server/db /var/lib/rancher/k3s/server/db.before",
            "sudo sqlite3 /var/lib/rancher/k3s/server/db/state.db VACUUM",
            "{start k3s}",
        ],
    };
    let seen = format!(
        "{} MB, and {} MB in its write-ahead log",
        main / 1_000_000,
        log / 1_000_000
    );
    if main > DATASTORE_BYTES_MAX || log > DATASTORE_LOG_BYTES_MAX {
        return Problem::new(seen, &ADVICE).into();
    }
    ok(seen)
}

fn kubeconfig_mode(facts: &Facts, _: &Environment) -> Judgement {
    let Some(stat) = facts.word(KUBECONFIG) else {
        return Judgement::NotHere("k3s has not created one");
    };
    let mode = stat
        .split(' ')
        .next()
        .and_then(|mode| u32::from_str_radix(mode, 8).ok());
    const ADVICE: Advice = Advice {
        fix: "make it readable for root only, and set write-kubeconfig-mode: \"0600\" in /etc/rancher/k3s/config.yaml",
        commands: &["sudo chmod 600 /etc/rancher/k3s/k3s.yaml"],
    };
    match mode {
        None => unread(facts, KUBECONFIG),
        Some(mode) if mode & 0o004 != 0 => {
            Problem::new("every user of this machine can read it", &ADVICE).into()
        }
        Some(_) => ok("not readable for other users"),
    }
}

/// Answer of a probe: success, or sentence and fix in two lines.
pub(super) fn answered(
    facts: &Facts,
    name: &str,
    not_asked: &'static str,
    advice: &'static Advice,
) -> Judgement {
    match facts.found.get(name) {
        Some(Fact::Text(seen)) => ok(seen.as_str()),
        Some(Fact::Failed(why)) => {
            let (seen, fix) = why.split_once('\n').unwrap_or((why, ""));
            Problem::new(seen, advice).about(fix).into()
        }
        Some(Fact::Forbidden) => Judgement::Unknown(super::NEEDS_ROOT.to_owned()),
        Some(Fact::Missing) | None => Judgement::NotHere(not_asked),
    }
}

fn kubeconfig(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "{about}; or restart k3s, which recreates its own, or set agent.kubeconfig to another one",
        commands: &["{restart k3s}"],
    };
    answered(
        facts,
        "kubeconfig",
        "no cluster is configured here",
        &ADVICE,
    )
}

fn kubeconfig_certificate(facts: &Facts, _: &Environment) -> Judgement {
    const ADVICE: Advice = Advice {
        fix: "restart k3s, which writes a new one; copy /etc/rancher/k3s/k3s.yaml again to every place that uses it",
        commands: &["{restart k3s}"],
    };
    match facts.word("kubeconfig dates").and_then(times) {
        Some((_, end)) => ends(facts, end, "it", &ADVICE),
        None => Judgement::NotHere("the kubeconfig contains none"),
    }
}

fn api(facts: &Facts, _: &Environment) -> Judgement {
    const HERE: Advice = Advice {
        fix: "start k3s and read its log; often the disk is too slow or k3s is still starting: {about}",
        commands: &["{start k3s}", "{log k3s}"],
    };
    const ELSEWHERE: Advice = Advice {
        fix: "{about}",
        commands: &[],
    };
    if !facts.found.contains_key("kubernetes api")
        && matches!(facts.found.get("kubeconfig"), Some(Fact::Failed(_)))
    {
        return super::unknown("its address is unknown");
    }
    let advice = if facts.has(BINARY) { &HERE } else { &ELSEWHERE };
    answered(
        facts,
        "kubernetes api",
        "no cluster is configured here",
        advice,
    )
}
