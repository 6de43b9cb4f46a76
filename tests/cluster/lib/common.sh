# shellcheck shell=bash
# What all commands share: where things are, how progress is told, how to reach the
# inside of a cluster.

KUBERNETES_VERSION=v1.34.4
# Clients of the same API, two minors older: what clients/go.mod asks for.
CLIENTS_VERSION=v1.32.9
K3S_VERSION=v1.34.4+k3s1
GO_VERSION=go1.25.1
NODE=bench
CACHE=${PIPEOPS_TEST_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/pipeops-agent-test}
IMAGE=pipeops-test.invalid/testpod:1
PAUSE_IMAGE=pipeops-test.invalid/pause:1
STARTED_MS=$(date +%s%3N)

# Progress goes to stderr with the seconds since the start; stdout is for the one line
# that a program reads.
say() {
    local ms=$(($(date +%s%3N) - STARTED_MS))
    printf 'cluster %3d.%d s  %s\n' $((ms / 1000)) $((ms % 1000 / 100)) "$*" >&2
}

die() {
    printf 'cluster: %s\n' "$*" >&2
    exit 1
}

# 75 is EX_TEMPFAIL: nothing is wrong with the program, this machine cannot do it.
skip() {
    printf 'skipped: %s\n' "$*"
    exit 75
}

have() { command -v "$1" >/dev/null 2>&1; }

# Names and places that follow from the directory. The directory is the cluster's
# identity: the same directory is the same cluster, whoever asks.
place() {
    DIR=$(realpath -m -- "${1:-$(default_dir)}")
    case $DIR in
    *[!A-Za-z0-9._/@+-]*) die "the directory must be a plain path (letters, digits, . _ / @ + -): $DIR" ;;
    / | /run | /run/* | /var/lib | /var/lib/* | /var/log | /var/log/* | /proc/* | /sys/* | /dev/* | /etc | /etc/*)
        # These are covered by the cluster's own inside it.
        die "the cluster's state cannot live in $DIR: choose a directory below /tmp, /home or the checkout" ;;
    esac
    ID=$(printf '%s' "$DIR" | sha256sum | cut -c1-8)
    LINK=pt-$ID
    CGROUP=pipeops-test-$ID
    MARKER=$DIR/.pipeops-test-cluster
}

default_dir() { printf '%s/target/cluster' "$(cd "$HERE/../.." && pwd -P)"; }

# One command at a time per cluster. Descriptor 9 holds the lock; what is started for
# good gets it closed (9>&-), or the lock would live as long as the cluster.
lock() {
    mkdir -p "$DIR"
    exec 9<"$DIR"
    flock --timeout 300 9 || die "another command has held $DIR for 5 min"
}

# The process that is process 1 inside; empty if there is none. It is found by its
# arguments, not by a file: a killed "up" may not have written one.
init_pid() {
    local file argument=()
    for file in /proc/[0-9]*/cmdline; do
        mapfile -d '' -t argument 2>/dev/null <"$file" || continue
        if [[ ${argument[0]-} == bash && ${argument[1]-} == */lib/inside && ${argument[2]-} == "$DIR" ]]; then
            file=${file%/cmdline}
            printf '%s' "${file#/proc/}"
            return 0
        fi
    done
    return 0
}

# Runs a command inside the cluster: its network, its mounts, its processes.
within() {
    nsenter --target "$INIT" --net --mount --pid -- "$@" 9>&-
}

need_running() {
    INIT=$(init_pid)
    [[ -n $INIT && -f $DIR/env ]] || die "no cluster runs in $DIR; fix: $0 up $DIR"
    # shellcheck source=/dev/null
    . "$DIR/run/network"
    BIN=$(cat "$DIR/run/bin")
    SOURCE=$(cat "$DIR/run/source")
}

# Starts a daemon inside, with nothing of the caller's environment, and notes how, so
# that it can be started again.
launch() {
    local name=$1
    shift
    printf '%s\0' "$@" >"$DIR/run/$name.command"
    relaunch "$name"
}

relaunch() {
    local name=$1 command
    mapfile -d '' -t command <"$DIR/run/$name.command"
    # shellcheck disable=SC2016 # expanded by the inner shell
    within env -i PATH="$BIN:$TOOLS_PATH" HOME=/ AWS_EC2_METADATA_DISABLED=true \
        bash -c 'log=$1 pid=$2; shift 2; cd /; setsid "$@" </dev/null >>"$log" 2>&1 & printf %s $! >"$pid"' \
        "$name" "$DIR/log/$name.log" "$DIR/run/$name.pid" "${command[@]}"
}

# Ends a daemon: asks first, and insists after three seconds.
halt() {
    local name=$1 signal=${2:-TERM}
    [[ -f $DIR/run/$name.pid ]] || return 0
    # shellcheck disable=SC2016 # expanded by the inner shell
    within bash -c 'kill -"$2" "$1" 2>/dev/null || exit 0
        for _ in {1..60}; do kill -0 "$1" 2>/dev/null || exit 0; sleep 0.05; done
        kill -KILL "$1" 2>/dev/null
        while kill -0 "$1" 2>/dev/null; do sleep 0.02; done' \
        "$name" "$(cat "$DIR/run/$name.pid")" "$signal"
    rm -f "$DIR/run/$name.pid"
}

# The process id that the host knows a daemon by.
host_pid() {
    local wanted status
    wanted=$(cat "$DIR/run/$1.pid" 2>/dev/null) || return 0
    while IFS=: read -r status _; do
        status=${status%/status}
        if [[ $(readlink "$status/ns/pid") == "$(readlink "/proc/$INIT/ns/pid")" ]]; then
            printf '%s' "${status#/proc/}"
            return
        fi
    done < <(grep -sE "^NSpid:.*[[:space:]]$wanted\$" /proc/[0-9]*/status)
}

# In the background, because a shell looks at its signals only between two commands, but
# at once in "wait".
await() {
    "$BIN/await" -ca "$DIR/server/tls/server-ca-both.crt" -cert "$DIR/server/tls/client-admin.crt" \
        -key "$DIR/server/tls/client-admin.key" -server "https://$ADDRESS:6443" -node "$NODE" "$@" 9>&- &
    wait $!
}

kubectl() { KUBECONFIG=${ADMIN_KUBECONFIG:-$DIR/kubeconfig.yaml} "$BIN/kubectl" "$@"; }
