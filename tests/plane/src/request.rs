//! One proxied request, before it is known what carries it.

use std::collections::BTreeMap;

use hyper::body::Bytes;
use hyper::{Request, header};
use serde_json::{Map, Value};

use crate::options::{BodyForm, Mode};
use crate::relay::SCHEME;
use crate::streams::{Outgoing, Target};

/// A service in the cluster, as `proxy_request` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u16,
    /// `http` or `https`; without it nothing is said.
    pub scheme: Option<String>,
}

/// One request to proxy. The default is `GET /version` of the Kubernetes API, streamed.
#[derive(Clone, Debug)]
pub struct ProxyRequest {
    /// The cluster; without it the newest session takes the request.
    pub cluster_id: Option<String>,
    /// The method.
    pub method: String,
    /// The decoded path.
    pub path: String,
    /// The raw query without `?`.
    pub query: String,
    /// Headers in order; a name may come more than once.
    pub headers: Vec<(String, String)>,
    /// The service to ask instead of the Kubernetes API.
    pub service: Option<Service>,
    /// The body.
    pub body: Bytes,
    /// How the body travels.
    pub body_form: BodyForm,
    /// How the answer travels.
    pub mode: Mode,
    /// `timeout` in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Fields of the payload that are set last, over all others (`null` removes one).
    pub extra: Map<String, Value>,
}

impl Default for ProxyRequest {
    fn default() -> Self {
        Self {
            cluster_id: None,
            method: "GET".to_owned(),
            path: "/version".to_owned(),
            query: String::new(),
            headers: Vec::new(),
            service: None,
            body: Bytes::new(),
            body_form: BodyForm::Auto,
            mode: Mode::Streaming,
            timeout_ms: None,
            extra: Map::new(),
        }
    }
}

impl ProxyRequest {
    /// A `GET` of a path of the Kubernetes API; what follows `?` is the query.
    pub fn get(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self {
            path: path.to_owned(),
            query: query.to_owned(),
            ..Self::default()
        }
    }

    /// Returns whether it says something that only messages can carry.
    pub(crate) fn is_for_messages(&self) -> bool {
        self.mode != Mode::Streaming
            || self.body_form != BodyForm::Auto
            || self.timeout_ms.is_some()
            || !self.extra.is_empty()
    }

    /// The request as HTTP for a stream, and where the stream goes.
    pub(crate) fn http(&self) -> Result<(Target, Request<Outgoing>), String> {
        let target = match &self.service {
            None => Target::Kubernetes,
            Some(service) => Target::Service {
                namespace: service.namespace.clone(),
                name: service.name.clone(),
                port: service.port,
            },
        };
        let mut uri = percent_encode(&self.path);
        if !self.query.is_empty() {
            uri.push('?');
            uri.push_str(&self.query);
        }
        let mut request = Request::builder().method(&*self.method).uri(uri);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let is_tls = |service: &Service| service.scheme.as_deref() == Some("https");
        if self.service.as_ref().is_some_and(is_tls) {
            request = request.header(SCHEME, "https");
        }
        let has_host = self
            .headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"));
        if let Some(host) = target.host().filter(|_| !has_host) {
            request = request.header(header::HOST, host);
        }
        let body = (!self.body.is_empty()).then(|| self.body.clone());
        let request = request.body(Outgoing::Whole(body));
        let request = request.map_err(|error| format!("it is no HTTP: {error}"))?;
        Ok((target, request))
    }

    /// The payload of `proxy_request` but for the body.
    pub(crate) fn payload(&self) -> Map<String, Value> {
        let mut payload = Map::new();
        let mut set = |name: &str, value: Value| payload.insert(name.to_owned(), value);
        set("method", self.method.clone().into());
        set("path", self.path.clone().into());
        if !self.query.is_empty() {
            set("query", self.query.clone().into());
        }
        set("headers", headers(&self.headers));
        if self.mode == Mode::Streaming {
            set("supports_response_streaming", true.into());
        }
        if let Some(service) = &self.service {
            set("namespace", service.namespace.clone().into());
            set("service_name", service.name.clone().into());
            set("service_port", service.port.into());
            if let Some(scheme) = &service.scheme {
                set("scheme", scheme.clone().into());
            }
        }
        if let Some(timeout_ms) = self.timeout_ms {
            set("timeout", timeout_ms.into());
        }
        payload
    }

    /// Sets the extra fields over what is there.
    pub(crate) fn finish(&self, mut payload: Map<String, Value>) -> Value {
        for (name, value) in &self.extra {
            if value.is_null() {
                payload.remove(name);
            } else {
                payload.insert(name.clone(), value.clone());
            }
        }
        Value::Object(payload)
    }
}

/// A decoded path as one of HTTP: what a path may hold stays.
fn percent_encode(path: &str) -> String {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
    ];
    let digit = |bits: u8| HEX.get(usize::from(bits)).copied().unwrap_or_default();
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        let kept = char::from(byte);
        if kept.is_ascii_alphanumeric() || "/-._~!$&'()*+,;=:@".contains(kept) {
            out.push(kept);
        } else {
            out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    out
}

/// Headers as an object of arrays.
pub(crate) fn headers(list: &[(String, String)]) -> Value {
    let mut object: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in list {
        object.entry(name).or_default().push(value);
    }
    serde_json::to_value(object).unwrap_or(Value::Null)
}
