# shellcheck shell=bash
# What goes wrong in the field, on demand: the API server away, its certificate changed,
# a token revoked.

apiserver_process() {
    # k3s is one process: its API server cannot be stopped alone.
    if [[ $SOURCE == k3s ]]; then printf k3s; else printf kube-apiserver; fi
}

stop_signal() {
    case ${1:-} in
    "") printf TERM ;;
    --kill) printf KILL ;;
    *) die "unknown option $1" ;;
    esac
}

cluster_stop_apiserver() {
    local signal
    lock
    need_running
    signal=$(stop_signal "$@")
    halt "$(apiserver_process)" "$signal"
    say "the API server is stopped"
}

cluster_start_apiserver() {
    lock
    need_running
    start_apiserver
}

start_apiserver() {
    local name
    name=$(apiserver_process)
    if [[ -z $(host_pid "$name") ]]; then
        relaunch "$name"
        await_or_tell -until api -within 180s
        write_env
    fi
    say "the API server answers"
}

cluster_restart_apiserver() {
    local signal
    lock
    need_running
    signal=$(stop_signal "$@")
    halt "$(apiserver_process)" "$signal"
    start_apiserver
}

# The API server takes a changed certificate file into use by itself, without a restart
# and without closing connections, as a k3s that renews its certificate does.
cluster_rotate_serving_cert() {
    local ca=current life=valid wanted shown
    for option in "$@"; do
        case $option in
        --new-ca) ca=next ;;
        --expired) life=expired ;;
        --future) life=future ;;
        *) die "unknown option $option" ;;
        esac
    done
    lock
    need_running
    [[ $SOURCE == build ]] || skip "k3s keeps its serving certificate in the datastore: cannot be replaced from outside"
    "$BIN/pki" serving "$DIR" -address "$ADDRESS" -service "$SERVICE_ADDRESS" -node "$NODE" -ca "$ca" -life "$life"
    wanted=$DIR/server/tls/serving-kube-apiserver.crt
    await_or_tell -until serving -serving "$wanted" -within 180s
    shown="from the CA that clients know"
    [[ $ca == current ]] || shown="from a CA that only kubeconfig-next-ca.yaml knows"
    say "the API server now shows another certificate ($life, $shown)"
}

token_file() {
    local name=${1:-}
    [[ $name =~ ^[a-z0-9]([a-z0-9-]*[a-z0-9])?$ ]] || die "a token needs a name (a-z, 0-9, -), not \"$name\""
    printf '%s/tokens/%s' "$DIR" "$name"
}

# A token of the kind that lies in a Secret: it is good exactly as long as that Secret
# exists and holds it, so deleting the Secret revokes it and creating it again with the
# same content gives the same token back.
cluster_token() {
    local name=${1:-} role=${2:-cluster-admin} file
    lock
    need_running
    file=$(token_file "$name")
    mkdir -p "$DIR/tokens"
    chmod 700 "$DIR/tokens"
    kubectl apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Namespace
metadata: {name: tokens}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: $name, namespace: tokens}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: token-$name}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $role}
subjects: [{kind: ServiceAccount, name: $name, namespace: tokens}]
---
apiVersion: v1
kind: Secret
type: kubernetes.io/service-account-token
metadata: {name: $name, namespace: tokens, annotations: {kubernetes.io/service-account.name: $name}}
YAML
    kubectl -n tokens wait "secret/$name" --for=jsonpath='{.data.token}' --timeout=30s >/dev/null
    kubectl -n tokens get secret "$name" -o jsonpath='{.data.token}' | base64 -d >"$file.next"
    chmod 600 "$file.next"
    mv "$file.next" "$file"
    write_token_kubeconfig "$file"
    await_token "$file" accepted
    cat "$file"
}

write_token_kubeconfig() {
    local ca
    ca=$(base64 -w0 "$DIR/server/tls/server-ca.crt")
    (
        umask 077
        cat >"$1.kubeconfig.yaml" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: default, cluster: {certificate-authority-data: $ca, server: "https://$ADDRESS:6443"}}]
users: [{name: default, user: {tokenFile: "$1"}}]
contexts: [{name: default, context: {cluster: default, user: default}}]
current-context: default
YAML
    )
}

await_token() {
    "$BIN/await" -ca "$DIR/server/tls/server-ca-both.crt" -server "https://$ADDRESS:6443" -token "$1" -until "$2" -within 120s
}

cluster_revoke_token() {
    local file
    lock
    need_running
    file=$(token_file "${1:-}")
    [[ -s $file ]] || die "no token $1; fix: $0 token $DIR $1"
    kubectl -n tokens delete secret "$1" --ignore-not-found >/dev/null
    # The API server remembers for 10 s that a token was good.
    await_token "$file" refused
    say "token $1 is refused"
}

cluster_restore_token() {
    local file uid
    lock
    need_running
    file=$(token_file "${1:-}")
    [[ -s $file ]] || die "no token $1; fix: $0 token $DIR $1"
    uid=$(kubectl -n tokens get serviceaccount "$1" -o jsonpath='{.metadata.uid}')
    kubectl apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Secret
type: kubernetes.io/service-account-token
metadata:
  name: $1
  namespace: tokens
  annotations: {kubernetes.io/service-account.name: $1, kubernetes.io/service-account.uid: $uid}
data: {token: $(base64 -w0 "$file")}
YAML
    await_token "$file" accepted
    say "token $1 is good again"
}
