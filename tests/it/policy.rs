//! Policy compared with the authorizer of a real API server: an account without rights asks for
//! everything on the lists of `tests/hostile`, and the refusals tell what the API server took each
//! request for.

use std::rc::Rc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use pipeops_agent::core::policy::{Attributes, Object, Verb};
use pipeops_agent::core::proxy::{Call, CallTarget, Cluster, RawRequest, route};
use pipeops_agent::executor::Executor;
use pipeops_agent::host::clock;
use pipeops_agent::kube::kubeconfig::Source;
use pipeops_agent::kube::{Body, Client, Identity, Settings};
use pipeops_agent::net::deadline;
use pipeops_agent::net::dial::Dialer;
use pipeops_agent::net::proxy::Proxies;
use pipeops_agent::net::tls::Clock;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::accounts::{Accounts, GrantScope};
use crate::cluster::{calm, cluster, kubectl};

#[path = "../hostile/mod.rs"]
mod lists;

use lists::{Case, cases};

const WITHIN: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(60);

fn run<F: Future<Output = ()>>(test: impl FnOnce(Client) -> F) {
    let executor = Rc::new(Executor::new());
    let kubeconfig = cluster().expect("a cluster").join("kubeconfig.yaml");
    let settings = Settings {
        source: Source::Files(vec![kubeconfig]),
        proxies: Proxies::default(),
        clock: Clock::new(
            || clock::now().wall,
            pipeops_agent::core::time::Wall::default(),
        ),
        now: clock::now,
        jobs: pipeops_agent::files::Jobs::default(),
    };
    let client = Client::new(&settings, Dialer::default(), Rc::clone(&executor));
    let test = Box::pin(test(client));
    smol::block_on(executor.run(deadline(WITHIN, test))).expect("the test took too long");
}

/// A request of the lists as it would be sent; `None` where it makes no sense, or its headers are
/// what matters.
fn sent(case: &Case) -> Option<Call> {
    let is_nonsense = [case.read_only, case.managed].contains(&"bad");
    if is_nonsense || case.service.is_some() || !case.headers.is_empty() {
        return None;
    }
    let asked = RawRequest {
        is_websocket: case.is_websocket,
        ..RawRequest::kubernetes(&case.method, &case.path, &case.query)
    };
    Some(route(&asked, Cluster::Known).expect("a request that makes sense"))
}

#[derive(Deserialize)]
struct Status {
    message: String,
    #[serde(default)]
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
    group: String,
}

/// The words of a refusal for what we take a request for.
fn refusal<'a>(attributes: &'a Attributes<'a>) -> (String, &'a str, &'a str) {
    match attributes {
        Attributes::Path { verb, path } => (format!("cannot {verb} path {path:?}"), "", ""),
        Attributes::Object(object) => {
            let part = match object.subresource.as_ref() {
                "" => String::new(),
                part => format!("/{part}"),
            };
            let place = match object.namespace.as_ref() {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            let what = format!(
                "cannot {} resource {:?} in API group {:?} {place}",
                object.verb.as_str(),
                format!("{}{part}", object.resource),
                object.group
            );
            (what, &object.name, &object.group)
        }
    }
}

/// What is wrong with our reading of a request; `None` where the answer says nothing of it.
async fn difference(client: &Client, call: &Call) -> Option<Result<(), String>> {
    let CallTarget::Kubernetes(path) = &call.target else {
        return None;
    };
    let uri = format!("{}?{}", path.as_str(), call.query);
    let request = Request::builder().method(call.method.as_str()).uri(&uri);
    let request = request.body(Body::empty()).expect("a request");
    let answer = client.send(request, &Identity::Anonymous, SOON).await;
    let answer = answer.expect("an answer");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a body");
    let body = body.to_bytes();
    let Some(attributes) = Attributes::of(&call.method, path, &call.query) else {
        let is_error = status == StatusCode::INTERNAL_SERVER_ERROR;
        return Some(
            is_error
                .then_some(())
                .ok_or_else(|| format!("{status} to what we cannot read")),
        );
    };
    if status != StatusCode::FORBIDDEN || body.is_empty() {
        return None;
    }
    let status: Status = serde_json::from_slice(&body).expect("a status");
    // Names that are no UTF-8 are written in two ways.
    if status.message.contains("\\x") {
        return None;
    }
    let (what, name, group) = refusal(&attributes);
    let is_same = status.message.contains(&what)
        && (status.details.name == name)
        && (status.details.group == group);
    Some(is_same.then_some(()).ok_or_else(|| {
        format!(
            "{} {uri}\n  we: {what}, name {name:?}\n  it: {}, name {:?}",
            call.method, status.message, status.details.name
        )
    }))
}

#[test]
fn a_real_api_server_takes_each_request_for_what_was_judged() {
    let Some(_guard) = calm() else { return };
    run(|client| async move {
        let (mut compared, mut wrong) = (0, Vec::new());
        for case in cases() {
            let Some(call) = sent(&case) else { continue };
            match difference(&client, &call).await {
                Some(Ok(())) => compared += 1,
                Some(Err(what)) => wrong.push(format!(
                    "{}\n{what}\n  a naive agent: {}",
                    case.line, case.naive
                )),
                None => {}
            }
        }
        println!("compared {compared} requests with the API server's own reading");
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
        assert!(compared >= 400, "only {compared} were compared");
    });
}

/// The policy looks at the namespace of the path; that the body's is the same is the API server's
/// business.
#[test]
fn a_real_api_server_refuses_a_body_of_another_namespace() {
    let Some(_guard) = calm() else { return };
    run(|client| async move {
        let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"kube-system"}}"#;
        for (method, path, kind) in [
            (
                "POST",
                "/api/v1/namespaces/default/configmaps?dryRun=All",
                "application/json",
            ),
            (
                "PATCH",
                "/api/v1/namespaces/default/configmaps/x?dryRun=All&fieldManager=x&force=true",
                "application/apply-patch+yaml",
            ),
        ] {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(CONTENT_TYPE, kind);
            let request = request.body(Body::full(body)).expect("a request");
            let answer = client
                .send(request, &Identity::Agent, SOON)
                .await
                .expect("an answer");
            assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{method}");
            let text = answer
                .into_body()
                .collect()
                .await
                .expect("a body")
                .to_bytes();
            let status: Status = serde_json::from_slice(&text).expect("a status");
            assert!(status.message.contains("namespace"), "{}", status.message);
        }
    });
}

/// Returns whether the roles of the control plane's account allow this, as the API server's
/// authoriser says.
async fn is_granted(client: &Client, account: &str, object: &Object<'_>) -> bool {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{account}:pipeops-cp"),
            "groups": ["system:authenticated", "system:serviceaccounts"],
            "resourceAttributes": {
                "verb": object.verb.as_str(), "group": object.group, "resource": object.resource, "subresource": object.subresource,
                "namespace": object.namespace, "name": object.name,
            },
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    let request = request
        .body(Body::full(review.to_string()))
        .expect("a request");
    let answer = client.send(request, &Identity::Agent, SOON).await;
    let body = answer.expect("an answer").into_body().collect().await;
    let answer: Value = serde_json::from_slice(&body.expect("a body").to_bytes()).expect("JSON");
    answer["status"]["allowed"] == true
}

/// What only the agent's policy can tell apart, or what it leaves to the owner's roles.
fn is_beyond_roles(case: &Case, call: &Call, object: &Object<'_>) -> bool {
    let is_read = ["GET", "HEAD"].contains(&call.method.as_str());
    // Roles see neither the form of a request, nor its method below /watch/, nor what follows a
    // subresource.
    case.is_websocket
        || object.has_more
        || (object.verb == Verb::Watch && !is_read)
        // They let through a create of a namespace, whatever the path says beside it.
        || (object.verb == Verb::Create && object.resource == "namespaces")
        // They read all of a group, subresources that it does not have included.
        || (object.group == "apps" && object.subresource == "exec")
        || (object.resource == "secrets" && object.subresource == "status")
        // APIs that nobody knows: in managed namespaces the policy leaves them to roles that an
        // owner may add.
        || ["core", "example.com", "helm.cattle.io"].contains(&object.group.as_ref())
}

/// The second lock is the roles that the account has: they must let through what the policy
/// permits, and refuse what it refuses.
#[test]
fn the_roles_of_the_account_say_the_same_as_the_policy() {
    let Some(_guard) = calm() else { return };
    let accounts = Accounts::new(GrantScope::Managed);
    let own = accounts.namespace();
    let shop = format!("shop-of-{own}");
    kubectl(&["create", "namespace", &shop]);
    let role = format!("--clusterrole=pipeops-managed.{own}");
    let account = format!("--serviceaccount={own}:pipeops-cp");
    kubectl(&["create", "rolebinding", "cp", "-n", &shop, &role, &account]);
    let shop = shop.as_str();
    run(|client| async move {
        let (mut compared, mut wrong) = (0, Vec::new());
        for case in cases() {
            let Some(call) = sent(&case) else { continue };
            let CallTarget::Kubernetes(path) = &call.target else {
                continue;
            };
            let attributes = Attributes::of(&call.method, path, &call.query);
            let Some(Attributes::Object(mut object)) = attributes else {
                continue;
            };
            if object.namespace == "shop" {
                object.namespace = shop.into();
            }
            let is_permitted = ["free", "new", "shop"].contains(&case.managed);
            if is_beyond_roles(&case, &call, &object) || (!is_permitted && case.managed != "no") {
                continue;
            }
            let is_granted = is_granted(&client, own, &object).await;
            compared += 1;
            if is_permitted != is_granted {
                wrong.push(format!("granted: {is_granted}: {}", case.line));
            }
        }
        println!("compared {compared} verdicts with those of the roles");
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
        assert!(compared >= 300, "only {compared} were compared");
    });
    kubectl(&["delete", "namespace", "--wait=false", shop]);
}
