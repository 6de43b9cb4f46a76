package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// The body that /echo gives back in its JSON; longer ones are still hashed and counted.
const echoedBytesMax = 1 << 20

func serve() error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	server := &http.Server{Handler: routes(), ReadHeaderTimeout: 30 * time.Second}
	secure := &http.Server{
		Handler:           routes(),
		ReadHeaderTimeout: 30 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}},
	}
	plain, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	encrypted, err := net.Listen("tcp", ":8443")
	if err != nil {
		return err
	}
	stream, err := net.Listen("tcp", ":7007")
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", ":7007")
	if err != nil {
		return err
	}
	ended := make(chan error, 4)
	go func() { ended <- server.Serve(plain) }()
	go func() { ended <- secure.ServeTLS(encrypted, "", "") }()
	go func() { ended <- echoStreams(stream) }()
	go func() { ended <- echoPackets(packets) }()
	log.Print("http :8080, https :8443, tcp and udp echo :7007")
	return <-ended
}

func routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", echo)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/bytes", sendBytes)
	mux.HandleFunc("/drip", drip)
	mux.HandleFunc("/slow", slow)
	mux.HandleFunc("/status/", status)
	mux.HandleFunc("/ws", webSocket)
	return mux
}

type echoed struct {
	Method    string      `json:"method"`
	Path      string      `json:"path"`
	Query     url.Values  `json:"query"`
	Headers   http.Header `json:"headers"`
	Host      string      `json:"host"`
	Remote    string      `json:"remote"`
	TLS       bool        `json:"tls"`
	Body      string      `json:"body"`
	BodyIs    string      `json:"body_is"`
	BodyBytes int64       `json:"body_bytes"`
	BodyHash  string      `json:"body_sha256"`
	Pod       string      `json:"pod"`
}

// Every request that no other route takes is answered with what arrived here.
func echo(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	head, err := io.ReadAll(io.LimitReader(io.TeeReader(r.Body, hash), echoedBytesMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	rest, err := io.Copy(hash, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := echoed{
		Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.Query(), Headers: r.Header,
		Host: r.Host, Remote: r.RemoteAddr, TLS: r.TLS != nil,
		Body: string(head), BodyIs: "text",
		BodyBytes: int64(len(head)) + rest, BodyHash: hex.EncodeToString(hash.Sum(nil)),
		Pod: os.Getenv("HOSTNAME"),
	}
	if !utf8.Valid(head) {
		answer.Body, answer.BodyIs = hex.EncodeToString(head), "hex"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// number reads one query parameter; a wrong one is the caller's mistake.
func number(w http.ResponseWriter, r *http.Request, name string, standard int64) (int64, bool) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return standard, true
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil || value < 0 {
		http.Error(w, name+" is not a number: "+text, http.StatusBadRequest)
		return 0, false
	}
	return value, true
}

// /bytes?n=N streams N bytes; byte i is i modulo 251, so a shifted or lost piece shows.
// chunked=1 leaves the length out.
func sendBytes(w http.ResponseWriter, r *http.Request) {
	count, ok := number(w, r, "n", 1024)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if r.URL.Query().Get("chunked") == "" {
		w.Header().Set("Content-Length", strconv.FormatInt(count, 10))
	}
	pattern := make([]byte, 251*256)
	for i := range pattern {
		pattern[i] = byte(i % 251)
	}
	for count > 0 {
		piece := pattern[:min(count, int64(len(pattern)))]
		written, err := w.Write(piece)
		if err != nil {
			return
		}
		count -= int64(written)
	}
}

// /drip?n=N&ms=M sends N numbered lines, one each M milliseconds, each flushed.
func drip(w http.ResponseWriter, r *http.Request) {
	lines, ok := number(w, r, "n", 10)
	if !ok {
		return
	}
	ms, ok := number(w, r, "ms", 100)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	flusher, _ := w.(http.Flusher)
	for line := int64(1); line <= lines; line++ {
		if _, err := fmt.Fprintf(w, "drip %d\n", line); err != nil {
			return
		}
		flusher.Flush()
		if !pauseUnlessGone(r, ms) {
			return
		}
	}
}

// /slow?ms=M answers after M milliseconds.
func slow(w http.ResponseWriter, r *http.Request) {
	ms, ok := number(w, r, "ms", 1000)
	if ok && pauseUnlessGone(r, ms) {
		fmt.Fprintln(w, "slow answer")
	}
}

// pauseUnlessGone is false if the client went away in the meantime; that is logged, so
// that a test can see that cancelling a request really arrived here.
func pauseUnlessGone(r *http.Request, ms int64) bool {
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
		return true
	case <-r.Context().Done():
		log.Printf("client gone: %s %s", r.Method, r.URL)
		return false
	}
}

// /status/NNN answers with that status.
func status(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/status/"))
	if err != nil || code < 200 || code > 599 {
		http.Error(w, "status must be 200 to 599", http.StatusBadRequest)
		return
	}
	w.Header().Set("X-Test-Status", strconv.Itoa(code))
	w.WriteHeader(code)
	if code != http.StatusNoContent && code != http.StatusNotModified {
		fmt.Fprintf(w, "status %d\n", code)
	}
}

// /ws gives every text and binary message back as it came, takes the first subprotocol
// that is offered, and answers pings and close as the standard asks.
func webSocket(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{
		CheckOrigin:  func(*http.Request) bool { return true },
		Subprotocols: websocket.Subprotocols(r),
	}
	connection, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer connection.Close()
	for {
		kind, message, err := connection.ReadMessage()
		if err != nil {
			log.Printf("websocket ended: %v", err)
			return
		}
		if err := connection.WriteMessage(kind, message); err != nil {
			return
		}
	}
}

func echoStreams(listener net.Listener) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			_, err := io.Copy(connection, connection)
			if err != nil && !errors.Is(err, net.ErrClosed) {
				log.Printf("tcp echo ended: %v", err)
			}
		}()
	}
}

func echoPackets(connection net.PacketConn) error {
	packet := make([]byte, 64<<10)
	for {
		count, from, err := connection.ReadFrom(packet)
		if err != nil {
			return err
		}
		if _, err := connection.WriteTo(packet[:count], from); err != nil {
			log.Printf("udp echo: %v", err)
		}
	}
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "testpod"},
		DNSNames:     []string{"testpod", "localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(10 * 365 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
