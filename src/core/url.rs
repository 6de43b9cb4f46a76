//! URLs of servers and of proxies, parsed once and passed on as values.
//!
//! Only what the agent can connect to is accepted: no passwords in the URL of a server, no
//! fragments.

use std::{fmt, net::IpAddr};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::core::secret::Secret;

/// Encryption of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Security {
    /// `https` and `wss`.
    Tls,
    /// `http` and `ws`.
    Plain,
}

impl Security {
    /// Port where a URL names none.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Tls => 443,
            Self::Plain => 80,
        }
    }
}

/// URL of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Url {
    /// Encryption of the connection.
    pub security: Security,
    /// A name or an IP address, the latter without brackets.
    pub host: String,
    /// The port; 443 or 80 where none was given.
    pub port: u16,
    /// The path; often empty.
    pub path: String,
    /// Query after the `?`.
    pub query: Option<String>,
}

/// URL of an HTTP proxy that is asked to CONNECT.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProxyUrl {
    /// Encryption of the connection to the proxy itself.
    pub security: Security,
    /// A name or an IP address, the latter without brackets.
    pub host: String,
    /// The port; 443 or 80 where none was given.
    pub port: u16,
    /// User and password with a colon between them, not encoded.
    pub credentials: Option<Secret>,
}

impl Url {
    /// Reads `https://host[:port][/path][?query]` as the base of other URLs: without a slash at the
    /// end of its path. `wss` is `https` and `ws` is `http`. The error says why not.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut url = Self::parse_exact(text)?;
        let end = url.path.trim_end_matches('/').len();
        url.path.truncate(end);
        Ok(url)
    }

    /// Like [`parse`](Self::parse), with the path as it is: `/` is not the same as none.
    pub fn parse_exact(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or("it has no scheme, write https:// before it")?;
        let security = match scheme.to_ascii_lowercase().as_str() {
            "https" | "wss" => Security::Tls,
            "http" | "ws" => Security::Plain,
            other => return Err(format!("the scheme {other:?} is not supported, use https")),
        };
        if rest.contains('#') {
            return Err("it has a fragment (#), which is never sent".to_owned());
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query.to_owned())),
            None => (rest, None),
        };
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at_checked(slash).ok_or("it is incomplete")?,
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(
                "it contains a user or password, which belong in separate files".to_owned(),
            );
        }
        let is_sendable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_sendable(path) || !query.as_deref().is_none_or(is_sendable) {
            return Err("its path contains characters that must be percent-encoded".to_owned());
        }
        let (host, port) = host_and_port(authority, security.default_port())?;
        Ok(Self {
            security,
            host,
            port,
            path: path.to_owned(),
            query,
        })
    }

    /// URL that a server at this one redirects to: a whole one, or a path on the same server. The
    /// error says why it cannot be followed.
    pub fn redirected(&self, location: &str) -> Result<Self, String> {
        if !location.starts_with('/') || location.starts_with("//") {
            return Self::parse_exact(location);
        }
        let path = Self::parse_exact(&format!("https://{}{location}", self.authority()))?;
        Ok(Self {
            path: path.path,
            query: path.query,
            ..self.clone()
        })
    }

    /// Host and port, for people and for the `Host` header.
    pub fn authority(&self) -> String {
        authority(&self.host, self.port, self.security)
    }

    /// Returns whether the connection stays on this machine.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// Returns whether `host` is this machine, by its text alone: a name other than `localhost` could
/// be anything tomorrow.
pub fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Host and port as the `Host` header has them: the usual port is left out.
pub fn authority(host: &str, port: u16, security: Security) -> String {
    let host = bracketed(host);
    if port == security.default_port() {
        host
    } else {
        format!("{host}:{port}")
    }
}

/// The host as URLs have it: an IPv6 address in brackets.
pub fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.security {
            Security::Tls => "https",
            Security::Plain => "http",
        };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)?;
        match &self.query {
            Some(query) => write!(f, "?{query}"),
            None => Ok(()),
        }
    }
}

impl ProxyUrl {
    /// Reads `[http://][user:password@]host[:port][/]`, as curl does. The error says why not and
    /// repeats nothing of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let security = match scheme.to_ascii_lowercase().as_str() {
            "http" => Security::Plain,
            "https" => Security::Tls,
            _ => return Err("only HTTP proxies (http://) are supported".to_owned()),
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        let (host, port) = host_and_port(authority, security.default_port())
            .ok()
            .ok_or("its host or port is invalid")?;
        let credentials = user
            .map(|user| credentials(user).ok_or("the encoding of its user or password is invalid"))
            .transpose()?;
        Ok(Self {
            security,
            host,
            port,
            credentials,
        })
    }

    /// The URL again, for a program that is told by its environment.
    pub fn url(&self) -> Secret {
        let credentials = self.credentials.as_ref().map_or(String::new(), |pair| {
            let pair = pair.reveal();
            let (user, password) = pair.split_once(':').unwrap_or((pair, ""));
            let [user, password] =
                [user, password].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
            format!("{user}:{password}@")
        });
        let scheme = match self.security {
            Security::Tls => "https",
            Security::Plain => "http",
        };
        let host = bracketed(&self.host);
        Secret::new(format!("{scheme}://{credentials}{host}:{}", self.port))
    }
}

/// User and password, which may be missing. `None` where their encoding is wrong.
fn credentials(text: &str) -> Option<Secret> {
    let (name, password) = text.split_once(':').unwrap_or((text, ""));
    Some(Secret::new(format!(
        "{}:{}",
        decoded(name)?,
        decoded(password)?
    )))
}

/// Host and port of an authority as they are written, before either is judged.
#[derive(Debug, Eq, PartialEq)]
pub struct Authority<'a> {
    /// Host, without the brackets around an IPv6 address.
    pub host: &'a str,
    /// Text behind the last colon.
    pub port: Option<&'a str>,
    /// True if the host was in brackets: an IPv6 address, or nothing that is valid.
    pub is_bracketed: bool,
}

impl<'a> Authority<'a> {
    /// Splits `host`, `host:port`, `[address]` and `[address]:port`.
    ///
    /// # Errors
    /// Mistake in the brackets.
    pub fn parse(text: &'a str) -> Result<Self, &'static str> {
        if let Some(rest) = text.strip_prefix('[') {
            let (host, behind) = rest.split_once(']').ok_or("its [ has no ]")?;
            let port = match behind {
                "" => None,
                _ => Some(
                    behind
                        .strip_prefix(':')
                        .ok_or("there is text between ] and the port")?,
                ),
            };
            return Ok(Self {
                host,
                port,
                is_bracketed: true,
            });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        Ok(Self {
            host,
            port,
            is_bracketed: false,
        })
    }

    /// Port as a number.
    ///
    /// # Errors
    /// Text that is not a port.
    pub fn port(&self) -> Result<Option<u16>, &'a str> {
        let Some(text) = self.port else {
            return Ok(None);
        };
        match text.parse() {
            Ok(port) if port != 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(Some(port))
            }
            _ => Err(text),
        }
    }
}

fn host_and_port(authority: &str, default_port: u16) -> Result<(String, u16), String> {
    let authority = Authority::parse(authority)?;
    let host = authority.host;
    if authority.is_bracketed && host.parse::<std::net::Ipv6Addr>().is_err() {
        return Err(format!("{host:?} is not an IPv6 address"));
    }
    let is_ip = host.parse::<IpAddr>().is_ok();
    let is_name = !host.is_empty()
        && host.len() <= 253
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
    if !is_ip && !is_name {
        return Err(match host {
            "" => "it names no host".to_owned(),
            _ => format!("{host:?} is not a host name"),
        });
    }
    let port = authority.port();
    let port = port.map_err(|text| format!("{text:?} is not a port"))?;
    Ok((host.to_owned(), port.unwrap_or(default_port)))
}

/// Undoes the %-encoding. `None` where it is wrong or gives a line end, which would end the header
/// it goes into.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        bytes.push(digit(rest.next()?)? * 16 + digit(rest.next()?)?);
    }
    let text = String::from_utf8(bytes).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_stays_on_the_server_or_names_another_whole() {
        let from = Url::parse_exact("https://[fd00::1]:8443/a?b=c").unwrap();
        let to = |location| from.redirected(location).map(|url| url.to_string());
        for (location, expected) in [
            ("/x/y?z=1", "https://[fd00::1]:8443/x/y?z=1"),
            ("https://b.example/x", "https://b.example/x"),
            ("http://b.example/x", "http://b.example/x"),
        ] {
            assert_eq!(to(location).as_deref(), Ok(expected), "{location}");
        }
        for location in [
            "",
            "x",
            "//b.example/x",
            "https://u@b.example/",
            "ftp://b/",
            "/ä",
        ] {
            assert!(to(location).is_err(), "{location}");
        }
    }

    #[test]
    fn an_authority_is_split_at_its_last_colon_or_its_bracket() {
        let split = |text| {
            let it = Authority::parse(text)?;
            Ok((it.host, it.port(), it.is_bracketed))
        };
        for (text, expected) in [
            ("a.example", Ok(("a.example", Ok(None), false))),
            ("a.example:80", Ok(("a.example", Ok(Some(80)), false))),
            ("a.example:", Ok(("a.example", Err(""), false))),
            ("a.example:+80", Ok(("a.example", Err("+80"), false))),
            ("a.example:0", Ok(("a.example", Err("0"), false))),
            ("a:b:80", Ok(("a:b", Ok(Some(80)), false))),
            ("[fd00::1]", Ok(("fd00::1", Ok(None), true))),
            ("[fd00::1]:65535", Ok(("fd00::1", Ok(Some(65535)), true))),
            ("[fd00::1]:65536", Ok(("fd00::1", Err("65536"), true))),
            ("[fd00::1", Err("its [ has no ]")),
            ("[fd00::1]80", Err("there is text between ] and the port")),
        ] {
            assert_eq!(split(text), expected, "{text}");
        }
    }

    #[test]
    fn wss_is_encrypted_and_ws_is_not() {
        for (text, security, port) in [
            ("https://cp.example", Security::Tls, 443),
            ("wss://cp.example", Security::Tls, 443),
            ("WSS://cp.example:8443/", Security::Tls, 8443),
            ("http://127.0.0.1:8080", Security::Plain, 8080),
            ("ws://localhost", Security::Plain, 80),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.security, url.port), (security, port), "{text}");
        }
    }

    #[test]
    fn an_address_is_taken_apart_and_shown_again() {
        let url = Url::parse("wss://[2001:db8::1]:8443/base/?a=b").unwrap();
        assert_eq!(
            (url.host.as_str(), url.path.as_str()),
            ("2001:db8::1", "/base")
        );
        assert_eq!(url.to_string(), "https://[2001:db8::1]:8443/base?a=b");
        assert_eq!(Url::parse("http://h:80/").unwrap().to_string(), "http://h");
        assert_eq!(Url::parse_exact("http://h/").unwrap().path, "/");
    }

    #[test]
    fn what_cannot_be_dialled_is_refused() {
        for text in [
            "",
            "cp.example",
            "ftp://cp.example",
            "https://",
            "https://:443",
            "https://a b",
            "https://cp.example:0",
            "https://cp.example:65536",
            "https://cp.example:+1",
            "https://user@cp.example",
            "https://cp.example/#x",
            "https://[::1",
            "https://[::1]x",
            "https://::1",
            "https://cp.example/\r\nX: y",
            "https://cp.example/?a b",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_the_own_machine_is_loopback() {
        for (host, is_own) in [
            ("localhost", true),
            ("127.8.0.1", true),
            ("::1", true),
            ("10.0.0.1", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(is_loopback(host), is_own, "{host}");
        }
    }

    #[test]
    fn a_proxy_with_a_password_is_read_and_its_password_hidden() {
        let proxy = ProxyUrl::parse("http://us%65r:p%40ss@proxy.example:3128/").unwrap();
        assert_eq!(
            proxy.credentials.as_ref().map(Secret::reveal),
            Some("user:p@ss")
        );
        assert!(!format!("{proxy:?}").contains("p@ss"));
        assert_eq!(ProxyUrl::parse("proxy:3128").unwrap().port, 3128);
        let proxy = ProxyUrl::parse("https://only%3Auser@[fd00::1]").unwrap();
        assert_eq!((proxy.security, proxy.port), (Security::Tls, 443));
        assert_eq!(proxy.host, "fd00::1");
        let credentials = proxy.credentials.as_ref().map(Secret::reveal);
        assert_eq!(credentials, Some("only:user:"));
        for text in [
            "socks5://proxy:1",
            "http://",
            "http://a%0d%0ab@proxy",
            "http://a%4@proxy",
            "socks5://a%40@h:1",
            "http://u:a%40@",
            "http://u:a%40%zz@h",
            "http://u:a%40@h:99999",
        ] {
            let why = ProxyUrl::parse(text).unwrap_err();
            assert!(!why.contains("a%"), "{why}");
        }
    }
}
