"""A server of releases over TLS that cuts off the first answer for each file half-way, and a proxy that leads every CONNECT to it. Below
/whole it knows no Range; below /busy its first answer for each file is that it has no time.

usage: server.py FOLDER CERTIFICATE KEY LOG; one line in LOG for each request: "get PATH FIRST_BYTE" and "connect HOST".
"""

import http.server
import pathlib
import socket
import ssl
import sys
import threading

folder, certificate, key, log = sys.argv[1:]
lock = threading.Lock()
begun = set()
busy = set()


def write(line):
    with lock, open(log, "a", encoding="utf-8") as file:
        file.write(line + "\n")


class Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = pathlib.Path(folder, self.path.lstrip("/"))
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        write(f"get {self.path} {first}")
        if self.path.startswith("/whole/"):
            first = 0
        if self.path.startswith("/busy/") and self.path not in busy:
            busy.add(self.path)
            return self.send_error((408, 429, 503)[len(busy) % 3])
        if not path.is_file():
            return self.send_error(404)
        body = path.read_bytes()
        if first and first >= len(body):
            return self.send_error(416)
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        if len(body) > 100_000 and self.path not in begun:
            begun.add(self.path)
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return None
        self.wfile.write(body[first:])
        return None

    def log_message(self, *_):
        pass


class Proxy(http.server.BaseHTTPRequestHandler):
    def do_CONNECT(self):
        write(f"connect {self.path}")
        with socket.create_connection(("127.0.0.1", 8443)) as there:
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            back = threading.Thread(target=pour, args=(there, self.connection), daemon=True)
            back.start()
            pour(self.connection, there)
            back.join()

    def log_message(self, *_):
        pass


def pour(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
files = http.server.ThreadingHTTPServer(("127.0.0.1", 8443), Files)
files.socket = context.wrap_socket(files.socket, server_side=True)
proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 3128), Proxy)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
write("ready")
files.serve_forever()
