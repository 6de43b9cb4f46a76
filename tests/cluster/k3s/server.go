package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A running server: where things are, and the programs that must not end before it.
type machine struct {
	settings
	data, bin, node, address string
	pods, services, dns      string
	ended                    chan error
	running                  sync.WaitGroup
	stopping                 context.Context
}

func server(flags []string) error {
	m, notify, err := newMachine(flags)
	if err != nil {
		return err
	}
	if m.is("cluster-reset") {
		return m.reset()
	}
	return m.serve(func() error { return m.start(notify) })
}

// The machine by its settings, and the socket of the service manager, which what is started must not see.
func newMachine(flags []string) (*machine, string, error) {
	settings, err := readSettings(flags)
	if err != nil {
		return nil, "", err
	}
	address, err := settings.address()
	if err != nil {
		return nil, "", err
	}
	m := &machine{
		settings: settings, data: settings.dataDir(), node: settings.nodeName(), address: address,
		pods: settings.text("cluster-cidr", "10.42.0.0/16"), services: settings.text("service-cidr", "10.43.0.0/16"),
		ended: make(chan error, 16),
	}
	if m.bin, err = unpack(m.data); err != nil {
		return nil, "", err
	}
	notify := os.Getenv("NOTIFY_SOCKET")
	for _, name := range []string{"NOTIFY_SOCKET", "KUBECONFIG"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, "", err
		}
	}
	for name, value := range map[string]string{"PATH": m.bin + ":" + os.Getenv("PATH"), "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(name, value); err != nil {
			return nil, "", err
		}
	}
	return m, notify, nil
}

// Starts everything, and ends it when one part ends, or a signal comes.
func (m *machine) serve(start func() error) error {
	stopping, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	m.stopping = stopping
	go func() {
		if err := start(); err != nil {
			m.ended <- err
		}
	}()
	var err error
	for err == nil && stopping.Err() == nil {
		select {
		case <-stopping.Done():
		case err = <-m.ended:
		}
	}
	// What it started ends with it; Pods and their shims go on.
	stop()
	m.running.Wait()
	return err
}

func (m *machine) start(notify string) error {
	if err := m.joinServers(); err != nil {
		return err
	}
	if err := m.prepare(); err != nil {
		return err
	}
	tlsDir, cred := filepath.Join(m.data, "server/tls"), filepath.Join(m.data, "server/cred")
	file := func(name string) string { return filepath.Join(tlsDir, name) }
	datastore, err := m.startDatastore()
	if err != nil {
		return err
	}
	m.run("kube-apiserver",
		"--etcd-servers="+datastore, "--storage-backend=etcd3",
		"--bind-address=0.0.0.0", "--secure-port=6444", "--enable-bootstrap-token-auth", "--advertise-address="+m.address, "--cert-dir="+file("temporary"),
		"--tls-cert-file="+file("serving-kube-apiserver.crt"), "--tls-private-key-file="+file("serving-kube-apiserver.key"),
		"--client-ca-file="+file("client-ca.crt"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--service-cluster-ip-range="+m.services,
		"--service-account-key-file="+file("service.key"), "--service-account-signing-key-file="+file("service.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--api-audiences=https://kubernetes.default.svc.cluster.local,k3s",
		"--kubelet-certificate-authority="+file("server-ca.crt"), "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--kubelet-client-certificate="+file("client-kube-apiserver.crt"), "--kubelet-client-key="+file("client-kube-apiserver.key"),
		"--requestheader-client-ca-file="+file("request-header-ca.crt"), "--requestheader-allowed-names=system:auth-proxy",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file="+file("client-auth-proxy.crt"), "--proxy-client-key-file="+file("client-auth-proxy.key"))
	if err := m.runContainerd(); err != nil {
		return err
	}
	if err := m.importImages(); err != nil {
		return err
	}
	if err := until(5*time.Minute, m.apiListens); err != nil {
		return fmt.Errorf("the API server does not listen: %w", err)
	}
	if err := m.supervise(); err != nil {
		return err
	}
	if err := until(5*time.Minute, m.apiIsReady); err != nil {
		return fmt.Errorf("the API server is not ready: %w", err)
	}
	// Nobody else may take the name of the server. Its own password is the one in its file, as in k3s, whatever the Secret says.
	if err := until(time.Minute, func() error {
		if err := m.ensureOwnPassword(); !errors.Is(err, errPassword) {
			return err
		}
		return nil
	}); err != nil {
		return err
	}
	// One of several leads.
	elects := fmt.Sprintf("--leader-elect=%t", m.hasEtcd())
	controller, scheduler := filepath.Join(cred, "controller.kubeconfig"), filepath.Join(cred, "scheduler.kubeconfig")
	m.run("kube-controller-manager",
		"--kubeconfig="+controller, "--authentication-kubeconfig="+controller, "--authorization-kubeconfig="+controller,
		"--use-service-account-credentials", elects, "--controllers=*,tokencleaner",
		"--service-account-private-key-file="+file("service.key"), "--root-ca-file="+file("server-ca.crt"),
		"--cluster-signing-cert-file="+file("client-ca.crt"), "--cluster-signing-key-file="+file("client-ca.key"),
		"--allocate-node-cidrs", "--cluster-cidr="+m.pods, "--node-cidr-mask-size=24", "--service-cluster-ip-range="+m.services,
		"--bind-address=127.0.0.1", "--tls-cert-file="+file("kube-controller-manager.crt"), "--tls-private-key-file="+file("kube-controller-manager.key"))
	m.run("kube-scheduler", "--kubeconfig="+scheduler, elects,
		"--authentication-kubeconfig="+scheduler, "--authorization-kubeconfig="+scheduler,
		"--bind-address=127.0.0.1", "--tls-cert-file="+file("kube-scheduler.crt"), "--tls-private-key-file="+file("kube-scheduler.key"))
	if err := m.importSlowly(notify); err != nil {
		return err
	}
	m.runKubelet()
	m.run("kube-proxy", "--config="+filepath.Join(m.data, "agent/etc/kube-proxy.yaml"), "--hostname-override="+m.node)
	if err := until(5*time.Minute, kubeletIsHealthy); err != nil {
		return fmt.Errorf("the kubelet is not healthy: %w", err)
	}
	admin, err := m.adminAPI(apiServer)
	if err != nil {
		return err
	}
	if err := until(5*time.Minute, func() error { return m.network(admin) }); err != nil {
		return fmt.Errorf("the node has no Pod network: %w", err)
	}
	if err := until(time.Minute, func() error { return m.label(admin) }); err != nil {
		return err
	}
	m.running.Add(1)
	go m.routes(admin)
	if m.hasEtcd() {
		m.running.Add(1)
		go m.forgetMembers(admin)
	}
	fmt.Printf("level=info msg=\"k3s is up and running\" version=%s node=%s\n", version, m.node)
	return tellManager(notify)
}

func (m *machine) runKubelet() {
	m.run("kubelet", append([]string{
		"--kubeconfig=" + filepath.Join(m.data, "agent/kubelet.kubeconfig"), "--config=" + filepath.Join(m.data, "agent/etc/kubelet.yaml"),
		"--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki", "--hostname-override=" + m.node, "--node-ip=" + m.address,
		"--node-labels=" + strings.Join(append([]string{"node.kubernetes.io/instance-type=k3s"}, m.settings["node-label"]...), ",")},
		dashed(m.settings["kubelet-arg"])...)...)
}

// Starts a program that ends with this one. Its end is the end of everything, as in k3s,
// where it is one process.
func (m *machine) run(name string, arguments ...string) {
	m.runInto(os.Stdout, name, arguments...)
}

// containerd has a log of its own, as in k3s.
func (m *machine) runContainerd() error {
	log, err := os.OpenFile(filepath.Join(m.data, "agent/containerd/containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	m.runInto(log, "containerd", "--config", filepath.Join(m.data, "agent/etc/containerd/config.toml"))
	return nil
}

func (m *machine) runInto(log *os.File, name string, arguments ...string) {
	command := exec.CommandContext(m.stopping, filepath.Join(m.bin, name), arguments...)
	command.Stdout, command.Stderr, command.Dir = log, log, "/"
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 3 * time.Second
	m.running.Add(1)
	go func() {
		defer m.running.Done()
		// The signal is sent when the thread ends that started it.
		runtime.LockOSThread()
		err := command.Run()
		if name == "containerd" && m.stopping.Err() == nil {
			say("error", fmt.Sprintf("Shutdown request received: containerd exited: %v", err))
		}
		m.ended <- fmt.Errorf("%s ended: %w", name, errors.Join(err, errors.New("it must not")))
	}()
}

func dashed(arguments []string) []string {
	all := make([]string, 0, len(arguments))
	for _, argument := range arguments {
		all = append(all, "--"+argument)
	}
	return all
}

// A line of the log as k3s writes it.
func say(level, message string) {
	fmt.Printf("time=%q level=%s msg=%q\n", time.Now().UTC().Format(time.RFC3339), level, message)
}

// Waits, unless this is to end.
func (m *machine) pause(duration time.Duration) error {
	select {
	case <-m.stopping.Done():
		return m.stopping.Err()
	case <-time.After(duration):
		return nil
	}
}

func until(within time.Duration, holds func() error) error {
	end := time.Now().Add(within)
	for {
		err := holds()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (m *machine) apiListens() error {
	connection, err := net.DialTimeout("tcp", "127.0.0.1:6444", time.Second)
	if err != nil {
		return err
	}
	return connection.Close()
}

func (m *machine) apiIsReady() error {
	admin, err := m.adminAPI("https://127.0.0.1:6443")
	if err != nil {
		return err
	}
	defer admin.client.CloseIdleConnections()
	return asked(admin.client, "https://127.0.0.1:6443/readyz")
}

func kubeletIsHealthy() error {
	return asked(&http.Client{Timeout: 5 * time.Second}, "http://127.0.0.1:10248/healthz")
}

func asked(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<16))
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

func tellManager(socket string) error {
	if socket == "" {
		return nil
	}
	connection, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = connection.Write([]byte("READY=1"))
	return err
}

// Certificates, token and the configurations of the parts.
func (m *machine) prepare() error {
	for _, dir := range []string{"server/db", "server/manifests", "agent/images", "agent/etc/containerd", "agent/etc/cni/net.d", "agent/containerd"} {
		if err := os.MkdirAll(filepath.Join(m.data, dir), 0o700); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/run/k3s/containerd", 0o711); err != nil {
		return err
	}
	service, dns, err := serviceAddresses(m.services)
	if err != nil {
		return err
	}
	m.dns = dns
	if !m.isIssued() {
		said, err := exec.Command(filepath.Join(m.bin, "pki"), "init", m.data, "-address", m.address, "-service", service, "-node", m.node).CombinedOutput()
		if err != nil {
			return fmt.Errorf("cannot make certificates: %w: %s", err, said)
		}
	}
	ca, err := os.ReadFile(filepath.Join(m.data, "server/tls/server-ca.crt"))
	if err != nil {
		return err
	}
	if err := m.token(ca); err != nil {
		return err
	}
	admin, err := os.ReadFile(filepath.Join(m.data, "kubeconfig.yaml"))
	if err != nil {
		return err
	}
	// Whatever address it was made with: that of the machine may be another one by now.
	local := regexp.MustCompile(`https://[^"\s]+:6443`).ReplaceAllString(string(admin), "https://127.0.0.1:6443")
	if err := os.MkdirAll(filepath.Dir(kubeconfigFile), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(kubeconfigFile, []byte(local), 0o600); err != nil {
		return err
	}
	// The parts of the server ask the API server itself.
	for _, name := range []string{"server/cred/controller", "server/cred/scheduler", "agent/kubeproxy", "agent/kubelet"} {
		file := filepath.Join(m.data, name+".kubeconfig")
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte("127.0.0.1:6443"), []byte("127.0.0.1:6444")), 0o600); err != nil {
			return err
		}
	}
	if err := m.nodePassword(); err != nil {
		return err
	}
	return m.configurations("server/tls/client-ca.crt")
}

// Whether the certificates are there, each signed by a CA that is there: after a restore from another machine those of
// the nodes are not, and k3s issues them anew at each start.
func (m *machine) isIssued() bool {
	for leaf, authority := range map[string]string{
		"server/tls/serving-kube-apiserver": "server-ca", "server/tls/client-admin": "client-ca", "server/tls/client-auth-proxy": "request-header-ca",
		"agent/serving-kubelet": "server-ca", "agent/client-kubelet": "client-ca", "agent/client-kube-proxy": "client-ca",
	} {
		ca, err := tls.LoadX509KeyPair(filepath.Join(m.data, "server/tls", authority+".crt"), filepath.Join(m.data, "server/tls", authority+".key"))
		if err != nil {
			return false
		}
		pair, err := tls.LoadX509KeyPair(filepath.Join(m.data, leaf+".crt"), filepath.Join(m.data, leaf+".key"))
		if err != nil || pair.Leaf.CheckSignatureFrom(ca.Leaf) != nil {
			return false
		}
	}
	return true
}

func (m *machine) token(ca []byte) error {
	file := filepath.Join(m.data, "server/token")
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	_, password, found := strings.Cut(m.settings.text("token", ""), "::server:")
	if !found {
		password = m.settings.text("token", "")
	}
	if password == "" {
		bytes := make([]byte, 16)
		if _, err := rand.Read(bytes); err != nil {
			return err
		}
		password = hex.EncodeToString(bytes)
	}
	if err := os.WriteFile(file, []byte("K10"+hashOfCA(ca)+"::server:"+password+"\n"), 0o600); err != nil {
		return err
	}
	return os.Symlink(file, filepath.Join(m.data, "server/node-token"))
}

func (m *machine) nodePassword() error {
	const file = "/etc/rancher/node/password"
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	bytes := make([]byte, 16)
	if _, err := rand.Read(bytes); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(hex.EncodeToString(bytes)+"\n"), 0o600)
}

// The first and the tenth address of the Service network.
func serviceAddresses(network string) (string, string, error) {
	ip, _, err := net.ParseCIDR(network)
	if err != nil {
		return "", "", err
	}
	first, tenth := ip.To4(), ip.To4()
	if first == nil {
		return "", "", errors.New("this stand-in knows IPv4 only")
	}
	first, tenth = append(net.IP{}, first...), append(net.IP{}, tenth...)
	first[3], tenth[3] = 1, 10
	return first.String(), tenth.String(), nil
}

func (m *machine) podNetworkConfiguration(network string) error {
	text := strings.ReplaceAll(networkConfig, "@PODS@", network)
	return os.WriteFile(filepath.Join(m.data, "agent/etc/cni/net.d/10-flannel.conflist"), []byte(text), 0o600)
}

func (m *machine) configurations(clientCA string) error {
	snapshotter := "overlayfs"
	var fs syscall.Statfs_t
	// An overlay cannot lie on an overlay, as in a container.
	if err := syscall.Statfs(m.data, &fs); err == nil && fs.Type == 0x794c7630 {
		snapshotter = "native"
	}
	replacer := strings.NewReplacer("@DATA@", m.data, "@BIN@", m.bin, "@SOCKET@", containerdSocket, "@SNAPSHOTTER@", snapshotter,
		"@PODS@", m.pods, "@DNS@", m.dns, "@CLIENT_CA@", filepath.Join(m.data, clientCA))
	for name, text := range map[string]string{
		"agent/etc/containerd/config.toml": containerdConfig,
		"agent/etc/kubelet.yaml":           kubeletConfig,
		"agent/etc/kube-proxy.yaml":        proxyConfig,
	} {
		if err := os.WriteFile(filepath.Join(m.data, name), []byte(replacer.Replace(text)), 0o600); err != nil {
			return err
		}
	}
	return nil
}
