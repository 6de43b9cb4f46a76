//! The port for a Prometheus of this machine: one page, read-only, the same for everybody who can connect.
//!
//! It is on the loopback interface alone. Who asks there is not known, so nothing else is served: see the socket.

use std::{convert::Infallible, net::SocketAddr, rc::Rc};

use hyper::{
    Request,
    body::{Body, Incoming},
    header,
    http::uri::Authority,
};
use smol::{LocalExecutor, net::TcpListener};

use super::{
    answers::Answers,
    connections::{Connections, Respond, Stream},
    routes::{Answer, Asked, admit, metrics},
};
use crate::{
    error::{Error, Result},
    files,
};

/// The listening port.
#[derive(Debug)]
pub struct Port {
    listener: TcpListener,
    address: SocketAddr,
}

impl Port {
    /// Listens at an address of this machine alone; port 0 is any that is free.
    pub async fn bind(wanted: SocketAddr) -> Result<Self> {
        let what = || format!("cannot listen on {wanted}");
        if !wanted.ip().is_loopback() {
            return Err(Error::new(what())
                .why("other machines could connect to it")
                .fix("set dashboard.listen to 127.0.0.1:7480 or [::1]:7480"));
        }
        let cannot = |error: std::io::Error| {
            if error.kind() != std::io::ErrorKind::AddrInUse {
                return files::explain(what(), &error);
            }
            let who = format!("ss -tlnp sport = :{}", wanted.port());
            Error::new(what()).because(&error).fix(format!(
                "another program has that port: {who}; set dashboard.listen to another one, or to off"
            ))
        };
        let listener = TcpListener::bind(wanted).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until it is dropped. Connections run on `executor` and end with this future.
    #[expect(clippy::infinite_loop, reason = "it serves until it is dropped")]
    pub async fn serve<A: Answers>(
        self,
        executor: Rc<LocalExecutor<'static>>,
        answers: Rc<A>,
    ) -> Infallible {
        let mut connections = Connections::new(executor);
        loop {
            let accepted = self.listener.accept().await.map(|(stream, _)| {
                let answers = Rc::clone(&answers);
                let respond: Respond = Box::new(move |request| {
                    let answers = Rc::clone(&answers);
                    Box::pin(async move { respond(&request, &*answers).await })
                });
                let stream: Stream = Box::new(stream);
                (stream, respond)
            });
            connections.take(accepted).await;
        }
    }
}

async fn respond<A: Answers>(request: &Request<Incoming>, answers: &A) -> Answer {
    // A name that is not text is none that is answered.
    let named = request.headers().get_all(header::HOST).iter();
    let hosts = named.map(|host| host.to_str().unwrap_or_default());
    // A whole URL in the first line names a host, too.
    let in_line = request.uri().authority().map(Authority::as_str);
    let hosts: Vec<_> = hosts.chain(in_line).collect();
    let asked = Asked {
        method: request.method(),
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        content_type: None,
        has_body: !request.body().is_end_stream(),
    };
    match admit(asked, &hosts) {
        Ok(()) => metrics(answers).await,
        Err(answer) => answer,
    }
}
