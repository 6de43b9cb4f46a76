//! Target of a connection: a host and a port.

/// Target of a connection.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Target {
    /// A name or an IP address; an IPv6 address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Target {
    /// A target from its two parts. Brackets around an IPv6 address are taken off.
    pub fn new(host: &str, port: u16) -> Self {
        let bare = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        Self {
            host: bare.unwrap_or(host).to_owned(),
            port,
        }
    }

    /// `host:port` as an HTTP authority: IPv6 in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}
