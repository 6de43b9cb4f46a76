# shellcheck shell=bash
# What the steps on a machine share: their words, their waits, and the picture of the file system.

export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/tmp
cd /

init=systemd
[[ -d /run/systemd/system ]] || init=openrc
# service start|stop|restart|enable|disable NAME
service() {
    case $init:$1 in
    systemd:*) systemctl --quiet "$1" "$2" ;;
    openrc:enable) rc-update --quiet add "$2" default ;;
    openrc:disable) rc-update --quiet delete "$2" default ;;
    openrc:*) rc-service --quiet "$2" "$1" ;;
    esac
}
is_active() {
    case $init in
    systemd) systemctl is-active --quiet "$1" ;;
    openrc) rc-service --quiet "$1" status >/dev/null 2>&1 ;;
    esac
}
is_enabled() {
    case $init in
    systemd) systemctl is-enabled --quiet "$1" ;;
    openrc) [[ -e /etc/runlevels/default/$1 ]] ;;
    esac
}
# When the service was started, in a form of its own.
started_at() {
    case $init in
    systemd) systemctl show -P ActiveEnterTimestampMonotonic "$1" ;;
    openrc) cat "/run/openrc/options/$1/child_pid" ;;
    esac
}
# leave poweroff | reboot
leave() {
    case $init:$1 in
    systemd:*) systemctl "$1" ;;
    openrc:poweroff) openrc-shutdown -p now ;;
    openrc:reboot) openrc-shutdown -r now ;;
    esac
}

step() { printf '== %s: %s\n' "$(date +%T)" "$*"; }
# Each end of k3s with its reason, and the last lines of its log.
evidence() {
    case $init in
    systemd)
        journalctl --no-pager -u k3s -u k3s-agent -o short | grep -e level=fatal -e 'leaderelection lost' -e 'Main process exited' | tail -n 10 | cut -c 1-400
        journalctl --no-pager -n 40 -u k3s -u k3s-agent -u pipeops-k3s-resume -o cat | cut -c 1-300
        journalctl --no-pager -n 40 -u pipeops-agent -u pipeops-k3s-connect -o short | cut -c 1-300
        ;;
    openrc) tail -n 40 /var/log/k3s.log /run/pipeops-agent/log | cut -c 1-300 ;;
    esac || true
    ls -l /var/lib/pipeops-keeper || true
}
fail() {
    printf 'FAILED: %s\n' "$*"
    evidence
    # The machine ends, and nobody waits for it.
    case $init in
    systemd) systemctl --force --force poweroff ;;
    openrc) busybox poweroff -f ;;
    esac
    exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR
refuses() { ! "$@" || fail "this was to be refused: $*"; }
until_true() {
    local n
    for ((n = 0; n < 300; n++)); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    fail "not within a minute: $*"
}
now() { date +%s%3N; }

# Everything of the machine but what runs, and what is written by its running.
snapshot() {
    find / \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /test -o -path /releases -o -path /var/tmp \
        -o -path /var/log/journal -o -path /var/lib/systemd -o -path /run/systemd -o -path /run/log -o -path /run/udev -o -path /run/user \
        -o -path /run/dbus -o -path /run/openrc -o -path /run/sysctl -o -path /var/lib/pipeops-keeper -o -path /etc/machine-id -o -path '/var/log/[wbl]tmp' \
        -o -path /var/log/lastlog -o -path /etc/.updated -o -path /var/.updated -o -path /run/machine-id -o -path /run/utmp \
        -o -path /run/credentials -o -path /run/host -o -path '/run/*.pid' -o -path /run/lock -o -path /run/agetty.reload \) \
        -prune -o -type f -printf '%p %m %u:%g %s\n' -o -printf '%p %y %m %u:%g %l\n' | sort
    ip -o link | sed 's/^[0-9]*: \([^:@]*\).*/link \1/'
    nft list tables
    awk '{ print "mount", $2 }' /proc/self/mounts | sort
    ls /run/netns 2>/dev/null || true
}
ready() { [[ $(pipeops-agent k3s status --json) == *'"is_ready": true'* ]]; }
# The image of the Pods in the tests: in the archive of the stand-in, and in none of a release.
give_image() { [[ ! -e /test/images.tar ]] || k3s ctr --namespace k8s.io images import /test/images.tar; }
# The stand-in has two files beside the directories of k3s, which k3s does not have: what k3s did not make stays.
remove_others() { rm -f "$DATA/kubeconfig.yaml" "$DATA/kubeconfig-next-ca.yaml"; }
shims() { pgrep -c containerd-shim || true; }
# What a container in a test lacks and a machine has: the doctor is right about it.
# shellcheck disable=SC2034
quirks=(--ignore system.container --ignore disk.volatile --ignore cgroup.controllers --ignore cgroup.memory --ignore kernel.restart
    --ignore kernel.vxlan)

# shellcheck disable=SC2010  # they are versions
mapfile -t versions < <(ls /releases | grep '^v' | sort -V)
# shellcheck disable=SC2034  # who reads this uses them
first=/releases/${versions[0]} second=/releases/${versions[1]} minor=/releases/${versions[2]:-}
