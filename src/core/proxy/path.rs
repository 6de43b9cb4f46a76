//! Paths: canonicalised once, then judged and sent in exactly that form.
//!
//! The wire's path is a text that may hold percent escapes. An escape of a character that needs
//! none is decoded, any other escape is kept in capitals, any other byte that needs an escape gets
//! one. So `%2F` stays an encoded slash, and no two spellings of one path differ after this.

use super::{Refusal, refuse};

/// The longest path that is sent on, in bytes after escaping.
pub const MAX_PATH_BYTES: usize = 16 * 1024;

/// First segments of the API server's paths.
const ROOTS: [&str; 7] = [
    "api", "apis", "healthz", "readyz", "livez", "version", "openapi",
];

/// A canonical path of the Kubernetes API: absolute, no empty, `.` or `..` segment, and no encoded
/// slash, backslash or percent sign but behind a proxy subresource, where it belongs to the proxied
/// application. So what the API server resolves is what stands here, also where something on the
/// way decodes once more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubePath(String);

impl KubePath {
    /// Canonicalises a path, or says what is wrong with it.
    pub fn parse(path: &str) -> Result<Self, Refusal> {
        let canonical = canonical(path)?;
        let mut segments: Vec<&str> = Vec::new();
        let has_slash_at_end = canonical.ends_with('/');
        for segment in canonical.split('/').filter(|segment| !segment.is_empty()) {
            refuse_dots(segment)?;
            if !is_proxied(&segments) {
                refuse_separators(segment)?;
            }
            segments.push(segment);
        }
        let mut path = String::with_capacity(canonical.len());
        for (place, segment) in segments.iter().enumerate() {
            path.push('/');
            if is_proxied(segments.get(..place).unwrap_or_default()) {
                path.push_str(segment);
            } else {
                push_plain(&mut path, segment);
            }
        }
        if has_slash_at_end || path.is_empty() {
            path.push('/');
        }
        if !is_kubernetes(&path) {
            return refuse("invalid path: must be a Kubernetes API path");
        }
        Ok(Self(path))
    }

    /// The path, as it is judged and sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The segments, still escaped.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|segment| !segment.is_empty())
    }

    /// Returns whether a segment names exec, attach or port-forward.
    pub fn is_channel_stream(&self) -> bool {
        self.segments()
            .any(|segment| matches!(segment, "exec" | "attach" | "portforward"))
    }

    /// Returns whether it is a watch in the old spelling: `/api/v1/watch/...`,
    /// `/apis/GROUP/VERSION/watch/...`.
    pub fn is_legacy_watch(&self) -> bool {
        let place = match self.segments().next() {
            Some("api") => 2,
            _ => 3,
        };
        self.segments().nth(place) == Some("watch")
    }
}

/// Returns whether what follows these segments belongs to a proxied application: they end in, or go
/// beyond, `proxy` of a pod, a service or a node.
fn is_proxied(segments: &[&str]) -> bool {
    matches!(
        segments,
        [
            "api",
            _,
            "namespaces",
            _,
            "pods" | "services",
            _,
            "proxy",
            ..
        ] | ["api", _, "nodes", _, "proxy", ..]
    )
}

/// Rejects characters that another parser could take for a separator. No name in Kubernetes holds
/// one of them.
fn refuse_separators(segment: &str) -> Result<(), Refusal> {
    for (escape, what) in [
        ("%2F", "slash"),
        ("%5C", "backslash"),
        ("%25", "percent sign"),
    ] {
        if segment.contains(escape) {
            return refuse(format!("invalid path: encoded {what}"));
        }
    }
    Ok(())
}

/// Appends a segment with those escapes decoded that a path needs nowhere: `system%3Ax` and
/// `system:x` are one name.
fn push_plain(path: &mut String, segment: &str) {
    let mut rest = segment;
    while let Some((before, after)) = rest.split_once('%') {
        path.push_str(before);
        rest = match escape(after.as_bytes()) {
            Some((byte, _)) if is_path_char(byte) => {
                path.push(char::from(byte));
                after.get(2..).unwrap_or_default()
            }
            _ => {
                path.push('%');
                after
            }
        };
    }
    path.push_str(rest);
}

/// Returns whether a path is one of the Kubernetes API by its first segment. A missing slash at its
/// begin is forgiven.
pub(super) fn is_kubernetes(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next();
    first.is_some_and(|first| ROOTS.contains(&first))
}

/// Canonicalises the path of a request to a service. Doubled slashes stay: they are the
/// application's business.
pub fn service_path(path: &str) -> Result<String, Refusal> {
    if path.is_empty() {
        return Ok("/".to_owned());
    }
    if !path.starts_with('/') {
        return refuse("invalid path: must start with /");
    }
    if path.contains("://") {
        return refuse("invalid path: contains ://");
    }
    let canonical = canonical(path)?;
    // An application may decode before it looks, so encoded separators count here.
    let separated = canonical.replace("%2F", "/").replace("%5C", "/");
    for segment in separated.split('/') {
        if segment == ".." {
            return refuse("invalid path: contains ..");
        }
    }
    Ok(canonical)
}

fn refuse_dots(segment: &str) -> Result<(), Refusal> {
    let parts = segment.replace("%2F", "/").replace("%5C", "/");
    if parts.split('/').any(|part| part == ".." || part == ".") {
        return refuse("invalid path: contains . or .. as a segment");
    }
    Ok(())
}

/// One spelling for every path.
fn canonical(path: &str) -> Result<String, Refusal> {
    let mut text = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let (byte, tail, is_escaped) = match (byte, escape(tail)) {
            (b'%', Some((decoded, tail))) => (decoded, tail, true),
            _ => (*byte, tail, false),
        };
        rest = tail;
        if byte < b' ' || byte == 0x7f {
            return refuse("invalid path: control character");
        }
        let stays = is_unreserved(byte) || (!is_escaped && is_path_char(byte));
        push(&mut text, byte, stays);
        if text.len() > MAX_PATH_BYTES {
            return refuse(format!("invalid path: longer than {MAX_PATH_BYTES} bytes"));
        }
    }
    Ok(text)
}

/// Reads two hexadecimal digits.
pub(super) fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let ([high, low], rest) = text.split_first_chunk::<2>()?;
    let digit = |character: &u8| char::from(*character).to_digit(16);
    let value = digit(high)? * 16 + digit(low)?;
    Some((u8::try_from(value).ok()?, rest))
}

pub(super) fn push(text: &mut String, byte: u8, stays: bool) {
    if stays {
        text.push(char::from(byte));
        return;
    }
    text.push('%');
    for digit in [byte >> 4, byte & 15] {
        let digit = char::from_digit(u32::from(digit), 16).unwrap_or('0');
        text.push(digit.to_ascii_uppercase());
    }
}

/// RFC 3986, 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// RFC 3986, 3.3: what may stand in a path unescaped.
pub(super) fn is_path_char(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@/".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_has_one_spelling() {
        for (path, wanted) in [
            ("/api/v1/pods", Some("/api/v1/pods")),
            ("api/v1/pods", Some("/api/v1/pods")),
            ("//api///v1//pods/", Some("/api/v1/pods/")),
            ("/%61pi/v1/p%6Fds", Some("/api/v1/pods")),
            ("/api/v1/p%6Fds", Some("/api/v1/pods")),
            (
                "/api/v1/namespaces/a/pods/x%20y",
                Some("/api/v1/namespaces/a/pods/x%20y"),
            ),
            (
                "/api/v1/namespaces/a/pods/x y",
                Some("/api/v1/namespaces/a/pods/x%20y"),
            ),
            (
                "/api/v1/namespaces/a/services/b/proxy/100%",
                Some("/api/v1/namespaces/a/services/b/proxy/100%25"),
            ),
            (
                "/api/v1/namespaces/a/services/b/proxy/%zz%3a",
                Some("/api/v1/namespaces/a/services/b/proxy/%25zz%3A"),
            ),
            (
                "/api/v1/namespaces/a/pods/a?b#c",
                Some("/api/v1/namespaces/a/pods/a%3Fb%23c"),
            ),
            (
                "/api/v1/namespaces/a/configmaps/system:x",
                Some("/api/v1/namespaces/a/configmaps/system:x"),
            ),
            (
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3ax%2B%40%20%3d",
                Some("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:x+@%20="),
            ),
            (
                "/api/v1/namespaces/a/services/http:web:80/proxy/a%2fb/",
                Some("/api/v1/namespaces/a/services/http:web:80/proxy/a%2Fb/"),
            ),
            (
                "/api/v1/nodes/n/proxy/a%2fb",
                Some("/api/v1/nodes/n/proxy/a%2Fb"),
            ),
            ("/version", Some("/version")),
            ("/healthz/etcd", Some("/healthz/etcd")),
            ("/apis", Some("/apis")),
        ] {
            let found = KubePath::parse(path).ok();
            assert_eq!(found.as_ref().map(KubePath::as_str), wanted, "{path}");
        }
    }

    #[test]
    fn what_another_reader_could_resolve_otherwise_is_refused() {
        for path in [
            "/api/v1/../../secrets",
            "/api/v1/%2e%2E/secrets",
            "/api/v1/./pods",
            "/api/v1/%2e/pods",
            "/api/v1/namespaces/default%2Fsecrets",
            "/api/v1/namespaces/proxy/secrets%2fx",
            "/api/v1/namespaces/a/pods/x/log/proxy/%2fy",
            "/api/v1/namespaces/a/pods/x%5cy",
            "/api/v1/namespaces/a/pods/x\\y",
            "/api/v1/namespaces/a%252Fsecrets",
            "/api/v1/namespaces/a/pods/%252e%252e/secrets",
            "/api/v1/namespaces/a/pods/100%",
            "/api/v1/namespaces/a/pods/%zz",
            "/api/v1/namespaces/a/services/x/proxy/..%2f..",
            "/api/v1/namespaces/a/services/x/proxy/%2e%2e",
            "/api/v1/pods\r\nHost: x",
            "/api/v1/pods%0d%0a",
            "/api/v1/pods%00",
            "http://169.254.169.254/api/v1",
            "/healthzz",
            "/metrics",
            "/",
            "",
        ] {
            assert!(KubePath::parse(path).is_err(), "{path}");
        }
        assert!(KubePath::parse(&format!("/api/{}", "ü".repeat(4000))).is_err());
    }

    #[test]
    fn service_paths_keep_what_is_the_applications_business() {
        for (path, wanted) in [
            ("", Some("/")),
            ("/a//b", Some("/a//b")),
            ("/a%2fb", Some("/a%2Fb")),
            ("/a..b/...", Some("/a..b/...")),
            ("/./a", Some("/./a")),
            ("/ü", Some("/%C3%BC")),
            ("/a;b=c", Some("/a;b=c")),
            ("a", None),
            ("/a/../b", None),
            ("/a/%2e%2e/b", None),
            ("/a/..%2fb", None),
            ("/a/..%5Cb", None),
            ("/x?u=http://y", None),
            ("/http://y", None),
            ("/a\0", None),
        ] {
            assert_eq!(service_path(path).ok().as_deref(), wanted, "{path}");
        }
    }

    #[test]
    fn an_old_watch_is_a_watch() {
        for (path, wanted) in [
            ("/api/v1/watch/pods", true),
            ("/apis/apps/v1/watch/deployments", true),
            ("/api/v1/namespaces/watch", false),
            ("/apis/watch/v1/x", false),
        ] {
            let path = KubePath::parse(path).unwrap();
            assert_eq!(path.is_legacy_watch(), wanted, "{path:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn canonical_is_canonical(path in "\\PC{0,60}") {
            if let Ok(once) = KubePath::parse(&format!("/api/{path}")) {
                proptest::prop_assert_eq!(&KubePath::parse(once.as_str()), &Ok(once.clone()));
                proptest::prop_assert!(!once.as_str().contains("//"));
            }
            if let Ok(once) = service_path(&format!("/{path}")) {
                proptest::prop_assert_eq!(service_path(&once), Ok(once));
            }
        }
    }
}
