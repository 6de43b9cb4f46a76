package main

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
)

// The kubeconfigs that k3s keeps in server/cred and agent. Certificates are named by
// file there; the administrator's carries them in itself, so that it can be copied.
func kubeconfigs(s settings) error {
	local := "https://127.0.0.1:6443"
	for _, user := range []struct{ file, certificate string }{
		{"server/cred/controller.kubeconfig", "server/tls/client-controller"},
		{"server/cred/scheduler.kubeconfig", "server/tls/client-scheduler"},
		{"server/cred/admin.kubeconfig", "server/tls/client-admin"},
		{"agent/kubeproxy.kubeconfig", "agent/client-kube-proxy"},
		{"agent/kubelet.kubeconfig", "agent/client-kubelet"},
	} {
		text := kubeconfig(local,
			"certificate-authority: "+filepath.Join(s.dir, "server/tls/server-ca-both.crt"),
			"client-certificate: "+filepath.Join(s.dir, user.certificate+".crt"),
			"client-key: "+filepath.Join(s.dir, user.certificate+".key"))
		if err := replace(filepath.Join(s.dir, user.file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for _, client := range []struct{ file, ca string }{
		{"kubeconfig.yaml", "server/tls/server-ca.crt"},
		{"kubeconfig-next-ca.yaml", "server/tls/server-ca-next.crt"},
	} {
		lines := []string{}
		for _, part := range []struct{ name, file string }{
			{"certificate-authority-data", client.ca},
			{"client-certificate-data", "server/tls/client-admin.crt"},
			{"client-key-data", "server/tls/client-admin.key"},
		} {
			content, err := os.ReadFile(filepath.Join(s.dir, part.file))
			if err != nil {
				return err
			}
			lines = append(lines, part.name+": "+base64.StdEncoding.EncodeToString(content))
		}
		text := kubeconfig("https://"+s.address+":6443", lines[0], lines[1], lines[2])
		if err := replace(filepath.Join(s.dir, client.file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func kubeconfig(server, ca, certificate, key string) string {
	return fmt.Sprintf(`apiVersion: v1
clusters:
- cluster:
    %s
    server: %s
  name: default
contexts:
- context:
    cluster: default
    user: default
  name: default
current-context: default
kind: Config
preferences: {}
users:
- name: default
  user:
    %s
    %s
`, ca, server, certificate, key)
}

func serial() *big.Int {
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
	fail(err)
	return number
}

func writeKey(file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return replace(file, block("EC PRIVATE KEY", der), 0o600)
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func readBlock(file string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	found, _ := pem.Decode(content)
	if found == nil {
		return nil, fmt.Errorf("%s holds no PEM block", file)
	}
	return found.Bytes, nil
}

func join(s settings, file string, parts ...string) error {
	all := []byte{}
	for _, part := range parts {
		content, err := os.ReadFile(filepath.Join(s.dir, part))
		if err != nil {
			return err
		}
		all = append(all, content...)
	}
	return replace(filepath.Join(s.dir, file), all, 0o644)
}

// The API server watches its certificate: it must never see half of one.
func replace(file string, content []byte, mode os.FileMode) error {
	next := file + ".next"
	if err := os.WriteFile(next, content, mode); err != nil {
		return err
	}
	return os.Rename(next, file)
}
