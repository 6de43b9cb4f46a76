//! Handlers of the local API: the agent's side of the server on the socket.

mod apps;
mod pod_log;
mod repairs;
mod views;

use std::{io, path::PathBuf, rc::Rc, time::Duration};

use smol::{Timer, future::FutureExt as _};

use super::{login::Logins, metrics, status, views::k3s};
use crate::{
    core::{access::Inquiry, authorization::View, outbox::Backlog, policy::Level},
    dashboard::{Answering, Answers, ApiRequest, Rejection, Reply, Session, StatusCode},
    store::{Failure, telemetry},
    tasks::{
        apps::{Apps, Automation},
        audit::AuditWriter,
        link::registration::Registrar,
        machine::k3s::refresh,
        proxy::{Proxy, level::Access},
        rights::manifest::Rights,
        state::SharedState,
        stream::Stream,
        telemetry::{liveness::Liveness, publisher::Publisher, sample::Sampler},
    },
    wire::{
        api::{AccessRequest, Load, SessionReport, Status},
        exposition,
    },
};

pub use repairs::{Look, Repairs};
pub use views::Sources;

/// Deadlines of what viewers ask others.
mod within {
    use std::time::Duration;

    /// Time for the API to begin with a log.
    pub(super) const HEAD: Duration = Duration::from_secs(8);
}

/// Time that a Prometheus waits for values from the disk.
const BACKLOG_WITHIN: Duration = Duration::from_secs(2);

/// Everybody who knows something.
#[derive(Debug)]
pub struct Local {
    /// State of all components.
    pub shared_state: Rc<SharedState>,
    /// The machine.
    pub registrar: Rc<Registrar>,
    /// Running calls.
    pub proxy: Rc<Proxy>,
    /// Access level.
    pub access: Rc<Access>,
    pub login: Rc<Logins>,
    /// Sampler of the machine.
    pub sampler: Rc<Sampler>,
    /// Its samples, and their delivery.
    pub telemetry: telemetry::Handle,
    /// Audit and changes.
    pub audit_writer: AuditWriter,
    /// Events.
    pub publisher: Rc<Publisher>,
    /// Live viewers.
    pub stream: Rc<Stream>,
    /// Sources of the views.
    pub sources: Sources,
    /// Health check of the cluster; `None`: no cluster.
    pub liveness: Option<Rc<Liveness>>,
    /// Comparison of the cluster with the manifest; `None`: no cluster.
    pub rights: Option<Rc<Rights>>,
    /// Apps; `None`: no cluster.
    pub apps: Option<Rc<Apps>>,
    /// Users and groups that may deploy besides root.
    pub app_operators: Vec<String>,
}

impl Answers for Local {
    fn status(&self) -> Status {
        let load = self.proxy.load();
        let load = Load {
            exchanges: load.exchanges.try_into().unwrap_or(u64::MAX),
            waiting: load.short_waiting.try_into().unwrap_or(u64::MAX),
            streams: load.long_running.try_into().unwrap_or(u64::MAX),
            requests: load.requests,
            spooled_bytes: load.spooled_bytes,
            ..Load::default()
        };
        status::status(
            &self.shared_state,
            &self.registrar,
            self.access.in_short(),
            &load,
        )
    }

    fn session(&self, cookie: &str) -> Option<Session> {
        self.login.session(cookie)
    }

    fn report(&self, request: &ApiRequest) -> SessionReport {
        self.login.report(request)
    }

    fn turned_away(&self, why: Rejection) {
        let mut counts = self.shared_state.turned_away.get();
        match why {
            Rejection::Full => counts.full += 1,
            Rejection::Slow => counts.slow += 1,
            Rejection::Unreadable => counts.unreadable += 1,
        }
        self.shared_state.turned_away.set(counts);
    }

    fn accept_failed(&self, error: &io::Error) -> Duration {
        self.shared_state.accept_failed(error)
    }

    fn accepted(&self) {
        self.shared_state.accepted();
    }

    fn answer(self: Rc<Self>, view: View, request: ApiRequest) -> Answering {
        Box::pin(async move {
            match view {
                View::Status => {
                    self.refresh().await;
                    if request.value("fresh").is_some_and(|value| value == "1") {
                        self.ask_for_examination();
                    }
                    Reply::json(&self.status())
                }
                View::Ready => {
                    self.check_liveness().await;
                    self.ready()
                }
                View::Metrics => self.metrics().await,
                View::Host => self.host().await,
                View::Diagnosis => {
                    self.refresh().await;
                    self.diagnosis().await
                }
                View::Series => self.series(&request).await,
                View::Values => self.values(&request).await,
                View::Cluster => self.cluster().await,
                View::Pods => self.pods(&request).await,
                View::Workloads => self.workloads(&request).await,
                View::PodLog => self.pod_log(&request).await,
                View::K3s => {
                    // A change that runs says its step, which changes sooner than the file is
                    // looked at.
                    refresh(PathBuf::from("/"), &self.shared_state).await;
                    Reply::json(&k3s::report(&self.shared_state))
                }
                View::Logs => self.own_lines(&request),
                View::Events => self.events(&request).await,
                View::Link => self.link().await,
                View::Settings => Reply::json(&self.sources.settings),
                View::Problems => self.problems(&request).await,
                View::Fix => self.fix(&request).await,
                View::Changes => self.changes().await,
                View::Undo => self.undo(&request).await,
                View::Access => Reply::json(&self.access.report().await),
                View::Decision => self.decision(&request).await,
                View::SetAccess => self.set_access(&request).await,
                View::Session => Reply::json(&self.report(&request)),
                View::LogIn => self.login.log_in(&request).await,
                View::LogOut => self.login.log_out(&request).await,
                View::LogOutEverywhere => self.login.log_out_everywhere(&request).await,
                View::IssueToken => self.login.issue(&request).await,
                View::SetPassword => self.login.set_password(&request).await,
                View::Apps => self.apps().await,
                View::App => self.app(&request).await,
                View::AppVerdict => self.app_verdict(&request).await,
                View::ApplyApp => self.apply_app(&request).await,
                View::RollAppBack => self.roll_app_back(&request).await,
                View::RemoveApp => self.remove_app(&request).await,
                View::AppPods => self.app_pods(&request).await,
                View::AppEvents => self.app_events(&request).await,
                View::DiffApp => self.diff_app(&request).await,
                View::DeployApp => self.deploy_app(&request).await,
                View::FollowApp => self.follow_app(&request).await,
                View::PullApp => self.pull_app(&request).await,
                View::RestartApp => self.restart_app(&request).await,
                View::ScaleApp => self.scale_app(&request).await,
                View::Suggestion => self.suggestion(&request).await,
                View::ApplySuggestion => self.apply_suggestion(&request).await,
                View::CancelApp => self.cancel_app(&request).await,
                View::PauseApp => self.automate(&request, Automation::Paused).await,
                View::ResumeApp => self.automate(&request, Automation::Resumed).await,
            }
        })
    }
}

impl Local {
    /// Looks again at what may have changed unseen, so that what is said next is true now.
    async fn refresh(&self) {
        self.check_liveness().await;
        let is_silent = self
            .liveness
            .as_ref()
            .is_some_and(|liveness| liveness.is_silent());
        if let Some(rights) = self.rights.as_ref().filter(|_| !is_silent) {
            rights.refresh().await;
        }
    }

    async fn check_liveness(&self) {
        if let Some(liveness) = &self.liveness {
            liveness.refresh().await;
        }
    }

    fn ready(&self) -> Reply {
        let readiness = self.status().readiness;
        let code = if readiness.ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Reply::json(&readiness).with_code(code)
    }

    async fn metrics(&self) -> Reply {
        let Some(reading) = self.sampler.reading().await else {
            return Reply::unavailable(
                "the counters of this machine cannot be read right now",
                Some("pipeops-agent status says why"),
            );
        };
        // A disk that does not answer hides what waits, not how the machine is.
        let backlog = self.telemetry.backlog().or(late());
        let backlog = backlog.await.unwrap_or_default();
        let (version, load) = (self.registrar.version(), self.proxy.load());
        let page = metrics::page(&reading, &self.shared_state, version, &load, backlog);
        Reply::whole(exposition::CONTENT_TYPE, page)
    }

    async fn decision(&self, request: &ApiRequest) -> Reply {
        let (Some(method), Some(target)) = (request.value("method"), request.value("path")) else {
            return Reply::bad_request(
                "the query must name a method and a path in UTF-8",
                Some("?method=GET&path=/api/v1/pods, percent-encoded where needed"),
            );
        };
        let inquiry = Inquiry { method, target };
        Reply::json(&self.access.decision(&inquiry).await)
    }

    async fn set_access(&self, request: &ApiRequest) -> Reply {
        match wanted(&request.body) {
            Err(reply) => reply,
            Ok(level) => match self.access.set(level, &request.caller).await {
                Ok(change) => Reply::json(&change),
                Err(refused) => refused.into(),
            },
        }
    }
}

/// The level in a body.
fn wanted(body: &[u8]) -> Result<Level, Reply> {
    let fix = Some(r#"{"level":"read-only"}; the levels are full, managed, read-only and off"#);
    let wanted: AccessRequest = super::object(body).map_err(|error| {
        Reply::bad_request(format!("the body does not name a level: {error}"), fix)
    })?;
    Level::from_word(&wanted.level).ok_or_else(|| Reply::bad_request("there is no such level", fix))
}

async fn late() -> Result<Vec<Backlog>, Failure> {
    Timer::after(BACKLOG_WITHIN).await;
    Err(Failure::Slow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_says_one_level_and_nothing_else() {
        assert_eq!(
            wanted(br#"{"level":"read-only"}"#).unwrap(),
            Level::ReadOnly
        );
        for body in [
            "",
            "{}",
            "\"off\"",
            r#"{"level":"Off"}"#,
            r#"{"level":null}"#,
            r#"{"level":"off","level":"full"}"#,
            r#"{"level":"off","until":"tomorrow"}"#,
            r#"{"level":"off"} "#,
            r#"{"level":"off"}{}"#,
        ] {
            let is_fine = body == "{\"level\":\"off\"} ";
            assert_eq!(wanted(body.as_bytes()).is_ok(), is_fine, "{body}");
        }
    }
}
