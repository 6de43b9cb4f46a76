# shellcheck shell=bash
# The recipe: what is built, and how. A change of this file, or of a module beside it,
# is a new recipe and builds anew.

build_programs() {
    local out=$1 version=k8s.io/component-base/version name
    say "building helpers (some seconds)"
    compile tools 0 "" "$out/" ./...
    say "building kine with SQLite (1 to 3 min the first time)"
    compile kine 1 "" "$out/kine" github.com/k3s-io/kine
    say "building Kubernetes $KUBERNETES_VERSION from its Go modules (4 to 10 min the first time)"
    compile kubernetes 0 "-X $version.gitVersion=$KUBERNETES_VERSION -X $version.gitMajor=1 -X $version.gitMinor=34" "$out/kubernetes" .
    for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
        ln -s kubernetes "$out/$name"
    done
}

# nice and two at a time: the machine is also somebody's desk. go.sum is committed, so
# what is fetched is checked.
compile() {
    local module=$1 cgo=$2 flags=$3 out=$4 package=$5
    (
        cd "$HERE/$module"
        CGO_ENABLED=$cgo GOWORK=off GOFLAGS=-mod=readonly nice go build -p 2 -trimpath -buildvcs=false \
            -ldflags "-s -w $flags" -o "$out" "$package" 8>&- 9>&- >&2
    ) || die "cannot build tests/cluster/$module (see above)"
}

# One OCI archive with two images that share a layer: busybox and testpod, once as the
# fixtures' image and once as the sandbox's pause. Written by hand: tar and sha256sum
# are enough.
make_images() {
    local out=$1 root oci applet layer
    root=$(mktemp -d "$out/root.XXXXXX")
    oci=$(mktemp -d "$out/oci.XXXXXX")
    mkdir -p "$root"/{bin,etc,tmp,proc,sys,dev} "$oci/blobs/sha256"
    chmod 755 "$root"
    chmod 1777 "$root/tmp"
    cp "$(static_busybox)" "$root/bin/busybox"
    cp "$out/testpod" "$root/bin/testpod"
    for applet in $("$root/bin/busybox" --list); do
        [[ -e $root/bin/$applet ]] || ln -s busybox "$root/bin/$applet"
    done
    printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$root/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$root" -cf "$out/layer.tar" .
    layer=$(add_blob "$oci" "$out/layer.tar")
    printf '{"imageLayoutVersion":"1.0.0"}' >"$oci/oci-layout"
    printf '{"schemaVersion":2,"manifests":[%s,%s]}' \
        "$(add_image "$oci" "$layer" "$IMAGE" '["/bin/testpod"]' '["serve"]')" \
        "$(add_image "$oci" "$layer" "$PAUSE_IMAGE" '["/bin/testpod","pause"]' '[]')" >"$oci/index.json"
    tar --sort=name --mtime=@0 --owner=0 --group=0 -C "$oci" -cf "$out/images.tar" oci-layout index.json blobs
    rm -rf "$root" "$oci" "$out/layer.tar"
}

# Stores a file under its hash and prints "digest size".
add_blob() {
    local oci=$1 file=$2 hash
    hash=$(sha256sum <"$file" | cut -d' ' -f1)
    cp "$file" "$oci/blobs/sha256/$hash"
    printf 'sha256:%s %s' "$hash" "$(stat -c %s "$file")"
}

add_image() {
    local oci=$1 layer=$2 name=$3 entrypoint=$4 arguments=$5 config manifest
    printf '{"architecture":"%s","os":"linux","config":{"Env":["PATH=/bin"],"Entrypoint":%s,"Cmd":%s,"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
        "$(machine)" "$entrypoint" "$arguments" "${layer% *}" >"$oci/part"
    config=$(add_blob "$oci" "$oci/part")
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"%s","size":%s}]}' \
        "${config% *}" "${config#* }" "${layer% *}" "${layer#* }" >"$oci/part"
    manifest=$(add_blob "$oci" "$oci/part")
    rm "$oci/part"
    printf '{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"%s","size":%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}' \
        "${manifest% *}" "${manifest#* }" "$name" "${name#*:}"
}
