#!/bin/sh
# Stops k3s and all its Pods, and removes what they left in memory: processes, mounts,
# network. Data stays. Written by pipeops-agent; it works without it.
# May be run again at any time.
data="@DATA@"
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"
[ "$(id -u)" = 0 ] || { echo "needs root: sudo $0" >&2; exit 2; }

if [ -d /run/systemd/system ]; then
    systemctl stop @NAME@ 2>/dev/null
elif [ -x /etc/init.d/@NAME@ ]; then
    rc-service @NAME@ stop 2>/dev/null
fi

# A shim of this k3s: one whose program is in the data directory, or that serves the
# socket of k3s, wherever the data directory was.
is_shim() {
    case $(readlink "/proc/$1/exe" 2>/dev/null) in
    "$data"/data/*/bin/containerd-shim*) return 0 ;;
    */containerd-shim*) tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -q ' /run/k3s/containerd/' ;;
    *) return 1 ;;
    esac
}
# What else of k3s a stop has left: its own programs in the data directory.
is_part() {
    case $(readlink "/proc/$1/exe" 2>/dev/null) in
    "$data"/data/*) return 0 ;;
    *) return 1 ;;
    esac
}
children_of() {
    for status in /proc/[0-9]*/stat; do
        # The name may have blanks and brackets in it: what counts is behind the last one.
        parent=$(sed 's/.*) [A-Za-z] \([0-9]*\) .*/\1/' "$status" 2>/dev/null) || continue
        [ "$parent" = "$1" ] || continue
        child=${status#/proc/}
        child=${child%/stat}
        echo "$child"
        children_of "$child"
    done
}
for round in 1 2 3; do
    found=
    for process in /proc/[0-9]*; do
        process=${process#/proc/}
        if is_shim "$process"; then
            found="$found $process $(children_of "$process")"
        elif is_part "$process"; then
            found="$found $process"
        fi
    done
    [ -n "$found" ] || break
    # shellcheck disable=SC2086
    kill -9 $found 2>/dev/null
    sleep 1
done

unmount_below() {
    # The deepest first.
    awk -v top="$1" 'index($2, top) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r point; do
        umount -l "$point" 2>/dev/null
    done
}
unmount_below /run/k3s
unmount_below /var/lib/kubelet/pods
unmount_below /var/lib/kubelet/plugins
unmount_below /run/netns/cni-

remove() {
    if awk -v top="$1/" 'index($2 "/", top) == 1 { found = 1 } END { exit !found }' /proc/self/mounts; then
        echo "left, because something is still mounted there: $1" >&2
    else
        rm -rf -- "$1"
    fi
}
remove /run/k3s
remove /run/flannel

for space in /run/netns/cni-*; do
    [ -e "$space" ] || continue
    ip netns delete "${space##*/}" 2>/dev/null
    rm -f -- "$space"
done
if command -v ip >/dev/null 2>&1; then
    ip -o link show 2>/dev/null | sed -n 's/^[0-9]*: \(veth[^@:]*\).* master cni0 .*/\1/p' | while read -r link; do
        ip link delete "$link" 2>/dev/null
    done
    for link in cni0 flannel.1 flannel-v6.1 flannel-wg flannel-wg-v6 kube-ipvs0; do
        ip link delete "$link" 2>/dev/null
    done
fi
rm -rf /var/lib/cni/networks/cbr0 /var/lib/cni/results /var/lib/cni/flannel
rmdir /var/lib/cni/networks /var/lib/cni 2>/dev/null

# Rules of k3s only: chains of kube-proxy, of the network plugins and of flannel.
for family in iptables ip6tables; do
    command -v "$family-save" >/dev/null 2>&1 || continue
    rules=$("$family-save" 2>/dev/null) || continue
    case $rules in
    *KUBE-* | *CNI-* | *flanneld*)
        printf '%s\n' "$rules" | grep -v -e '^-A.*KUBE-' -e '^:KUBE-' -e '^-A.*CNI-' -e '^:CNI-' -e '^-A.*flannel' -e '^:FLANNEL' | "$family-restore"
        ;;
    esac
done
if command -v nft >/dev/null 2>&1; then
    for family in ip ip6; do
        nft delete table "$family" kube-proxy 2>/dev/null
    done
fi
exit 0
