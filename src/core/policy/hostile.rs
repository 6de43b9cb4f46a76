//! Test: every line of `tests/hostile`, in every form of request.

use super::{Level, Rules, Terms, decide, identity};
use crate::core::proxy::{Call, Cluster, RawRequest, Refusal, route, route_http, route_stream};

#[path = "../../../tests/hostile/mod.rs"]
mod lists;

use lists::{Case, cases};

const HANDLE: &str = "handle";

pub(super) fn request(case: &Case) -> RawRequest {
    let (namespace, service, port) = case.service.clone().unwrap_or_default();
    let headers = case
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), vec![value.clone()]))
        .collect();
    RawRequest {
        headers,
        namespace,
        service,
        port,
        is_websocket: case.is_websocket,
        ..RawRequest::kubernetes(&case.method, &case.path, &case.query)
    }
}

/// The verdict in the words of the lists.
fn verdict(level: Level, routed: &Result<Call, Refusal>) -> String {
    let rules = Rules {
        level,
        ..Rules::default()
    };
    let Ok(call) = routed else {
        return "bad".to_owned();
    };
    if identity(&rules, |bearer| bearer == HANDLE, call).is_err() {
        return "who".to_owned();
    }
    match decide(&rules, call) {
        Ok(Terms::Free) => "free".to_owned(),
        Ok(Terms::InManaged(namespace)) => namespace,
        Ok(Terms::NewNamespace) => "new".to_owned(),
        Err(Refusal(text)) => {
            assert!(text.starts_with("refused by the agent: "), "{text}");
            assert!(text.contains("access.level"), "no setting is named: {text}");
            assert!(!text.contains(['\r', '\n', '\0']), "{text:?}");
            "no".to_owned()
        }
    }
}

/// Verdict at a looser level: only validity and identity are required.
fn under_full(case: &Case) -> &'static str {
    match case.managed {
        "bad" | "who" => case.managed,
        _ => "free",
    }
}

/// Differences from the list, for one form of the request.
fn wrong_verdicts(case: &Case, routed: &Result<Call, Refusal>) -> Vec<String> {
    let off = match under_full(case) {
        "free" => "no",
        other => other,
    };
    let Case { line, naive, .. } = case;
    [
        (Level::Full, under_full(case)),
        (Level::Managed, case.managed),
        (Level::ReadOnly, case.read_only),
        (Level::Off, off),
    ]
    .into_iter()
    .map(|(level, wanted)| (level, verdict(level, routed), wanted))
    .filter(|(_, found, wanted)| found != wanted)
    .map(|(level, found, wanted)| {
        let level = level.as_str();
        format!("{level}: {found}, not {wanted}: {line}\n    a naive agent: {naive}")
    })
    .collect()
}

#[test]
fn every_line_of_the_lists_is_judged_as_it_says() {
    let cases = cases();
    assert!(cases.len() >= 600, "{}", cases.len());
    let wrong: Vec<_> = cases
        .iter()
        .flat_map(|case| wrong_verdicts(case, &route(&request(case), Cluster::Known)))
        .collect();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_line_is_judged_alike_when_it_comes_as_http() {
    let mut wrong = Vec::new();
    for case in cases() {
        let mut request = request(&case);
        request.is_websocket = false;
        if case.is_websocket {
            for (name, value) in [("Connection", "Upgrade"), ("Upgrade", "websocket")] {
                request
                    .headers
                    .push((name.to_owned(), vec![value.to_owned()]));
            }
        } else if case
            .headers
            .iter()
            .any(|(name, _)| name.starts_with("Sec-WebSocket"))
        {
            // In the JSON form these alone make a handshake; in HTTP they mean nothing without an
            // upgrade.
            continue;
        }
        wrong.extend(wrong_verdicts(&case, &route_http(&request, Cluster::Known)));
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_start_of_a_stream_is_judged_like_a_request_for_one() {
    let mut seen = 0;
    for case in cases().iter().filter(|case| case.service.is_none()) {
        // The start of a stream drops these letters from a query, where a request is refused.
        if case.query.contains(['\r', '\n', '\0']) {
            continue;
        }
        let request = request(case);
        let Ok(call) = route_stream(&request, Cluster::Known) else {
            continue;
        };
        seen += 1;
        let mut as_request = request;
        as_request.is_websocket = true;
        // Both are a GET, and only a request can have a method that makes no sense.
        "GET".clone_into(&mut as_request.method);
        let as_request = route(&as_request, Cluster::Known);
        for level in [Level::Full, Level::Managed, Level::ReadOnly, Level::Off] {
            assert_eq!(
                verdict(level, &Ok(call.clone())),
                verdict(level, &as_request),
                "{}",
                case.line
            );
        }
    }
    assert!(seen > 300, "{seen}");
}
