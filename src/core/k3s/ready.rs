//! Readiness of k3s, judged from what its own API and the service manager say.

use std::{net::IpAddr, time::Duration};

use super::Version;
use crate::core::time::Wall;

/// Template whose output [`Node::parse`] reads, for `kubectl -o jsonpath=`.
pub const JSONPATH: &str = "{.status.nodeInfo.kubeletVersion}|{.status.conditions[?(@.type==\"Ready\")].status}|\
    {.status.conditions[?(@.type==\"Ready\")].lastHeartbeatTime}|{.spec.unschedulable}";

/// Restarts after which a service that never came up will not come up by itself.
const RESTARTS_MAX: u32 = 5;

/// A node as the API has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// Version of its kubelet.
    pub version: Option<Version>,
    /// True if it takes Pods.
    pub is_ready: bool,
    /// Time of its last report.
    pub reported: Option<Wall>,
    /// True if it is cordoned.
    pub is_cordoned: bool,
}

impl Node {
    /// Reads the output of [`JSONPATH`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('|');
        let mut next = || parts.next();
        Some(Self {
            version: next()?.parse().ok(),
            is_ready: next()? == "True",
            reported: Wall::parse_rfc3339(next()?),
            is_cordoned: next()? == "true",
        })
    }

    /// The reason that it is not yet the node that is waited for. A report of a kubelet that is
    /// gone does not count: `since` is the time of the start, and the API has whole seconds.
    pub fn lacks(&self, version: Option<Version>, since: Wall) -> Option<String> {
        if !self.is_ready {
            return Some("the node is not Ready yet".to_owned());
        }
        let is_fresh = |reported: Wall| reported.millis() + 1000 > since.millis();
        if !self.reported.is_some_and(is_fresh) {
            return Some("the node has not reported since the start".to_owned());
        }
        match (version, self.version) {
            (Some(wanted), found) if found != Some(wanted) => {
                let found =
                    found.map_or_else(|| "another version".to_owned(), |found| found.to_string());
                Some(format!("the node still runs {found}, not {wanted}"))
            }
            (Some(_) | None, _) => None,
        }
    }
}

/// The reason that a service of systemd will not come up by itself, from `systemctl show -p
/// ActiveState -p NRestarts`.
pub fn failure_reason(shown: &str, restarts_before: u32) -> Option<String> {
    if shown.lines().any(|line| line == "ActiveState=failed") {
        return Some("the service failed".to_owned());
    }
    let restarts = restarts(shown).saturating_sub(restarts_before);
    (restarts >= RESTARTS_MAX).then(|| format!("it ended and was restarted {restarts} times"))
}

/// Time since which a report counts: `start` of the wait, `awake` at that time, or that of the
/// process, where it came up before and nothing is about to end it. A wait that goes on after an
/// interruption would last until the next report otherwise, which is up to five minutes. From
/// `systemctl show -p ActiveState -p Job -p ExecMainStartTimestampMonotonic`.
pub fn reports_since(shown: &str, start: Wall, awake: Duration) -> Wall {
    let has = |start: &str| shown.lines().any(|line| line.starts_with(start));
    if !has("ActiveState=active") || has("Job=") {
        return start;
    }
    let process = shown
        .lines()
        .find_map(|line| line.strip_prefix("ExecMainStartTimestampMonotonic="));
    let process = process.and_then(|micros| micros.parse().ok());
    // Never: 0.
    let Some(process) = process.filter(|micros| *micros > 0) else {
        return start;
    };
    let age = awake.saturating_sub(Duration::from_micros(process));
    let age = i64::try_from(age.as_millis()).unwrap_or(0);
    Wall::from_millis(start.millis().saturating_sub(age))
}

/// Number of restarts in the answer of `systemctl show -p NRestarts`.
pub fn restarts(shown: &str) -> u32 {
    let found = shown
        .lines()
        .find_map(|line| line.strip_prefix("NRestarts="));
    found.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The line of a log that says why k3s ended, shortened: the last fatal one, else the last one.
pub fn reason(log: &str) -> Option<String> {
    let lines = || log.lines().rev().filter(|line| !line.trim().is_empty());
    let line = lines()
        .find(|line| line.contains("level=fatal"))
        .or_else(|| lines().next())?;
    let line = without_colours(line);
    let line = line
        .split_once("msg=")
        .map_or(&*line, |(_, message)| message);
    Some(line.trim().trim_matches('"').chars().take(300).collect())
}

/// A line without the escapes of a terminal.
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let end = part.split_once(|letter: char| letter.is_ascii_alphabetic());
        all + end.map_or("", |(_, rest)| rest)
    })
}

/// Address at which the API server itself answers on the loopback interface, where k3s' own port is
/// bound to another address only. `bind` is the setting `bind-address`, and `port` is
/// `https-listen-port`.
///
/// k3s starts the API server on the loopback interface, on the port after its own (`apiServer` in
/// `pkg/daemons/control/server.go` of k3s), with a certificate that names that address.
pub fn loopback(bind: Option<&str>, port: Option<&str>) -> Option<String> {
    let bind: IpAddr = bind?.trim().parse().ok()?;
    if bind.is_unspecified() || bind.is_loopback() {
        return None;
    }
    let port = port.map_or(Some(PORT), |port| port.trim().parse().ok())?;
    let host = match bind {
        IpAddr::V4(_) => "127.0.0.1",
        // It is IPv4 where the cluster has both; then nothing is reached, as before.
        IpAddr::V6(_) => "[::1]",
    };
    Some(format!("https://{host}:{}", port.checked_add(1)?))
}

/// Address of k3s' own port, for commands of k3s that ask at the default one, where it is another
/// one; of the same settings.
pub fn supervisor(bind: Option<&str>, port: Option<&str>) -> Option<String> {
    let port = port.map_or(Some(PORT), |port| port.trim().parse().ok())?;
    let bind = bind.and_then(|bind| bind.trim().parse::<IpAddr>().ok());
    let bind = bind.filter(|bind| !bind.is_unspecified() && !bind.is_loopback());
    match bind {
        None => (port != PORT).then(|| format!("https://127.0.0.1:{port}")),
        Some(IpAddr::V4(bind)) => Some(format!("https://{bind}:{port}")),
        Some(IpAddr::V6(bind)) => Some(format!("https://[{bind}]:{port}")),
    }
}

/// Default port of k3s.
pub const PORT: u16 = 6443;

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> Node {
        Node::parse(text).unwrap()
    }

    #[test]
    fn a_report_from_before_the_start_is_no_readiness() {
        let since = Wall::parse_rfc3339("2026-11-23T00:31:09.7Z").unwrap();
        let wanted: Option<Version> = "v1.34.4+k3s1".parse().ok();
        for (text, lacks) in [
            ("v1.34.4+k3s1|True|2026-11-23T00:31:09Z|", None),
            ("v1.34.4+k3s1|True|2026-11-23T00:31:08Z|", Some("reported")),
            ("v1.34.4+k3s1|True||", Some("reported")),
            ("v1.34.3+k3s1|True|2026-11-23T00:32:09Z|", Some("v1.34.3")),
            (
                "v1.34.4+k3s1|Unknown|2026-11-23T00:32:09Z|",
                Some("not Ready"),
            ),
        ] {
            let found = node(text).lacks(wanted, since);
            assert_eq!(found.is_some(), lacks.is_some(), "{text} {found:?}");
            assert!(
                found
                    .unwrap_or_default()
                    .contains(lacks.unwrap_or_default()),
                "{text}"
            );
        }
        assert!(node("v1|True|2026-11-23T00:31:09Z|true").is_cordoned);
        assert_eq!(Node::parse("Error from server (NotFound)"), None);
    }

    #[test]
    fn a_report_to_a_wait_that_goes_on_counts_since_the_start_of_the_process() {
        let start = Wall::from_millis(1_000_000);
        let awake = Duration::from_secs(500);
        let since = |shown: &str| reports_since(shown, start, awake).millis();
        let of = |state: &str, job: &str, micros: &str| {
            format!("ActiveState={state}\n{job}ExecMainStartTimestampMonotonic={micros}\n")
        };
        assert_eq!(since(&of("active", "", "400000000")), 900_000);
        for shown in [
            // It is about to be ended, it is coming up, or it is gone.
            of("active", "Job=7\n", "400000000"),
            of("activating", "", "400000000"),
            of("inactive", "", "400000000"),
            // It came up after the wait began.
            of("active", "", "500300000"),
            of("active", "", "0"),
            of("active", "", "x"),
            "NRestarts=1".to_owned(),
        ] {
            assert_eq!(since(&shown), 1_000_000, "{shown}");
        }
    }

    #[test]
    fn a_service_that_ends_again_and_again_is_given_up() {
        assert_eq!(
            failure_reason("ActiveState=activating\nNRestarts=4\n", 0),
            None
        );
        assert!(failure_reason("ActiveState=activating\nNRestarts=5\n", 0).is_some());
        assert_eq!(failure_reason("ActiveState=active\nNRestarts=7\n", 3), None);
        assert!(failure_reason("ActiveState=failed\nNRestarts=0\n", 0).is_some());
    }

    #[test]
    fn the_reason_is_the_last_fatal_line() {
        let log = "x\nk3s[1]: level=fatal msg=\"no default routes found\"\nStopped.\n";
        assert_eq!(reason(log).as_deref(), Some("no default routes found"));
        assert_eq!(reason("a\nb\n\n").as_deref(), Some("b"));
        assert_eq!(reason(""), None);
        let line = "\x1b[31mERRO\x1b[0m[2026] Failed to ping: file is not a database\n";
        let plain = "ERRO[2026] Failed to ping: file is not a database";
        assert_eq!(reason(line).as_deref(), Some(plain));
    }

    #[test]
    fn an_api_that_is_bound_to_one_address_is_asked_on_the_loopback_interface() {
        for (bind, port, wanted) in [
            (None, None, None),
            (Some("0.0.0.0"), None, None),
            (Some("::"), None, None),
            (Some("127.0.0.1"), Some("7443"), None),
            (Some("no address"), None, None),
            (Some("192.0.2.9"), None, Some("https://127.0.0.1:6444")),
            (
                Some("192.0.2.9"),
                Some("7443"),
                Some("https://127.0.0.1:7444"),
            ),
            (Some("192.0.2.9"), Some("65535"), None),
            (Some("2001:db8::9"), None, Some("https://[::1]:6444")),
        ] {
            assert_eq!(loopback(bind, port).as_deref(), wanted, "{bind:?} {port:?}");
        }
    }

    #[test]
    fn commands_of_k3s_are_told_its_address_where_it_is_not_the_usual_one() {
        for (bind, port, wanted) in [
            (None, None, None),
            (Some("0.0.0.0"), Some("6443"), None),
            (None, Some("7443"), Some("https://127.0.0.1:7443")),
            (Some("192.0.2.9"), None, Some("https://192.0.2.9:6443")),
            (
                Some("2001:db8::9"),
                Some("7443"),
                Some("https://[2001:db8::9]:7443"),
            ),
        ] {
            assert_eq!(
                supervisor(bind, port).as_deref(),
                wanted,
                "{bind:?} {port:?}"
            );
        }
    }
}
