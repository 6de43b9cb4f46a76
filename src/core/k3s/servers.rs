//! Several servers: the datastore that they share, its quorum, the settings that must be the same
//! on all of them, and the Lease by which they are changed one at a time.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};

use super::{Doubt, Version};
use crate::core::{time::Wall, yaml};

/// Datastore of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Datastore {
    /// A file of this machine, for one server.
    Sqlite,
    /// Embedded etcd, of which each server has a member.
    Etcd,
    /// Another program.
    Elsewhere,
}

impl Datastore {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Etcd => "etcd",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// Servers of an etcd that may fail, in words. Zero servers: nobody counted them.
pub fn quorum(servers: u64) -> String {
    let may_fail = servers.saturating_sub(1) / 2;
    match servers {
        0 => String::new(),
        1 => "1 server".to_owned(),
        2 => "2 servers, 0 of which may fail: add a third".to_owned(),
        even if even % 2 == 0 => format!(
            "{servers} servers, {may_fail} of which may fail; with one more, {}",
            may_fail + 1
        ),
        _ => format!("{servers} servers, {may_fail} of which may fail"),
    }
}

/// A server, as the API has its node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServerNode {
    /// Name of its node.
    pub name: String,
    pub version: Option<Version>,
    /// True if its node is Ready.
    pub is_ready: bool,
    pub address: String,
}

/// Template whose output [`servers`] reads, for `kubectl -o jsonpath=`.
pub const JSONPATH: &str = "{range .items[*]}{.metadata.name}|{.status.nodeInfo.kubeletVersion}|\
    {.status.conditions[?(@.type==\"Ready\")].status}|{.status.addresses[?(@.type==\"InternalIP\")].address}{\"\\n\"}{end}";

/// Reads the output of [`JSONPATH`].
pub fn servers(answer: &str) -> Vec<ServerNode> {
    let found = answer.lines().filter_map(|line| {
        let mut fields = line.split('|');
        let mut next = || fields.next();
        Some(ServerNode {
            name: next()?.to_owned(),
            version: next()?.parse().ok(),
            is_ready: next()? == "True",
            // With two families the first is the one of the cluster.
            address: next()?
                .split_ascii_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned(),
        })
    });
    found.collect()
}

/// Reasons why a server cannot be upgraded beside the others.
pub fn upgrade_doubts(servers: &[ServerNode], own: &str, to: Version) -> Vec<Doubt> {
    let mut found = Vec::new();
    for other in servers.iter().filter(|server| server.name != own) {
        let name = &other.name;
        if !other.is_ready {
            found.push((
                "upgrade.quorum",
                format!("the server {name} is not Ready, and each that restarts beside it may be one too many"),
                format!("inspect it there: sudo pipeops-agent k3s status; or, if it is gone for good: sudo pipeops-agent node leave {name}"),
            ));
        } else if let Some(version) = other.version.filter(|it| it.minor + 1 < to.minor) {
            found.push((
                "upgrade.skew",
                format!(
                    "the server {name} has k3s {version}, more than one minor version behind {to}"
                ),
                format!("upgrade {name} first"),
            ));
        }
    }
    found
}

/// The first k3s with etcd 3.5.26 (k3s 13493), which repairs its lists of members for etcd 3.6:
/// that comes with k3s 1.34, and with the last patches of 1.33.
const REPAIRS_MEMBERS: Version = Version {
    major: 1,
    minor: 33,
    patch: 7,
    release: 3,
};

/// The first k3s 1.33 with etcd 3.6 (k3s 14183).
const TRUSTS_MEMBERS: Version = Version {
    major: 1,
    minor: 33,
    patch: 13,
    release: 1,
};

/// Returns whether an upgrade brings etcd 3.6, after which etcd 3.5 does not start on the same
/// member ("invalid downgrade").
pub fn brings_new_etcd(from: Version, to: Version) -> bool {
    from < TRUSTS_MEMBERS && to >= TRUSTS_MEMBERS
}

/// Reason why an etcd is not upgraded yet, of any of its servers: in etcd 3.6 members that were
/// removed under a version before 3.5.26 come back, and nothing else repairs that (k3s 13485).
pub fn etcd_doubt(servers: &[ServerNode], own: (&str, Version), to: Version) -> Option<Doubt> {
    let others = servers
        .iter()
        .filter_map(|it| Some((it.name.as_str(), it.version?)));
    let mut all = others.filter(|(name, _)| *name != own.0).chain([own]);
    let (name, version) = all.find(|(_, version)| *version < REPAIRS_MEMBERS)?;
    (to >= TRUSTS_MEMBERS).then(|| {
        (
            "upgrade.etcd",
            format!("{name} has k3s {version}, whose etcd is older than 3.5.26: members that were removed from it once may come back with {to}, and the cluster stops"),
            format!("take {REPAIRS_MEMBERS} on all servers first; where no server was ever replaced, nothing is in the way"),
        )
    })
}

/// Reason why a server cannot leave: those that stay would be no majority.
pub fn leave_doubt(servers: &[ServerNode], leaving: &str) -> Option<Doubt> {
    let others = || servers.iter().filter(|server| server.name != leaving);
    let (all, ready) = (others().count(), others().filter(|it| it.is_ready).count());
    let away = others().find(|server| !server.is_ready)?;
    (ready < all / 2 + 1).then(|| {
        (
            "leave.quorum",
            format!("{ready} of the {all} servers that stay are Ready, which is no majority: the cluster would stop"),
            format!("repair {0}, or let it leave first: sudo pipeops-agent node leave {0}", away.name),
        )
    })
}

/// Reason why etcd is not put on a device.
pub fn card_doubt(device: &str, data_dir: &str) -> Option<Doubt> {
    device.starts_with("/dev/mmcblk").then(|| {
        (
            "etcd.card",
            format!(
                "{data_dir} is on {device}, a card or eMMC: etcd waits for the disk with each of its writes, some 50 a second, which are slower there than its deadlines and wear it out"
            ),
            "put the data on an SSD: --data-dir DIR; or stay with one server on SQLite: leave --cluster-init out".to_owned(),
        )
    })
}

/// Kind of a setting that all servers share.
#[derive(Clone, Copy)]
enum SettingKind {
    Networks,
    Text,
    Switch,
}

/// Settings that all servers share, with their fields in the answer to `/v1-k3s/config`: k3s ends
/// where one differs.
const SHARED: [(&str, &str, SettingKind); 15] = [
    ("cluster-cidr", "ClusterIPRange", SettingKind::Networks),
    ("service-cidr", "ServiceIPRange", SettingKind::Networks),
    ("cluster-dns", "ClusterDNS", SettingKind::Text),
    ("cluster-domain", "ClusterDomain", SettingKind::Text),
    ("flannel-backend", "FlannelBackend", SettingKind::Text),
    (
        "egress-selector-mode",
        "EgressSelectorMode",
        SettingKind::Text,
    ),
    ("secrets-encryption", "EncryptSecrets", SettingKind::Switch),
    (
        "secrets-encryption-provider",
        "EncryptProvider",
        SettingKind::Text,
    ),
    (
        "disable-helm-controller",
        "DisableHelmController",
        SettingKind::Switch,
    ),
    ("disable-network-policy", "DisableNPC", SettingKind::Switch),
    (
        "disable-cloud-controller",
        "DisableCCM",
        SettingKind::Switch,
    ),
    ("embedded-registry", "EmbeddedRegistry", SettingKind::Switch),
    ("flannel-ipv6-masq", "FlannelIPv6Masq", SettingKind::Switch),
    (
        "flannel-external-ip",
        "FlannelExternalIP",
        SettingKind::Switch,
    ),
    (
        "supervisor-metrics",
        "SupervisorMetrics",
        SettingKind::Switch,
    ),
];

/// Settings that the contents of a datastore depend on, with their defaults. Not cluster-dns, whose
/// default follows from service-cidr.
const LASTING: [(&str, &str); 4] = [
    ("cluster-cidr", "10.42.0.0/16"),
    ("service-cidr", "10.43.0.0/16"),
    ("cluster-domain", concat!("cluster", ".local")),
    ("secrets-encryption", "false"),
];
/// The only one of [`lasting`] that may change: k3s reads Secrets that are not encrypted anyway.
pub const NOT_ENCRYPTED: &str = "secrets-encryption: false";

/// The settings that a datastore depends on, as lines of k3s' settings.
pub fn lasting(value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let line = |(key, default): (&str, &str)| {
        format!("{key}: {}", value(key).as_deref().unwrap_or(default))
    };
    LASTING.map(line).into()
}

/// Settings of the first server that further ones must have.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Shared {
    /// Keys of k3s' settings, with their values.
    pub settings: Vec<(&'static str, String)>,
    /// Parts that are left out.
    pub disable: Vec<String>,
    /// True if its datastore is one that other servers can join.
    pub has_etcd: bool,
}

/// Reads the answer to `/v1-k3s/config`; `None`: it is none.
pub fn shared(answer: &[u8]) -> Option<Shared> {
    let config: Value = serde_json::from_slice(answer).ok()?;
    let mut found = Shared::default();
    for (key, field, kind) in SHARED {
        let value = config.get(field).unwrap_or(&Value::Null);
        let value = match kind {
            SettingKind::Networks => {
                let all = config.get(format!("{field}s")).and_then(Value::as_array);
                let all = all.map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
                let all: Vec<_> = all.iter().filter_map(network).collect();
                all.join(",")
            }
            SettingKind::Text => value.as_str().unwrap_or_default().to_owned(),
            SettingKind::Switch if value.as_bool() == Some(true) => "true".to_owned(),
            SettingKind::Switch => String::new(),
        };
        // It becomes a line of a file: anything else than a word is not from k3s.
        if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic()) {
            found.settings.push((key, value));
        }
    }
    let disables = config.get("Disables").and_then(Value::as_object);
    let parts = disables.into_iter().flatten();
    let parts = parts.filter(|(_, value)| value.as_bool() == Some(true));
    found.disable = parts.map(|(name, _)| name.clone()).collect();
    let has_load_balancer = config.get("DisableServiceLB").and_then(Value::as_bool) != Some(true);
    if !has_load_balancer && !found.disable.iter().any(|name| name == "servicelb") {
        found.disable.push("servicelb".to_owned());
    }
    found
        .disable
        .retain(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()));
    Some(found)
}

/// A network as Go writes it: an address, and a mask in Base64.
fn network(value: &Value) -> Option<String> {
    let address = value.get("IP")?.as_str()?;
    let mask = BASE64.decode(value.get("Mask")?.as_str()?).ok()?;
    let length: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let mut text = address.to_owned();
    write!(text, "/{length}").ok()?;
    Some(text)
}

/// Reasons why a machine cannot become a further server, in what the first one says and in the
/// user's own settings of this one.
pub fn server_doubts(shared: &Shared, user: &[String]) -> Vec<Doubt> {
    let mut found = Vec::new();
    if !shared.has_etcd {
        found.push((
            "join.datastore",
            "the first server keeps its data in SQLite or elsewhere, not in embedded etcd, so it accepts no further servers".to_owned(),
            "SQLite (sudo pipeops-agent k3s status names it): on the first server, with its data on an SSD: sudo pipeops-agent k3s backup; add the line `cluster-init: true` to /etc/rancher/k3s/config.yaml; sudo systemctl restart k3s: k3s moves its data into etcd; \
             with a datastore-endpoint nothing is moved: further servers are set up by k3s' own script, with the same endpoint".to_owned(),
        ));
    }
    for (key, _, _) in SHARED {
        let here = user.iter().rev().find_map(|text| {
            let value = yaml::parse_settings(text).ok()?;
            Some(match value.get(key)? {
                Value::String(text) => text.clone(),
                Value::Array(all) => {
                    let all: Vec<_> = all.iter().filter_map(Value::as_str).collect();
                    all.join(",")
                }
                other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
                    other.to_string()
                }
            })
        });
        let there = shared.settings.iter().find(|(name, _)| *name == key);
        let there = there.map_or("false", |(_, value)| value);
        if let Some(here) = here.filter(|here| here != there) {
            found.push((
                "join.settings",
                format!("the settings in /etc/rancher/k3s have {key} {here}, and those of the first server {there}: it must be the same on all servers"),
                format!("remove {key} from config.yaml here: it is taken from the first server"),
            ));
        }
    }
    found
}

/// Lease that a server has while it is upgraded, in kube-system.
pub const LEASE: &str = "pipeops-k3s-upgrade";
/// Label of the Lease: the node that has it may remove it, whoever took it over may not lose it.
pub const LEASE_LABEL: &str = "pipeops.io/held-by";
/// Template whose output [`held`] and [`lease`] read.
pub const LEASE_JSONPATH: &str = "{.spec.holderIdentity}|{.spec.renewTime}|{.spec.leaseDurationSeconds}|{.metadata.resourceVersion}";

/// The Lease as a manifest. `before` is the answer about the one that it replaces.
pub fn lease(holder: &str, now: Wall, seconds: u64, before: Option<&str>) -> String {
    // Kubernetes wants six digits of the second.
    let time = now.rfc3339().replace('Z', "000Z");
    let version = before.and_then(|before| before.trim().rsplit('|').next());
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": LEASE, "namespace": "kube-system",
            "labels": { LEASE_LABEL: holder }, "resourceVersion": version,
        },
        "spec": {
            "holderIdentity": holder, "acquireTime": time, "renewTime": time,
            "leaseDurationSeconds": seconds,
        },
    })
    .to_string()
}

/// Another holder of the Lease, and the time until which it has it. One that is over, and one of
/// this node, block nothing.
pub fn held(answer: &str, own: &str, now: Wall) -> Option<(String, Wall)> {
    let mut fields = answer.trim().split('|');
    let holder = fields.next().filter(|holder| !holder.is_empty())?;
    let renewed = Wall::parse_rfc3339(fields.next()?)?;
    let seconds = fields.next()?.parse::<i64>().ok()?;
    let until = Wall::from_millis(
        renewed
            .millis()
            .saturating_add(seconds.saturating_mul(1000)),
    );
    (holder != own && until > now).then(|| (holder.to_owned(), until))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, version: &str, is_ready: bool) -> ServerNode {
        ServerNode {
            name: name.to_owned(),
            version: version.parse().ok(),
            is_ready,
            address: "192.0.2.10".to_owned(),
        }
    }

    #[test]
    fn a_quorum_is_more_than_half_of_the_servers() {
        for (servers, wanted) in [
            (0, ""),
            (1, "1 server"),
            (2, "2 servers, 0 of which may fail: add a third"),
            (3, "3 servers, 1 of which may fail"),
            (4, "4 servers, 1 of which may fail; with one more, 2"),
            (5, "5 servers, 2 of which may fail"),
        ] {
            assert_eq!(quorum(servers), wanted);
        }
    }

    #[test]
    fn servers_are_read_with_their_first_address() {
        let found = servers(
            "a|v1.34.4+k3s1|True|192.0.2.10 2001:db8::1\nb|v1.34.5+k3s1|Unknown|\nbroken\n",
        );
        assert_eq!(found[0], server("a", "v1.34.4+k3s1", true));
        assert_eq!((found.len(), found[1].is_ready), (2, false));
    }

    #[test]
    fn a_server_is_upgraded_only_while_the_others_run_and_are_near() {
        let own = server("a", "v1.34.4+k3s1", true);
        let ids = |other: ServerNode, to: &str| {
            let found = upgrade_doubts(&[own.clone(), other], "a", to.parse().unwrap());
            found.into_iter().map(|(id, ..)| id).collect::<Vec<_>>()
        };
        assert!(ids(server("b", "v1.34.4+k3s1", true), "v1.35.1+k3s1").is_empty());
        assert!(ids(server("b", "v1.35.1+k3s1", true), "v1.35.1+k3s1").is_empty());
        assert_eq!(
            ids(server("b", "v1.34.4+k3s1", false), "v1.34.5+k3s1"),
            ["upgrade.quorum"]
        );
        assert_eq!(
            ids(server("b", "v1.33.9+k3s1", true), "v1.35.1+k3s1"),
            ["upgrade.skew"]
        );
    }

    #[test]
    fn an_etcd_takes_the_version_that_repairs_its_members_before_the_next_one() {
        let doubt = |other: &str, from: &str, to: &str| {
            let servers = [server("a", from, true), server("b", other, true)];
            let found = etcd_doubt(&servers, ("a", from.parse().unwrap()), to.parse().unwrap());
            found.map(|(_, what, _)| what.split(' ').next().unwrap().to_owned())
        };
        let (old, fine) = ("v1.33.7+k3s1", "v1.33.7+k3s3");
        for (other, from, to, wanted) in [
            (old, old, "v1.34.3+k3s1", Some("b")),
            (fine, old, "v1.34.3+k3s1", Some("a")),
            (old, fine, "v1.34.3+k3s1", Some("b")),
            (fine, fine, "v1.34.3+k3s1", None),
            // The newest of 1.33 have etcd 3.6, too.
            (old, old, "v1.33.13+k3s1", Some("b")),
            (old, old, fine, None),
            (old, old, "v1.33.9+k3s1", None),
            (old, "v1.32.9+k3s1", old, None),
            ("v1.34.3+k3s1", "v1.34.3+k3s1", "v1.35.1+k3s1", None),
        ] {
            let found = doubt(other, from, to);
            assert_eq!(found.as_deref(), wanted, "{other} {from} {to}");
        }
    }

    #[test]
    fn a_server_leaves_only_where_a_majority_stays() {
        let version = "v1.34.4+k3s1";
        let [a, b] = ["a", "b"].map(|name| server(name, version, true));
        let gone = server("c", version, false);
        assert_eq!(leave_doubt(&[a.clone(), b.clone()], "b"), None);
        assert_eq!(
            leave_doubt(&[a.clone(), b.clone(), gone.clone()], "c"),
            None
        );
        let (id, _, fix) = leave_doubt(&[a, b, gone], "b").unwrap();
        assert!(
            id == "leave.quorum" && fix.contains("node leave c"),
            "{fix}"
        );
    }

    #[test]
    fn etcd_is_refused_on_cards_and_emmc_only() {
        for (device, is_fine) in [
            ("/dev/mmcblk0p2", false),
            ("/dev/mmcblk1", false),
            ("/dev/sda1", true),
            ("/dev/nvme0n1p1", true),
            ("tmpfs", true),
        ] {
            assert_eq!(card_doubt(device, "/d").is_none(), is_fine, "{device}");
        }
    }

    const CONFIG: &str = r#"{"ClusterIPRange":{"IP":"10.42.0.0","Mask":"//8AAA=="},
        "ClusterIPRanges":[{"IP":"10.42.0.0","Mask":"//8AAA=="},{"IP":"2001:db8::","Mask":"////////AAAAAAAAAAAAAA=="}],
        "ServiceIPRange":{"IP":"10.43.0.0","Mask":"//8AAA=="},"ClusterDNS":"10.43.0.10","ClusterDomain":"cluster.local",
        "FlannelBackend":"host-gw","EncryptSecrets":true,"EncryptProvider":"secretbox","DisableNPC":false,"Disables":{"traefik":true,"coredns":false},
        "DisableServiceLB":true,"EgressSelectorMode":"agent\nx: y"}"#;

    #[test]
    fn shared_settings_are_taken_from_the_first_server_and_no_line_is_smuggled_in() {
        let found = shared(CONFIG.as_bytes()).unwrap();
        let wanted = [
            ("cluster-cidr", "10.42.0.0/16,2001:db8::/48"),
            ("service-cidr", "10.43.0.0/16"),
            ("cluster-dns", "10.43.0.10"),
            ("cluster-domain", concat!("cluster", ".local")),
            ("flannel-backend", "host-gw"),
            ("secrets-encryption", "true"),
            ("secrets-encryption-provider", "secretbox"),
        ];
        assert_eq!(
            found.settings,
            wanted.map(|(key, value)| (key, value.to_owned()))
        );
        assert_eq!(found.disable, ["traefik", "servicelb"]);
        assert_eq!(shared(b"404 page not found"), None);
    }

    #[test]
    fn a_setting_that_differs_from_the_first_server_is_named() {
        let mut there = shared(CONFIG.as_bytes()).unwrap();
        let ids = |there: &Shared, text: &str| {
            let found = server_doubts(there, &[text.to_owned()]);
            found
                .into_iter()
                .map(|(id, what, _)| format!("{id} {what}"))
                .collect::<Vec<_>>()
        };
        assert!(ids(&there, "")[0].starts_with("join.datastore"));
        let (.., fix) = server_doubts(&there, &[]).remove(0);
        assert!(
            fix.starts_with("SQLite") && fix.contains("with a datastore-endpoint nothing is moved"),
            "{fix}"
        );
        there.has_etcd = true;
        for fine in [
            "",
            "node-name: a\n",
            "flannel-backend: host-gw\n",
            "secrets-encryption: true\n",
            "disable-network-policy: false\n",
        ] {
            assert!(ids(&there, fine).is_empty(), "{fine}");
        }
        for wrong in [
            "flannel-backend: vxlan\n",
            "secrets-encryption: false\n",
            "supervisor-metrics: true\n",
            "secrets-encryption-provider: aescbc\n",
            "cluster-cidr: 10.0.0.0/16\n",
        ] {
            let found = ids(&there, wrong);
            let key = wrong.split(':').next().unwrap();
            assert!(
                found.len() == 1 && found[0].contains(key),
                "{wrong} {found:?}"
            );
        }
    }

    #[test]
    fn a_lease_of_another_holds_until_it_is_over() {
        let now = Wall::parse_rfc3339("2026-11-23T10:00:00Z").unwrap();
        let text = lease("a", now, 600, Some("b|2026-11-23T08:00:00.000000Z|60|77"));
        for part in [
            "\"holderIdentity\":\"a\"",
            "\"renewTime\":\"2026-11-23T10:00:00.000000Z\"",
            "\"resourceVersion\":\"77\"",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let answer = "b|2026-11-23T09:55:00.000000Z|600|7";
        let (holder, until) = held(answer, "a", now).unwrap();
        assert_eq!((&*holder, until.millis() - now.millis()), ("b", 300_000));
        assert_eq!(held(answer, "b", now), None);
        assert_eq!(held("b|2026-11-23T09:49:00.000000Z|600|7", "a", now), None);
        assert_eq!(held("|||7", "a", now), None);
    }
}
