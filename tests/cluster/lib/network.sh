# shellcheck shell=bash
# The cluster's one cable to the host. Nothing of the host's firewall, forwarding or
# routes is touched but one link and one route to the cluster's own addresses. The
# network namespace has no name: it ends with the processes in it, whatever happens.

# A cluster has 1,024 addresses of 10.213.0.0/16 (k3s uses 10.42 and 10.43, Docker
# 172.17 to 172.31 and 192.168): 64 clusters side by side.
#   .0.0/30 host (.1) and cluster (.2)   .1.0/24 pods   .2.0/24 Services
network_plan() {
    local first number base
    first=$((16#${ID:0:4}))
    for number in {0..63}; do
        base=$(((first + number) % 64 * 4))
        if network_is_free "10.213.$base.0/22"; then
            NETWORK=10.213.$base.0/22
            HOST_ADDRESS=10.213.$base.1
            ADDRESS=10.213.$base.2
            POD_CIDR=10.213.$((base + 1)).0/24
            SERVICE_CIDR=10.213.$((base + 2)).0/24
            SERVICE_ADDRESS=10.213.$((base + 2)).1
            DNS_ADDRESS=10.213.$((base + 2)).10
            return
        fi
    done
    skip "no free network in 10.213.0.0/16 on this machine"
}

# Free: no route into it, and none that contains it but the default route.
network_is_free() {
    [[ -z $(ip -4 route show table all root "$1") ]] &&
        ! ip -4 route show table all match "$1" | grep -qv '^default\|^unreachable default'
}

network_up() {
    local variable
    # Between looking for a free network and taking it nobody else may look.
    exec 7</run
    flock --timeout 180 7 || die "another cluster has held /run for 3 min"
    network_plan
    for variable in NETWORK HOST_ADDRESS ADDRESS POD_CIDR SERVICE_CIDR SERVICE_ADDRESS DNS_ADDRESS; do
        printf '%s=%s\n' "$variable" "${!variable}"
    done >"$DIR/run/network"
    ip link add "$LINK" type veth peer name eth0 netns "$INIT"
    ip address add "$HOST_ADDRESS/30" dev "$LINK"
    ip link set "$LINK" up
    ip route add "$NETWORK" via "$ADDRESS" dev "$LINK" onlink
    exec 7<&-
    # ClusterIPs need a route before the address is translated; the rest of the world is
    # not there, and says so at once. (k3s insists on a default route.)
    local routes="route add $SERVICE_CIDR via $HOST_ADDRESS"$'\n'"route add unreachable default"
    [[ $SOURCE != k3s ]] || routes="route add default via $HOST_ADDRESS"
    within ip -batch - <<COMMANDS
link set lo up
address add $ADDRESS/30 dev eth0
link set eth0 up
$routes
COMMANDS
    # /proc/sys/net is that of the namespace of the process that opens it. Without the
    # last three, "connection refused" for a Service with nothing behind it is lost among
    # redirects: the host's packets to ClusterIPs come and go by the same cable.
    within sh -c 'cd /proc/sys/net/ipv4 && echo 1 >ip_forward && echo 0 >icmp_ratelimit &&
        echo 0 >conf/all/send_redirects && echo 0 >conf/eth0/send_redirects'
}

network_down() {
    # Deleted by name and not left to the kernel, which takes a moment to notice.
    ip link delete "$LINK" 2>/dev/null || true
}

# "Black hole" and "reset" between host and cluster, made inside the cluster's own
# namespace; what is inside goes on talking to itself.
cluster_cut() {
    local how=${1:-drop} verdict
    lock
    need_running
    case $how in
    drop) verdict="drop" ;;
    reset) verdict="meta l4proto tcp reject with tcp reset" ;;
    *) die "cut knows drop and reset, not $how" ;;
    esac
    within env PATH="$TOOLS_PATH" nft -f - <<RULES
table inet cut
delete table inet cut
table inet cut {
    chain arriving { type filter hook input priority -300; iifname "eth0" $verdict; iifname "eth0" drop; }
    chain passing { type filter hook forward priority -300; iifname "eth0" $verdict; iifname "eth0" drop; }
}
RULES
    say "cut ($how)"
}

cluster_mend() {
    lock
    need_running
    within env PATH="$TOOLS_PATH" nft delete table inet cut 2>/dev/null || true
    say "mended"
}
