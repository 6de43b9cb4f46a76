//! The scripts of an installation, which work without this program, on a machine of their own: a
//! tree as the root directory, with its own mounts, processes and network.

use std::time::Duration;

use super::{k3s_life::on_disk, *};
use crate::host::{
    clock,
    exec::{self, Limits},
};

/// Rules of k3s' network, of kube-proxy, and of another runtime's network.
const RULES: &str = r#"*nat
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-aaaa - [0:0]
:CNI-DN-bbbb - [0:0]
:CNI-1111 - [0:0]
:CNI-2222 - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.42.0.5/32 -m comment --comment "name: \"cbr0\" id: \"k\"" -j CNI-1111
-A POSTROUTING -s 10.88.0.5/32 -m comment --comment "name: \"podman\" id: \"p\"" -j CNI-2222
-A CNI-1111 ! -d 224.0.0.0/4 -m comment --comment "name: \"cbr0\" id: \"k\"" -j MASQUERADE
-A CNI-2222 ! -d 224.0.0.0/4 -m comment --comment "name: \"podman\" id: \"p\"" -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"cbr0\" id: \"k\"" -j CNI-DN-aaaa
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"podman\" id: \"p\"" -j CNI-DN-bbbb
-A CNI-DN-aaaa -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.42.0.5:80
-A CNI-DN-bbbb -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.88.0.5:81
COMMIT
"#;
/// Rules among them that are not k3s'.
const RULES_OF_OTHERS: &str = r#"*nat
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-bbbb - [0:0]
:CNI-2222 - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.88.0.5/32 -m comment --comment "name: \"podman\" id: \"p\"" -j CNI-2222
-A CNI-2222 ! -d 224.0.0.0/4 -m comment --comment "name: \"podman\" id: \"p\"" -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"podman\" id: \"p\"" -j CNI-DN-bbbb
-A CNI-DN-bbbb -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.88.0.5:81
COMMIT
"#;
/// Makes the tree the root directory, and binds a disk of the user's in three places of k3s'.
const ENTER: &str = r#"
cd "$1"
for folder in usr/bin usr/lib usr/lib64 etc/alternatives dev; do
    [ -d "/$folder" ] || continue
    mkdir -p "$folder"
    mount --bind "/$folder" "$folder"
done
for folder in bin lib lib64; do
    if [ -L "/$folder" ]; then ln -s "usr/$folder" "$folder"; fi
done
mount -t proc proc proc
for place in "mnt/ssd/storage/pvc-1_shop_db/my disk" "mnt/ssd/agent/a*b" var/lib/kubelet/mine; do
    mkdir -p "$place"
    mount --bind home/user "$place"
done
exec chroot . sh -c "$2" sh "$3"
"#;
/// Runs the removal beside a program of the user's, a shim of k3s, and a Pod of another runtime.
const REMOVE: &str = r#"
cd /
for tool in $1; do
    mkdir -p tools
    ln -s /usr/bin/busybox "tools/$tool"
    PATH=/tools:/usr/sbin:/usr/bin
done
/mnt/ssd/data/films/player 1000 & player=$!
/mnt/ssd/data/0a*/bin/containerd-shim-runc-v2 1000 & shim=$!
unshare --net sleep 1000 & pod=$!
sleep 0.3
touch /run/netns/cni-2
mount --bind /proc/$pod/ns/net /run/netns/cni-2
mount -t tmpfs none /var/lib/kubelet/pods
/usr/local/bin/k3s-uninstall.sh || exit 1
# D: a shell that waits for the program that it just started.
runs() { grep -q "^State:.[SRD]" "/proc/$1/status" 2>/dev/null && echo "$2 runs"; }
runs $player player
runs $shim shim
runs $pod pod
exit 0
"#;

/// Files of k3s, of the user, and of other runtimes.
const MADE: [&str; 14] = [
    "etc/rancher/k3s-proxy.env",
    "etc/systemd/system/pipeops-agent.service.d/50-pipeops-k3s.conf",
    "var/lib/pipeops-keeper/k3s.managed",
    "home/user/letter",
    "mnt/ssd/storage/pvc-1_shop_db/file",
    "run/netns/cni-1",
    "run/netns/vpn",
    "run/containerd/containerd.sock",
    "run/k3s-of-others/x",
    "var/lib/cni/networks/cbr0/10.42.0.5",
    "var/lib/cni/networks/podman/10.88.0.5",
    "var/lib/cni/results/cbr0-k-eth0",
    "var/lib/cni/results/podman-p-eth0",
    "var/lib/kubelet/pods/x",
];
/// Of all that, what a removal leaves.
const LEFT: [&str; 9] = [
    "home/user/letter",
    "mnt/ssd/photos/one",
    "mnt/ssd/data/films/one",
    "run/containerd/containerd.sock",
    "run/k3s-of-others/x",
    "run/netns/cni-2",
    "run/netns/vpn",
    "var/lib/cni/networks/podman/10.88.0.5",
    "var/lib/cni/results/podman-p-eth0",
];
/// Paths that a removal takes.
const GONE: [&str; 21] = [
    "etc/rancher",
    "etc/systemd/system/k3s.service.d",
    "etc/systemd/system/multi-user.target.wants/pipeops-k3s-shutdown.service",
    "etc/systemd/system/pipeops-agent.service.d",
    "etc/systemd/system/pipeops-k3s-shutdown.service",
    "var/lib/pipeops-keeper/k3s.managed",
    "etc/systemd/system/k3s.service",
    "etc/systemd/system/pipeops-k3s-connect.service",
    "etc/systemd/system/pipeops-k3s-watch.timer",
    "etc/systemd/system/timers.target.wants/pipeops-k3s-watch.timer",
    "mnt/ssd/kubelet/pods",
    "mnt/ssd/server",
    "mnt/ssd/storage/pvc-1_shop_db/file",
    "run/k3s",
    "run/netns/cni-1",
    "run/pipeops-k3s",
    "usr/local/bin/k3s",
    "usr/local/bin/k3s-uninstall.sh",
    "var/lib/cni/networks/cbr0",
    "var/lib/cni/results/cbr0-k-eth0",
    "var/lib/kubelet/pods",
];
/// Programs that the scripts use.
const TOOLS: &str = "awk cat find grep id readlink rm rmdir sed sort stat tr umount";

#[test]
fn the_removal_that_works_without_this_program_takes_nothing_of_others() {
    remove("");
}

#[test]
fn the_removal_takes_nothing_of_others_with_the_tools_of_busybox() {
    if Path::new("/usr/bin/busybox").exists() {
        remove(TOOLS);
    } else {
        println!("skipped: there is no BusyBox");
    }
}

/// A machine with k3s, on which others have files and programs, too; and where k3s is unpacked.
fn machine() -> (Tree, String) {
    let (tree, wanted) = on_disk("disk.mixed");
    let done = tree.keeper().k3s_install(&wanted, "root").unwrap();
    assert_eq!(done.outcome, "done", "{done:?}");
    let sleep = std::fs::read("/usr/bin/sleep").unwrap();
    let program = |path: &str| {
        tree.put(path, "", 0o755);
        crate::files::replace(&tree.root().join(path), &sleep, 0o755).unwrap();
    };
    let unpacked = format!("mnt/ssd/data/{}", "0a".repeat(32));
    program(&format!("{unpacked}/bin/containerd-shim-runc-v2"));
    program("mnt/ssd/data/films/player");
    for path in MADE {
        tree.put(path, "", 0o644);
    }
    tree.put("rules", RULES, 0o644);
    // The machine has none, and k3s its own.
    let tool = |name: &str, does: &str| {
        let text = format!("#!/bin/sh\n{does}\n");
        tree.put(&format!("{unpacked}/bin/aux/iptables-{name}"), &text, 0o755);
    };
    tool("save", "cat /rules");
    tool("restore", "cat >/restored");
    std::os::unix::fs::symlink("0a".repeat(32), tree.root().join("mnt/ssd/data/current")).unwrap();
    (tree, unpacked)
}

/// Returns whether a machine of its own can be made here.
fn can_unshare() -> bool {
    let argv = ["unshare", "--mount", "--net", "--pid", "--fork", "true"];
    let can = exec::run(Path::new("/"), &argv, Limits::SHORT);
    let can = nix::unistd::geteuid().is_root() && can.is_ok_and(|ended| ended.success());
    if !can {
        println!("skipped: a machine of its own takes root, and unshare");
    }
    can
}

/// Runs a script on a machine, with these tools of BusyBox in the place of its own.
fn enter(tree: &Tree, script: &str, tools: &str) -> exec::ProcessOutput {
    let root = tree.root().display().to_string();
    let words = [
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--propagation",
        "private",
    ];
    let argv = [
        &words[..],
        &["sh", "-ec", ENTER, "sh", &root, script, tools],
    ]
    .concat();
    let limits = Limits {
        within: Duration::from_secs(120),
        ..Limits::SHORT
    };
    let ended = exec::run(Path::new("/"), &argv, limits).unwrap();
    assert!(ended.success(), "{ended:?}");
    ended
}

/// Removes k3s by the script, with these tools of BusyBox in the place of the machine's.
fn remove(tools: &str) {
    if !can_unshare() {
        return;
    }
    let (tree, unpacked) = machine();
    let kubelet = tree.root().join("var/lib/kubelet");
    if tools.is_empty() {
        std::fs::rename(&kubelet, tree.root().join("mnt/ssd/kubelet")).unwrap();
        std::os::unix::fs::symlink("../../mnt/ssd/kubelet", &kubelet).unwrap();
    }
    let ended = enter(&tree, REMOVE, tools);
    let runs: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(runs, ["player runs", "pod runs"], "{ended:?}");
    let is_there = |path: &str| tree.root().join(path).exists();
    for path in LEFT {
        assert!(is_there(path), "{path}: {ended:?}");
    }
    for path in GONE.into_iter().chain([unpacked.as_str()]) {
        assert!(!is_there(path), "{path}: {ended:?}");
    }
    assert_eq!(tree.read("restored").as_deref(), Some(RULES_OF_OTHERS));
    let calls = tree.calls();
    for words in [
        "systemctl disable --now pipeops-k3s-watch.timer",
        "systemctl disable --now pipeops-k3s-connect.service",
        "systemctl stop k3s",
        "systemctl daemon-reload",
    ] {
        assert!(calls.contains(words), "{calls}");
    }
    for words in ["is mounted there", "/mnt/ssd/photos", "/run/netns/cni-2"] {
        assert!(ended.stderr.contains(words), "{ended:?}");
    }
}

/// Ends the Pods of a machine that goes down: one that ends by itself, and one that does not.
const SHUT_DOWN: &str = r#"
cd /
for tool in $1; do
    mkdir -p tools
    ln -s /usr/bin/busybox "tools/$tool"
    PATH=/tools:/usr/sbin:/usr/bin
done
# The shim is a shell here, which has its containers below it.
cat >pod.sh <<'END'
sh -c 'trap "echo ended >>/said; exit" TERM; while :; do sleep 0.1; done' &
sh -c 'trap "" TERM; while :; do sleep 0.1; done' & echo $! >/stubborn
wait
END
/mnt/ssd/data/0a*/bin/containerd-shim-runc-v2 pod.sh & shim=$!
sh -c 'trap "echo stopped >>/said" TERM; while :; do sleep 0.1; done' & other=$!
sleep 1
/usr/local/bin/k3s-killall.sh --shutdown || exit 1
sleep 0.2
cat /said
# D: a shell that waits for the program that it just started.
runs() { grep -q "^State:.[SRD]" "/proc/$1/status" 2>/dev/null && echo "$2 runs"; }
runs $shim shim
runs $other other
runs "$(cat /stubborn)" container
[ -e /run/k3s ] && echo 'the rest is left'
exit 0
"#;

#[test]
fn a_shutdown_tells_containers_to_end_and_kills_what_does_not() {
    if !can_unshare() {
        return;
    }
    let (tree, unpacked) = machine();
    let shell = std::fs::read("/bin/sh").unwrap();
    let shim = tree
        .root()
        .join(unpacked)
        .join("bin/containerd-shim-runc-v2");
    crate::files::replace(&shim, &shell, 0o755).unwrap();
    let started = clock::now().mono;
    let ended = enter(&tree, SHUT_DOWN, "");
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(
        lines,
        ["ended", "other runs", "the rest is left"],
        "{ended:?}"
    );
    let took = clock::now().mono.since(started);
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(!tree.calls().contains("systemctl stop k3s"));
}
