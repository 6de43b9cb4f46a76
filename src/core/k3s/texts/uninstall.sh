#!/bin/sh
# Removes k3s with its data. Written by pipeops-agent; it works without it,
# and after an earlier run that did not come to its end.
data="@DATA@"
export PATH="$PATH:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"
[ "$(id -u)" = 0 ] || { echo "needs root: sudo $0" >&2; exit 2; }

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

# What another disk holds stays, and so does a directory that is a disk. What other
# programs may use as well (/run/containerd, /run/netns) is left to the next boot.
remove() {
    [ -e "$1" ] || return 0
    find "$1" -xdev -depth ! -type d -exec rm -f -- {} \; 2>/dev/null
    find "$1" -xdev -depth -type d -exec rmdir -- {} \; 2>/dev/null
    [ ! -e "$1" ] || echo "left: $1" >&2
}
for path in "$data" /etc/rancher/k3s /etc/rancher/node /var/lib/kubelet /var/log/pods /var/log/containers \
    /run/k3s /run/flannel; do
    remove "$path"
done
rmdir /etc/rancher 2>/dev/null
rm -f /etc/systemd/system/@NAME@.service /etc/systemd/system/@NAME@.service.env /etc/init.d/@NAME@ /etc/logrotate.d/k3s /var/log/k3s.log /var/log/k3s.log.1 /var/log/k3s.log.2
[ ! -d /run/systemd/system ] || systemctl daemon-reload
rm -f /usr/local/bin/k3s /usr/local/bin/k3s-killall.sh
# The last thing, so that a run that was cut off can be repeated.
rm -f /usr/local/bin/@NAME@-uninstall.sh
