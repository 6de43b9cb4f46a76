//! Problems that are made for real, in namespaces of their own: the program sees them as a person's
//! would.
//!
//! Most take root.

use std::{os::unix::fs::PermissionsExt, path::Path};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::Value;

use crate::agent::{command, copy_program, is_root_or_skip, put};

/// An interface that leads out, with a router.
const NETWORK: &str = "mount -t sysfs sysfs /sys; ip link set lo up; ip link add eth0 type veth peer name peer0; ip link set eth0 up; \
    ip link set peer0 up; ip addr add 192.0.2.2/24 dev eth0; ip route add default via 192.0.2.1";

/// Says on the standard error that the world is changed and the program begins.
const BEGINS: &str = "the world is changed";

/// What became of an attempt.
#[derive(Debug)]
enum Attempt {
    /// The world cannot be changed here, so the program never began.
    Impossible(String),
    /// The program began, and ended without a report.
    Broken(String),
    Told(Value),
}

/// What the doctor says after `script` has changed the world that it sees; `None`, with a word
/// about it, where that cannot be done here.
fn after(script: &str, environment: &[(&str, &str)]) -> Option<Value> {
    if !is_root_or_skip("namespaces take root") {
        return None;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_pipeops-agent"));
    match attempt(program, script, environment) {
        Attempt::Told(told) => Some(told),
        Attempt::Broken(why) => panic!("{script}: {why}"),
        Attempt::Impossible(why) => {
            println!("skipped: {script}: {why}");
            None
        }
    }
}

/// Changes the world and runs the program, which is opened before: the script may mount something
/// over the folder that it lies in.
fn attempt(program: &Path, script: &str, environment: &[(&str, &str)]) -> Attempt {
    let script = format!(
        "set -e; exec 9< \"$0\"; {script}; echo '{BEGINS}' >&2; exec /proc/self/fd/9 doctor --json"
    );
    let output = command("unshare")
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .args(["timeout", "60", "sh", "-c", &script])
        .arg(program)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if !error.lines().any(|line| line == BEGINS) {
        return Attempt::Impossible(format!("{output:?}"));
    }
    match serde_json::from_slice(&output.stdout) {
        Ok(told) if matches!(output.status.code(), Some(0 | 1)) => {
            agrees(&told, output.status.code());
            Attempt::Told(told)
        }
        Ok(_) | Err(_) => Attempt::Broken(format!("{output:?}")),
    }
}

/// The exit code says what the report says, and the report came in time.
fn agrees(told: &Value, code: Option<i32>) {
    let is_wrong = |check: &Value| check["outcome"] == "problem" && check["severity"] != "note";
    let is_any = told["checks"].as_array().unwrap().iter().any(is_wrong);
    assert_eq!(code, Some(i32::from(is_any)), "{told}");
    // It has two seconds; a busy machine may give it less than that of its time.
    assert!(
        told["took_ms"].as_u64().unwrap() < 10_000,
        "{}",
        told["took_ms"]
    );
}

fn check<'a>(told: &'a Value, id: &str) -> &'a Value {
    let mut checks = told["checks"].as_array().unwrap().iter();
    checks.find(|check| check["id"] == id).unwrap()
}

#[track_caller]
fn assert_problem(told: &Value, id: &str, word: &str) {
    let check = check(told, id);
    assert_eq!(check["outcome"], "problem", "{check:#}");
    assert!(check.to_string().contains(word), "no {word} in {check:#}");
    assert!(
        check["fix"].as_str().is_some_and(|fix| !fix.is_empty()),
        "{check:#}"
    );
}

/// The same world without the change: the check is content.
#[track_caller]
fn assert_content(told: &Value, id: &str) {
    assert_eq!(check(told, id)["outcome"], "ok", "{:#}", check(told, id));
}

#[test]
fn a_program_that_ends_without_a_report_is_a_failure_and_not_a_skipped_test() {
    if !is_root_or_skip("namespaces take root") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    for (text, what) in [
        ("kill -SEGV $$", "a crash before the first word"),
        ("exit 101", "a panic"),
        ("exit 0", "silence"),
        ("echo '{'", "half a report"),
        (
            "echo '{}'; exit 2",
            "a report beside an exit code that means none",
        ),
    ] {
        put(&program, &format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let attempt = attempt(&program, "true", &[]);
        assert!(matches!(attempt, Attempt::Broken(_)), "{what}: {attempt:?}");
    }
    let attempt = attempt(&program, "mount -t no-such-type none /mnt", &[]);
    assert!(matches!(attempt, Attempt::Impossible(_)), "{attempt:?}");
}

#[test]
fn the_place_of_the_checkout_does_not_matter() {
    if !is_root_or_skip("namespaces take root") {
        return;
    }
    // As in a checkout below a folder that a test mounts something over.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("pipeops-agent");
    copy_program(&program);
    let cover = format!("mount -t tmpfs none {}", folder.path().display());
    match attempt(&program, &cover, &[]) {
        Attempt::Told(told) => assert!(told["checks"].is_array()),
        Attempt::Broken(why) => panic!("{why}"),
        Attempt::Impossible(why) => println!("skipped: {cover}: {why}"),
    }
}

#[test]
fn a_kernel_without_the_memory_controller() {
    let group = |controllers: &str| {
        format!(
            "mount -t tmpfs none /sys/fs/cgroup; echo {controllers} > /sys/fs/cgroup/cgroup.controllers"
        )
    };
    let Some(told) = after(&group("cpuset cpu pids"), &[]) else {
        return;
    };
    assert_problem(&told, "cgroup.memory", "memory");
    assert_content(
        &after(&group("cpuset cpu pids memory"), &[]).unwrap(),
        "cgroup.memory",
    );
}

#[test]
fn a_cable_that_is_not_there_an_address_a_route() {
    let Some(told) = after(NETWORK, &[]) else {
        return;
    };
    for id in [
        "network.carrier",
        "network.address",
        "network.route",
        "network.mtu",
        "network.overlap",
    ] {
        assert_content(&told, id);
    }
    let without = |change: &str| after(&format!("{NETWORK}; {change}"), &[]).unwrap();
    // The kernel tells the other end within a second.
    let told = without(
        "ip link set peer0 down; while ip link show dev eth0 | grep -q 'state UP'; do sleep 0.1; done",
    );
    assert_problem(&told, "network.carrier", "eth0 is");
    assert_eq!(check(&told, "dns.answers")["because"], "network.carrier");
    assert_problem(
        &without("ip addr flush dev eth0"),
        "network.address",
        "address",
    );
    assert_problem(&without("ip route del default"), "network.route", "dummy0");
    assert_problem(&without("ip link set eth0 mtu 600"), "network.mtu", "600");
    assert_problem(
        &without("ip addr add 10.42.7.1/24 dev eth0"),
        "network.overlap",
        "10.42.7.0/24",
    );
}

#[test]
fn names_that_nobody_answers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf").display().to_string();
    let resolver = |line: &str| {
        format!("{NETWORK}; echo '{line}' > {file}; mount --bind {file} /etc/resolv.conf")
    };
    let Some(told) = after(&resolver("nameserver 127.0.0.1"), &[]) else {
        return;
    };
    assert_problem(&told, "dns.answers", "no DNS server answers there");
    let silent = after(&resolver("nameserver 192.0.2.53"), &[]).unwrap();
    assert_problem(&silent, "dns.answers", "192.0.2.53");
    let told = after(&resolver("# none"), &[]).unwrap();
    assert_problem(&told, "dns.servers", "names none");
    assert_eq!(check(&told, "dns.answers")["because"], "dns.servers");
}

#[test]
fn a_port_that_another_program_has() {
    let listen = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 1, LocalPort => 6443); sleep 60' > /dev/null 2>&1 &";
    // The doctor must come after it listens: /proc says when.
    let wait =
        "until grep -q ':192B .* 0A ' /proc/net/tcp; do i=x$i; [ ${#i} -lt 5000 ] || exit 1; done";
    let Some(told) = after(&format!("{NETWORK}; {listen} {wait}"), &[]) else {
        return;
    };
    assert_problem(&told, "network.ports", "perl");
    assert_problem(&told, "network.ports", "6443");
    assert_content(&after(NETWORK, &[]).unwrap(), "network.ports");
}

#[test]
fn a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    // An image of its own each time: what is in memory of one that was just unmounted would show
    // through.
    let disk = |name: &str| {
        let image = folder.path().join(name);
        format!(
            "truncate -s 600M {0}; mkfs.ext4 -q -F {0}; mkdir -p /var/lib/pipeops-agent; mount -o loop {0} /var/lib/pipeops-agent",
            image.display()
        )
    };
    let Some(told) = after(&disk("empty"), &[]) else {
        return;
    };
    assert_content(&told, "disk.space");
    let full = format!(
        "{}; fallocate -l 480M /var/lib/pipeops-agent/much",
        disk("full")
    );
    let Some(told) = after(&full, &[]) else {
        return;
    };
    assert_problem(&told, "disk.space", "/var/lib/pipeops-agent");
    // The image has 38,400 inodes: the last files cannot be made, or the world is not as it should
    // be.
    let many = format!(
        "{}; cd /var/lib/pipeops-agent; if seq 40000 | xargs touch 2>/dev/null; then exit 1; fi; cd /",
        disk("many")
    );
    let told = after(&many, &[]).unwrap();
    assert_problem(&told, "disk.inodes", "inodes");
}

#[test]
fn a_folder_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().display().to_string();
    let environment = [
        ("PIPEOPS_STATE_DIR", state.as_str()),
        ("PIPEOPS_TOKEN", "clt_test"),
        ("PIPEOPS_API_URL", "http://127.0.0.1:1"),
    ];
    let Some(told) = after("true", &environment) else {
        return;
    };
    assert_content(&told, "agent.state");
    let read_only = format!("mount --bind {state} {state}; mount -o remount,bind,ro {state}");
    let told = after(&read_only, &environment).unwrap();
    assert_problem(&told, "agent.state", "read-only");
}

#[test]
fn a_clock_that_is_behind() {
    let kept =
        "mkdir -p /var/lib/systemd/timesync; mount -t tmpfs none /var/lib/systemd/timesync; touch";
    let file = "/var/lib/systemd/timesync/clock";
    let Some(told) = after(&format!("{kept} {file}"), &[]) else {
        return;
    };
    assert_content(&told, "clock.wrong");
    let told = after(&format!("{kept} -d '+40 days' {file}"), &[]).unwrap();
    assert_problem(&told, "clock.wrong", file);
    // Its own files may come from a machine whose clock was wrong.
    let state =
        "mkdir -p /var/lib/pipeops-agent; mount -t tmpfs none /var/lib/pipeops-agent; touch";
    let own = format!("{state} -d '+40 days' /var/lib/pipeops-agent/state.db");
    assert_content(&after(&own, &[]).unwrap(), "clock.wrong");
}

/// A certificate of itself, from and until the first of January of these years.
fn certificate(from: i32, until: i32) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
    parameters.not_before = date_time_ymd(from, 1, 1);
    parameters.not_after = date_time_ymd(until, 1, 1);
    let certificate = parameters.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn kubeconfig(folder: &Path, server: &str, (certificate, key): &(String, String)) -> String {
    put(&folder.join("client.crt"), certificate);
    put(&folder.join("client.key"), key);
    let path = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: a, user: {{client-certificate: client.crt, client-key: client.key}}}}]\n"
    );
    put(&path, &text);
    path.display().to_string()
}

/// Settings that can be used, with this kubeconfig.
fn with_settings(kubeconfig: &str) -> [(&str, &str); 3] {
    [
        ("KUBECONFIG", kubeconfig),
        ("PIPEOPS_TOKEN", "clt_test"),
        ("PIPEOPS_API_URL", "http://127.0.0.1:1"),
    ]
}

#[test]
fn a_certificate_that_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = "mkdir -p /var/lib/rancher; mount -t tmpfs none /var/lib/rancher; mkdir -p /var/lib/rancher/k3s/server/tls";
    let ended = certificate(2019, 2020);
    put(&folder.path().join("ended.crt"), &ended.0);
    let put_there = format!(
        "{certificates}; cp {}/ended.crt /var/lib/rancher/k3s/server/tls/",
        folder.path().display()
    );
    let Some(told) = after(&put_there, &[]) else {
        return;
    };
    assert_problem(&told, "k3s.certificates", "ended.crt expired");
    let good = certificate(2019, 2090);
    put(&folder.path().join("ended.crt"), &good.0);
    assert_content(&after(&put_there, &[]).unwrap(), "k3s.certificates");
    for (certificate, outcome) in [(&ended, "problem"), (&good, "ok")] {
        let path = kubeconfig(folder.path(), "https://127.0.0.1:1", certificate);
        let told = after("true", &with_settings(&path)).unwrap();
        let check = check(&told, "k3s.kubeconfig-certificate");
        assert_eq!(check["outcome"], outcome, "{check:#}");
    }
}

#[test]
fn the_dates_of_certificates_are_what_openssl_says() {
    let folder = tempfile::tempdir().unwrap();
    for (from, until) in [(1999, 2031), (2019, 2049), (2020, 2051)] {
        let path = folder.path().join("crt");
        put(&path, &certificate(from, until).0);
        let asked = command("openssl")
            .args(["x509", "-noout", "-dates", "-dateopt", "iso_8601", "-in"])
            .arg(&path)
            .output();
        let Ok(asked) = asked else {
            println!("skipped: openssl is not installed");
            return;
        };
        let said = String::from_utf8(asked.stdout).unwrap();
        let pem = std::fs::read(&path).unwrap();
        let (first, last) = pipeops_agent::host::doctor::certificate::of_pem(&pem).unwrap();
        for (name, at) in [("notBefore=", first), ("notAfter=", last)] {
            let line = said
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap();
            let theirs = pipeops_agent::core::time::Wall::parse_rfc3339(
                &line.replace(' ', "T").replace("TZ", "Z"),
            );
            assert_eq!(theirs, Some(at), "{line}");
        }
    }
}

#[test]
fn a_kubeconfig_that_is_broken_and_an_api_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = kubeconfig(
        folder.path(),
        "https://127.0.0.1:1",
        &certificate(2019, 2090),
    );
    let Some(told) = after("ip link set lo up", &with_settings(&path)) else {
        return;
    };
    assert_content(&told, "k3s.kubeconfig");
    assert_problem(&told, "k3s.api", "127.0.0.1:1");
    put(Path::new(&path), "clusters: [ {");
    let told = after("true", &with_settings(&path)).unwrap();
    assert_problem(&told, "k3s.kubeconfig", &path);
    assert_eq!(check(&told, "k3s.api")["because"], "k3s.kubeconfig");
}

#[test]
fn a_control_plane_that_is_not_there_and_settings_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().display().to_string();
    let settings = |url| {
        [
            ("PIPEOPS_STATE_DIR", state.as_str()),
            ("PIPEOPS_TOKEN", "clt_test"),
            ("PIPEOPS_API_URL", url),
        ]
    };
    let Some(told) = after(NETWORK, &settings("http://127.0.0.1:1")) else {
        return;
    };
    assert_content(&told, "agent.settings");
    assert_problem(&told, "agent.control-plane", "127.0.0.1:1");
    let told = after("true", &settings("ftp://nowhere")).unwrap();
    assert_problem(&told, "agent.settings", "pipeops.api_url");
    assert_eq!(
        check(&told, "agent.control-plane")["because"],
        "agent.settings"
    );
}
