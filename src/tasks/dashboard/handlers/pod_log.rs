//! Log of a container: the API's response, or an explanation if the Pod has none.

use http_body_util::BodyExt as _;
use hyper::{Method, Request};
use serde_json::Value;

use super::within;
use crate::{
    core::time::Wall,
    dashboard::{Reply, StatusCode},
    kube::{Body, Client, Error, Identity},
};

/// Refusals of the API are short.
const REFUSAL_BYTES_MAX: usize = 16 << 10;
/// Messages of events may repeat what a registry answered.
const MESSAGE_CHARS_MAX: usize = 300;

/// Opens a log at `path`, or says why not. `place` is the namespace and the Pod.
pub(super) async fn open(client: &Client, path: &str, place: (&str, &str)) -> Result<Body, Reply> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(path)
        .body(Body::empty());
    let Ok(request) = request else {
        return Err(Reply::bad_request(
            "that cannot be asked",
            Some("name namespace, pod and container"),
        ));
    };
    let refused = |error: &Error| {
        let explained = crate::error::Error::from(error);
        Reply::unavailable(explained.sentence(), explained.fix.as_deref())
    };
    let answer = client.send(request, &Identity::Agent, within::HEAD).await;
    let answer = answer.map_err(|error| refused(&error))?;
    let code = answer.status();
    if code.is_success() {
        return Ok(answer.into_body());
    }
    let why = message(answer.into_body()).await;
    Err(match code {
        StatusCode::NOT_FOUND => Reply::not_found(
            "there is no such container",
            Some("look at the list of Pods again: Pods come and go"),
        ),
        StatusCode::FORBIDDEN => Reply::unavailable(
            "the agent may not read logs in this cluster",
            Some("pipeops-agent rbac | kubectl apply -f -"),
        ),
        StatusCode::BAD_REQUEST => no_log(client, &why, place).await,
        code => Reply::unavailable(format!("the cluster's API answers {code}"), None),
    })
}

/// Returns why a container has no log: it has not started, did not run before, or is one of
/// several.
async fn no_log(client: &Client, why: &str, (namespace, pod): (&str, &str)) -> Reply {
    if let Some((_, names)) = why.split_once("choose one of: [") {
        let names = names.split(']').next().unwrap_or_default();
        let names: Vec<_> = names.split_ascii_whitespace().collect();
        let fix = names.first().map(|name| format!("--container {name}"));
        return Reply::not_found(
            format!(
                "{pod} has several containers and none is named: {}",
                names.join(", ")
            ),
            fix.as_deref(),
        );
    }
    if why.contains("previous terminated container") {
        return Reply::not_found(
            "the container did not run before",
            Some("ask without --previous"),
        );
    }
    if !why.contains("waiting to start") {
        let why = if why.is_empty() {
            "it does not say why"
        } else {
            why
        };
        return Reply::not_found(
            format!("the cluster's API refuses it: {}", short(why)),
            None,
        );
    }
    let reason = why
        .rsplit_once("waiting to start: ")
        .map_or(why, |(_, reason)| reason);
    let mut sentence = format!(
        "the container has not started, so there is no log: {}",
        short(reason)
    );
    if let Some(event) = newest_event(client, namespace, pod).await {
        sentence = format!("{sentence}; the newest event of its Pod: {event}");
    }
    let fix = format!("kubectl -n {namespace} describe pod {pod}");
    Reply::not_found(sentence, Some(&fix))
}

/// The newest warning of a Pod that says more than its reason, else its newest event.
async fn newest_event(client: &Client, namespace: &str, pod: &str) -> Option<String> {
    let path = format!(
        "/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.kind%3DPod,involvedObject.name%3D{pod}&limit=50"
    );
    let list: Value = client.get(&path).await.ok()?;
    let events = list.get("items")?.as_array()?;
    let text = |event: &Value, name: &str| {
        let text = event.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let newest = events.iter().max_by_key(|event| {
        let stamps = ["lastTimestamp", "eventTime", "firstTimestamp"];
        let at = stamps
            .iter()
            .find_map(|name| Wall::parse_rfc3339(&text(event, name)));
        // The kubelet adds a second event that only repeats the reason: "Error: ErrImagePull".
        let says_more = !text(event, "message").starts_with("Error: ");
        (text(event, "type") == "Warning", says_more, at)
    })?;
    Some(format!(
        "{}: {}",
        text(newest, "reason"),
        short(&text(newest, "message"))
    ))
}

/// The message of a refusal.
async fn message(mut body: Body) -> String {
    let mut whole = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        whole.extend_from_slice(&frame.into_data().unwrap_or_default());
        if whole.len() > REFUSAL_BYTES_MAX {
            break;
        }
    }
    let status: Value = serde_json::from_slice(&whole).unwrap_or_default();
    let message = status.get("message").and_then(Value::as_str);
    message.unwrap_or_default().to_owned()
}

fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(MESSAGE_CHARS_MAX).collect()
}
