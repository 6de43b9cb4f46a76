//! Kinds of requests in the audit, and their description in words.

use super::{OTHERS, RequestKind};
use crate::core::{
    access::Inquiry,
    policy::{Attributes, CallKind, Object, Verb, call_kind},
    proxy::{Call, CallTarget, Cluster, Form, query_flag, route},
};

impl RequestKind {
    /// Returns the kind of a call.
    pub fn of(call: &Call) -> Self {
        let is_plain = call.form == Form::Plain;
        let enters = match (is_plain, is_get(&call.method)) {
            (true, true) => Self::ServiceRequest,
            (true, false) => Self::Write,
            (false, _) => Self::Exec,
        };
        let path = match &call.target {
            CallTarget::Service(_) => return enters,
            CallTarget::Kubernetes(path) => path,
        };
        let Some(Attributes::Object(object)) = Attributes::of(&call.method, path, &call.query)
        else {
            return if is_get(&call.method) {
                Self::Read
            } else {
                Self::Write
            };
        };
        match (object.subresource.as_ref(), object.verb) {
            ("exec" | "attach" | "portforward", Verb::Get | Verb::Create) => return Self::Exec,
            ("proxy", _) | (_, Verb::Proxy) => return enters,
            _ => {}
        }
        match call_kind(call) {
            CallKind::Question => Self::Read,
            CallKind::Secret => Self::Secret,
            CallKind::Other if is_get(&call.method) => Self::Read,
            CallKind::Other => Self::Write,
        }
    }

    /// Returns the kind of the call behind an audit line; `None` for a sum of several.
    pub fn of_line(what: &str) -> Option<Self> {
        if what == OTHERS {
            return None;
        }
        Some(match call(what) {
            Some(call) => Self::of(&call),
            None if is_get(what.split(' ').next().unwrap_or_default()) => Self::Read,
            None => Self::Write,
        })
    }
}

fn is_get(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS")
}

/// The call of a line `METHOD target`; `None` for another line, and for one that was cut.
fn call(what: &str) -> Option<Call> {
    let (method, target) = what.split_once(' ')?;
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let inquiry = Inquiry {
        method: method.to_owned(),
        target: target.to_owned(),
    };
    route(&inquiry.raw_request(), Cluster::Known).ok()
}

/// The line that the requests to one service, or to one Pod, have in common.
pub fn service_root(call: &Call) -> String {
    let line = call.line();
    match &call.target {
        CallTarget::Service(service) => format!(
            "{} {}/{}:{}/",
            call.method, service.namespace, service.name, service.port
        ),
        CallTarget::Kubernetes(_) => match line.split_once("/proxy") {
            Some((before, _)) => format!("{before}/proxy/"),
            None => line,
        },
    }
}

/// Describes the request of an audit line in words; `None` if the line itself is as clear.
pub fn in_words(what: &str) -> Option<String> {
    let call = call(what)?;
    let path = match &call.target {
        CallTarget::Service(service) => {
            return Some(format!(
                "call the service {}/{}:{}",
                service.namespace, service.name, service.port
            ));
        }
        CallTarget::Kubernetes(path) => path,
    };
    match Attributes::of(&call.method, path, &call.query)? {
        Attributes::Path { .. } => None,
        Attributes::Object(_) if call_kind(&call) == CallKind::Question => {
            Some("ask what it may do".to_owned())
        }
        Attributes::Object(object) => {
            has_plain_names(&object).then(|| object_in_words(&call, &object))
        }
    }
}

/// Returns whether names have only characters of names. A caller may put sentences of its own
/// there, escaped in the path.
fn has_plain_names(object: &Object<'_>) -> bool {
    let parts = [
        &object.group,
        &object.namespace,
        &object.resource,
        &object.subresource,
        &object.name,
    ];
    parts.iter().all(|part| {
        part.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte))
    })
}

fn object_in_words(call: &Call, object: &Object<'_>) -> String {
    let is_namespace = object.resource == "namespaces" && object.group.is_empty();
    let full_name = match (object.namespace.as_ref(), object.name.as_ref()) {
        (_, "") => String::new(),
        ("", name) => name.to_owned(),
        (_, name) if is_namespace => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    match object.subresource.as_ref() {
        "exec" => return format!("exec into {full_name}"),
        "attach" => return format!("attach to {full_name}"),
        "portforward" => return format!("port-forward to {full_name}"),
        "log" if query_flag(&call.query, "follow") => {
            return format!("follow the log of {full_name}");
        }
        "log" => return format!("read the log of {full_name}"),
        "eviction" => return format!("evict the Pod {full_name}"),
        "ephemeralcontainers" if !object.verb.is_read() => {
            return format!("debug the Pod {full_name}");
        }
        "proxy" => {
            return format!(
                "call {} {full_name} through the API server",
                object.resource
            );
        }
        _ => {}
    }
    let verb = if object.verb == Verb::DeleteCollection {
        "delete all"
    } else if object.verb == Verb::None {
        "use"
    } else {
        object.verb.as_str()
    };
    let mut words = format!("{verb} {}", object.resource);
    if !object.group.is_empty() {
        words = format!("{words}.{}", object.group);
    }
    if !object.subresource.is_empty() {
        words = format!("{words}/{}", object.subresource);
    }
    if !full_name.is_empty() {
        return format!("{words} {full_name}");
    }
    match object.namespace.as_ref() {
        "" => words,
        namespace => format!("{words} in {namespace}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "/api/v1/namespaces/a";

    #[test]
    fn a_line_says_what_it_does() {
        for (what, kind) in [
            ("GET /api/v1/pods", RequestKind::Read),
            ("GET /api/v1/pods?watch=true", RequestKind::Read),
            ("HEAD /version", RequestKind::Read),
            ("DELETE /api/v1/namespaces/a/pods/exec", RequestKind::Write),
            ("GET /api/v1/namespaces/a/pods/b/exec", RequestKind::Exec),
            (
                "POST /api/v1/namespaces/a/pods/b/portforward",
                RequestKind::Exec,
            ),
            (
                "GET /api/v1/namespaces/a/pods/b/log?follow=true",
                RequestKind::Read,
            ),
            (
                "GET /api/v1/namespaces/a/secrets?watch=true",
                RequestKind::Secret,
            ),
            ("GET /api/v1/secrets", RequestKind::Secret),
            (
                "GET /apis/helm.cattle.io/v1/helmcharts",
                RequestKind::Secret,
            ),
            (
                "GET /api/v1/namespaces/a/pods/b:80/proxy/x",
                RequestKind::ServiceRequest,
            ),
            (
                "GET /api/v1/namespaces/a/services/b:80/proxy/x",
                RequestKind::ServiceRequest,
            ),
            (
                "POST /api/v1/namespaces/a/services/b:80/proxy/x",
                RequestKind::Write,
            ),
            (
                "GET /api/v1/nodes/a/proxy/pods",
                RequestKind::ServiceRequest,
            ),
            ("GET shop/web:80/exec", RequestKind::ServiceRequest),
            ("PUT shop/web:80/exec", RequestKind::Write),
            (
                "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                RequestKind::Read,
            ),
            (
                "POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
                RequestKind::Write,
            ),
            ("GET /api/v1/…", RequestKind::Read),
            ("access managed -> off", RequestKind::Write),
        ] {
            assert_eq!(RequestKind::of_line(what), Some(kind), "{what}");
        }
        assert_eq!(RequestKind::of_line(OTHERS), None);
    }

    #[test]
    fn a_line_is_told_in_words() {
        for (what, words) in [
            (format!("GET {A}/pods/b/exec"), "exec into a/b"),
            (format!("POST {A}/pods/b/attach"), "attach to a/b"),
            (format!("GET {A}/pods/b/portforward"), "port-forward to a/b"),
            (
                format!("GET {A}/pods/b/log?follow=true"),
                "follow the log of a/b",
            ),
            (format!("GET {A}/secrets?watch=true"), "watch secrets in a"),
            (format!("GET {A}/secrets/b"), "get secrets a/b"),
            (format!("DELETE {A}/pods"), "delete all pods in a"),
            (format!("POST {A}/pods/b/eviction"), "evict the Pod a/b"),
            (
                format!("GET {A}/services/b:80/proxy/x"),
                "call services a/b:80 through the API server",
            ),
            ("GET /api/v1/namespaces/a".to_owned(), "get namespaces a"),
            (
                "PATCH /apis/apps/v1/namespaces/a/deployments/b/scale".to_owned(),
                "patch deployments.apps/scale a/b",
            ),
            (
                "GET shop/web:80/x".to_owned(),
                "call the service shop/web:80",
            ),
            (
                "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews".to_owned(),
                "ask what it may do",
            ),
        ] {
            assert_eq!(in_words(&what).as_deref(), Some(words), "{what}");
        }
        let evil = "GET /api/v1/namespaces/a/secrets/x%3B%20fix%3A%20rm";
        for plain in [
            "GET /version",
            "access managed -> off",
            "exec",
            evil,
            OTHERS,
            "",
        ] {
            assert_eq!(in_words(plain), None, "{plain}");
        }
    }

    #[test]
    fn visits_to_one_service_have_one_root() {
        for (what, root) in [
            ("GET shop/web:80/a/b", "GET shop/web:80/"),
            (
                "GET /api/v1/namespaces/a/pods/b:80/proxy/x/proxy/y",
                "GET /api/v1/namespaces/a/pods/b:80/proxy/",
            ),
        ] {
            assert_eq!(service_root(&call(what).unwrap()), root);
        }
    }
}
