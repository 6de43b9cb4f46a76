//! Pod Security Standards: whether a Pod that exists meets the one that a managed namespace must
//! enforce.
//!
//! Pod Security admission judges a Pod when it is made. What ran before its namespace was labelled
//! is judged here, before the link leads into it. The checks are those of pod-security-admission
//! v0.34, the latest version of each, with one difference: nothing is relaxed for Pods in a user
//! namespace.

mod baseline;
mod restricted;
mod schema;

use serde_json::Value;

use super::{Attributes, CONFIG, PodSecurity, Rules, Verb, schema::read_json, tables};
use crate::core::{
    proxy::{Call, CallTarget, Refusal},
    value::text,
};

/// A field of a Pod that its standard forbids.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Breach {
    /// The field, as in `spec.containers["web"].securityContext.privileged`.
    pub field: String,
    /// Its value, or what is missing.
    pub value: String,
}

/// Pods that a call leads into.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Entered {
    Pod(String),
    /// Those behind this Service; the API server chooses one.
    Service(String),
}

/// The Pods that a call for the Kubernetes API leads into; `None` where it leads into none.
///
/// # Errors
/// The call names no Pod that can be looked at.
pub fn entered(call: &Call) -> Result<Option<Entered>, Refusal> {
    let CallTarget::Kubernetes(path) = &call.target else {
        return Ok(None);
    };
    let Some(Attributes::Object(object)) = Attributes::of(&call.method, path, &call.query) else {
        return Ok(None);
    };
    let resource = (object.resource.as_ref(), object.subresource.as_ref());
    let enters = tables::has(tables::ENTER, &object.group, resource.0, resource.1);
    // `kubectl debug` puts a container into the Pod.
    let debugs = object.group.is_empty()
        && resource == ("pods", "ephemeralcontainers")
        && matches!(object.verb, Verb::Update | Verb::Patch);
    if !enters && !debugs {
        return Ok(None);
    }
    let name = if resource.1 == "proxy" {
        proxied(&object.name)
    } else {
        Some(object.name.as_ref())
    };
    let Some(name) = name.filter(|name| is_name(name)) else {
        return Err(Refusal(format!(
            "refused by the agent: {object}: that is not a name of a Pod or Service; fix: name it as kubectl get prints it"
        )));
    };
    Ok(Some(match resource.0 {
        "services" => Entered::Service(name.to_owned()),
        _ => Entered::Pod(name.to_owned()),
    }))
}

/// The name in `name`, `name:port` or `scheme:name:port`, as the API server takes it apart.
fn proxied(text: &str) -> Option<&str> {
    match text.split(':').collect::<Vec<_>>()[..] {
        [name] | [name, _] | [_, name, _] => Some(name),
        _ => None,
    }
}

/// Returns whether a text is a name of an object (RFC 1123 subdomain), and so one segment of a
/// path.
fn is_name(name: &str) -> bool {
    let is_inside = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    (1..=253).contains(&name.len())
        && name.bytes().all(is_inside)
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.'])
}

/// Judges a Pod, as the API server shows it in JSON, by a standard.
///
/// # Errors
/// It cannot be read.
pub fn breaches(pod: &[u8], standard: PodSecurity) -> Result<Vec<Breach>, String> {
    let pod = read_json(pod, &schema::POD)?;
    let mut found = Vec::new();
    match standard {
        PodSecurity::Privileged => {}
        PodSecurity::Baseline => baseline::check(&pod, &mut found),
        PodSecurity::Restricted => {
            baseline::check(&pod, &mut found);
            restricted::check(&pod, &mut found);
        }
    }
    Ok(found)
}

/// Refuses to lead into a Pod that does not meet the standard.
///
/// # Errors
/// The Pod and its first field that is forbidden.
pub fn settle_pod(
    rules: &Rules,
    (namespace, pod): (&str, &str),
    breaches: &[Breach],
) -> Result<(), Refusal> {
    let Some(Breach { field, value }) = breaches.first() else {
        return Ok(());
    };
    let standard = rules.pod_security.as_str();
    let more = match breaches.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Err(Refusal(format!(
        "refused by the agent: the Pod {namespace}/{pod} does not meet the Pod Security Standard \"{standard}\" (access.pod_security): {field} \
         is {value}{more}. A label does not change what already runs; fix: run the Pod again without it, use kubectl on the box, or set \
         access.level = \"full\" in {CONFIG}"
    )))
}

/// A container and where it stands in its Pod.
struct Container<'a> {
    place: String,
    value: &'a Value,
}

/// Containers of every sort.
fn containers(pod: &Value) -> Vec<Container<'_>> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| {
            let all = pod
                .pointer("/spec")
                .and_then(|spec| spec.get(list))
                .and_then(Value::as_array);
            all.into_iter().flatten().map(move |value| Container {
                place: format!("spec.{list}[{:?}]", text(value, "/name")),
                value,
            })
        })
        .collect()
}

/// The Pod and its containers: everything that has a security context.
fn contexts(pod: &Value) -> Vec<Container<'_>> {
    let whole = pod.pointer("/spec").map(|value| Container {
        place: "spec".to_owned(),
        value,
    });
    whole.into_iter().chain(containers(pod)).collect()
}

fn list<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    let list = value.pointer(path).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn is_true(value: &Value, path: &str) -> bool {
    value.pointer(path).and_then(Value::as_bool) == Some(true)
}

/// A path in the notation of people: `/securityContext/privileged`.
fn field(place: &str, path: &str) -> String {
    format!("{place}{}", path.replace('/', "."))
}

fn breach(field: String, value: impl Into<String>) -> Breach {
    Breach {
        field,
        value: value.into(),
    }
}

#[cfg(test)]
mod tests;
