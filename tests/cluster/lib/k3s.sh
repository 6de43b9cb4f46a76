# shellcheck shell=bash
# The k3s stand-in: what the cluster is made of, as one file under k3s's commands. Kept
# apart from the other programs, so that a change here does not build those anew.

# The first version, and others that upgrades go to, a patch and a minor one: the same
# sources under other numbers.
K3S_STANDINS=(v1.34.4+k3s1 v1.34.5+k3s1 v1.35.1+k3s1)

# Sets STANDIN to a folder with a folder for each version that has k3s, the archive of
# the images and the checksums in it, as a release does.
build_k3s() {
    build
    install_dependencies run
    STANDIN=$CACHE/k3s-standin-$(
        cd "$HERE"
        { find k3s kubernetes -type f | LC_ALL=C sort | xargs sha256sum && sha256sum lib/k3s.sh && printf '%s' "$BIN"; } | sha256sum | cut -c1-16
    )
    [[ -e $STANDIN/complete ]] && return
    exec 8>"$CACHE/lock"
    flock --timeout 3600 8 || die "a build has held $CACHE/lock for an hour"
    if [[ ! -e $STANDIN/complete ]]; then
        ensure_go
        # Several servers need etcd, which nothing else here does.
        { find_tool etcd && find_tool etcdctl; } >/dev/null || unpack_packages etcd-server etcd-client
        local work version
        work=$(mktemp -d "$CACHE/building.XXXXXX")
        chmod 755 "$work"
        for version in "${K3S_STANDINS[@]}"; do
            pack_k3s "$version" "$work"
        done
        : >"$work/complete"
        rm -rf "$STANDIN"
        mv "$work" "$STANDIN"
        find "$CACHE" -maxdepth 1 -type d -name 'k3s-standin-*' ! -path "$STANDIN" -mtime +14 -exec rm -rf {} +
    fi
    exec 8>&-
}

# One version: the wrapper, then a tar of the programs, its hash and its length.
pack_k3s() {
    local version=$1 out=$2/$1 flags=k8s.io/component-base/version parts name tool sum=sha256sum-amd64.txt
    local k3s=k3s images=k3s-airgap-images-amd64.tar
    parts=$(mktemp -d "$2/parts.XXXXXX")
    if [[ $(machine) == arm64 ]]; then
        sum=sha256sum-arm64.txt k3s=k3s-arm64 images=k3s-airgap-images-arm64.tar
    fi
    mkdir "$out"
    say "building the k3s stand-in $version (a minute or two)"
    compile k3s 0 "-X main.version=$version" "$out/$k3s" .
    compile kubernetes 0 "-X $flags.gitVersion=$version -X $flags.gitMajor=1 -X $flags.gitMinor=${version:3:2}" "$parts/kubernetes" .
    for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
        ln -s kubernetes "$parts/$name"
    done
    cp "$BIN/kine" "$BIN/pki" "$parts/"
    for name in containerd ctr containerd-shim-runc-v2 runc etcd etcdctl; do
        tool=$(find_tool "$name")
        cp -L "$tool" "$parts/$name"
    done
    for name in bridge host-local loopback; do
        cp -L "$(cni_plugins)/$name" "$parts/$name"
    done
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$parts" -cf "$out/payload" .
    cat "$out/payload" >>"$out/$k3s"
    { sha256sum <"$out/payload" | cut -d' ' -f1 && printf '%016x' "$(stat -c %s "$out/payload")"; } | tr -d '\n' | xxd_back >>"$out/$k3s"
    rm -rf "$parts" "$out/payload"
    cp "$BIN/images.tar" "$out/$images"
    (cd "$out" && sha256sum "$k3s" "$images" >"$sum")
}

# Bytes of their hexadecimal digits; xxd is not on every machine.
xxd_back() {
    local digits
    read -r digits || [[ -n $digits ]]
    # shellcheck disable=SC2059 # the format is the bytes
    printf "$(sed 's/../\\x&/g' <<<"$digits")"
}
