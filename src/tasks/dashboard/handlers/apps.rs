//! Handlers of apps: their state for every viewer, their changes for root and operators.

use std::{rc::Rc, time::Duration};

use serde_json::Value;

use super::Local;
use crate::{
    core::apps::Simple,
    dashboard::{ApiRequest, Reply, StatusCode},
    error::{self, Retry},
    executor,
    host::users,
    net::deadline,
    tasks::apps::{Apps, Automation, Requester, Values},
    wire::{
        apps::{ApplyRequest, PullRequest, RollbackRequest, ScaleRequest, SourceRequest},
        json::{self, Shape},
    },
};

/// Time to look a user up: the disk may hang.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(5);

impl Local {
    fn deployer(&self) -> Result<Rc<Apps>, Reply> {
        self.apps.clone().ok_or_else(|| {
            Reply::unavailable(
                "this agent has no cluster to deploy to",
                Some("pipeops-agent status shows why"),
            )
        })
    }

    /// Only root and the operators of the settings change apps from this machine, and operators of
    /// the page by the routes that it has.
    async fn changer(&self, request: &ApiRequest) -> Result<Rc<Apps>, Reply> {
        let caller = &request.caller;
        if caller.is_root() || caller.is_operator_of_page() || self.is_app_operator(request).await {
            return self.deployer();
        }
        Err(Reply::refusal(
            StatusCode::FORBIDDEN,
            "only root and apps.operators deploy apps from this machine",
            Some(
                "use sudo, or have root add you to apps.operators in /etc/pipeops-agent/config.toml",
            ),
        ))
    }

    async fn is_app_operator(&self, request: &ApiRequest) -> bool {
        let Some(peer) = request.caller.peer() else {
            return false;
        };
        if self.app_operators.is_empty() {
            return false;
        }
        let names = self.app_operators.clone();
        let look = executor::unblock(move || users::is_one_of(&names, (peer.uid, peer.gid)));
        let look = std::pin::pin!(look);
        deadline(LOOK_UP_WITHIN, look).await.unwrap_or(false)
    }

    /// Answers a question about apps.
    async fn look(&self, look: impl AsyncFnOnce(Rc<Apps>) -> error::Result<Value>) -> Reply {
        match self.deployer() {
            Ok(apps) => reply(look(apps).await),
            Err(reply) => reply,
        }
    }

    /// Carries out a request of this caller.
    async fn change<W>(
        &self,
        request: &ApiRequest,
        wanted: Result<W, Reply>,
        change: impl AsyncFnOnce(Rc<Apps>, W, &Requester) -> error::Result<Value>,
    ) -> Reply {
        match (self.changer(request).await, wanted) {
            (Ok(apps), Ok(wanted)) => {
                let by = Requester {
                    is_root: request.caller.is_root(),
                    ..Requester::here(&request.caller.in_words())
                };
                reply(change(apps, wanted, &by).await)
            }
            (Err(reply), _) | (_, Err(reply)) => reply,
        }
    }

    pub(super) async fn apps(&self) -> Reply {
        self.look(async |apps| apps.list().await).await
    }

    pub(super) async fn app(&self, request: &ApiRequest) -> Reply {
        let are_changes_asked = request.value("changes").as_deref() == Some("1");
        // Who may not deploy sees which fields changed, as little as the manifests.
        let values = if are_changes_asked && self.changer(request).await.is_ok() {
            Values::Shown
        } else {
            Values::Withheld
        };
        self.look(async |apps| {
            let mut answer = apps.describe(&request.id).await?;
            if are_changes_asked {
                let only = request.value("revision").and_then(|it| it.parse().ok());
                apps.add_changes((&request.id, only), &mut answer, values)
                    .await?;
            }
            Ok(answer)
        })
        .await
    }

    pub(super) async fn app_verdict(&self, request: &ApiRequest) -> Reply {
        self.look(async |apps| apps.why(&request.id).await).await
    }

    pub(super) async fn app_pods(&self, request: &ApiRequest) -> Reply {
        self.look(async |apps| apps.pods(&request.id).await).await
    }

    pub(super) async fn app_events(&self, request: &ApiRequest) -> Reply {
        self.look(async |apps| apps.events(&request.id).await).await
    }

    pub(super) async fn suggestion(&self, request: &ApiRequest) -> Reply {
        self.look(async |apps| apps.suggestion(&request.id, &self.telemetry).await)
            .await
    }

    pub(super) async fn apply_suggestion(&self, request: &ApiRequest) -> Reply {
        let apply = async |apps: Rc<Apps>, (), by: &Requester| {
            apps.apply_suggestion(&request.id, &self.telemetry, by)
                .await
        };
        self.change(request, Ok(()), apply).await
    }

    pub(super) async fn apply_app(&self, request: &ApiRequest) -> Reply {
        let apply = async |apps: Rc<Apps>, wanted: ApplyRequest, by: &Requester| {
            Box::pin(apps.apply(&wanted, by)).await
        };
        self.change(request, apply_request(request), apply).await
    }

    pub(super) async fn diff_app(&self, request: &ApiRequest) -> Reply {
        let diff = async |apps: Rc<Apps>, wanted: ApplyRequest, _by: &Requester| {
            let app = request.id.clone();
            apps.diff(&ApplyRequest { app, ..wanted }).await
        };
        self.change(request, apply_request(request), diff).await
    }

    pub(super) async fn deploy_app(&self, request: &ApiRequest) -> Reply {
        let wanted = body::<Simple>(
            request,
            "the body does not describe an app",
            r#"{"namespace":"shop","image":"ghcr.io/acme/web:42","port":8080}"#,
        );
        let deploy = async |apps: Rc<Apps>, wanted: Simple, by: &Requester| {
            apps.deploy(&request.id, &wanted, by).await
        };
        self.change(request, wanted, deploy).await
    }

    pub(super) async fn follow_app(&self, request: &ApiRequest) -> Reply {
        let wanted = body::<SourceRequest>(
            request,
            "the body names no repository",
            r#"{"namespace":"shop","git":"https://git.example/shop/web.git","ref":"main","path":"deploy"}"#,
        );
        let follow = async |apps: Rc<Apps>, wanted: SourceRequest, by: &Requester| {
            apps.follow(&request.id, &wanted, by).await
        };
        self.change(request, wanted, follow).await
    }

    pub(super) async fn pull_app(&self, request: &ApiRequest) -> Reply {
        let wanted = body::<PullRequest>(
            request,
            "the body is not a valid request",
            r#"{"prune_most":false}"#,
        );
        let pull = async |apps: Rc<Apps>, wanted: PullRequest, by: &Requester| {
            apps.pull(&request.id, &wanted, by).await
        };
        self.change(request, wanted, pull).await
    }

    pub(super) async fn roll_app_back(&self, request: &ApiRequest) -> Reply {
        let wanted = body::<RollbackRequest>(request, "the body names no revision", r#"{"to":3}"#);
        let back = async |apps: Rc<Apps>, wanted: RollbackRequest, by: &Requester| {
            if wanted.auto.is_empty() {
                return apps.rollback(&request.id, wanted.to, by).await;
            }
            let automation = Automation::of_rollback(&wanted.auto)?;
            apps.automate(&request.id, automation, by).await
        };
        self.change(request, wanted, back).await
    }

    pub(super) async fn scale_app(&self, request: &ApiRequest) -> Reply {
        let wanted = body::<ScaleRequest>(
            request,
            "the body names no number of Pods",
            r#"{"to":3}, or {"to":null} for the number of the manifest"#,
        );
        let scale = async |apps: Rc<Apps>, wanted: ScaleRequest, by: &Requester| {
            apps.scale(&request.id, &wanted, by).await
        };
        self.change(request, wanted, scale).await
    }

    pub(super) async fn restart_app(&self, request: &ApiRequest) -> Reply {
        let restart =
            async |apps: Rc<Apps>, (), by: &Requester| apps.restart(&request.id, by).await;
        self.change(request, Ok(()), restart).await
    }

    pub(super) async fn cancel_app(&self, request: &ApiRequest) -> Reply {
        let cancel = async |apps: Rc<Apps>, (), by: &Requester| apps.cancel(&request.id, by).await;
        self.change(request, Ok(()), cancel).await
    }

    pub(super) async fn remove_app(&self, request: &ApiRequest) -> Reply {
        let remove = async |apps: Rc<Apps>, (), by: &Requester| apps.remove(&request.id, by).await;
        self.change(request, Ok(()), remove).await
    }

    pub(super) async fn automate(&self, request: &ApiRequest, automation: Automation) -> Reply {
        let change = async |apps: Rc<Apps>, (), by: &Requester| {
            apps.automate(&request.id, automation, by).await
        };
        self.change(request, Ok(()), change).await
    }
}

fn apply_request(request: &ApiRequest) -> Result<ApplyRequest, Reply> {
    body(
        request,
        "the body names no app and no manifests",
        r#"{"app":"web","namespace":"shop","manifests":"apiVersion: …"}"#,
    )
}

/// Request in a body. It may hold Secrets: what cannot be read is not quoted.
fn body<W: Shape + Default>(request: &ApiRequest, what: &str, example: &str) -> Result<W, Reply> {
    json::shape(&request.body).map_err(|_values| Reply::bad_request(what, Some(example)))
}

fn reply(result: error::Result<Value>) -> Reply {
    match result {
        Ok(value) => Reply::json(&value),
        Err(error) if error.what.starts_with("there is no app") => {
            Reply::not_found(error.sentence(), error.fix.as_deref())
        }
        Err(error) if error.retry == Retry::Never => {
            Reply::refusal(StatusCode::CONFLICT, error.sentence(), error.fix.as_deref())
        }
        Err(error) => Reply::unavailable(error.sentence(), error.fix.as_deref()),
    }
}
