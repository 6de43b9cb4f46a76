// Program pki makes the certificates and kubeconfigs of the test cluster, in the
// places and with the names that k3s gives them, all P-256 as there.
//
//	pki init  DIR -address IP -service IP -node NAME   everything, once; CAs that are there stay
//	pki serving DIR ... [-ca next] [-life expired|future]   the API server's certificate again
//
// The cluster has two CAs for serving certificates from the start. Its own components
// trust both, its clients only the first: so a test can take the second one into use,
// and back, without anything but its client noticing.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

const day = 24 * time.Hour

type settings struct {
	dir, address, service, node, ca, life string
}

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: pki init|serving DIR [-address IP] [-service IP] [-node NAME] [-ca current|next] [-life valid|expired|future]"))
	}
	s := settings{dir: os.Args[2]}
	flags := flag.NewFlagSet("pki", flag.ExitOnError)
	flags.StringVar(&s.address, "address", "", "address at which the API server is reached")
	flags.StringVar(&s.service, "service", "", "address of the Service kubernetes.default")
	flags.StringVar(&s.node, "node", "", "name of the node")
	flags.StringVar(&s.ca, "ca", "current", "current, or next: the CA that clients do not know")
	flags.StringVar(&s.life, "life", "valid", "valid, expired, or future (not valid yet)")
	fail(flags.Parse(os.Args[3:]))
	switch os.Args[1] {
	case "init":
		fail(initialise(s))
	case "serving":
		fail(serving(s))
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "pki:", err)
		os.Exit(1)
	}
}

func initialise(s settings) error {
	for _, dir := range []string{"server/tls", "server/cred", "agent"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o700); err != nil {
			return err
		}
	}
	// A server that joins others has theirs.
	for _, name := range []string{"server-ca", "server-ca-next", "client-ca", "request-header-ca"} {
		if isThere(s, "server/tls/"+name+".key") {
			continue
		}
		if err := authority(s, "server/tls/"+name); err != nil {
			return err
		}
	}
	if err := join(s, "server/tls/server-ca-both.crt", "server/tls/server-ca.crt", "server/tls/server-ca-next.crt"); err != nil {
		return err
	}
	if err := clients(s); err != nil {
		return err
	}
	for _, server := range []struct{ file, name string }{
		{"agent/serving-kubelet", s.node},
		{"server/tls/kube-controller-manager", "kube-controller-manager"},
		{"server/tls/kube-scheduler", "kube-scheduler"},
	} {
		if err := issue(s, server.file, "server/tls/server-ca", leaf{
			subject: pkix.Name{CommonName: server.name}, usage: x509.ExtKeyUsageServerAuth,
			names: []string{server.name, "localhost"}, addresses: []string{"127.0.0.1", s.address},
		}); err != nil {
			return err
		}
	}
	if !isThere(s, "server/tls/service.key") {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		if err := writeKey(filepath.Join(s.dir, "server/tls/service.key"), key); err != nil {
			return err
		}
	}
	if err := serving(s); err != nil {
		return err
	}
	return kubeconfigs(s)
}

func isThere(s settings, file string) bool {
	_, err := os.Stat(filepath.Join(s.dir, file))
	return err == nil
}

// The users that RBAC knows by name, each with its certificate.
func clients(s settings) error {
	for _, client := range []struct{ file, name, group string }{
		{"server/tls/client-admin", "system:admin", "system:masters"},
		{"server/tls/client-kube-apiserver", "system:apiserver", "system:masters"},
		{"server/tls/client-controller", "system:kube-controller-manager", ""},
		{"server/tls/client-scheduler", "system:kube-scheduler", ""},
		{"agent/client-kube-proxy", "system:kube-proxy", ""},
		{"agent/client-kubelet", "system:node:" + s.node, "system:nodes"},
	} {
		subject := pkix.Name{CommonName: client.name}
		if client.group != "" {
			subject.Organization = []string{client.group}
		}
		if err := issue(s, client.file, "server/tls/client-ca", leaf{subject: subject, usage: x509.ExtKeyUsageClientAuth}); err != nil {
			return err
		}
	}
	return issue(s, "server/tls/client-auth-proxy", "server/tls/request-header-ca",
		leaf{subject: pkix.Name{CommonName: "system:auth-proxy"}, usage: x509.ExtKeyUsageClientAuth})
}

func serving(s settings) error {
	issuer := "server/tls/server-ca"
	if s.ca == "next" {
		issuer = "server/tls/server-ca-next"
	}
	now := time.Now()
	certificate := leaf{
		subject: pkix.Name{CommonName: "kube-apiserver"}, usage: x509.ExtKeyUsageServerAuth,
		names: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local", "localhost", s.node,
		},
		addresses: []string{"127.0.0.1", "::1", s.address, s.service},
	}
	switch s.life {
	case "valid":
	case "expired":
		certificate.from, certificate.to = now.Add(-2*day), now.Add(-day)
	case "future":
		certificate.from, certificate.to = now.Add(day), now.Add(2*day)
	default:
		return fmt.Errorf("unknown -life %q", s.life)
	}
	return issue(s, "server/tls/serving-kube-apiserver", issuer, certificate)
}

type leaf struct {
	subject          pkix.Name
	usage            x509.ExtKeyUsage
	names, addresses []string
	// Zero: an hour ago, and a year after that, as k3s does it.
	from, to time.Time
}

func authority(s settings, file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: fmt.Sprintf("test-%s@%d", filepath.Base(file), time.Now().Unix())},
		NotBefore:             time.Now().Add(-day),
		NotAfter:              time.Now().Add(3650 * day),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	if err := writeKey(filepath.Join(s.dir, file+".key"), key); err != nil {
		return err
	}
	return replace(filepath.Join(s.dir, file+".crt"), block("CERTIFICATE", der), 0o644)
}

func issue(s settings, file, issuer string, l leaf) error {
	issuerCertificate, issuerKey, err := readAuthority(filepath.Join(s.dir, issuer))
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if l.from.IsZero() {
		l.from, l.to = time.Now().Add(-time.Hour), time.Now().Add(365*day)
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      l.subject,
		NotBefore:    l.from,
		NotAfter:     l.to,
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{l.usage},
		DNSNames:     l.names,
	}
	for _, text := range l.addresses {
		address := net.ParseIP(text)
		if address == nil {
			return fmt.Errorf("%s: not an address: %q", file, text)
		}
		template.IPAddresses = append(template.IPAddresses, address)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuerCertificate, &key.PublicKey, issuerKey)
	if err != nil {
		return err
	}
	if err := writeKey(filepath.Join(s.dir, file+".key"), key); err != nil {
		return err
	}
	return replace(filepath.Join(s.dir, file+".crt"), block("CERTIFICATE", der), 0o644)
}

func readAuthority(file string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certificate, err := readBlock(file + ".crt")
	if err != nil {
		return nil, nil, err
	}
	key, err := readBlock(file + ".key")
	if err != nil {
		return nil, nil, err
	}
	parsed, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, nil, err
	}
	parsedKey, err := x509.ParseECPrivateKey(key)
	return parsed, parsedKey, err
}
