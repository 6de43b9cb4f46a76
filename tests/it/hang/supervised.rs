//! The watchdog of a real systemd: PID 1 of a container whose `/usr` is this machine's.

use std::{path::Path, process::Stdio, time::Duration};

use crate::agent::{command, copy_program, has, put};

/// Longest time of a boot with all that happens in it.
const LONG: Duration = Duration::from_secs(120);

/// The agent as its unit would start it. Nobody answers at its control plane, so the link is in its
/// back-off all the time.
const AGENT: &str = "[Unit]
DefaultDependencies=no
[Service]
Type=notify
WatchdogSec=3
Restart=on-failure
RestartSec=100ms
ExecStart=/share/pipeops-agent run
Environment=PIPEOPS_API_URL=https://127.0.0.1:9 PIPEOPS_TOKEN=clt_0123456789abcdef PIPEOPS_STATE_DIR=/share/state
Environment=PIPEOPS_DASHBOARD_SOCKET=/share/agent.sock PIPEOPS_DASHBOARD_LISTEN=off
StandardError=append:/share/log
";

/// Fault and how systemd sees it.
const DRIVER: &str = "[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
StandardOutput=append:/share/seen
StandardError=append:/share/seen
ExecStart=/bin/sh /share/script
ExecStopPost=/bin/systemctl poweroff -ff
";

const SCRIPT: &str = r#"
show() { systemctl show agent -p "$1" --value; }
ms() { echo $(($(date +%s%N) / 1000000)); }
# came NUMBER FAULT
came() {
    for look in $(seq 600); do
        sleep 0.05
        [ "$(show NRestarts)" = "$1" ] && [ "$(show ActiveState)" = active ] && break
    done
    echo "$2: a new process after $(($(ms) - begun)) ms"
}
systemctl start agent || { systemctl status agent; exit 1; }
first=$(show MainPID)
# Three limits in a row, while nothing is linked.
sleep 9
echo "restarts in nine seconds: $(show NRestarts), status: $(show StatusText)"
begun=$(ms)
systemctl kill --signal=STOP agent
came 1 stopped
second=$(show MainPID)
[ "$second" != "$first" ] && echo 'another process'
begun=$(ms)
perl /share/block "$second" &
came 2 blocked
[ "$(show MainPID)" != "$second" ] && echo 'a third process'
"#;

/// Stops the main thread of a process and no other, as a task that blocks the executor does, until
/// the process has ended.
const BLOCK: &str = r#"
use POSIX ();
$| = 1;
my ($pid) = @ARGV;
my $ptrace = (POSIX::uname())[4] eq 'aarch64' ? 117 : 101;
my $attach = 16;
syscall($ptrace, $attach, $pid + 0, 0, 0) == 0 or die "ptrace: $!";
waitpid($pid, 0);
my $main = "/proc/$pid/task/$pid";
my @threads = ($main, grep { $_ ne $main } glob("/proc/$pid/task/*"));
my @states = map { open(my $file, '<', "$_/stat"); <$file> =~ /\) (\w)/ } @threads;
print "threads: @states\n";
# Whoever traces it hears of its end before systemd does.
1 while waitpid($pid, 0) > 0;
"#;

/// Reason why no systemd can be booted here; `None` where one can.
fn what_is_missing() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("skipped: it takes root to boot a systemd");
    }
    if !has("systemd-nspawn") {
        // It has said so.
        return Some("no container can be booted");
    }
    let has_systemd = Path::new("/usr/lib/systemd/systemd").exists();
    (!has_systemd).then_some("skipped: systemd is not installed: tests/setup installs it")
}

/// Boots systemd with these units, until it powers off; what it printed.
fn boot(share: &Path) -> String {
    let bind = format!("--bind={}:/share", share.display());
    let unit = |name: &str| {
        let file = share.join(name);
        format!("--bind-ro={}:/etc/systemd/system/{name}", file.display())
    };
    // A /run of its own is needed, and ends with the mounts.
    let script = "mount -t tmpfs tmpfs /run && mkdir /run/lock && exec systemd-nspawn \"$@\"";
    let mut program = command("timeout");
    let child = program
        .args(["--kill-after=10", &LONG.as_secs().to_string()])
        .args([
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .args([
            "-D",
            "/",
            "--volatile=yes",
            "-b",
            "--register=no",
            "--keep-unit",
        ])
        .args([
            "--private-network",
            "--link-journal=no",
            "--machine=watchdog",
            &bind,
        ])
        .args([unit("agent.service"), unit("driver.service")])
        .args(["--", "--unit=driver.service"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr)
}

#[test]
fn systemd_starts_an_agent_again_that_stands_still_or_is_blocked_and_leaves_a_waiting_one_alone() {
    if let Some(why) = what_is_missing() {
        println!("{why}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let share = folder.path();
    copy_program(&share.join("pipeops-agent"));
    for (name, text) in [
        ("agent.service", AGENT),
        ("driver.service", DRIVER),
        ("script", SCRIPT),
        ("block", BLOCK),
    ] {
        put(&share.join(name), text);
    }
    let printed = boot(share);
    if !printed.contains("running in system mode") {
        println!("impossible here: booting a systemd in a container");
        return;
    }
    let seen = std::fs::read_to_string(share.join("seen")).unwrap_or_default();
    let log = std::fs::read_to_string(share.join("log")).unwrap_or_default();
    assert!(
        seen.contains("restarts in nine seconds: 0"),
        "{seen}\n{log}\n{printed}"
    );
    for said in ["another process", "a third process"] {
        assert!(seen.contains(said), "{seen}\n{log}\n{printed}");
    }
    // The main thread, which stands still, and others, which do not.
    let (_, threads) = seen.split_once("threads: t ").unwrap();
    let others = threads.lines().next().unwrap();
    assert!(others.len() > 1 && !others.contains('t'), "{seen}");
    for fault in ["stopped", "blocked"] {
        let (_, after) = seen
            .split_once(&format!("{fault}: a new process after "))
            .unwrap();
        let after: u64 = after.split(' ').next().unwrap().parse().unwrap();
        println!(
            "figure: from a main loop that stands still ({fault}) to a new process: {after} ms, with a watchdog of 3 s"
        );
        // Not before the limit, half of which may have passed since the last ping.
        assert!((1_000..25_000).contains(&after), "{fault}: {after}");
    }
}
