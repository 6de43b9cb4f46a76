//! The dashboard for other machines: the port, its certificate while it lives, and the names of
//! this machine.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    rc::Rc,
    time::Duration,
};

use smol::future::FutureExt as _;

use super::Agent;
use crate::{
    config::Settings,
    core::health::Severity,
    dashboard::{Loaded, OWN_FILE, Origin, Server, Shown, Site, Time},
    error::{Error, Result},
    executor,
    host::{clock, facts::hostname, network::addresses},
    tasks::state::{CertificateView, DashboardView},
};

/// Interval between checks of the certificate.
const POLL_INTERVAL: Duration = Duration::from_secs(20);
/// Condition of the certificate; the doctor's check has the same name.
const CERTIFICATE: &str = "dashboard.certificate";
/// Maximum number of addresses of the page that are shown.
const URLS_MAX: usize = 4;

impl Agent {
    /// Serves whoever reaches that address, by TLS alone. While there is no certificate it serves
    /// this machine, as it does unless it is told otherwise.
    pub(super) async fn serve_network(&self, wanted: SocketAddr, site: Rc<Site>) {
        let origin = origin(&self.settings, wanted.ip());
        let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), wanted.port());
        let loaded = match self.look_at(&origin).await {
            Ok(loaded) => loaded,
            Err(error) => {
                self.cannot_show(error);
                let in_the_meantime = async {
                    self.serve_here(here, Rc::clone(&site)).await;
                    std::future::pending().await
                };
                self.certificate(&origin).or(in_the_meantime).await
            }
        };
        let shown = Shown::new(loaded.served.clone());
        self.listeners.close_port();
        let bind = async || Server::on_network(wanted, shown.clone()).await;
        let server = self.open("dashboard.listen", bind).await;
        let Some(address) = server.address() else {
            return;
        };
        site.open_to_network(names(&self.settings), shown.clone());
        if let Some(before) = &loaded.replaces {
            self.report_change(before, loaded.served.fingerprint());
        }
        self.show(&loaded, address);
        let certificate = &loaded.served;
        let url = self.shared_state.dashboard.borrow().urls.join(" ");
        ::log::warn!(
            "the dashboard is reachable from other machines at {url} certificate_sha256={}",
            certificate.fingerprint()
        );
        let renewed = self.renew(&origin, &shown, address);
        let answering = async {
            server.serve(Rc::clone(&self.executor), site).await;
        };
        answering.or(renewed).await;
    }

    async fn look_at(&self, origin: &Origin) -> Result<Loaded> {
        let origin = origin.clone();
        let time = Time {
            now: self.network.time(),
            is_believed: self.network.clock_is_set(),
        };
        executor::unblock(move || origin.load(time)).await
    }

    /// The certificate, once there is one.
    async fn certificate(&self, origin: &Origin) -> Loaded {
        loop {
            clock::tick(POLL_INTERVAL).await;
            match self.look_at(origin).await {
                Ok(loaded) => return loaded,
                Err(error) => self.cannot_show(error),
            }
        }
    }

    fn cannot_show(&self, error: Error) {
        let sentence = error.sentence();
        self.shared_state
            .report(CERTIFICATE, Severity::Warning, sentence, error.fix);
    }

    /// Takes up a certificate that was renewed, and makes a new one in time.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    async fn renew(&self, origin: &Origin, shown: &Shown, address: SocketAddr) {
        let mut failures = 0_u32;
        loop {
            clock::tick(POLL_INTERVAL).await;
            match self.look_at(origin).await {
                Ok(loaded) => {
                    failures = 0;
                    let before = shown.now();
                    if before.fingerprint() != loaded.served.fingerprint() {
                        self.report_change(before.fingerprint(), loaded.served.fingerprint());
                        shown.replace(loaded.served.clone());
                    }
                    self.show(&loaded, address);
                }
                Err(error) => {
                    // Whoever renews writes one file after the other.
                    failures = failures.saturating_add(1);
                    if failures > 1 {
                        self.cannot_show(error);
                    }
                }
            }
        }
    }

    fn show(&self, loaded: &Loaded, address: SocketAddr) {
        match &loaded.doubt {
            Some(doubt) => {
                let (sentence, fix) = (doubt.sentence(), doubt.fix.clone());
                self.shared_state
                    .report(CERTIFICATE, Severity::Warning, sentence, fix);
            }
            None => self.shared_state.clear(CERTIFICATE),
        }
        self.shared_state.dashboard.replace(DashboardView {
            urls: self.urls(loaded, address),
            certificate: Some(CertificateView {
                fingerprint: loaded.served.fingerprint().to_owned(),
                until: loaded.until,
                is_self_made: self.settings.dashboard.certificate.is_none(),
            }),
        });
    }

    /// Reports a changed fingerprint to those who compared the old one: it was not an attacker.
    fn report_change(&self, before: &str, now: &str) {
        let sentence = format!(
            "the dashboard has a new certificate: its SHA-256 fingerprint is {now}, it was {before}"
        );
        ::log::warn!("{sentence}");
        self.shared_state
            .happened(CERTIFICATE, Severity::Note, sentence);
    }

    /// Addresses of the page for other machines: first the names in the certificate.
    fn urls(&self, loaded: &Loaded, address: SocketAddr) -> Vec<String> {
        let all = match address.ip() {
            ip if ip.is_unspecified() => addresses(),
            ip => vec![ip],
        };
        let usual = self.shared_state.link.borrow().local_ip;
        let (first, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| Some(*it) == usual);
        let addresses = first.into_iter().chain(others).map(|ip| ip.to_string());
        let settings = self.settings.dashboard.names.iter().cloned();
        let names = settings.chain(addresses).chain(own_names().pop());
        let (certain, doubtful): (Vec<_>, Vec<_>) =
            names.partition(|name| loaded.served.is_for(name));
        let port = address.port();
        let urls = certain.into_iter().chain(doubtful).map(|name| {
            if name.contains(':') {
                format!("https://[{name}]:{port}")
            } else {
                format!("https://{name}:{port}")
            }
        });
        urls.take(URLS_MAX).collect()
    }
}

/// Origin of the certificate. It includes the names of the machine, and an address that is
/// configured.
pub(super) fn origin(settings: &Settings, listen: IpAddr) -> Origin {
    if let Some(files) = &settings.dashboard.certificate {
        return Origin::Files {
            certificate: files.cert_file.clone(),
            key: files.key_file.clone(),
            names: settings.dashboard.names.clone(),
        };
    }
    let mut names = names(settings);
    names.extend([
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ]);
    if !listen.is_unspecified() {
        names.push(listen.to_string());
    }
    Origin::Own {
        file: settings.agent.state_dir.join(OWN_FILE),
        names,
        addresses: addresses(),
    }
}

/// The names under which this machine is known: its own, and those of the settings.
fn names(settings: &Settings) -> Vec<String> {
    let mut names = own_names();
    names.extend(settings.dashboard.names.iter().cloned());
    names.dedup();
    names
}

/// Names of this machine: its host name, the first label of it, and last the mDNS name.
fn own_names() -> Vec<String> {
    let own = hostname(Path::new("/")).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    // What a machine is called before it has a name is none.
    let is_name = own.bytes().all(is_plain)
        && own.split('.').all(|label| !label.is_empty())
        && !own.starts_with("localhost");
    if !is_name {
        return Vec::new();
    }
    let short = own.split('.').next().unwrap_or(&own).to_owned();
    let mdns = format!("{short}.local");
    let mut names = vec![own, short, mdns];
    names.dedup();
    names
}
