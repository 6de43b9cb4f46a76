//! Decision about a request: the running agent's, or, without one, that of the settings alone.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{
    super::{
        args::Args,
        load,
        output::{Output, Tone},
        socket::{self, Ask, RequestFailure},
    },
    table,
};
use crate::{
    config::Loaded,
    core::{
        access::{Inquiry, NamespaceLookup, explain},
        policy::Rules,
    },
    error::{Exit, Result},
    kube::rbac::ACCOUNT,
    wire::api::{DECISION_PATH, Decision, Namespace},
};

/// Characters that are escaped in a query.
const RESERVED: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':')
    .remove(b',');

/// Explains what would become of a request.
pub(super) fn test(args: &Args, output: &mut Output) -> Result<Exit> {
    let word = |name| args.text(name).unwrap_or_default().to_owned();
    let inquiry = Inquiry {
        method: word("METHOD"),
        target: word("PATH"),
    };
    let loaded = load(args);
    let path = format!(
        "{DECISION_PATH}?method={}&path={}",
        escaped(&inquiry.method),
        escaped(&inquiry.target)
    );
    let (value, judge) = match socket::ask(&socket::candidates(args, &loaded), &Ask::Get(&path)) {
        Ok(answer) => (answer.fine("the agent does not explain that")?, None),
        Err(RequestFailure {
            is_down: true,
            error,
        }) => {
            let (value, judge) = alone(&inquiry, &loaded)
                .ok_or_else(|| error.why("and the settings cannot be judged by: config check"))?;
            (value, Some(judge))
        }
        Err(silence) => return Err(silence.error),
    };
    let decision: Decision = socket::understood(&value)?;
    let exit = match decision.verdict.as_str() {
        "permitted" => Exit::Fine,
        "refused" => Exit::Problem,
        "depends" => Exit::CouldNotRun,
        _ => return Err(socket::unexpected("it has no verdict")),
    };
    if args.has("json") {
        output.json(&value);
        return Ok(exit);
    }
    let tone = match exit {
        Exit::Fine => Tone::Good,
        Exit::Problem => Tone::Bad,
        Exit::CouldNotRun => Tone::Doubtful,
    };
    output.line(&output.toned(tone, &decision.verdict));
    let mut rows = explained(&decision);
    rows.extend(judge.map(|judge| ("judged by", judge)));
    for line in table(rows) {
        output.line(&line);
    }
    Ok(exit)
}

/// Judges by the settings, where there is no agent to ask; in the second place what that is worth.
fn alone(inquiry: &Inquiry, loaded: &Loaded) -> Option<(Value, String)> {
    let access = loaded.access()?;
    let rules = Rules {
        level: access.level,
        pod_security: access.pod_security,
        expose: access.expose,
        ..Rules::default()
    };
    let look = NamespaceLookup::Unknown(
        "without a running agent nobody looks at the namespace".to_owned(),
    );
    let explanation = explain(&rules, inquiry).settled(&rules, look);
    let shown = loaded.shown();
    let namespace = shown
        .iter()
        .find(|shown| shown.key.path == "agent.namespace")
        .and_then(|shown| shown.value.clone())
        .filter(|_| explanation.is_delegated());
    let decision = Decision {
        level: rules.level.as_str().to_owned(),
        identity: namespace.map(|name| format!("system:serviceaccount:{name}:{ACCOUNT}")),
        ..(&explanation).into()
    };
    let mut value = serde_json::to_value(&decision).ok()?;
    let judge = format!(
        "the configuration alone, {} ({}): the agent is not running, and what was set by hand is not known",
        rules.level.as_str(),
        access.level_origin
    );
    let fields = value.as_object_mut()?;
    fields.insert("judged_by_configuration_alone".to_owned(), true.into());
    Some((value, judge))
}

fn explained(decision: &Decision) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    match &decision.service {
        Some(service) => rows.push((
            "request",
            format!(
                "{} {}/{}:{}{}",
                decision.method, service.namespace, service.name, service.port, decision.path
            ),
        )),
        None if decision.path.is_empty() => {}
        None => rows.push(("request", format!("{} {}", decision.method, decision.path))),
    }
    if let Some(request) = decision
        .request
        .as_ref()
        .filter(|it| !it.resource.is_empty())
    {
        let part = |before: &str, text: &str| match text {
            "" => String::new(),
            text => format!("{before}{text}"),
        };
        rows.push((
            "taken for",
            [
                request.verb.clone(),
                part(" ", &request.resource),
                part(".", &request.group),
                part("/", &request.subresource),
                part(" ", &request.name),
                part(" in namespace ", &request.namespace),
            ]
            .concat(),
        ));
    }
    if let Some(namespace) = &decision.namespace {
        rows.push(("namespace", namespace_state(namespace)));
    }
    rows.push(("why", decision.why.clone()));
    rows.extend(decision.fix.clone().map(|fix| ("fix", fix)));
    if decision.verdict != "refused" {
        let identity = match (&decision.identity, &decision.service) {
            (Some(account), _) => account.clone(),
            (None, Some(_)) => {
                "none: the application receives the request without the agent's credentials"
                    .to_owned()
            }
            (None, None) => "none: there is no cluster".to_owned(),
        };
        rows.push(("runs as", identity));
    }
    rows
}

fn namespace_state(namespace: &Namespace) -> String {
    let state = match (namespace.exists, namespace.is_managed) {
        (None, _) => "the cluster could not be asked".to_owned(),
        (Some(false), _) => "the cluster has none of that name".to_owned(),
        (Some(true), is_managed) => format!(
            "{}, {}",
            if is_managed == Some(true) {
                "managed"
            } else {
                "not managed"
            },
            match &namespace.enforces {
                Some(level) => format!("enforces Pod Security {level}"),
                None => "enforces no Pod Security level".to_owned(),
            }
        ),
    };
    format!("{}: {state}", namespace.name)
}

/// A text as a value in a query.
pub(in crate::cli) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, &RESERVED).to_string()
}
