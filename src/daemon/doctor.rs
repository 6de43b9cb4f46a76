//! Targets of the doctor, from the configuration.

use std::path::{Path, PathBuf};

use super::{
    dashboard_tls::origin,
    wiring::{self, Network, wall},
};
use crate::{
    config::{self, ServiceEnvironment, Settings},
    core::{time::Wall, url::Security},
    error::{Error, Result},
    files::Jobs,
    host::clock,
    kube,
    net::{dial::Dialer, proxy::Proxies, target::Target, tls},
    tasks::machine::doctor::{self, ControlPlane, DoctorTarget, Paths},
};

/// The folder of the agent where no settings say otherwise.
const STATE_DIR: &str = "/var/lib/pipeops-agent";

/// This machine with these settings, or with what is wrong with them; `keeper` is the socket of the
/// root helper.
pub fn subject(settings: std::result::Result<&Settings, &[Error]>, keeper: &Path) -> DoctorTarget {
    let mut state_dir = PathBuf::from(STATE_DIR);
    let mut validity = Ok("valid".to_owned());
    let mut control_plane = None;
    let mut proxies = Proxies::default();
    let mut named = None;
    let mut around = ServiceEnvironment::default();
    let mut certificate = None;
    let mut secrets = Vec::new();
    match settings {
        Ok(settings) => {
            let listen = settings.dashboard.listen.map(|listen| listen.ip());
            certificate = listen
                .filter(|listen| !listen.is_loopback())
                .map(|listen| origin(settings, listen));
            secrets = settings.secret_files();
            state_dir.clone_from(&settings.agent.state_dir);
            named.clone_from(&settings.agent.kubeconfig);
            around.clone_from(&settings.surroundings);
            proxies = wiring::proxies(settings);
            if let Some(server) = &settings.pipeops.control_plane {
                match control_plane_of(settings, server) {
                    Ok(found) => control_plane = Some(found),
                    Err(error) => validity = Err(error),
                }
            }
        }
        Err(problems) => validity = problems.first().cloned().map_or(validity, Err),
    }
    let source = wiring::source(named.as_deref(), &around);
    let cluster = source.map(|source| kube::Settings {
        source,
        proxies,
        clock: tls::Clock::new(wall, Wall::default()),
        now: clock::now,
        jobs: Jobs::default(),
    });
    DoctorTarget {
        paths: Paths {
            root: PathBuf::from("/"),
            state_dir,
        },
        settings: validity,
        certificate,
        secrets,
        network: Some(doctor::Network {
            dialer: Dialer::default(),
            control_plane,
            cluster,
        }),
        keeper: keeper.to_owned(),
    }
}

/// Control plane, as the link reaches it.
fn control_plane_of(settings: &Settings, server: &config::ControlPlane) -> Result<ControlPlane> {
    let network = Network::new(settings, Wall::default());
    let caller = network.caller(settings, server)?;
    let url = &server.api_url;
    let target = Target::new(&url.host, url.port);
    let tls = match url.security {
        Security::Tls => Some(caller.tls),
        Security::Plain => None,
    };
    let proxy = caller.proxies.between(&target).cloned();
    Ok(ControlPlane { target, tls, proxy })
}
