//! Credential of the agent for the k3s of this machine: a token of its own account that ends soon,
//! in a file that no disk ever has.
//!
//! The administrator's kubeconfig stays root's. A timer, or a service of OpenRC that sleeps, makes
//! the token again, twice a day and after each start of the machine.

use super::{
    step::{Step, directories, file, run},
    texts::{self, Init},
};

/// Directory of the credential, in memory: root's, and the agent's group may look into it.
pub const DIRECTORY: &str = "/run/pipeops-k3s";
/// Kubeconfig of the agent.
pub const KUBECONFIG: &str = "/run/pipeops-k3s/kubeconfig";
/// Service that makes it.
pub const UNIT: &str = "/etc/systemd/system/pipeops-k3s-connect.service";
/// Timer of that service.
pub const TIMER: &str = "/etc/systemd/system/pipeops-k3s-connect.timer";
/// Directory that a removal takes if nothing else is in it.
pub const WANTS: &str = "/etc/systemd/system/timers.target.wants";
const WANTS_LINK: &str = "/etc/systemd/system/timers.target.wants/pipeops-k3s-connect.timer";
/// Service of OpenRC, which has no timers.
const SERVICE: &str = "/etc/init.d/pipeops-k3s-connect";
const RUNLEVEL_LINK: &str = "/etc/runlevels/default/pipeops-k3s-connect";
/// The agent's account.
pub const ACCOUNT: &str = "pipeops-agent";
/// Lifetime of a token. Fourteen tries to make the next one fail before it ends.
pub const LIFETIME: &str = "168h";
/// Question to the administrator's kubeconfig: address of the API, and its CA.
pub const JSONPATH: &str =
    "{.clusters[0].cluster.server} {.clusters[0].cluster.certificate-authority-data}";

/// File that is there where the credential is renewed.
pub const fn unit_path(init: Init) -> &'static str {
    match init {
        Init::Systemd => TIMER,
        Init::OpenRc => SERVICE,
    }
}

/// Command after which no credential is made.
pub const fn stop_command(init: Init) -> &'static str {
    match init {
        Init::Systemd => "systemctl stop pipeops-k3s-connect.timer pipeops-k3s-connect.service",
        Init::OpenRc => "rc-service pipeops-k3s-connect stop",
    }
}

/// Command that recreates the credential, because the cluster changed; also while one is made.
pub const fn again(init: Init) -> &'static str {
    match init {
        Init::Systemd => "systemctl restart --no-block pipeops-k3s-connect.service",
        Init::OpenRc => "rc-service pipeops-k3s-connect restart",
    }
}

/// Paths that a removal of k3s takes.
pub const fn created_paths(init: Init) -> &'static [&'static str] {
    match init {
        Init::Systemd => &[WANTS_LINK, TIMER, UNIT, DIRECTORY],
        Init::OpenRc => &[RUNLEVEL_LINK, SERVICE, DIRECTORY],
    }
}

/// The steps that have the credential made from now on.
pub fn steps(init: Init, program: &str, is_there: &dyn Fn(&str) -> bool) -> Vec<Step> {
    // Undone last: until then the service may fill it.
    let mut steps = vec![Step::Made {
        path: DIRECTORY.to_owned(),
    }];
    match init {
        Init::Systemd => {
            directories(&mut steps, WANTS, is_there);
            steps.extend([
                run("", "systemctl daemon-reload"),
                file(UNIT, texts::connect(init, program), 0o644),
                file(TIMER, texts::text("connect.timer"), 0o644),
                Step::Link {
                    path: WANTS_LINK.to_owned(),
                    target: TIMER.to_owned(),
                },
                run("systemctl daemon-reload", ""),
                run(
                    "systemctl start pipeops-k3s-connect.timer",
                    stop_command(init),
                ),
            ]);
        }
        Init::OpenRc => steps.extend([
            file(SERVICE, texts::connect(init, program), 0o755),
            Step::Link {
                path: RUNLEVEL_LINK.to_owned(),
                target: SERVICE.to_owned(),
            },
            run("rc-service pipeops-k3s-connect start", stop_command(init)),
        ]),
    }
    steps
}

/// Somebody's token, in a kubeconfig.
#[derive(Clone, Copy, Debug)]
pub struct Bearer<'a> {
    pub account: &'a str,
    /// Token of that account.
    pub token: &'a str,
    /// Line of comment at the beginning.
    pub note: &'a str,
}

/// The kubeconfig with this token. `found` is the output of [`JSONPATH`]; `None`: there is
/// something in it that no address, certificate or token has.
pub fn kubeconfig(found: &str, bearer: &Bearer<'_>) -> Option<String> {
    let (server, ca) = found.trim().split_once(' ')?;
    let Bearer { account, note, .. } = bearer;
    let token = bearer.token.trim();
    let is_plain = |text: &str| {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        !text.is_empty() && text.bytes().all(is_plain)
    };
    (server.starts_with("https://") && [server, ca, token].into_iter().all(is_plain)).then(|| {
        format!(
            "# {note}\n\
             apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: k3s\n\
             \x20 cluster:\n\
             \x20   server: \"{server}\"\n\
             \x20   certificate-authority-data: \"{ca}\"\n\
             users:\n\
             - name: {account}\n\
             \x20 user:\n\
             \x20   token: \"{token}\"\n\
             contexts:\n\
             - name: k3s\n\
             \x20 context:\n\
             \x20   cluster: k3s\n\
             \x20   user: {account}\n\
             current-context: k3s\n"
        )
    })
}

/// Splits a manifest in two: all but the agent's account, and the account. Applied in this order,
/// an account that is there means that all the rest is.
pub fn account_last(manifest: &str) -> (String, String) {
    const BETWEEN: &str = "\n---\n";
    let account = format!("kind: ServiceAccount\nmetadata:\n  name: {ACCOUNT}\n");
    let (last, first): (Vec<&str>, Vec<&str>) = manifest
        .split(BETWEEN)
        .partition(|document| document.contains(&account));
    (first.join(BETWEEN), last.join(BETWEEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_comes_after_all_that_it_needs() {
        let manifest = include_str!("../../kube/rbac/manifest.yaml");
        let (first, last) = account_last(manifest);
        assert!(last.starts_with("apiVersion: v1\nkind: ServiceAccount\n"));
        assert!(last.contains("  name: pipeops-agent\n") && !last.contains("---"));
        assert_eq!(first.len() + "\n---\n".len() + last.len(), manifest.len());
        assert!(!first.contains(&last));
        for others in ["name: pipeops-cp\n", "name: pipeops-apps\n"] {
            assert!(first.contains(&format!("kind: ServiceAccount\nmetadata:\n  {others}")));
        }
    }

    #[test]
    fn a_kubeconfig_has_what_was_asked_for_and_nothing_else() {
        let made = |found, token| {
            let bearer = Bearer {
                account: ACCOUNT,
                token,
                note: "made",
            };
            kubeconfig(found, &bearer)
        };
        let text = made("https://127.0.0.1:6443 Q0E=\n", "a.b-c_d\n").unwrap();
        assert!(text.contains("    server: \"https://127.0.0.1:6443\"\n"));
        assert!(text.contains("    certificate-authority-data: \"Q0E=\"\n"));
        assert!(text.contains("    token: \"a.b-c_d\"\n"));
        for (found, token) in [
            ("https://127.0.0.1:6443", "t"),
            ("http://127.0.0.1:6443 Q0E=", "t"),
            ("https://127.0.0.1:6443 Q0E=", ""),
            ("https://127.0.0.1:6443 Q0E=", "t\"\n    exec: x"),
            ("https://127.0.0.1:6443 Q0E= x", "t"),
        ] {
            assert_eq!(made(found, token), None, "{found} {token}");
        }
    }

    #[test]
    fn the_undo_takes_every_file_and_the_directory_last() {
        for init in [Init::Systemd, Init::OpenRc] {
            let steps = steps(init, "/usr/bin/pipeops-agent", &|_| true);
            assert_eq!(
                steps[0],
                Step::Made {
                    path: DIRECTORY.to_owned()
                }
            );
            let files = steps.iter().filter_map(|step| {
                if let Step::File { path, .. } | Step::Link { path, .. } | Step::Made { path } =
                    step
                {
                    Some(path.as_str())
                } else {
                    None
                }
            });
            let mut files: Vec<_> = files.collect();
            let mut made = created_paths(init).to_vec();
            files.sort_unstable();
            made.sort_unstable();
            assert_eq!(files, made);
            assert!(files.contains(&unit_path(init)));
        }
    }
}
