package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

const (
	etcdClients = "http://127.0.0.1:2379"
	snapshots   = "server/db/snapshots"
)

// What servers of a cluster share, below server/tls.
var bootstrapFiles = []string{
	"server-ca.crt", "server-ca.key", "server-ca-next.crt", "server-ca-next.key", "client-ca.crt", "client-ca.key",
	"request-header-ca.crt", "request-header-ca.key", "service.key",
}

func (m *machine) etcdDir() string { return filepath.Join(m.data, "server/db/etcd") }

func (m *machine) resetFlag() string { return filepath.Join(m.data, "server/db/reset-flag") }

func (m *machine) isMember() bool {
	_, err := os.Stat(filepath.Join(m.etcdDir(), "member"))
	return err == nil
}

// Embedded etcd, where it was begun or is asked for; kine on SQLite otherwise.
func (m *machine) hasEtcd() bool {
	return m.isMember() || m.is("cluster-init") || m.text("server", "") != ""
}

// Starts the datastore, and returns where the API server finds it.
func (m *machine) startDatastore() (string, error) {
	if !m.hasEtcd() {
		// As versions before March 2026 do (k3s 13728).
		if _, err := m.memberName(); err != nil {
			return "", err
		}
		socket := "unix://" + filepath.Join(m.data, "server/kine.sock")
		database := "sqlite://" + filepath.Join(m.data, "server/db/state.db") + "?_journal=WAL&cache=shared&_busy_timeout=30000&_txlock=immediate"
		m.run("kine", "--endpoint", database, "--listen-address", socket, "--metrics-bind-address", "0")
		return socket, nil
	}
	if _, err := os.Stat(filepath.Join(m.data, "server/db/state.db")); err == nil {
		return "", errors.New("this stand-in does not move SQLite into etcd")
	}
	if err := os.Remove(m.resetFlag()); err != nil && !os.IsNotExist(err) {
		return "", err
	}
	name, err := m.memberName()
	if err != nil {
		return "", err
	}
	joins := !m.isMember() && m.text("server", "") != ""
	cluster, state := name+"="+m.peer(), "new"
	if joins {
		if cluster, err = m.addMember(name); err != nil {
			return "", fmt.Errorf("cannot join the etcd of %s: %w", m.text("server", ""), err)
		}
		state = "existing"
	}
	m.run("etcd", m.etcdFlags(name, "--initial-cluster="+cluster, "--initial-cluster-state="+state)...)
	if joins {
		// Refused until it has what the others have.
		err = until(2*time.Minute, m.promote)
	} else {
		err = until(5*time.Minute, func() error {
			_, err := m.etcdctl(etcdClients, "endpoint", "health")
			return err
		})
	}
	if err != nil {
		return "", err
	}
	// Without an end, as k3s does it.
	for {
		if err = m.knowsAddress(name); err == nil {
			return etcdClients, nil
		}
		say("info", "Failed to test etcd connection: "+err.Error())
		if err := m.pause(5 * time.Second); err != nil {
			return "", err
		}
	}
}

// The others know a member by its address: one that has another now is none of them.
func (m *machine) knowsAddress(name string) error {
	members, err := m.members(etcdClients)
	if err != nil {
		return err
	}
	var found []string
	for _, member := range members {
		if member.peer == m.peer() && member.name == name {
			return nil
		}
		found = append(found, member.name+"="+member.peer)
	}
	return fmt.Errorf("this server is a not a member of the etcd cluster. Found %v, expect: %s=%s", found, name, m.peer())
}

func (m *machine) peer() string { return "http://" + m.address + ":2380" }

func (m *machine) etcdFlags(name string, more ...string) []string {
	return append([]string{
		"--name=" + name, "--data-dir=" + m.etcdDir(), "--logger=zap", "--log-level=warn",
		// Those of k3s, in milliseconds.
		"--heartbeat-interval=500", "--election-timeout=5000",
		"--listen-client-urls=" + etcdClients + ",http://" + m.address + ":2379", "--advertise-client-urls=http://" + m.address + ":2379",
		"--listen-peer-urls=" + m.peer(), "--initial-advertise-peer-urls=" + m.peer(),
	}, more...)
}

// The name of this member: of its node, and something of its own, as in k3s.
func (m *machine) memberName() (string, error) {
	file := filepath.Join(m.etcdDir(), "name")
	if known, err := os.ReadFile(file); err == nil {
		return string(known), nil
	}
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	name := m.node + "-" + hex.EncodeToString(random)
	if err := os.MkdirAll(m.etcdDir(), 0o700); err != nil {
		return "", err
	}
	return name, os.WriteFile(file, []byte(name), 0o600)
}

func (m *machine) etcdctl(endpoint string, arguments ...string) (string, error) {
	command := exec.Command(filepath.Join(m.bin, "etcdctl"), append([]string{"--endpoints=" + endpoint, "--command-timeout=10s"}, arguments...)...)
	command.Env = append(os.Environ(), "ETCDCTL_API=3")
	var said, complained bytes.Buffer
	command.Stdout, command.Stderr = &said, &complained
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("etcdctl %s: %w: %s", arguments[0], err, strings.TrimSpace(complained.String()))
	}
	return said.String(), nil
}

// Where the servers of the cluster have their etcd: the first one's is enough.
func (m *machine) firstServer() (string, error) {
	j, err := m.joining()
	if err != nil {
		return "", err
	}
	return "http://" + j.server.Hostname() + ":2379", nil
}

// Makes this machine a learner of the cluster, as k3s does it: one that never comes up costs no quorum.
func (m *machine) addMember(name string) (string, error) {
	first, err := m.firstServer()
	if err != nil {
		return "", err
	}
	// Of an attempt that was cut off.
	members, err := m.members(first)
	if err != nil {
		return "", err
	}
	for _, member := range members {
		if member.peer == m.peer() {
			if _, err := m.etcdctl(first, "member", "remove", member.id); err != nil {
				return "", err
			}
		}
	}
	said, err := m.etcdctl(first, "member", "add", name, "--learner", "--peer-urls="+m.peer())
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(said, "\n") {
		if value, found := strings.CutPrefix(line, "ETCD_INITIAL_CLUSTER="); found {
			return strings.Trim(value, `"`), nil
		}
	}
	return "", errors.New("etcdctl does not name the cluster")
}

func (m *machine) promote() error {
	first, err := m.firstServer()
	if err != nil {
		return err
	}
	members, err := m.members(first)
	if err != nil {
		return err
	}
	for _, member := range members {
		if member.peer == m.peer() && member.isLearner {
			_, err := m.etcdctl(first, "member", "promote", member.id)
			return err
		}
	}
	return nil
}

type member struct {
	id, name, peer string
	isLearner      bool
}

func (m *machine) members(endpoint string) ([]member, error) {
	said, err := m.etcdctl(endpoint, "member", "list")
	if err != nil {
		return nil, err
	}
	var all []member
	for _, line := range strings.Split(strings.TrimSpace(said), "\n") {
		if fields := strings.Split(line, ", "); len(fields) >= 6 {
			all = append(all, member{fields[0], fields[2], fields[3], fields[5] == "true"})
		}
	}
	return all, nil
}

// Removes the members of nodes that are deleted, which wait for it as in k3s: whoever deletes one knows that the others do not count it.
func (m *machine) forgetMembers(admin *api) {
	defer m.running.Done()
	for {
		var nodes struct {
			Items []struct {
				Metadata struct{ Name, DeletionTimestamp string }
			}
		}
		_ = admin.ask(http.MethodGet, "/api/v1/nodes", nil, &nodes)
		for _, node := range nodes.Items {
			if node.Metadata.DeletionTimestamp == "" {
				continue
			}
			if err := m.forgetMember(admin, node.Metadata.Name); err != nil {
				fmt.Printf("level=error msg=%q\n", err.Error())
			}
		}
		select {
		case <-m.stopping.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

func (m *machine) forgetMember(admin *api, node string) error {
	members, err := m.members(etcdClients)
	if err != nil {
		return err
	}
	for _, member := range members {
		switch name := member.name[:max(strings.LastIndex(member.name, "-"), 0)]; {
		case name != node || len(members) == 1:
		case name == m.node:
			// That is for another one.
			return nil
		default:
			if _, err := m.etcdctl(etcdClients, "member", "remove", member.id); err != nil {
				return err
			}
			fmt.Printf("level=info msg=\"Removed etcd member %s\"\n", member.name)
		}
	}
	return admin.ask(http.MethodPatch, "/api/v1/nodes/"+node, map[string]any{"metadata": map[string]any{"finalizers": nil}}, nil)
}

// The roles of a server, which its kubelet may not claim, and its hold on the member of etcd.
func (m *machine) label(admin *api) error {
	labels := map[string]string{"node-role.kubernetes.io/control-plane": "true"}
	metadata := map[string]any{"labels": labels}
	if m.hasEtcd() {
		labels["node-role.kubernetes.io/etcd"] = "true"
		metadata["finalizers"] = []string{"wrangler.cattle.io/managed-etcd-controller"}
	}
	return admin.ask(http.MethodPatch, "/api/v1/nodes/"+m.node, map[string]any{"metadata": metadata}, nil)
}

// Takes from the first server what makes this one of its cluster, unless it has it already.
func (m *machine) joinServers() error {
	if m.text("server", "") == "" || m.isMember() {
		return nil
	}
	j, err := m.joining()
	if err != nil {
		return err
	}
	if j.user == "" {
		return errors.New("failed to validate token: a bootstrap token is for agents only")
	}
	// With every password; k3s asks for the settings as a node, too.
	j.user = "node"
	_, trust, err := j.authority()
	if err != nil {
		return fmt.Errorf("failed to validate connection to cluster at %s: %w", j.server, err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}}
	if err := j.compare(client); err != nil {
		return err
	}
	j.user = "server"
	answer, err := j.get(client, http.MethodGet, "/v1-k3s/server-bootstrap", nil)
	if err != nil {
		return fmt.Errorf("failed to bootstrap from %s: %w", j.server, err)
	}
	files := map[string][]byte{}
	if err := json.Unmarshal(answer, &files); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(m.data, "server/tls"), 0o700); err != nil {
		return err
	}
	for _, name := range bootstrapFiles {
		if err := os.WriteFile(filepath.Join(m.data, "server/tls", name), files[name], 0o600); err != nil {
			return err
		}
	}
	m.settings["token"] = []string{j.password}
	return nil
}

// Settings that all servers must share.
func (j *joining) compare(client *http.Client) error {
	answer, err := j.get(client, http.MethodGet, "/v1-k3s/config", nil)
	if err != nil {
		return err
	}
	var theirs, ours map[string]any
	if err := json.Unmarshal(answer, &theirs); err != nil {
		return err
	}
	_, j.dns, err = serviceAddresses(j.services)
	if err != nil {
		return err
	}
	var own bytes.Buffer
	(&supervisor{m: j.machine}).config(recorder{&own}, nil, user{})
	if err := json.Unmarshal(own.Bytes(), &ours); err != nil {
		return err
	}
	var differ []string
	for name, value := range ours {
		if fmt.Sprint(value) != fmt.Sprint(theirs[name]) {
			differ = append(differ, name)
		}
	}
	if len(differ) == 0 {
		return nil
	}
	sort.Strings(differ)
	return fmt.Errorf("critical configuration mismatched: %s", strings.Join(differ, ", "))
}

type recorder struct{ *bytes.Buffer }

func (recorder) Header() http.Header { return http.Header{} }
func (recorder) WriteHeader(int)     {}

// `k3s server --cluster-reset [--cluster-reset-restore-path FILE]`: a cluster of this member alone.
func (m *machine) reset() error {
	if _, err := os.Stat(m.resetFlag()); err == nil {
		return fmt.Errorf("cluster-reset was successfully performed, please remove the cluster-reset flag and restart normally, if you need to perform another cluster reset, you must first manually delete the file %s", m.resetFlag())
	}
	snapshot := m.text("cluster-reset-restore-path", "")
	if snapshot == "" {
		return errors.New("this stand-in resets to a snapshot only")
	}
	// As k3s, which looks for the path in the bucket then.
	if m.is("etcd-s3") {
		return errors.New("this stand-in has no bucket to take the snapshot from")
	}
	if _, err := os.Stat(snapshot); err != nil {
		return fmt.Errorf("etcd: snapshot path does not exist: %w", err)
	}
	if _, err := os.Stat(m.etcdDir()); err == nil {
		if err := os.Rename(m.etcdDir(), fmt.Sprintf("%s-old-%d", m.etcdDir(), time.Now().Unix())); err != nil {
			return err
		}
	}
	name, err := m.memberName()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(m.etcdDir()); err != nil {
		return err
	}
	_, err = m.etcdctl(etcdClients, "snapshot", "restore", snapshot, "--data-dir="+m.etcdDir(), "--name="+name,
		"--initial-cluster="+name+"="+m.peer(), "--initial-advertise-peer-urls="+m.peer())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.etcdDir(), "name"), []byte(name), 0o600); err != nil {
		return err
	}
	fmt.Println(`level=info msg="Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. Backup and delete ${datadir}/server/db on each peer etcd server and rejoin the nodes"`)
	return os.WriteFile(m.resetFlag(), nil, 0o600)
}

// `k3s etcd-snapshot save [--name NAME] [--dir DIR]` and `ls`.
func etcdSnapshot(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("etcd-snapshot save [--name NAME] [--dir DIR] | ls")
	}
	m, _, err := newMachine(arguments[1:])
	if err != nil {
		return err
	}
	if !m.isMember() {
		return errors.New("etcd datastore disabled")
	}
	dir := m.text("dir", m.text("etcd-snapshot-dir", filepath.Join(m.data, snapshots)))
	switch arguments[0] {
	case "save":
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		name := fmt.Sprintf("%s-%s-%d", m.text("name", "on-demand"), m.node, time.Now().Unix())
		if _, err := m.etcdctl(etcdClients, "snapshot", "save", filepath.Join(dir, name)); err != nil {
			return err
		}
		fmt.Printf("level=info msg=\"Snapshot %s saved.\"\n", name)
		return nil
	case "ls", "list":
		files, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		fmt.Println("Name Location Size Created")
		for _, file := range files {
			if info, err := file.Info(); err == nil {
				fmt.Printf("%s file://%s %d %s\n", file.Name(), filepath.Join(dir, file.Name()), info.Size(), info.ModTime().UTC().Format(time.RFC3339))
			}
		}
		return nil
	}
	return fmt.Errorf("etcd-snapshot %s: not in this stand-in", arguments[0])
}
