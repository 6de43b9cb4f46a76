//! Streams that the control plane opens over yamux, one per connection: HTTP unchanged, with its
//! own back-pressure and cancel.

pub(super) mod flow;
pub(super) mod http;
mod relay;

use std::{rc::Rc, time::Duration};

use hyper::body::Bytes;
use serde::Serialize;
use smol::{Task, io::AsyncWriteExt};

use super::{Proxy, Shared, deadline::until};
use crate::{
    core::yamux::MuxLimits,
    host::clock,
    link::{
        mux::{Mux, MuxEnd, MuxStream},
        outlet::Outlet,
    },
    wire::stream::{Header, StreamTarget, Version},
};

/// Time for the header of a stream.
const HEADER_WITHIN: Duration = Duration::from_secs(10);
/// Time for the last bytes on a stream.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(10);

/// The streams of one session. Dropping it ends them all.
#[derive(Debug)]
pub(super) struct Streams {
    mux: Mux,
    _driver: Task<()>,
    _acceptor: Task<()>,
}

impl Streams {
    /// Streams that are open.
    pub(super) fn open_count(&self) -> usize {
        self.mux.load().streams
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.mux.session_lost();
    }
}

impl Proxy {
    /// From here on the session's binary messages are yamux frames. Call it before the control
    /// plane is told so. Streams of an earlier word of the same kind end.
    pub fn open_streams(&self, outlet: &Outlet) {
        outlet.carry_streams();
        let mux = Mux::new(MuxLimits::default(), outlet.clone());
        let executor = &self.shared.dependencies.executor;
        let driver = executor.spawn({
            let mux = mux.clone();
            async move {
                match mux.drive().await {
                    MuxEnd::SessionLost => {}
                    over @ MuxEnd::FramingLost(_) => log::warn!("proxy: no more streams: {over}"),
                }
            }
        });
        let acceptor = executor.spawn(accept(Rc::clone(&self.shared), mux.clone()));
        let before = self.streams.replace(Some(Streams {
            mux,
            _driver: driver,
            _acceptor: acceptor,
        }));
        drop(before);
    }

    /// Takes a binary message of a session with streams. `false`: there are none.
    pub fn stream_bytes(&self, message: &Bytes) -> bool {
        let mux = self
            .streams
            .borrow()
            .as_ref()
            .map(|streams| streams.mux.clone());
        let Some(mux) = mux else {
            return false;
        };
        mux.receive(message);
        true
    }
}

/// Serves every stream in a task of its own. Their number is limited by the mux.
async fn accept(shared: Rc<Shared>, mux: Mux) {
    let mut serving: Vec<Task<()>> = Vec::new();
    while let Some(stream) = mux.accept().await {
        serving.retain(|task| !task.is_finished());
        serving.push(
            shared
                .dependencies
                .executor
                .spawn(serve(Rc::clone(&shared), stream)),
        );
    }
}

/// Serves one stream to its end. Dropping it resets the stream.
async fn serve(shared: Rc<Shared>, mut stream: MuxStream) {
    let moment = clock::now().mono.after(HEADER_WITHIN);
    let header = match until(moment, stream.read_header()).await {
        Some(Ok(header)) => header,
        Some(Err(error)) => return log::debug!("proxy: a stream begins wrongly: {error:?}"),
        None => return log::debug!("proxy: a stream does not say what it is for"),
    };
    match header.target {
        StreamTarget::Kubernetes => {
            http::serve(shared, stream, http::Destination::Kubernetes).await
        }
        StreamTarget::Http(service) => {
            http::serve(shared, stream, http::Destination::Service(service)).await;
        }
        StreamTarget::Tcp(_) | StreamTarget::Udp(_) => {
            let moment = clock::now().mono.after(LAST_WORD_WITHIN);
            until(moment, refuse_tunnel(&header, stream)).await;
        }
    }
}

/// Says that a tunnel does not open: with a reason where the version has a word for it.
async fn refuse_tunnel(header: &Header, mut stream: MuxStream) {
    #[derive(Serialize)]
    struct Refused {
        error: &'static str,
        fix: &'static str,
    }
    let refused = Refused {
        error: "this version of the agent serves no TCP and UDP tunnels",
        fix: "reach the service by HTTP, or by kubectl port-forward",
    };
    let mut word = Vec::new();
    if header.version == Version::Two {
        let text = serde_json::to_vec(&refused).unwrap_or_default();
        let length = u16::try_from(text.len()).unwrap_or(0);
        word.push(1);
        word.extend_from_slice(&length.to_be_bytes());
        word.extend_from_slice(&text);
    }
    let said = async {
        stream.write_all(&word).await?;
        stream.close().await
    };
    if let Err(error) = said.await {
        log::debug!("proxy: a refused tunnel's caller was gone: {error}");
    }
}
