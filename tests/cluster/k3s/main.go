// Program k3s stands in for k3s where no release can be had: the upstream programs that
// tests/cluster builds, in one file that unpacks itself, under k3s's commands, file
// layout and behaviour as far as the tests use them. README.md of tests/cluster says
// what is real.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// Set by the linker.
var version = "v0.0.0+k3s0"

const (
	kubeconfigFile   = "/etc/rancher/k3s/k3s.yaml"
	containerdSocket = "/run/k3s/containerd/containerd.sock"
)

func main() {
	arguments := os.Args
	switch filepath.Base(arguments[0]) {
	case "kubectl", "ctr":
		arguments = append([]string{"k3s"}, arguments...)
		arguments[1] = filepath.Base(arguments[1])
	}
	if len(arguments) < 2 {
		usage()
	}
	switch rest := arguments[2:]; arguments[1] {
	case "--version", "-v":
		fmt.Printf("k3s version %s (stand-in)\ngo version %s\n", version, runtime.Version())
	case "server":
		fail(server(rest))
	case "agent":
		fail(agent(rest))
	case "token":
		fail(token(rest))
	case "etcd-snapshot":
		fail(etcdSnapshot(rest))
	case "kubectl":
		if os.Getenv("KUBECONFIG") == "" {
			fail(os.Setenv("KUBECONFIG", kubeconfigFile))
		}
		fail(become("kubectl", rest))
	case "ctr":
		fail(become("ctr", append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, rest...)))
	default:
		usage()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: k3s --version | server|agent [--data-dir DIR] [--config FILE] | token create|list|delete | etcd-snapshot save|ls | kubectl ... | ctr ...   (a stand-in: the rest of k3s is not here)")
	os.Exit(2)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "level=fatal msg="+fmt.Sprintf("%q", err.Error()))
		os.Exit(1)
	}
}

// Runs an unpacked program in the place of this one.
func become(name string, arguments []string) error {
	settings, err := readSettings(nil)
	if err != nil {
		return err
	}
	bin, err := unpack(settings.dataDir())
	if err != nil {
		return err
	}
	program := filepath.Join(bin, name)
	return syscall.Exec(program, append([]string{name}, arguments...), os.Environ())
}
