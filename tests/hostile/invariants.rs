//! Invariants of every request, whatever its characters. The properties and the fuzz targets try to
//! break it; both have the agent's `core` as `crate::core`.

use super::model::{Info, request_info};
use crate::core::policy::{Attributes, Level, Object, Rules, Terms, Verb, decide};
use crate::core::proxy::{Call, CallTarget, Cluster, KubePath, RawRequest, route};

/// Routes a request to the Kubernetes API and asserts everything; `None` where it makes no sense.
pub(crate) fn hold(method: &str, path: &str, query: &str, is_websocket: bool) -> Option<Call> {
    let asked = RawRequest {
        is_websocket,
        ..RawRequest::kubernetes(method, path, query)
    };
    let call = route(&asked, Cluster::Known).ok()?;
    let CallTarget::Kubernetes(sent) = &call.target else {
        panic!("no service was asked for")
    };
    let resolved = request_info(&call.method, &format!("{}?{}", sent.as_str(), call.query));
    what_is_sent_is_what_was_judged(&call, sent, resolved.as_ref());
    a_sound_path_keeps_its_meaning(&asked, &call, resolved.as_ref());
    a_looser_level_permits_no_less(&call);
    if let Some(resolved) = &resolved {
        a_level_permits_no_more_than_it_says(&call, resolved);
    }
    Some(call)
}

fn what_is_sent_is_what_was_judged(call: &Call, sent: &KubePath, resolved: Option<&Info>) {
    assert_eq!(KubePath::parse(sent.as_str()).as_ref(), Ok(sent));
    if resolved.is_none_or(is_text) {
        let read = read(&call.method, sent, &call.query);
        assert_eq!(read.as_ref(), resolved, "{call:?}");
    }
}

/// What the API server would make of the path as it was asked for, where nothing is wrong with it,
/// is what it makes of the one that is sent.
fn a_sound_path_keeps_its_meaning(asked: &RawRequest, call: &Call, resolved: Option<&Info>) {
    let path = &asked.path;
    let is_whole = path.starts_with('/') && !path.contains('?');
    if !is_whole || path.trim_matches('/').contains("//") {
        return;
    }
    let raw = request_info(&call.method, &format!("{path}?{}", asked.query));
    let without_path = |info: &Info| Info {
        path: Vec::new(),
        ..info.clone()
    };
    if let Some(raw) = raw {
        assert_eq!(
            Some(without_path(&raw)),
            resolved.map(without_path),
            "{call:?}"
        );
    }
}

fn a_looser_level_permits_no_less(call: &Call) {
    let [full, managed, read_only, off] =
        [Level::Full, Level::Managed, Level::ReadOnly, Level::Off]
            .map(|level| decided(level, call));
    assert_eq!(full, Some(Terms::Free), "{call:?}");
    assert_eq!(off, None, "{call:?}");
    if read_only.is_some() {
        assert_eq!(read_only, Some(Terms::Free), "{call:?}");
        assert_eq!(managed, read_only, "{call:?}");
    }
}

fn a_level_permits_no_more_than_it_says(call: &Call, resolved: &Info) {
    let Info {
        verb,
        namespace,
        resource,
        subresource,
        name,
        ..
    } = resolved;
    let asks = verb == "create" && resource.starts_with(b"selfsubject");
    let reads = ["GET", "HEAD"].contains(&call.method.as_str())
        && ["get", "head", "list", "watch"].contains(&verb.as_str())
        && !(resolved.group.is_empty() && resource == b"secrets");
    let ways = [
        "exec",
        "attach",
        "portforward",
        "proxy",
        "token",
        "binding",
        "eviction",
    ];
    let enters = ways.iter().any(|way| subresource == way.as_bytes());
    for level in [Level::Managed, Level::ReadOnly] {
        match decided(level, call) {
            None => {}
            Some(Terms::Free) => assert!(asks || (reads && !enters), "{call:?}"),
            Some(Terms::InManaged(managed)) => {
                assert_eq!(namespace, managed.as_bytes(), "{call:?}");
                let is_kept = managed.starts_with("kube-")
                    || ["default", "pipeops-system"].contains(&managed.as_str());
                assert!(!is_kept && subresource != b"token", "{call:?}");
            }
            Some(Terms::NewNamespace) => {
                assert_eq!(
                    (verb.as_str(), resource.as_slice()),
                    ("create", b"namespaces".as_slice())
                );
                assert!(name.is_empty() && namespace.is_empty(), "{call:?}");
            }
        }
    }
}

pub(crate) fn decided(level: Level, call: &Call) -> Option<Terms> {
    let rules = Rules {
        level,
        ..Rules::default()
    };
    decide(&rules, call).ok()
}

/// The agent's reading in the words of the model, but for the name in a selector, which the model
/// does not read.
fn read(method: &str, path: &KubePath, query: &str) -> Option<Info> {
    let mut info = Info {
        path: unescaped(path.as_str()),
        ..Info::default()
    };
    match Attributes::of(method, path, query)? {
        Attributes::Path { verb, .. } => info.verb = verb,
        Attributes::Object(object) => {
            let Object {
                verb,
                group,
                version,
                namespace,
                resource,
                subresource,
                name,
                has_more: _,
            } = object;
            let bytes = |text: std::borrow::Cow<'_, str>| text.as_bytes().to_vec();
            info.is_object = true;
            verb.as_str().clone_into(&mut info.verb);
            info.group = bytes(group);
            info.version = bytes(version);
            info.namespace = bytes(namespace);
            info.resource = bytes(resource);
            info.subresource = bytes(subresource);
            if !matches!(verb, Verb::List | Verb::Watch) || path.is_legacy_watch() {
                info.name = bytes(name);
            }
        }
    }
    Some(info)
}

fn unescaped(path: &str) -> Vec<u8> {
    let mut parts = path.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

/// The agent's reading of a name that is no UTF-8 is only a stand-in for it.
fn is_text(info: &Info) -> bool {
    [
        &info.group,
        &info.version,
        &info.namespace,
        &info.resource,
        &info.subresource,
        &info.name,
    ]
    .into_iter()
    .all(|bytes| std::str::from_utf8(bytes).is_ok())
}
