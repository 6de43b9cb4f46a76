//! Model of Go's `net/url` and kube-apiserver 1.34 for the request line that they receive, written
//! down once more from their rules and sharing nothing with the agent: the tests compare the
//! agent's reading with it.

/// The API server's `RequestInfo`, as far as it authorises by it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Info {
    pub(crate) is_object: bool,
    pub(crate) path: Vec<u8>,
    pub(crate) verb: String,
    pub(crate) group: Vec<u8>,
    pub(crate) version: Vec<u8>,
    pub(crate) namespace: Vec<u8>,
    pub(crate) resource: Vec<u8>,
    pub(crate) subresource: Vec<u8>,
    pub(crate) name: Vec<u8>,
}

/// Reads a method and a request target. `None`: the API server answers with an error.
pub(crate) fn request_info(method: &str, target: &str) -> Option<Info> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if !path.starts_with('/') || target.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return None;
    }
    let path = unescape(path, false)?;
    let mut info = Info {
        path: path.clone(),
        verb: method.to_lowercase(),
        ..Info::default()
    };
    let mut parts: Vec<Vec<u8>> = split_path(&path);
    if parts.len() < 3 {
        return Some(info);
    }
    let prefix = parts.remove(0);
    if prefix == b"apis" {
        if parts.len() < 3 {
            return Some(info);
        }
        info.group = parts.remove(0);
    } else if prefix != b"api" {
        return Some(info);
    }
    info.is_object = true;
    info.version = parts.remove(0);
    if parts[0] == b"proxy" || parts[0] == b"watch" {
        if parts.len() < 2 {
            return None;
        }
        info.verb = String::from_utf8(parts.remove(0)).ok()?;
    } else {
        info.verb = match method {
            "POST" => "create",
            "GET" | "HEAD" => "get",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "",
        }
        .to_owned();
    }
    if parts[0] == b"namespaces" && parts.len() > 1 {
        info.namespace.clone_from(&parts[1]);
        if parts.len() > 2 && parts[2] != b"status" && parts[2] != b"finalize" {
            parts.drain(..2);
        }
    }
    if parts.len() >= 3 && info.verb != "proxy" {
        info.subresource.clone_from(&parts[2]);
    }
    if parts.len() >= 2 {
        info.name.clone_from(&parts[1]);
    }
    info.resource.clone_from(&parts[0]);
    if info.name.is_empty() && info.verb == "get" {
        let watch = first_value(query, b"watch");
        let is_watch = watch.is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            value != b"false" && value != b"0"
        });
        info.verb = if is_watch { "watch" } else { "list" }.to_owned();
    }
    if info.name.is_empty() && info.verb == "delete" {
        "deletecollection".clone_into(&mut info.verb);
    }
    Some(info)
}

/// `strings.Split(strings.Trim(path, "/"), "/")`.
fn split_path(path: &[u8]) -> Vec<Vec<u8>> {
    let Some(begin) = path.iter().position(|byte| *byte != b'/') else {
        return Vec::new();
    };
    let end = path.iter().rposition(|byte| *byte != b'/').unwrap() + 1;
    path[begin..end]
        .split(|byte| *byte == b'/')
        .map(<[u8]>::to_vec)
        .collect()
}

/// `url.Query().Get(name)`, told apart from a field that is not there.
fn first_value(query: &str, name: &[u8]) -> Option<Vec<u8>> {
    for field in query.split('&') {
        if field.contains(';') || field.is_empty() {
            continue;
        }
        let (key, value) = field.split_once('=').unwrap_or((field, ""));
        let (Some(key), Some(value)) = (unescape(key, true), unescape(value, true)) else {
            continue;
        };
        if key == name {
            return Some(value);
        }
    }
    None
}

/// Go's `unescape`: every `%` needs two hexadecimal digits, and `+` is a blank in queries.
fn unescape(text: &str, is_query: bool) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'%' => {
                let digits = text.get(at + 1..at + 3)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                let digits = std::str::from_utf8(digits).ok()?;
                out.push(u8::from_str_radix(digits, 16).ok()?);
                at += 3;
            }
            b'+' if is_query => {
                out.push(b' ');
                at += 1;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Some(out)
}
