//! The way of a call into the cluster, and of its answer's head back.

use hyper::{
    Request, Response,
    header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue},
    http::request::Builder,
};

use super::{Permit, Shared};
use crate::{
    core::{
        proxy::{Call, HeaderList, Limits, Scheme, Service, Target, end_to_end},
        time::Mono,
    },
    host::clock,
    kube::{
        Body, Client, Error, Identity,
        services::{self, Address},
    },
};

/// Why a call has no answer: the text for the caller.
pub(super) fn failure(target: &Target, error: &Error) -> String {
    let what = match target {
        Target::Kubernetes(_) => "kubernetes API request failed",
        Target::Service(_) => "service request failed",
    };
    if matches!(error, Error::Unconfigured(_)) {
        return format!("kubernetes client not initialized: {error}");
    }
    if error.is_deadline() {
        return format!("{what}: {DEADLINE}: {error}");
    }
    format!("{what}: {error}")
}

/// The text for an exchange whose time is over.
pub(super) const DEADLINE: &str = "context deadline exceeded";

/// Sends a permitted call and waits for the head of its answer.
pub(super) async fn send(
    shared: &Shared,
    permit: &Permit,
    limits: &Limits,
    body: Body,
) -> Result<Response<Body>, String> {
    let Some(client) = &shared.parts.client else {
        return Err("kubernetes client not initialized".to_owned());
    };
    let left = limits.head.since(clock::now().mono);
    if left.is_zero() {
        return Err(DEADLINE.to_owned());
    }
    let request = request(&permit.call, &permit.identity, body)?;
    let sent = match &permit.call.target {
        Target::Kubernetes(_) => client.send(request, &permit.identity, left).await,
        Target::Service(service) => {
            let found = until(limits.head, address(client, service)).await;
            let address = found.ok_or_else(|| format!("service request failed: {DEADLINE}"))??;
            let left = limits.head.since(clock::now().mono);
            services::send(client, &address, scheme(service), request, left).await
        }
    };
    sent.map_err(|error| failure(&permit.call.target, &error))
}

/// Where a service is served now.
pub(super) async fn address(client: &Client, service: &Service) -> Result<Address, String> {
    client
        .service(&service.namespace, &service.name, service.port)
        .await
        .map_err(|error| format!("service request failed: {error}"))
}

pub(super) fn scheme(service: &Service) -> services::Scheme {
    match service.scheme {
        Scheme::Http => services::Scheme::Plain,
        Scheme::Https => services::Scheme::Tls,
    }
}

/// The request as it is sent: the canonical path, the checked headers.
pub(super) fn request(
    call: &Call,
    identity: &Identity,
    body: Body,
) -> Result<Request<Body>, String> {
    let path = match &call.target {
        Target::Kubernetes(path) => path.as_str(),
        Target::Service(service) => &service.path,
    };
    let uri = if call.query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", call.query)
    };
    let mut builder = Request::builder().method(call.method.as_str()).uri(uri);
    builder = with_headers(builder, &call.headers);
    if let Target::Service(service) = &call.target {
        if let Some(host) = &service.host {
            builder = builder.header(HOST, host);
        }
        if service.scheme == Scheme::Https {
            builder = builder.header("x-forwarded-proto", "https");
        }
    }
    let mut request = builder
        .body(body)
        .map_err(|error| format!("invalid request: {error}"))?;
    if *identity == Identity::Agent {
        // The party sets its own; a second value must never be there, whatever the party does.
        request.headers_mut().remove(AUTHORIZATION);
    }
    Ok(request)
}

fn with_headers(mut builder: Builder, headers: &HeaderList) -> Builder {
    for (name, values) in headers {
        for value in values {
            builder = builder.header(name.as_str(), value.as_str());
        }
    }
    builder
}

/// The headers of an answer as the wire has them, without those of the connection.
pub(super) fn header_list(headers: &HeaderMap) -> HeaderList {
    end_to_end(&every_header(headers))
}

/// The headers of an answer as the wire has them.
pub(super) fn every_header(headers: &HeaderMap) -> HeaderList {
    headers
        .keys()
        .map(|name: &HeaderName| {
            let values = headers.get_all(name).iter().map(text).collect();
            (name.as_str().to_owned(), values)
        })
        .collect()
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Waits for `work` until a moment; `None` where the moment came first.
pub(super) async fn until<T>(moment: Mono, work: impl Future<Output = T>) -> Option<T> {
    smol::future::or(async { Some(work.await) }, async {
        clock::until(moment).await;
        None
    })
    .await
}
