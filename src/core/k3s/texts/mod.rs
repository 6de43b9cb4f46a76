//! The files that an installation writes: services, scripts that work without this program, and
//! k3s' settings.

use super::{
    super::{format::quoted, packed::script},
    Role, setting,
};

/// Service manager of the machine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Init {
    #[default]
    Systemd,
    /// OpenRC.
    OpenRc,
}

/// Memory below which k3s comes without its optional parts: boards that are sold with 1 GB report
/// 0.9 to 1.0 GB.
pub const SMALL_BYTES: u64 = 1_200_000_000;
/// Optional parts of k3s that a small board has no memory for, with what each takes.
///
/// metrics-server requests 70 MiB in its manifest. The other two request nothing; what is told of
/// them is what they are seen to take.
const OPTIONAL: [(&str, &str); 3] = [
    ("traefik", "about 60 MB"),
    ("servicelb", "about 5 MB"),
    ("metrics-server", "70 MB"),
];

/// One of the texts beside this file, by its name.
pub(in crate::core::k3s) fn text(name: &str) -> String {
    script(&format!("src/core/k3s/texts/{name}"))
}

/// The service of that name for a service manager.
fn of_init(init: Init, name: &str) -> String {
    text(&match init {
        Init::Systemd => format!("{name}.service"),
        Init::OpenRc => format!("{name}.openrc"),
    })
}

/// The service, with the data directory that it needs. With OpenRC it is also where k3s is
/// protected from the end of memory.
pub fn service(init: Init, role: Role, data_dir: &str, protected: &[&str]) -> String {
    let text = of_init(init, "k3s");
    let protect = if protected.is_empty() {
        ":".to_owned()
    } else {
        format!("echo {K3S_SCORE} >/proc/self/oom_score_adj 2>/dev/null")
    };
    filled(&text, role, data_dir).replace("@PROTECT@", &protect)
}

/// Score of k3s by which the kernel chooses what ends when the memory is full: the kubelet in it
/// sets the same, and each container gets its own.
const K3S_SCORE: i32 = -999;
/// Score of the agent, which has a ceiling of its own.
const AGENT_SCORE: i32 = -500;
/// Unit of the agent.
pub const AGENT: &str = "pipeops-agent";

/// The drop-in of systemd by which the kernel ends others before this unit.
pub fn protection(unit: &str) -> String {
    let score = if unit == AGENT {
        AGENT_SCORE
    } else {
        K3S_SCORE
    };
    format!(
        "# Written by pipeops-agent k3s install, and removed with k3s. When the memory is full, Pods end first.\n\
         [Service]\nOOMScoreAdjust={score}\n"
    )
}

fn filled(text: &str, role: Role, data_dir: &str) -> String {
    text.replace("@DATA@", data_dir)
        .replace("@NAME@", role.name())
        .replace("@COMMAND@", role.subcommand())
}

/// The service that finishes an interrupted change after a start of the machine.
pub fn resume(init: Init, program: &str, data_dir: &str) -> String {
    let text = of_init(init, "resume");
    text.replace("@PROGRAM@", program)
        .replace("@DATA@", data_dir)
}

/// The service that ends the Pods when the machine goes down.
pub fn shutdown(init: Init, data_dir: &str, stopped: &str) -> String {
    let text = of_init(init, "shutdown");
    text.replace("@DATA@", data_dir)
        .replace("@STOPPED@", stopped)
}

/// The service that looks at k3s: once, for a timer, or again and again where there are no timers.
pub fn watch(init: Init, program: &str) -> String {
    let text = of_init(init, "watch");
    text.replace("@PROGRAM@", program)
}

/// The service that makes the agent's credential.
pub fn connect(init: Init, program: &str) -> String {
    let text = of_init(init, "connect");
    text.replace("@PROGRAM@", program)
}

/// `k3s-killall.sh`.
pub fn killall(role: Role, data_dir: &str) -> String {
    filled(&text("killall.sh"), role, data_dir)
}

/// `k3s-uninstall.sh`, and `k3s-agent-uninstall.sh`.
pub fn uninstall(role: Role, data_dir: &str) -> String {
    filled(&text("uninstall.sh"), role, data_dir)
}

/// Settings of an installation that become k3s' own.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct InstallOptions {
    /// Data directory.
    pub data_dir: Option<String>,
    /// Name of the node.
    pub node_name: Option<String>,
    /// Address of the node.
    pub node_ip: Option<String>,
    /// Labels of the node, `key=value`.
    pub node_labels: Vec<String>,
    /// Names under which others reach the API.
    pub tls_san: Vec<String>,
    /// Parts of k3s that are left out.
    pub disable: Vec<String>,
    /// True if the optional parts come whatever the memory is.
    pub has_all_parts: bool,
    /// Address of the server that is joined; `None`: the first one.
    pub server: Option<String>,
    /// Settings that all servers share, where a further one joins; `None`: a worker joins.
    pub shared: Option<Vec<(&'static str, String)>>,
    /// True if the datastore is embedded etcd, which further servers can join.
    pub has_etcd: bool,
}

impl InstallOptions {
    /// Role of the node in the cluster.
    pub fn role(&self) -> Role {
        match (&self.server, &self.shared) {
            (Some(_), None) => Role::Worker,
            (None, _) | (_, Some(_)) => Role::Server,
        }
    }
}

/// Our settings of k3s, beside the user's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DropIn {
    /// The file.
    pub content: String,
    /// Parts that are left out because of the memory, with what each would take: `traefik (about 60
    /// MB)`.
    pub left_out: Vec<String>,
}

/// The drop-in for these options. What the user's own files say stays, except what this command
/// names explicitly.
pub fn drop_in(options: &InstallOptions, user: &[String], memory_bytes: u64) -> DropIn {
    let mut lines = vec![
        "# Written by pipeops-agent k3s install, which overwrites it. Your own settings belong into ../config.yaml.".to_owned(),
    ];
    let is_set = |key: &str| user.iter().any(|text| has_key(text, key));
    let role = options.role();
    for (key, value) in [
        ("write-kubeconfig-mode", "0600"),
        ("prefer-bundled-bin", "true"),
    ] {
        let is_taken = role == Role::Server || key == "prefer-bundled-bin";
        if is_taken && !is_set(key) {
            lines.push(format!("{key}: {}", quoted(value)));
        }
    }
    let joins = options.server.is_some();
    let token = joins.then(|| super::JOIN_TOKEN.to_owned());
    for (key, value) in [
        ("server", &options.server),
        ("token-file", &token),
        ("data-dir", &options.data_dir),
        ("node-name", &options.node_name),
        ("node-ip", &options.node_ip),
    ] {
        if let Some(value) = value {
            lines.push(format!("{key}: {}", quoted(value)));
        }
    }
    let shared = options
        .shared
        .iter()
        .flatten()
        .map(|(key, value)| (*key, &**value));
    let etcd = options.has_etcd.then_some(("cluster-init", "true"));
    for (key, value) in shared.chain(etcd).filter(|(key, _)| !is_set(key)) {
        lines.push(format!("{key}: {}", quoted(value)));
    }
    let mut disable = options.disable.clone();
    let mut left_out = Vec::new();
    let is_small = role == Role::Server
        && memory_bytes < SMALL_BYTES
        && !options.has_all_parts
        && !is_set("disable");
    for (name, takes) in OPTIONAL.iter().filter(|_| is_small) {
        if !disable.iter().any(|known| known == name) {
            disable.push((*name).to_owned());
            left_out.push(format!("{name} ({takes})"));
        }
    }
    // Without it the kernel decides who dies when the memory is full, and it may be k3s.
    let is_evicting = user.iter().any(|text| text.contains("eviction-hard"));
    let evicting = (!is_evicting).then(|| {
        "eviction-hard=memory.available<100Mi,nodefs.available<5%,imagefs.available<5%".to_owned()
    });
    for (key, values) in [
        ("disable", disable),
        ("node-label", options.node_labels.clone()),
        ("tls-san", options.tls_san.clone()),
        ("kubelet-arg", evicting.into_iter().collect()),
    ] {
        if values.is_empty() {
            continue;
        }
        // With a plus it adds to what the user's files have.
        lines.push(format!("{key}+:"));
        lines.extend(values.iter().map(|value| format!("  - {}", quoted(value))));
    }
    lines.push(String::new());
    DropIn {
        content: lines.join("\n"),
        left_out,
    }
}

/// Returns whether a file of k3s' settings has this key, also where it adds to a list.
pub(super) fn has_key(text: &str, key: &str) -> bool {
    let mut keys = text.lines().filter_map(|line| line.split_once(':'));
    keys.any(|(found, _)| {
        let found = found.trim_matches(['"', '\'']);
        found.strip_suffix('+').unwrap_or(found) == key
    })
}

/// The data directory that will hold: of the options, else of the user's files, else the usual one.
pub fn data_dir(options: &InstallOptions, files: &[String]) -> String {
    let named = options
        .data_dir
        .clone()
        .or_else(|| setting(files, "data-dir"));
    named.unwrap_or_else(|| super::DATA_DIR.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{JOIN_TOKEN, join},
        *,
    };
    use crate::core::yaml;

    const GIGABYTE: u64 = 1_000_000_000;

    #[test]
    fn a_small_board_goes_without_the_optional_parts_and_is_told_what_that_saves() {
        let found = drop_in(&InstallOptions::default(), &[], GIGABYTE);
        assert_eq!(found.left_out.len(), 3);
        assert!(found.left_out[2].contains("70 MB"), "{:?}", found.left_out);
        let value = yaml::parse(&found.content).unwrap();
        assert_eq!(value["disable+"][0], "traefik");
        for (options, user, memory) in [
            (InstallOptions::default(), String::new(), 2 * GIGABYTE),
            (
                InstallOptions {
                    has_all_parts: true,
                    ..InstallOptions::default()
                },
                String::new(),
                GIGABYTE,
            ),
            (
                InstallOptions::default(),
                "disable: []\n".to_owned(),
                GIGABYTE,
            ),
        ] {
            let found = drop_in(&options, &[user], memory);
            assert!(
                found.left_out.is_empty() && !found.content.contains("traefik"),
                "{}",
                found.content
            );
        }
    }

    #[test]
    fn what_the_user_has_set_is_not_set_again() {
        let user =
            "write-kubeconfig-mode: \"0640\"\nkubelet-arg:\n- eviction-hard=memory.available<1Gi\n"
                .to_owned();
        let found = drop_in(&InstallOptions::default(), &[user], 8 * GIGABYTE).content;
        assert!(
            !found.contains("write-kubeconfig-mode") && !found.contains("kubelet-arg"),
            "{found}"
        );
        assert!(found.contains("prefer-bundled-bin"), "{found}");
    }

    #[test]
    fn an_option_is_one_scalar_whatever_is_in_it() {
        let options = InstallOptions {
            data_dir: Some("/mnt/a \"b\": c\\".to_owned()),
            node_labels: vec!["a=b: c # d".to_owned()],
            ..InstallOptions::default()
        };
        let value = yaml::parse(&drop_in(&options, &[], GIGABYTE).content).unwrap();
        assert_eq!(value["data-dir"], "/mnt/a \"b\": c\\");
        assert_eq!(value["node-label+"][0], "a=b: c # d");
        assert_eq!(data_dir(&options, &[]), "/mnt/a \"b\": c\\");
        assert_eq!(
            data_dir(&InstallOptions::default(), &["data-dir: /x\n".to_owned()]),
            "/x"
        );
    }

    #[test]
    fn a_worker_gets_no_setting_that_only_servers_take_and_no_token() {
        let options = InstallOptions {
            server: Some("https://192.0.2.10:6443".to_owned()),
            node_labels: vec!["a=b".to_owned()],
            ..InstallOptions::default()
        };
        let content = drop_in(&options, &[], GIGABYTE / 2).content;
        assert!(
            join::of_servers(std::slice::from_ref(&content)).is_empty(),
            "{content}"
        );
        let value = yaml::parse(&content).unwrap();
        assert_eq!(value["server"], "https://192.0.2.10:6443");
        assert_eq!(value["token-file"], JOIN_TOKEN);
        assert!(!content.contains("token:"), "{content}");
    }

    #[test]
    fn a_further_server_gets_the_settings_that_all_servers_share() {
        let options = InstallOptions {
            server: Some("https://192.0.2.10:6443".to_owned()),
            shared: Some(vec![
                ("flannel-backend", "host-gw".to_owned()),
                ("cluster-dns", "10.43.0.10".to_owned()),
            ]),
            ..InstallOptions::default()
        };
        assert_eq!(options.role(), Role::Server);
        let user = "flannel-backend: host-gw\n".to_owned();
        let value = yaml::parse(&drop_in(&options, &[user], 8 * GIGABYTE).content).unwrap();
        assert_eq!(value["cluster-dns"], "10.43.0.10");
        assert_eq!(value["token-file"], JOIN_TOKEN);
        assert_eq!(value["write-kubeconfig-mode"], "0600");
        assert!(value.get("flannel-backend").is_none() && value.get("cluster-init").is_none());
        let first = InstallOptions {
            has_etcd: true,
            ..InstallOptions::default()
        };
        let value = yaml::parse(&drop_in(&first, &[], 8 * GIGABYTE).content).unwrap();
        assert_eq!(value["cluster-init"], "true");
    }

    #[test]
    fn an_interrupted_change_is_tried_again_within_limits() {
        let systemd = resume(Init::Systemd, "/p", "/d");
        for line in [
            "Restart=on-failure",
            "StartLimitBurst=12",
            "RestartSec=2min",
        ] {
            assert!(systemd.lines().any(|found| found == line), "{line}");
        }
        let openrc = resume(Init::OpenRc, "/p", "/d");
        assert!(openrc.contains("for pause in 120 "), "{openrc}");
        // The service's own shell must not expand it.
        assert!(openrc.contains(r"sleep \$pause"), "{openrc}");
    }

    #[test]
    fn a_service_without_its_program_is_skipped_and_does_not_fail() {
        let systemd = [
            resume(Init::Systemd, "/p q", "/d"),
            watch(Init::Systemd, "/p q"),
            connect(Init::Systemd, "/p q"),
        ];
        for text in systemd {
            assert!(
                text.lines()
                    .any(|line| line == "ConditionFileIsExecutable=/p q"),
                "{text}"
            );
        }
        for text in [
            resume(Init::OpenRc, "/p", "/d"),
            watch(Init::OpenRc, "/p"),
            connect(Init::OpenRc, "/p"),
        ] {
            assert!(text.contains("[ ") && text.contains("-x "), "{text}");
        }
    }

    #[test]
    fn no_placeholder_is_left_in_a_text() {
        for init in [Init::Systemd, Init::OpenRc] {
            let resume = resume(init, "/d/pipeops-agent", "/d");
            let of = |role| {
                [
                    service(init, role, "/d", &["k3s"]),
                    killall(role, "/d"),
                    uninstall(role, "/d"),
                ]
            };
            let texts = [resume, shutdown(init, "/d", "/s")];
            for text in Role::ALL.into_iter().flat_map(of).chain(texts) {
                for name in [
                    "@DATA@",
                    "@PROGRAM@",
                    "@NAME@",
                    "@COMMAND@",
                    "@PROTECT@",
                    "@STOPPED@",
                ] {
                    assert!(!text.contains(name), "{text}");
                }
                assert!(text.contains("/d"), "{text}");
            }
        }
    }
}
