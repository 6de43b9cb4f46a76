package main

import (
	"bytes"
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Where the API server itself listens; others reach it by the supervisor on 6443, as in k3s.
const apiServer = "https://127.0.0.1:6444"

const bodyMax = 1 << 20

// The hash of a token's secure form: of the CA as the file has it, as k3s does it where the file is one certificate.
func hashOfCA(ca []byte) string {
	sum := sha256.Sum256(ca)
	return hex.EncodeToString(sum[:])
}

type user struct {
	name   string
	groups []string
}

// Port 6443 of a server: what agents ask for, and the API server behind it.
type supervisor struct {
	m          *machine
	ca         []byte
	clientCA   *x509.CertPool
	password   string
	asThemself *httputil.ReverseProxy
	asUser     *httputil.ReverseProxy
	admin      *api
}

func (m *machine) supervise() error {
	file := func(name string) string { return filepath.Join(m.data, "server/tls", name) }
	ca, err := os.ReadFile(file("server-ca.crt"))
	if err != nil {
		return err
	}
	clientCA, err := os.ReadFile(file("client-ca.crt"))
	if err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(m.data, "server/token"))
	if err != nil {
		return err
	}
	admin, err := m.adminAPI(apiServer)
	if err != nil {
		return err
	}
	s := &supervisor{m: m, ca: ca, clientCA: x509.NewCertPool(), admin: admin}
	s.clientCA.AppendCertsFromPEM(clientCA)
	_, s.password, _ = strings.Cut(strings.TrimSpace(string(token)), "::server:")
	proxy, err := tls.LoadX509KeyPair(file("client-auth-proxy.crt"), file("client-auth-proxy.key"))
	if err != nil {
		return err
	}
	s.asThemself = behind(ca)
	s.asUser = behind(ca, proxy)
	certificate, err := tls.LoadX509KeyPair(file("serving-kube-apiserver.crt"), file("serving-kube-apiserver.key"))
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr: ":6443", Handler: s.routes(), ReadHeaderTimeout: 30 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert},
	}
	listener, err := net.Listen("tcp", server.Addr)
	if err != nil {
		return err
	}
	m.running.Add(1)
	go func() {
		defer m.running.Done()
		<-m.stopping.Done()
		_ = server.Close()
	}()
	go func() { m.ended <- server.ServeTLS(listener, "", "") }()
	return nil
}

// A way to the API server, as somebody whose headers it believes, or as the caller.
func behind(ca []byte, certificates ...tls.Certificate) *httputil.ReverseProxy {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	target, _ := url.Parse(apiServer)
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		// HTTP/1.1, in which a connection can become a stream.
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: roots, Certificates: certificates},
			TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
			MaxIdleConnsPerHost: 20, IdleConnTimeout: time.Minute,
		},
		FlushInterval: -1,
	}
}

func (s *supervisor) routes() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("/cacerts", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(s.ca) })
	routes.HandleFunc("/ping", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "pong") })
	routes.Handle("/v1-k3s/config", s.forAgents(s.config))
	routes.HandleFunc("/v1-k3s/server-bootstrap", s.bootstrap)
	routes.Handle("/v1-k3s/client-ca.crt", s.forAgents(func(w http.ResponseWriter, r *http.Request, _ user) {
		http.ServeFile(w, r, filepath.Join(s.m.data, "server/tls/client-ca.crt"))
	}))
	routes.Handle("/v1-k3s/client-kubelet.crt", s.forAgents(func(w http.ResponseWriter, r *http.Request, u user) {
		s.forNode(w, r, u, "client-ca", func(node string) *x509.Certificate {
			return &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
		})
	}))
	routes.Handle("/v1-k3s/serving-kubelet.crt", s.forAgents(func(w http.ResponseWriter, r *http.Request, u user) {
		s.forNode(w, r, u, "server-ca", func(node string) *x509.Certificate {
			return &x509.Certificate{
				Subject: pkix.Name{CommonName: node}, DNSNames: []string{node, "localhost"},
				IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(r.Header.Get("k3s-Node-IP"))},
			}
		})
	}))
	routes.Handle("/v1-k3s/client-kube-proxy.crt", s.forAgents(func(w http.ResponseWriter, r *http.Request, _ user) {
		s.sign(w, r, "client-ca", &x509.Certificate{Subject: pkix.Name{CommonName: "system:kube-proxy"}})
	}))
	routes.HandleFunc("/", s.forward)
	return routes
}

// Who asks, by certificate or password; nil: somebody whom the API server must know.
func (s *supervisor) caller(r *http.Request) (*user, error) {
	if certificates := r.TLS.PeerCertificates; len(certificates) > 0 {
		first := certificates[0]
		if _, err := first.Verify(x509.VerifyOptions{Roots: s.clientCA, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			return nil, err
		}
		return &user{first.Subject.CommonName, first.Subject.Organization}, nil
	}
	if name, password, ok := r.BasicAuth(); ok {
		if subtle.ConstantTimeCompare([]byte(password), []byte(s.password)) != 1 || (name != "node" && name != "server") {
			return nil, errors.New("wrong password")
		}
		return &user{name, map[string][]string{"node": {"k3s:agent"}, "server": {"k3s:server"}}[name]}, nil
	}
	return nil, nil
}

func (s *supervisor) forward(w http.ResponseWriter, r *http.Request) {
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Remote-") {
			r.Header.Del(name)
		}
	}
	caller, err := s.caller(r)
	_, _, isPassword := r.BasicAuth()
	switch {
	// Passwords of k3s are for its own paths; the API server knows none.
	case err != nil || isPassword:
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	case caller == nil:
		s.asThemself.ServeHTTP(w, r)
	default:
		r.Header.Del("Authorization")
		r.Header.Set("X-Remote-User", caller.name)
		for _, group := range caller.groups {
			r.Header.Add("X-Remote-Group", group)
		}
		s.asUser.ServeHTTP(w, r)
	}
}

// For nodes, and for those who have a token with which to become one.
func (s *supervisor) forAgents(serve func(http.ResponseWriter, *http.Request, user)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := s.caller(r)
		if err == nil && caller == nil {
			caller, err = s.review(r)
		}
		if err != nil {
			fmt.Printf("level=error msg=%q\n", r.URL.Path+": "+err.Error())
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		for _, group := range []string{"k3s:agent", "system:nodes", "system:bootstrappers"} {
			if slices.Contains(caller.groups, group) {
				serve(w, r, *caller)
				return
			}
		}
		http.Error(w, "Forbidden", http.StatusForbidden)
	})
}

// What the API server says of a token.
func (s *supervisor) review(r *http.Request) (*user, error) {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return nil, errors.New("no credential")
	}
	var review struct {
		Status struct {
			Authenticated bool
			User          struct {
				Username string
				Groups   []string
			}
		}
	}
	question := map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": map[string]any{"token": token},
	}
	if err := s.admin.ask(http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", question, &review); err != nil {
		return nil, err
	}
	if !review.Status.Authenticated {
		return nil, errors.New("the token is not valid")
	}
	return &user{review.Status.User.Username, review.Status.User.Groups}, nil
}

func (s *supervisor) config(w http.ResponseWriter, _ *http.Request, _ user) {
	_, pods, _ := net.ParseCIDR(s.m.pods)
	_, services, _ := net.ParseCIDR(s.m.services)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"ClusterIPRange": pods, "ServiceIPRange": services, "ClusterIPRanges": []any{pods}, "ServiceIPRanges": []any{services},
		"ClusterDNS": net.ParseIP(s.m.dns), "ClusterDomain": s.m.text("cluster-domain", "cluster.local"),
		"FlannelBackend": s.m.text("flannel-backend", "vxlan"), "EgressSelectorMode": s.m.text("egress-selector-mode", "agent"),
		"EncryptSecrets": s.m.is("secrets-encryption"), "DisableNPC": s.m.is("disable-network-policy"),
		"DisableHelmController": s.m.is("disable-helm-controller"), "DisableCCM": s.m.is("disable-cloud-controller"),
		"DisableServiceLB": slices.Contains(s.m.settings["disable"], "servicelb"), "EmbeddedRegistry": s.m.is("embedded-registry"),
	})
}

// What makes another server one of this cluster, for whoever has the token of servers. Only etcd takes further ones.
func (s *supervisor) bootstrap(w http.ResponseWriter, r *http.Request) {
	caller, err := s.caller(r)
	switch {
	case err != nil || caller == nil || !slices.Contains(caller.groups, "k3s:server"):
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	case !s.m.hasEtcd():
		http.NotFound(w, r)
		return
	}
	files := map[string][]byte{}
	for _, name := range bootstrapFiles {
		text, err := os.ReadFile(filepath.Join(s.m.data, "server/tls", name))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		files[name] = text
	}
	_ = json.NewEncoder(w).Encode(files)
}

// A certificate of a node, for whoever has its password, or names it first.
func (s *supervisor) forNode(w http.ResponseWriter, r *http.Request, caller user, ca string, of func(string) *x509.Certificate) {
	node, password := strings.ToLower(r.Header.Get("k3s-Node-Name")), r.Header.Get("k3s-Node-Password")
	if node == "" || password == "" {
		http.Error(w, "node name or password not set", http.StatusBadRequest)
		return
	}
	if name, isNode := strings.CutPrefix(caller.name, "system:node:"); isNode {
		if name != node {
			http.Error(w, "header node name does not match auth node name", http.StatusBadRequest)
			return
		}
		if err := s.admin.ask(http.MethodGet, "/api/v1/nodes/"+node, nil, nil); err != nil {
			http.Error(w, "unable to verify node identity: "+err.Error(), http.StatusUnauthorized)
			return
		}
	}
	if err := s.ensurePassword(node, password); err != nil {
		fmt.Printf("level=error msg=%q\n", err.Error())
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	s.sign(w, r, ca, of(node))
}

func (m *machine) ensureOwnPassword() error {
	admin, err := m.adminAPI(apiServer)
	if err != nil {
		return err
	}
	password, err := os.ReadFile("/etc/rancher/node/password")
	if err != nil {
		return err
	}
	return (&supervisor{m: m, admin: admin}).ensurePassword(m.node, strings.TrimSpace(string(password)))
}

// Another machine has the name of the node, or had it.
var errPassword = errors.New("the hash is another one")

func (s *supervisor) ensurePassword(node, password string) error {
	const secrets = "/api/v1/namespaces/kube-system/secrets"
	name := node + ".node-password.k3s"
	var secret struct{ Data map[string]string }
	err := s.admin.ask(http.MethodGet, secrets+"/"+name, nil, &secret)
	if err == nil {
		known, _ := base64.StdEncoding.DecodeString(secret.Data["hash"])
		parts := strings.Split(string(known), ":")
		if len(parts) == 3 && passwordHash(parts[1], password) == string(known) {
			return nil
		}
		return fmt.Errorf("unable to verify password for node %s: %w", node, errPassword)
	}
	if !strings.HasPrefix(err.Error(), "404") {
		return err
	}
	salt := rand.Text()
	return s.admin.ask(http.MethodPost, secrets, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name}, "immutable": true,
		"stringData": map[string]string{"hash": passwordHash(salt, password)},
	}, nil)
}

func passwordHash(salt, password string) string {
	sum, _ := pbkdf2.Key(sha256.New, password, []byte(salt), 10000, 32)
	return "$1:" + salt + ":" + base64.RawStdEncoding.EncodeToString(sum)
}

// Signs the key of a request. As in k3s, what is in the request besides does not count.
func (s *supervisor) sign(w http.ResponseWriter, r *http.Request, authority string, wanted *x509.Certificate) {
	signed, err := func() ([]byte, error) {
		der, err := io.ReadAll(io.LimitReader(r.Body, bodyMax))
		if err != nil {
			return nil, err
		}
		request, err := x509.ParseCertificateRequest(der)
		if err != nil {
			return nil, err
		}
		if err := request.CheckSignature(); err != nil {
			return nil, err
		}
		file := filepath.Join(s.m.data, "server/tls", authority)
		pair, err := tls.LoadX509KeyPair(file+".crt", file+".key")
		if err != nil {
			return nil, err
		}
		wanted.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 63))
		if err != nil {
			return nil, err
		}
		wanted.NotBefore, wanted.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(365*24*time.Hour)
		wanted.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
		wanted.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if authority == "server-ca" {
			wanted.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}
		leaf, err := x509.CreateCertificate(rand.Reader, wanted, pair.Leaf, request.PublicKey, pair.PrivateKey)
		if err != nil {
			return nil, err
		}
		var text bytes.Buffer
		for _, der := range [][]byte{leaf, pair.Certificate[0]} {
			if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
				return nil, err
			}
		}
		return text.Bytes(), nil
	}()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(signed)
}

// A client of a Kubernetes API.
type api struct {
	base   string
	client *http.Client
}

func newAPI(base, ca, certificate, key string) (*api, error) {
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	return &api{base, &http.Client{Transport: transport, Timeout: 10 * time.Second}}, nil
}

func (m *machine) adminAPI(base string) (*api, error) {
	file := func(name string) string { return filepath.Join(m.data, "server/tls", name) }
	return newAPI(base, file("server-ca.crt"), file("client-admin.crt"), file("client-admin.key"))
}

func (a *api) ask(method, path string, question, answer any) error {
	var body io.Reader
	if question != nil {
		text, err := json.Marshal(question)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(context.Background(), method, a.base+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	got, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	text, err := io.ReadAll(io.LimitReader(got.Body, 16*bodyMax))
	if err != nil {
		return err
	}
	if got.StatusCode >= 300 {
		return fmt.Errorf("%s: %s", got.Status, path)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}
