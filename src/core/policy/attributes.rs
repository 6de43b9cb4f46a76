//! Attributes of a request, as the API server authorizes it: verb, resource and namespace of
//! Kubernetes 1.34's `RequestInfoFactory`, read from the canonical path that is sent. Judges
//! nothing.

use std::{borrow::Cow, fmt};

use crate::core::proxy::{KubePath, query_flag, query_value};

/// Verbs that the API server authorizes, with its own names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verb {
    /// GET or HEAD of one object.
    Get,
    /// GET or HEAD of a collection.
    List,
    /// The same with `watch` set, and every method below the old prefix `/watch/`.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    Patch,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// Every method below the old prefix `/proxy/`.
    Proxy,
    /// Any other method.
    None,
}

impl Verb {
    /// The API server's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::None => "",
        }
    }

    /// Returns whether it is one of those that change nothing.
    pub const fn is_read(self) -> bool {
        match self {
            Self::Get | Self::List | Self::Watch => true,
            Self::Create
            | Self::Update
            | Self::Patch
            | Self::Delete
            | Self::DeleteCollection
            | Self::Proxy
            | Self::None => false,
        }
    }

    fn of_method(method: &str) -> Self {
        match method {
            "GET" | "HEAD" => Self::Get,
            "POST" => Self::Create,
            "PUT" => Self::Update,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            _ => Self::None,
        }
    }
}

/// A request, as the API server authorises it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Attributes<'a> {
    Object(Object<'a>),
    /// For a path that names none, such as `/version`.
    Path {
        /// The method in lower case.
        verb: String,
        /// The path, still escaped.
        path: &'a str,
    },
}

/// The objects that a request is for. What is not there is empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Object<'a> {
    pub verb: Verb,
    /// API group; empty for the core.
    pub group: Cow<'a, str>,
    /// Version of the group.
    pub version: Cow<'a, str>,
    /// Namespace; empty for what belongs to the whole cluster, and for all namespaces at once.
    pub namespace: Cow<'a, str>,
    /// Kind of the objects, in its plural.
    pub resource: Cow<'a, str>,
    /// Part of the object, or an act on it.
    pub subresource: Cow<'a, str>,
    /// One object. For a collection what its field selector asks for: that the API server forgets
    /// where another field of the query is broken, and nothing may depend on it.
    pub name: Cow<'a, str>,
    /// True if the path goes on behind the subresource.
    pub has_more: bool,
}

impl<'a> Attributes<'a> {
    /// Reads a request as the API server does; `None` where that finds no meaning and answers with
    /// an error. `method` is in capitals.
    pub fn of(method: &str, path: &'a KubePath, query: &'a str) -> Option<Self> {
        let segments: Vec<&str> = path.segments().collect();
        match segments.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => {
                object(method, ("", version), rest, query)
            }
            ["apis", group, version, rest @ ..] if !rest.is_empty() => {
                object(method, (group, version), rest, query)
            }
            _ => Some(Self::Path {
                verb: method.to_ascii_lowercase(),
                path: path.as_str(),
            }),
        }
    }
}

fn object<'a>(
    method: &str,
    (group, version): (&'a str, &'a str),
    rest: &[&'a str],
    query: &'a str,
) -> Option<Attributes<'a>> {
    let (mut verb, rest) = match rest {
        ["watch" | "proxy"] => return None,
        ["watch", rest @ ..] => (Verb::Watch, rest),
        ["proxy", rest @ ..] => (Verb::Proxy, rest),
        _ => (Verb::of_method(method), rest),
    };
    let (namespace, parts) = match rest {
        // These two are parts of the namespace itself; anything else there is a resource in it.
        ["namespaces", namespace, "status" | "finalize", ..] => (*namespace, rest),
        ["namespaces", namespace, parts @ ..] if !parts.is_empty() => (*namespace, parts),
        ["namespaces", namespace] => (*namespace, rest),
        _ => ("", rest),
    };
    let part = |place: usize| parts.get(place).copied().unwrap_or_default();
    let subresource = if verb == Verb::Proxy { "" } else { part(2) };
    let mut name = plain(part(1));
    if name.is_empty() {
        match verb {
            Verb::Get => {
                verb = if query_flag(query, "watch") {
                    Verb::Watch
                } else {
                    Verb::List
                };
                name = selected_name(query).map_or(name, Cow::Owned);
            }
            Verb::Delete => verb = Verb::DeleteCollection,
            Verb::List
            | Verb::Watch
            | Verb::Create
            | Verb::Update
            | Verb::Patch
            | Verb::DeleteCollection
            | Verb::Proxy
            | Verb::None => {}
        }
    }
    Some(Attributes::Object(Object {
        verb,
        group: plain(group),
        version: plain(version),
        namespace: plain(namespace),
        resource: plain(part(0)),
        subresource: plain(subresource),
        name,
        has_more: parts.len() > 3,
    }))
}

/// A segment without its escapes.
fn plain(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment);
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let escape = tail.split_first_chunk::<2>().filter(|_| *byte == b'%');
        let decoded = escape.and_then(|(digits, tail)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 16).ok()?, tail))
        });
        let (byte, tail) = decoded.unwrap_or((*byte, tail));
        bytes.push(byte);
        rest = tail;
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

/// The one name that the field selector of a collection allows; `None` where there is none, or the
/// API server cannot read it.
fn selected_name(query: &str) -> Option<String> {
    let selector = query_value(query, "fieldSelector")?;
    for number in ["limit", "timeoutSeconds"] {
        let is_fine = query_value(query, number).is_none_or(|value| {
            std::str::from_utf8(&value).is_ok_and(|value| value.parse::<i64>().is_ok())
        });
        if !is_fine {
            return None;
        }
    }
    let selector = String::from_utf8_lossy(&selector);
    // The API server sorts the terms and takes the first that fits.
    let mut found: Option<(&str, String)> = None;
    for term in terms(&selector).filter(|term| !term.is_empty()) {
        let (field, value, is_equal) = term_parts(term)?;
        let value = unescaped(value)?;
        let is_first = found.as_ref().is_none_or(|(first, _)| term < *first);
        if is_first && is_equal && field == "metadata.name" {
            found = Some((term, value));
        }
    }
    let (_, name) = found?;
    let is_name = !matches!(name.as_str(), "." | "..") && !name.contains(['/', '%']);
    is_name.then_some(name)
}

/// Splits at commas that no backslash escapes.
fn terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut is_escaped = false;
    selector.split(move |character| {
        let is_end = character == ',' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        is_end
    })
}

/// Field, value, and whether they must be equal.
fn term_parts(term: &str) -> Option<(&str, &str, bool)> {
    let place = term.find('=')?;
    let (before, after) = term.split_at_checked(place)?;
    let after = after.get(1..)?;
    Some(match before.strip_suffix('!') {
        Some(before) => (before, after, false),
        None => (before, after.strip_prefix('=').unwrap_or(after), true),
    })
}

/// A value without its backslashes; `None` where it is no value.
fn unescaped(value: &str) -> Option<String> {
    let mut text = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(character) = letters.next() {
        match character {
            '\\' => text.push(letters.next().filter(|next| "\\,=".contains(*next))?),
            ',' | '=' => return None,
            _ => text.push(character),
        }
    }
    Some(text)
}

impl fmt::Display for Attributes<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(object) => object.fmt(out),
            Self::Path { verb, path } => write!(out, "{verb} {path}"),
        }
    }
}

impl fmt::Display for Object<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.verb.as_str();
        out.write_str(if verb.is_empty() { "use" } else { verb })?;
        write!(out, " {}", self.resource)?;
        if !self.group.is_empty() {
            write!(out, ".{}", self.group)?;
        }
        if !self.subresource.is_empty() {
            write!(out, "/{}", self.subresource)?;
        }
        if !self.name.is_empty() {
            write!(out, " {}", self.name)?;
        }
        if !self.namespace.is_empty() && self.resource != "namespaces" {
            write!(out, " in namespace {}", self.namespace)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(request: &str) -> String {
        let (method, rest) = request.split_once(' ').unwrap();
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = KubePath::parse(path).unwrap();
        Attributes::of(method, &path, query).map_or_else(String::new, |it| it.to_string())
    }

    #[test]
    fn requests_are_what_the_api_server_takes_them_for() {
        for (request, wanted) in [
            ("GET /version", "get /version"),
            ("POST /api/v1", "post /api/v1"),
            ("GET /apis/apps/v1/", "get /apis/apps/v1/"),
            ("GET /api/v1/pods", "list pods"),
            ("HEAD /api/v1/pods", "list pods"),
            ("GET /api/v1/pods?watch", "watch pods"),
            ("GET /api/v1/nodes/a?watch=1", "get nodes a"),
            ("DELETE /api/v1/nodes", "deletecollection nodes"),
            ("OPTIONS /api/v1/nodes", "use nodes"),
            (
                "PATCH /apis/apps/v1/namespaces/a/deployments/b/scale",
                "patch deployments.apps/scale b in namespace a",
            ),
            ("GET /api/v1/namespaces", "list namespaces"),
            ("GET /api/v1/namespaces/a", "get namespaces a"),
            (
                "PUT /api/v1/namespaces/a/finalize",
                "update namespaces/finalize a",
            ),
            (
                "PUT /api/v1/namespaces/a/status/secrets",
                "update namespaces/status a",
            ),
            (
                "GET /api/v1/namespaces/status/secrets",
                "list secrets in namespace status",
            ),
            (
                "POST /api/v1/namespaces/a/pods/b/EXEC",
                "create pods/EXEC b in namespace a",
            ),
            (
                "DELETE /api/v1/watch/namespaces/a/secrets",
                "watch secrets in namespace a",
            ),
            ("GET /api/v1/watch/namespaces/a", "watch namespaces a"),
            (
                "GET /api/v1/proxy/namespaces/a/services/b/metrics",
                "proxy services b in namespace a",
            ),
            ("GET /api/v1/watch", ""),
            (
                "GET /api/v1/namespaces/a%20b/pods",
                "list pods in namespace a b",
            ),
        ] {
            assert_eq!(resolved(request), wanted, "{request}");
        }
    }

    #[test]
    fn a_field_selector_can_name_one_object() {
        for (query, wanted) in [
            ("metadata.name=x", "list pods x"),
            ("metadata.name%3D%3Dx", "list pods x"),
            ("spec.nodeName=a,metadata.name=x", "list pods x"),
            ("metadata.name=x\\,y", "list pods x,y"),
            ("metadata.name=x&limit=%2B5", "list pods x"),
            ("metadata.name=b,metadata.name=a", "list pods a"),
            ("metadata.name!=x", "list pods"),
            ("metadata.name", "list pods"),
            ("metadata.name=x,y", "list pods"),
            ("metadata.name=x=y", "list pods"),
            ("metadata.name=x\\y", "list pods"),
            ("metadata.name=x/y", "list pods"),
            ("metadata.name=..", "list pods"),
            ("metadata.name=x&limit=", "list pods"),
            ("metadata.name=x&timeoutSeconds=1s", "list pods"),
        ] {
            let request = format!("GET /api/v1/pods?fieldSelector={query}");
            assert_eq!(resolved(&request), wanted, "{query}");
        }
    }
}
