# shellcheck shell=bash
# Where the programs come from: the machine's packages, a k3s release, or the build.
# Everything is kept below $CACHE, outside the checkout; nothing is installed but plain
# tools without services.

# CNI plugins and private copies of container programs are looked for here too.
PACKAGES=$CACHE/packages
TOOLS_PATH=$PACKAGES/usr/bin:$PACKAGES/usr/sbin:$PACKAGES/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Tools that are installed as packages (program:package) to build and to run, and
# container programs that are only unpacked into the cache: installing Debian's
# containerd would start a service, and would throw out a Docker that brought its own.
TO_BUILD=(flock:util-linux tar:tar gcc:gcc)
TO_RUN=(ip:iproute2 nft:nftables nsenter:util-linux flock:util-linux)
UNPACKED=(containerd:containerd ctr:containerd containerd-shim-runc-v2:containerd runc:runc)

find_tool() { PATH=$TOOLS_PATH:$PATH command -v "$1" 2>/dev/null; }

cni_plugins() {
    local dir
    for dir in "$PACKAGES/usr/lib/cni" /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do
        [[ -x $dir/ptp && -x $dir/host-local && -x $dir/loopback ]] && printf '%s' "$dir" && return
    done
    return 1
}

static_busybox() {
    local file
    for file in "$PACKAGES/bin/busybox" "$PACKAGES/usr/bin/busybox" /bin/busybox /usr/bin/busybox; do
        # The image holds no libraries, so only a static one runs there.
        [[ -x $file ]] && ! ldd "$file" >/dev/null 2>&1 && printf '%s' "$file" && return
    done
    return 1
}

# Sets TO_INSTALL and TO_UNPACK to the packages whose programs are missing to "build",
# to "run", or for both ("all").
missing_packages() {
    local purpose=$1 entry wanted=()
    TO_INSTALL=() TO_UNPACK=()
    if [[ $purpose != run ]]; then
        wanted+=("${TO_BUILD[@]}")
        # kine holds SQLite, which is C.
        [[ -e /usr/include/stdlib.h ]] || TO_INSTALL+=(libc6-dev)
        static_busybox >/dev/null || TO_UNPACK+=(busybox-static)
    fi
    if [[ $purpose != build ]]; then
        wanted+=("${TO_RUN[@]}")
        for entry in "${UNPACKED[@]}"; do
            find_tool "${entry%%:*}" >/dev/null || TO_UNPACK+=("${entry#*:}")
        done
        cni_plugins >/dev/null || TO_UNPACK+=(containernetworking-plugins)
    fi
    for entry in "${wanted[@]}"; do
        find_tool "${entry%%:*}" >/dev/null || TO_INSTALL+=("${entry#*:}")
    done
    mapfile -t TO_INSTALL < <(printf '%s\n' "${TO_INSTALL[@]}" | sort -u | sed '/^$/d')
    mapfile -t TO_UNPACK < <(printf '%s\n' "${TO_UNPACK[@]}" | sort -u | sed '/^$/d')
}

install_dependencies() {
    local purpose=$1
    missing_packages "$purpose"
    if ((${#TO_INSTALL[@]} + ${#TO_UNPACK[@]} == 0)); then
        return 0
    fi
    if ! have apt-get; then
        skip "missing here: ${TO_INSTALL[*]} ${TO_UNPACK[*]} (Debian's package names); install them and try again"
    fi
    if ((${#TO_INSTALL[@]} > 0)); then
        if [[ $(id -u) != 0 ]]; then
            skip "missing packages; run: sudo apt-get install -y --no-install-recommends ${TO_INSTALL[*]}"
        fi
        say "installing packages: ${TO_INSTALL[*]}"
        # --no-remove: rather fail than replace something of the user's.
        apt_get install -y --no-install-recommends --no-remove "${TO_INSTALL[@]}" ||
            skip "cannot install ${TO_INSTALL[*]}; run: apt-get update && apt-get install ${TO_INSTALL[*]}"
    fi
    ((${#TO_UNPACK[@]} == 0)) || unpack_packages "${TO_UNPACK[@]}"
    missing_packages "$purpose"
    if ((${#TO_INSTALL[@]} + ${#TO_UNPACK[@]} > 0)); then
        skip "still missing after installing: ${TO_INSTALL[*]} ${TO_UNPACK[*]}"
    fi
}

unpack_packages() {
    local work file
    say "unpacking Debian packages into $PACKAGES (not installed, no service): $*"
    mkdir -p "$PACKAGES"
    work=$(mktemp -d "$CACHE/packages.XXXXXX")
    # apt drops its rights to _apt, which must be able to write here.
    chmod 755 "$work"
    (cd "$work" && apt_get -o APT::Sandbox::User=root download "$@") ||
        skip "cannot download packages $*: is there a package mirror? try: apt-get update"
    for file in "$work"/*.deb; do
        dpkg-deb -x "$file" "$PACKAGES"
    done
    rm -rf "$work"
}

# A fresh machine has no package lists yet.
apt_get() {
    local log
    log=$(mktemp "$CACHE/apt.XXXXXX")
    if ! DEBIAN_FRONTEND=noninteractive apt-get -q "$@" >"$log" 2>&1 9>&-; then
        say "updating package lists"
        if ! { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q "$@"; } >"$log" 2>&1 9>&-; then
            tail -n 5 "$log" >&2
            rm -f "$log"
            return 1
        fi
    fi
    rm -f "$log"
}

machine() {
    case $(uname -m) in
    x86_64) printf amd64 ;;
    aarch64) printf arm64 ;;
    *) return 1 ;;
    esac
}

# The key of a build: what it is made from, and for which machine.
recipe() {
    (
        cd "$HERE" || exit
        find kubernetes kine tools lib/build.sh -type f | LC_ALL=C sort | xargs sha256sum
        uname -m
    ) | sha256sum | cut -c1-16
}

# Sets BIN to the folder with all programs, building it if need be.
build() {
    mkdir -p "$CACHE"
    BIN=$CACHE/$(recipe)
    [[ -e $BIN/complete ]] && return
    exec 8>"$CACHE/lock"
    if ! flock --nonblock 8; then
        say "another build is under way, waiting for it"
        flock --timeout 3600 8 || die "a build has held $CACHE/lock for an hour"
    fi
    if [[ ! -e $BIN/complete ]]; then
        install_dependencies build
        ensure_go
        local work began
        began=$(date +%s)
        find "$CACHE" -maxdepth 1 -name 'building.*' -exec rm -rf {} +
        work=$(mktemp -d "$CACHE/building.XXXXXX")
        chmod 755 "$work"
        build_programs "$work"
        make_images "$work"
        : >"$work/complete"
        rm -rf "$BIN"
        mv "$work" "$BIN"
        say "built in $(($(date +%s) - began)) s and kept in $BIN"
        # Recipes of two weeks ago and older belong to checkouts that have moved on.
        find "$CACHE" -maxdepth 1 -type d -regex '.*/[0-9a-f]+' ! -path "$BIN" -mtime +14 -exec rm -rf {} +
    fi
    exec 8>&-
}

# Sets CLIENTS to the folder with the older clients, building them if need be. Only "make soak" asks for them.
build_clients() {
    local minor=${CLIENTS_VERSION#v1.} version=k8s.io/component-base/version work
    mkdir -p "$CACHE"
    CLIENTS=$CACHE/clients-$(
        cd "$HERE/clients"
        { find . -type f | LC_ALL=C sort | xargs sha256sum && printf '%s %s' "$CLIENTS_VERSION" "$(uname -m)"; } | sha256sum | cut -c1-16
    )
    [[ -e $CLIENTS ]] && return
    exec 8>"$CACHE/lock"
    flock --timeout 3600 8 || die "a build has held $CACHE/lock for an hour"
    if [[ ! -e $CLIENTS ]]; then
        ensure_go
        say "building kubectl $CLIENTS_VERSION and an informer (1 to 4 min the first time)"
        work=$(mktemp -d "$CACHE/building.XXXXXX")
        chmod 755 "$work"
        compile clients 0 "-X $version.gitVersion=$CLIENTS_VERSION -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*}" "$work/" ./...
        mv "$work" "$CLIENTS"
        find "$CACHE" -maxdepth 1 -type d -name 'clients-*' ! -path "$CLIENTS" -mtime +14 -exec rm -rf {} +
    fi
    exec 8>&-
}

# Go 1.21 and later fetch the version that a go.mod asks for by themselves, which
# "go version" in its folder tries.
go_works() {
    local version
    version=$(cd "$HERE/kine" && go version 2>/dev/null) || return 1
    [[ $version =~ go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 21))
}

# The machine's Go, else Go's own release kept in the cache, else Debian's.
ensure_go() {
    PATH=$PATH:$CACHE/go/bin
    go_works && return
    if download_go; then
        PATH=$CACHE/go/bin:$PATH
        go_works && return
    fi
    if ! have go && have apt-get && [[ $(id -u) == 0 ]]; then
        say "installing packages: golang-go"
        apt_get install -y --no-install-recommends --no-remove golang-go || true
        go_works && return
    fi
    skip "Go 1.25 is needed (or 1.21, which fetches it), from https://go.dev/dl; here: $(go version 2>/dev/null || echo none)"
}

download_go() {
    local name=$GO_VERSION.linux-$(machine).tar.gz base=https://dl.google.com/go wanted work
    have curl || return 1
    wanted=$(curl -fsSL --connect-timeout 3 --max-time 10 "$base/$name.sha256" 2>/dev/null 9>&-)
    [[ $wanted =~ ^[0-9a-f]{64}$ ]] || return 1
    say "downloading $GO_VERSION into $CACHE/go"
    work=$(mktemp -d "$CACHE/building.XXXXXX")
    curl -fsSL --connect-timeout 5 --max-time 600 -o "$work/$name" "$base/$name" 9>&- &&
        [[ $(sha256sum <"$work/$name" | cut -d' ' -f1) == "$wanted" ]] &&
        tar -C "$work" -xzf "$work/$name" && rm -rf "$CACHE/go" && mv "$work/go" "$CACHE/go"
    local outcome=$?
    rm -rf "$work"
    return $outcome
}

# Sets K3S to a k3s binary, or to nothing. Order: the one the caller names, a release
# from the internet, none.
find_k3s() {
    K3S=
    if [[ -n ${PIPEOPS_TEST_K3S:-} ]]; then
        K3S=$PIPEOPS_TEST_K3S
        # A folder of releases, as tests/k3s takes it: the newest.
        [[ ! -d $K3S ]] || K3S=$(find "$K3S"/v*/ \( -name k3s -o -name k3s-arm64 \) | sort -V | tail -n 1)
        [[ -f $K3S && -x $K3S ]] || die "PIPEOPS_TEST_K3S=$PIPEOPS_TEST_K3S is not a program, nor a folder of releases"
        K3S=$(realpath -- "$K3S")
        K3S_FROM=caller
        return
    fi
    [[ ${PIPEOPS_TEST_SOURCE:-} == build ]] && return
    K3S_FROM=release
    if [[ -x $CACHE/k3s-$K3S_VERSION && ! -e $CACHE/k3s-unfit ]]; then
        K3S=$CACHE/k3s-$K3S_VERSION
    elif download_k3s; then
        K3S=$CACHE/k3s-$K3S_VERSION
    fi
}

# No internet is the usual case on test machines: it is noticed within seconds and
# remembered for an hour, a release that would not run here for a day.
download_k3s() {
    local base=https://github.com/k3s-io/k3s/releases/download/${K3S_VERSION/+/%2B}
    local name=k3s sums work wanted
    mkdir -p "$CACHE"
    [[ -n $(find "$CACHE" -maxdepth 1 -name k3s-unreachable -mmin -60) ]] && return 1
    [[ -n $(find "$CACHE" -maxdepth 1 -name k3s-unfit -mmin -1440) ]] && return 1
    have curl || return 1
    sums=sha256sum-$(machine).txt
    [[ $(machine) == arm64 ]] && name=k3s-arm64
    wanted=$(curl -fsSL --connect-timeout 3 --max-time 10 "$base/$sums" 2>/dev/null 9>&- | awk -v name="$name" '$2 == name { print $1 }')
    if [[ ! $wanted =~ ^[0-9a-f]{64}$ ]]; then
        say "no k3s release to be had from here; taking the build (asked again in an hour)"
        : >"$CACHE/k3s-unreachable"
        return 1
    fi
    say "downloading k3s $K3S_VERSION"
    work=$(mktemp "$CACHE/k3s.XXXXXX")
    if ! curl -fsSL --connect-timeout 5 --max-time 600 --speed-limit 50000 --speed-time 20 -o "$work" "$base/$name" 9>&- ||
        [[ $(sha256sum <"$work" | cut -d' ' -f1) != "$wanted" ]]; then
        say "the download of k3s failed or does not have its published hash; taking the build"
        rm -f "$work"
        : >"$CACHE/k3s-unreachable"
        return 1
    fi
    chmod 755 "$work"
    mv "$work" "$CACHE/k3s-$K3S_VERSION"
    rm -f "$CACHE/k3s-unfit"
}
