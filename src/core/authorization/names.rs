//! Names in a request: the host that it addresses, its origin, its session.

use crate::core::url::Authority;

/// Returns whether a `Host` names this machine: with any port, or none.
pub fn is_here(host: &str, also_here: &[String]) -> bool {
    let Some(name) = name_of(host) else {
        return false;
    };
    let is = |own: &str| name.eq_ignore_ascii_case(own);
    ["localhost", "127.0.0.1", "::1"].into_iter().any(is) || also_here.iter().any(|own| is(own))
}

/// The name in `name`, `name:port` and `[name]:port`.
pub fn name_of(host: &str) -> Option<&str> {
    let authority = Authority::parse(host).ok()?;
    let name = authority.host;
    // A colon in the name needs brackets: else it could begin anywhere.
    let is_name = !name.is_empty() && (authority.is_bracketed || !name.contains(':'));
    (is_name && authority.port().is_ok()).then_some(name)
}

/// Returns whether an `Origin` is the page that this machine serves under that `Host`. Whoever sits
/// between can write a page of the plain scheme, so that one is none of ours where ours come
/// encrypted. (Not the other way round: there may be a proxy in front.)
pub fn is_same_origin(origin: &str, host: &str, is_encrypted: bool) -> bool {
    let plain = origin.strip_prefix("http://").filter(|_| !is_encrypted);
    let own = origin.strip_prefix("https://").or(plain);
    own.is_some_and(|own| own.eq_ignore_ascii_case(host))
}

/// The value of a cookie in a `Cookie` header. Two of one name are none: one of them may be
/// somebody else's.
pub fn cookie<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let mut values = header
        .split(';')
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(own, _)| *own == name)
        .map(|(_, value)| value);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}
