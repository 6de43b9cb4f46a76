//! Access to the cluster as it is on disk now. k3s rewrites its kubeconfig at each start and the
//! token of a Pod is renewed every hour, so the files are checked repeatedly, and everything that
//! depends on the old ones is replaced as a whole.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use hyper::header::HeaderValue;
use smol::Timer;
use smol::future::FutureExt as _;

use super::error::Error;
use super::heard::Heard;
use super::kubeconfig::{self, Cluster, Source};
use super::pool::Pool;
use crate::core::secret::Secret;
use crate::core::stall::Job;
use crate::core::time::{Mono, Now};
use crate::core::url::{ProxyUrl, Security, Url, is_loopback};
use crate::error::{Error as AgentError, Retry};
use crate::files::Jobs;
use crate::net::proxy::{Proxies, Proxy};
use crate::net::tls::{self, Clock, Tls};
use crate::net::{self, target::Target};

/// Maximum age of a check of the files while the API answers: what was accepted stays good.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// Time that calls wait for the files while they have an earlier reading.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// After a failure the files are looked at again sooner, but a peer that refuses everything must
/// not make us read all the time.
const POLL_INTERVAL_FAILED: Duration = Duration::from_secs(1);

/// Settings of the client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Source of the access.
    pub source: Source,
    /// The proxies of the machine; a `proxy-url` in the kubeconfig wins.
    pub proxies: Proxies,
    /// The clock that certificates are checked with.
    pub clock: Clock,
    /// Both clocks (host::clock).
    pub now: fn() -> Now,
    /// The list of work that may wait for a disk.
    pub jobs: Jobs,
}

/// Required freshness of a check of the files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Freshness {
    /// The usual one.
    Recent,
    /// The API refused what we showed, or could not be reached.
    AfterFailure,
}

/// Address of the API server.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) target: Target,
    /// The value of `Host`.
    pub(super) authority: HeaderValue,
    /// Prefix of each path; empty, or `/something` without a slash at its end.
    pub(super) base: String,
}

/// Everything made from the files.
pub(super) struct Access {
    pub(super) server: Server,
    /// TLS with the client certificate of the kubeconfig; `None` where the server is plain HTTP.
    pub(super) agent_tls: Option<Tls>,
    /// TLS without it.
    pub(super) foreign_tls: Option<Tls>,
    /// The value of `Authorization` for the agent's own calls.
    pub(super) authorization: Option<HeaderValue>,
    pub(super) proxy: Option<Proxy>,
    /// Idle connections that carry the client certificate.
    pub(super) agent_pool: Rc<Pool>,
    /// Idle connections that do not: never mixed, because the API server believes the certificate
    /// before any token.
    pub(super) foreign_pool: Rc<Pool>,
}

/// The parts that can be made in the blocking pool.
struct Built {
    server: Server,
    agent_tls: Option<Tls>,
    foreign_tls: Option<Tls>,
    authorization: Option<HeaderValue>,
    proxy: Option<Proxy>,
    files: Vec<PathBuf>,
}

/// Each file with its time, size and inode; `None` where it does not exist.
type Fingerprint = Vec<(PathBuf, Option<(i64, i64, u64, u64)>)>;

#[derive(Default)]
struct Slot {
    access: Option<Rc<Access>>,
    looked: Option<Mono>,
    fingerprint: Fingerprint,
    complaint: Option<String>,
}

/// Keeps the access up to date.
pub(super) struct Updater {
    source: Source,
    proxies: Proxies,
    clock: Clock,
    now: fn() -> Now,
    jobs: Jobs,
    heard: Rc<Heard>,
    slot: RefCell<Slot>,
    /// One look at a time; the others wait for its result.
    looking: smol::lock::Mutex<()>,
}

impl Updater {
    /// Reads nothing yet. `heard` is told of each new access: who was refused by the one before, or
    /// had none, is to try again.
    pub(super) fn new(settings: &Settings, heard: Rc<Heard>) -> Self {
        Self {
            source: settings.source.clone(),
            proxies: settings.proxies.clone(),
            clock: settings.clock,
            now: settings.now,
            jobs: settings.jobs.clone(),
            heard,
            slot: RefCell::default(),
            looking: smol::lock::Mutex::new(()),
        }
    }

    /// The access of now. A file that cannot be read leaves the access that there was, because k3s
    /// may be writing it.
    ///
    /// # Errors
    /// [`Error::Unconfigured`] where there never was one.
    pub(super) async fn access(
        &self,
        freshness: Freshness,
        make_pool: impl Fn() -> Rc<Pool>,
    ) -> Result<Rc<Access>, Error> {
        if let Some(access) = self.fresh(freshness) {
            return Ok(access);
        }
        let one_at_a_time = self.looking.lock().await;
        if let Some(access) = self.fresh(freshness) {
            return Ok(access);
        }
        let known = self.slot.borrow().fingerprint.clone();
        let (source, proxies, clock) = (self.source.clone(), self.proxies.clone(), self.clock);
        let looked = self.jobs.run(Job::Kubeconfig, move || {
            look(&source, &proxies, clock, &known)
        });
        let has_access = self.slot.borrow().access.is_some();
        let late = async {
            if !has_access {
                std::future::pending::<()>().await;
            }
            Timer::after(LOOK_WITHIN).await;
            Err(AgentError::new("cannot look at the kubeconfig").why("its disk does not answer"))
        };
        let found = looked.or(late).await.flatten();
        drop(one_at_a_time);
        let mut slot = self.slot.borrow_mut();
        slot.looked = Some((self.now)().mono);
        match found {
            Ok(None) => {}
            Ok(Some((built, fingerprint))) => {
                slot.fingerprint = fingerprint;
                slot.complaint = None;
                slot.access = Some(Rc::new(Access {
                    server: built.server,
                    agent_tls: built.agent_tls,
                    foreign_tls: built.foreign_tls,
                    authorization: built.authorization,
                    proxy: built.proxy,
                    agent_pool: make_pool(),
                    foreign_pool: make_pool(),
                }));
                self.heard.try_again();
            }
            Err(error) => {
                let sentence = error.sentence();
                if slot.access.is_none() {
                    return Err(Error::Unconfigured(error));
                }
                if slot.complaint.as_ref() != Some(&sentence) {
                    log::warn!("kube: {sentence}; continuing with the previous values");
                    slot.complaint = Some(sentence);
                }
            }
        }
        slot.access.clone().ok_or_else(|| {
            Error::Unconfigured(AgentError::new("there is no cluster").retry(Retry::Later))
        })
    }

    fn fresh(&self, freshness: Freshness) -> Option<Rc<Access>> {
        let slot = self.slot.borrow();
        let every = match freshness {
            Freshness::Recent => POLL_INTERVAL,
            Freshness::AfterFailure => POLL_INTERVAL_FAILED,
        };
        let looked = slot.looked?;
        let is_fresh = (self.now)().mono.since(looked) < every;
        slot.access.clone().filter(|_| is_fresh)
    }
}

/// Rereads the files and rebuilds the access if one has changed; `None` where none has. Blocking.
fn look(
    source: &Source,
    proxies: &Proxies,
    clock: Clock,
    known: &Fingerprint,
) -> Result<Option<(Built, Fingerprint)>, AgentError> {
    let paths: Vec<PathBuf> = known.iter().map(|(path, _)| path.clone()).collect();
    if !known.is_empty() && fingerprint(paths) == *known {
        return Ok(None);
    }
    // The times are taken before the contents: a file that changes in between is then seen as
    // changed at the next look.
    let mut before = match source {
        Source::Files(files) => fingerprint(files.clone()),
        Source::K3s { own, admin } => fingerprint(vec![own.clone(), admin.clone()]),
        Source::InCluster { directory, .. } => {
            fingerprint(vec![directory.join("token"), directory.join("ca.crt")])
        }
    };
    let cluster = kubeconfig::load(source)?;
    let built = build(&cluster, proxies, clock)?;
    let more: Vec<PathBuf> = built
        .files
        .iter()
        .filter(|path| !before.iter().any(|(known, _)| known == *path))
        .cloned()
        .collect();
    before.extend(fingerprint(more));
    Ok(Some((built, before)))
}

fn fingerprint(paths: Vec<PathBuf>) -> Fingerprint {
    paths
        .into_iter()
        .map(|path| {
            let seen = std::fs::metadata(&path).ok();
            let seen = seen.map(|meta| (meta.mtime(), meta.mtime_nsec(), meta.len(), meta.ino()));
            (path, seen)
        })
        .collect()
}

fn build(cluster: &Cluster, proxies: &Proxies, clock: Clock) -> Result<Built, AgentError> {
    let (server, is_tls) = server(&cluster.server)?;
    let (agent_tls, foreign_tls) = if is_tls {
        let foreign = Tls::new(&cluster.tls, clock).map_err(|error| AgentError::from(&error))?;
        let agent = match &cluster.client {
            None => foreign.clone(),
            Some(client) => {
                let settings = tls::Settings {
                    client: Some(client.clone()),
                    ..cluster.tls.clone()
                };
                Tls::new(&settings, clock).map_err(|error| AgentError::from(&error))?
            }
        };
        (Some(agent), Some(foreign))
    } else {
        (None, None)
    };
    let authorization = match &cluster.token.0 {
        None => None,
        Some(token) => Some(bearer(token).ok_or_else(|| {
            AgentError::new(
                "the token of the kubeconfig contains characters that HTTP does not allow",
            )
        })?),
    };
    let proxy = match &cluster.proxy_url {
        Some(url) => Some(proxy_of(url, clock).map_err(|error| AgentError::from(&error))?),
        None => proxies.between(&server.target).cloned(),
    };
    // A token in clear text on a network is everybody's.
    if !is_tls && !is_loopback(&server.target.host) && authorization.is_some() {
        return Err(
            AgentError::new(format!("{} has a token but no TLS", cluster.server))
                .fix("use https:// in the server of the kubeconfig"),
        );
    }
    Ok(Built {
        server,
        agent_tls,
        foreign_tls,
        authorization,
        proxy,
        files: cluster.files.clone(),
    })
}

/// Reads the `proxy-url` of a kubeconfig.
fn proxy_of(url: &str, clock: Clock) -> Result<Proxy, net::Error> {
    let url = ProxyUrl::parse(url)
        .map_err(|why| net::Error::unusable("the proxy-url of the kubeconfig", why))?;
    let tls = match url.security {
        Security::Tls => Some(Tls::new(&tls::Settings::default(), clock)?),
        Security::Plain => None,
    };
    Ok(Proxy::new(&url, tls))
}

/// Reads the `server` of a kubeconfig; `true` is TLS. Without a scheme it is plain, as kubectl
/// reads it.
fn server(text: &str) -> Result<(Server, bool), AgentError> {
    let bad = |why: &str| {
        AgentError::new(format!("the server of the kubeconfig is {text:?}"))
            .why(why)
            .fix("write it as https://host:6443")
    };
    let url = if text.contains("://") {
        Url::parse(text)
    } else {
        Url::parse(&format!("http://{text}"))
    };
    let url = url.map_err(|why| bad(&why))?;
    let target = Target::new(&url.host, url.port);
    let authority =
        HeaderValue::from_str(&target.authority()).map_err(|error| bad(&error.to_string()))?;
    Ok((
        Server {
            target,
            authority,
            base: url.path,
        },
        url.security == Security::Tls,
    ))
}

/// The value of `Authorization` for a token; `None` where HTTP does not allow its characters.
pub(super) fn bearer(token: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_kubectl_reads_them() {
        for (text, host, port, base, tls) in [
            ("https://127.0.0.1:6443", "127.0.0.1", 6443, "", true),
            ("https://[::1]:6443/", "::1", 6443, "", true),
            (
                "https://rancher.example/k8s/clusters/c-1/",
                "rancher.example",
                443,
                "/k8s/clusters/c-1",
                true,
            ),
            ("localhost:8080", "localhost", 8080, "", false),
        ] {
            let (server, is_tls) = server(text).unwrap();
            assert_eq!(
                (server.target.host.as_str(), server.target.port),
                (host, port),
                "{text}"
            );
            assert_eq!((server.base.as_str(), is_tls), (base, tls), "{text}");
        }
        for text in ["", "unix:///x", "https://", "ftp://h", "https://a b"] {
            assert!(server(text).is_err(), "{text}");
        }
    }
}
