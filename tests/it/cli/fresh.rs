//! Commands on a machine that never had an agent: a mount namespace with empty /etc, /run and
//! /var/lib.

use std::process::Output;

use plane::Plane;

use super::{code, text};
use crate::agent::{command, copy_program, is_root_or_skip, put};

/// Nobody of this machine.
const STRANGER: &str = "54321";

/// A machine of its own for one script of commands; `None`, and a word about it, where there cannot
/// be one.
struct Fresh {
    folder: tempfile::TempDir,
}

impl Fresh {
    fn new() -> Option<Self> {
        if !is_root_or_skip("a mount namespace takes root") {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        copy_program(&folder.path().join("pipeops-agent"));
        Some(Self { folder })
    }

    fn put(&self, name: &str, content: &str) -> String {
        let path = self.folder.path().join(name);
        put(&path, content);
        path.display().to_string()
    }

    /// Runs a script with `agent` for the program, and the folder of the test as the current one.
    fn run(&self, script: &str) -> Output {
        let machine = "set -e\n\
            mkdir -p kept && cp -a /etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf kept/ 2>/dev/null || true\n\
            for folder in /etc /run /var/lib /var/spool /usr/local/bin; do mount -t tmpfs -o mode=755 none $folder; done\n\
            cp -a kept/. /etc/\n\
            stranger() { setpriv --reuid 54321 --regid 54321 --clear-groups ./pipeops-agent \"$@\"; }\n\
            agent() { ./pipeops-agent \"$@\"; }\n\
            set +e\n";
        assert!(machine.contains(STRANGER));
        let output = command("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg(format!("{machine}{script}"))
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("mount: "), "{stderr}");
        output
    }
}

#[test]
fn up_says_what_it_needs_before_it_asks_for_anything() {
    let Some(machine) = Fresh::new() else { return };
    let output = machine.run("stranger up");
    assert_eq!(code(&output), 2);
    assert_eq!(
        text(&output.stderr),
        "error: up needs root: only root may change /etc/pipeops-agent/config.toml\n  fix: sudo pipeops-agent up\n"
    );
    let output = machine.run("agent up");
    assert_eq!(code(&output), 2);
    assert_eq!(
        text(&output.stderr),
        "error: no token was given: standard input is not a terminal, so it cannot be prompted for\n  \
         fix: pass it in a file: sudo pipeops-agent up --token-file FILE\n"
    );
    // An address that is wrong is told by the option that it came by, before a token is asked for.
    let output = machine.run("agent up --api-url gopher://example.org");
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    assert!(
        told.starts_with("error: --api-url: pipeops.api_url cannot be used: "),
        "{told}"
    );
    assert!(!told.contains("--set"), "{told}");
}

#[test]
fn what_up_was_given_for_its_check_is_what_the_agent_runs_with() {
    let Some(machine) = Fresh::new() else { return };
    let plane = Plane::start(plane::Options::default()).unwrap();
    let token = machine.put("token", &format!("{}\n", plane.token()));
    let ca = machine.put("ca.pem", plane.ca_pem());
    let script = format!(
        "umask 077\n\
         PIPEOPS_TLS_CA_FILE={ca} PIPEOPS_API_URL={url} PIPEOPS_DASHBOARD_LISTEN=off \\\n\
             agent up --token-file {token} --cluster-name edge || exit 91\n\
         rm {ca} {token}\n\
         stat -c '%a %n' /etc/pipeops-agent /etc/pipeops-agent/*\n\
         agent config check || exit 92\n\
         ./pipeops-agent run > log 2>&1 & pid=$!\n\
         for i in $(seq 100); do agent link > link && break; sleep 0.1; done\n\
         agent status > status; cat link; kill $pid; wait $pid\n\
         agent down --purge --yes || exit 93\n\
         ls -d /etc/pipeops-agent /var/lib/pipeops-agent /run/pipeops-agent 2> /dev/null && exit 94\n\
         agent down --purge --yes || exit 95",
        url = plane.api_url(),
    );
    let output = machine.run(&script);
    let told = text(&output.stdout);
    assert_eq!(code(&output), 0, "{told}{}", text(&output.stderr));
    for line in [
        "755 /etc/pipeops-agent\n",
        "644 /etc/pipeops-agent/config.toml\n",
        "644 /etc/pipeops-agent/tls-ca.pem\n",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(told.contains("Connected for "), "{told}");
    assert!(told.contains("Removed: /etc/pipeops-agent, "), "{told}");
    assert!(told.contains("There is nothing to remove."), "{told}");
    assert!(!told.contains(plane.token()), "{told}");
}

#[test]
fn purge_finishes_what_an_earlier_one_began_and_touches_nothing_of_others() {
    let Some(machine) = Fresh::new() else { return };
    // State that is no more than a fetch that was killed, settings that are gone, the token, and
    // what updates leave.
    let output = machine.run(
        "mkdir -p /var/lib/pipeops-agent/pipeops-git/01/objects /etc/pipeops-agent /var/lib/pipeops-keeper/update\n\
         ln -s /etc /var/lib/pipeops-agent/pipeops-git/01/link\n\
         touch /var/lib/pipeops-keeper/lock /var/lib/pipeops-keeper/updates.json /var/lib/pipeops-keeper/update/prev\n\
         echo clt_1 > /etc/pipeops-agent/token\n\
         agent down --purge --yes || exit 91\n\
         ls -A /etc/pipeops-agent /var/lib/pipeops-agent /var/lib/pipeops-keeper 2>/dev/null && exit 92\n\
         exit 0",
    );
    let told = text(&output.stdout);
    assert_eq!(code(&output), 0, "{told}{}", text(&output.stderr));
    assert!(
        told.contains(
            "Removed: /etc/pipeops-agent, /var/lib/pipeops-agent, /var/lib/pipeops-keeper."
        ),
        "{told}"
    );
    // Links that lead elsewhere, files of others beside ours, and the journal of repairs.
    let output = machine.run(
        "mkdir -p /etc/pipeops-agent/config.d /etc/other /var/lib/other /var/lib/pipeops-keeper\n\
         echo clt_1 > /etc/other/token; echo x > /var/lib/other/state.db; echo x > /var/lib/pipeops-keeper/1.json\n\
         ln -s /etc/other/token /etc/pipeops-agent/token\n\
         ln -s /var/lib/other /var/lib/pipeops-agent\n\
         echo '[log]' > /etc/pipeops-agent/config.toml; echo '[log]' > /etc/pipeops-agent/config.d/up.toml\n\
         echo mine > /etc/pipeops-agent/notes.txt\n\
         mkdir -p /etc/systemd/system/timers.target.wants /run/pipeops-k3s /var/spool/pipeops-k3s\n\
         (cd /etc/systemd/system && touch pipeops-k3s-watch.service pipeops-k3s-watch.timer k3s.service\n\
         ln -s ../pipeops-k3s-watch.timer timers.target.wants/pipeops-k3s-watch.timer)\n\
         touch /run/pipeops-k3s/status /var/spool/pipeops-k3s/1.tar.age\n\
         agent down --purge --yes || exit 91\n\
         [ \"$(cd /etc/systemd/system && find . -name '*k3s*')\" = ./k3s.service ] || exit 92\n\
         ls -d /run/pipeops-k3s /var/spool/pipeops-k3s 2>/dev/null && exit 93\n\
         find /etc/other /var/lib/other /etc/pipeops-agent /var/lib/pipeops-keeper | sort",
    );
    let told = text(&output.stdout);
    assert_eq!(code(&output), 0, "{told}{}", text(&output.stderr));
    for line in [
        "Left: /var/lib/pipeops-agent: it is a link to /var/lib/other, and links are not followed.\n",
        "Left: /etc/pipeops-agent/notes.txt: the agent did not make it.\n",
        "Left: /var/lib/pipeops-keeper: it is needed to undo repairs of this machine",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let (_, there) = told.split_at(told.find("\n/etc/other\n").unwrap());
    assert_eq!(
        there.trim(),
        "/etc/other\n/etc/other/token\n/etc/pipeops-agent\n/etc/pipeops-agent/notes.txt\n/var/lib/other\n\
         /var/lib/other/state.db\n/var/lib/pipeops-keeper\n/var/lib/pipeops-keeper/1.json"
    );
}

#[test]
fn the_doctor_of_a_new_machine_says_up_and_knows_its_checks() {
    let Some(machine) = Fresh::new() else { return };
    let output = machine.run("agent doctor");
    let told = text(&output.stdout);
    assert_eq!(code(&output), 1, "{told}");
    let (_, finding) = told.split_at(told.find("Agent configuration: ").unwrap());
    let finding: Vec<_> = finding.lines().take(5).collect();
    assert!(finding[0].contains("there is no token"), "{finding:#?}");
    assert!(
        finding.contains(&"    sudo pipeops-agent up"),
        "{finding:#?}"
    );
    for (word, fix) in [
        ("limits.inotfy", "did you mean limits.inotify?"),
        (
            "k3s.nothing",
            "did you mean one of k3s.program, k3s.config, ",
        ),
        ("bogus", "pipeops-agent doctor --json names all checks"),
    ] {
        for option in ["", "--fix --yes"] {
            let output = machine.run(&format!("agent doctor {word} {option}"));
            assert_eq!(code(&output), 2, "{word}");
            let told = text(&output.stderr);
            assert!(
                told.starts_with(&format!("error: no such check: {word:?}\n  fix: {fix}")),
                "{told}"
            );
        }
    }
    // One check is looked at by its name.
    let output = machine.run("agent doctor agent.settings");
    assert_eq!(code(&output), 1);
    assert!(text(&output.stdout).starts_with("critical: Agent configuration: there is no token"));
    assert!(!text(&output.stdout).contains("checks passed"));
    // What no agent answers is not called a start that cannot work.
    let output = machine.run("agent status");
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).contains("sudo pipeops-agent up"));
}

#[test]
fn the_doctor_beside_an_agent_with_other_settings_tells_what_that_agent_finds() {
    let Some(machine) = Fresh::new() else { return };
    let plane = Plane::start(plane::Options::default()).unwrap();
    let token = machine.put("token", &format!("{}\n", plane.token()));
    let ca = machine.put("ca.pem", plane.ca_pem());
    let script = format!(
        "PIPEOPS_TOKEN_FILE={token} PIPEOPS_TLS_CA_FILE={ca} PIPEOPS_API_URL={url} PIPEOPS_DASHBOARD_LISTEN=off \\\n\
             ./pipeops-agent run > log 2>&1 & pid=$!\n\
         for i in $(seq 100); do agent link > link && break; sleep 0.1; done\n\
         agent doctor > plain; echo $? > code\n\
         agent doctor --json; stranger doctor > seen-by-stranger 2>&1\n\
         kill $pid; wait $pid; agent doctor > alone; exit 0",
        url = plane.api_url(),
    );
    let output = machine.run(&script);
    let read = |name: &str| std::fs::read_to_string(machine.folder.path().join(name)).unwrap();
    assert!(
        read("link").starts_with("Connected "),
        "{}{}",
        read("link"),
        read("log")
    );
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let check = |id: &str| {
        let mut checks = told["checks"].as_array().unwrap().iter();
        checks.find(|check| check["id"] == id).unwrap().clone()
    };
    for id in ["agent.settings", "agent.control-plane", "agent.tls"] {
        assert_eq!(check(id)["outcome"], "ok", "{}", check(id));
    }
    for name in ["plain", "seen-by-stranger"] {
        assert!(
            !read(name).contains("there is no token"),
            "{name}: {}",
            read(name)
        );
    }
    assert!(
        read("seen-by-stranger").contains("the running agent was not asked"),
        "{}",
        read("seen-by-stranger")
    );
    // Without it, this command looks by itself.
    assert!(
        read("alone").contains("there is no token"),
        "{}",
        read("alone")
    );
}

#[test]
fn a_helper_that_does_not_run_is_told_once_for_all_repairs() {
    let Some(machine) = Fresh::new() else { return };
    let output = machine.run(
        "mkdir -p tree/proc/sys/fs/inotify tree/sys/fs/cgroup/system.slice/NetworkManager.service tree/usr/local/bin\n\
         echo 128 > tree/proc/sys/fs/inotify/max_user_instances; echo 8192 > tree/proc/sys/fs/inotify/max_user_watches\n\
         cp pipeops-agent tree/usr/local/bin/k3s\n\
         stranger doctor --root tree > found; stranger doctor --fix --root tree",
    );
    let found = std::fs::read_to_string(machine.folder.path().join("found")).unwrap();
    for check in ["limits.inotify", "network.manager"] {
        assert!(found.contains(&format!("doctor --fix {check}")), "{found}");
    }
    assert_eq!(code(&output), 2);
    let told = text(&output.stderr);
    assert_eq!(
        told.matches("the root helper is not running").count(),
        1,
        "{told}"
    );
}
