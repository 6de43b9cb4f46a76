package main

const containerdConfig = `version = 2
root = "@DATA@/agent/containerd"
state = "/run/k3s/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "@SOCKET@"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pipeops-test.invalid/pause:1"
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "@BIN@"
  conf_dir = "@DATA@/agent/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "@SNAPSHOTTER@"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "@BIN@/runc"
`

// A bridge of flannel's name, so that what a Pod leaves behind is what k3s leaves behind.
const networkConfig = `{
  "cniVersion": "0.4.0",
  "name": "cbr0",
  "plugins": [{
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": true,
    "ipMasq": false,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "@PODS@"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: @CLIENT_CA@}
authorization: {mode: Webhook}
tlsCertFile: @DATA@/agent/serving-kubelet.crt
tlsPrivateKeyFile: @DATA@/agent/serving-kubelet.key
containerRuntimeEndpoint: unix://@SOCKET@
volumePluginDir: /var/lib/kubelet/plugins-exec
cgroupDriver: cgroupfs
failSwapOn: false
failCgroupV1: false
enforceNodeAllocatable: []
resolvConf: /dev/null
clusterDomain: cluster.local
clusterDNS: ["@DNS@"]
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "1Mi", nodefs.available: "0.1%", nodefs.inodesFree: "0.1%", imagefs.available: "0.1%"}
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: @DATA@/agent/kubeproxy.kubeconfig}
clusterCIDR: @PODS@
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
# The limits of the machine's connection tracking are not ours to set.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 0s, syncPeriod: 30s}
`

const agentKubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: default
  cluster: {server: "https://127.0.0.1:6444", certificate-authority: @CA@}
users:
- name: default
  user: {client-certificate: @CERTIFICATE@.crt, client-key: @CERTIFICATE@.key}
contexts:
- name: default
  context: {cluster: default, user: default}
current-context: default
`
