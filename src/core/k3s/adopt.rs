//! Kubernetes that was installed by other means: the service of a k3s, and the distributions that
//! are connected and never managed.

use crate::core::order::GatherExt as _;
use litemap::LiteMap;

use super::{BINARY, Role, setting, texts::Init};

/// Distribution that is recognised by its files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Other {
    pub name: &'static str,
    /// Mark of it: a path, or a label in the description of a container of Docker.
    pub mark: Mark,
    /// Command that prints the kubeconfig of its administrator.
    pub kubeconfig: &'static str,
}

/// Mark of a distribution.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mark {
    /// This path is there.
    Path(&'static str),
    /// A container has this label.
    Label(&'static str),
}

/// Distributions that are recognised.
pub const OTHERS: [Other; 8] = {
    const fn at(name: &'static str, path: &'static str, kubeconfig: &'static str) -> Other {
        Other {
            name,
            mark: Mark::Path(path),
            kubeconfig,
        }
    }
    const fn labelled(name: &'static str, label: &'static str, kubeconfig: &'static str) -> Other {
        Other {
            name,
            mark: Mark::Label(label),
            kubeconfig,
        }
    }
    [
        at("MicroK8s", "/var/snap/microk8s", "microk8s config"),
        at("k0s", "/var/lib/k0s", "k0s kubeconfig admin"),
        at(
            "RKE2",
            "/var/lib/rancher/rke2",
            "cat /etc/rancher/rke2/rke2.yaml",
        ),
        at(
            "kubeadm",
            "/etc/kubernetes/manifests",
            "cat /etc/kubernetes/admin.conf",
        ),
        at("minikube", "/var/lib/minikube", MINIKUBE),
        labelled("minikube", "name.minikube.sigs.k8s.io", MINIKUBE),
        labelled("k3d", "k3d.cluster", "k3d kubeconfig get CLUSTER"),
        labelled("kind", "io.x-k8s.kind.cluster", "kind get kubeconfig"),
    ]
};
const MINIKUBE: &str = "minikube kubectl -- config view --flatten";

impl Other {
    /// Way to connect the agent to it.
    pub fn connection(&self) -> String {
        format!(
            "{} is never managed, and can be connected: {} > FILE, then set agent.kubeconfig to FILE, which the agent's user must be able to read",
            self.name, self.kubeconfig
        )
    }
}

/// The service of a k3s, as far as it can be read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Service {
    /// Path of the program.
    pub program: String,
    /// Part of k3s that it runs.
    pub role: Role,
    flags: Vec<(String, String)>,
    variables: LiteMap<String, String>,
}

impl Service {
    /// Reads the service, and the file of its environment.
    pub fn read(init: Init, text: &str, environment: &str) -> Option<Self> {
        let command = match init {
            Init::Systemd => exec_start(text)?,
            Init::OpenRc => {
                let value = |key: &str| assigned(text, key);
                format!(
                    "{} {}",
                    value("command")?,
                    value("command_args").unwrap_or_default()
                )
            }
        };
        let mut words = words(&command).into_iter();
        let program = words.next()?;
        let role = match words.next()?.as_str() {
            "server" => Role::Server,
            "agent" => Role::Worker,
            _ => return None,
        };
        // OpenRC's script sends the output to a file.
        let words: Vec<_> = words.take_while(|word| !word.contains('>')).collect();
        let variables = environment.lines().filter_map(|line| {
            let (name, value) = line.trim().trim_start_matches("export ").split_once('=')?;
            Some((name.to_owned(), value.trim_matches(['"', '\'']).to_owned()))
        });
        Some(Self {
            program,
            role,
            flags: flags(&words),
            variables: variables.gather(),
        })
    }

    /// A value: of the command line before the settings before the environment. So k3s reads them,
    /// which puts the settings before the flags of its command line.
    pub fn value(&self, flag: &str, variable: &str, settings: &[String]) -> Option<String> {
        let of_flag = || self.flag(flag).map(str::to_owned);
        let of_variable = || self.variables.get(variable).cloned();
        of_flag()
            .or_else(|| setting(settings, flag))
            .or_else(of_variable)
            .filter(|value| !value.is_empty())
    }

    /// True if the command line has that flag.
    pub fn has(&self, flag: &str) -> bool {
        self.flag(flag).is_some()
    }

    fn flag(&self, name: &str) -> Option<&str> {
        let mut flags = self.flags.iter().rev();
        flags
            .find(|(flag, _)| flag == name)
            .map(|(_, value)| value.as_str())
    }

    /// The arguments of the command line, without secrets.
    pub fn arguments(&self) -> Vec<String> {
        let shown = self.flags.iter().map(|(name, value)| match value.as_str() {
            "" => format!("--{name}"),
            _ if is_secret(name) => format!("--{name}=…"),
            value => format!("--{name}={value}"),
        });
        shown.collect()
    }

    /// Names of the variables of its environment.
    pub fn variables(&self) -> Vec<String> {
        self.variables.keys().cloned().collect()
    }

    /// Flags whose value in the settings is another one: the command line wins.
    pub fn drift(&self, settings: &[String]) -> Vec<String> {
        let differs = |(name, value): &&(String, String)| {
            let value = if value.is_empty() { "true" } else { value };
            setting(settings, name).is_some_and(|set| set != value)
        };
        let names = self.flags.iter().filter(differs);
        names.map(|(name, _)| format!("--{name}")).collect()
    }

    /// Reason why this program cannot manage it, and the fix.
    pub fn refusal(&self) -> Option<(&'static str, String, String)> {
        if self.role == Role::Worker {
            return Some((
                "adopt.worker",
                "this machine is a worker: it has no datastore and no API to manage".to_owned(),
                "adopt k3s on its server".to_owned(),
            ));
        }
        (self.program != BINARY).then(|| {
            (
                "adopt.program",
                format!("its program is {}, and not {BINARY}", self.program),
                "install k3s by its own script with INSTALL_K3S_BIN_DIR=/usr/local/bin first"
                    .to_owned(),
            )
        })
    }
}

/// True if the value of a flag is nobody's business.
fn is_secret(flag: &str) -> bool {
    // A proxy may have a password in its address, and vpn-auth has the key of the network.
    [
        "token", "password", "secret", "key", "endpoint", "proxy", "vpn-auth",
    ]
    .iter()
    .any(|word| flag.contains(word))
}

/// The last command of a unit, with its continued lines.
fn exec_start(text: &str) -> Option<String> {
    let joined = text.replace("\\\n", " ");
    let mut commands = joined
        .lines()
        .filter_map(|line| line.trim().strip_prefix("ExecStart="));
    // An empty one takes back those before it.
    let command = commands.next_back()?.trim().to_owned();
    Some(command).filter(|command| !command.is_empty())
}

/// A variable of a script, which may have several lines.
fn assigned(text: &str, name: &str) -> Option<String> {
    let joined = text.replace("\\\n", " ");
    let begin = format!("{name}=");
    let at = joined.lines().find_map(|line| line.strip_prefix(&begin))?;
    let rest = joined.get(joined.find(&format!("\n{begin}{at}"))?..)?;
    let value = rest.split_once('=')?.1;
    Some(match value.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default().to_owned(),
        None => at.to_owned(),
    })
}

/// Words of a command, without their quotation marks.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut open) = (None::<String>, None);
    for letter in command.chars() {
        match (letter, open) {
            ('\'' | '"', None) => {
                open = Some(letter);
                word.get_or_insert_default();
            }
            (_, Some(quote)) if letter == quote => open = None,
            (_, None) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// Flags with their values: `--name value`, `--name=value`, or `--name` alone.
fn flags(words: &[String]) -> Vec<(String, String)> {
    let mut flags: Vec<(String, String)> = Vec::new();
    for word in words {
        if let Some(name) = word.strip_prefix('-') {
            let name = name.trim_start_matches('-');
            let (name, value) = name.split_once('=').unwrap_or((name, ""));
            let name = match name {
                "d" => "data-dir",
                "t" => "token",
                "c" => "config",
                name => name,
            };
            flags.push((name.to_owned(), value.to_owned()));
        } else if let Some((_, value)) = flags.last_mut().filter(|(_, value)| value.is_empty()) {
            value.clone_from(word);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the official script writes it.
    const UNIT: &str = "[Service]\nExecStartPre=-/sbin/modprobe overlay\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--disable' \\\n\t'traefik' \\\n\t'--node-name=Box One' \\\n\t'--token' \\\n\t'K10secret' \\\n\t'--vpn-auth=name=tailscale,joinKey=x' \\\n\t'--etcd-s3-proxy=http://u:p@192.0.2.1' \\\n\t'--cluster-init' \\\n\n";

    #[test]
    fn the_unit_of_the_official_script_is_read() {
        let environment = "K3S_DATA_DIR='/mnt/k3s'\nK3S_TOKEN=\"x\"\n";
        let service = Service::read(Init::Systemd, UNIT, environment).unwrap();
        assert_eq!(
            (service.program.as_str(), service.role),
            (BINARY, Role::Server)
        );
        assert_eq!(
            service.arguments(),
            [
                "--disable=traefik",
                "--node-name=Box One",
                "--token=…",
                "--vpn-auth=…",
                "--etcd-s3-proxy=…",
                "--cluster-init"
            ]
        );
        assert_eq!(service.variables(), ["K3S_DATA_DIR", "K3S_TOKEN"]);
        let settings = ["node-name: other\ntoken-file: /t\n".to_owned()];
        let value = |flag, variable| service.value(flag, variable, &settings);
        assert_eq!(
            value("node-name", "K3S_NODE_NAME").as_deref(),
            Some("Box One")
        );
        assert_eq!(
            value("data-dir", "K3S_DATA_DIR").as_deref(),
            Some("/mnt/k3s")
        );
        let settings_first = ["data-dir: /srv\n".to_owned()];
        assert_eq!(
            service
                .value("data-dir", "K3S_DATA_DIR", &settings_first)
                .as_deref(),
            Some("/srv")
        );
        assert_eq!(service.drift(&settings), ["--node-name"]);
        let same = ["cluster-init: true\n".to_owned()];
        assert!(service.drift(&same).is_empty());
        let other = ["cluster-init: false\n".to_owned()];
        assert_eq!(service.drift(&other), ["--cluster-init"]);
        assert_eq!(service.refusal(), None);
    }

    #[test]
    fn the_script_of_openrc_is_read() {
        let text = "#!/sbin/openrc-run\nname=k3s\ncommand=\"/usr/local/bin/k3s\"\ncommand_args=\"server \\\n        '-d' \\\n        '/srv/k3s' \\\n        >>/var/log/k3s.log 2>&1\"\n";
        let service = Service::read(Init::OpenRc, text, "").unwrap();
        assert_eq!(
            service.value("data-dir", "", &[]).as_deref(),
            Some("/srv/k3s")
        );
        assert_eq!(service.arguments(), ["--data-dir=/srv/k3s"]);
    }

    #[test]
    fn a_worker_and_a_program_elsewhere_are_refused() {
        let refusal = |text: &str| {
            Service::read(Init::Systemd, text, "")
                .unwrap()
                .refusal()
                .unwrap()
                .0
        };
        assert_eq!(
            refusal("ExecStart=/usr/local/bin/k3s agent\n"),
            "adopt.worker"
        );
        assert_eq!(refusal("ExecStart=/opt/bin/k3s server\n"), "adopt.program");
        for wrong in [
            "",
            "ExecStart=\n",
            "ExecStart=/usr/local/bin/k3s\n",
            "ExecStart=/usr/local/bin/k3s ctr\n",
        ] {
            assert_eq!(Service::read(Init::Systemd, wrong, ""), None, "{wrong:?}");
        }
    }

    #[test]
    fn every_other_distribution_has_a_way_to_connect_it() {
        for other in OTHERS {
            let text = other.connection();
            assert!(
                text.contains(other.name) && text.contains("agent.kubeconfig"),
                "{text}"
            );
        }
    }
}
