//! HTTP proxies: which one to use for a target, and CONNECT through it.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use super::head::Head;
use super::target::Target;
use super::tls::Tls;
use super::{Error, ErrorKind, Phase, Stream};
use crate::core::url::{Authority, ProxyUrl};

/// A proxy's answer to CONNECT is a status line and a few headers. Longer is not a proxy.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Longer reasons of a refusal are cut.
const REASON_CHARS_MAX: usize = 200;

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
    /// The proxy at `url`, with TLS to the proxy itself where its URL has that.
    pub fn new(url: &ProxyUrl, tls: Option<Tls>) -> Self {
        let credentials = url.credentials.as_ref();
        Self {
            target: Target::new(&url.host, url.port),
            tls,
            authorization: credentials.map(|plain| basic(plain.reveal().as_bytes())),
        }
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
        let authority = Authority::parse(&text).ok()?;
        let (host, port) = (authority.host, authority.port().ok()?);
        let what = if let Ok(address) = host.parse::<IpAddr>() {
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
    let garbage = |why: &str| {
        Error::new(
            Phase::Proxy,
            ErrorKind::ProxyGarbage(why.to_owned()),
            &authority,
        )
    };
    // The authority comes from settings or from the control plane: it must not be able to write a
    // second header.
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
    // A byte at a time: what follows the head belongs to the protocol inside. It is one head a
    // connection, and it comes from the kernel's buffer.
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
    let head = Head::parse(&answer).ok_or_else(|| garbage("its status line is invalid"))?;
    if (200..300).contains(&head.status) {
        return Ok(());
    }
    let status = head.status;
    let reason = head.reason.chars().take(REASON_CHARS_MAX).collect();
    Err(Error::new(
        Phase::Proxy,
        ErrorKind::ProxyRefused { status, reason },
        authority,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{secret::Secret, url::Security};

    fn proxies(no_proxy: &str) -> Proxies {
        let proxy = Proxy::new(&ProxyUrl::parse("proxy.example:3128").unwrap(), None);
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
            ("[fd12::1]", "fd12::1", true),
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
        let url = ProxyUrl {
            security: Security::Plain,
            host: "proxy".to_owned(),
            port: 3128,
            credentials: Some(Secret::new("u:100%25sure/%2F")),
        };
        let proxy = Proxy::new(&url, None);
        let code = base64::engine::general_purpose::STANDARD.encode("u:100%25sure/%2F");
        assert_eq!(proxy.authorization, Some(format!("Basic {code}")));
    }
}
