package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// Settings by the long name of their flag, as k3s reads them: config.yaml, then
// config.yaml.d in order, then the command line. A later value replaces an earlier one;
// a key with "+" at its end adds to it.
type settings map[string][]string

const configFile = "/etc/rancher/k3s/config.yaml"

func readSettings(flags []string) (settings, error) {
	all, given := settings{}, settings{}
	for len(flags) > 0 {
		name, value, found := strings.Cut(strings.TrimPrefix(flags[0], "--"), "=")
		flags = flags[1:]
		if !found {
			switch {
			case isSwitch[name]:
				value = "true"
			case len(flags) == 0:
				return nil, fmt.Errorf("flag --%s needs a value", name)
			default:
				value, flags = flags[0], flags[1:]
			}
		}
		given[name] = append(given[name], value)
	}
	main := configFile
	if named := given["config"]; len(named) > 0 {
		main = named[0]
	}
	files, err := filepath.Glob(main + ".d/*.yaml")
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	for _, file := range append([]string{main}, files...) {
		content, err := os.ReadFile(file)
		if os.IsNotExist(err) || os.IsPermission(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := all.merge(string(content)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	for name, values := range given {
		all[name] = values
	}
	return all, nil
}

// The YAML that configuration files of k3s consist of: scalars and lists of scalars.
func (s settings) merge(text string) error {
	key := ""
	for number, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "#") || trimmed == "---" {
			continue
		}
		if item, found := strings.CutPrefix(trimmed, "- "); found {
			if key == "" {
				return fmt.Errorf("yaml: line %d: an item of no list", number+1)
			}
			s[key] = append(s[key], scalar(item))
			continue
		}
		name, value, found := strings.Cut(trimmed, ":")
		if !found || line != strings.TrimLeft(line, " \t") {
			return fmt.Errorf("yaml: line %d: not understood: %s", number+1, trimmed)
		}
		name = scalar(name)
		key = strings.TrimSuffix(name, "+")
		if key == name {
			delete(s, key)
		}
		value = strings.TrimSpace(value)
		if list, found := strings.CutPrefix(value, "["); found {
			for _, item := range strings.Split(strings.TrimSuffix(list, "]"), ",") {
				if item = scalar(item); item != "" {
					s[key] = append(s[key], item)
				}
			}
		} else if value != "" {
			s[key] = append(s[key], scalar(value))
		}
	}
	return nil
}

// Flags without a value.
var isSwitch = map[string]bool{"cluster-init": true, "cluster-reset": true, "etcd-snapshot-compress": true, "etcd-s3": true}

func (s settings) is(name string) bool { return s.text(name, "false") == "true" }

func scalar(text string) string {
	return strings.Trim(strings.TrimSpace(text), `"'`)
}

func (s settings) text(name, otherwise string) string {
	if values := s[name]; len(values) > 0 {
		return values[len(values)-1]
	}
	return otherwise
}

func (s settings) dataDir() string { return s.text("data-dir", "/var/lib/rancher/k3s") }

func (s settings) nodeName() string {
	host, _ := os.Hostname()
	return strings.ToLower(s.text("node-name", host))
}

// The address of the node: of the interface with the default route, without which k3s
// does not start either.
func (s settings) address() (string, error) {
	if address := s.text("node-ip", ""); address != "" {
		own, err := net.InterfaceAddrs()
		if err != nil {
			return "", err
		}
		for _, each := range own {
			if network, ok := each.(*net.IPNet); ok && network.IP.String() == address {
				return address, nil
			}
		}
		return "", fmt.Errorf("failed to find interface with specified node ip %s", address)
	}
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(routes), "\n")[1:] {
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[1] != "00000000" || fields[7] != "00000000" {
			continue
		}
		link, err := net.InterfaceByName(fields[0])
		if err != nil {
			return "", err
		}
		addresses, err := link.Addrs()
		if err != nil {
			return "", err
		}
		for _, address := range addresses {
			if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil {
				return network.IP.String(), nil
			}
		}
	}
	return "", fmt.Errorf("no default routes found in \"/proc/net/route\" or \"/proc/net/ipv6_route\"")
}
