//! Requests, ordinary and hostile, each with what the policy makes of it. The policy's own tests,
//! those against a real API server and the fuzz targets read them.

/// One line of a list.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// As it stands in the list.
    pub(crate) line: &'static str,
    /// `GET`, `POST` and so on.
    pub(crate) method: String,
    /// True if it is a WebSocket; the method is GET then.
    pub(crate) is_websocket: bool,
    /// Namespace, name and port of a service; `None`: the Kubernetes API.
    pub(crate) service: Option<(String, String, i64)>,
    /// Path.
    pub(crate) path: String,
    /// Query without `?`.
    pub(crate) query: String,
    /// Headers, in the order of the list.
    pub(crate) headers: Vec<(String, String)>,
    /// The verdict under `read-only`.
    pub(crate) read_only: &'static str,
    /// The verdict under `managed`.
    pub(crate) managed: &'static str,
    /// What it is for, or what a naive agent would let happen.
    pub(crate) naive: &'static str,
}

const LISTS: [&str; 6] = [
    include_str!("ordinary.txt"),
    include_str!("paths.txt"),
    include_str!("secrets.txt"),
    include_str!("enter.txt"),
    include_str!("cluster.txt"),
    include_str!("headers.txt"),
];

/// Every case of every list.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in LISTS.iter().flat_map(|list| list.lines()) {
        if let Some(header) = line.strip_prefix("+ ") {
            let (name, value) = header.split_once(':').expect("a header with its colon");
            let value = value.strip_prefix(' ').unwrap_or(value);
            let case = cases.last_mut().expect("a request above the header");
            case.headers.push((unescaped(name), unescaped(value)));
        } else if !line.is_empty() && !line.starts_with('#') {
            cases.push(case(line));
        }
    }
    cases
}

fn case(line: &'static str) -> Case {
    let [request, verdicts, naive]: [&str; 3] = line
        .split(" | ")
        .collect::<Vec<_>>()
        .try_into()
        .unwrap_or_else(|_| panic!("not three columns: {line}"));
    let (read_only, managed) = verdicts.split_once(' ').expect("two verdicts");
    let (service, request) = match request.strip_prefix("SVC ") {
        Some(rest) => {
            let (service, request) = rest.split_once(' ').expect("a service and a request");
            (Some(triple(service)), request)
        }
        None => (None, request),
    };
    let (method, target) = request.split_once(' ').expect("a method and a path");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_websocket = method == "WS";
    Case {
        line,
        method: if is_websocket {
            "GET".to_owned()
        } else {
            unescaped(method)
        },
        is_websocket,
        service,
        path: unescaped(path),
        query: unescaped(query),
        headers: Vec::new(),
        read_only,
        managed,
        naive,
    }
}

/// `namespace/name:port`.
fn triple(text: &str) -> (String, String, i64) {
    let (namespace, rest) = text.split_once('/').expect("namespace/name:port");
    let (name, port) = rest.rsplit_once(':').expect("namespace/name:port");
    let port = port.parse().expect("a port");
    (namespace.to_owned(), name.to_owned(), port)
}

/// Reads `\r`, `\n`, `\t`, `\0`, `\x20` and `\\`.
fn unescaped(text: &str) -> String {
    text.replace("\\\\", "\u{1}")
        .replace("\\r", "\r")
        .replace("\\n", "\n")
        .replace("\\t", "\t")
        .replace("\\0", "\0")
        .replace("\\x20", " ")
        .replace('\u{1}', "\\")
}
