//! Headers of proxied requests: which are hop-by-hop, which the agent sets, which are removed.

use super::{CallTarget, Form, HeaderList, Refusal, refuse};

/// Headers of one connection (RFC 9110, 7.6.1, and what the existing agent removes).
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
];

/// The first value of a header, whatever its capitals.
pub fn first<'a>(headers: &'a HeaderList, wanted: &str) -> Option<&'a str> {
    headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(wanted))
        .find_map(|(_, values)| values.first())
        .map(String::as_str)
}

/// Every value of a header, whatever its capitals.
pub fn values<'a>(headers: &'a HeaderList, wanted: &'static str) -> impl Iterator<Item = &'a str> {
    headers
        .iter()
        .filter(move |(name, _)| name.eq_ignore_ascii_case(wanted))
        .flat_map(|(_, values)| values)
        .map(String::as_str)
}

/// The headers that are for the other end: without those of one connection and those that
/// `Connection` names.
pub fn end_to_end(headers: &HeaderList) -> HeaderList {
    let nominated: Vec<String> = headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"))
        .flat_map(|(_, values)| values)
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    headers
        .iter()
        .filter(|(name, _)| {
            let name = name.to_ascii_lowercase();
            !HOP_BY_HOP.contains(&name.as_str()) && !nominated.contains(&name)
        })
        .cloned()
        .collect()
}

/// Returns whether the agent sets this header itself, or it must not arrive at this target.
pub(super) fn is_ours(name: &str, target: &CallTarget, form: &Form) -> bool {
    let name = name.to_ascii_lowercase();
    // The length is that of the body which really arrives; `Expect` would let the backend wait for
    // a body that is on its way.
    if matches!(name.as_str(), "host" | "content-length" | "expect") {
        return true;
    }
    // Of a handshake that the agent does not pass on as it is.
    if !matches!(form, Form::Upgrade(_)) && name.starts_with("sec-websocket-") {
        return true;
    }
    // A front proxy's word about who is calling: the API server believes it together with certain
    // client certificates.
    matches!(target, CallTarget::Kubernetes(_)) && name.starts_with("x-remote-")
}

/// Refuses what would smuggle a second header or request.
pub(super) fn check(headers: &HeaderList) -> Result<(), Refusal> {
    for (name, values) in headers {
        if name.is_empty() || !name.bytes().all(is_token) {
            return refuse("invalid header name");
        }
        let is_fine = |value: &String| {
            value
                .bytes()
                .all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
        };
        if !values.iter().all(is_fine) {
            return refuse(format!("invalid value of header {name}"));
        }
    }
    Ok(())
}

/// Letters of a token (RFC 9110, 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether a text can be a `Host` header.
pub(super) fn is_host(host: &str) -> bool {
    (1..=300).contains(&host.len())
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(headers: &[(&str, &str)]) -> HeaderList {
        headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]))
            .collect()
    }

    #[test]
    fn headers_of_one_connection_and_those_it_names_stay_behind() {
        let passed = end_to_end(&list(&[
            ("Accept", "*/*"),
            ("CONNECTION", "close, X-Secret ,x-other"),
            ("x-secret", "1"),
            ("X-Other", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Transfer-Encoding", "chunked"),
            ("te", "trailers"),
            ("Proxy-Authorization", "Basic x"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "x"),
        ]));
        assert_eq!(passed, list(&[("Accept", "*/*")]));
    }

    #[test]
    fn what_could_smuggle_a_header_is_refused() {
        for (name, value) in [
            ("", "x"),
            ("a b", "x"),
            ("a:", "x"),
            ("a\r\nb", "x"),
            ("é", "x"),
            ("a", "x\r\nb: y"),
            ("a", "x\ny"),
            ("a", "\0"),
            ("a", "\u{7f}"),
        ] {
            assert!(
                check(&list(&[(name, value)])).is_err(),
                "{name:?} {value:?}"
            );
        }
        assert!(check(&list(&[("X-Name", "tab\tand ünïcode")])).is_ok());
    }

    #[test]
    fn the_first_value_of_any_spelling_counts() {
        let headers = vec![
            ("empty".to_owned(), Vec::new()),
            ("hOsT".to_owned(), vec!["a".to_owned(), "b".to_owned()]),
        ];
        assert_eq!(first(&headers, "host"), Some("a"));
        assert_eq!(first(&headers, "empty"), None);
    }
}
