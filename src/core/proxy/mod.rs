//! Routing of a proxied request: its validity, target and time limits. It knows neither frames nor
//! connections.
//!
//! [`route`] turns a request into a [`Call`]: a path that was canonicalised once and is judged and
//! sent in that form, end-to-end headers, a target, and a time limit. Whether the call is permitted
//! is decided in [`policy`](crate::core::policy).

mod headers;
mod path;
mod query;
mod slots;

use std::time::Duration;

pub use headers::{end_to_end, first, values};
pub use path::{KubePath, MAX_PATH_BYTES, service_path};
pub use query::{query, query_flag, query_value, query_values};
pub use slots::{Admission, Class, Slots, WAIT_MAX};

use crate::core::time::{Mono, Now, Wall};

/// Header names as sent, each with its values.
pub type HeaderList = Vec<(String, Vec<String>)>;

/// Scheme of a target service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// By TLS.
    Https,
}

/// The time limit that the caller set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Limit {
    /// None: the default to the head of the response, then idle limits.
    Default,
    /// Until then; may be over already.
    Deadline(Wall),
    /// After this duration.
    Timeout(Duration),
}

/// Request as it was sent, before it is routed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RawRequest {
    /// Empty: GET.
    pub method: String,
    /// Path; may hold percent escapes.
    pub path: String,
    /// Raw query without `?`.
    pub query: String,
    /// Request headers.
    pub headers: HeaderList,
    /// Scheme of the service.
    pub scheme: Scheme,
    /// Namespace of the service; empty: none.
    pub namespace: String,
    /// Name of the service; empty: none.
    pub service: String,
    /// Port of the service; 0 or less: none.
    pub port: i64,
    /// True if the caller says that it is a WebSocket.
    pub is_websocket: bool,
    /// Subprotocols; not blank: it is a WebSocket.
    pub protocol: String,
    /// The caller's time limit.
    pub limit: Limit,
}

impl RawRequest {
    /// A request to the Kubernetes API, with nothing to it but what it asks for.
    pub fn kubernetes(method: &str, path: &str, query: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: Vec::new(),
            scheme: Scheme::Http,
            namespace: String::new(),
            service: String::new(),
            port: 0,
            is_websocket: false,
            protocol: String::new(),
            limit: Limit::Default,
        }
    }
}

/// Presence of an API server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cluster {
    /// An API server is configured.
    Known,
    /// The agent runs without a cluster.
    None,
}

/// A request that makes sense. What is in it is what is judged, audited and sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Call {
    /// In capitals, a valid token.
    pub method: String,
    /// Target, with the canonical path.
    pub target: CallTarget,
    /// Raw query without `?`, safe to be sent.
    pub query: String,
    /// End-to-end headers, without `Host`, `Content-Length` and the WebSocket handshake.
    pub headers: HeaderList,
    /// A plain request or a WebSocket.
    pub form: Form,
    /// Class of slots that it takes.
    pub class: Class,
    /// The caller's time limit.
    pub limit: Limit,
}

/// Target of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CallTarget {
    /// The API server.
    Kubernetes(KubePath),
    /// A service in the cluster.
    Service(Service),
}

/// A service in the cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Service {
    /// Its namespace, a valid name.
    pub namespace: String,
    /// Its name, a valid name.
    pub name: String,
    pub port: u16,
    pub scheme: Scheme,
    /// Canonical path, begins with a slash.
    pub path: String,
    /// The `Host` header that it gets; `None`: the service's own name.
    pub host: Option<String>,
}

/// The form of a call.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Form {
    /// Request and response.
    Plain,
    /// A WebSocket with these subprotocols, spoken by the agent.
    Socket(Vec<String>),
    /// A request to switch to this protocol; what follows passes through as it is.
    Upgrade(String),
}

/// Reason why a request is not run: the text that the caller reads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refusal(pub String);

/// Separator between a sentence and its fix.
const FIX: &str = "; fix";

impl Refusal {
    /// Problem and reason.
    pub fn sentence(&self) -> &str {
        self.0
            .rsplit_once(FIX)
            .map_or(&self.0, |(before, _)| before)
    }

    /// Fix, if there is one. The last one counts: the sentence before it repeats text of a
    /// stranger.
    pub fn fix(&self) -> Option<&str> {
        let (_, fix) = self.0.rsplit_once(FIX)?;
        Some(fix.split_once(": ")?.1)
    }
}

fn refuse<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(text.into()))
}

/// Limits of an exchange, from `started` on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Time when the head of the response must be there.
    pub head: Mono,
    /// Time when everything must be over; `None`: no such limit.
    pub total: Option<Mono>,
    /// Maximum silence of the response between two reads.
    pub idle: Duration,
}

/// Default time to the head of a response (docs/protocol.md, Routing).
const HEAD: Duration = Duration::from_secs(120);
/// Maximum silence of a short response.
const IDLE_SHORT: Duration = Duration::from_secs(120);
/// Maximum silence of a watch, a followed log or a WebSocket: a Pod that logs once a day is no
/// fault. TCP keep-alive finds dead peers, the session finds lost callers.
const IDLE_LONG: Duration = Duration::from_secs(24 * 3600);
/// Deadline of a handshake with a WebSocket backend.
const DIAL: Duration = Duration::from_secs(30);

impl Call {
    /// The limits of this call. A limit of the caller's is one for the whole exchange; without one
    /// only silence ends it.
    pub fn limits(&self, now: Now) -> Limits {
        let total = match self.limit {
            Limit::Default => None,
            Limit::Timeout(timeout) => Some(now.mono.after(timeout)),
            Limit::Deadline(wall) => {
                let left = wall.millis().saturating_sub(now.wall.millis()).max(0);
                let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
                Some(now.mono.after(left))
            }
        };
        let head = match self.form {
            Form::Plain => HEAD,
            Form::Socket(_) | Form::Upgrade(_) => DIAL,
        };
        let head = now.mono.after(head);
        Limits {
            // A deadline that is longer than the default is one for the head too.
            head: match (&self.form, total) {
                (Form::Plain, Some(total)) => total,
                (Form::Socket(_) | Form::Upgrade(_), Some(total)) => total.min(head),
                (_, None) => head,
            },
            total,
            idle: match self.class {
                Class::Short => IDLE_SHORT,
                Class::Long => IDLE_LONG,
            },
        }
    }

    /// The namespace that the call is about; `None`: the whole cluster.
    pub fn namespace(&self) -> Option<String> {
        match &self.target {
            CallTarget::Kubernetes(path) => {
                let mut segments = path.segments().skip_while(|part| *part != "namespaces");
                segments.nth(1).map(str::to_owned)
            }
            CallTarget::Service(service) => Some(service.namespace.clone()),
        }
    }

    /// The same for the audit: only that it watches or follows is repeated of the query.
    pub fn audit_line(&self) -> String {
        let flags = ["watch", "follow"].into_iter();
        let mut flags = flags.filter(|flag| query_flag(&self.query, flag));
        match (&self.target, self.class, flags.next()) {
            (CallTarget::Kubernetes(_), Class::Long, Some(flag)) => {
                format!("{}?{flag}=true", self.line())
            }
            _ => self.line(),
        }
    }

    /// The request in one line, without the query, which may hold secrets.
    pub fn line(&self) -> String {
        match &self.target {
            CallTarget::Kubernetes(path) => format!("{} {}", self.method, path.as_str()),
            CallTarget::Service(service) => format!(
                "{} {}/{}:{}{}",
                self.method, service.namespace, service.name, service.port, service.path
            ),
        }
    }
}

/// Routes a request, in the order of docs/protocol.md, Routing.
///
/// Hosts are not looked up yet, so a request that names no service and no path of the Kubernetes
/// API is refused. One that names such a path goes to the API server whatever its `Host` says: the
/// same words with another `Host` would get there too, and both are judged alike.
pub fn route(request: &RawRequest, cluster: Cluster) -> Result<Call, Refusal> {
    routed(request, cluster, is_socket(request), |target| {
        Ok(if is_socket(request) {
            Form::Socket(subprotocols(request, target)?)
        } else {
            Form::Plain
        })
    })
}

/// The same for a request that came as HTTP: what it wants to switch to passes through as it is.
pub fn route_http(request: &RawRequest, cluster: Cluster) -> Result<Call, Refusal> {
    let upgrade = upgrade(&request.headers)?;
    routed(request, cluster, upgrade.is_some(), |target| {
        let Some(protocol) = upgrade else {
            return Ok(Form::Plain);
        };
        let is_known = ["websocket", "spdy/3.1"].contains(&protocol.to_ascii_lowercase().as_str());
        match target {
            // HTTP/2 in the clear would carry requests that nobody judges.
            CallTarget::Service(_) if protocol.eq_ignore_ascii_case("h2c") => {
                refuse("invalid upgrade: h2c is not proxied")
            }
            CallTarget::Kubernetes(_) if !is_known => {
                refuse("invalid upgrade: the Kubernetes API knows websocket and SPDY/3.1")
            }
            CallTarget::Service(_) | CallTarget::Kubernetes(_) => Ok(Form::Upgrade(protocol)),
        }
    })
}

fn routed(
    request: &RawRequest,
    cluster: Cluster,
    switches: bool,
    form: impl FnOnce(&CallTarget) -> Result<Form, Refusal>,
) -> Result<Call, Refusal> {
    if cluster == Cluster::None {
        return refuse("kubernetes client not initialized");
    }
    let method = method(&request.method)?;
    let query = query(&request.query)?;
    headers::check(&request.headers)?;
    let triple = Triple::of(request);
    let is_kubernetes = path::is_kubernetes(&request.path);
    let target = match triple {
        Triple::Whole => CallTarget::Service(service(request)?),
        Triple::None | Triple::Part if is_kubernetes => {
            CallTarget::Kubernetes(KubePath::parse(&request.path)?)
        }
        Triple::None | Triple::Part if switches => {
            return refuse("missing service routing information for WebSocket");
        }
        Triple::Part => {
            return refuse(
                "incomplete service routing information: namespace, service_name and service_port are needed together",
            );
        }
        Triple::None => {
            return refuse(
                "no route: the request names neither a service nor a path of the Kubernetes API",
            );
        }
    };
    let form = form(&target)?;
    // A handshake that the agent speaks is a GET whatever the frame says: what is judged must be
    // what is sent.
    let method = match form {
        Form::Socket(_) => "GET".to_owned(),
        Form::Plain | Form::Upgrade(_) => method,
    };
    let mut headers = end_to_end(&request.headers);
    headers.retain(|(name, _)| !headers::is_ours(name, &target, &form));
    Ok(Call {
        method,
        class: class(&form, &target, &query),
        target,
        query,
        headers,
        form,
        limit: request.limit,
    })
}

/// Routes a `proxy_websocket_start`: always a WebSocket of the Kubernetes API (docs/protocol.md,
/// WebSockets of the Kubernetes API).
pub fn route_stream(request: &RawRequest, cluster: Cluster) -> Result<Call, Refusal> {
    if cluster == Cluster::None {
        return refuse("kubernetes client not initialized");
    }
    let path = &request.path;
    let is_plain = !path.contains(['%', '\\', '\r', '\n']);
    if !is_plain || !path::is_kubernetes(path) {
        return refuse(NOT_KUBERNETES);
    }
    let Ok(path) = KubePath::parse(path) else {
        return refuse(NOT_KUBERNETES);
    };
    headers::check(&request.headers)?;
    let raw: String = request
        .query
        .chars()
        .filter(|character| !matches!(character, '\r' | '\n' | '\0'))
        .collect();
    let target = CallTarget::Kubernetes(path);
    let form = Form::Socket(subprotocols(request, &target)?);
    let mut headers = end_to_end(&request.headers);
    headers.retain(|(name, _)| !headers::is_ours(name, &target, &form));
    Ok(Call {
        method: "GET".to_owned(),
        target,
        query: query(&raw)?,
        headers,
        form,
        class: Class::Long,
        limit: request.limit,
    })
}

const NOT_KUBERNETES: &str = "invalid path: must be a Kubernetes API path";

fn method(request: &str) -> Result<String, Refusal> {
    if request.is_empty() {
        return Ok("GET".to_owned());
    }
    let method = request.to_ascii_uppercase();
    if method.len() > 32 || !method.bytes().all(headers::is_token) {
        return refuse("invalid method");
    }
    // A proxy that answers CONNECT is an open tunnel; TRACE echoes credentials.
    if matches!(method.as_str(), "CONNECT" | "TRACE") {
        return refuse(format!("invalid method: {method} is not proxied"));
    }
    Ok(method)
}

/// Completeness of namespace, name and port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Triple {
    Whole,
    Part,
    None,
}

impl Triple {
    fn of(request: &RawRequest) -> Self {
        let parts = [
            !request.namespace.is_empty(),
            !request.service.is_empty(),
            request.port > 0,
        ];
        match parts {
            [true, true, true] => Self::Whole,
            [false, false, false] => Self::None,
            _ => Self::Part,
        }
    }
}

fn service(request: &RawRequest) -> Result<Service, Refusal> {
    name("service name", &request.service)?;
    name("namespace", &request.namespace)?;
    let Some(port) = u16::try_from(request.port).ok().filter(|port| *port > 0) else {
        return refuse(format!(
            "invalid service port: {} is not between 1 and 65535",
            request.port
        ));
    };
    let forwarded = is_socket(request).then(|| first(&request.headers, "x-forwarded-host"));
    let host = first(&request.headers, "host").or_else(|| forwarded.flatten());
    if let Some(host) = host
        && !headers::is_host(host)
    {
        return refuse("invalid Host header");
    }
    Ok(Service {
        namespace: request.namespace.clone(),
        name: request.service.clone(),
        port,
        scheme: request.scheme,
        path: service_path(&request.path)?,
        host: host.map(str::to_owned),
    })
}

/// Names of services and namespaces, as the existing agent checks them.
fn name(what: &str, text: &str) -> Result<(), Refusal> {
    let is_fine = (1..=253).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_fine {
        return Ok(());
    }
    refuse(format!(
        "invalid {what}: must be 1 to 253 of a-z, 0-9 and -, and neither begin nor end with -"
    ))
}

fn is_socket(request: &RawRequest) -> bool {
    let is_filled =
        |name| first(&request.headers, name).is_some_and(|value| !value.trim().is_empty());
    request.is_websocket
        || !request.protocol.trim().is_empty()
        || first(&request.headers, "upgrade")
            .is_some_and(|value| value.trim().eq_ignore_ascii_case("websocket"))
        || is_filled("sec-websocket-key")
        || is_filled("sec-websocket-version")
        || is_filled("sec-websocket-protocol")
}

/// Protocol of an HTTP upgrade: `Upgrade`, if `Connection` names it (RFC 9110, 7.8).
fn upgrade(headers: &HeaderList) -> Result<Option<String>, Refusal> {
    let is_nominated = headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"))
        .flat_map(|(_, values)| values)
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    let values: Vec<&String> = headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("upgrade"))
        .flat_map(|(_, values)| values)
        .collect();
    match values.as_slice() {
        [protocol] if is_nominated => {
            let protocol = protocol.trim();
            let is_fine = !protocol.is_empty()
                && protocol.len() <= 64
                && protocol
                    .bytes()
                    .all(|byte| byte == b'/' || headers::is_token(byte));
            if !is_fine {
                return refuse("invalid upgrade: name one protocol");
            }
            Ok(Some(protocol.to_owned()))
        }
        // A wish that is not for this connection goes no further, as hop-by-hop headers do.
        [] | [_] => Ok(None),
        _ => refuse("invalid upgrade: name one protocol"),
    }
}

/// The subprotocols to offer: the request's own field, then the header's, without doubles.
fn subprotocols(request: &RawRequest, target: &CallTarget) -> Result<Vec<String>, Refusal> {
    let from_headers = request
        .headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-protocol"))
        .flat_map(|(_, values)| values);
    let mut offered: Vec<String> = Vec::new();
    for list in std::iter::once(&request.protocol).chain(from_headers) {
        for protocol in list.split(',').map(str::trim) {
            if protocol.is_empty() || offered.iter().any(|other| other == protocol) {
                continue;
            }
            if offered.len() >= 16 || !protocol.bytes().all(headers::is_token) {
                return refuse("invalid WebSocket subprotocol");
            }
            offered.push(protocol.to_owned());
        }
    }
    if offered.is_empty()
        && let CallTarget::Kubernetes(path) = target
        && path.is_channel_stream()
    {
        offered = ["v4", "v3", "v2"]
            .map(|version| format!("{version}.channel.k8s.io"))
            .to_vec();
        offered.push("channel.k8s.io".to_owned());
    }
    Ok(offered)
}

fn class(form: &Form, target: &CallTarget, query: &str) -> Class {
    let CallTarget::Kubernetes(path) = target else {
        return match form {
            Form::Plain => Class::Short,
            Form::Socket(_) | Form::Upgrade(_) => Class::Long,
        };
    };
    let is_long = *form != Form::Plain
        || path.is_legacy_watch()
        || query_flag(query, "watch")
        || query_flag(query, "follow");
    if is_long { Class::Long } else { Class::Short }
}

#[cfg(test)]
mod tests;
