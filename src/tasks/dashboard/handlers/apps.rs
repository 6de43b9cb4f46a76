//! Apps: what they say, and root's wishes.

use std::rc::Rc;

use serde_json::Value;

use super::Local;
use crate::{
    core::apps::Simple,
    dashboard::{Asked, Reply, StatusCode},
    error::{Error, Retry},
    tasks::apps::{Apps, Care},
    wire::{
        apps::{ApplyWish, RollbackWish, ScaleWish},
        json,
    },
};

impl Local {
    fn deployer(&self) -> Result<Rc<Apps>, Reply> {
        self.apps.clone().ok_or_else(|| {
            Reply::unavailable(
                "this agent has no cluster to deploy to",
                Some("pipeops-agent status shows why"),
            )
        })
    }

    /// Only root changes apps from this machine.
    fn changer(&self, asked: &Asked) -> Result<Rc<Apps>, Reply> {
        if asked.caller.is_root() {
            return self.deployer();
        }
        Err(Reply::refusal(
            StatusCode::FORBIDDEN,
            "only root deploys apps from this machine",
            Some("use sudo"),
        ))
    }

    pub(super) async fn apps(&self) -> Reply {
        match self.deployer() {
            Ok(apps) => said(apps.list().await),
            Err(reply) => reply,
        }
    }

    pub(super) async fn app(&self, asked: &Asked) -> Reply {
        match self.deployer() {
            Ok(apps) => said(apps.describe(&asked.id).await),
            Err(reply) => reply,
        }
    }

    pub(super) async fn app_verdict(&self, asked: &Asked) -> Reply {
        match self.deployer() {
            Ok(apps) => said(apps.why(&asked.id).await),
            Err(reply) => reply,
        }
    }

    pub(super) async fn apply_app(&self, asked: &Asked) -> Reply {
        match (self.changer(asked), apply_wish(asked)) {
            (Ok(apps), Ok(wish)) => said(apps.apply(&wish, &asked.caller.in_words()).await),
            (Err(reply), _) | (_, Err(reply)) => reply,
        }
    }

    pub(super) async fn roll_app_back(&self, asked: &Asked) -> Reply {
        let apps = match self.changer(asked) {
            Ok(apps) => apps,
            Err(reply) => return reply,
        };
        match json::shape::<RollbackWish>(&asked.body) {
            Ok(wish) => said(
                apps.rollback(&asked.id, wish.to, &asked.caller.in_words())
                    .await,
            ),
            Err(error) => Reply::bad_request(
                format!("the body names no revision: {error}"),
                Some(r#"{"to":3}"#),
            ),
        }
    }

    pub(super) async fn remove_app(&self, asked: &Asked) -> Reply {
        match self.changer(asked) {
            Ok(apps) => said(apps.remove(&asked.id, &asked.caller.in_words()).await),
            Err(reply) => reply,
        }
    }

    pub(super) async fn app_pods(&self, asked: &Asked) -> Reply {
        match self.deployer() {
            Ok(apps) => said(apps.pods(&asked.id).await),
            Err(reply) => reply,
        }
    }

    pub(super) async fn app_events(&self, asked: &Asked) -> Reply {
        match self.deployer() {
            Ok(apps) => said(apps.events(&asked.id).await),
            Err(reply) => reply,
        }
    }

    pub(super) async fn diff_app(&self, asked: &Asked) -> Reply {
        match (self.changer(asked), apply_wish(asked)) {
            (Ok(apps), Ok(wish)) => {
                let app = asked.id.clone();
                said(apps.diff(&ApplyWish { app, ..wish }).await)
            }
            (Err(reply), _) | (_, Err(reply)) => reply,
        }
    }

    pub(super) async fn deploy_app(&self, asked: &Asked) -> Reply {
        let apps = match self.changer(asked) {
            Ok(apps) => apps,
            Err(reply) => return reply,
        };
        // The body may hold Secrets: what cannot be read is not quoted.
        match json::shape::<Simple>(&asked.body) {
            Ok(wish) => {
                let by = asked.caller.in_words();
                said(apps.deploy(&asked.id, &wish, &by).await)
            }
            Err(_values) => Reply::bad_request(
                "the body does not describe an app",
                Some(r#"{"namespace":"shop","image":"ghcr.io/acme/web:42","port":8080}"#),
            ),
        }
    }

    pub(super) async fn restart_app(&self, asked: &Asked) -> Reply {
        match self.changer(asked) {
            Ok(apps) => said(apps.restart(&asked.id, &asked.caller.in_words()).await),
            Err(reply) => reply,
        }
    }

    pub(super) async fn scale_app(&self, asked: &Asked) -> Reply {
        let apps = match self.changer(asked) {
            Ok(apps) => apps,
            Err(reply) => return reply,
        };
        match json::shape::<ScaleWish>(&asked.body) {
            Ok(wish) => {
                let by = asked.caller.in_words();
                said(apps.scale(&asked.id, &wish, &by).await)
            }
            Err(error) => Reply::bad_request(
                format!("the body names no number of Pods: {error}"),
                Some(r#"{"to":3}, or {"to":null} for the number of the manifest"#),
            ),
        }
    }

    pub(super) async fn care_for_app(&self, asked: &Asked, care: Care) -> Reply {
        match self.changer(asked) {
            Ok(apps) => said(apps.care(&asked.id, care, &asked.caller.in_words()).await),
            Err(reply) => reply,
        }
    }
}

/// The manifests of a body. It may hold Secrets: what cannot be read is not quoted.
fn apply_wish(asked: &Asked) -> Result<ApplyWish, Reply> {
    json::shape(&asked.body).map_err(|_values| {
        Reply::bad_request(
            "the body names no app and no manifests",
            Some(r#"{"app":"web","namespace":"shop","manifests":"apiVersion: …"}"#),
        )
    })
}

fn said(result: Result<Value, Error>) -> Reply {
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
