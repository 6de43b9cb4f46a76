//! Check of a gateway's addresses before they are dialled.

use std::{net::SocketAddr, time::Duration};

use super::dial::{Caller, Failure};
use crate::{
    core::{
        gateway::{Class, GatewayAddress, GatewayRefusal},
        link::DialFailure,
        url::Security,
    },
    error::{Error, Retry},
    net::{proxy::Proxy, target::Target as Peer},
    wire::handshake::{ChosenBy, DialTarget},
};

impl Caller {
    /// The addresses of `target` that may be dialled; `None` where nothing has to be checked here:
    /// the settings name the target, or `proxy` looks it up.
    ///
    /// # Errors
    /// The look-up failed, or no address is admitted.
    pub(super) async fn admitted(
        &self,
        target: &DialTarget,
        proxy: Option<&Proxy>,
        limit: Duration,
    ) -> Result<Option<Vec<SocketAddr>>, Failure> {
        if target.chosen_by == ChosenBy::Owner {
            return Ok(None);
        }
        let gateway = origin(target);
        let by_text = Class::of_text(&gateway.host);
        if proxy.is_some() {
            // Names that a proxy looks up count as public, the control plane's own like the
            // gateway's.
            let controller = Class::of_text(&self.gateways.controller.host);
            let [class, controller] =
                [by_text, controller].map(|known| known.unwrap_or(Class::Public));
            return match self.gateways.judge(&gateway, class, Some(controller)) {
                Ok(()) => Ok(None),
                Err(refusal) => Err(refused(&gateway, refusal)),
            };
        }
        if let Some(class @ (Class::Metadata | Class::Reserved)) = by_text {
            return Err(refused(&gateway, GatewayRefusal::Class(class)));
        }
        let peer = Peer::new(&target.host, target.port);
        let found = self.dialer.look_up(&peer, limit).await;
        let found = found.map_err(|error| Failure {
            kind: DialFailure::Network,
            error: Error::from(&error).within(format!("no session with {gateway}")),
        })?;
        let mut admitted = Vec::new();
        let mut first_refusal = None;
        let mut controller = None;
        for address in found {
            let class = Class::of(address.ip());
            let mut judged = self.gateways.judge(&gateway, class, None);
            if judged.is_err() {
                if controller.is_none() {
                    controller = Some(self.class_of_controller(limit).await);
                }
                judged = self.gateways.judge(&gateway, class, controller.flatten());
            }
            match judged {
                Ok(()) => admitted.push(address),
                Err(refusal) => {
                    first_refusal.get_or_insert(refusal);
                }
            }
        }
        match first_refusal {
            Some(refusal) if admitted.is_empty() => Err(refused(&gateway, refusal)),
            Some(_) | None => Ok(Some(admitted)),
        }
    }

    /// The class that all addresses of the control plane have in common, as far as this machine
    /// knows them.
    async fn class_of_controller(&self, limit: Duration) -> Option<Class> {
        let controller = &self.gateways.controller;
        let peer = Peer::new(&controller.host, controller.port);
        if self.proxies.between(&peer).is_some() {
            return Class::of_text(&controller.host);
        }
        let found = self.dialer.look_up(&peer, limit).await.ok()?;
        let mut classes = found.iter().map(|address| Class::of(address.ip()));
        let first = classes.next()?;
        classes.all(|class| class == first).then_some(first)
    }
}

fn origin(target: &DialTarget) -> GatewayAddress {
    GatewayAddress {
        is_encrypted: target.security == Security::Tls,
        host: target.host.clone(),
        port: target.port,
    }
}

fn refused(gateway: &GatewayAddress, refusal: GatewayRefusal) -> Failure {
    let fix = if refusal.is_liftable() {
        format!("if that gateway is yours: pipeops.gateways = \"{gateway}\" in the configuration")
    } else {
        "the operator of the control plane has to configure another gateway".to_owned()
    };
    Failure {
        kind: DialFailure::NotAdmitted,
        error: Error::new(format!("no session with {gateway}"))
            .why(refusal.to_string())
            .fix(fix)
            .retry(Retry::Later),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        core::{
            gateway::Rules,
            time::Wall,
            url::{ProxyUrl, Url},
        },
        net::{
            dial::Dialer,
            proxy::Proxies,
            tls::{self, Clock, Tls},
        },
    };

    fn caller(api: &str) -> Caller {
        let clock = Clock::new(Wall::default, Wall::default());
        let proxy = Proxy::new(&ProxyUrl::parse("proxy.invalid:3128").unwrap(), None);
        let controller = origin(&DialTarget::controller(&Url::parse(api).unwrap()));
        Caller {
            dialer: Dialer::default(),
            tls: Tls::new(&tls::Settings::default(), clock).unwrap(),
            proxies: Proxies::new(Some(proxy), ""),
            gateways: Rules {
                controller,
                listed: Vec::new(),
            },
            user_agent: String::new(),
        }
    }

    fn admitted(caller: &Caller, url: &str, way: Way) -> Result<Option<usize>, String> {
        let target = DialTarget::gateway(url, "c", "1").map_err(|error| format!("{error:?}"))?;
        let peer = Peer::new("cp.example", 443);
        let proxy = match way {
            Way::Direct => None,
            Way::Proxy => caller.proxies.between(&peer),
        };
        let admitted = caller.admitted(&target, proxy, Duration::from_secs(5));
        match smol::block_on(admitted) {
            Ok(addresses) => Ok(addresses.map(|found| found.len())),
            Err(failure) => Err(failure.error.sentence()),
        }
    }

    #[derive(Clone, Copy)]
    enum Way {
        Direct,
        Proxy,
    }

    #[test]
    fn a_name_is_judged_by_the_address_that_is_dialled() {
        // The resolver of every machine knows this name.
        let why = admitted(&caller("https://1.1.1.1"), "wss://localhost:9", Way::Direct);
        assert!(why.unwrap_err().contains("a loopback address"));
        let mut like = caller("https://127.0.0.1");
        like.proxies = Proxies::default();
        let found = admitted(&like, "wss://localhost:9", Way::Direct);
        assert!(found.unwrap().is_some_and(|count| count > 0));
        // A control plane behind a proxy has no address here.
        let behind = caller("https://cp.example");
        assert!(admitted(&behind, "wss://localhost:9", Way::Direct).is_err());
    }

    #[test]
    fn through_a_proxy_only_what_the_text_says_is_judged() {
        let caller = caller("https://cp.example");
        for url in ["wss://gw.example", "wss://1.1.1.1"] {
            assert_eq!(admitted(&caller, url, Way::Proxy), Ok(None), "{url}");
        }
        for url in [
            "wss://127.0.0.1",
            "wss://localhost",
            "wss://10.0.0.1",
            "wss://[::ffff:10.0.0.1]",
            "wss://127.1",
            "wss://169.254.169.254",
            "wss://metadata.google.internal",
            "ws://gw.example",
        ] {
            assert!(admitted(&caller, url, Way::Proxy).is_err(), "{url}");
        }
    }

    #[test]
    fn what_the_settings_name_is_not_judged() {
        let target = DialTarget::controller(&Url::parse("http://127.0.0.1").unwrap());
        let caller = caller("http://127.0.0.1");
        let admitted = caller.admitted(&target, None, Duration::from_secs(5));
        assert!(smol::block_on(admitted).is_ok_and(|addresses| addresses.is_none()));
    }
}
