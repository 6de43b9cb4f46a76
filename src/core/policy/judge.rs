//! Judgement of a call by its own attributes.

use super::{Attributes, CONFIG, Level, Object, Rules, Terms, Verb, namespace, tables};
use crate::core::proxy::{Call, CallTarget, Form, HeaderList, KubePath, Refusal};

/// Effect of a call, whatever the level. The table in [`policy`](crate::core::policy) has a line
/// for each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Effect {
    Read,
    Ask,
    ReadSecret,
    Change,
    Enter,
    NewNamespace,
}

/// Reason why a call is refused, and the strictest level that would allow it.
struct Denial {
    why: Why,
    needed: Level,
}

enum Why {
    /// The level, which this follows from.
    Level(&'static str),
    /// Something in the call.
    Call(String),
}

impl Denial {
    const fn by_level(why: &'static str, needed: Level) -> Self {
        Self {
            why: Why::Level(why),
            needed,
        }
    }

    /// Denial of what only the owner of the box may do.
    fn never(why: impl Into<String>) -> Self {
        Self {
            why: Why::Call(why.into()),
            needed: Level::Full,
        }
    }

    fn refusal(self, rules: Rules, what: &str) -> Refusal {
        let level = rules.level.as_str();
        let why = match (self.why, rules.tightened_from) {
            (Why::Level(why), None) => format!("access.level is \"{level}\", {why}"),
            (Why::Level(why), Some(_)) => {
                format!("access was tightened to \"{level}\" on the box, {why}")
            }
            (Why::Call(why), _) => why,
        };
        let fix = fix(rules, self.needed);
        Refusal(format!("refused by the agent: {what}: {why}; {fix}"))
    }
}

/// Fix for the owner to allow at least this level: the command where the configuration allows it,
/// else the setting.
fn fix(rules: Rules, needed: Level) -> String {
    let by_command = rules
        .tightened_from
        .filter(|configured| *configured <= needed);
    match (needed, by_command) {
        (Level::Full, None) => format!(
            "fix: use kubectl on the box, or set access.level = \"full\" in {CONFIG} and let the cluster's own rules decide"
        ),
        (Level::Full, Some(_)) => "fix: use kubectl on the box, or there: sudo pipeops-agent access full, and let the cluster's own rules decide".to_owned(),
        (Level::Managed, None) => format!(
            "fix: set access.level = \"managed\", for managed namespaces, in {CONFIG}"
        ),
        (Level::Managed, Some(_)) => "fix, on the box: sudo pipeops-agent access managed, for managed namespaces".to_owned(),
        (Level::ReadOnly | Level::Off, None) => {
            format!("fix: set access.level = \"managed\" or \"read-only\" in {CONFIG}")
        }
        (Level::ReadOnly | Level::Off, Some(configured)) => {
            format!("fix, on the box: sudo pipeops-agent access {}", configured.as_str())
        }
    }
}

/// Decides whether a call may run, by what it says itself.
pub fn decide(rules: &Rules, call: &Call) -> Result<Terms, Refusal> {
    let rules = *rules;
    match rules.level {
        Level::Full => return Ok(Terms::Free),
        Level::Off => {
            let denial = Denial::by_level("so nothing passes", Level::ReadOnly);
            return Err(denial.refusal(rules, &call.line()));
        }
        Level::Managed | Level::ReadOnly => {}
    }
    match &call.target {
        CallTarget::Service(service) => terms(rules.level, Effect::Enter, &service.namespace)
            .map_err(|denial| denial.refusal(rules, &format!("call a service: {}", call.line()))),
        CallTarget::Kubernetes(path) => kubernetes(rules, call, path),
    }
}

fn kubernetes(rules: Rules, call: &Call, path: &KubePath) -> Result<Terms, Refusal> {
    let level = rules.level;
    let Some(attributes) = Attributes::of(&call.method, path, &call.query) else {
        return Err(Denial::never("nothing follows watch or proxy").refusal(rules, &call.line()));
    };
    let judged = match &attributes {
        _ if impersonates(&call.headers) => Err(Denial::never(
            "calls through the link run under the agent's own account, so Impersonate headers are not allowed",
        )),
        Attributes::Path { .. } => {
            judge_path(call, path).and_then(|effect| terms(level, effect, ""))
        }
        Attributes::Object(object) => {
            judge(call, object).and_then(|effect| terms(level, effect, &object.namespace))
        }
    };
    judged.map_err(|denial| denial.refusal(rules, &attributes.to_string()))
}

/// Kind of a call, as far as the audit distinguishes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallKind {
    /// A question about oneself, asked by creating an object.
    Question,
    /// A read of Secrets, or of what may hold them.
    Secret,
    /// Anything else.
    Other,
}

/// Returns the kind of a call, at whatever level.
pub fn call_kind(call: &Call) -> CallKind {
    let CallTarget::Kubernetes(path) = &call.target else {
        return CallKind::Other;
    };
    let Some(Attributes::Object(object)) = Attributes::of(&call.method, path, &call.query) else {
        return CallKind::Other;
    };
    match judge(call, &object) {
        Ok(Effect::Ask) => CallKind::Question,
        Ok(Effect::ReadSecret) => CallKind::Secret,
        Ok(Effect::Read | Effect::Change | Effect::Enter | Effect::NewNamespace) | Err(_) => {
            CallKind::Other
        }
    }
}

fn impersonates(headers: &HeaderList) -> bool {
    headers.iter().any(|(name, _)| {
        let prefix = name.get(.."impersonate-".len());
        prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case("impersonate-"))
    })
}

/// Terms of an effect at a level. This is the table.
fn terms(level: Level, effect: Effect, name: &str) -> Result<Terms, Denial> {
    let is_managed = level == Level::Managed;
    match effect {
        Effect::Read | Effect::Ask => Ok(Terms::Free),
        Effect::NewNamespace if is_managed => Ok(Terms::NewNamespace),
        Effect::ReadSecret | Effect::Change | Effect::Enter if is_managed => {
            if name.is_empty() {
                let why = if effect == Effect::ReadSecret {
                    "resources that may hold secrets are readable in managed namespaces only, one at a time"
                } else {
                    "the request does not name a namespace"
                };
                return Err(Denial::never(why));
            }
            namespace::may_be_managed(name).map_err(Denial::never)?;
            Ok(Terms::InManaged(name.to_owned()))
        }
        Effect::ReadSecret => Err(Denial::by_level(
            "without Secrets and resources that may hold them",
            Level::Managed,
        )),
        Effect::Change | Effect::Enter | Effect::NewNamespace => Err(Denial::by_level(
            "so changes and exec are refused",
            Level::Managed,
        )),
    }
}

/// The effect of a request that names no object.
fn judge_path(call: &Call, path: &KubePath) -> Result<Effect, Denial> {
    if !is_read(&call.method) || call.form != Form::Plain {
        return Err(Denial::never(
            "such paths are readable only with GET or HEAD and not over a WebSocket",
        ));
    }
    if !tables::has_path(path) {
        return Err(Denial::never(
            "the path is not on the list of readable paths",
        ));
    }
    Ok(Effect::Read)
}

/// The effect of a request for objects.
fn judge(call: &Call, object: &Object<'_>) -> Result<Effect, Denial> {
    let Object {
        group,
        namespace,
        resource,
        subresource,
        ..
    } = object;
    if !namespace.is_empty() && !namespace::is_name(namespace) {
        return Err(Denial::never("that is not a valid name of a namespace"));
    }
    if tables::has(tables::ENTER, group, resource, subresource) {
        return judge_entry(object);
    }
    if object.has_more {
        return Err(Denial::never("nothing known follows there"));
    }
    if call.form != Form::Plain && object.verb != Verb::Watch && subresource != "log" {
        return Err(Denial::never(
            "a WebSocket carries watches, logs, exec, attach, port-forward and proxied applications only",
        ));
    }
    if object.verb.is_read() {
        return judge_read(call, object);
    }
    if is_new_namespace(object) {
        return Ok(Effect::NewNamespace);
    }
    if object.verb == Verb::Create && tables::has(tables::ASK, group, resource, subresource) {
        return Ok(Effect::Ask);
    }
    let is_change = match object.verb {
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => true,
        Verb::Get | Verb::List | Verb::Watch | Verb::Proxy | Verb::None => false,
    };
    if is_change && tables::has(tables::CHANGE, group, resource, subresource) {
        return Ok(Effect::Change);
    }
    Err(reason(object))
}

fn judge_entry(object: &Object<'_>) -> Result<Effect, Denial> {
    let is_proxy = object.subresource == "proxy";
    match object.verb {
        _ if object.has_more && !is_proxy => Err(Denial::never("nothing known follows there")),
        Verb::Get | Verb::Create => Ok(Effect::Enter),
        Verb::Update | Verb::Patch | Verb::Delete if is_proxy => Ok(Effect::Enter),
        Verb::Update
        | Verb::Patch
        | Verb::Delete
        | Verb::List
        | Verb::Watch
        | Verb::DeleteCollection
        | Verb::Proxy
        | Verb::None => Err(Denial::never("this method does not enter a Pod")),
    }
}

fn judge_read(call: &Call, object: &Object<'_>) -> Result<Effect, Denial> {
    let Object {
        group,
        resource,
        subresource,
        ..
    } = object;
    // The API server calls everything below /watch/ a watch, whatever the method.
    if !is_read(&call.method) {
        return Err(Denial::never("this method does not watch"));
    }
    if tables::has(tables::READ, group, resource, subresource) {
        return Ok(Effect::Read);
    }
    let whole = if tables::READ_PARTS.contains(&subresource.as_ref()) {
        ""
    } else {
        subresource
    };
    if tables::has(tables::READ, group, resource, whole) {
        return Ok(Effect::Read);
    }
    let is_custom = ![tables::READ, tables::SECRET, tables::ASK]
        .into_iter()
        .flatten()
        .any(|(listed, _)| listed == group);
    if tables::has(tables::SECRET, group, resource, whole) || (is_custom && whole.is_empty()) {
        return Ok(Effect::ReadSecret);
    }
    Err(reason(object))
}

fn is_read(method: &str) -> bool {
    matches!(method, "GET" | "HEAD")
}

fn is_new_namespace(object: &Object<'_>) -> bool {
    object.verb == Verb::Create
        && object.group.is_empty()
        && object.resource == "namespaces"
        && object.name.is_empty()
        && object.namespace.is_empty()
}

/// Returns why something is on no list.
fn reason(object: &Object<'_>) -> Denial {
    let Object {
        group,
        resource,
        subresource,
        ..
    } = object;
    let known = tables::REASONS.iter().find(|(listed, name, _)| {
        let whole = if name.contains('/') { subresource } else { "" };
        listed == group && tables::is(name, resource, whole)
    });
    Denial::never(match (known, object.verb) {
        (Some((_, _, why)), _) => *why,
        (None, Verb::None) => "the API has no verb for this method",
        (None, Verb::Proxy) => "the prefix /proxy/ is no longer used",
        (None, verb) if verb.is_read() => "it is not on the list of readable resources",
        (None, _) if object.namespace.is_empty() => {
            "it belongs to the whole cluster, and only what lies in a managed namespace may be changed"
        }
        (None, _) => "it is not on the list of what may be changed in a managed namespace",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::proxy::{Cluster, RawRequest, route};

    fn decided(level: Level, request: &str) -> String {
        let rules = Rules {
            level,
            ..Rules::default()
        };
        decided_by(rules, request)
    }

    fn decided_by(rules: Rules, request: &str) -> String {
        let (method, path) = request.split_once(' ').unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let asked = RawRequest::kubernetes(method, path, query);
        match decide(&rules, &route(&asked, Cluster::Known).unwrap()) {
            Ok(terms) => format!("{terms:?}"),
            Err(Refusal(text)) => text,
        }
    }

    #[test]
    fn a_refusal_says_what_was_asked_why_not_and_what_would_allow_it() {
        for (level, request, wanted) in [
            (
                Level::ReadOnly,
                "GET /api/v1/namespaces/shop/secrets/x",
                "refused by the agent: get secrets x in namespace shop: access.level is \"read-only\", without Secrets and resources that may hold them; \
                 fix: set access.level = \"managed\", for managed namespaces, in /etc/pipeops-agent/config.toml",
            ),
            (
                Level::Managed,
                "GET /api/v1/secrets",
                "refused by the agent: list secrets: resources that may hold secrets are readable in managed namespaces only, one at a time; fix: use kubectl \
                 on the box, or set access.level = \"full\" in /etc/pipeops-agent/config.toml and let the cluster's own rules decide",
            ),
            (
                Level::Off,
                "GET /version",
                "refused by the agent: GET /version: access.level is \"off\", so nothing passes; fix: set access.level = \"managed\" or \
                 \"read-only\" in /etc/pipeops-agent/config.toml",
            ),
        ] {
            assert_eq!(decided(level, request), wanted, "{request}");
        }
    }

    #[test]
    fn what_was_tightened_here_is_loosened_here_as_far_as_the_configuration_goes() {
        use Level::{Full, Managed, Off, ReadOnly};
        let setting = "in /etc/pipeops-agent/config.toml";
        for (level, configured, request, why, wanted) in [
            (
                Off,
                Managed,
                "GET /version",
                "access was tightened to \"off\" on the box",
                "fix, on the box: sudo pipeops-agent access managed",
            ),
            (
                ReadOnly,
                Full,
                "POST /api/v1/namespaces/shop/pods",
                "tightened to \"read-only\"",
                "fix, on the box: sudo pipeops-agent access managed, for",
            ),
            (
                Off,
                ReadOnly,
                "GET /version",
                "tightened",
                "fix, on the box: sudo pipeops-agent access read-only",
            ),
            (
                Managed,
                Full,
                "DELETE /api/v1/nodes/a",
                "whole cluster",
                "or there: sudo pipeops-agent access full, and",
            ),
            (
                ReadOnly,
                Managed,
                "DELETE /api/v1/nodes/a",
                "whole cluster",
                setting,
            ),
        ] {
            let rules = Rules {
                level,
                tightened_from: Some(configured),
                ..Rules::default()
            };
            let text = decided_by(rules, request);
            assert!(
                text.contains(why) && text.contains(wanted),
                "{request}: {text}"
            );
        }
    }

    #[test]
    fn a_level_permits_what_its_line_says() {
        let shop = "InManaged(\"shop\")";
        for (request, read_only, managed) in [
            ("GET /api/v1/pods", "Free", "Free"),
            (
                "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                "Free",
                "Free",
            ),
            ("GET /api/v1/namespaces/shop/secrets", "refused", shop),
            (
                "GET /apis/helm.cattle.io/v1/namespaces/shop/helmcharts",
                "refused",
                shop,
            ),
            (
                "PATCH /apis/apps/v1/namespaces/shop/deployments/web",
                "refused",
                shop,
            ),
            (
                "POST /api/v1/namespaces/shop/pods/web/exec",
                "refused",
                shop,
            ),
            ("POST /api/v1/namespaces", "refused", "NewNamespace"),
            ("DELETE /api/v1/namespaces/shop", "refused", "refused"),
            ("GET /api/v1/nodes/a/proxy/pods", "refused", "refused"),
        ] {
            for (level, wanted) in [
                (Level::Full, "Free"),
                (Level::Managed, managed),
                (Level::ReadOnly, read_only),
                (Level::Off, "refused"),
            ] {
                let found = decided(level, request);
                assert!(found.starts_with(wanted), "{level:?} {request}: {found}");
            }
        }
    }

    #[test]
    fn a_resource_on_no_list_is_refused_for_what_it_is() {
        for (request, why) in [
            (
                "GET /api/v1/namespaces/shop/oddities",
                "it is not on the list of readable resources",
            ),
            (
                "DELETE /apis/apps/v1/oddities/a",
                "it belongs to the whole cluster",
            ),
            (
                "DELETE /apis/apps/v1/namespaces/shop/oddities/a",
                "it is not on the list of what may be changed in a managed namespace",
            ),
        ] {
            let text = decided(Level::Managed, request);
            assert!(text.contains(why), "{request}: {text}");
        }
    }
}
