package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const tokenSecrets = "/api/v1/namespaces/kube-system/secrets"

// `k3s token create|list|delete`: bootstrap tokens, which are Secrets that the API server itself knows and forgets.
func token(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("token create [--ttl 24h] [--description TEXT] | list | delete ID")
	}
	what, rest := arguments[0], arguments[1:]
	var names []string
	for len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		names, rest = append(names, rest[0]), rest[1:]
	}
	settings, err := readSettings(rest)
	if err != nil {
		return err
	}
	m := &machine{settings: settings, data: settings.dataDir()}
	admin, err := m.adminAPI("https://127.0.0.1:6443")
	if err != nil {
		return err
	}
	switch what {
	case "create":
		return m.createToken(admin)
	case "list":
		return listTokens(admin)
	case "delete":
		for _, name := range names {
			id, _, _ := strings.Cut(name, ".")
			if err := admin.ask(http.MethodDelete, tokenSecrets+"/bootstrap-token-"+id, nil, nil); err != nil {
				return err
			}
			fmt.Printf("bootstrap token %q deleted\n", id)
		}
		return nil
	}
	return fmt.Errorf("token %s: not in this stand-in", what)
}

func (m *machine) createToken(admin *api) error {
	ttl, err := time.ParseDuration(m.text("ttl", "24h"))
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(m.data, "server/tls/server-ca.crt"))
	if err != nil {
		return err
	}
	letters := strings.ToLower(rand.Text())
	id, secret := letters[:6], letters[6:22]
	data := map[string]string{
		"token-id": id, "token-secret": secret, "description": m.text("description", ""),
		"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		"auth-extra-groups": "system:bootstrappers:k3s:default-node-token",
	}
	if ttl > 0 {
		data["expiration"] = time.Now().Add(ttl).UTC().Format(time.RFC3339)
	}
	err = admin.ask(http.MethodPost, tokenSecrets, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": map[string]any{"name": "bootstrap-token-" + id}, "stringData": data,
	}, nil)
	if err != nil {
		return err
	}
	fmt.Printf("K10%s::%s.%s\n", hashOfCA(ca), id, secret)
	return nil
}

func listTokens(admin *api) error {
	var found struct {
		Items []struct{ Data map[string]string }
	}
	if err := admin.ask(http.MethodGet, tokenSecrets+"?fieldSelector=type%3Dbootstrap.kubernetes.io%2Ftoken", nil, &found); err != nil {
		return err
	}
	fmt.Println("TOKEN     TTL       EXPIRES   DESCRIPTION")
	for _, item := range found.Items {
		field := func(name string) string {
			text, _ := base64.StdEncoding.DecodeString(item.Data[name])
			return string(text)
		}
		ttl, expires := "<forever>", "<never>"
		if end, err := time.Parse(time.RFC3339, field("expiration")); err == nil {
			ttl, expires = time.Until(end).Round(time.Second).String(), end.Format(time.RFC3339)
		}
		fmt.Printf("%s    %s    %s    %s\n", field("token-id"), ttl, expires, field("description"))
	}
	return nil
}
