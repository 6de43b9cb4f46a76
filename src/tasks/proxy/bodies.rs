//! Bodies of writes into managed namespaces: collected, judged, compared with what is there, and
//! sent on.

use http_body_util::{BodyExt, Limited};
use hyper::{
    Method, Request, StatusCode,
    header::{ACCEPT, HeaderValue},
};

use super::{
    Shared,
    authorization::Authorization,
    body::{Reservation, busy_with_bodies},
    deadline::{left, until},
    denial::{Cause, Denial, failure, late},
};
use crate::{
    core::{
        policy::{self, BODY_BYTES_MAX, Content, Fault, Write, Written},
        proxy::{Call, CallTarget, Limits, Refusal},
    },
    kube::{Body, Client},
};

/// A body that may be sent.
pub(super) struct Ready {
    pub(super) body: Body,
    /// Its type, where it was read; else what the caller says.
    pub(super) content_type: Option<&'static str>,
    /// Room in the budget for as long as the body is on its way.
    pub(super) _held: Vec<Reservation>,
}

impl Ready {
    /// A body that nobody reads on its way.
    pub(super) const fn unread(body: Body) -> Self {
        Self {
            body,
            content_type: None,
            _held: Vec::new(),
        }
    }
}

/// Judges the body of a write. A patch passes unread where the API server judges its result.
pub(super) async fn judged(
    (shared, client): (&Shared, &Client),
    authorization: &Authorization,
    written: &Written,
    limits: &Limits,
    body: Body,
) -> Result<Ready, Denial> {
    let call = &authorization.call;
    if written.write == Write::Patch {
        return match locked(shared, authorization, limits).await {
            Ok(()) => Ok(Ready::unread(body)),
            Err(refusal) => Err(shared.refuse(call, refusal).await),
        };
    }
    let content = match Content::of(call, written) {
        Ok(content) => content,
        Err(why) => return Err(unreadable(shared, call, &why).await),
    };
    let (bytes, held) = collect(shared, call, content, limits, body).await?;
    let rules = shared.rules.get();
    let judged = match policy::judge_body(&rules, call, written, content, bytes) {
        Ok(judged) => judged,
        Err(refusal) => return Err(shared.refuse(call, refusal).await),
    };
    let had = if judged.faults.is_empty() || written.write == Write::Create {
        Vec::new()
    } else {
        existing(shared, client, authorization, (written, content), limits).await?
    };
    if let Err(refusal) = policy::settle_body(call, &judged.faults, &had) {
        return Err(shared.refuse(call, refusal).await);
    }
    Ok(Ready {
        body: Body::full(judged.body),
        content_type: Some(judged.content_type),
        _held: held,
    })
}

/// Returns whether the API server holds the account of this call to the list of what bodies may not
/// ask for.
async fn locked(
    shared: &Shared,
    authorization: &Authorization,
    limits: &Limits,
) -> Result<(), Refusal> {
    let call = &authorization.call;
    let Some(delegate) = &shared.dependencies.delegate else {
        return Err(policy::unlocked(call, "there is no cluster", "start it"));
    };
    if !authorization.is_delegated {
        let why = "the admission policy pipeops-cp-lock does not hold a credential that the call brings along";
        let mend = "leave Authorization out, or use server-side apply";
        return Err(policy::unlocked(call, why, mend));
    }
    let namespace = call.namespace().unwrap_or_default();
    let found = until(limits.head, delegate.lock(&namespace)).await;
    let found = found.unwrap_or_else(|| Err("the API server does not say whether".to_owned()));
    found.map_err(|why| policy::unlocked(call, &why, &delegate.manifest().command()))
}

async fn unreadable(shared: &Shared, call: &Call, why: &str) -> Denial {
    let refusal = Refusal(format!(
        "refused by the agent: {}: the body cannot be judged: {why}; fix: send it as kubectl does, in JSON",
        call.line()
    ));
    shared.refuse(call, refusal).await
}

/// Reads a body to its end, within the budget of all bodies.
async fn collect(
    shared: &Shared,
    call: &Call,
    content: Content,
    limits: &Limits,
    mut body: Body,
) -> Result<(Vec<u8>, Vec<Reservation>), Denial> {
    let (mut bytes, mut held) = (Vec::new(), Vec::new());
    loop {
        let Some(next) = until(limits.head, body.frame()).await else {
            return Err(late());
        };
        let Some(frame) = next else {
            return Ok((bytes, held));
        };
        let frame = frame.map_err(|error| {
            Denial::new(Cause::Invalid, format!("the body cannot be read: {error}"))
        })?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if bytes.len().saturating_add(piece.len()) > content.bytes_max() {
            let why = format!("it is larger than {} KiB", content.bytes_max() >> 10);
            return Err(unreadable(shared, call, &why).await);
        }
        let room = shared.budget.take(piece.len());
        held.push(room.ok_or_else(|| Denial::new(Cause::Busy, busy_with_bodies()))?);
        bytes.extend_from_slice(&piece);
    }
}

/// Reads the existing object, to compare the fields that a new one may not have. Asked for under
/// the identity of the call.
async fn existing(
    shared: &Shared,
    client: &Client,
    authorization: &Authorization,
    (written, content): (&Written, Content),
    limits: &Limits,
) -> Result<Vec<Fault>, Denial> {
    let CallTarget::Kubernetes(path) = &authorization.call.target else {
        return Ok(Vec::new());
    };
    let request = Request::builder()
        .method(Method::GET)
        .uri(path.as_str())
        .header(ACCEPT, HeaderValue::from_static(content.accept()))
        .body(Body::empty())
        .map_err(|error| Denial::new(Cause::Invalid, format!("invalid request: {error}")))?;
    let sent = client
        .send(request, &authorization.identity, left(limits)?)
        .await;
    let answer = sent.map_err(|error| failure(&authorization.call.target, &error))?;
    let cannot = |why: String| Denial::backend(format!("cannot read the existing object: {why}"));
    match answer.status() {
        StatusCode::NOT_FOUND => return Ok(Vec::new()),
        StatusCode::OK => {}
        other => return Err(cannot(other.to_string())),
    }
    let collected = Limited::new(answer.into_body(), BODY_BYTES_MAX).collect();
    let Some(collected) = until(limits.head, collected).await else {
        return Err(late());
    };
    let bytes = collected.map_err(|error| cannot(error.to_string()))?;
    let bytes = bytes.to_bytes().to_vec();
    policy::judge_existing(&shared.rules.get(), written.subject, content, bytes).map_err(cannot)
}
