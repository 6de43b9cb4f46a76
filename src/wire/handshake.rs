//! Addresses of the two WebSocket endpoints (docs/protocol.md, Endpoints), built from the URLs of
//! the settings and of the control plane.

use std::fmt::Write;

use hyper::Uri;

/// Endpoint to dial, and the path to request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Target {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Encryption of the connection.
    pub security: Security,
    /// Path and query of the upgrade request.
    pub path_and_query: String,
    /// Source of the address.
    pub chosen_by: ChosenBy,
}

/// Source of an address: whether it has to be checked before it is dialled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChosenBy {
    /// The settings of this machine.
    Owner,
    /// A registration's answer.
    ControlPlane,
}

/// Encryption of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Security {
    /// `https`, `wss`.
    Tls,
    /// `http`, `ws`.
    Plain,
}

/// The path of the controller's endpoint; it replaces any path of the API URL.
const CONTROLLER_PATH: &str = "/api/v1/clusters/agent/ws";

impl Target {
    /// The controller's endpoint for an API URL. The error says what is wrong with the URL.
    pub fn controller(api_url: &str) -> Result<Self, String> {
        let uri = parse(api_url)?;
        let mut target = Self::of(&uri, ChosenBy::Owner)?;
        target.path_and_query = match uri.query() {
            Some(query) => format!("{CONTROLLER_PATH}?{query}"),
            None => CONTROLLER_PATH.to_owned(),
        };
        Ok(target)
    }

    /// The gateway's endpoint. A query and a fragment of the URL are dropped: the control plane chose them, and gateways need none.
    pub fn gateway(url: &str, cluster_uuid: &str, agent_version: &str) -> Result<Self, String> {
        let uri = parse(url)?;
        let mut target = Self::of(&uri, ChosenBy::ControlPlane)?;
        // Only a URL without any path gets the usual one: `/` stays `/`.
        let has_path = url
            .split(['?', '#'])
            .next()
            .and_then(|url| url.split_once("://"))
            .is_some_and(|(_, rest)| rest.contains('/'));
        let path = if has_path { uri.path() } else { "/ws" };
        let query = [
            ("agent_version", agent_version),
            ("cluster_uuid", cluster_uuid),
            ("supports_binary", "true"),
            ("supports_edge", "true"),
            ("supports_response_streaming", "true"),
            ("supports_streaming", "true"),
            ("supports_websocket", "true"),
            ("supports_yamux", "true"),
        ];
        let query = query.map(|(name, value)| format!("{name}={}", encoded(value)));
        target.path_and_query = format!("{path}?{}", query.join("&"));
        Ok(target)
    }

    fn of(uri: &Uri, chosen_by: ChosenBy) -> Result<Self, String> {
        let (security, default_port) = match uri.scheme_str() {
            Some("https" | "wss") => (Security::Tls, 443),
            Some("http" | "ws") => (Security::Plain, 80),
            Some(other) => {
                return Err(format!("its scheme is {other}, not https, wss, http or ws"));
            }
            None => return Err("it has no scheme such as https://".to_owned()),
        };
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .ok_or("it names no host")?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self {
            host,
            port: uri.port_u16().unwrap_or(default_port),
            security,
            path_and_query: String::new(),
            chosen_by,
        })
    }

    /// Scheme, host and port, for people.
    pub fn origin(&self) -> String {
        let scheme = match self.security {
            Security::Tls => "wss",
            Security::Plain => "ws",
        };
        format!("{scheme}://{}", self.host_header())
    }

    /// The value of the `Host` header.
    pub fn host_header(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match (self.security, self.port) {
            (Security::Tls, 443) | (Security::Plain, 80) => host,
            (Security::Tls | Security::Plain, port) => format!("{host}:{port}"),
        }
    }
}

fn parse(url: &str) -> Result<Uri, String> {
    let uri: Uri = url
        .trim()
        .parse()
        .map_err(|error: hyper::http::uri::InvalidUri| error.to_string())?;
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err(
            "it holds a user name or password; give the token by file or environment instead"
                .to_owned(),
        );
    }
    Ok(uri)
}

/// Form encoding of a query value.
fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte))
            }
            other => {
                // Writing to a String cannot fail.
                write!(text, "%{other:02X}").ok();
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_endpoint_replaces_the_path_and_keeps_the_query() {
        for (url, security, host, port, rest) in [
            (
                "https://api.pipeops.io",
                Security::Tls,
                "api.pipeops.io",
                443,
                "",
            ),
            (
                "https://api.example.com:8443/base/path?zone=a",
                Security::Tls,
                "api.example.com",
                8443,
                "?zone=a",
            ),
            (
                "wss://api.example.com/",
                Security::Tls,
                "api.example.com",
                443,
                "",
            ),
            (
                "http://127.0.0.1:8080",
                Security::Plain,
                "127.0.0.1",
                8080,
                "",
            ),
            ("ws://[::1]", Security::Plain, "::1", 80, ""),
        ] {
            let target = Target::controller(url).unwrap();
            assert_eq!(
                (target.security, target.host.as_str(), target.port),
                (security, host, port),
                "{url}"
            );
            assert_eq!(
                target.path_and_query,
                format!("/api/v1/clusters/agent/ws{rest}")
            );
        }
    }

    #[test]
    fn the_gateway_query_has_all_parameters_sorted_and_nothing_of_the_urls_own() {
        for url in [
            "wss://gw.example.com",
            "wss://gw.example.com?b=2&supports_yamux=maybe",
            "wss://gw.example.com?b=/2",
            "wss://gw.example.com#/x",
        ] {
            let target = Target::gateway(url, "c 1", "1.0").unwrap();
            assert_eq!(
                target.path_and_query,
                "/ws?agent_version=1.0&cluster_uuid=c%201&supports_binary=true&supports_edge=true&supports_response_streaming=true\
                 &supports_streaming=true&supports_websocket=true&supports_yamux=true",
                "{url}"
            );
            assert_eq!(target.chosen_by, ChosenBy::ControlPlane);
        }
        for (url, path) in [
            ("https://gw/", "/?agent_version"),
            ("https://gw/x/y", "/x/y?agent_version"),
            ("https://gw/x/y?really=yes#z", "/x/y?agent_version"),
        ] {
            let target = Target::gateway(url, "c", "1").unwrap();
            assert!(target.path_and_query.starts_with(path), "{url}");
            assert!(!target.path_and_query.contains("really"));
        }
    }

    #[test]
    fn the_host_header_names_only_unusual_ports() {
        assert_eq!(Target::controller("https://a").unwrap().host_header(), "a");
        assert_eq!(
            Target::controller("http://a:443").unwrap().host_header(),
            "a:443"
        );
        assert_eq!(
            Target::controller("https://[2001:db8::1]:9")
                .unwrap()
                .host_header(),
            "[2001:db8::1]:9"
        );
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        for (url, part) in [
            ("api.example.com", "scheme"),
            ("ftp://x", "ftp"),
            ("https://u:p@x", "password"),
            ("https://", ""),
            ("", ""),
        ] {
            let why = Target::controller(url).unwrap_err();
            assert!(why.contains(part), "{url}: {why}");
        }
    }
}
