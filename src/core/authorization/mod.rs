//! Authorization of the local API: the table of its routes, and the checks before a request is
//! answered.
//!
//! A request passes [`judge`] or is told what is wrong with it; what it asks for is looked up by
//! others, afterwards.

pub mod keys;
mod names;
mod routes;

pub use names::{cookie, is_here, is_same_origin, name_of};
pub use routes::{Builtin, Exposure, Method, ROUTES, Responder, Route, View};

/// Role of a requester, from nothing to everything.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Role {
    /// Not logged in, on a machine that shows nothing without a login.
    #[default]
    Nobody,
    /// Has not said who it is: sees how the machine is, and nothing of what runs on it.
    Anonymous,
    /// May look at everything.
    Viewer,
    /// May change things.
    Operator,
}

impl Role {
    /// The word in the local API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nobody => "none",
            Self::Anonymous => "anonymous",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }

    /// Role of a login, from its word.
    pub fn of_login(word: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator]
            .into_iter()
            .find(|role| role.as_str() == word)
    }
}

/// The way a request came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// The Unix socket, where the kernel says who asks.
    Socket,
    /// A port, asked from this machine: anybody on it may, and pages of strangers in its browsers
    /// too.
    Port,
    /// A port, asked from elsewhere.
    Network,
}

/// Fields of a request that decide whether it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The way it came.
    pub transport: Transport,
    /// True if it came by TLS.
    pub is_encrypted: bool,
    /// Names of this machine besides `localhost` and the addresses of the loopback interface.
    pub also_here: &'a [String],
    /// The method, as it was sent.
    pub method: &'a str,
    /// The path, as it was sent.
    pub path: &'a str,
    /// Every name under which the asker knows this machine: those of `Host`, and one in the first
    /// line.
    pub hosts: &'a [&'a str],
    /// `Origin`; an empty text where it is not text.
    pub origin: Option<&'a str>,
    /// `Sec-Fetch-Site`.
    pub fetch_site: Option<&'a str>,
    pub content_type: Option<&'a str>,
    /// True if it brings a body.
    pub has_body: bool,
    /// Role of the requester.
    pub role: Role,
}

/// Reasons to reject a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// It came for another machine.
    OtherMachine,
    /// There is nothing at its path.
    Nothing,
    /// There is, for these methods.
    Method(String),
    /// It brings a body where none belongs.
    Body,
    /// A page of another origin sends it.
    Foreign,
    /// The asker has to log in.
    Unknown,
    /// The asker may look only.
    ViewerOnly,
    /// It is for the socket alone.
    SocketOnly,
    /// Its body is no JSON.
    NotJson,
}

/// Finds the route of a request, with the id in its path (empty where it has none), or says what is
/// wrong with it.
pub fn judge<'a>(request: &Request<'a>) -> Result<(&'static Route, &'a str), Fault> {
    // A page of a stranger in a browser here can give this machine a name of its own, and then read
    // what it answers under it (DNS rebinding): no name but those that mean this machine is
    // answered.
    let is_meant = |host: &&str| is_here(host, request.also_here);
    if request.transport != Transport::Socket
        && (request.hosts.is_empty() || !request.hosts.iter().all(is_meant))
    {
        return Err(Fault::OtherMachine);
    }
    let (route, id) = find(request.method, request.path)?;
    if request.has_body && !route.method.brings_body() {
        return Err(Fault::Body);
    }
    if request.transport != Transport::Socket {
        from_here(request, route)?;
    }
    may(request, route)?;
    if route.method.brings_body() && !is_json(request.content_type) {
        // No page in a browser can send this type elsewhere without being asked for it first.
        return Err(Fault::NotJson);
    }
    Ok((route, id))
}

fn find<'a>(method: &str, path: &'a str) -> Result<(&'static Route, &'a str), Fault> {
    let there = ROUTES
        .iter()
        .filter_map(|route| Some((route, id_in(path, route.path)?)));
    let mut allowed = String::new();
    for (route, id) in there {
        if route.method.is_meant_by(method) {
            return Ok((route, id));
        }
        if !allowed.is_empty() {
            allowed.push_str(", ");
        }
        allowed.push_str(route.method.words());
    }
    if allowed.is_empty() {
        Err(Fault::Nothing)
    } else {
        Err(Fault::Method(allowed))
    }
}

/// Matches a path against a pattern and returns the part for `{id}`, which has no slash and is not
/// empty.
fn id_in<'a>(path: &'a str, pattern: &str) -> Option<&'a str> {
    let Some((before, after)) = pattern.split_once("{id}") else {
        return (path == pattern).then_some("");
    };
    let id = path.strip_prefix(before)?.strip_suffix(after)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_id = (1..=64).contains(&id.len()) && id.bytes().all(is_plain) && !id.contains("..");
    is_id.then_some(id)
}

/// Returns whether a request over a port is from a page of our own, or from no page at all.
fn from_here(request: &Request<'_>, route: &Route) -> Result<(), Fault> {
    // Where somebody follows a link to the page, the browser says `cross-site`; what the page then
    // asks is `same-origin`.
    let is_page = route.what == Responder::Builtin(Builtin::Page);
    let is_ours = match request.fetch_site {
        None => true,
        Some(site) if site.eq_ignore_ascii_case("same-origin") => true,
        Some(site) if site.eq_ignore_ascii_case("none") => !route.method.changes(),
        Some(_) => is_page,
    };
    let origin_is_ours = request.origin.is_none_or(|origin| {
        request
            .hosts
            .iter()
            .all(|host| is_same_origin(origin, host, request.is_encrypted))
    });
    if is_ours && origin_is_ours {
        Ok(())
    } else {
        Err(Fault::Foreign)
    }
}

fn may(request: &Request<'_>, route: &Route) -> Result<(), Fault> {
    if route.whence == Exposure::SocketOnly && request.transport != Transport::Socket {
        return Err(Fault::SocketOnly);
    }
    if request.role >= route.least(request.transport) {
        return Ok(());
    }
    match request.role {
        Role::Nobody | Role::Anonymous => Err(Fault::Unknown),
        Role::Viewer | Role::Operator => Err(Fault::ViewerOnly),
    }
}

fn is_json(content_type: Option<&str>) -> bool {
    let kind = content_type.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests;
