#!/bin/sh
# Stops k3s and all its Pods, and removes what they left in memory: processes, mounts,
# network. Data stays. Written by pipeops-agent; it works without it.
# May be run again at any time. With --shutdown, when the machine goes down and k3s has
# stopped: ends its Pods within half a minute, and leaves the rest to the shutdown.
data="@DATA@"
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"
[ "$(id -u)" = 0 ] || { echo "needs root: sudo $0" >&2; exit 2; }

if [ "${1-}" = --shutdown ]; then
    :
elif [ -d /run/systemd/system ]; then
    systemctl stop @NAME@ 2>/dev/null
elif [ -x /etc/init.d/@NAME@ ]; then
    rc-service @NAME@ stop 2>/dev/null
fi

# The kernel names programs without links.
programs=$(readlink -f "$data" 2>/dev/null || printf '%s' "$data")/data
# A program that k3s unpacked: its directory is named by a SHA-256. Beside it others may have theirs.
is_part() {
    case $1 in
    "$programs"/*/bin/*) ;;
    *) return 1 ;;
    esac
    hash=${1#"$programs"/}
    hash=${hash%%/*}
    case $hash in
    *[!0-9a-f]*) return 1 ;;
    esac
    [ ${#hash} = 64 ]
}
# A shim of this k3s: one whose program it unpacked, or that serves the socket of k3s, wherever
# the data directory was.
is_shim() {
    case $2 in
    */containerd-shim*) ;;
    *) return 1 ;;
    esac
    is_part "$2" || tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -q ' /run/k3s/containerd/'
}
shims() {
    for process in /proc/[0-9]*; do
        program=$(readlink "$process/exe" 2>/dev/null) || continue
        process=${process#/proc/}
        ! is_shim "$process" "$program" || echo "$process"
    done
}
# The processes below these; with `first` only those right below, each the first of its container.
below() {
    depth=$1
    shift
    # The name of a program may have blanks and brackets in it: what counts is behind the last one.
    cat /proc/[0-9]*/stat 2>/dev/null | awk -v depth="$depth" -v tops="$*" '
        { child = $1; sub(/.*\) [A-Za-z] /, ""); above[child] = $1 }
        END {
            count = split(tops, top, " ")
            for (n = 1; n <= count; n++) is[top[n]] = 1
            for (process in above) {
                at = above[process]
                while (depth != "first" && !(at in is) && at in above) at = above[at]
                if (at in is) print process
            }
        }'
}
if [ "${1-}" = --shutdown ]; then
    shims=$(shims)
    # shellcheck disable=SC2046,SC2086
    kill $(below first $shims) 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        # shellcheck disable=SC2086
        [ -n "$(below all $shims)" ] || break
        sleep 1
    done
fi
for _ in 1 2 3; do
    found=
    for process in /proc/[0-9]*; do
        program=$(readlink "$process/exe" 2>/dev/null) || continue
        process=${process#/proc/}
        if is_shim "$process" "$program"; then
            found="$found $process $(below all "$process")"
        elif is_part "$program"; then
            found="$found $process"
        fi
    done
    [ -n "$found" ] || break
    # shellcheck disable=SC2086
    kill -9 $found 2>/dev/null
    sleep 1
done
[ "${1-}" != --shutdown ] || exit 0

unmount_below() {
    # The deepest first. What is mounted beside it, with a longer name, is another's.
    awk -v top="$1" 'index($2 "/", top) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r point; do
        umount -l "$point" 2>/dev/null
    done
}
unmount_below /run/k3s/
# It may be a link to another disk; the kernel names mounts without links.
kubelet=$(readlink -f /var/lib/kubelet 2>/dev/null) || kubelet=/var/lib/kubelet
unmount_below "$kubelet/pods/"
unmount_below "$kubelet/plugins/"

remove() {
    if awk -v top="$1/" 'index($2 "/", top) == 1 { found = 1 } END { exit !found }' /proc/self/mounts; then
        echo "left, because something is still mounted there: $1" >&2
    else
        rm -rf -- "$1"
    fi
}
remove /run/k3s
remove /run/flannel

networks_in_use() {
    for network in /proc/[0-9]*/ns/net; do
        readlink "$network" 2>/dev/null
    done
}
# Pods have ended: a network in which a process still is belongs to another runtime.
for space in /run/netns/cni-*; do
    [ -e "$space" ] || continue
    inode=$(stat -L -c %i "$space" 2>/dev/null) || continue
    if networks_in_use | grep -F "[$inode]" >/dev/null; then
        echo "left, because a process still uses it: $space" >&2
        continue
    fi
    ip netns delete "${space##*/}" 2>/dev/null
    umount -l "$space" 2>/dev/null
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
# The network of k3s is named cbr0; the rest is of other runtimes.
rm -rf /var/lib/cni/networks/cbr0 /var/lib/cni/results/cbr0-* /var/lib/cni/cache/results/cbr0-* /var/lib/cni/flannel
rmdir /var/lib/cni/networks /var/lib/cni/results /var/lib/cni/cache/results /var/lib/cni/cache /var/lib/cni 2>/dev/null

# The rules without those of k3s: of kube-proxy, of flannel, and of the network plugins for the
# network cbr0. The chains that all networks share go with the last network.
without_rules_of_k3s() {
    awk '
        { line[NR] = $0 }
        /^-A / && / -j CNI-/ && !/ -j CNI-HOSTPORT-/ && /name: \\?"cbr0\\?"/ { match($0, / -j CNI-[^ ]*/); own[substr($0, RSTART + 4, RLENGTH - 4)] = 1 }
        /^-A / && /name: \\?"/ && !/name: \\?"cbr0\\?"/ { others = 1 }
        END {
            for (n = 1; n <= NR; n++) {
                text = line[n]
                split(text, word, " ")
                chain = word[1] == "-A" ? word[2] : substr(word[1], 2)
                if (text ~ /^-A.*KUBE-/ || text ~ /^:KUBE-/ || text ~ /^-A.*flannel/ || text ~ /^:FLANNEL/) continue
                if (text ~ /^-A/ && text ~ /name: \\?"cbr0\\?"/) continue
                if (text ~ /^(-A |:)/ && chain in own) continue
                if (!others && (text ~ /^-A.*CNI-/ || text ~ /^:CNI-/) && text !~ /CNI-(FORWARD|ADMIN|ISOLATION)/) continue
                print text
            }
        }'
}
# k3s brings these programs along, for machines without.
PATH="$PATH:$programs/current/bin/aux"
for family in iptables ip6tables; do
    if ! command -v "$family-save" >/dev/null 2>&1; then
        [ "$family" = ip6tables ] || echo "left until the next boot, because there is no $family-save: rules in the firewall, if k3s made any" >&2
        continue
    fi
    rules=$("$family-save" 2>/dev/null) || continue
    rest=$(printf '%s\n' "$rules" | without_rules_of_k3s) || continue
    [ "$rest" = "$rules" ] || printf '%s\n' "$rest" | "$family-restore"
done
if command -v nft >/dev/null 2>&1; then
    for family in ip ip6; do
        nft delete table "$family" kube-proxy 2>/dev/null
    done
fi
exit 0
