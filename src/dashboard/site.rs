//! From a request to its reply: rejects bad requests and passes the others to the agent.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    rc::Rc,
    time::Duration,
};

use http_body_util::{BodyExt, Limited};
use hyper::{
    Request, StatusCode,
    body::{Body, Bytes, Incoming},
    header::{self, HeaderName},
    http::uri::{Authority, PathAndQuery},
};
use smol::{Timer, future::FutureExt};

use super::{
    answers::{Answers, ApiRequest, Caller, From},
    assets::{self, Cache},
    certificate::Shown,
    hub::{Hub, NoTopics, Topic, Topics},
    page,
    reply::Reply,
};
use crate::{
    core::authorization::{self, Builtin, Fault, Responder, Role, Transport, View},
    wire::api::Health,
};

/// The longest body of a request: a level or a password, with room for what comes.
const BODY_BYTES_MAX: usize = 1024;
/// The longest body with manifests: 1 MiB of them, escaped. They come over the socket only.
const MANIFESTS_BYTES_MAX: usize = 3 << 19;
/// The longest description of an app: its Secret holds certificates and keys.
const APP_BYTES_MAX: usize = 256 << 10;
/// Time for a viewer to send the body of a request.
const BODY_DEADLINE: Duration = Duration::from_secs(5);
/// Time for the agent to answer, or to send the head of a streamed answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Time for an answer that takes the download of a repository, perhaps after that of another app,
/// or a read and a dry run of each of a thousand objects. The command line waits for ten seconds
/// more.
const LONG_ANSWER_WITHIN: Duration = Duration::from_secs(270);
/// Answers that flow at a time, over all ways together.
pub const FLOWS_MAX: usize = 16;
/// The cookie of a session.
pub const COOKIE: &str = "pipeops-session";
/// The same over TLS: a browser takes it from no other host and over no other way.
pub const COOKIE_TLS: &str = "__Host-pipeops-session";

/// Settings that all listeners of the dashboard share.
pub struct Site {
    /// Provider of the answers.
    pub answers: Rc<dyn Answers>,
    /// Role without a login: [`Role::Anonymous`] or [`Role::Nobody`].
    pub anonymous: Role,
    /// Changes as they happen.
    pub hub: Rc<Hub>,
    flows: Rc<Cell<usize>>,
    network: RefCell<Option<Network>>,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Site for {:?}", self.anonymous)
    }
}

/// Names of this machine in the network.
#[derive(Debug)]
struct Network {
    names: Vec<String>,
    shown: Shown,
}

impl Network {
    /// Returns whether this machine may be asked under that name. A page of a stranger can give a
    /// name of its own to this machine, and no address.
    fn is_here(&self, name: &str) -> bool {
        let is_own = |own: &String| own.eq_ignore_ascii_case(name);
        name.parse::<IpAddr>().is_ok()
            || self.names.iter().any(is_own)
            || self.shown.now().is_for(name)
    }
}

/// Permit for one of [`FLOWS_MAX`] streaming answers, returned when it is dropped.
pub(super) struct StreamPermit(Rc<Cell<usize>>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl Site {
    /// The dashboard of this agent.
    pub fn new(answers: Rc<dyn Answers>, anonymous: Role, hub: Rc<Hub>) -> Self {
        Self {
            answers,
            anonymous,
            hub,
            flows: Rc::default(),
            network: RefCell::default(),
        }
    }

    /// Lets other machines ask under these names, under those of the certificate, and by any
    /// address.
    pub fn open_to_network(&self, names: Vec<String>, shown: Shown) {
        self.network.replace(Some(Network { names, shown }));
    }

    /// Those of these names that mean this machine, beside those of the loopback interface.
    fn also_here(&self, hosts: &[&str]) -> Vec<String> {
        let network = self.network.borrow();
        let names = hosts.iter().filter_map(|host| authorization::name_of(host));
        let known = |name: &&str| {
            let network = network.as_ref();
            network.is_some_and(|network| network.is_here(name))
        };
        names.filter(known).map(str::to_owned).collect()
    }

    /// Redirects a request without TLS to the address with TLS, where that is required.
    pub(super) fn send_to_tls(&self, request: &Request<Incoming>) -> Reply {
        let host = request.headers().get(header::HOST);
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        let is_here = authorization::is_here(host, &self.also_here(&[host]));
        let transport = request.uri().path_and_query();
        if request.method().is_safe() && is_here {
            let transport = transport.map(PathAndQuery::as_str);
            let transport = transport
                .filter(|transport| transport.starts_with('/'))
                .unwrap_or("/");
            let reply = Reply::refusal(
                StatusCode::TEMPORARY_REDIRECT,
                "this port requires TLS",
                Some("use https"),
            );
            let reply = reply.with(header::LOCATION, &format!("https://{host}{transport}"));
            return reply.with(header::CONNECTION, "close");
        }
        let error = "this request is not encrypted, but TLS is required";
        let fix = "use https; pipeops-agent status shows the address and the fingerprint of the certificate";
        Reply::bad_request(error, Some(fix)).with(header::CONNECTION, "close")
    }

    /// Answers one request. `from` is `None` where the kernel does not say who asks.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        from: Option<From>,
    ) -> (Reply, Option<StreamPermit>) {
        let (what, asked) = match self.admit(&request, from) {
            Ok(admitted) => admitted,
            Err(reply) => return (reply, None),
        };
        // What somebody sees by a session ends with it.
        let by_session = asked.caller.session.is_some();
        let cookie = asked.cookie.clone().filter(|_| by_session);
        let reply = match what {
            Responder::Builtin(own) => self.own_answer(own, &asked),
            Responder::Agent(view) => self.ask(view, asked, request.into_body()).await,
        };
        if !reply.flows() {
            return (reply, None);
        }
        let reply = match cookie {
            Some(cookie) => reply.while_true(self.is_open(cookie)),
            None => reply,
        };
        let flows = self.flows.get();
        if flows >= FLOWS_MAX {
            let refused = Reply::unavailable(
                "too many viewers are watching",
                Some("close one of the pages, or try again later"),
            );
            return (refused.with(header::RETRY_AFTER, "30"), None);
        }
        self.flows.set(flows + 1);
        (reply, Some(StreamPermit(Rc::clone(&self.flows))))
    }

    /// Looks at everything but the body.
    fn admit(
        &self,
        request: &Request<Incoming>,
        from: Option<From>,
    ) -> Result<(Responder, ApiRequest), Reply> {
        let Some(from) = from else {
            let error = "the kernel does not identify the user of the socket";
            return Err(Reply::refusal(StatusCode::FORBIDDEN, error, None));
        };
        let headers = request.headers();
        // The one form of a length that two readers could understand differently. Nobody needs it
        // for a kilobyte.
        if headers.contains_key(header::TRANSFER_ENCODING) {
            return Err(Reply::refusal(
                StatusCode::LENGTH_REQUIRED,
                "the body has no length",
                Some("send content-length, and no transfer-encoding"),
            )
            .with(header::CONNECTION, "close"));
        }
        let text = |name: HeaderName| {
            let value = headers.get(name)?;
            Some(value.to_str().unwrap_or_default())
        };
        // A name that is not text is none that is answered.
        let named = headers.get_all(header::HOST).iter();
        let hosts = named.map(|host| host.to_str().unwrap_or_default());
        // A whole URL in the first line names a host, too.
        let in_line = request.uri().authority().map(Authority::as_str);
        let hosts: Vec<_> = hosts.chain(in_line).collect();
        let cookie = text(header::COOKIE).and_then(|cookies| {
            let name = if from.is_encrypted() {
                COOKIE_TLS
            } else {
                COOKIE
            };
            authorization::cookie(cookies, name).map(str::to_owned)
        });
        let caller = self.caller(from, cookie.as_deref());
        let fetch_site = text(HeaderName::from_static("sec-fetch-site"));
        let also_here = self.also_here(&hosts);
        let asked = authorization::Request {
            transport: from.transport(),
            is_encrypted: from.is_encrypted(),
            also_here: &also_here,
            method: request.method().as_str(),
            path: request.uri().path(),
            hosts: &hosts,
            origin: text(header::ORIGIN),
            fetch_site,
            content_type: text(header::CONTENT_TYPE),
            has_body: !request.body().is_end_stream(),
            role: caller.role,
        };
        let (route, id) = authorization::judge(&asked).map_err(|fault| reply_for(&fault))?;
        let asked = ApiRequest {
            id: id.to_owned(),
            body: Bytes::new(),
            caller,
            cookie,
            query: request.uri().query().unwrap_or_default().to_owned(),
            cache: Cache {
                takes_gzip: text(header::ACCEPT_ENCODING).is_some_and(assets::takes_gzip),
                has: text(header::IF_NONE_MATCH).map(str::to_owned),
            },
            last_event_id: text(HeaderName::from_static("last-event-id"))
                .and_then(|id| id.parse().ok()),
        };
        Ok((route.what, asked))
    }

    fn caller(&self, from: From, cookie: Option<&str>) -> Caller {
        let session = match from {
            From::Socket(peer) => {
                return Caller {
                    role: peer.role(),
                    from,
                    session: None,
                };
            }
            From::Port { .. } => cookie.and_then(|cookie| self.answers.session(cookie)),
        };
        // What this machine shows to everybody on it, it shows to nobody else.
        let stranger = match from.transport() {
            Transport::Network => Role::Nobody,
            Transport::Port | Transport::Socket => self.anonymous,
        };
        Caller {
            role: session.as_ref().map_or(stranger, |known| known.role),
            from,
            session: session.map(|known| known.name),
        }
    }

    async fn ask(&self, view: View, mut asked: ApiRequest, body: Incoming) -> Reply {
        if !body.is_end_stream() {
            match read(body, bytes_max(view)).await {
                Ok(body) => asked.body = body,
                Err(reply) => return reply,
            }
        }
        let answer = Rc::clone(&self.answers).answer(view, asked);
        let late = async {
            Timer::after(answer_within(view)).await;
            log::debug!("dashboard: no answer in time: {view:?}");
            Reply::unavailable(
                "the agent did not answer in time",
                Some("try again; pipeops-agent status shows what is slow"),
            )
        };
        answer.or(late).await
    }

    /// Returns whether the session of this cookie is still there.
    fn is_open(&self, cookie: String) -> Box<dyn Fn() -> bool> {
        let answers = Rc::clone(&self.answers);
        Box::new(move || answers.session(&cookie).is_some())
    }

    /// Event stream, from now on or from the viewer's last message.
    fn stream(&self, asked: &ApiRequest) -> Reply {
        let list = asked.value("topics").unwrap_or_default();
        let topics = match Topics::of(&list, asked.caller.role) {
            Ok(topics) => topics,
            Err(NoTopics::Unknown) => {
                return Reply::bad_request(
                    "there is no such topic",
                    Some("?topics=status,ticks,events,logs,changes, or some of them"),
                );
            }
            Err(NoTopics::NotForYou) => return reply_for(&Fault::Unknown),
        };
        let mut watch = self.hub.watch(topics, asked.last_event_id);
        if topics.has(Topic::Status)
            && let Ok(json) = serde_json::to_string(&self.answers.status())
        {
            watch.greet(Topic::Status, &json);
        }
        Reply::flowing("text/event-stream", Box::pin(watch))
    }

    fn own_answer(&self, own: Builtin, asked: &ApiRequest) -> Reply {
        match own {
            Builtin::Page => {
                let sees = asked.caller.role >= Role::Anonymous;
                let status = sees.then(|| self.answers.status());
                let session = self.answers.report(asked);
                page::page(&session, status.as_ref(), asked.cache.takes_gzip)
            }
            Builtin::Stream => self.stream(asked),
            Builtin::Asset => assets::reply(&asked.id, &asked.cache),
            Builtin::Description => assets::reply("openapi.json", &asked.cache),
            Builtin::Health => Reply::json(&Health::default()),
        }
    }
}

/// Time for the agent to answer a request.
fn answer_within(view: View) -> Duration {
    let is_long = matches!(
        view,
        View::FollowApp
            | View::PullApp
            | View::ApplyApp
            | View::DiffApp
            | View::DeployApp
            | View::ScaleApp
            | View::RestartApp
            | View::ApplySuggestion
    );
    if is_long {
        LONG_ANSWER_WITHIN
    } else {
        ANSWER_WITHIN
    }
}

/// The longest body of a request.
fn bytes_max(view: View) -> usize {
    if matches!(view, View::ApplyApp | View::DiffApp) {
        MANIFESTS_BYTES_MAX
    } else if view == View::DeployApp {
        APP_BYTES_MAX
    } else {
        BODY_BYTES_MAX
    }
}

/// The whole body of a request.
async fn read(body: Incoming, bytes_max: usize) -> Result<Bytes, Reply> {
    let whole = async {
        match Limited::new(body, bytes_max).collect().await {
            Ok(whole) => Ok(whole.to_bytes()),
            Err(_too_long_or_broken) => Err(Reply::refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is too long or incomplete",
                Some(
                    "manifests may have a megabyte, the values of a deployment 256 KB, everything else 1 KB",
                ),
            )),
        }
    };
    let late = async {
        Timer::after(BODY_DEADLINE).await;
        Err(Reply::refusal(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive",
            None,
        ))
    };
    whole.or(late).await
}

fn reply_for(fault: &Fault) -> Reply {
    let (code, error, fix) = match fault {
        Fault::OtherMachine => (
            StatusCode::MISDIRECTED_REQUEST,
            "unknown host name",
            Some(
                "ask for localhost, 127.0.0.1 or [::1], or for an address or a name that pipeops-agent status shows; dashboard.names takes more of them",
            ),
        ),
        Fault::Nothing => (
            StatusCode::NOT_FOUND,
            "not found",
            Some("GET /api/v1/openapi.json"),
        ),
        Fault::Method(allowed) => {
            let reply = Reply::refusal(
                StatusCode::METHOD_NOT_ALLOWED,
                "method not allowed",
                Some(allowed),
            );
            return reply.with(header::ALLOW, allowed);
        }
        Fault::Body => (
            StatusCode::PAYLOAD_TOO_LARGE,
            "this request must not have a body",
            Some("send the request without one"),
        ),
        Fault::Foreign => (
            StatusCode::FORBIDDEN,
            "cross-origin request refused",
            Some("open the dashboard itself, at the address of this machine"),
        ),
        Fault::Unknown => (
            StatusCode::UNAUTHORIZED,
            "login required",
            Some("sudo pipeops-agent dashboard open"),
        ),
        Fault::ViewerOnly => (
            StatusCode::FORBIDDEN,
            "only root, the agent's own user and operators can change this",
            Some(
                "run it as root, with sudo; or log in as operator: sudo pipeops-agent dashboard open",
            ),
        ),
        Fault::SocketOnly => (
            StatusCode::FORBIDDEN,
            "only the command line on this machine can do this",
            Some("sudo pipeops-agent dashboard"),
        ),
        Fault::NotJson => (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON",
            Some("content-type: application/json"),
        ),
    };
    Reply::refusal(code, error, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_is_waited_for_to_its_end() {
        // A question to the server (25 s) and a fetch (90 s), behind those of another app.
        let both = Duration::from_secs(2 * (25 + 90));
        for view in [View::FollowApp, View::PullApp] {
            assert!(answer_within(view) > both);
        }
        assert_eq!(answer_within(View::App), ANSWER_WITHIN);
    }

    #[test]
    fn a_thousand_objects_are_tried_to_the_last() {
        // A read and a dry run of each, on a board that takes a tenth of a second for either.
        let tried = Duration::from_millis(1_000 * 2 * 100);
        for view in [
            View::ApplyApp,
            View::DiffApp,
            View::DeployApp,
            View::ScaleApp,
            View::RestartApp,
            View::ApplySuggestion,
        ] {
            assert!(answer_within(view) > tried, "{view:?}");
        }
    }
}
