package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A machine that joins a server: its address, and what vouches for both.
type joining struct {
	*machine
	server         *url.URL
	hash           string
	user, password string
	bearer         string
	nodePassword   string
	trusted        *http.Client
}

func agent(flags []string) error {
	m, notify, err := newMachine(flags)
	if err != nil {
		return err
	}
	j, err := m.joining()
	if err != nil {
		return err
	}
	return m.serve(func() error { return j.start(notify) })
}

// The server that the settings name, and the token for it.
func (m *machine) joining() (*joining, error) {
	j := &joining{machine: m}
	var err error
	if j.server, err = url.Parse(m.text("server", os.Getenv("K3S_URL"))); err != nil {
		return nil, err
	}
	if j.server.Scheme != "https" {
		return nil, errors.New("only https:// URLs are supported, invalid scheme: " + j.server.String())
	}
	token := m.text("token", os.Getenv("K3S_TOKEN"))
	if file := m.text("token-file", ""); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		token = string(text)
	}
	return j, j.readToken(strings.TrimSpace(token))
}

func (j *joining) readToken(token string) error {
	if token == "" {
		return errors.New("--token is required")
	}
	rest, found := strings.CutPrefix(token, "K10")
	if found {
		j.hash, rest, found = strings.Cut(rest, "::")
		if !found || len(j.hash) != 64 {
			return errors.New("invalid token CA hash length")
		}
	}
	if _, password, found := strings.Cut(rest, ":"); found {
		j.user, j.password = "node", password
		return nil
	}
	if len(rest) == 23 && rest[6] == '.' {
		j.bearer = rest
		return nil
	}
	return errors.New("invalid token format")
}

func (j *joining) start(notify string) error {
	for _, dir := range []string{"agent/images", "agent/etc/containerd", "agent/etc/cni/net.d", "agent/containerd"} {
		if err := os.MkdirAll(filepath.Join(j.data, dir), 0o700); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/run/k3s/containerd", 0o711); err != nil {
		return err
	}
	if err := j.machine.nodePassword(); err != nil {
		return err
	}
	password, err := os.ReadFile("/etc/rancher/node/password")
	if err != nil {
		return err
	}
	j.nodePassword = strings.TrimSpace(string(password))
	// Without an end, as k3s does it: the server may be away, or refuse.
	for {
		ca, settings, err := j.authority()
		if err == nil {
			if err = j.configure(ca, settings); err == nil {
				break
			}
			say("info", "Waiting to retrieve agent configuration; server is not ready: "+err.Error())
		} else {
			say("error", fmt.Sprintf("Failed to validate connection to cluster at %s: %v", j.server, err))
		}
		if j.pause(2*time.Second) != nil {
			return nil
		}
	}
	if err := j.forward(); err != nil {
		return err
	}
	if err := j.configurations("agent/client-ca.crt"); err != nil {
		return err
	}
	if err := j.runContainerd(); err != nil {
		return err
	}
	if err := j.importImages(); err != nil {
		return err
	}
	j.runKubelet()
	if err := until(5*time.Minute, kubeletIsHealthy); err != nil {
		return fmt.Errorf("the kubelet is not healthy: %w", err)
	}
	own, err := newAPI("https://127.0.0.1:6444", j.file("server-ca.crt"), j.file("client-kubelet.crt"), j.file("client-kubelet.key"))
	if err != nil {
		return err
	}
	if err := until(5*time.Minute, func() error { return j.network(own) }); err != nil {
		return fmt.Errorf("the node has no Pod network: %w", err)
	}
	j.run("kube-proxy", "--config="+filepath.Join(j.data, "agent/etc/kube-proxy.yaml"), "--hostname-override="+j.node)
	// The kubelet may see its own node only; kube-proxy sees all.
	reader, err := newAPI("https://127.0.0.1:6444", j.file("server-ca.crt"), j.file("client-kube-proxy.crt"), j.file("client-kube-proxy.key"))
	if err != nil {
		return err
	}
	j.running.Add(1)
	go j.routes(reader)
	fmt.Printf("level=info msg=\"k3s agent is up and running\" version=%s node=%s\n", version, j.node)
	return tellManager(notify)
}

// Certificates and settings of the cluster.
func (j *joining) configure(ca []byte, settings *tls.Config) error {
	// A node that has joined once needs no token.
	if pair, err := tls.LoadX509KeyPair(j.file("client-kubelet.crt"), j.file("client-kubelet.key")); err == nil && time.Now().Before(pair.Leaf.NotAfter) {
		settings.Certificates = []tls.Certificate{pair}
	}
	j.trusted = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: settings, DisableKeepAlives: true}}
	if err := os.WriteFile(j.file("server-ca.crt"), ca, 0o600); err != nil {
		return err
	}
	answer, err := j.get(j.trusted, http.MethodGet, "/v1-k3s/config", nil)
	if err != nil {
		return fmt.Errorf("failed to retrieve configuration from server: %w", err)
	}
	var cluster struct {
		ClusterIPRange, ServiceIPRange net.IPNet
		ClusterDNS                     net.IP
	}
	if err := json.Unmarshal(answer, &cluster); err != nil {
		return err
	}
	j.pods, j.services, j.dns = cluster.ClusterIPRange.String(), cluster.ServiceIPRange.String(), cluster.ClusterDNS.String()
	for _, name := range []string{"serving-kubelet", "client-kubelet", "client-kube-proxy"} {
		if err := j.certificate(name); err != nil {
			return err
		}
	}
	clientCA, err := j.get(j.trusted, http.MethodGet, "/v1-k3s/client-ca.crt", nil)
	if err != nil {
		return err
	}
	if err := os.WriteFile(j.file("client-ca.crt"), clientCA, 0o600); err != nil {
		return err
	}
	for name, certificate := range map[string]string{"kubelet.kubeconfig": "client-kubelet", "kubeproxy.kubeconfig": "client-kube-proxy"} {
		text := strings.NewReplacer("@CA@", j.file("server-ca.crt"), "@CERTIFICATE@", j.file(certificate)).Replace(agentKubeconfig)
		if err := os.WriteFile(j.file(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// The CA of the server, compared with the token, and the trust in it.
func (j *joining) authority() ([]byte, *tls.Config, error) {
	blind := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	ca, err := j.get(blind, http.MethodGet, "/cacerts", nil)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to get CA certs: %w", err)
	}
	if hash := hashOfCA(ca); j.hash != "" && hash != j.hash {
		return nil, nil, fmt.Errorf("token CA hash does not match the Cluster CA certificate hash: %s != %s", j.hash, hash)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return ca, &tls.Config{RootCAs: roots}, nil
}

func (j *joining) file(name string) string { return filepath.Join(j.data, "agent", name) }

func (j *joining) certificate(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	signed, err := j.get(j.trusted, http.MethodPost, "/v1-k3s/"+name+".crt", request)
	if err != nil {
		return fmt.Errorf("%s: %w", j.file(name+".crt"), err)
	}
	if err := os.WriteFile(j.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(j.file(name+".crt"), signed, 0o600)
}

func (j *joining) get(client *http.Client, method, path string, body []byte) ([]byte, error) {
	target := *j.server
	target.Path = path
	request, err := http.NewRequestWithContext(context.Background(), method, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if path != "/cacerts" {
		if j.bearer != "" {
			request.Header.Set("Authorization", "Bearer "+j.bearer)
		} else {
			request.SetBasicAuth(j.user, j.password)
		}
		request.Header.Set("k3s-Node-Name", j.node)
		request.Header.Set("k3s-Node-Password", j.nodePassword)
		request.Header.Set("k3s-Node-IP", j.address)
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if settings := client.Transport.(*http.Transport).TLSClientConfig; answer.StatusCode == http.StatusUnauthorized && len(settings.Certificates) > 0 {
		// The node of the certificate is gone, or never came: the token counts again, as in k3s.
		settings.Certificates = nil
		return j.get(client, method, path, body)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, bodyMax))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode == http.StatusForbidden && method == http.MethodPost:
		return nil, errors.New("Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match server node-passwd entry, try enabling a unique node name with the --with-node-id flag")
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", target.String(), answer.Status)
	}
	return text, nil
}

// Port 6444 of this machine leads to the server, as k3s' load balancer does it for several.
func (j *joining) forward() error {
	listener, err := net.Listen("tcp", "127.0.0.1:6444")
	if err != nil {
		return err
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				j.ended <- err
				return
			}
			go func() {
				defer near.Close()
				far, err := net.DialTimeout("tcp", j.server.Host, 10*time.Second)
				if err != nil {
					return
				}
				defer far.Close()
				go func() {
					_, _ = io.Copy(far, near)
					_ = far.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	return nil
}

// The network of the Pods of this node, once the cluster has given it one, and the ways to those of the others.
func (m *machine) network(reader *api) error {
	var node struct{ Spec struct{ PodCIDR string } }
	if err := reader.ask(http.MethodGet, "/api/v1/nodes/"+m.node, nil, &node); err != nil {
		return err
	}
	if node.Spec.PodCIDR == "" {
		return errors.New("none yet")
	}
	return m.podNetworkConfiguration(node.Spec.PodCIDR)
}

// Routes to the Pods of the other nodes, in place of flannel's tunnels.
func (m *machine) routes(reader *api) {
	made := map[string]bool{}
	defer m.running.Done()
	defer func() {
		for network := range made {
			_ = exec.Command("ip", "route", "delete", network).Run()
		}
	}()
	for {
		var nodes struct {
			Items []struct {
				Metadata struct{ Name string }
				Spec     struct{ PodCIDR string }
				Status   struct {
					Addresses []struct{ Type, Address string }
				}
			}
		}
		_ = reader.ask(http.MethodGet, "/api/v1/nodes", nil, &nodes)
		for _, node := range nodes.Items {
			for _, address := range node.Status.Addresses {
				if node.Metadata.Name != m.node && address.Type == "InternalIP" && node.Spec.PodCIDR != "" {
					made[node.Spec.PodCIDR] = true
					_ = exec.Command("ip", "route", "replace", node.Spec.PodCIDR, "via", address.Address).Run()
				}
			}
		}
		select {
		case <-m.stopping.Done():
			return
		case <-time.After(5 * time.Second):
		}
	}
}
