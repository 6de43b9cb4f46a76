//! From the name of a service to a connection with one of its Pods.
//!
//! The agent is outside the cluster's network: there is no cluster DNS and often no route to a
//! service's virtual address. So it asks the API for the ready Pods and connects to them. Only
//! addresses of Pods in the service's own namespace count, so that nobody who may write endpoints
//! can redirect the agent to another host.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use async_tungstenite::tungstenite::handshake::client::generate_key;
use hyper::header::{self, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, Uri};

use super::calls::Detail;
use super::client::{Client, Identity, strip_hop_by_hop, within};
use super::error::Error;
use super::forward;
use super::socket::{self, Ask, Opened};
use super::upgraded::Upgraded;
use crate::net::Body;
use crate::net::target::Target;
use crate::net::{self, Stream};
use crate::wire::kube::{EndpointSlice, Service, ServicePort};

/// The time for a connection to a Pod.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// The time for a straight connection where there is another way. Pods are on the same network or
/// one hop away.
const DIRECT_WITHIN: Duration = Duration::from_secs(2);

/// Addresses kept of one service. One connection needs one; the rest are for those that do not
/// answer.
const ADDRESSES_MAX: usize = 16;

/// Pods behind one service that are looked at, one after another.
const BEHIND_MAX: usize = 64;

/// Longest name of a namespace or service that is accepted (docs/protocol.md, Routing).
const NAME_BYTES_MAX: usize = 253;

/// A Pod that serves a service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pod {
    pub name: String,
    /// Its address and port in the network of the Pods.
    pub address: SocketAddr,
}

/// Address at which a service is served now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    /// The service's namespace.
    pub namespace: String,
    pub name: String,
    /// The port that callers use.
    pub port: u16,
    /// Its Pods, in the order in which to try them.
    pub pods: Vec<Pod>,
    /// Under whose identity the API server is asked for a way to a Pod that this host cannot reach;
    /// `None`: not at all.
    pub forward_as: Option<Identity>,
}

impl Address {
    /// `namespace/name:port`, for people.
    pub fn shown(&self) -> String {
        format!("{}/{}:{}", self.namespace, self.name, self.port)
    }

    /// The name that the service has inside the cluster.
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

/// Scheme of a service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheme {
    /// In the clear.
    Plain,
    /// TLS without verification of the certificate (docs/protocol.md, Routing): services use
    /// self-signed certificates for arbitrary names.
    Tls,
}

impl Client {
    /// Finds the ready Pods of a service.
    ///
    /// # Errors
    /// What the API says, or why the service cannot be reached and what to do.
    pub async fn service(&self, namespace: &str, name: &str, port: u16) -> Result<Address, Error> {
        let shown = format!("{namespace}/{name}:{port}");
        checked("namespace", namespace)?;
        checked("service name", name)?;
        if port == 0 {
            return Err(Error::BadRequest("invalid service port: 0".to_owned()));
        }
        let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
        let service: Service = match self.get(&path).await {
            Err(error) if error.is_not_found() => {
                return Err(unreachable(
                    &shown,
                    "there is no such service",
                    format!("kubectl -n {namespace} get services"),
                ));
            }
            answer => answer?,
        };
        let service_port = port_of(&shown, &service, port)?;
        let path = slices_path(namespace, name);
        let mut found = Vec::new();
        let mut not_ready = 0_usize;
        self.list(&path, Detail::Whole, |slice: EndpointSlice| {
            gather(&slice, namespace, service_port, &mut found, &mut not_ready);
        })
        .await?;
        if found.is_empty() {
            let why = match not_ready {
                0 => "it has no Pods".to_owned(),
                1 => "its Pod is not ready".to_owned(),
                more => format!("none of its {more} Pods is ready"),
            };
            let fix = format!(
                "kubectl -n {namespace} get pods,endpointslices -l kubernetes.io/service-name={name}; compare the service's selector with the labels of its Pods"
            );
            return Err(unreachable(&shown, &why, fix));
        }
        fastrand::shuffle(&mut found);
        Ok(Address {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port,
            pods: found,
            forward_as: None,
        })
    }

    /// Names of all Pods behind a service, ready or not: the API server's own proxy chooses one of
    /// them.
    ///
    /// # Errors
    /// What the API says; or an address behind it is none of a Pod in its namespace.
    pub async fn pods_behind(&self, namespace: &str, name: &str) -> Result<Vec<String>, Error> {
        checked("namespace", namespace)?;
        let shown = format!("{namespace}/{name}");
        let path = slices_path(namespace, name);
        let (mut names, mut strangers) = (BTreeSet::new(), 0_usize);
        self.list(&path, Detail::Whole, |slice: EndpointSlice| {
            for endpoint in slice.endpoints {
                let pod = endpoint.target_ref.filter(|target| {
                    target.kind == "Pod" && target.namespace == namespace && is_name(&target.name)
                });
                match pod {
                    Some(pod) => {
                        names.insert(pod.name);
                    }
                    None => strangers += 1,
                }
            }
        })
        .await?;
        if strangers > 0 {
            let why = "it leads to an address that does not belong to a Pod in its namespace";
            let fix = "give the service a selector".to_owned();
            return Err(unreachable(&shown, why, fix));
        }
        if names.len() > BEHIND_MAX {
            let why = format!("it has more than {BEHIND_MAX} Pods");
            let fix = "use one of its Pods: pods/NAME/proxy".to_owned();
            return Err(unreachable(&shown, &why, fix));
        }
        Ok(names.into_iter().collect())
    }

    /// Connects to one of the Pods of a service.
    ///
    /// # Errors
    /// No Pod answered within 10 s, or its TLS failed.
    pub async fn connect(&self, address: &Address, scheme: Scheme) -> Result<Stream, Error> {
        let shown = address.shown();
        let work = async {
            let stream = self.reach(address).await?;
            match scheme {
                Scheme::Plain => Ok(stream),
                Scheme::Tls => {
                    let target = Target::new(&address.host(), address.port);
                    let tls = self.service_tls().map_err(Error::from)?;
                    tls.connect(stream, &target).await.map_err(|error| {
                        let fix = "use scheme http if the service does not support TLS".to_owned();
                        unreachable(&shown, &error.to_string(), fix)
                    })
                }
            }
        };
        let call = format!("connect to {shown}");
        within(CONNECT_WITHIN, call, Box::pin(work)).await
    }
}

impl Client {
    /// A connection to one of the Pods: straight, or by way of the API server where the network of
    /// the Pods is out of reach.
    async fn reach(&self, address: &Address) -> Result<Stream, Error> {
        let shown = address.shown();
        let pods: Vec<SocketAddr> = address.pods.iter().map(|pod| pod.address).collect();
        let Some(identity) = &address.forward_as else {
            let dialed = self.dialer().dial_any(&pods, &shown, CONNECT_WITHIN).await;
            return dialed.map_err(|error| out_of_reach(&shown, &error));
        };
        if !self.are_pods_unreachable() {
            match self.dialer().dial_any(&pods, &shown, DIRECT_WITHIN).await {
                Ok(stream) => return Ok(stream),
                // Whatever it says: a router between us and the Pods may refuse in their name.
                Err(error) => {
                    log::debug!("kube: {shown}: {error}; asking the API server for a way")
                }
            }
        }
        let Some(pod) = address.pods.first() else {
            return Err(unreachable(&shown, "it has no Pods", String::new()));
        };
        let to = (
            address.namespace.as_str(),
            pod.name.as_str(),
            pod.address.port(),
        );
        let stream = forward::open(self, identity, to, CONNECT_WITHIN).await?;
        self.mark_unreachable();
        Ok(stream)
    }
}

fn out_of_reach(shown: &str, error: &net::Error) -> Error {
    unreachable(
        shown,
        &error.to_string(),
        "the agent must run on a node of the cluster, and a NetworkPolicy must let the node in"
            .to_owned(),
    )
}

/// Sends a request to a service over a connection of its own. As [`Client::send`], but `Host` and
/// `Authorization` are the caller's; without a `Host`, the service's name in the cluster.
///
/// # Errors
/// As [`Client::send`].
pub async fn send(
    client: &Client,
    address: &Address,
    scheme: Scheme,
    mut request: Request<Body>,
    head_deadline: Duration,
) -> Result<Response<Body>, Error> {
    strip_hop_by_hop(request.headers_mut());
    let request = addressed(request, address)?;
    let call = named(&request, address);
    let work = async {
        let stream = client.connect(address, scheme).await?;
        client.send_once(stream, &call, request).await
    };
    within(head_deadline, call.clone(), Box::pin(work)).await
}

/// Sends a request for an upgrade to a service, and gives the raw stream after 101.
///
/// # Errors
/// As [`Client::upgrade`].
pub async fn upgrade(
    client: &Client,
    address: &Address,
    scheme: Scheme,
    mut request: Request<Body>,
    head_deadline: Duration,
) -> Result<Upgraded, Error> {
    super::client::keep_upgrade(&mut request)?;
    let request = addressed(request, address)?;
    let call = named(&request, address);
    let work = async {
        let stream = client.connect(address, scheme).await?;
        client.upgrade_once(stream, &call, request).await
    };
    within(head_deadline, call.clone(), Box::pin(work)).await
}

/// Opens a WebSocket to a service.
///
/// # Errors
/// As [`upgrade`], or a handshake that is not one.
pub async fn open_socket(
    client: &Client,
    (address, scheme): (&Address, Scheme),
    ask: Ask<'_>,
    limit: Duration,
) -> Result<Opened, Error> {
    let key = generate_key();
    let request = socket::handshake(&ask, &key)?;
    let answer = upgrade(client, address, scheme, request, limit).await?;
    socket::opened(answer, &ask, &key).await
}

/// Path of the EndpointSlices of a service.
fn slices_path(namespace: &str, name: &str) -> String {
    format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}"
    )
}

fn named(request: &Request<Body>, address: &Address) -> String {
    format!(
        "{} {} of {}",
        request.method(),
        request.uri().path(),
        address.shown()
    )
}

fn addressed(mut request: Request<Body>, address: &Address) -> Result<Request<Body>, Error> {
    if request.method() == Method::CONNECT {
        return Err(Error::BadRequest(
            "CONNECT is not a request to a service".to_owned(),
        ));
    }
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", PathAndQuery::as_str);
    let uri: Uri = path
        .parse()
        .map_err(|error| Error::BadRequest(format!("invalid path: {error}")))?;
    *request.uri_mut() = uri;
    if !request.headers().contains_key(header::HOST) {
        let host = format!("{}:{}", address.host(), address.port);
        let host = HeaderValue::from_str(&host)
            .map_err(|error| Error::BadRequest(format!("invalid service name: {error}")))?;
        request.headers_mut().insert(header::HOST, host);
    }
    Ok(request)
}

fn unreachable(service: &str, why: &str, fix: String) -> Error {
    Error::Service {
        service: service.to_owned(),
        why: why.to_owned(),
        fix,
    }
}

/// A name that is safe in a path (docs/protocol.md, Routing): it holds no slash, dot or percent
/// sign.
fn checked(kind: &str, name: &str) -> Result<(), Error> {
    let is_inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_good = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(is_inside)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if is_good {
        Ok(())
    } else {
        Err(Error::BadRequest(format!("invalid {kind}: {name:?}")))
    }
}

fn port_of<'a>(shown: &str, service: &'a Service, port: u16) -> Result<&'a ServicePort, Error> {
    if service.spec.kind == "ExternalName" {
        return Err(unreachable(
            shown,
            "it is an ExternalName: a name outside the cluster, to which the agent does not forward",
            "use a service with Pods".to_owned(),
        ));
    }
    let is_tcp = |port: &ServicePort| port.protocol.is_empty() || port.protocol == "TCP";
    let found = service
        .spec
        .ports
        .iter()
        .find(|known| known.port == port && is_tcp(known));
    found.ok_or_else(|| {
        let known: Vec<_> = service
            .spec
            .ports
            .iter()
            .filter(|port| is_tcp(port))
            .map(|port| port.port.to_string())
            .collect();
        let fix = if known.is_empty() {
            "give the service a TCP port".to_owned()
        } else {
            format!("use one of its ports: {}", known.join(", "))
        };
        unreachable(shown, &format!("it has no TCP port {port}"), fix)
    })
}

/// Takes the ready Pods of the namespace out of one slice.
fn gather(
    slice: &EndpointSlice,
    namespace: &str,
    wanted: &ServicePort,
    found: &mut Vec<Pod>,
    not_ready: &mut usize,
) {
    let port = slice.ports.iter().find(|port| {
        port.name.as_deref().unwrap_or_default() == wanted.name
            && port.protocol.as_deref().unwrap_or("TCP") == "TCP"
    });
    let Some(port) = port.and_then(|port| port.port) else {
        return;
    };
    for endpoint in &slice.endpoints {
        let pod = endpoint.target_ref.as_ref().filter(|target| {
            target.kind == "Pod" && target.namespace == namespace && is_name(&target.name)
        });
        let address = endpoint
            .addresses
            .first()
            .and_then(|text| text.parse().ok());
        let (Some(pod), Some(address)) = (pod, address.filter(|address| is_of_a_pod(*address)))
        else {
            continue;
        };
        if endpoint.conditions.ready == Some(false) {
            *not_ready += 1;
        } else if found.len() < ADDRESSES_MAX {
            found.push(Pod {
                name: pod.name.clone(),
                address: SocketAddr::new(address, port),
            });
        }
    }
}

/// Returns whether this can be the name of an object such as a Pod, and so a segment of a path.
pub fn is_name(name: &str) -> bool {
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    name.len() <= NAME_BYTES_MAX
        && is_edge(name.bytes().next())
        && is_edge(name.bytes().next_back())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
}

/// Addresses that no Pod has, but that would lead us to this host itself or to a cloud's metadata
/// service. The API server refuses them in endpoints as well; this does not rely on it.
fn is_of_a_pod(address: IpAddr) -> bool {
    let is_link_local = match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let address = address.to_canonical();
    !(is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::kube::{Endpoint, EndpointConditions, EndpointPort, ServiceSpec, TargetRef};

    fn endpoint(address: &str, ready: Option<bool>, kind: &str, namespace: &str) -> Endpoint {
        Endpoint {
            addresses: vec![address.to_owned()],
            conditions: EndpointConditions { ready },
            target_ref: Some(TargetRef {
                kind: kind.to_owned(),
                namespace: namespace.to_owned(),
                name: "p".to_owned(),
            }),
        }
    }

    fn slice(endpoints: Vec<Endpoint>) -> EndpointSlice {
        let port = |name: &str, port| EndpointPort {
            name: Some(name.to_owned()),
            port: Some(port),
            protocol: Some("TCP".to_owned()),
        };
        EndpointSlice {
            endpoints,
            ports: vec![port("metrics", 9090), port("http", 8080)],
            ..EndpointSlice::default()
        }
    }

    fn http() -> ServicePort {
        ServicePort {
            name: "http".to_owned(),
            port: 80,
            protocol: "TCP".to_owned(),
        }
    }

    fn gathered(endpoints: Vec<Endpoint>) -> (Vec<SocketAddr>, usize) {
        let (mut found, mut not_ready) = (Vec::new(), 0);
        gather(
            &slice(endpoints),
            "shop",
            &http(),
            &mut found,
            &mut not_ready,
        );
        let found = found.into_iter().map(|pod: Pod| pod.address).collect();
        (found, not_ready)
    }

    #[test]
    fn only_ready_pods_of_the_namespace_count_and_the_port_is_joined_by_name() {
        let (found, not_ready) = gathered(vec![
            endpoint("10.42.0.5", Some(true), "Pod", "shop"),
            endpoint("10.42.0.6", None, "Pod", "shop"),
            endpoint("10.42.0.7", Some(false), "Pod", "shop"),
            endpoint("10.42.0.8", Some(true), "Pod", "other"),
            endpoint("10.42.0.9", Some(true), "Node", "shop"),
            Endpoint {
                target_ref: None,
                ..endpoint("10.42.0.10", Some(true), "Pod", "shop")
            },
            endpoint("example.org", Some(true), "Pod", "shop"),
        ]);
        let wanted = ["10.42.0.5:8080", "10.42.0.6:8080"].map(|text| text.parse().unwrap());
        assert_eq!((found.as_slice(), not_ready), (wanted.as_slice(), 1));
    }

    #[test]
    fn no_endpoint_leads_to_this_host_or_to_a_metadata_service() {
        for address in [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "169.254.169.254",
            "::ffff:127.0.0.1",
            "fe80::1",
            "224.0.0.1",
        ] {
            let (found, _) = gathered(vec![endpoint(address, Some(true), "Pod", "shop")]);
            assert!(found.is_empty(), "{address}");
        }
    }

    #[test]
    fn a_service_of_ten_thousand_pods_keeps_a_few() {
        let many = (0..10_000)
            .map(|_| endpoint("10.42.0.5", None, "Pod", "shop"))
            .collect();
        assert_eq!(gathered(many).0.len(), ADDRESSES_MAX);
    }

    #[test]
    fn names_that_could_leave_the_path_are_refused() {
        for name in [
            "",
            "-a",
            "a-",
            "a.b",
            "a/b",
            "A",
            "a%2f",
            "..",
            "é",
            &"a".repeat(254),
        ] {
            assert!(checked("service name", name).is_err(), "{name}");
        }
        assert!(checked("namespace", "kube-system").is_ok());
    }

    #[test]
    fn a_wrong_port_names_the_right_ones_and_an_external_name_is_refused() {
        let mut service = Service {
            spec: ServiceSpec {
                kind: "ClusterIP".to_owned(),
                ports: vec![http()],
                ..ServiceSpec::default()
            },
            ..Service::default()
        };
        assert!(port_of("s", &service, 80).is_ok());
        let Err(Error::Service { fix, .. }) = port_of("s", &service, 81) else {
            panic!("port 81 was found");
        };
        assert_eq!(fix, "use one of its ports: 80");
        service.spec.kind = "ExternalName".to_owned();
        assert!(port_of("s", &service, 80).is_err());
    }
}
