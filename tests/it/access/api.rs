//! An API server as far as these tests ask it: a token, four namespaces, lists, deletions, and a
//! watch that goes on until it is hung up.

use std::{
    io::{BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};

use crate::by_hand;

/// It ends with the process of the tests.
pub(crate) struct Api {
    port: u16,
    seen: Arc<Seen>,
}

/// What it saw, and whether its namespaces are what they were.
#[derive(Default)]
struct Seen {
    watches: AtomicUsize,
    /// Looks at namespaces and rights.
    looks: AtomicUsize,
    is_changed: AtomicBool,
}

impl Api {
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread for each connection; they end with the process of the tests"
    )]
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Seen>::default();
        let counted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || serve(stream, &counted));
            }
        });
        Self { port, seen }
    }

    /// Watches of ConfigMaps and Secrets that run.
    pub(super) fn watches(&self) -> usize {
        self.seen.watches.load(Ordering::SeqCst)
    }

    /// How often a namespace or a right was looked at.
    pub(super) fn looks(&self) -> usize {
        self.seen.looks.load(Ordering::SeqCst)
    }

    /// From here on the namespaces `unlabelled`, `recreated`, `deleted` and `silent` are what they
    /// are called.
    pub(super) fn change_namespaces(&self) {
        self.seen.is_changed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn kubeconfig(&self) -> String {
        by_hand::kubeconfig(&format!("http://127.0.0.1:{}", self.port))
    }
}

/// Answers one request, as every connection has one.
fn serve(mut stream: TcpStream, seen: &Seen) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let request = by_hand::read(&mut reader)?;
    let path = request.path.as_str();
    if path.starts_with("/api/v1/configmaps?watch") || path.contains("/secrets?watch") {
        watch(stream, reader, &seen.watches);
        return Some(());
    }
    let namespace = path.strip_prefix("/api/v1/namespaces/");
    let namespace = namespace.filter(|name| !name.contains('/'));
    if namespace.is_some() || path.ends_with("/selfsubjectaccessreviews") {
        seen.looks.fetch_add(1, Ordering::SeqCst);
    }
    let changing = ["unlabelled", "recreated", "deleted", "silent", "annotated"];
    let (status, body) = match namespace.filter(|name| changing.contains(name)) {
        Some(name) => changeable(name, seen.is_changed.load(Ordering::SeqCst)),
        None => answer(path, &request.body),
    };
    by_hand::answer(&mut stream, status, &body)
}

/// A managed namespace, or what it has become.
fn changeable(name: &str, is_changed: bool) -> (&'static str, Value) {
    let managed =
        json!({"pipeops.io/managed": "true", "pod-security.kubernetes.io/enforce": "baseline"});
    let head = |uid: &str, labels: Value| {
        let metadata = json!({"name": name, "uid": uid, "labels": labels});
        ("200 OK", json!({"kind": "Namespace", "metadata": metadata}))
    };
    match (is_changed, name) {
        (true, "unlabelled") => head("1", json!({})),
        (true, "recreated") => head("2", managed),
        (true, "deleted") => ("404 Not Found", json!({"reason": "NotFound"})),
        (true, "silent") => (
            "500 Internal Server Error",
            json!({"reason": "InternalError"}),
        ),
        _ => head("1", managed),
    }
}

fn answer(path: &str, sent: &[u8]) -> (&'static str, Value) {
    let path = path.split('?').next().unwrap_or(path);
    let list = json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []});
    let shop =
        json!({"pipeops.io/managed": "true", "pod-security.kubernetes.io/enforce": "baseline"});
    let namespace =
        |labels: Value| json!({"kind": "Namespace", "metadata": {"name": "x", "labels": labels}});
    match path {
        "/api/v1/pods" | "/api/v1/nodes" => ("200 OK", list),
        "/version" => ("200 OK", json!({"gitVersion": "v1.34.1"})),
        "/api/v1/namespaces/shop" => ("200 OK", namespace(shop)),
        "/api/v1/namespaces/plain" => ("200 OK", namespace(json!({}))),
        "/api/v1/namespaces/broken" => (
            "500 Internal Server Error",
            json!({"reason": "InternalError"}),
        ),
        "/api/v1/namespaces/shop/pods/a" => ("200 OK", json!({"kind": "Status"})),
        path if path.ends_with("/rolebindings") && !sent.is_empty() => {
            ("201 Created", serde_json::from_slice(sent).unwrap())
        }
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
            ("201 Created", json!({"status": {"allowed": true}}))
        }
        // Of an agent of an earlier installation there is none.
        "/api/v1/namespaces/pipeops-system/pods" => ("200 OK", list),
        path if path.ends_with("/serviceaccounts/pipeops-cp/token") => {
            ("201 Created", json!({"status": {"token": "narrow"}}))
        }
        _ => ("404 Not Found", json!({"reason": "NotFound"})),
    }
}

fn watch(mut stream: TcpStream, mut reader: impl Read, watches: &AtomicUsize) {
    let event = "{\"type\":\"ADDED\",\"object\":{}}\n";
    let begun = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
        event.len()
    );
    watches.fetch_add(1, Ordering::SeqCst);
    stream.write_all(begun.as_bytes()).ok();
    // Whoever watches says nothing more, until it hangs up.
    reader.read_exact(&mut [0]).ok();
    watches.fetch_sub(1, Ordering::SeqCst);
}
