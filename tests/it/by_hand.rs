//! An API server's side of one HTTP request, by hand: for servers of a few lines, whose connections
//! have one request each.

use std::{
    io::{BufRead, Write},
    net::TcpStream,
};

use serde_json::Value;

/// What was asked.
pub(crate) struct Request {
    /// Path and query, as they were sent.
    pub(crate) path: String,
    /// The body; empty where there is none.
    pub(crate) body: Vec<u8>,
}

/// Reads one request; `None` where the client went away, or said something else.
pub(crate) fn read(reader: &mut impl BufRead) -> Option<Request> {
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    Some(Request { path, body })
}

/// Answers it, and says that the connection ends here.
pub(crate) fn answer(stream: &mut TcpStream, status: &str, body: &Value) -> Option<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()
}

/// A kubeconfig for such a server: no TLS, and nothing to say who asks.
pub(crate) fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {{server: \"{server}\"}}\n\
         users:\n- name: u\n  user: {{}}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\ncurrent-context: c\n"
    )
}
