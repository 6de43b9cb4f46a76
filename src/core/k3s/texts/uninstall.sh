#!/bin/sh
# Removes k3s with its data. Written by pipeops-agent; it works without it,
# and after an earlier run that did not come to its end.
data="@DATA@"
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"
[ "$(id -u)" = 0 ] || { echo "needs root: sudo $0" >&2; exit 2; }
[ -r /proc/self/mountinfo ] || { echo "cannot see what is mounted: mount /proc first, then: sudo $0" >&2; exit 1; }

# First the services of pipeops-agent for k3s, which would go on looking for it.
for service in pipeops-k3s-watch pipeops-k3s-connect pipeops-k3s-resume pipeops-k3s-shutdown; do
    unit=/etc/systemd/system/$service
    if [ -d /run/systemd/system ]; then
        for name in "$service.timer" "$service.service"; do
            [ -e "/etc/systemd/system/$name" ] || continue
            systemctl disable --now "$name" 2>/dev/null
            systemctl reset-failed "$name" 2>/dev/null
        done
    elif [ -x "/etc/init.d/$service" ]; then
        rc-service "$service" stop 2>/dev/null
        rc-update delete "$service" default 2>/dev/null
    fi
    rm -f "$unit.timer" "$unit.service" "/etc/init.d/$service" "/etc/runlevels/default/$service" "/etc/runlevels/shutdown/$service" \
        "/etc/systemd/system/timers.target.wants/$service.timer" "/etc/systemd/system/multi-user.target.wants/$service.service"
done
rm -rf /var/spool/pipeops-k3s
# Its note that k3s is managed here, in the place that its packages have.
rm -f /var/lib/pipeops-keeper/k3s.managed /var/lib/pipeops-keeper/k3s.managed.stopped
rm -f /run/pipeops-k3s/kubeconfig /run/pipeops-k3s/watch /run/pipeops-k3s/status /run/pipeops-k3s/doing
rmdir /run/pipeops-k3s 2>/dev/null

if [ -x /usr/local/bin/k3s-killall.sh ]; then
    /usr/local/bin/k3s-killall.sh
fi
if [ -d /run/systemd/system ]; then
    systemctl disable @NAME@ 2>/dev/null
    systemctl reset-failed @NAME@ 2>/dev/null
elif command -v rc-update >/dev/null 2>&1; then
    rc-update delete @NAME@ default 2>/dev/null
fi
for name in kubectl crictl ctr; do
    [ "$(readlink "/usr/local/bin/$name")" != k3s ] || rm -f "/usr/local/bin/$name"
done

# What another disk holds stays, and so does all at and below a mount point, also of the same disk.
# What other programs may use as well (/run/containerd) is left to the next boot.
remove() {
    if [ -L "$1" ] || [ ! -d "$1" ]; then
        rm -f -- "$1"
        return
    fi
    top=$(readlink -f -- "$1") && [ -n "$top" ] || return
    # A `?` stands for any letter: for those that the kernel escapes, and those that find interprets.
    mounts=$(awk '{ print $5 }' /proc/self/mountinfo | sed 's/\\[0-7][0-7][0-7]/?/g; s/[][*\\]/?/g')
    set --
    set -f
    for point in $mounts; do
        case $point/ in
        "$top"/*) set -- "$@" ! -path "$point" ! -path "$point/*" ;;
        *\?*) set -- "$@" ! -path "$point" ! -path "$point/*" ;;
        esac
    done
    set +f
    # It follows no link that somebody puts in the place of a directory; BusyBox may not have it.
    if find /dev/null -type d -delete 2>/dev/null; then
        find "$top" -xdev -depth "$@" -delete 2>/dev/null
    else
        find "$top" -xdev -depth ! -type d "$@" -exec rm -f -- {} + 2>/dev/null
        find "$top" -xdev -depth -type d "$@" -exec rmdir -- {} + 2>/dev/null
    fi
    [ ! -e "$top" ] || echo "left, because something is mounted there, or is not removable: $top" >&2
}
# The kubelet's directory may be a link to another disk, in a directory that others use, too.
for path in /etc/rancher/k3s /etc/rancher/node /var/lib/kubelet/pods /var/lib/kubelet/plugins /var/lib/kubelet /var/log/pods /var/log/containers /run/k3s /run/flannel \
    "$data/agent" "$data/server" "$data/storage"; do
    remove "$path"
done
# Of the data directory k3s made these, and what it unpacked; the rest is of others.
for path in "$data"/data/* "$data"/data/.lock; do
    name=${path##*/}
    hash=${name%-tmp}
    case $name in
    current | previous | cni | .lock) ;;
    *)
        case $hash in
        *[!0-9a-f]*) continue ;;
        esac
        [ ${#hash} = 64 ] || continue
        ;;
    esac
    remove "$path"
done
rmdir "$data/data" 2>/dev/null
[ -L "$data" ] || rmdir "$data" 2>/dev/null
for path in "$data"/* "$data"/.[!.]* "$data"/data/*; do
    case $path in
    "$data/agent" | "$data/server" | "$data/storage" | "$data/data" | */lost+found) continue ;;
    esac
    [ ! -e "$path" ] || echo "left, because k3s did not make it: $path" >&2
done
rm -f /etc/rancher/k3s-proxy.env
rmdir /etc/rancher /var/lib/rancher 2>/dev/null
rm -f /etc/systemd/system/@NAME@.service /etc/systemd/system/@NAME@.service.env /etc/init.d/@NAME@ /etc/logrotate.d/k3s /var/log/k3s.log /var/log/k3s.log.1 /var/log/k3s.log.2
for unit in @NAME@ pipeops-agent; do
    rm -f "/etc/systemd/system/$unit.service.d/50-pipeops-k3s.conf"
    rmdir "/etc/systemd/system/$unit.service.d" 2>/dev/null
done
[ ! -d /run/systemd/system ] || systemctl daemon-reload
rm -f /usr/local/bin/k3s /usr/local/bin/k3s-killall.sh
# The last thing, so that a run that was cut off can be repeated.
rm -f /usr/local/bin/@NAME@-uninstall.sh
