//! HTTP proxies: which one to use for a target, and CONNECT through it.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use super::dial::Target;
use super::tls::{self, Clock, Tls};
use super::{Error, Kind, Phase, Stream};

/// A proxy's answer to CONNECT is a status line and a few headers. Longer is not a proxy.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// One proxy.
#[derive(Clone)]
pub struct Proxy {
    /// Address of the proxy.
    pub target: Target,
    /// TLS to the proxy itself.
    pub tls: Option<Tls>,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("target", &self.target)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// An HTTP proxy that is reached without TLS. `credentials` are `user:password`, as they are
    /// meant: nothing in them is decoded.
    pub fn plain(target: Target, credentials: Option<&str>) -> Self {
        Self {
            target,
            tls: None,
            authorization: credentials.map(|plain| basic(plain.as_bytes())),
        }
    }

    /// Reads a proxy's address. Without a scheme it is `http`, without a port 80 or 443, as curl reads it.
    ///
    /// # Errors
    /// What cannot be used in it, without the password; `setting` names it.
    pub fn parse(
        setting: &str,
        url: &str,
        proxy_tls: &tls::Settings,
        clock: Clock,
    ) -> Result<Self, Error> {
        let bad = |why: &str| Error::unusable(setting, why);
        let (scheme, rest) = url
            .trim()
            .split_once("://")
            .unwrap_or_else(|| ("http", url.trim()));
        let (tls, port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (None, 80),
            "https" => (Some(Tls::new(proxy_tls, clock)?), 443),
            other => {
                return Err(bad(&format!(
                    "{other} proxies are not supported, use an HTTP proxy"
                )));
            }
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let authorization = match user {
            None => None,
            Some(user) => {
                let (name, password) = user.split_once(':').unwrap_or((user, ""));
                let (Some(mut plain), Some(password)) =
                    (percent_decoded(name), percent_decoded(password))
                else {
                    return Err(bad(
                        "the user or password contains an invalid percent-encoding",
                    ));
                };
                plain.push(b':');
                plain.extend(password);
                Some(basic(&plain))
            }
        };
        let (host, port) = host_and_port(host, port)
            .ok_or_else(|| bad("the address has no valid host and port"))?;
        Ok(Self {
            target: Target::new(host, port),
            tls,
            authorization,
        })
    }
}

/// Value of `Proxy-Authorization` for `user:password`.
fn basic(credentials: &[u8]) -> String {
    let code = base64::engine::general_purpose::STANDARD.encode(credentials);
    format!("Basic {code}")
}

/// The proxy, and the targets that are reached without it.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    proxy: Option<Proxy>,
    without: Vec<Exception>,
}

impl Proxies {
    /// `without` is a comma list of what is reached directly: names, `.suffixes`, addresses, CIDR
    /// blocks, each with an optional port; `*` is all.
    pub fn new(proxy: Option<Proxy>, without: &str) -> Self {
        let without = without.split([',', ' ']).filter_map(Exception::parse);
        Self {
            proxy,
            without: without.collect(),
        }
    }

    /// The proxy between us and `target`. Loopback is always direct.
    pub fn between(&self, target: &Target) -> Option<&Proxy> {
        let proxy = self.proxy.as_ref()?;
        let address = target.host.parse::<IpAddr>().ok();
        let host = target.host.trim_end_matches('.').to_ascii_lowercase();
        let is_loopback =
            host == "localhost" || address.is_some_and(|address| address.is_loopback());
        let is_excepted = || {
            self.without
                .iter()
                .any(|exception| exception.covers(&host, address, target.port))
        };
        (!is_loopback && !is_excepted()).then_some(proxy)
    }
}

/// One entry of `no_proxy`.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Exception {
    what: Except,
    port: Option<u16>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Except {
    All,
    /// The name itself and everything below it.
    Name(String),
    /// Only what is below: `.example.org`, `*.example.org`.
    Below(String),
    Block(IpAddr, u8),
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        if text.is_empty() {
            return None;
        }
        if text == "*" {
            return Some(Self {
                what: Except::All,
                port: None,
            });
        }
        if let Some((address, bits)) = text.split_once('/') {
            let (address, bits) = (address.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok()?);
            let widest = if address.is_ipv4() { 32 } else { 128 };
            let what = (bits <= widest).then_some(Except::Block(address, bits))?;
            return Some(Self { what, port: None });
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self {
                what: whole(address),
                port: None,
            });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
            None => (text.as_str(), None),
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let what = if let Ok(address) = bare.parse::<IpAddr>() {
            whole(address)
        } else if let Some(below) = host.strip_prefix("*.").or_else(|| host.strip_prefix('.')) {
            Except::Below(below.trim_end_matches('.').to_owned())
        } else {
            Except::Name(host.trim_end_matches('.').to_owned())
        };
        Some(Self { what, port })
    }

    fn covers(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        if self.port.is_some_and(|only| only != port) {
            return false;
        }
        let is_below = |name: &str| {
            host.strip_suffix(name)
                .is_some_and(|rest| rest.ends_with('.'))
        };
        match &self.what {
            Except::All => true,
            Except::Name(name) => host == name || is_below(name),
            Except::Below(name) => is_below(name),
            Except::Block(block, bits) => {
                address.is_some_and(|address| in_block(address, *block, *bits))
            }
        }
    }
}

fn whole(address: IpAddr) -> Except {
    Except::Block(address, if address.is_ipv4() { 32 } else { 128 })
}

fn in_block(address: IpAddr, block: IpAddr, bits: u8) -> bool {
    match (address.to_canonical(), block) {
        (IpAddr::V4(address), IpAddr::V4(block)) => {
            let shift = 32_u32.saturating_sub(u32::from(bits));
            let differ = u32::from(address) ^ u32::from(block);
            differ.checked_shr(shift).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(block)) => {
            let shift = 128_u32.saturating_sub(u32::from(bits));
            let differ = u128::from(address) ^ u128::from(block);
            differ.checked_shr(shift).unwrap_or(0) == 0
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

fn host_and_port(authority: &str, default: u16) -> Option<(&str, u16)> {
    let after_bracket = authority.rfind(']').map_or(0, |end| end + 1);
    let (host, port) = match authority.get(after_bracket..)?.rfind(':') {
        Some(colon) => {
            let (host, port) = authority.split_at_checked(after_bracket + colon)?;
            (host, port.strip_prefix(':')?.parse().ok()?)
        }
        None => (authority, default),
    };
    (!host.is_empty() && port != 0).then_some((host, port))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        plain.push(u8::from_str_radix(digits, 16).ok()?);
    }
    Some(plain)
}

/// Asks the proxy for a tunnel to `target`. The caller holds the deadline.
///
/// # Errors
/// In phase [`Phase::Proxy`]: what the proxy answered.
pub(super) async fn tunnel(
    stream: &mut Stream,
    proxy: &Proxy,
    target: &Target,
) -> Result<(), Error> {
    let authority = target.authority();
    let broken = |error: std::io::Error| Error::from_io(Phase::Proxy, &error, &authority);
    let garbage =
        |why: &str| Error::new(Phase::Proxy, Kind::ProxyGarbage(why.to_owned()), &authority);
    // The authority comes from settings or from the control plane: it must not be able to write a second header.
    if !authority.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::unusable(
            format!("{authority:?} behind a proxy"),
            "it is not a host name",
        ));
    }
    let mut head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
    if let Some(authorization) = &proxy.authorization {
        head.push_str("Proxy-Authorization: ");
        head.push_str(authorization);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut answer = Vec::new();
    // A byte at a time: what follows the head belongs to the protocol inside. It is one head a connection, and it comes from the
    // kernel's buffer.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= HEAD_BYTES_MAX {
            return Err(garbage("its answer is longer than 8 KiB"));
        }
        let mut byte = [0_u8; 1];
        if stream.read(&mut byte).await.map_err(broken)? == 0 {
            return Err(garbage("it closed the connection"));
        }
        answer.extend(byte);
        if answer.len() == b"HTTP/".len() && answer != b"HTTP/" {
            return Err(garbage("its answer is not HTTP"));
        }
    }
    let (status, reason) =
        status_line(&answer).ok_or_else(|| garbage("its status line is invalid"))?;
    if (200..300).contains(&status) {
        return Ok(());
    }
    Err(Error::new(
        Phase::Proxy,
        Kind::ProxyRefused { status, reason },
        authority,
    ))
}

/// Status and reason of an answer, with everything that a terminal could take for a command removed.
fn status_line(answer: &[u8]) -> Option<(u16, String)> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.splitn(3, ' ');
    let status = words.nth(1)?.parse().ok()?;
    let reason = words.next().unwrap_or_default();
    let reason = reason
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    Some((status, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Wall;

    fn clock() -> Clock {
        Clock::new(|| Wall::from_millis(0), Wall::from_millis(0))
    }

    fn proxies(no_proxy: &str) -> Proxies {
        let proxy = Proxy::plain(Target::new("proxy.example", 3128), None);
        Proxies::new(Some(proxy), no_proxy)
    }

    fn is_direct(no_proxy: &str, host: &str, port: u16) -> bool {
        proxies(no_proxy)
            .between(&Target::new(host, port))
            .is_none()
    }

    #[test]
    fn no_proxy_knows_names_suffixes_addresses_and_blocks() {
        for (no_proxy, host, direct) in [
            ("", "cp.example.org", false),
            ("*", "cp.example.org", true),
            ("example.org", "cp.example.org", true),
            ("example.org", "example.org", true),
            ("example.org", "notexample.org", false),
            (".example.org", "example.org", false),
            ("*.example.org", "CP.Example.org.", true),
            ("10.0.0.0/8", "10.42.0.1", true),
            ("10.0.0.0/8", "11.42.0.1", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe12::1", false),
            ("192.168.1.7", "192.168.1.7", true),
            ("a,  b.example ,10.1.0.0/16", "10.1.2.3", true),
            ("cp.example.org:6443", "cp.example.org", false),
            ("cp.example.org:443", "cp.example.org", true),
            ("[fd12::1]:443", "fd12::1", true),
            ("10.0.0.0/99,/,:,:x", "10.0.0.1", false),
        ] {
            assert_eq!(
                is_direct(no_proxy, host, 443),
                direct,
                "{no_proxy:?} and {host:?}"
            );
        }
    }

    #[test]
    fn loopback_is_always_direct() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "::1"] {
            assert!(is_direct("", host, 443), "{host}");
        }
    }

    #[test]
    fn credentials_of_a_setting_are_sent_as_they_are() {
        let proxy = Proxy::plain(Target::new("proxy", 3128), Some("u:100%25sure/%2F"));
        let code = base64::engine::general_purpose::STANDARD.encode("u:100%25sure/%2F");
        assert_eq!(proxy.authorization, Some(format!("Basic {code}")));
    }

    fn parse(url: &str) -> Result<Proxy, Error> {
        Proxy::parse("https_proxy", url, &tls::Settings::default(), clock())
    }

    #[test]
    fn addresses_of_proxies_are_read_as_people_write_them() {
        let proxy = parse("http://u%40x:p%3A@[fd00::1]:3128/").unwrap();
        assert_eq!(proxy.target, Target::new("fd00::1", 3128));
        assert_eq!(proxy.authorization.as_deref(), Some("Basic dUB4OnA6"));
        assert_eq!(
            parse("proxy:8080").unwrap().target,
            Target::new("proxy", 8080)
        );
        assert_eq!(parse("https://proxy").unwrap().target.port, 443);
        assert!(parse("https://proxy").unwrap().tls.is_some());
    }

    #[test]
    fn what_is_no_proxy_address_is_refused_without_its_password() {
        for url in [
            "socks5://secret@h:1",
            "http://u:secret@",
            "http://u:secret%zz@h",
            "http://h:0",
            "http://h:99999",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.phase, Phase::Settings, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_status_line_cannot_write_on_our_terminal() {
        let (status, reason) = status_line(b"HTTP/1.1 407 Pay \x1b[2J up\r\n\r\n").unwrap();
        assert_eq!((status, reason.as_str()), (407, "Pay [2J up"));
        assert_eq!(status_line(b"HTTP/1.1 lots\r\n\r\n"), None);
    }
}
