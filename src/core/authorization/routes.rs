//! Routes of the local API, one per line: routing, authorization and the description use this
//! table.

use super::{Role, Transport};

/// A method of HTTP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Method {
    /// Reads; `HEAD` is meant too.
    Get,
    /// Does something with the body.
    Post,
    /// Sets what the body says.
    Put,
    /// Ends something; has no body.
    Delete,
}

impl Method {
    /// The methods as in `Allow`.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Get => "GET, HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }

    pub(super) fn is_meant_by(self, word: &str) -> bool {
        self.words().split(", ").any(|own| own == word)
    }

    /// Returns whether a request brings a body.
    pub const fn brings_body(self) -> bool {
        matches!(self, Self::Post | Self::Put)
    }

    /// Returns whether it changes something.
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Get)
    }
}

/// From where a route can be asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exposure {
    /// From everywhere.
    Anywhere,
    /// From the Unix socket alone: who asks there is on this machine already.
    SocketOnly,
}

/// Component that answers a route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Responder {
    /// The server itself.
    Builtin(Builtin),
    Agent(View),
}

/// Resources that the server itself provides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "each is told by its line in the table")]
pub enum Builtin {
    Page,
    Asset,
    Description,
    Stream,
    Health,
}

/// Views that the agent provides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "each is told by its line in the table")]
pub enum View {
    Ready,
    Metrics,
    Status,
    Host,
    Diagnosis,
    Series,
    Values,
    Cluster,
    Pods,
    Workloads,
    PodLog,
    K3s,
    Logs,
    Events,
    Link,
    Settings,
    Problems,
    Fix,
    Changes,
    Undo,
    Access,
    Decision,
    SetAccess,
    Session,
    LogIn,
    LogOut,
    LogOutEverywhere,
    IssueToken,
    SetPassword,
    Apps,
    App,
    AppVerdict,
    ApplyApp,
    RollAppBack,
    RemoveApp,
    AppPods,
    AppEvents,
    DiffApp,
    DeployApp,
    FollowApp,
    PullApp,
    RestartApp,
    ScaleApp,
    Suggestion,
    ApplySuggestion,
    CancelApp,
    PauseApp,
    ResumeApp,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: Method,
    /// Its path; `{id}` is one part of it that may be anything plain.
    pub path: &'static str,
    /// Minimum role at the port, from this machine.
    pub role: Role,
    /// Minimum role on the socket.
    pub role_on_socket: Role,
    /// Minimum role from other machines.
    pub role_elsewhere: Role,
    /// From where.
    pub whence: Exposure,
    /// Resource of the route.
    pub what: Responder,
}

const fn route(method: Method, path: &'static str, role: Role, what: Responder) -> Route {
    Route {
        method,
        path,
        role,
        role_on_socket: role,
        role_elsewhere: role,
        whence: Exposure::Anywhere,
        what,
    }
}

impl Route {
    /// Minimum role for a request that came this way.
    pub const fn least(&self, transport: Transport) -> Role {
        match transport {
            Transport::Socket => self.role_on_socket,
            Transport::Port => self.role,
            Transport::Network => self.role_elsewhere,
        }
    }
}

const fn own(path: &'static str, role: Role, own: Builtin) -> Route {
    route(Method::Get, path, role, Responder::Builtin(own))
}

const fn get(path: &'static str, role: Role, view: View) -> Route {
    route(Method::Get, path, role, Responder::Agent(view))
}

const fn post(path: &'static str, role: Role, view: View) -> Route {
    route(Method::Post, path, role, Responder::Agent(view))
}

const fn put(path: &'static str, role: Role, view: View) -> Route {
    route(Method::Put, path, role, Responder::Agent(view))
}

const fn delete(path: &'static str, role: Role, view: View) -> Route {
    route(Method::Delete, path, role, Responder::Agent(view))
}

const fn on_socket(mut route: Route) -> Route {
    route.whence = Exposure::SocketOnly;
    route
}

/// Of an app: on the page for operators; on the socket the handler asks who it is.
const fn of_app(mut route: Route) -> Route {
    route.role = Role::Operator;
    route.role_elsewhere = Role::Operator;
    route
}

const fn operate(path: &'static str, view: View) -> Route {
    of_app(post(path, Role::Viewer, view))
}

/// Hides from the network what programs on this machine may read without a login.
const fn told_here(mut route: Route) -> Route {
    route.role_elsewhere = Role::Viewer;
    route
}

/// Every route. [`Role::Nobody`] is everybody.
pub const ROUTES: &[Route] = &[
    own("/", Role::Nobody, Builtin::Page),
    own("/assets/{id}", Role::Nobody, Builtin::Asset),
    own("/healthz", Role::Nobody, Builtin::Health),
    own("/livez", Role::Nobody, Builtin::Health),
    told_here(get("/readyz", Role::Nobody, View::Ready)),
    told_here(get("/metrics", Role::Nobody, View::Metrics)),
    get("/api/v1/status", Role::Anonymous, View::Status),
    get("/api/v1/host", Role::Anonymous, View::Host),
    get("/api/v1/diagnosis", Role::Anonymous, View::Diagnosis),
    get("/api/v1/series", Role::Anonymous, View::Series),
    get("/api/v1/series/values", Role::Anonymous, View::Values),
    get("/api/v1/cluster", Role::Viewer, View::Cluster),
    get("/api/v1/cluster/pods", Role::Viewer, View::Pods),
    get("/api/v1/cluster/workloads", Role::Viewer, View::Workloads),
    get("/api/v1/cluster/logs", Role::Viewer, View::PodLog),
    get("/api/v1/k3s", Role::Viewer, View::K3s),
    get("/api/v1/logs", Role::Viewer, View::Logs),
    get("/api/v1/events", Role::Viewer, View::Events),
    get("/api/v1/link", Role::Viewer, View::Link),
    get("/api/v1/settings", Role::Viewer, View::Settings),
    get("/api/v1/problems", Role::Viewer, View::Problems),
    post("/api/v1/problems/{id}/fix", Role::Operator, View::Fix),
    get("/api/v1/changes", Role::Viewer, View::Changes),
    post("/api/v1/changes/{id}/undo", Role::Operator, View::Undo),
    get("/api/v1/access", Role::Viewer, View::Access),
    get("/api/v1/access/decision", Role::Viewer, View::Decision),
    post("/api/v1/access", Role::Operator, View::SetAccess),
    get("/api/v1/apps", Role::Viewer, View::Apps),
    // The kernel says who asks on the socket: root, and the users of apps.operators.
    on_socket(post("/api/v1/apps", Role::Viewer, View::ApplyApp)),
    get("/api/v1/apps/{id}", Role::Viewer, View::App),
    of_app(delete("/api/v1/apps/{id}", Role::Viewer, View::RemoveApp)),
    get("/api/v1/apps/{id}/why", Role::Viewer, View::AppVerdict),
    operate("/api/v1/apps/{id}/rollback", View::RollAppBack),
    get("/api/v1/apps/{id}/pods", Role::Viewer, View::AppPods),
    get("/api/v1/apps/{id}/events", Role::Viewer, View::AppEvents),
    on_socket(post("/api/v1/apps/{id}/diff", Role::Viewer, View::DiffApp)),
    operate("/api/v1/apps/{id}/deploy", View::DeployApp),
    // Not for apps.operators: with a repository comes a file that the agent reads and sends.
    on_socket(post(
        "/api/v1/apps/{id}/source",
        Role::Operator,
        View::FollowApp,
    )),
    operate("/api/v1/apps/{id}/pull", View::PullApp),
    operate("/api/v1/apps/{id}/restart", View::RestartApp),
    operate("/api/v1/apps/{id}/scale", View::ScaleApp),
    get("/api/v1/apps/{id}/suggest", Role::Viewer, View::Suggestion),
    operate("/api/v1/apps/{id}/suggest", View::ApplySuggestion),
    operate("/api/v1/apps/{id}/cancel", View::CancelApp),
    operate("/api/v1/apps/{id}/pause", View::PauseApp),
    operate("/api/v1/apps/{id}/resume", View::ResumeApp),
    get("/api/v1/session", Role::Nobody, View::Session),
    post("/api/v1/session", Role::Nobody, View::LogIn),
    delete("/api/v1/session", Role::Nobody, View::LogOut),
    delete("/api/v1/sessions", Role::Operator, View::LogOutEverywhere),
    on_socket(post("/api/v1/tokens", Role::Operator, View::IssueToken)),
    on_socket(put("/api/v1/password", Role::Operator, View::SetPassword)),
    own("/api/v1/openapi.json", Role::Nobody, Builtin::Description),
    own("/api/v1/stream", Role::Anonymous, Builtin::Stream),
];
