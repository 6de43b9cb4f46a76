# shellcheck shell=bash
# up, down, status: the life of a cluster.

cluster_up() {
    local owner=
    while (($# > 0)); do
        case $1 in
        --owner) owner=${2:?--owner needs a process id} && shift ;;
        *) die "up does not know $1" ;;
        esac
        shift
    done
    check_machine
    prepare_sources
    lock
    local follow=$owner wanted=$SOURCE programs=$BIN
    if is_up; then
        say "already up"
        # What somebody started to stay is not taken down, and what is asked for without
        # an owner stays from now on.
        [[ -d $DIR/run/owners ]] || follow=
        [[ -n $owner ]] || rm -rf "${DIR:?}/run/owners"
    else
        SOURCE=$wanted
        BIN=$programs
        local began=$STARTED_MS
        STARTED_MS=$(date +%s%3N)
        [[ ! -e $MARKER ]] || rm -rf --one-file-system "${DIR:?}/log"
        start_or_fall_back
        say "up after $(($(date +%s%3N) - STARTED_MS)) ms"
        STARTED_MS=$began
    fi
    [[ -z $follow ]] || follow_owner "$follow"
    printf 'ready kubeconfig=%s api=https://%s:6443 node=%s source=%s env=%s\n' \
        "$DIR/kubeconfig.yaml" "$ADDRESS" "$NODE" "$SOURCE" "$DIR/env"
}

# What no package can mend.
check_machine() {
    [[ $(id -u) == 0 ]] || skip "needs root (network, mount and process namespaces)"
    check_machine_to_build
    unshare --net --mount --pid --fork true 2>/dev/null ||
        skip "the kernel does not let this user make namespaces (a container without privileges?)"
    [[ -e /sys/fs/cgroup/memory || -e /sys/fs/cgroup/cgroup.controllers ]] ||
        skip "no memory cgroup below /sys/fs/cgroup"
}

check_machine_to_build() {
    [[ $(uname -s) == Linux ]] || skip "needs Linux, this is $(uname -s)"
    machine >/dev/null || skip "no test cluster for $(uname -m) machines"
}

# Sets SOURCE (k3s or build) and BIN. The helpers are built in both cases.
prepare_sources() {
    mkdir -p "$CACHE"
    find_k3s
    build
    install_dependencies run
    SOURCE=build
    [[ -z $K3S ]] || SOURCE=k3s
}

# Up is what is of use as it is. A cluster that a test has left without its API server,
# cut off, or with a certificate from another CA is started anew.
is_up() {
    INIT=$(init_pid)
    [[ -n $INIT && -f $DIR/env ]] || return 1
    need_running
    await -until node -ca "$DIR/server/tls/server-ca.crt" -within 10s && return
    say "what runs in $DIR is of no use as it is: starting anew"
    return 1
}

# A k3s from the internet that does not run here must not cost the tests their cluster.
start_or_fall_back() {
    if [[ $SOURCE == k3s && $K3S_FROM == release ]]; then
        if (start); then
            need_running
            return
        fi
        say "k3s $K3S_VERSION did not come up here (see $DIR/log); taking the build from now on"
        : >"$CACHE/k3s-unfit"
        SOURCE=build
    fi
    start
    need_running
}

start() {
    # Also after a Ctrl-C. Only kill -9 leaves something for "down" to do.
    trap give_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    clear_away
    mkdir -p "$DIR"/{run,log,server/db,agent}
    chmod 700 "$DIR/server"
    : >"$MARKER"
    printf '%s' "$BIN" >"$DIR/run/bin"
    printf '%s' "$SOURCE" >"$DIR/run/source"
    cgroup_up
    inside_up
    network_up
    say "namespaces are ready, network $NETWORK"
    if [[ $SOURCE == k3s ]]; then
        start_k3s
    else
        start_parts
    fi
    await_or_tell -until node -within 180s
    say "node $NODE is Ready"
    write_env
    trap - EXIT HUP INT TERM
}

# (In a trap a bare "return" gives the status from before it: nothing here may depend on
# one.)
give_up() {
    set +e
    trap '' HUP INT TERM
    say "not up: taking down what was started"
    stop_inside
    network_down
    cgroup_down
}

await_or_tell() {
    local file
    await "$@" && return
    for file in "$DIR"/log/*.log; do
        printf -- '--- the end of %s\n' "$file" >&2
        tail -n 5 "$file" >&2
    done
    die "the cluster in $DIR did not come up; its logs: $DIR/log"
}

# The processes of a cluster live in cgroups of their own, so that several kubelets do
# not count, or remove, each other's pods.
cgroup_up() {
    local hierarchy
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        hand_down_controllers
        mkdir -p "/sys/fs/cgroup/$CGROUP"
        return
    fi
    for hierarchy in /sys/fs/cgroup/*/; do
        # Links such as cpu,cpuacct and the version 2 tree of a hybrid set-up aside.
        [[ -e $hierarchy/cgroup.procs && ! -e $hierarchy/cgroup.controllers ]] || continue
        mkdir -p "$hierarchy$CGROUP"
        if [[ -e $hierarchy/cpuset.cpus ]]; then
            cat "$hierarchy/cpuset.cpus" >"$hierarchy$CGROUP/cpuset.cpus"
            cat "$hierarchy/cpuset.mems" >"$hierarchy$CGROUP/cpuset.mems"
        fi
    done
}

# In a version 2 tree a child has only the controllers that the root hands down; the
# kubelet refuses to start without all that the machine has. systemd and every container
# runtime hand them down too, so this is not taken back.
hand_down_controllers() {
    local root=/sys/fs/cgroup controller
    for controller in cpuset cpu io memory hugetlb pids; do
        grep -qw "$controller" $root/cgroup.controllers || continue
        grep -qw "$controller" $root/cgroup.subtree_control && continue
        { echo "+$controller" >$root/cgroup.subtree_control; } 2>/dev/null ||
            skip "the cgroup controller $controller cannot be handed down here (a container without a cgroup tree of its own?)"
    done
}

cgroup_down() {
    local attempt left tree
    # A cgroup stays busy for a moment after its last process.
    for attempt in {1..100}; do
        left=0
        for tree in /sys/fs/cgroup/"$CGROUP" /sys/fs/cgroup/*/"$CGROUP"; do
            [[ ! -d $tree ]] || find "$tree" -depth -type d -exec rmdir {} \; 2>/dev/null || true
            [[ ! -d $tree ]] || left=1
        done
        ((left)) || return 0
        sleep 0.05
    done
    say "cgroups $CGROUP could not be removed ($attempt attempts)"
}

inside_up() {
    mkdir -p "$DIR/host"
    [[ $SOURCE == k3s ]] && : >"$DIR/host/etc-overlay"
    # A session of its own: a Ctrl-C or a signal to the caller's group is not meant for it.
    setsid unshare --net --mount --pid --fork --kill-child --mount-proc \
        bash "$HERE/lib/inside" "$DIR" </dev/null >>"$DIR/log/inside.log" 2>&1 7>&- 8>&- 9>&- &
    disown
    local attempt
    for attempt in {1..200}; do
        [[ -e $DIR/run/inside-ready ]] && INIT=$(init_pid) && [[ -n $INIT ]] && return
        sleep 0.02
    done
    tail -n 5 "$DIR/log/inside.log" >&2
    die "the cluster's namespaces were not ready after $attempt looks"
}

start_parts() {
    "$BIN/pki" init "$DIR" -address "$ADDRESS" -service "$SERVICE_ADDRESS" -node "$NODE"
    write_configurations
    launch kine "$BIN/kine" --endpoint "sqlite://$DIR/server/db/state.db?_journal=WAL&cache=shared&_busy_timeout=30000&_txlock=immediate" \
        --listen-address unix:///run/k3s/kine.sock --metrics-bind-address 0
    launch_apiserver
    launch containerd "$(find_tool containerd)" --config "$DIR/agent/containerd.toml"
    import_images
    say "containerd runs; waiting for the API server"
    # Not earlier: the kubelet doubles its pause up to 7 s while nobody listens.
    await_or_tell -until listening -within 180s
    launch kubelet "$BIN/kubelet" --kubeconfig="$DIR/agent/kubelet.kubeconfig" --config="$DIR/agent/kubelet.yaml" \
        --root-dir=/var/lib/kubelet --cert-dir=/var/lib/kubelet/pki --hostname-override="$NODE" --node-ip="$ADDRESS"
    await_or_tell -until api -within 180s
    say "the API server answers"
    launch_controllers
    launch kube-scheduler "$BIN/kube-scheduler" --kubeconfig="$DIR/server/cred/scheduler.kubeconfig" --leader-elect=false \
        --authentication-kubeconfig="$DIR/server/cred/scheduler.kubeconfig" --authorization-kubeconfig="$DIR/server/cred/scheduler.kubeconfig" \
        --bind-address=127.0.0.1 --tls-cert-file="$DIR/server/tls/kube-scheduler.crt" --tls-private-key-file="$DIR/server/tls/kube-scheduler.key"
    launch kube-proxy "$BIN/kube-proxy" --config="$DIR/agent/kube-proxy.yaml" --hostname-override="$NODE"
}

launch_controllers() {
    local kubeconfig=$DIR/server/cred/controller.kubeconfig tls=$DIR/server/tls
    launch kube-controller-manager "$BIN/kube-controller-manager" \
        --kubeconfig="$kubeconfig" --authentication-kubeconfig="$kubeconfig" --authorization-kubeconfig="$kubeconfig" \
        --use-service-account-credentials --leader-elect=false --kube-api-qps=100 --kube-api-burst=200 \
        --service-account-private-key-file="$tls/service.key" --root-ca-file="$tls/server-ca.crt" \
        --cluster-signing-cert-file="$tls/client-ca.crt" --cluster-signing-key-file="$tls/client-ca.key" \
        --allocate-node-cidrs --cluster-cidr="$POD_CIDR" --node-cidr-mask-size=24 --service-cluster-ip-range="$SERVICE_CIDR" \
        --bind-address=127.0.0.1 --tls-cert-file="$tls/kube-controller-manager.crt" --tls-private-key-file="$tls/kube-controller-manager.key"
}

launch_apiserver() {
    local tls=$DIR/server/tls
    launch kube-apiserver "$BIN/kube-apiserver" \
        --etcd-servers=unix:///run/k3s/kine.sock --storage-backend=etcd3 \
        --bind-address=0.0.0.0 --secure-port=6443 --advertise-address="$ADDRESS" --cert-dir="$tls/temporary" \
        --tls-cert-file="$tls/serving-kube-apiserver.crt" --tls-private-key-file="$tls/serving-kube-apiserver.key" \
        --client-ca-file="$tls/client-ca.crt" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --allow-privileged=true --service-cluster-ip-range="$SERVICE_CIDR" \
        --service-account-key-file="$tls/service.key" --service-account-signing-key-file="$tls/service.key" \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local --api-audiences=https://kubernetes.default.svc.cluster.local,k3s \
        --kubelet-certificate-authority="$tls/server-ca.crt" --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname \
        --kubelet-client-certificate="$tls/client-kube-apiserver.crt" --kubelet-client-key="$tls/client-kube-apiserver.key" \
        --requestheader-client-ca-file="$tls/request-header-ca.crt" --requestheader-allowed-names=system:auth-proxy \
        --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group --requestheader-username-headers=X-Remote-User \
        --proxy-client-cert-file="$tls/client-auth-proxy.crt" --proxy-client-key-file="$tls/client-auth-proxy.key"
}

import_images() {
    local attempt socket=/run/k3s/containerd/containerd.sock ctr
    ctr=$(find_tool ctr)
    for attempt in {1..200}; do
        within test -S "$socket" && break
        sleep 0.05
    done
    within "$ctr" --address "$socket" --namespace k8s.io images import "$BIN/images.tar" >>"$DIR/log/images.log" 2>&1 ||
        die "cannot import the images (attempt after $attempt looks): $(tail -n 1 "$DIR/log/images.log"); see $DIR/log/containerd.log"
}

write_configurations() {
    local snapshotter=overlayfs
    # An overlay cannot lie on an overlay, as in a container.
    [[ $(stat -f -c %T "$DIR") != overlayfs ]] || snapshotter=native
    mkdir -p "$DIR/agent/cni"
    cat >"$DIR/agent/containerd.toml" <<TOML
version = 2
root = "$DIR/agent/containerd"
state = "/run/k3s/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "/run/k3s/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "$(cni_plugins)"
  conf_dir = "$DIR/agent/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "$snapshotter"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "$(find_tool runc)"
TOML
    # ptp and not bridge: every packet is routed, so that a Service whose pod is on the
    # same node works without the kernel's br_netfilter.
    cat >"$DIR/agent/cni/10-test.conflist" <<JSON
{
  "cniVersion": "0.4.0",
  "name": "test",
  "plugins": [{
    "type": "ptp",
    "ipMasq": false,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
JSON
    cat >"$DIR/agent/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $DIR/server/tls/client-ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $DIR/agent/serving-kubelet.crt
tlsPrivateKeyFile: $DIR/agent/serving-kubelet.key
containerRuntimeEndpoint: unix:///run/k3s/containerd/containerd.sock
volumePluginDir: /var/lib/kubelet/plugins-exec
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failSwapOn: false
failCgroupV1: false
enforceNodeAllocatable: []
resolvConf: /dev/null
clusterDomain: cluster.local
clusterDNS: ["$DNS_ADDRESS"]
# A full disk of the machine is not what is tested: our images cannot be pulled again.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "1Mi", nodefs.available: "0.1%", nodefs.inodesFree: "0.1%", imagefs.available: "0.1%"}
YAML
    cat >"$DIR/agent/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $DIR/agent/kubeproxy.kubeconfig}
clusterCIDR: $POD_CIDR
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
# The limits of the machine's connection tracking are not ours to set.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 0s, syncPeriod: 30s}
YAML
}

# A real k3s, with what the tests do not use left out. It makes its own certificates.
start_k3s() {
    mkdir -p "$DIR/agent/images"
    cp "$BIN/images.tar" "$DIR/agent/images/testpod.tar"
    cp "$K3S" "$DIR/run/k3s"
    launch k3s "$DIR/run/k3s" server --data-dir="$DIR" --write-kubeconfig="$DIR/k3s.yaml" --write-kubeconfig-mode=0600 \
        --node-name="$NODE" --node-ip="$ADDRESS" --advertise-address="$ADDRESS" --bind-address=0.0.0.0 --tls-san="$ADDRESS" \
        --cluster-cidr="$POD_CIDR" --service-cidr="$SERVICE_CIDR" --cluster-dns="$DNS_ADDRESS" \
        --kube-controller-manager-arg=node-cidr-mask-size=24 --flannel-backend=host-gw --egress-selector-mode=disabled \
        --disable=coredns,servicelb,traefik,local-storage,metrics-server --disable-network-policy \
        --disable-cloud-controller --disable-helm-controller --pause-image="$PAUSE_IMAGE" \
        --kubelet-arg=cgroup-root="/$CGROUP" --kubelet-arg=fail-cgroupv1=false
    say "k3s started; waiting for its API server"
    local attempt
    for attempt in {1..600}; do
        [[ -s $DIR/k3s.yaml && -s $DIR/server/tls/client-admin.crt && -s $DIR/server/tls/server-ca.crt ]] && break
        within kill -0 "$(cat "$DIR/run/k3s.pid")" 2>/dev/null || break
        sleep 0.1
    done
    [[ -s $DIR/k3s.yaml ]] || die "k3s wrote no kubeconfig (${attempt} looks): $(tail -n 1 "$DIR/log/k3s.log")"
    cp "$DIR/server/tls/server-ca.crt" "$DIR/server/tls/server-ca-both.crt"
    sed "s#https://127.0.0.1:6443#https://$ADDRESS:6443#" "$DIR/k3s.yaml" >"$DIR/kubeconfig.yaml.next"
    chmod 600 "$DIR/kubeconfig.yaml.next"
    mv "$DIR/kubeconfig.yaml.next" "$DIR/kubeconfig.yaml"
    await_or_tell -until api -within 180s
    say "the API server answers"
}

# Shell variables for whoever uses the cluster.
write_env() {
    local name variable
    {
        printf 'KUBECONFIG=%s\nKUBECTL=%s\n' "$DIR/kubeconfig.yaml" "$BIN/kubectl"
        printf 'API_SERVER=https://%s:6443\nNODE_NAME=%s\nNODE_ADDRESS=%s\nHOST_ADDRESS=%s\n' "$ADDRESS" "$NODE" "$ADDRESS" "$HOST_ADDRESS"
        printf 'POD_CIDR=%s\nSERVICE_CIDR=%s\nHOST_LINK=%s\n' "$POD_CIDR" "$SERVICE_CIDR" "$LINK"
        printf 'SOURCE=%s\nKUBERNETES_VERSION=%s\nIMAGE=%s\nINIT_PID=%s\n' "$SOURCE" "$KUBERNETES_VERSION" "$IMAGE" "$INIT"
        for name in "$DIR"/run/*.pid; do
            name=$(basename "$name" .pid)
            variable=${name//-/_}
            printf '%s_PID=%s\n' "${variable^^}" "$(host_pid "$name")"
        done
    } >"$DIR/env.next"
    mv "$DIR/env.next" "$DIR/env"
}

# Takes the cluster down when the process that asked for it is gone, however it ended,
# unless another one has asked for the same cluster in the meantime.
follow_owner() {
    kill -0 "$1" 2>/dev/null || die "--owner: there is no process $1"
    mkdir -p "$DIR/run/owners"
    : >"$DIR/run/owners/$1"
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid bash -c 'while kill -0 "$1" 2>/dev/null; do sleep 0.5; done; exec "$2" down "$3" --unless-owned' \
        owner "$1" "$HERE/cluster" "$DIR" </dev/null >/dev/null 2>&1 7>&- 8>&- 9>&- &
    disown
}

# Without a folder of owners somebody started it to stay.
may_stay() {
    local file
    [[ -d $DIR/run/owners ]] || return 0
    for file in "$DIR"/run/owners/*; do
        [[ -e $file ]] && kill -0 "${file##*/}" 2>/dev/null && return
    done
    return 1
}

cluster_down() {
    [[ $(id -u) == 0 ]] || skip "needs root"
    if [[ ! -d $DIR ]]; then
        # The directory was removed under a running cluster.
        stop_inside
        network_down
        cgroup_down
        return
    fi
    lock
    if [[ ${1:-} == --unless-owned ]] && may_stay; then
        say "stays up: it is wanted"
        return
    fi
    clear_away
    say "down"
}

# Ends what runs, and removes the state of an earlier life but its logs. Each step is
# right whatever the others left: after a crash any of them may have something to do.
clear_away() {
    # What runs as this directory's cluster makes it one, should the marker be lost.
    [[ -z $(init_pid) ]] || : >"$MARKER"
    stop_inside
    network_down
    cgroup_down
    if [[ ! -e $MARKER ]]; then
        [[ -z $(ls -A "$DIR") ]] || die "$DIR is neither empty nor a test cluster's directory: nothing was removed"
        return
    fi
    local part
    for part in run server agent host data env env.next kubeconfig.yaml kubeconfig-next-ca.yaml k3s.yaml tokens; do
        rm -rf --one-file-system "${DIR:?}/$part"
    done
}

# With its process 1 the kernel ends everything inside, and with the last process the
# mounts and all networks go.
stop_inside() {
    local pid parent
    pid=$(init_pid)
    [[ -n $pid ]] || return 0
    parent=$(awk '/^PPid:/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || true
    kill -KILL "$pid" 2>/dev/null || true
    # The whole tree is reaped before process 1 disappears; then unshare, which had
    # started it, ends by itself.
    for _ in {1..500}; do
        if [[ ! -e /proc/$pid ]]; then
            # (A "Z" has ended; whoever adopted it will notice.)
            [[ $(cut -d' ' -f2,3 "/proc/$parent/stat" 2>/dev/null) == "(unshare) "[!Z] ]] || return 0
        fi
        sleep 0.02
    done
    die "process $pid of the cluster does not end"
}

cluster_status() {
    local file name
    need_running
    printf 'cluster in %s: %s, process 1 is %s, network %s\n' "$DIR" "$SOURCE" "$INIT" "$NETWORK"
    for file in "$DIR"/run/*.command; do
        name=$(basename "$file" .command)
        printf '  %-24s %s\n' "$name" "$(process_line "$name")"
    done
    printf 'export KUBECONFIG=%s\n' "$DIR/kubeconfig.yaml"
    kubectl get nodes --request-timeout=5s
}

process_line() {
    local pid
    pid=$(host_pid "$1")
    if [[ -n $pid ]]; then
        printf 'pid %s, %s MB' "$pid" "$(awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$pid/status")"
    else
        printf 'not running'
    fi
}

cluster_kubectl() {
    need_running
    kubectl "$@"
}

cluster_fixtures() {
    need_running
    kubectl create namespace fixtures --dry-run=client -o yaml | kubectl apply -f - >&2
    # Pods cannot be made before the controller manager has made this account.
    kubectl -n fixtures wait --for=create serviceaccount/default --timeout=30s >&2
    kubectl apply -f "$HERE/fixtures" >&2
    kubectl -n fixtures rollout status deployment/echo --timeout=60s >&2
    kubectl -n fixtures wait pod/logger pod/shell --for=condition=Ready --timeout=60s >&2
    say "fixtures are ready in namespace fixtures"
}
