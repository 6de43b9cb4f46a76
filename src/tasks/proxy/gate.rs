//! Gate of the control plane's apps: what the agent writes for them passes the same authorization,
//! body by body, as a call that comes through the link, and runs under the same account. A stricter
//! level cuts it off like any other.

use std::{cell::OnceCell, rc::Rc};

use hyper::{Request, Response, http::request};
use smol::future::FutureExt as _;

use super::{
    Proxy, Shared,
    audit::Record,
    authorization::Admitted,
    denial::{Cause, Denial},
    streams::{flow::Flow, http::header_list},
    upstream,
};
use crate::{
    core::{
        audit::RequestOutcome,
        policy::Terms,
        proxy::{RawRequest, route_http},
    },
    host::clock,
    kube::{
        Body, Error,
        gate::{Gate, Passing, REFUSED},
    },
};

impl Gate for Proxy {
    fn send(&self, request: Request<Body>) -> Passing<'_, Response<Body>> {
        let (head, body) = request.into_parts();
        Box::pin(async move {
            let sent = Box::pin(self.shared.pass(&head, body)).await;
            sent.map_err(|denial| refused(&head, denial))
        })
    }

    fn judge(&self, request: Request<Body>) -> Passing<'_, ()> {
        let (head, _) = request.into_parts();
        Box::pin(async move {
            let judged = self.shared.would_pass(&head).await;
            judged.map_err(|denial| refused(&head, denial))
        })
    }
}

impl Shared {
    async fn admitted(&self, head: &request::Parts) -> Result<Admitted, Denial> {
        let asked = RawRequest {
            headers: header_list(&head.headers)?,
            ..RawRequest::kubernetes(
                head.method.as_str(),
                head.uri.path(),
                head.uri.query().unwrap_or_default(),
            )
        };
        match self.admit(&asked, route_http) {
            Ok(admitted) => Ok(admitted),
            Err(denied) => {
                if let Some(row) = denied.row {
                    self.audit.refused(row).await;
                }
                Err(denied.denial)
            }
        }
    }

    async fn would_pass(&self, head: &request::Parts) -> Result<(), Denial> {
        let Admitted { call } = self.admitted(head).await?;
        let terms = self.review(&call);
        match terms {
            Ok(Terms::InManaged(namespace)) => self.settle(&call, &namespace).await.map(drop),
            Ok(Terms::Free | Terms::NewNamespace) => Ok(()),
            Err(refusal) => Err(self.refuse(&call, refusal).await),
        }
    }

    async fn pass(&self, head: &request::Parts, body: Body) -> Result<Response<Body>, Denial> {
        let admitted = self.admitted(head).await?;
        // The changes of apps have a bound of their own, and must not take the turns of the control
        // plane's calls.
        let pass = self.admission.enter(&admitted.call);
        let written: Rc<OnceCell<Record>> = Rc::default();
        let call = Rc::clone(&admitted.call);
        let limits = call.limits(clock::now());
        let sending = async {
            let authorization = self.authorization(admitted, &pass, &written).await?;
            upstream::send(self, &authorization, &limits, body).await
        };
        let cut = async { Err(pass.cut().await) };
        let sent = Box::pin(sending).or(cut).await;
        if let Some(record) = written.get() {
            match &sent {
                Ok(response) => record.answered(&call.target, response.status().as_u16()),
                Err(_) => record.ended(RequestOutcome::Failed),
            }
        }
        let (head, body) = sent?.into_parts();
        let flow = Flow::new(body, pass, written, limits.idle);
        Ok(Response::from_parts(head, Body::of_io(flow)))
    }
}

/// Denial in the form of a refusal of the API server, so that one reader understands both.
fn refused(head: &request::Parts, denial: Denial) -> Error {
    let reason = match denial.cause {
        Cause::Refused | Cause::Invalid => REFUSED,
        Cause::Busy | Cause::Backend | Cause::Late => "",
    };
    Error::Refused {
        call: format!("{} {}", head.method, head.uri.path()),
        status: denial.code().as_u16(),
        reason: reason.to_owned(),
        message: denial.text,
    }
}
