//! One proxied request, before it is known what carries it.

use std::collections::BTreeMap;

use hyper::body::Bytes;
use serde_json::{Map, Value};

use crate::options::{BodyForm, Mode};

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

/// Headers as an object of arrays.
pub(crate) fn headers(list: &[(String, String)]) -> Value {
    let mut object: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in list {
        object.entry(name).or_default().push(value);
    }
    serde_json::to_value(object).unwrap_or(Value::Null)
}
