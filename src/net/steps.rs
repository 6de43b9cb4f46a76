//! Steps to a server, tried one after the other, so that the one that is broken is known.

use std::{net::SocketAddr, time::Duration};

use super::{
    Error, Stream,
    dial::{Dialer, Route},
};
use crate::core::time::Now;

/// Result of a step, and the time that it took.
#[derive(Debug)]
pub struct Tried<T> {
    pub result: Result<T, Error>,
    /// Duration.
    pub took: Duration,
}

/// Steps of a connection; `None` behind one that failed.
#[derive(Debug)]
pub struct Steps {
    /// Look-up of the server, or of the proxy in front of it.
    pub dns: Tried<Vec<SocketAddr>>,
    /// TCP connection to it.
    pub tcp: Option<Tried<()>>,
    /// Connection of its own along the whole route: through the proxy, with TLS.
    pub whole: Option<Tried<Stream>>,
}

/// Time for the steps.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For one of them.
    pub step: Duration,
    /// For all together.
    pub all: Duration,
}

/// Tries the steps of a route, by this clock.
pub async fn try_steps(
    dialer: &Dialer,
    route: &Route<'_>,
    deadlines: Deadlines,
    clock: fn() -> Now,
) -> Steps {
    let nearest = route.proxy.map_or(route.target, |proxy| &proxy.target);
    let start = clock().mono;
    let end = start.after(deadlines.all);
    let limit = || deadlines.step.min(end.since(clock().mono));
    let result = dialer.look_up(nearest, limit()).await;
    let mut steps = Steps {
        dns: Tried {
            result,
            took: clock().mono.since(start),
        },
        tcp: None,
        whole: None,
    };
    let Ok(addresses) = &steps.dns.result else {
        return steps;
    };
    let start = clock().mono;
    let name = nearest.authority();
    let result = dialer.dial_any(addresses, &name, limit()).await.map(drop);
    let is_open = result.is_ok();
    steps.tcp = Some(Tried {
        result,
        took: clock().mono.since(start),
    });
    if is_open {
        let start = clock().mono;
        let result = dialer.dial(route, limit()).await;
        steps.whole = Some(Tried {
            result,
            took: clock().mono.since(start),
        });
    }
    steps
}
