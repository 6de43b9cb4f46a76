//! Admission of gateways: the addresses of a gateway to which the agent may connect.
//!
//! A registration may name any address. Without a check the agent would send requests with its
//! token to services that only this machine can reach: on loopback, in its network, or the metadata
//! service of its cloud.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Class of a network address: who can be reached there.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Class {
    /// A host of the internet.
    Public,
    /// A host of a private network: RFC 1918, unique local, or shared address space (RFC 6598).
    Private,
    /// A neighbour on the same link.
    LinkLocal,
    /// This machine, the unspecified address included: Linux connects it to loopback.
    Loopback,
    /// The metadata service of a cloud, which hands out credentials.
    Metadata,
    /// No host at all: multicast, reserved, or a number that some resolvers read as an address.
    Reserved,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Public => "a public address",
            Self::Private => "a private address",
            Self::LinkLocal => "a link-local address",
            Self::Loopback => "a loopback address",
            Self::Metadata => "the metadata service of a cloud",
            Self::Reserved => "an address that no host can have",
        })
    }
}

/// Metadata services that answer at IPv4 addresses. Each cloud documents its own.
const METADATA_V4: &[[u8; 4]] = &[
    // AWS, Google Cloud, Azure and most others; then the credentials of containers on AWS, and
    // Tencent Cloud.
    [169, 254, 169, 254],
    [169, 254, 170, 2],
    [169, 254, 170, 23],
    [169, 254, 0, 23],
    // Azure's wire server, Alibaba Cloud, Oracle Cloud.
    [168, 63, 129, 16],
    [100, 100, 100, 200],
    [192, 0, 0, 192],
];

/// Metadata services that answer at IPv6 addresses: AWS (also for containers) and Google Cloud.
const METADATA_V6: &[Ipv6Addr] = &[
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Names of metadata services, below which everything belongs to them too.
const METADATA_NAMES: &[&str] = &[
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.com",
    "metadata.azure.internal",
    "metadata.packet.net",
    "metadata.platformequinix.com",
    "metadata.tencentyun.com",
    "metadata.oraclecloud.com",
    "instance-data",
    "instance-data.ec2.internal",
];

impl Class {
    /// The class of an address. An IPv6 address that stands for an IPv4 one (mapped, compatible,
    /// NAT64, 6to4) has the class of that.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::of_v4(v4),
            IpAddr::V6(v6) => Self::of_v6(v6),
        }
    }

    fn of_v4(v4: Ipv4Addr) -> Self {
        if METADATA_V4.contains(&v4.octets()) {
            return Self::Metadata;
        }
        match v4.octets() {
            [0 | 127, ..] => Self::Loopback,
            [10, ..] | [192, 168, ..] | [172, 16..=31, ..] | [100, 64..=127, ..] => Self::Private,
            // Protocol assignments and benchmarks (RFC 6890): used inside networks only.
            [192, 0, 0, _] | [198, 18..=19, ..] => Self::Private,
            [169, 254, ..] => Self::LinkLocal,
            [224..=255, ..] => Self::Reserved,
            _ => Self::Public,
        }
    }

    fn of_v6(v6: Ipv6Addr) -> Self {
        if METADATA_V6.contains(&v6) {
            return Self::Metadata;
        }
        if v6.is_loopback() || v6.is_unspecified() {
            return Self::Loopback;
        }
        let embedded = |high: u16, low: u16| {
            let ([one, two], [three, four]) = (high.to_be_bytes(), low.to_be_bytes());
            Self::of_v4(Ipv4Addr::new(one, two, three, four))
        };
        match v6.segments() {
            // Compatible, mapped (RFC 4291) and translated (RFC 2765) addresses.
            [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
                embedded(high, low)
            }
            // NAT64: the well-known prefix and the one for local use (RFC 6052, RFC 8215).
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
            [0x64, 0xff9b, ..] => Self::Private,
            [0x2002, high, low, ..] => embedded(high, low),
            // Teredo: its traffic goes to a relay that the address names.
            [0x2001, 0, ..] => Self::Reserved,
            [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Self::Private,
            [0xfe80..=0xfebf, ..] => Self::LinkLocal,
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Reserved,
        }
    }

    /// The class of a host by its text alone: a literal address, or a name that means one
    /// everywhere. `None` for other names, which have to be looked up.
    pub fn of_text(host: &str) -> Option<Self> {
        if let Ok(address) = host.parse() {
            return Some(Self::of(address));
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let is_or_below = |name: &str| {
            host.strip_suffix(name)
                .is_some_and(|rest| rest.is_empty() || (rest.ends_with('.') && name.contains('.')))
        };
        if METADATA_NAMES.iter().any(|name| is_or_below(name)) {
            return Some(Self::Metadata);
        }
        let last = host.rsplit('.').next().unwrap_or(&host);
        if last == "localhost" || host == "localhost.localdomain" {
            return Some(Self::Loopback);
        }
        // `127.1`, `2130706433`, `0x7f.1`: inet_aton reads them as addresses, and so may a proxy.
        let is_decimal = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        let is_hexadecimal = last
            .strip_prefix("0x")
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        (is_decimal || is_hexadecimal || host.is_empty()).then_some(Self::Reserved)
    }
}

/// Scheme, host and port of a server of WebSockets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayAddress {
    /// True if TLS is spoken.
    pub is_encrypted: bool,
    /// A name or an address, the latter without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl GatewayAddress {
    fn is_same(&self, other: &Self) -> bool {
        let host = |origin: &Self| match origin.host.parse::<IpAddr>() {
            Ok(address) => address.to_string(),
            Err(_) => origin.host.trim_end_matches('.').to_ascii_lowercase(),
        };
        self.is_encrypted == other.is_encrypted
            && self.port == other.port
            && host(self) == host(other)
    }
}

impl fmt::Display for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "wss" } else { "ws" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

/// Reason to refuse a gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GatewayRefusal {
    /// The connection would not be encrypted.
    Plain,
    /// Its address is of a class that no gateway has, or that the control plane's own address does
    /// not have.
    Class(Class),
}

impl GatewayRefusal {
    /// Returns whether listing the gateway in the settings lifts the refusal.
    pub const fn is_liftable(self) -> bool {
        !matches!(self, Self::Class(Class::Metadata | Class::Reserved))
    }
}

impl fmt::Display for GatewayRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str(
                "the control plane named an unencrypted gateway, but pipeops.api_url is not unencrypted",
            ),
            Self::Class(class) if self.is_liftable() => write!(
                f,
                "the control plane named a gateway at {class}, but pipeops.api_url is not at such an address"
            ),
            Self::Class(class) => write!(
                f,
                "the control plane named a gateway at {class}, which is never allowed"
            ),
        }
    }
}

/// Rules for the gateways that registrations name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rules {
    /// The control plane's own address, from the settings.
    pub controller: GatewayAddress,
    /// Gateways that the settings list.
    pub listed: Vec<GatewayAddress>,
}

impl Rules {
    /// Returns whether one address of `gateway` may be dialled. `controller` is the class of the
    /// control plane's own address; `None` where that is not known, or where its addresses differ.
    ///
    /// # Errors
    /// Why not.
    pub fn judge(
        &self,
        gateway: &GatewayAddress,
        class: Class,
        controller: Option<Class>,
    ) -> Result<(), GatewayRefusal> {
        if matches!(class, Class::Metadata | Class::Reserved) {
            return Err(GatewayRefusal::Class(class));
        }
        let is_listed = self.listed.iter().any(|listed| listed.is_same(gateway));
        let is_like_controller =
            self.controller.is_encrypted == gateway.is_encrypted && controller == Some(class);
        if is_listed || is_like_controller {
            Ok(())
        } else if !gateway.is_encrypted {
            Err(GatewayRefusal::Plain)
        } else if class == Class::Public {
            Ok(())
        } else {
            Err(GatewayRefusal::Class(class))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> Option<Class> {
        Class::of_text(text)
    }

    #[test]
    fn addresses_have_the_class_of_whom_they_reach() {
        for (wanted, addresses) in [
            (
                Class::Loopback,
                "127.0.0.1 127.8.9.1 0.0.0.0 0.1.2.3 ::1 :: ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: ::ffff:0:7f00:1",
            ),
            (
                Class::Private,
                "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 100.127.255.255 192.0.0.8 198.18.0.1 fc00::1 fdff::1 \
                 fec0::1 ::ffff:10.0.0.1 ::ffff:100.64.0.1 64:ff9b:1::1 2002:c0a8:101::1",
            ),
            (
                Class::LinkLocal,
                "169.254.0.1 169.254.169.253 fe80::1 febf::1 ::ffff:169.254.1.1",
            ),
            (
                Class::Metadata,
                "169.254.169.254 fd00:ec2::254 168.63.129.16 100.100.100.200 ::ffff:169.254.169.254 ::ffff:168.63.129.16 \
                 64:ff9b::a9fe:a9fe ::a9fe:a9fe 2002:a9fe:a9fe::1 192.0.0.192 fd20:ce::254",
            ),
            (
                Class::Reserved,
                "224.0.0.1 255.255.255.255 240.0.0.1 ff02::1 2001:0:1::1 100::1 4000::1 ::ffff:224.0.0.1",
            ),
            (
                Class::Public,
                "1.1.1.1 172.15.0.1 172.32.0.1 100.63.0.1 100.128.0.1 203.0.113.7 2606:4700::1 2001:db8::1 ::ffff:8.8.8.8 64:ff9b::808:808",
            ),
        ] {
            for address in addresses.split_whitespace() {
                assert_eq!(class(address), Some(wanted), "{address}");
            }
        }
    }

    #[test]
    fn names_that_mean_an_address_everywhere_need_no_look_up() {
        for (name, wanted) in [
            ("localhost", Some(Class::Loopback)),
            ("LOCALHOST.", Some(Class::Loopback)),
            ("a.localhost", Some(Class::Loopback)),
            ("metadata.google.internal", Some(Class::Metadata)),
            ("Metadata.Google.Internal.", Some(Class::Metadata)),
            ("x.metadata.google.internal", Some(Class::Metadata)),
            ("metadata", Some(Class::Metadata)),
            ("metadata.example.com", None),
            ("my-metadata", None),
            ("instance-data", Some(Class::Metadata)),
            ("2130706433", Some(Class::Reserved)),
            ("127.1", Some(Class::Reserved)),
            ("0x7f000001", Some(Class::Reserved)),
            ("127.0.0.0x1", Some(Class::Reserved)),
            ("0177.0.0.1", Some(Class::Reserved)),
            ("", Some(Class::Reserved)),
            ("gw.example.com", None),
            ("localhost.example.com", None),
        ] {
            assert_eq!(class(name), wanted, "{name}");
        }
    }

    fn origin(url: &str) -> GatewayAddress {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (host, port) = rest.rsplit_once(':').unwrap();
        GatewayAddress {
            is_encrypted: scheme == "wss",
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.parse().unwrap(),
        }
    }

    fn judge(api: &str, listed: &[&str], gateway: &str) -> Result<(), GatewayRefusal> {
        let rules = Rules {
            controller: origin(api),
            listed: listed.iter().map(|url| origin(url)).collect(),
        };
        let class = |origin: &GatewayAddress| Class::of_text(&origin.host).unwrap();
        let gateway = origin(gateway);
        rules.judge(&gateway, class(&gateway), Some(class(&rules.controller)))
    }

    #[test]
    fn a_gateway_is_encrypted_and_public_or_like_the_control_plane() {
        let public = "wss://1.1.1.1:443";
        for (api, gateway, wanted) in [
            (public, "wss://8.8.8.8:443", Ok(())),
            (public, "ws://8.8.8.8:80", Err(GatewayRefusal::Plain)),
            (public, "ws://127.0.0.1:19201", Err(GatewayRefusal::Plain)),
            (
                public,
                "wss://127.0.0.1:443",
                Err(GatewayRefusal::Class(Class::Loopback)),
            ),
            (
                public,
                "wss://[::ffff:10.0.0.1]:443",
                Err(GatewayRefusal::Class(Class::Private)),
            ),
            (
                public,
                "wss://169.254.7.7:443",
                Err(GatewayRefusal::Class(Class::LinkLocal)),
            ),
            ("ws://127.0.0.1:8080", "ws://127.0.0.1:9090", Ok(())),
            (
                "ws://127.0.0.1:8080",
                "ws://10.0.0.1:9090",
                Err(GatewayRefusal::Plain),
            ),
            (
                "ws://127.0.0.1:8080",
                "ws://8.8.8.8:9090",
                Err(GatewayRefusal::Plain),
            ),
            (
                "wss://127.0.0.1:8080",
                "ws://127.0.0.1:9090",
                Err(GatewayRefusal::Plain),
            ),
            ("wss://10.0.0.1:443", "wss://192.168.0.1:443", Ok(())),
            (
                "wss://10.0.0.1:443",
                "wss://127.0.0.1:443",
                Err(GatewayRefusal::Class(Class::Loopback)),
            ),
            ("wss://10.0.0.1:443", "wss://8.8.8.8:443", Ok(())),
        ] {
            assert_eq!(judge(api, &[], gateway), wanted, "{api} {gateway}");
        }
    }

    #[test]
    fn what_is_listed_is_dialled_but_never_a_metadata_service() {
        let public = "wss://1.1.1.1:443";
        let listed = ["ws://10.0.0.7:8080", "wss://169.254.169.254:443"];
        assert_eq!(judge(public, &listed, "ws://10.0.0.7:8080"), Ok(()));
        for other in ["ws://10.0.0.7:8081", "ws://10.0.0.8:8080"] {
            assert_eq!(
                judge(public, &listed, other),
                Err(GatewayRefusal::Plain),
                "{other}"
            );
        }
        let metadata = Err(GatewayRefusal::Class(Class::Metadata));
        assert_eq!(
            judge(public, &listed, "wss://169.254.169.254:443"),
            metadata
        );
        let own = "ws://169.254.169.254:80";
        assert_eq!(judge(own, &[], own), metadata);
    }

    #[test]
    fn a_control_plane_whose_address_is_not_known_vouches_for_nobody() {
        let rules = Rules {
            controller: origin("ws://cp.example:80"),
            listed: Vec::new(),
        };
        let gateway = origin("ws://127.0.0.1:80");
        let judged = rules.judge(&gateway, Class::Loopback, None);
        assert_eq!(judged, Err(GatewayRefusal::Plain));
    }
}
