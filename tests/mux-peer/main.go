// A peer for the tests of the agent's yamux: hashicorp/yamux as a gateway uses it. It dials the address given, is the server
// of the session, opens streams and checks what comes back. The first byte of a stream tells the other side what to do with it
// (see tests/it/mux.rs). The last line of output is "ok" with figures; anything else is a failure.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

const deadline = 100 * time.Second

func main() {
	conn, err := net.Dial("tcp", os.Args[1])
	check(err)
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	config.EnableKeepAlive = false
	session, err := yamux.Server(conn, config)
	check(err)
	streams, size := number(3), number(4)
	time.AfterFunc(deadline, func() { fail("no end after", deadline) })
	began := time.Now()
	switch os.Args[2] {
	case "echo":
		each(streams, func(n int) { echo(session, n, size) })
	case "download":
		each(streams, func(n int) { download(session, size) })
	case "flood":
		flood(session, streams)
	case "unread":
		unread(session, streams, size)
	case "stall":
		stall(session, streams, size)
	case "abort":
		abort(session, streams)
	case "goaway":
		goAway(session, size)
	default:
		fail("unknown", os.Args[2])
	}
	_, err = session.Ping()
	check(err)
	fmt.Println("ok", time.Since(began).Milliseconds())
	// The other side ends the session when it has looked at what is left.
	io.Copy(io.Discard, os.Stdin)
}

func number(index int) int {
	if len(os.Args) <= index {
		return 0
	}
	value, err := strconv.Atoi(os.Args[index])
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func fail(why ...any) {
	fmt.Println(append([]any{"failed:"}, why...)...)
	os.Exit(1)
}

func each(count int, run func(n int)) {
	var group sync.WaitGroup
	for n := 0; n < count; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			run(n)
		}(n)
	}
	group.Wait()
}

func open(session *yamux.Session, command string) *yamux.Stream {
	stream, err := session.OpenStream()
	check(err)
	_, err = stream.Write([]byte(command))
	check(err)
	return stream
}

func sized(command string, size int) string {
	return command + string(binary.BigEndian.AppendUint64(nil, uint64(size)))
}

// Sends, half-closes, and compares what comes back.
func echo(session *yamux.Session, seed, size int) {
	stream := open(session, "E")
	sent, received := sha256.New(), sha256.New()
	go func() {
		random := rand.New(rand.NewSource(int64(seed)))
		_, err := io.Copy(io.MultiWriter(stream, sent), io.LimitReader(random, int64(size)))
		check(err)
		check(stream.Close())
	}()
	count, err := io.Copy(received, stream)
	check(err)
	if count != int64(size) || !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		fail("other bytes came back:", count, "of", size)
	}
}

func download(session *yamux.Session, size int) {
	stream := open(session, sized("S", size))
	count, err := io.Copy(io.Discard, stream)
	check(err)
	if count != int64(size) {
		fail("downloaded", count, "of", size)
	}
	check(stream.Close())
}

// Opens streams as fast as it can, and closes each at once, while another stream works. Those that are refused are no failure; the
// session is, and the stream that was there before.
func flood(session *yamux.Session, count int) {
	var group sync.WaitGroup
	group.Add(1)
	working := open(session, "E")
	go func() {
		defer group.Done()
		block := make([]byte, 10_000)
		for n := 0; n < 300; n++ {
			_, err := working.Write(block)
			check(err)
			_, err = io.ReadFull(working, block)
			check(err)
		}
		check(working.Close())
	}()
	began := time.Now()
	for n := 0; n < count; n++ {
		stream, err := session.OpenStream()
		check(err)
		stream.Write([]byte("E"))
		check(stream.Close())
	}
	fmt.Fprintln(os.Stderr, "openings a second:", float64(count)/time.Since(began).Seconds())
	group.Wait()
	// The slots come free when the streams that were closed have been looked at.
	for {
		stream := open(session, "E")
		check(stream.Close())
		if _, err := io.Copy(io.Discard, stream); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Opens streams whose answer it never reads, and then does something else.
func unread(session *yamux.Session, count, size int) {
	for n := 0; n < count; n++ {
		open(session, sized("S", size))
	}
	each(8, func(n int) { echo(session, n, 1<<20) })
}

// Fills the windows of streams that the other side never reads. Some are reset to free memory; no other stream suffers.
func stall(session *yamux.Session, count, size int) {
	each(count, func(int) {
		stream := open(session, "N")
		stream.SetWriteDeadline(time.Now().Add(2 * time.Second))
		_, err := stream.Write(make([]byte, size))
		if !errors.Is(err, yamux.ErrTimeout) && !errors.Is(err, yamux.ErrConnectionReset) && !errors.Is(err, yamux.ErrStreamClosed) {
			fail("a stream that nobody reads took everything:", err)
		}
	})
	each(8, func(n int) { echo(session, n, 1<<20) })
}

// Streams that the other side resets show it here, in the middle of a write or of a read.
func abort(session *yamux.Session, count int) {
	each(count, func(int) {
		stream := open(session, sized("R", 100_000))
		_, err := stream.Write(make([]byte, 4<<20))
		if !errors.Is(err, yamux.ErrConnectionReset) && !errors.Is(err, yamux.ErrStreamClosed) {
			fail("a write to a stream that was reset:", err)
		}
		if _, err := io.Copy(io.Discard, stream); !errors.Is(err, yamux.ErrConnectionReset) {
			fail("a read of a stream that was reset:", err)
		}
	})
	echo(session, 1, 1<<20)
}

// Says that it goes away while a download runs, which still comes to its end.
func goAway(session *yamux.Session, size int) {
	var group sync.WaitGroup
	group.Add(1)
	stream := open(session, sized("S", size))
	go func() {
		defer group.Done()
		count, err := io.Copy(io.Discard, stream)
		check(err)
		if count != int64(size) {
			fail("cut at", count, "of", size)
		}
	}()
	check(session.GoAway())
	group.Wait()
}
