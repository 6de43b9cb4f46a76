//! Identity under which a call runs.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

use super::{CONFIG, Rules};
use crate::core::proxy::{Call, CallTarget, Form, Refusal, values};

/// Under whose identity a call runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Identity<'a> {
    /// The narrow account of the control plane, whose token never leaves the box. An
    /// `Authorization` of the caller's stays behind.
    ControlPlane,
    /// The owner of this value of `Authorization`.
    Foreign(&'a str),
    /// None of ours: the other end decides by what the caller sent. An application by
    /// `Authorization`, cookies or whatever it likes; the API server by the token in a WebSocket's
    /// subprotocols, and there is no `Authorization` then.
    Caller,
}

/// A subprotocol that carries a token, for browsers, which cannot set headers.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// A credential that a call brings along.
enum Brought<'a> {
    Header(&'a str),
    Protocol(&'a str),
}

impl Brought<'_> {
    fn is_ours(&self, is_ours: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Header(value) => value.strip_prefix("Bearer ").is_some_and(is_ours),
            Self::Protocol(token) => {
                let token = BASE64_URL_SAFE_NO_PAD.decode(token).ok();
                let token = token.and_then(|token| String::from_utf8(token).ok());
                token.is_some_and(|token| is_ours(&token))
            }
        }
    }
}

/// Chooses the identity of a call. `is_ours` knows what the control plane was given in place of a
/// token.
pub fn identity<'a>(
    rules: &Rules,
    is_ours: impl Fn(&str) -> bool,
    call: &'a Call,
) -> Result<Identity<'a>, Refusal> {
    if matches!(call.target, CallTarget::Service(_)) {
        return Ok(Identity::Caller);
    }
    match brought(call).as_slice() {
        [] => Ok(Identity::ControlPlane),
        [one] if one.is_ours(is_ours) => Ok(Identity::ControlPlane),
        [_] if !rules.accepts_foreign_tokens => Err(Refusal(format!(
            "refused by the agent: the request brings a credential of its own, and access.foreign_tokens is false; fix: leave Authorization \
             out, or set access.foreign_tokens = true in {CONFIG}"
        ))),
        [Brought::Header(value)] => Ok(Identity::Foreign(value)),
        [Brought::Protocol(_)] => Ok(Identity::Caller),
        _ => Err(Refusal(
            "refused by the agent: the request brings more than one credential (Authorization, or a token among its WebSocket \
             subprotocols), and which one counts is not guessed"
                .to_owned(),
        )),
    }
}

/// Every credential that the API server could look at.
fn brought(call: &Call) -> Vec<Brought<'_>> {
    let headers = values(&call.headers, "authorization").map(Brought::Header);
    let listed = values(&call.headers, "sec-websocket-protocol").flat_map(|list| list.split(','));
    let offered: &[String] = if let Form::Socket(protocols) = &call.form {
        protocols
    } else {
        &[]
    };
    let protocols = offered
        .iter()
        .map(String::as_str)
        .chain(listed)
        .filter_map(token_of)
        .map(Brought::Protocol);
    headers.chain(protocols).collect()
}

fn token_of(protocol: &str) -> Option<&str> {
    let (prefix, token) = protocol.trim().split_at_checked(TOKEN_PROTOCOL.len())?;
    prefix.eq_ignore_ascii_case(TOKEN_PROTOCOL).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proxy::{Cluster, RawRequest, route};

    fn call(path: &str, headers: &[(&str, &str)]) -> Call {
        let is_service = path == "/";
        let name = if is_service { "shop" } else { "" };
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]))
            .collect();
        let asked = RawRequest {
            headers,
            namespace: name.to_owned(),
            service: name.to_owned(),
            port: i64::from(is_service),
            ..RawRequest::kubernetes("", path, "")
        };
        route(&asked, Cluster::Known).unwrap()
    }

    fn is_ours(bearer: &str) -> bool {
        bearer == "handle"
    }

    fn found(headers: &[(&str, &str)], accepts: bool) -> String {
        let rules = Rules {
            accepts_foreign_tokens: accepts,
            ..Rules::default()
        };
        let call = call("/api/v1/pods", headers);
        identity(&rules, is_ours, &call)
            .map_or_else(|refusal| refusal.0, |identity| format!("{identity:?}"))
    }

    /// Headers, and how the identity begins without and with foreign tokens.
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str);

    #[test]
    fn what_a_call_brings_along_decides_who_it_is() {
        let refused = "refused by the agent";
        let handle = format!("{TOKEN_PROTOCOL}aGFuZGxl");
        let other = format!("{TOKEN_PROTOCOL}b3RoZXI");
        let capitals = other.to_uppercase();
        let listed = format!("v4.channel.k8s.io, {other}");
        let (value, protocol) = ("Authorization", "Sec-WebSocket-Protocol");
        let cases: &[Case<'_>] = &[
            (&[], "ControlPlane", "ControlPlane"),
            (&[(value, "Bearer handle")], "ControlPlane", "ControlPlane"),
            (&[(protocol, &handle)], "ControlPlane", "ControlPlane"),
            (
                &[("AUTHORIZATION", "Bearer other")],
                refused,
                "Foreign(\"Bearer other\")",
            ),
            (&[(value, "bearer handle")], refused, "Foreign"),
            (&[(value, "Basic handle")], refused, "Foreign"),
            (&[(protocol, &other)], refused, "Caller"),
            (&[(protocol, &capitals)], refused, "Caller"),
            (&[(protocol, &listed)], refused, "Caller"),
            (
                &[(value, "Bearer handle"), (value, "Bearer handle")],
                refused,
                refused,
            ),
            (
                &[(value, "Bearer handle"), (protocol, &other)],
                refused,
                refused,
            ),
            (&[(protocol, &handle), (protocol, &other)], refused, refused),
        ];
        for (headers, strict, lax) in cases {
            for (accepts, wanted) in [(false, strict), (true, lax)] {
                let found = found(headers, accepts);
                assert!(
                    found.starts_with(wanted),
                    "{headers:?} accepts={accepts}: {found}"
                );
            }
        }
    }

    #[test]
    fn a_token_that_is_not_part_of_a_handshake_counts_too() {
        let mut call = call("/api/v1/pods", &[]);
        call.headers = vec![(
            "sec-websocket-protocol".to_owned(),
            vec![String::new(), format!("{TOKEN_PROTOCOL}b3RoZXI")],
        )];
        assert_eq!(call.form, Form::Plain);
        assert!(identity(&Rules::default(), is_ours, &call).is_err());
    }

    #[test]
    fn an_application_gets_what_the_caller_sent() {
        let call = call("/", &[("Authorization", "Bearer its own")]);
        let identity = identity(&Rules::default(), is_ours, &call);
        assert_eq!(identity, Ok(Identity::Caller));
    }
}
