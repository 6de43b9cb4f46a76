//! Joining: token, address and checks of a new worker or server.
//!
//! Forms of the token: <https://docs.k3s.io/cli/token>.

use std::{fmt::Write as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

use super::{Doubt, Role, Version, servers::Shared};
use crate::core::{
    secret::Secret,
    time::Wall,
    url::{Authority, Url},
};

/// Port of a server, where its address names none.
const PORT: u16 = 6443;
/// Difference between two clocks at which a join is refused: certificates begin at the time of the
/// server.
const CLOCKS_APART_MS: i64 = 60_000;
/// Minor versions that a worker may be older than its server.
const BEHIND_MAX: u32 = 3;
/// Settings that only servers take, which end a worker with an error or promise what it does not
/// do.
const OF_SERVERS: [&str; 14] = [
    "cluster-init",
    "cluster-reset",
    "datastore-endpoint",
    "cluster-cidr",
    "service-cidr",
    "cluster-dns",
    "cluster-domain",
    "flannel-backend",
    "disable",
    "tls-san",
    "write-kubeconfig",
    "write-kubeconfig-mode",
    "secrets-encryption",
    "kube-apiserver-arg",
];

/// Names that images give to every machine.
const USUAL_NAMES: [&str; 8] = [
    "raspberrypi",
    "localhost",
    "ubuntu",
    "debian",
    "dietpi",
    "armbian",
    "orangepi",
    "rock64",
];

/// A token in its secure form: `K10`, the hash of the server's CA, `::`, and a credential.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Token {
    /// SHA-256 of the CA, in hexadecimal.
    pub ca_sha256: String,
    /// Proof that its bearer may join.
    pub credential: Credential,
    /// The whole text.
    pub text: Secret,
}

/// Credential of a token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Credential {
    /// A bootstrap token, which ends.
    Bootstrap(Secret),
    /// The password of the cluster, which does not.
    Password(Secret),
}

impl Token {
    /// Reads a token. An error says what is wrong with it, and nothing of it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if text.is_empty() {
            return Err("it is empty");
        }
        if text.len() > 512 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("it is not one word");
        }
        let short = "it is the short form, which does not say which server to trust";
        let (hash, rest) = text
            .strip_prefix("K10")
            .ok_or(short)?
            .split_once("::")
            .ok_or(short)?;
        if !super::is_sha256(hash) {
            return Err("the hash of the CA in it is not 64 hexadecimal digits");
        }
        let credential = match rest.split_once(':') {
            Some(("server" | "node", password)) if !password.is_empty() => {
                Credential::Password(Secret::new(password))
            }
            Some(_) => return Err("after the hash of the CA there is no credential of k3s"),
            None if is_bootstrap(rest) => Credential::Bootstrap(Secret::new(rest)),
            None => return Err("after the hash of the CA there is no credential of k3s"),
        };
        Ok(Self {
            ca_sha256: hash.to_ascii_lowercase(),
            credential,
            text: Secret::new(text),
        })
    }

    /// The value of the header `Authorization` for what k3s gives to a machine of this role.
    pub fn authorization(&self, role: Role) -> Secret {
        Secret::new(match &self.credential {
            Credential::Bootstrap(token) => format!("Bearer {}", token.reveal()),
            Credential::Password(password) => {
                let user = match role {
                    // With each password, that of servers too.
                    Role::Worker => "node",
                    Role::Server => "server",
                };
                let both = format!("{user}:{}", password.reveal());
                format!("Basic {}", BASE64.encode(both))
            }
        })
    }
}

/// The form of bootstrap tokens: six letters or digits, a dot, sixteen more.
fn is_bootstrap(text: &str) -> bool {
    let is_plain = |text: &str, length| {
        let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        text.len() == length && text.bytes().all(is_fine)
    };
    text.split_once('.')
        .is_some_and(|(id, secret)| is_plain(id, 6) && is_plain(secret, 16))
}

/// Reads the address of a server: `https://ADDRESS`, with the port of k3s where it names none.
pub fn server(text: &str) -> Result<Url, String> {
    // Mistakes in an authority are found by the parser of URLs.
    let lacks_port = |rest: &str| {
        let authority = rest.split('/').next().unwrap_or_default();
        Authority::parse(authority).is_ok_and(|authority| authority.port.is_none())
    };
    let rest = text
        .strip_prefix("https://")
        .ok_or("it begins with https://")?;
    let mut whole = text.trim_end_matches('/').to_owned();
    if lacks_port(rest) {
        write!(whole, ":{PORT}").map_err(|error| error.to_string())?;
    }
    let url = Url::parse(&whole)?;
    if is_local(&url.host) {
        return Err(
            "k3s does not ask mDNS, so it cannot find names that end with .local: use the address"
                .to_owned(),
        );
    }
    Ok(url)
}

/// Returns whether a name is one of mDNS, which k3s does not look up.
pub fn is_local(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit_once('.');
    last.is_some_and(|(_, last)| last.eq_ignore_ascii_case("local"))
}

/// A server, as it answered before anything but the request was sent to it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Server {
    pub time: Option<Wall>,
    /// This machine's time at that moment.
    pub now: Wall,
    pub version: Option<Version>,
    /// What it says to one that wants to become a further server.
    pub shared: Option<Shared>,
}

/// Doubts about a server.
pub fn doubts(server: &Server) -> Vec<Doubt> {
    let mut found = Vec::new();
    let apart = server
        .time
        .map(|time| time.millis().saturating_sub(server.now.millis()));
    if let Some(apart) = apart.filter(|apart| apart.abs() > CLOCKS_APART_MS) {
        let seconds = Duration::from_millis(apart.unsigned_abs());
        let side = if apart > 0 { "behind" } else { "ahead of" };
        found.push((
            "join.clock",
            format!(
                "the clock of this machine is {} {side} the server's",
                crate::core::time::in_words(seconds)
            ),
            "set both by the network: timedatectl set-ntp true; timedatectl".to_owned(),
        ));
    }
    found
}

/// Reason why a worker of this version cannot join a server of that one.
pub fn skew(worker: Version, server: Version) -> Option<Doubt> {
    let fix = format!("take the version of the server: --version {server}");
    let is_newer = worker > server;
    if is_newer {
        let what =
            format!("k3s {worker} is newer than the server, {server}: servers are upgraded first");
        return Some(("join.version", what, fix));
    }
    let behind = server.minor.saturating_sub(worker.minor);
    (behind > BEHIND_MAX || worker.major != server.major).then(|| {
        let what = format!(
            "k3s {worker} is more than {BEHIND_MAX} minor versions older than the server, {server}"
        );
        ("join.version", what, fix)
    })
}

/// The reason for which a server does not take a worker, in what k3s says on it, and the fix.
pub fn rejection(log: &str, node: &str) -> Option<(String, String)> {
    let has = |words: &str| log.lines().any(|line| line.contains(words));
    if has("Node password rejected") {
        return Some((
            format!(
                "the server knows a node {node} with another password: a machine that has this name, or had it"
            ),
            format!(
                "choose another name: --node-name NAME; or, if that machine is gone, on the server: sudo pipeops-agent node leave {node}"
            ),
        ));
    }
    has("token CA hash does not match").then(|| {
        (
            "the CA of the server is not the one that the token names".to_owned(),
            "take a token of this server: sudo pipeops-agent k3s token".to_owned(),
        )
    })
}

/// Reason why a name cannot be that of a worker.
pub fn name_doubt(node: &str) -> Option<Doubt> {
    is_local(node).then(|| {
        (
            "join.local-name",
            format!("the name {node} ends with .local, which k3s and Pods do not look up"),
            "choose another one: --node-name NAME".to_owned(),
        )
    })
}

/// Doubt about a name that many machines have.
pub fn name_warning(node: &str) -> Option<Doubt> {
    USUAL_NAMES.contains(&node).then(|| {
        (
            "join.usual-name",
            format!("many machines are called {node}, and a second one of that name is refused"),
            "choose a name for it: --node-name NAME".to_owned(),
        )
    })
}

/// Doubt about settings that only servers take.
pub fn settings_doubt(user: &[String]) -> Option<Doubt> {
    let found = of_servers(user);
    (!found.is_empty()).then(|| {
        (
            "join.server-settings",
            format!(
                "the settings in /etc/rancher/k3s have what only servers take: {}",
                found.join(", ")
            ),
            "remove them from config.yaml and config.yaml.d".to_owned(),
        )
    })
}

/// Settings of the user's files that only servers take.
pub fn of_servers(user: &[String]) -> Vec<&'static str> {
    let is_set = |key: &&&str| user.iter().any(|text| super::texts::has_key(text, key));
    OF_SERVERS.iter().filter(is_set).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn a_token_is_taken_in_its_secure_form_only_and_is_never_shown() {
        let token = Token::parse(&format!(" K10{HASH}::abc123.0123456789abcdef\n")).unwrap();
        assert_eq!(
            token.authorization(Role::Worker).reveal(),
            "Bearer abc123.0123456789abcdef"
        );
        assert_eq!(
            token.credential,
            Credential::Bootstrap(Secret::new("abc123.0123456789abcdef"))
        );
        assert!(!format!("{token:?}").contains("abc123"));
        let long = Token::parse(&format!("K10{HASH}::server:pass:word")).unwrap();
        assert_eq!(
            long.credential,
            Credential::Password(Secret::new("pass:word"))
        );
        for (role, wanted) in [
            (Role::Worker, "Basic bm9kZTpwYXNzOndvcmQ="),
            (Role::Server, "Basic c2VydmVyOnBhc3M6d29yZA=="),
        ] {
            assert_eq!(long.authorization(role).reveal(), wanted);
        }
        for wrong in [
            String::new(),
            "abc123.0123456789abcdef".to_owned(),
            "secret".to_owned(),
            format!("K10{HASH}"),
            format!("K10{}::server:x", HASH.replace('9', "x")),
            format!("K10{HASH}::server:"),
            format!("K10{HASH}::other:x"),
            format!("K10{HASH}::ABC123.0123456789abcdef"),
            format!("K10{HASH}::server:a b"),
        ] {
            let error = Token::parse(&wrong).unwrap_err();
            assert!(!error.contains("123"), "{error}");
        }
    }

    #[test]
    fn a_server_is_an_address_that_k3s_can_look_up() {
        for (text, port) in [
            ("https://192.0.2.10", 6443),
            ("https://192.0.2.10:7443/", 7443),
            ("https://[2001:db8::1]", 6443),
            ("https://[2001:db8::1]:443", 443),
            ("https://box.lan", 6443),
        ] {
            assert_eq!(server(text).unwrap().port, port, "{text}");
        }
        for text in [
            "192.0.2.10",
            "http://192.0.2.10:6443",
            "https://",
            "https://box.local:6443",
            "https://Box.LOCAL.",
        ] {
            assert!(server(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_clock_that_is_a_minute_off_is_told() {
        let now = Wall::parse_rfc3339("2026-11-23T10:00:00Z").unwrap();
        let seen = |time: &str| {
            doubts(&Server {
                time: Wall::parse_rfc3339(time),
                now,
                version: None,
                shared: None,
            })
        };
        assert!(seen("2026-11-23T10:00:59Z").is_empty());
        assert!(seen("2026-11-23T10:02:00Z")[0].1.contains("behind"));
        assert!(seen("2026-11-22T10:00:00Z")[0].1.contains("ahead"));
    }

    #[test]
    fn a_worker_is_never_newer_than_its_server() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        let server = version("v1.34.4+k3s1");
        for (worker, fits) in [
            ("v1.34.4+k3s1", true),
            ("v1.34.3+k3s9", true),
            ("v1.31.0+k3s1", true),
            ("v1.30.9+k3s1", false),
            ("v1.34.5+k3s1", false),
            ("v1.35.0+k3s1", false),
        ] {
            assert_eq!(skew(version(worker), server).is_none(), fits, "{worker}");
        }
    }

    #[test]
    fn a_name_that_is_taken_is_no_reason_to_wait() {
        let log = "level=info msg=x\ntime=\"2026-11-28T05:00:00Z\" level=info msg=\"Waiting to retrieve agent configuration; server is not ready: \
            /var/lib/rancher/k3s/agent/serving-kubelet.crt: Node password rejected, duplicate hostname or contents of \
            '/etc/rancher/node/password' may not match server node-passwd entry, try enabling a unique node name with the --with-node-id flag\"\n";
        let (why, fix) = rejection(log, "pi").unwrap();
        assert!(why.contains("node pi") && fix.contains("node leave pi"));
        assert_eq!(
            rejection("level=error msg=\"connection refused\"", "pi"),
            None
        );
    }

    #[test]
    fn settings_of_servers_are_found_in_the_files_of_a_worker() {
        let files = ["node-name: a\ndisable:\n- traefik\n\"cluster-init\": true\n".to_owned()];
        assert_eq!(of_servers(&files), ["cluster-init", "disable"]);
        assert!(of_servers(&["kubelet-arg+:\n- x\n".to_owned()]).is_empty());
    }
}
