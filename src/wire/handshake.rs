//! Addresses of the two WebSocket endpoints (docs/protocol.md, Endpoints), built from the URLs of
//! the settings and of the control plane.

use std::fmt::Write;

use crate::core::url::{Security, Url, authority};

/// Endpoint to dial, and the path to request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DialTarget {
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

/// The path of the controller's endpoint; it replaces any path of the API URL.
const CONTROLLER_PATH: &str = "/api/v1/clusters/agent/ws";

impl DialTarget {
    /// The controller's endpoint for an API URL.
    pub fn controller(api_url: &Url) -> Self {
        let path_and_query = match &api_url.query {
            Some(query) => format!("{CONTROLLER_PATH}?{query}"),
            None => CONTROLLER_PATH.to_owned(),
        };
        Self::of(api_url, path_and_query, ChosenBy::Owner)
    }

    /// The gateway's endpoint. A query and a fragment of the URL are dropped: the control plane
    /// chose them, and gateways need none. The error says what is wrong with the URL.
    pub fn gateway(url: &str, cluster_uuid: &str, agent_version: &str) -> Result<Self, String> {
        let base = url.trim().split(['?', '#']).next().unwrap_or_default();
        let url = Url::parse_exact(base)?;
        // Only a URL without any path gets the usual one: `/` stays `/`.
        let path = match url.path.as_str() {
            "" => "/ws",
            path => path,
        };
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
        let path_and_query = format!("{path}?{}", query.join("&"));
        Ok(Self::of(&url, path_and_query, ChosenBy::ControlPlane))
    }

    fn of(url: &Url, path_and_query: String, chosen_by: ChosenBy) -> Self {
        Self {
            host: url.host.clone(),
            port: url.port,
            security: url.security,
            path_and_query,
            chosen_by,
        }
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
        authority(&self.host, self.port, self.security)
    }
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
            let target = DialTarget::controller(&Url::parse(url).unwrap());
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
            let target = DialTarget::gateway(url, "c 1", "1.0").unwrap();
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
            let target = DialTarget::gateway(url, "c", "1").unwrap();
            assert!(target.path_and_query.starts_with(path), "{url}");
            assert!(!target.path_and_query.contains("really"));
        }
    }

    #[test]
    fn the_host_header_names_only_unusual_ports() {
        for (url, header) in [
            ("https://a", "a"),
            ("http://a:443", "a:443"),
            ("https://[2001:db8::1]:9", "[2001:db8::1]:9"),
        ] {
            let target = DialTarget::controller(&Url::parse(url).unwrap());
            assert_eq!(target.host_header(), header);
        }
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
            let why = DialTarget::gateway(url, "c", "1").unwrap_err();
            assert!(why.contains(part), "{url}: {why}");
        }
    }
}
