//! Proxy of k3s itself: the environment by which it pulls images, and the destinations that it
//! reaches without it.

use std::{collections::BTreeSet, net::IpAddr};

use super::setting;
use crate::core::{secret::Secret, url::ProxyUrl};

/// Environment of the service, beside k3s' settings: no setting holds it, so that no plan, journal
/// or backup shows a password.
pub const ENVIRONMENT: &str = "/etc/rancher/k3s-proxy.env";

/// A wanted proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Its address.
    pub url: ProxyUrl,
    /// Destinations without it that the owner names.
    pub direct: Vec<String>,
}

/// Surroundings of a node, for the destinations that it reaches without a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Files of k3s' settings, ours included.
    pub settings: &'a [String],
    /// Addresses of this machine.
    pub addresses: &'a [IpAddr],
    /// Name of the node.
    pub node: &'a str,
    /// Host of the server that is joined.
    pub server: Option<&'a str>,
}

impl Proxy {
    /// Destinations without the proxy: this machine and its private networks, in which the other
    /// nodes are, Pods and Services.
    pub fn direct(&self, place: Place<'_>) -> Vec<String> {
        let of = |key: &str, usual: &str| {
            setting(place.settings, key).unwrap_or_else(|| usual.to_owned())
        };
        let networks = [
            of("cluster-cidr", "10.42.0.0/16"),
            of("service-cidr", "10.43.0.0/16"),
        ];
        let networks = networks.iter().flat_map(|all| all.split(','));
        let domain = setting(place.settings, "cluster-domain");
        let domain = domain.map_or_else(
            || ".cluster.local".to_owned(),
            |domain| format!(".{domain}"),
        );
        let all = ["localhost", "127.0.0.0/8", "::1", ".svc", &domain]
            .into_iter()
            .chain(networks)
            .chain([place.node])
            .chain(place.server)
            .map(str::to_owned)
            .chain(place.addresses.iter().map(around))
            .chain(self.direct.iter().cloned());
        let mut seen = BTreeSet::new();
        all.filter(|it| seen.insert(it.clone())).collect()
    }

    /// The environment. systemd and a shell read it alike.
    pub fn environment(&self, direct: &[String]) -> Secret {
        let url = self.url.url();
        let url = url.reveal();
        Secret::new(format!(
            "# Written by pipeops-agent k3s install, and removed with k3s.\n\
             HTTP_PROXY='{url}'\nHTTPS_PROXY='{url}'\nNO_PROXY='{}'\n",
            direct.join(",")
        ))
    }

    /// Its address, for people.
    pub fn shown(&self) -> String {
        let user = self.url.credentials.as_ref();
        let user = user.map_or("", |_| "(user and password)@");
        let bare = ProxyUrl {
            credentials: None,
            ..self.url.clone()
        };
        bare.url()
            .reveal()
            .replacen("://", &format!("://{user}"), 1)
    }
}

/// Returns whether a destination can stand in the list.
pub fn is_destination(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b".:/*-_".contains(&byte);
    !text.is_empty() && text.bytes().all(is_fine)
}

/// The private network that an address is in; itself where it is in none.
fn around(address: &IpAddr) -> String {
    let network = match address {
        IpAddr::V4(v4) => match v4.octets() {
            [10, ..] => Some("10.0.0.0/8"),
            [172, 16..=31, ..] => Some("172.16.0.0/12"),
            [192, 168, ..] => Some("192.168.0.0/16"),
            _ => None,
        },
        IpAddr::V6(v6) => v6.is_unique_local().then_some("fc00::/7"),
    };
    network.map_or_else(|| address.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy() -> Proxy {
        Proxy {
            url: ProxyUrl::parse("http://me:p%27s@proxy.lan:3128").unwrap(),
            direct: vec![".lan".to_owned()],
        }
    }

    #[test]
    fn the_cluster_and_the_network_of_the_nodes_are_reached_without_the_proxy() {
        let addresses = ["192.168.1.7", "203.0.113.7", "192.168.2.7"].map(|it| it.parse().unwrap());
        let settings = ["cluster-cidr: 10.52.0.0/16,fd01::/56\n".to_owned()];
        let direct = proxy().direct(Place {
            settings: &settings,
            addresses: &addresses,
            node: "box",
            server: Some("10.1.2.3"),
        });
        assert_eq!(
            direct.join(" "),
            "localhost 127.0.0.0/8 ::1 .svc .cluster.local 10.52.0.0/16 fd01::/56 10.43.0.0/16 \
             box 10.1.2.3 192.168.0.0/16 203.0.113.7 .lan"
        );
        assert!(direct.iter().all(|it| is_destination(it)));
        assert!(!is_destination("a'b") && !is_destination("$(x)") && !is_destination(""));
    }

    #[test]
    fn a_password_is_in_the_environment_only_and_cannot_end_its_quotes() {
        let environment = proxy().environment(&["localhost".to_owned()]);
        let text = environment.reveal();
        let line = "\nHTTPS_PROXY='http://me:p%27s@proxy.lan:3128'\n";
        assert!(text.contains(line), "{text}");
        assert_eq!(proxy().shown(), "http://(user and password)@proxy.lan:3128");
        assert!(!format!("{:?}", proxy()).contains("p%27s"));
    }
}
