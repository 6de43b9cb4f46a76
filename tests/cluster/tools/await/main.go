// Program await waits until a cluster has come so far, asking every 50 ms, and says
// at its deadline what was still missing. kubectl could do the same, but takes 0.1 s
// of processor time for each look, just when the cluster needs it to start.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"
)

type settings struct {
	server, ca, certificate, key, token, node, serving, until string
	within                                                    time.Duration
}

func main() {
	var s settings
	flag.StringVar(&s.server, "server", "", "address of the API server, https://HOST:PORT")
	flag.StringVar(&s.ca, "ca", "", "file with the CA of the API server")
	flag.StringVar(&s.certificate, "cert", "", "file with the client certificate")
	flag.StringVar(&s.key, "key", "", "file with the client key")
	flag.StringVar(&s.token, "token", "", "file with a bearer token, instead of the certificate")
	flag.StringVar(&s.node, "node", "", "name of the node")
	flag.StringVar(&s.serving, "serving", "", "file with the serving certificate to wait for")
	flag.StringVar(&s.until, "until", "api", "listening: it takes connections; api: /readyz says ok; node: it is Ready, and pods can be made; accepted, refused: what the API answers to the token; serving: that certificate is shown")
	flag.DurationVar(&s.within, "within", 30*time.Second, "deadline")
	flag.Parse()
	if err := await(s); err != nil {
		fmt.Fprintln(os.Stderr, "await:", err)
		os.Exit(1)
	}
}

func await(s settings) error {
	look, err := look(s)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.within)
	defer cancel()
	missing := error(context.DeadlineExceeded)
	for {
		// One slow answer must not use up the whole time.
		once, done := context.WithTimeout(ctx, 5*time.Second)
		err := look(once)
		done()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			missing = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", s.within, missing)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func look(s settings) (func(context.Context) error, error) {
	if s.until == "serving" {
		return certificateShown(s)
	}
	config := &tls.Config{}
	if s.ca != "" {
		pem, err := os.ReadFile(s.ca)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(pem)
	}
	if s.certificate != "" {
		pair, err := tls.LoadX509KeyPair(s.certificate, s.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	// A new connection each time: what is asked for is that one can be made.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	token := ""
	if s.token != "" {
		content, err := os.ReadFile(s.token)
		if err != nil {
			return nil, err
		}
		token = string(content)
	}
	ask := func(ctx context.Context, path string) (int, []byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server+path, nil)
		if err != nil {
			return 0, nil, err
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, nil, err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
		return response.StatusCode, body, err
	}
	switch s.until {
	case "listening":
		return func(ctx context.Context) error { _, _, err := ask(ctx, "/livez"); return err }, nil
	case "api":
		return func(ctx context.Context) error { return expect(ctx, ask, "/readyz", http.StatusOK) }, nil
	case "accepted":
		return func(ctx context.Context) error { return expectKnown(ctx, ask, true) }, nil
	case "refused":
		return func(ctx context.Context) error { return expectKnown(ctx, ask, false) }, nil
	case "node":
		return func(ctx context.Context) error { return nodeReady(ctx, ask, s.node) }, nil
	}
	return nil, fmt.Errorf("unknown -until %q", s.until)
}

type asker func(context.Context, string) (int, []byte, error)

func expect(ctx context.Context, ask asker, path string, wanted int) error {
	code, body, err := ask(ctx, path)
	if err != nil {
		return err
	}
	if code != wanted {
		return fmt.Errorf("%s answers %d: %.300s", path, code, body)
	}
	return nil
}

// A known token may still be forbidden (403) to read something; only 401 says that the
// API server does not know who is asking.
func expectKnown(ctx context.Context, ask asker, wanted bool) error {
	code, body, err := ask(ctx, "/api")
	if err != nil {
		return err
	}
	if known := code != http.StatusUnauthorized; code >= 500 || known != wanted {
		return fmt.Errorf("the API answers %d: %.300s", code, body)
	}
	return nil
}

func nodeReady(ctx context.Context, ask asker, name string) error {
	path := "/api/v1/nodes/" + name
	code, body, err := ask(ctx, path)
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return fmt.Errorf("%s answers %d: %.300s", path, code, body)
	}
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := json.Unmarshal(body, &node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == "Ready" {
			if condition.Status == "True" {
				// Without this account no pod can be made in the namespace yet.
				return expect(ctx, ask, "/api/v1/namespaces/default/serviceaccounts/default", http.StatusOK)
			}
			return fmt.Errorf("node %s is not Ready: %s", name, condition.Message)
		}
	}
	return fmt.Errorf("node %s has no Ready condition yet", name)
}

// certificateShown looks at the certificate and judges nothing about it: it may be
// expired, or from a CA that nobody knows.
func certificateShown(s settings) (func(context.Context) error, error) {
	content, err := os.ReadFile(s.serving)
	if err != nil {
		return nil, err
	}
	wanted, _ := pem.Decode(content)
	address, err := url.Parse(s.server)
	if err != nil || wanted == nil {
		return nil, fmt.Errorf("%s: no certificate, or %q is no address", s.serving, s.server)
	}
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	return func(ctx context.Context) error {
		connection, err := dialer.DialContext(ctx, "tcp", address.Host)
		if err != nil {
			return err
		}
		defer connection.Close()
		shown := connection.(*tls.Conn).ConnectionState().PeerCertificates
		if len(shown) == 0 || !bytes.Equal(shown[0].Raw, wanted.Bytes) {
			return errors.New("the API server still shows another certificate")
		}
		return nil
	}, nil
}
