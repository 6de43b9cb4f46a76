//! Handlers of the views: check the parameters, ask the view, make a reply.

use std::{io, rc::Rc};

use http_body_util::BodyExt as _;
use serde::Serialize;
use smol::stream;

use super::{Local, pod_log, repairs::Repairs};
use crate::{
    core::{authorization::Role, event::Source, health::Severity, lines::Lines, time::Wall},
    dashboard::{ApiRequest, Reply},
    kube::{Body, Bytes, Client},
    tasks::{
        dashboard::views::{
            ViewResult, cluster,
            diagnosis::Prober,
            figures, history,
            series::{self, KEYS_MAX, POINTS_MAX, Question, Subjects},
        },
        link::deliver::Databases,
        telemetry::cluster::Known,
    },
    wire::api::{HostReport, LogPage, SettingsReport, Status},
};

/// Lines of a container's log that are sent before those to come.
const TAIL_MAX: i64 = 10_000;
/// The agent's own lines: more are not remembered.
const OWN_LINES_MAX: i64 = 1000;
/// The latest second of a chart: the year 9999.
const SECOND_MAX: i64 = 253_402_300_799;

/// Everybody whom views ask.
pub struct Sources {
    /// The way to the API; `None`: there is no cluster.
    pub client: Option<Client>,
    /// State of the watches.
    pub known: Rc<Known>,
    /// Undelivered data.
    pub databases: Databases,
    /// The way to the control plane.
    pub prober: Prober,
    /// The settings as they were at the start.
    pub settings: SettingsReport,
    /// The agent's own newest lines, as many as are asked for.
    pub lines: Box<dyn Fn(usize) -> LogPage>,
    /// True if the wall clock may have been set since boot.
    pub clock_is_set: Box<dyn Fn() -> bool>,
    /// Doctor and keeper.
    pub repairs: Repairs,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sources")
    }
}

/// A view as a reply.
fn shown<T: Serialize>(answer: &ViewResult<T>) -> Reply {
    match answer {
        Ok(shape) => Reply::json(shape),
        Err(why) => Reply::unavailable(why.clone(), Some("pipeops-agent status says more")),
    }
}

fn bad_request(what: &str, fix: &'static str) -> Reply {
    Reply::bad_request(what.to_owned(), Some(fix))
}

impl Local {
    pub(super) async fn host(&self) -> Reply {
        let status: Status = crate::dashboard::Answers::status(self);
        let view = figures::View {
            status: &status,
            samples: &self.telemetry,
            databases: &self.sources.databases,
            clock_is_set: (self.sources.clock_is_set)(),
            now: self.now(),
        };
        let figures = view.figures().await;
        let environment = self.sources.repairs.environment().await;
        Reply::json(&HostReport {
            environment: (*environment).clone(),
            figures,
        })
    }

    fn now(&self) -> Wall {
        self.shared_state.now().wall
    }

    pub(super) async fn series(&self, request: &ApiRequest) -> Reply {
        let [contains, next] =
            ["contains", "continue"].map(|name| request.value(name).unwrap_or_default());
        let most = i64::from(series::LIMIT_MAX);
        let limit = request.number("limit", i64::from(series::LIMIT), 1..=most);
        let limit = limit.and_then(|limit| u32::try_from(limit).ok());
        let page = match limit {
            Some(limit) => {
                let wanted = (contains.as_str(), next.as_str(), limit);
                series::list(&self.telemetry, subjects(request), wanted).await
            }
            None => None,
        };
        match page {
            Some(page) => shown(&page),
            None => bad_request(
                "the page or its size is invalid",
                "?contains=cpu&limit=500 (up to 1000); continue is copied from the answer before",
            ),
        }
    }

    pub(super) async fn values(&self, request: &ApiRequest) -> Reply {
        let keys = request.values("key");
        let now = self.now().millis() / 1000;
        let from = request.number("from", now - 3600, 0..=SECOND_MAX);
        let to = request.number("to", now + 1, 0..=SECOND_MAX);
        let points = request.number("points", 300, 2..=i64::from(POINTS_MAX));
        let (Some(from), Some(to), Some(points)) = (from, to, points) else {
            return bad_request(
                "the time or the number of points makes no sense",
                "from and to are seconds since 1970, points 2 to 2000",
            );
        };
        if keys.is_empty() || keys.len() > KEYS_MAX || from >= to {
            return bad_request(
                "the question names no series, too many, or no time",
                "?key=K&key=K with up to 16 keys of /api/v1/series, from before to",
            );
        }
        let question = Question {
            keys,
            from,
            to,
            points: u32::try_from(points).unwrap_or(POINTS_MAX),
        };
        shown(&series::values(&self.telemetry, subjects(request), question).await)
    }

    pub(super) async fn diagnosis(&self) -> Reply {
        Reply::json(&*self.sources.prober.diagnosis().await)
    }

    fn cluster_view(&self) -> cluster::View<'_> {
        cluster::View {
            client: self.sources.client.as_ref(),
            known: &self.sources.known,
            shared_state: &self.shared_state,
            samples: &self.telemetry,
        }
    }

    pub(super) async fn cluster(&self) -> Reply {
        let status = crate::dashboard::Answers::status(self).cluster;
        let state = (status.state, status.why);
        Reply::json(&self.cluster_view().report(state).await)
    }

    pub(super) async fn pods(&self, request: &ApiRequest) -> Reply {
        let [namespace, contains, next] = ["namespace", "contains", "continue"]
            .map(|name| request.value(name).unwrap_or_default());
        if !namespace.is_empty() && cluster::named(&namespace).is_err() {
            return bad_request("that is not a valid namespace name", "?namespace=shop");
        }
        shown(&self.cluster_view().pods(&namespace, &contains, &next).await)
    }

    pub(super) async fn workloads(&self, request: &ApiRequest) -> Reply {
        let [namespace, next] =
            ["namespace", "continue"].map(|name| request.value(name).unwrap_or_default());
        if !namespace.is_empty() && cluster::named(&namespace).is_err() {
            return bad_request("that is not a valid namespace name", "?namespace=shop");
        }
        shown(&self.cluster_view().workloads(&namespace, &next).await)
    }

    /// The log of a container, as it comes.
    pub(super) async fn pod_log(&self, request: &ApiRequest) -> Reply {
        let [namespace, pod, container] =
            ["namespace", "pod", "container"].map(|name| request.value(name).unwrap_or_default());
        let is_wanted = |name: &str| request.value(name).is_some_and(|value| value == "1");
        let follow = is_wanted("follow");
        let Some(tail) = request.number("tail", 500, 0..=TAIL_MAX) else {
            return bad_request("that is not a number of lines", "?tail=500, up to 10000");
        };
        let tail = u32::try_from(tail).unwrap_or_default();
        let place = (namespace.as_str(), pod.as_str(), container.as_str());
        let since = request.value("since");
        let since = since.map(|text| Wall::parse_rfc3339(&text).ok_or(()));
        let Ok(since) = since.transpose() else {
            return bad_request("that is not a valid time", "?since=2026-06-16T05:00:00Z");
        };
        let path = match cluster::log_path(place, (tail, since), (follow, is_wanted("previous"))) {
            Ok(path) => path,
            Err(why) => return bad_request(&why, "?namespace=shop&pod=web-0&container=app"),
        };
        let Some(client) = &self.sources.client else {
            return Reply::unavailable("no cluster is configured", None);
        };
        match pod_log::open(client, &path, (&namespace, &pod)).await {
            Ok(body) => Reply::flowing("text/plain; charset=utf-8", sanitized_lines(body)),
            Err(reply) => reply,
        }
    }

    pub(super) fn own_lines(&self, request: &ApiRequest) -> Reply {
        match request.number("tail", 200, 0..=OWN_LINES_MAX) {
            Some(tail) => Reply::json(&(self.sources.lines)(usize::try_from(tail).unwrap_or(0))),
            None => bad_request("that is not a number of lines", "?tail=200"),
        }
    }

    pub(super) async fn events(&self, request: &ApiRequest) -> Reply {
        let limit = request.number("limit", 100, 1..=i64::from(history::EVENTS_MAX));
        let before = request.number("before", i64::MAX, 1..=i64::MAX);
        let (source, severity) = (request.value("source"), request.value("severity"));
        let source = source.map(|word| Source::of(&word).ok_or(()));
        let severity = severity.map(|word| Severity::of(&word).ok_or(()));
        let (Some(limit), Some(before), Ok(source), Ok(severity)) =
            (limit, before, source.transpose(), severity.transpose())
        else {
            return bad_request(
                "the query is invalid",
                "?limit=100 (up to 500), before=ID, source=agent|cluster, severity=note|warning|critical",
            );
        };
        let wanted = history::Wanted {
            before: u64::try_from(before).ok(),
            limit: u32::try_from(limit).unwrap_or(1),
            source,
            severity,
            reason: None,
        };
        self.publisher.look().await;
        shown(&history::events(&self.telemetry, wanted).await)
    }

    pub(super) async fn link(&self) -> Reply {
        let status = crate::dashboard::Answers::status(self);
        self.publisher.look().await;
        shown(&history::link(&self.telemetry, &self.sources.databases, status).await)
    }
}

/// Names of workloads are for those who logged in.
fn subjects(request: &ApiRequest) -> Subjects {
    if request.caller.role >= Role::Viewer {
        Subjects::All
    } else {
        Subjects::Host
    }
}

/// The body as lines that a page can show. Dropping it ends the call.
fn sanitized_lines(body: Body) -> crate::dashboard::Flow {
    let begin = (body, Lines::default(), false);
    Box::pin(stream::unfold(
        begin,
        |(mut body, mut lines, is_over)| async move {
            if is_over {
                return None;
            }
            let mut text = String::new();
            loop {
                match body.frame().await {
                    Some(Ok(frame)) => {
                        let data = frame.into_data().unwrap_or_default();
                        lines.take(&data, &mut text);
                        if !text.is_empty() {
                            return Some((Ok(Bytes::from(text)), (body, lines, false)));
                        }
                    }
                    Some(Err(error)) => {
                        return Some((Err(io::Error::other(error)), (body, lines, true)));
                    }
                    None => {
                        lines.finish(&mut text);
                        let rest = (!text.is_empty()).then(|| Ok(Bytes::from(text)));
                        return rest.map(|rest| (rest, (body, lines, true)));
                    }
                }
            }
        },
    ))
}
