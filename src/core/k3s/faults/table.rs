//! The table of faults, with the detector of each.

use super::{Api, Component, Confidence, Fault, K3sState, Repair};
use crate::core::{
    doctor::{DATASTORE_BYTES_MAX, DATASTORE_LOG_BYTES_MAX, DUPLICATES_MAX},
    format::size,
    health::Severity::{Critical, Warning},
    k3s::{Role, images::Archives, ready},
};

/// The table. Of each part the first row that fits is the cause.
pub const FAULTS: &[Fault] = &[
    Fault {
        id: "k3s.not-started",
        part: Component::Service,
        severity: Critical,
        confidence: Confidence::Certain,
        from: "the service is enabled, and has not been started since boot, which was more than five minutes ago",
        detect: |state| {
            let service = &state.service;
            let is_it = service.active == "inactive" && service.is_enabled && !service.was_started;
            (is_it && state.up_s >= 300).then(|| "k3s did not start at boot".to_owned())
        },
        grace_s: 0,
        repair: Some(Repair::Start),
        fix: "systemctl status k3s names what it waits for, such as a disk that is not mounted; then: sudo systemctl start k3s",
    },
    Fault {
        id: "k3s.given-up",
        part: Component::Service,
        severity: Critical,
        confidence: Confidence::Certain,
        from: "the service failed, and systemd no longer restarts it",
        detect: |state| {
            state.service.is_given_up().then(|| {
                let reason = ready::reason(&state.log);
                let reason = reason.map(|reason| format!("; it says: {reason}"));
                format!(
                    "k3s kept crashing, and systemd stopped restarting it{}",
                    reason.unwrap_or_default()
                )
            })
        },
        grace_s: 0,
        repair: Some(Repair::Start),
        fix: "journalctl -u k3s -n 100; sudo pipeops-agent doctor; then: sudo systemctl reset-failed k3s && sudo systemctl start k3s",
    },
    Fault {
        id: "k3s.not-runnable",
        from: "three restarts in ten minutes, and systemd cannot run the program (status 203)",
        detect: |state| {
            let is_it = is_looping(state) && state.service.status == 203;
            is_it.then(|| "/usr/local/bin/k3s cannot be run: it is missing, truncated, or built for another processor".to_owned())
        },
        fix: "sudo pipeops-agent doctor; to put the program in place again, with all data kept: sudo pipeops-agent k3s uninstall --keep-data, \
            then sudo pipeops-agent k3s install --reuse-data",
        ..LOOP
    },
    Fault {
        id: "k3s.no-route",
        detect: |state| says(state, &["no default routes found"]),
        fix: "wait for the network, or give this machine a default route: sudo pipeops-agent doctor has the commands; where there is none, a dummy one will do (until the next boot): \
            sudo ip link add dummy0 type dummy; sudo ip link set dummy0 up; sudo ip addr add 203.0.113.254/31 dev dummy0; \
            sudo ip route add default via 203.0.113.255 dev dummy0 metric 1000",
        ..LOOP
    },
    Fault {
        id: "k3s.port-taken",
        detect: |state| says(state, &["address already in use"]),
        fix: "find the other program, and stop it or move it: sudo ss -ltnp | grep -E ':(6443|6444|10250|10257|10259) '",
        ..LOOP
    },
    Fault {
        id: "k3s.cgroups",
        detect: |state| {
            says(
                state,
                &[
                    "failed to find memory cgroup",
                    "failed to find cpu cgroup",
                    "failed to find cpuset cgroup",
                    "failed to find pids cgroup",
                ],
            )
        },
        fix: "sudo pipeops-agent doctor --fix switches the kernel's memory controller on; then reboot",
        ..LOOP
    },
    Fault {
        id: "k3s.cgroup-v1",
        detect: |state| {
            says(
                state,
                &[
                    "not run on a host using cgroup v1",
                    "cgroup v1 support is unsupported",
                ],
            )
        },
        fix: "boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line",
        ..LOOP
    },
    Fault {
        id: "k3s.clock",
        detect: |state| {
            says(
                state,
                &[
                    "time isn't set properly",
                    // A certificate: "current time … is before …".
                    " is before 20",
                    "not valid before",
                ],
            )
        },
        fix: "set the clock: sudo timedatectl set-ntp true, or by hand: sudo date -u -s \"YYYY-MM-DD HH:MM:SS\"; then: sudo systemctl restart k3s",
        ..LOOP
    },
    Fault {
        id: "k3s.expired",
        detect: |state| says(state, &["certificate has expired"]),
        fix: "see that the clock is right: date; a certificate of the server has expired, which a restart of k3s there renews",
        ..LOOP
    },
    Fault {
        id: "k3s.token",
        detect: |state| {
            let words = [
                "encrypted with different token",
                "token is not valid",
                "failed to validate token",
                "token CA hash does not match",
            ];
            // Of a worker that was off until its certificate had ended, too.
            let is_worker = state.role == Role::Worker;
            let refused = || says(state, &["401 unauthorized"]).filter(|_| is_worker);
            says(state, &words).or_else(refused)
        },
        fix: "on a server: restore the token that this cluster was created with; a backup has it as server/token: sudo pipeops-agent k3s restore; \
            on a worker: put a token of its server (sudo pipeops-agent k3s token, there) into /etc/rancher/k3s/join-token, then: sudo systemctl restart k3s",
        ..LOOP
    },
    Fault {
        id: "k3s.datastore-damaged",
        from: "three restarts in ten minutes, or a start that does not end, and k3s names this reason in its log; or SQLite finds it, which \
            checks the datastore (up to 256 MB) once k3s is Ready after the machine went down without stopping k3s",
        detect: |state| {
            let found = |damage| format!("the datastore of k3s is damaged: {damage}");
            says(
                state,
                &[
                    "database disk image is malformed",
                    "file is not a database",
                    "disk I/O error",
                    "walpb: crc mismatch",
                    "snapshot file doesn't exist",
                ],
            )
            .or_else(|| state.damage.as_ref().map(found))
        },
        fix: "restore the newest backup: sudo pipeops-agent k3s status names it, then: sudo pipeops-agent k3s restore; check the disk, too: dmesg | tail",
        ..LOOP
    },
    Fault {
        id: "k3s.disk-full",
        detect: |state| {
            says(
                state,
                &["no space left on device", "database or disk is full"],
            )
        },
        fix: "make room: df -h; du -xh / | sort -h | tail; k3s then recovers on its own",
        ..LOOP
    },
    Fault {
        id: "k3s.disk-read-only",
        detect: |state| {
            says(
                state,
                &[
                    "read-only file system",
                    "attempt to write a readonly database",
                ],
            )
        },
        fix: "the file system was mounted read-only, mostly because the disk fails: dmesg | tail; then: sudo mount -o remount,rw /",
        ..LOOP
    },
    Fault {
        id: "k3s.containerd",
        detect: |state| {
            says(
                state,
                &[
                    "failed to get metadata for stored sandbox",
                    "missing parent bucket",
                    "failed to build map of initial containers",
                ],
            )
        },
        fix: "stop everything, and let containerd begin again with images from agent/images or the registry: sudo /usr/local/bin/k3s-killall.sh; move agent/containerd in the data directory away; sudo systemctl start k3s",
        ..LOOP
    },
    Fault {
        id: "k3s.flannel",
        detect: |state| says(state, &["link has incompatible addresses"]),
        fix: "sudo ip link delete flannel.1; k3s makes it again",
        ..LOOP
    },
    Fault {
        id: "k3s.node-ip",
        detect: |state| {
            says(
                state,
                &[
                    "failed to find interface with specified node ip",
                    "unable to select an ip from node-ip",
                    "invalid ip format",
                    "no such network interface",
                ],
            )
        },
        fix: "no interface has the node-ip of /etc/rancher/k3s/config.yaml, or that of flannel-iface is missing: bring the interface up (a VPN: wg-quick up, tailscale up), \
            or correct the setting, or reserve the address in the router; then: sudo systemctl restart k3s",
        ..LOOP
    },
    Fault {
        id: "k3s.etcd-address",
        detect: |state| says(state, &["not a member of the etcd cluster"]),
        fix: "etcd knows this server by another address, or another server removed it: give the machine its address back in the router, then: sudo systemctl restart k3s; \
            where that cannot be, on the only server: sudo pipeops-agent k3s restore BACKUP --ignore restore.servers; on one of several: sudo pipeops-agent node leave NAME on another one, sudo pipeops-agent k3s uninstall here, and join again",
        ..LOOP
    },
    Fault {
        id: "k3s.node-name",
        detect: |state| says(state, &["node password rejected", "duplicate hostname"]),
        fix: "another machine has the name of this node: choose one by node-name in /etc/rancher/k3s/config.yaml; or, where this machine was installed again: kubectl delete node NAME on a server",
        ..LOOP
    },
    Fault {
        id: "k3s.registries",
        detect: |state| {
            says_so(state, &|line| {
                line.contains("waiting to retrieve agent configuration") && line.contains("yaml: ")
            })
        },
        fix: "correct /etc/rancher/k3s/registries.yaml, which k3s cannot read; then: sudo systemctl restart k3s",
        ..LOOP
    },
    Fault {
        id: "k3s.settings",
        detect: |state| {
            // A manifest that cannot be read ends nothing.
            let is_last = |line: &str| line.contains("fata") && !line.contains("manifests/");
            let words = [
                "flag provided but not defined",
                "yaml: ",
                "invalid value \"",
            ];
            says_so(state, &|line| {
                is_last(line) && words.iter().any(|word| line.contains(word))
            })
        },
        fix: "correct /etc/rancher/k3s/config.yaml; then: sudo systemctl restart k3s",
        ..LOOP
    },
    Fault {
        id: "k3s.looping",
        confidence: Confidence::Likely,
        from: "three restarts in ten minutes, for none of the reasons in the other rows",
        detect: |state| {
            is_looping(state).then(|| {
                let reason = ready::reason(&state.log);
                format!(
                    "k3s keeps crashing: {}",
                    reason.as_deref().unwrap_or("its log does not say why")
                )
            })
        },
        fix: "journalctl -u k3s -n 100; sudo pipeops-agent doctor",
        ..LOOP
    },
    Fault {
        id: "k3s.slow-start",
        part: Component::Service,
        severity: Warning,
        confidence: Confidence::Likely,
        from: "the service has been starting for twenty minutes",
        detect: |state| {
            (state.service.active == "activating").then(|| {
                let reason = ready::reason(&state.log).map(|reason| format!(": {reason}"));
                format!(
                    "k3s has not finished its start{}",
                    reason.unwrap_or_default()
                )
            })
        },
        grace_s: 1200,
        repair: None,
        fix: "journalctl -u k3s -n 50 shows what it waits for; a slow card takes minutes to import images",
    },
    Fault {
        id: "k3s.certificates-ended",
        part: Component::Api,
        severity: Critical,
        confidence: Confidence::Certain,
        from: "a certificate of k3s has expired, and k3s runs since before that",
        detect: |state| {
            let (file, days) = state.certificate.as_ref()?;
            (*days < 0).then(|| format!("{file} has expired; k3s renews it only when it starts"))
        },
        grace_s: 0,
        repair: Some(Repair::Restart),
        fix: "see that the clock is right: date; then: sudo systemctl stop k3s; sudo /usr/local/bin/k3s certificate rotate, with --data-dir DIR where the data is not in /var/lib/rancher/k3s; sudo systemctl start k3s",
    },
    Fault {
        id: "k3s.api-silent",
        part: Component::Api,
        severity: Critical,
        confidence: Confidence::Likely,
        from: "the service runs, and its API has not answered for two minutes",
        detect: |state| {
            let is_it = state.has_come_up() && state.role == Role::Server;
            let why = silence(state).filter(|_| is_it)?;
            Some(format!("k3s runs, and its API does not answer: {why}"))
        },
        grace_s: 120,
        repair: Some(Repair::Restart),
        fix: "journalctl -u k3s -n 100; often the disk is too slow or the memory is full: sudo pipeops-agent doctor",
    },
    Fault {
        id: "k3s.server-silent",
        part: Component::Api,
        severity: Critical,
        confidence: Confidence::Certain,
        from: "on a worker: its server has not answered for five minutes",
        detect: |state| {
            let why = silence(state).filter(|_| state.role == Role::Worker)?;
            Some(format!("the server does not answer this worker: {why}"))
        },
        grace_s: 300,
        repair: None,
        fix: "run sudo pipeops-agent k3s status on the server; then check the network to it (/etc/rancher/k3s/config.yaml has its address); \
            Pods keep running",
    },
    Fault {
        id: "k3s.clock-set",
        part: Component::Api,
        severity: Warning,
        confidence: Confidence::Likely,
        from: "the clock was set back by more than five minutes while k3s ran, so that tokens are not valid yet",
        detect: |state| {
            is_set_back(state.jumped_s).then(|| {
                format!(
                    "the clock was set back by {} min while k3s ran",
                    state.jumped_s.unsigned_abs() / 60
                )
            })
        },
        grace_s: 0,
        repair: Some(Repair::Restart),
        fix: "sudo systemctl restart k3s; delete Pods that report tokens which are not valid yet",
    },
    // No repair: each start makes a node of the new name, and none of the one that is managed.
    Fault {
        id: "k3s.renamed",
        part: Component::Node,
        severity: Warning,
        confidence: Confidence::Certain,
        from: "the name of this machine, or node-name in its settings, has changed since k3s was installed or adopted, so k3s would \
            register as a new node at its next start",
        detect: |state| {
            let name = state.renamed.as_ref()?;
            Some(format!(
                "this machine has another name now: k3s registers it as the node {name}, and not as the one that is managed"
            ))
        },
        grace_s: 60,
        repair: None,
        fix: "to stay the node that it was, with its volumes: node-name: OLD in /etc/rancher/k3s/config.yaml, then: sudo systemctl restart k3s; \
            to go on as the new one: sudo systemctl restart k3s; sudo pipeops-agent k3s adopt; then, on a server: sudo pipeops-agent node leave OLD",
    },
    Fault {
        id: "k3s.node-gone",
        part: Component::Node,
        severity: Critical,
        confidence: Confidence::Certain,
        from: "on a server: the API answers, and has no node of this machine's name",
        detect: |state| {
            (state.api == Some(Api::NoNode) && state.role == Role::Server)
                .then(|| "the cluster no longer has a node for this machine".to_owned())
        },
        grace_s: 60,
        repair: Some(Repair::Restart),
        fix: "sudo systemctl restart k3s registers it again; check node-name in /etc/rancher/k3s/config.yaml",
    },
    // No repair: whoever removed a worker from its cluster meant it.
    Fault {
        id: "k3s.worker-gone",
        part: Component::Node,
        severity: Critical,
        confidence: Confidence::Certain,
        from: "on a worker: its server answers, and has no node of this machine's name",
        detect: |state| {
            (state.api == Some(Api::NoNode) && state.role == Role::Worker).then(|| {
                "this worker is no longer part of the cluster: it was removed, or its node was deleted"
                    .to_owned()
            })
        },
        grace_s: 60,
        repair: None,
        fix: "if it is to leave, remove k3s from it: sudo pipeops-agent node leave; if it is to stay: sudo systemctl restart k3s registers it again",
    },
    Fault {
        id: "k3s.node-address",
        part: Component::Node,
        severity: Critical,
        confidence: Confidence::Certain,
        from: "no interface of this machine has the address of its node, there is a default route, and no setting fixes the address",
        detect: |state| {
            let address = state.node()?.address?;
            let is_gone = !state.addresses.is_empty() && !state.addresses.contains(&address);
            // Without a network, k3s goes on; it would not start.
            (is_gone && state.has_route && !state.has_fixed_address).then(|| {
                format!("the node is registered with {address}, which this machine no longer has")
            })
        },
        grace_s: 60,
        repair: Some(Repair::Restart),
        fix: "reserve the address in the router, then: sudo systemctl restart k3s",
    },
    Fault {
        id: "k3s.node-not-ready",
        part: Component::Node,
        severity: Critical,
        confidence: Confidence::Likely,
        from: "the node has not been Ready for two minutes; for fifteen where its kubelet has not reported since k3s was started, \
            which imports images before it starts that",
        detect: |state| {
            let node = state.node().filter(|_| !state.may_import())?;
            let why = node
                .has("Ready", "False")
                .or_else(|| node.has("Ready", "Unknown"));
            why.map(|why| format!("the node is not Ready: {why}"))
        },
        grace_s: 120,
        repair: Some(Repair::Restart),
        fix: "kubectl describe node; journalctl -u k3s -n 100; sudo pipeops-agent doctor",
    },
    // The server calls a node not Ready 40 s after the last renewal of its lease, unless that part
    // of it hangs, too. The report itself comes every 5 min, and from the clock of this machine:
    // one that was set forward is past within that time.
    Fault {
        id: "k3s.node-silent",
        part: Component::Node,
        severity: Critical,
        confidence: Confidence::Likely,
        from: "on a server: the node counts as Ready, and its kubelet has not reported for eleven minutes, which is two reports",
        detect: |state| {
            let node = state.node().filter(|node| node.is_ready())?;
            let age = state.wall.millis().checked_sub(node.reported?.millis())?;
            (age >= UNREPORTED_MS && state.role == Role::Server).then(|| {
                "the node counts as Ready, and has not reported for eleven minutes or more"
                    .to_owned()
            })
        },
        grace_s: 360,
        repair: Some(Repair::Restart),
        fix: "journalctl -u k3s -n 100; then: sudo systemctl restart k3s",
    },
    Fault {
        id: "k3s.disk-pressure",
        fix: "unused images are removed by k3s itself; make room: df -h; du -xh / | sort -h | tail; kubectl delete pod -A --field-selector=status.phase=Failed",
        detect: |state| pressure(state, "DiskPressure", "disk"),
        ..PRESSURE
    },
    Fault {
        id: "k3s.memory-pressure",
        fix: "give that Pod a limit of memory, or move it to another node; or leave parts of k3s out: disable in /etc/rancher/k3s/config.yaml",
        detect: |state| {
            let seen = pressure(state, "MemoryPressure", "memory")?;
            Some(match &state.consumer {
                None => seen,
                Some(consumer) => format!("{seen}; {consumer}"),
            })
        },
        ..PRESSURE
    },
    Fault {
        id: "k3s.process-pressure",
        fix: "find what starts so many processes: ps -eLf | awk '{print $1}' | sort | uniq -c | sort -n | tail",
        detect: |state| pressure(state, "PIDPressure", "process numbers"),
        ..PRESSURE
    },
    Fault {
        id: "k3s.certificates-end",
        part: Component::Certificates,
        severity: Warning,
        confidence: Confidence::Certain,
        from: "a certificate of k3s expires within 85 days: every version of k3s renews it then when it starts",
        detect: |state| {
            let (file, days) = state.certificate.as_ref()?;
            (*days < RENEWED_DAYS).then(|| {
                format!("{file} expires in {days} days; k3s renews it only when it starts")
            })
        },
        grace_s: 3600,
        repair: Some(Repair::Restart),
        fix: "sudo systemctl restart k3s; if it still expires soon after that: sudo /usr/local/bin/k3s certificate check, with --data-dir DIR where the data is not in /var/lib/rancher/k3s",
    },
    // No repair: to compact it stops k3s for minutes and takes as much room again.
    Fault {
        id: "k3s.datastore-large",
        part: Component::Datastore,
        severity: Warning,
        confidence: Confidence::Certain,
        from: "the SQLite file is longer than 2 GB, or its log longer than 1 GB",
        detect: |state| {
            let [main, log] = state.datastore?;
            (main > DATASTORE_BYTES_MAX || log > DATASTORE_LOG_BYTES_MAX).then(|| {
                format!(
                    "the datastore has {}, and {} in its log: it slows the API down, and never shrinks on its own",
                    size(main),
                    size(log)
                )
            })
        },
        grace_s: 120,
        repair: None,
        fix: "back it up: sudo pipeops-agent k3s backup; at a quiet time, with as much room free as it has: sudo systemctl stop k3s, \
            then compact server/db/state.db in the data directory with sqlite3 FILE VACUUM, then: sudo systemctl start k3s; \
            find what writes so much: sqlite3 FILE \"select count(*) n, name from kine group by name order by n desc limit 9\"",
    },
    // No repair: rules of other programs are among them, and those of a broken iptables come again.
    Fault {
        id: "k3s.firewall-duplicates",
        part: Component::Firewall,
        severity: Warning,
        confidence: Confidence::Certain,
        from: "fifty firewall rules or more are there a second time in the same chain; counted each hour, where iptables is installed",
        detect: |state| {
            let count = state.duplicates.filter(|count| *count >= DUPLICATES_MAX)?;
            Some(format!(
                "{count} firewall rules are duplicates, and every packet passes all of them"
            ))
        },
        grace_s: 0,
        repair: None,
        fix: "have k3s use its own iptables: prefer-bundled-bin: true in /etc/rancher/k3s/config.yaml; then reboot once, which removes them",
    },
    // Before CoreDNS is left to a person: what it lacks may be in an archive.
    Fault {
        id: "k3s.images",
        severity: Critical,
        confidence: Confidence::Likely,
        from: "CoreDNS waits on this server for an image that the archive of a release in agent/images has; not while the node runs out \
            of disk",
        detect: |state| {
            let image = state.lacks_image.as_ref()?;
            let has_it = archives(state)?.has_release;
            has_it.then(|| {
                format!(
                    "the image {image} is gone, and an archive of k3s is there: {}",
                    state.dns
                )
            })
        },
        fix: "put the archive of the version that runs (k3s --version) into agent/images in the data directory, with three times its length \
            of room on the disk; then: sudo systemctl restart k3s",
        ..IMAGES
    },
    Fault {
        id: "k3s.images-unpinned",
        from: "k3s skips an archive in agent/images that .cache.json names, and has pinned no image; not while the node runs out of disk",
        detect: |state| {
            archives(state)?.are_unpinned.then(|| {
                "k3s no longer pins the images of its archives: when disk space runs low they are removed, and nothing brings \
                them back offline"
                    .to_owned()
            })
        },
        fix: "upgrade k3s to a version of July 2026 or later, or remove agent/images/.cache.json in the data directory; then: \
            sudo systemctl restart k3s",
        ..IMAGES
    },
    // No repair: the kubelet restarts it by itself, and what lacks is mostly an image or a server.
    Fault {
        id: "k3s.dns",
        part: Component::Dns,
        severity: Critical,
        confidence: Confidence::Certain,
        from: "the API answers and the node is Ready, but the Deployment coredns in kube-system has had no ready Pod for four \
            minutes; ignored if it does not exist or is scaled to 0",
        detect: |state| {
            let is_it = state.node()?.lacks_dns;
            is_it.then(|| {
                format!(
                    "DNS does not work in Pods, because CoreDNS is not ready: {}",
                    state.dns
                )
            })
        },
        grace_s: 240,
        repair: None,
        fix: "sudo /usr/local/bin/k3s kubectl -n kube-system describe pod -l k8s-app=kube-dns, and logs -l k8s-app=kube-dns, say why; an image that cannot \
            be pulled needs the network, or the archive in agent/images; a loop: sudo pipeops-agent doctor names the server",
    },
];

/// Days before the end within which every version of k3s renews a certificate when it starts (120;
/// before May 2025: 90).
pub const RENEWED_DAYS: i64 = 85;

/// Two reports of a kubelet that were missed (`nodeStatusReportFrequency`, 5 min), and a minute.
const UNREPORTED_MS: i64 = 660_000;

/// A service that ends again and again.
const LOOP: Fault = Fault {
    id: "",
    part: Component::Service,
    severity: Critical,
    confidence: Confidence::Certain,
    from: "three restarts in ten minutes, or a start that does not end, and k3s names this reason in its log",
    detect: |_| None,
    grace_s: 0,
    repair: None,
    fix: "",
};

/// Images of archives.
const IMAGES: Fault = Fault {
    id: "",
    part: Component::Images,
    severity: Warning,
    confidence: Confidence::Certain,
    from: "",
    detect: |_| None,
    grace_s: 60,
    repair: Some(Repair::Import),
    fix: "",
};

/// A node that runs out of something.
const PRESSURE: Fault = Fault {
    id: "",
    part: Component::Node,
    severity: Warning,
    confidence: Confidence::Certain,
    from: "the condition of the node of this name, for ten minutes",
    detect: |_| None,
    grace_s: 600,
    repair: None,
    fix: "",
};

/// Restarts of ten minutes that make a loop.
const LOOPING: u32 = 3;

/// Times that a k3s says what keeps it from coming up.
const REPEATED: usize = 3;

/// Returns whether a clock that was set by so many seconds makes tokens begin later than now.
pub fn is_set_back(jumped_s: i64) -> bool {
    jumped_s < -300
}

fn is_looping(state: &K3sState) -> bool {
    state.restarts >= LOOPING
}

/// Archives, where to import them may help: k3s has done so, and the disk has room.
fn archives(state: &K3sState) -> Option<Archives> {
    let is_full = pressure(state, "DiskPressure", "disk").is_some();
    let is_early = state.may_import() || !state.has_come_up();
    state.archives.filter(|_| !is_full && !is_early)
}

fn silence(state: &K3sState) -> Option<&str> {
    match state.api.as_ref()? {
        Api::Silent(why) => Some(why),
        Api::Node(_) | Api::NoNode => None,
    }
}

fn pressure(state: &K3sState, kind: &str, what: &str) -> Option<String> {
    let message = state.node()?.has(kind, "True")?;
    Some(format!("the node runs out of {what}: {message}"))
}

/// The last line that has one of these words, of the errors of a k3s that ends again and again, or
/// that says it again and again while it starts.
fn says(state: &K3sState, words: &[&str]) -> Option<String> {
    let has_one = |line: &str| words.iter().any(|word| line.contains(&word.to_lowercase()));
    says_so(state, &has_one)
}

/// As [`says`], for a line in lower case.
fn says_so(state: &K3sState, is_it: &dyn Fn(&str) -> bool) -> Option<String> {
    let (does, times) = if is_looping(state) {
        ("keeps crashing", 1)
    } else if state.service.active == "activating" {
        ("does not start", REPEATED)
    } else {
        return None;
    };
    let lines = state.log.lines().rev().filter(|line| is_error(line));
    let mut lines = lines.filter(|line| is_it(&line.to_lowercase()));
    let last = ready::reason(lines.next()?)?;
    (lines.count() + 1 >= times).then(|| format!("k3s {does}, and says: {last}"))
}

/// Errors of k3s (`level=fatal`, `level=error`; `ERRO` and `FATA` where it writes in colours), of
/// its etcd, and of the parts of Kubernetes in it (`E1123 …`, `F1123 …`); and what it waits for
/// without an end, which is no error to it.
fn is_error(line: &str) -> bool {
    let is_klog = |line: &str| {
        let mut bytes = line.bytes();
        matches!(bytes.next(), Some(b'E' | b'F')) && bytes.take(4).all(|byte| byte.is_ascii_digit())
    };
    [
        "level=fatal",
        "level=error",
        "panic:",
        "ERRO",
        "FATA",
        "\"level\":\"fatal\"",
        // As later versions say it, and as earlier ones did.
        "Failed to test etcd connection",
        "Failed to test data store connection",
        "Waiting to retrieve agent configuration",
    ]
    .iter()
    .any(|word| line.contains(word))
        || is_klog(line)
}
