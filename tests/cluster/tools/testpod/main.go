// Program testpod is what runs inside the pods of the test cluster: servers whose
// answers can be checked byte by byte, a producer of log lines, and the sandbox's
// "pause". It is static and shares its image with busybox.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const usage = `usage: testpod serve            the servers: http :8080, https :8443, tcp and udp echo :7007
       testpod log [INTERVAL_MS]  a numbered line with the time on stdout, for ever
       testpod pause            holds a pod's namespaces
`

func main() {
	mode := "serve"
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	switch mode {
	case "serve":
		fail(serve())
	case "log":
		produceLog(os.Args[2:])
	case "pause":
		pause()
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "testpod:", err)
		os.Exit(1)
	}
}

// Each line carries its number, so that a reader can tell whether one is missing or
// came twice, and the time, so that it can tell how late it came.
func produceLog(args []string) {
	interval := 100 * time.Millisecond
	if len(args) > 0 {
		ms, err := strconv.Atoi(args[0])
		fail(err)
		interval = time.Duration(ms) * time.Millisecond
	}
	ticker := time.NewTicker(interval)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	for number := 1; ; number++ {
		fmt.Printf("line %d %s\n", number, time.Now().UTC().Format(time.RFC3339Nano))
		select {
		case <-ticker.C:
		case <-stop:
			return
		}
	}
}

// The kernel hands orphans to process 1 of the pod when its processes share one
// process namespace; they are reaped here.
func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil || pid <= 0 {
				break
			}
		}
	}
}
