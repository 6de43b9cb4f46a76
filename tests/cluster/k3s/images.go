package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Label of the images that k3s has pinned, beside that of containerd.
const pinnedByK3s = "io.cattle.k3s.pinned"

// An archive that was imported, as .cache.json has it.
type imported struct {
	Size    int64     `json:"size"`
	ModTime time.Time `json:"modTime"`
}

// Archives of agent/images, as k3s imports them at each start, and pins their images. With a .cache.json it does as the
// versions before July 2026 (k3s 14265): those that did not change are skipped, and their images are no longer pinned.
func (m *machine) importImages() error {
	listens := func() error {
		connection, err := net.DialTimeout("unix", containerdSocket, time.Second)
		if err != nil {
			return err
		}
		return connection.Close()
	}
	if err := until(time.Minute, listens); err != nil {
		return err
	}
	names, err := m.images("ls", "--quiet", `labels."`+pinnedByK3s+`"==pinned`)
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(names) {
		if err := m.labelImage(name, ""); err != nil {
			return err
		}
	}
	archives, err := filepath.Glob(filepath.Join(m.data, "agent/images/*.tar"))
	if err != nil {
		return err
	}
	cacheFile := filepath.Join(m.data, "agent/images/.cache.json")
	text, noCache := os.ReadFile(cacheFile)
	cache := map[string]imported{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &cache); err != nil {
			return fmt.Errorf("cannot read %s: %w", cacheFile, err)
		}
	}
	for _, archive := range archives {
		info, err := os.Stat(archive)
		if err != nil {
			return err
		}
		now := imported{info.Size(), info.ModTime().UTC().Truncate(time.Second)}
		if cache[archive] == now {
			continue
		}
		if err := m.importArchive(archive); err != nil {
			return err
		}
		cache[archive] = now
	}
	if noCache != nil {
		return nil
	}
	if text, err = json.Marshal(cache); err != nil {
		return err
	}
	return os.WriteFile(cacheFile, text, 0o600)
}

// Seconds that the import takes as on a slow card, where a test says so. k3s has told the service manager by then that it
// is up, because its API is, and starts the kubelet afterwards.
const slowFile = "/run/k3s-slow-import"

func (m *machine) importSlowly(notify string) error {
	text, err := os.ReadFile(slowFile)
	if err != nil {
		return nil
	}
	seconds, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", slowFile, err)
	}
	if err := tellManager(notify); err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(seconds) * time.Second):
		return nil
	case <-m.stopping.Done():
		return m.stopping.Err()
	}
}

var unpacking = regexp.MustCompile(`(?m)^unpacking (\S+) \(`)

func (m *machine) importArchive(archive string) error {
	said, err := m.images("import", archive)
	if err != nil {
		return fmt.Errorf("cannot import %s: %w", archive, err)
	}
	names := unpacking.FindAllStringSubmatch(said, -1)
	if len(names) == 0 {
		return fmt.Errorf("no image in %s: %s", archive, said)
	}
	for _, name := range names {
		if err := m.labelImage(name[1], "pinned"); err != nil {
			return err
		}
	}
	fmt.Printf("level=info msg=\"imported images from %s\"\n", archive)
	return nil
}

func (m *machine) labelImage(name, value string) error {
	_, err := m.images("label", name, pinnedByK3s+"="+value, "io.cri-containerd.pinned="+value)
	return err
}

func (m *machine) images(words ...string) (string, error) {
	words = append([]string{"--address", containerdSocket, "--namespace", "k8s.io", "images"}, words...)
	said, err := exec.Command(filepath.Join(m.bin, "ctr"), words...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return string(said), nil
}
