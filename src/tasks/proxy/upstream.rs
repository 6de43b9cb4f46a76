//! Upstream requests: sends a call into the cluster and returns the head of its response.

use http_body_util::{BodyExt, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::Body as HttpBody,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE},
    http::request::Builder,
};

use super::{
    Shared,
    authorization::{Authorization, no_cluster},
    bodies::{self, Ready},
    deadline::{left, until},
    denial::{Cause, DEADLINE, Denial, failure, late},
};
use crate::{
    core::{
        policy,
        proxy::{
            Call, CallTarget, HeaderList, Limits, Refusal, Scheme, Service, end_to_end, first,
        },
    },
    kube::{
        Body, Client, Identity, Upgraded,
        services::{self, Address},
    },
};

/// The largest body that names a namespace.
const NAMESPACE_BYTES_MAX: usize = 64 * 1024;

/// Sends a permitted call and waits for the head of its answer.
pub(super) async fn send(
    shared: &Shared,
    authorization: &Authorization,
    limits: &Limits,
    body: Body,
) -> Result<Response<Body>, Denial> {
    let Some(client) = &shared.dependencies.client else {
        return Err(no_cluster());
    };
    let call = &authorization.call;
    if let CallTarget::Service(service) = &call.target {
        let request = request(call, body)?;
        let finding = address((shared, client), service, authorization);
        let found = until(limits.head, Box::pin(finding)).await;
        let address = found.ok_or_else(|| {
            Denial::new(Cause::Late, format!("service request failed: {DEADLINE}"))
        })??;
        let left = left(limits)?;
        let sent = services::send(client, &address, scheme(service), request, left).await;
        return sent.map_err(|error| failure(&call.target, &error));
    }
    if authorization.makes_namespace {
        return Box::pin(make_namespace(shared, client, authorization, limits, body)).await;
    }
    let has_body = !HttpBody::is_end_stream(&body);
    let ready = match &authorization.writes {
        Some(written) => {
            let judging = bodies::judged((shared, client), authorization, written, limits, body);
            Box::pin(judging).await?
        }
        None => Ready::unread(body),
    };
    let content_type = ready.content_type;
    let send = |body, identity| async move {
        let mut request = request(call, body)?;
        if let Some(content_type) = content_type {
            let content_type = HeaderValue::from_static(content_type);
            request.headers_mut().insert(CONTENT_TYPE, content_type);
        }
        let sent = client.send(request, identity, left(limits)?).await;
        sent.map_err(|error| failure(&call.target, &error))
    };
    let response = send(ready.body, &authorization.identity).await?;
    let Identity::Bearer(token) = &authorization.identity else {
        return Ok(response);
    };
    if !authorization.is_delegated || response.status() != StatusCode::UNAUTHORIZED {
        if let Some(delegate) = &shared.dependencies.delegate
            && authorization.is_delegated
            && response.status().is_success()
        {
            delegate.worked();
        }
        return Ok(response);
    }
    // The cluster was made anew, or the token has ended before its time.
    if let Some(delegate) = &shared.dependencies.delegate {
        delegate.refused(token);
    }
    if has_body {
        return Ok(response);
    }
    let identity = Identity::Bearer(shared.delegated_token().await?);
    send(Body::empty(), &identity).await
}

/// Makes the namespace that the body names, as an object of ours.
async fn make_namespace(
    shared: &Shared,
    client: &Client,
    authorization: &Authorization,
    limits: &Limits,
    body: Body,
) -> Result<Response<Body>, Denial> {
    let call = &authorization.call;
    let collected = Limited::new(body, NAMESPACE_BYTES_MAX).collect();
    let Some(collected) = until(limits.head, collected).await else {
        return Err(late());
    };
    let asked = collected
        .map_err(|error| Denial::new(Cause::Invalid, format!("the body cannot be read: {error}")))?
        .to_bytes();
    let content_type = first(&call.headers, "content-type").unwrap_or_default();
    let made = match policy::new_namespace(&shared.rules.get(), &asked, content_type) {
        Ok(made) => made,
        Err(refusal) => return Err(shared.refuse(call, refusal).await),
    };
    if let Err(refusal) = is_free(shared, &made.name, limits).await {
        return Err(shared.refuse(call, refusal).await);
    }
    let mut request = request(call, Body::full(made.object))?;
    request
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let sent = client
        .send(request, &authorization.identity, left(limits)?)
        .await;
    sent.map_err(|error| failure(&call.target, &error))
}

/// Returns whether no binding waits for a namespace of this name.
async fn is_free(shared: &Shared, name: &str, limits: &Limits) -> Result<(), Refusal> {
    let Some(delegate) = &shared.dependencies.delegate else {
        return Err(policy::unknown_bindings(
            name,
            "there is no cluster",
            "start it",
        ));
    };
    let found = until(limits.head, delegate.binding_for(name)).await;
    match found.unwrap_or_else(|| Err(DEADLINE.to_owned())) {
        Ok(None) => Ok(()),
        Ok(Some(binding)) => Err(policy::inherits(name, &binding)),
        Err(why) => {
            let mend = delegate.manifest().command();
            Err(policy::unknown_bindings(name, &why, &mend))
        }
    }
}

/// The raw stream to the backend of a call that switches protocols, or the backend's refusal.
pub(super) async fn upgrade(
    shared: &Shared,
    authorization: &Authorization,
    limits: &Limits,
    protocol: &str,
) -> Result<Upgraded, Denial> {
    let Some(client) = &shared.dependencies.client else {
        return Err(no_cluster());
    };
    let call = &authorization.call;
    let mut request = request(call, Body::empty())?;
    let protocol = HeaderValue::from_str(protocol)
        .map_err(|error| Denial::new(Cause::Invalid, format!("invalid upgrade: {error}")))?;
    request.headers_mut().insert(UPGRADE, protocol);
    let switched = match &call.target {
        CallTarget::Kubernetes(_) => {
            let upgrade = client.upgrade(request, &authorization.identity, left(limits)?);
            Box::pin(upgrade).await
        }
        CallTarget::Service(service) => {
            let finding = address((shared, client), service, authorization);
            let found = until(limits.head, Box::pin(finding)).await;
            let address = found.ok_or_else(late)??;
            let left = left(limits)?;
            let upgrade = services::upgrade(client, &address, scheme(service), request, left);
            Box::pin(upgrade).await
        }
    };
    switched.map_err(|error| failure(&call.target, &error))
}

/// Returns the address at which a service is served now.
pub(super) async fn address(
    (shared, client): (&Shared, &Client),
    service: &Service,
    authorization: &Authorization,
) -> Result<Address, Denial> {
    let found = client
        .service(&service.namespace, &service.name, service.port)
        .await;
    let mut address =
        found.map_err(|error| Denial::backend(format!("service request failed: {error}")))?;
    let pods = std::mem::take(&mut address.pods);
    address.pods = shared
        .enterable(&authorization.call, &service.namespace, pods)
        .await?;
    address.forward_as.clone_from(&authorization.forward_as);
    Ok(address)
}

pub(super) fn scheme(service: &Service) -> services::Scheme {
    match service.scheme {
        Scheme::Http => services::Scheme::Plain,
        Scheme::Https => services::Scheme::Tls,
    }
}

/// The request as it is sent: the canonical path, the checked headers.
pub(super) fn request(call: &Call, body: Body) -> Result<Request<Body>, Denial> {
    let path = match &call.target {
        CallTarget::Kubernetes(path) => path.as_str(),
        CallTarget::Service(service) => &service.path,
    };
    let uri = if call.query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", call.query)
    };
    let mut builder = Request::builder().method(call.method.as_str()).uri(uri);
    builder = with_headers(builder, &call.headers);
    if let CallTarget::Service(service) = &call.target {
        if let Some(host) = &service.host {
            builder = builder.header(HOST, host);
        }
        if service.scheme == Scheme::Https {
            builder = builder.header("x-forwarded-proto", "https");
        }
    }
    let mut request = builder
        .body(body)
        .map_err(|error| Denial::new(Cause::Invalid, format!("invalid request: {error}")))?;
    if matches!(call.target, CallTarget::Kubernetes(_)) {
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
