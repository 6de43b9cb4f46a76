# shellcheck shell=bash
# What the tests of k3s on machines share: the root that a machine is made of, cgroups, and the machine itself.

suite=bookworm
cache=${PIPEOPS_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pipeops-agent-test}
packages=systemd,systemd-sysv,dbus,iproute2,procps,kmod,nftables,strace
# Of the machine: systemd or openrc.
init=systemd
program=${PIPEOPS_TEST_PROGRAM:-target/debug/pipeops-agent}

skip() {
    printf 'skipped: k3s on a machine: %s\n' "$*"
    exit 75
}

# Sets ROOT, RELEASES, WORK and GROUP; log is where a failure is told.
prepare_host() {
    local log=$1 tool root built=
    ((EUID == 0)) || skip 'a machine is started in containers, which takes root'
    for tool in mmdebstrap systemd-nspawn; do
        command -v "$tool" >/dev/null || skip "$tool is not installed: tests/setup test installs it"
    done
    [[ -x $program ]] || skip "$program is not built: cargo build"
    [[ -e /dev/kmsg ]] || skip 'there is no /dev/kmsg, which the kubelet reads'
    # The former name is accepted.
    RELEASES=${PIPEOPS_TEST_K3S:-${PIPEOPS_TEST_K3S_RELEASES:-}}
    # A single program is for tests/cluster: an upgrade takes two.
    [[ ! -f $RELEASES ]] || RELEASES=
    if [[ -n $RELEASES ]]; then
        [[ -d $RELEASES ]] || skip "PIPEOPS_TEST_K3S=$RELEASES is neither a folder of releases nor a program"
        RELEASES=$(realpath -- "$RELEASES")
        built=$(tests/cluster/cluster build) || skip "${built#skipped: }"
    else
        RELEASES=$(tests/cluster/cluster k3s) || skip "${RELEASES#skipped: }"
    fi
    if [[ $init == openrc ]]; then
        packages=openrc,busybox-static,iproute2,procps,kmod,nftables
    fi
    root=$cache/root-$suite-$(sha256sum <<<"$packages" | cut -c 1-12)
    if [[ ! -e $root/made ]]; then
        rm -rf "$root"
        mkdir -p "$root"
        printf 'k3s: making a root of Debian %s in %s (once, a minute)\n' "$suite" "$root"
        timeout 900 mmdebstrap --quiet --variant=minbase --include="$packages" "$suite" "$root/tree" >"$log" 2>&1 || {
            tail -n 5 "$log"
            rm -rf "$root"
            skip 'mmdebstrap could not make a root'
        }
        : >"$root/made"
    fi
    WORK=$(mktemp -d)
    GROUP=pipeops-k3s-$$
    ROOT=$root/tree
    export WORK ROOT RELEASES GROUP INIT=$init
    trap leave_host EXIT
    mkdir "$WORK/test"
    strip --strip-debug -o "$WORK/test/pipeops-agent" "$program"
    install -m 755 tests/k3s/board tests/k3s/lib.sh "$WORK/test/"
    install -m 644 systemd/pipeops-keeper.service systemd/pipeops-keeper.socket "$WORK/test/"
    [[ -z $built ]] || cp "${built##*built }/images.tar" "$WORK/test/"
}

# The processes are gone with the machine; a cgroup stays busy for a moment longer.
leave_host() {
    local attempt tree left
    for attempt in {1..50}; do
        left=
        for tree in /sys/fs/cgroup/"$GROUP" /sys/fs/cgroup/*/"$GROUP"; do
            [[ ! -d $tree ]] || find "$tree" -depth -type d -exec rmdir {} \; 2>/dev/null || true
            [[ ! -d $tree ]] || left=$tree
        done
        [[ -n $left ]] || break
        sleep 0.1
    done
    [[ -z $left ]] || printf 'k3s: could not remove %s (%s attempts)\n' "$left" "$attempt"
    rm -rf "$WORK"
}

# What follows runs in a mount namespace of its own, which takes all mounts and network namespaces with it.

# Puts this shell into cgroups of its own below GROUP.
enter_group() {
    local name=$1 tree file above
    for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
        # Links such as cpu,cpuacct and the version 2 tree of a hybrid set-up aside.
        [[ -e $tree/cgroup.procs && ! -L $tree ]] || continue
        mkdir -p "$tree/$GROUP$name"
        for file in cpus mems; do
            [[ -e $tree/cpuset.$file && ! -e $tree/cgroup.controllers ]] || continue
            for above in "$GROUP" "$GROUP$name"; do
                cat "$tree/cpuset.$file" >"$tree/$above/cpuset.$file"
            done
        done
        echo $BASHPID >"$tree/$GROUP$name/cgroup.procs"
    done
}

# Makes the root of a machine below /run/machine: the shared tree below, what it writes in memory above.
# Its steps are the script /test/STEPS.
make_machine() {
    local at=/run/machine/$1 host=$2 steps=$3 unit
    mkdir -p "$at"/{upper,work,root,disk}
    mount -t overlay -o "lowerdir=$ROOT,upperdir=$at/upper,workdir=$at/work" machine "$at/root"
    cd "$at/root" || return
    mkdir test mnt/disk
    cp "$WORK/test/pipeops-agent" usr/bin/pipeops-agent
    printf '127.0.0.1 localhost\n' >etc/hosts
    printf '%s\n' "$host" >etc/hostname
    if [[ $INIT == openrc ]]; then
        services_of_openrc "$steps" "/test/log${1:+.$1}"
        cd /
        return
    fi
    mkdir -p etc/systemd/system/multi-user.target.wants
    for unit in board "$steps"; do
        cat >etc/systemd/system/"$unit".service <<END
[Unit]
Description=The test: $unit
$([[ $unit == "$steps" ]] && echo After=multi-user.target || printf 'DefaultDependencies=no\nBefore=sysinit.target\nAfter=local-fs.target')
[Service]
Type=$([[ $unit == "$steps" ]] && echo simple || echo oneshot)
ExecStart=/test/$unit
StandardOutput=append:/test/log${1:+.$1}
StandardError=append:/test/log${1:+.$1}
END
        ln -s ../"$unit".service etc/systemd/system/multi-user.target.wants/
    done
    cd /
}

# The board before all others, and the steps in the background, by OpenRC.
services_of_openrc() {
    local steps=$1 log=$2
    printf '#!/sbin/openrc-run\ndepend() { before sysfs cgroups; }\nstart() { /test/board >>%s 2>&1; }\n' "$log" >etc/init.d/board
    printf '#!/sbin/openrc-run\nstart() { start-stop-daemon --start --background --exec /bin/bash -- -c "exec /test/%s >>%s 2>&1"; }\n' \
        "$steps" "$log" >etc/init.d/life
    chmod 755 etc/init.d/board etc/init.d/life
    ln -s /etc/init.d/board etc/runlevels/sysinit/board
    ln -s /etc/init.d/life etc/runlevels/default/life
}

# Runs a machine until it is off; a reboot ends nspawn with 133. So does this, where the machine is to come back with a new disk.
run_machine() {
    local at=/run/machine/$1 renewed=$WORK/test/new-disk.$1 answer boot=-b
    shift
    [[ $INIT != openrc ]] || boot=/sbin/openrc-init
    while :; do
        answer=0
        SYSTEMD_NSPAWN_API_VFS_WRITABLE=1 systemd-nspawn --quiet -D "$at/root" --register=no --keep-unit "$@" \
            --link-journal=no --capability=all --system-call-filter='@keyring bpf perf_event_open' --bind=/dev/kmsg \
            --bind="$WORK/test:/test" --bind-ro="$RELEASES:/releases" --bind="$at/disk:/mnt/disk" \
            "$boot" </dev/null >>"$WORK/console" 2>&1 || answer=$?
        date +%s%3N >"$WORK/test/down"
        ((answer == 133)) && [[ ! -e $renewed ]] || return "$answer"
    done
}
