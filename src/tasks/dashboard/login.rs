//! Logins to the dashboard: joins the credentials in `core::authorization` to the disk, the audit
//! and the computation of password hashes.

use std::{cell::RefCell, num::NonZeroU32, rc::Rc, time::Duration};

use ring::{
    digest::{SHA256, digest},
    pbkdf2,
};
use serde::de::DeserializeOwned;
use smol::{future::FutureExt as _, lock::Mutex};

use crate::{
    core::{
        audit::{AuditDecision, AuditEntry, Effect},
        authorization::{
            Role, Transport,
            keys::{self, Credentials, Hash, Password},
        },
        format::hex,
        time::Now,
    },
    dashboard::{self, ApiRequest, COOKIE, COOKIE_TLS, Caller, From, Reply, StatusCode, header},
    error::Result,
    executor,
    host::{clock, random},
    store::Notes,
    tasks::{audit::AuditWriter, state::SharedState},
    wire::{
        self,
        api::{
            self, Login, LoginTokenRequest, NewToken, PasswordReport, PasswordRequest,
            SessionReport, SessionsEnded,
        },
    },
};

/// The note that the keys are kept as.
const NOTE: &str = "dashboard.keys";
/// OWASP's figure of 2023 for PBKDF2-HMAC-SHA256: 100 ms on a desktop, two seconds on the smallest
/// board.
const ROUNDS: u32 = 600_000;
/// Time for the disk before a waiting user is answered without it.
const DISK_WITHIN: Duration = Duration::from_millis(1500);
/// A password of eight characters is guessed in years at the pace that is allowed here.
const PASSWORD_BYTES: std::ops::RangeInclusive<usize> = 8..=256;

/// Logins of people: the password, tokens that work once, sessions.
#[derive(Debug)]
pub struct Logins {
    keys: RefCell<Credentials>,
    audit_writer: AuditWriter,
    shared_state: Rc<SharedState>,
    /// One password at a time: to check one costs a core for a while.
    counting: Mutex<()>,
}

impl Logins {
    /// Takes up what was kept.
    pub fn new(audit_writer: AuditWriter, shared_state: Rc<SharedState>, notes: &Notes) -> Self {
        let now = shared_state.now();
        let keys = match notes.get(NOTE) {
            _ if notes.is_unreadable => Credentials::unreadable(now.mono),
            None => Credentials::default(),
            Some(note) => wire::keys::read(note, now).unwrap_or_else(|| {
                log::warn!("dashboard: cannot read the saved sessions; log in again");
                Credentials::unreadable(now.mono)
            }),
        };
        Self {
            keys: RefCell::new(keys),
            audit_writer,
            shared_state,
            counting: Mutex::new(()),
        }
    }

    /// Session of this cookie.
    pub fn session(&self, cookie: &str) -> Option<dashboard::Session> {
        let keys = self.keys.borrow();
        let session = keys.session(&hash(cookie), self.now().mono)?;
        Some(dashboard::Session {
            role: session.role,
            name: session.name.clone(),
        })
    }

    /// Session report for the requester.
    pub fn report(&self, request: &ApiRequest) -> SessionReport {
        let cookie = request.cookie.as_deref();
        self.shape(&request.caller, request.caller.role, cookie)
    }

    fn shape(&self, caller: &Caller, role: Role, cookie: Option<&str>) -> SessionReport {
        let (keys, now) = (self.keys.borrow(), self.now());
        let session = cookie.and_then(|cookie| keys.session(&hash(cookie), now.mono));
        SessionReport {
            role: role.as_str().to_owned(),
            has_password: keys.password.is_some(),
            until: session.map(|session| api::stamp(keys::kept(session.until, now))),
            via: match caller.from.transport() {
                Transport::Socket => "socket",
                Transport::Port => "loopback",
                Transport::Network => "network",
            }
            .to_owned(),
        }
    }

    /// Logs in with a token or the password.
    pub async fn log_in(&self, request: &ApiRequest) -> Reply {
        let login: Login = match parsed(request, r#"{"token":"…"} or {"password":"…"}"#) {
            Ok(login) => login,
            Err(reply) => return reply,
        };
        let by = request.caller.in_words();
        let opened = match (login.token, login.password) {
            (Some(token), None) => self.by_token(&token, request, &by).await,
            (None, Some(password)) => self.by_password(password, request, &by).await,
            (Some(_), Some(_)) | (None, None) => {
                return Reply::bad_request(
                    "the body must contain a token or a password",
                    Some(r#"{"token":"…"} or {"password":"…"}"#),
                );
            }
        };
        match opened {
            Ok(role) => match self.open(request, role, &by).await {
                Ok(reply) => reply,
                Err(error) => Reply::unavailable(error.sentence(), error.fix.as_deref()),
            },
            Err(reply) => reply,
        }
    }

    async fn by_token(
        &self,
        token: &str,
        request: &ApiRequest,
        by: &str,
    ) -> std::result::Result<Role, Reply> {
        // Before any wait: nobody guesses 128 bits, and whoever holds a token is not to wait for
        // those who guess passwords.
        let spent = self
            .keys
            .borrow_mut()
            .spend(&hash(token.trim()), self.now().mono);
        if let Some(role) = spent {
            return Ok(role);
        }
        self.guess(request).await?;
        self.write_down(
            by,
            "log in to the dashboard",
            AuditDecision::Refused,
            "no such token",
        )
        .await;
        Err(Reply::refusal(
            StatusCode::UNAUTHORIZED,
            "this token is not valid (any more): each works once, within an hour",
            Some("sudo pipeops-agent dashboard open"),
        ))
    }

    async fn by_password(
        &self,
        password: String,
        request: &ApiRequest,
        by: &str,
    ) -> std::result::Result<Role, Reply> {
        let Some(_one_at_a_time) = self.counting.try_lock() else {
            return Err(wait_for(Duration::from_secs(1)));
        };
        self.guess(request).await?;
        let known = self.keys.borrow().password.clone();
        let why = match known {
            None => "there is no password",
            Some(known) => {
                let role = known.role;
                let is_right = executor::unblock(move || is_right(&known, &password)).await;
                if is_right {
                    self.keys
                        .borrow_mut()
                        .clear_guesses(&source(&request.caller));
                    return Ok(role);
                }
                "wrong password"
            }
        };
        self.write_down(by, "log in to the dashboard", AuditDecision::Refused, why)
            .await;
        Err(Reply::refusal(
            StatusCode::UNAUTHORIZED,
            why,
            Some("sudo pipeops-agent dashboard open logs in without one"),
        ))
    }

    /// Counts a guess, on disk too, before it is looked at; or says that it is too early for
    /// another one.
    async fn guess(&self, request: &ApiRequest) -> std::result::Result<(), Reply> {
        let source = source(&request.caller);
        let now = self.now().mono;
        let may = self.keys.borrow().may_guess(&source, now);
        may.map_err(wait_for)?;
        self.keys.borrow_mut().guess(&source, now);
        self.keep().await;
        Ok(())
    }

    async fn open(&self, request: &ApiRequest, role: Role, by: &str) -> Result<Reply> {
        let cookie = random::hex::<16>()?;
        let what = format!("log in to the dashboard as {}", role.as_str());
        let name = hash(&cookie).name();
        self.write_down(
            by,
            &what,
            AuditDecision::Permitted,
            &format!("session {name}"),
        )
        .await;
        self.keys
            .borrow_mut()
            .open(hash(&cookie), role, self.now().mono);
        self.keep().await;
        log::info!(
            "dashboard: {by} logged in as {}: session {name}",
            role.as_str()
        );
        let report = self.shape(&request.caller, role, Some(&cookie));
        Ok(Reply::json(&report).with(header::SET_COOKIE, &set_cookie(request, &cookie)))
    }

    /// Ends the session of who asks.
    pub async fn log_out(&self, request: &ApiRequest) -> Reply {
        let was_open = request
            .cookie
            .as_deref()
            .is_some_and(|cookie| self.keys.borrow_mut().close(&hash(cookie)));
        if was_open {
            self.keep().await;
            let by = request.caller.in_words();
            self.write_down(
                &by,
                "log out of the dashboard",
                AuditDecision::Permitted,
                "asked for",
            )
            .await;
        }
        Reply::json(&SessionsEnded {
            ended: u64::from(was_open),
        })
        .with(header::SET_COOKIE, &set_cookie(request, ""))
    }

    /// Ends all sessions, and takes back the tokens that were not used.
    pub async fn log_out_everywhere(&self, request: &ApiRequest) -> Reply {
        let by = request.caller.in_words();
        let what = "log everybody out of the dashboard";
        self.write_down(&by, what, AuditDecision::Permitted, "asked for")
            .await;
        let ended = self.keys.borrow_mut().close_all(self.now().mono);
        self.keep().await;
        log::warn!("dashboard: {by} logged everybody out; sessions: {ended}");
        Reply::json(&SessionsEnded {
            ended: u64::try_from(ended).unwrap_or(u64::MAX),
        })
        .with(header::SET_COOKIE, &set_cookie(request, ""))
    }

    /// Makes a token.
    pub async fn issue(&self, request: &ApiRequest) -> Reply {
        let wanted: LoginTokenRequest =
            match parsed(request, r#"{"role":"viewer"} or {"role":"operator"}"#) {
                Ok(wanted) => wanted,
                Err(reply) => return reply,
            };
        let Some(role) = role_of(wanted.role.as_deref()) else {
            return no_such_role();
        };
        let token = match random::hex::<16>() {
            Ok(token) => token,
            Err(error) => return Reply::unavailable(error.sentence(), error.fix.as_deref()),
        };
        let by = request.caller.in_words();
        let what = format!(
            "make a token of the dashboard for a session as {}",
            role.as_str()
        );
        self.write_down(&by, &what, AuditDecision::Permitted, "asked for")
            .await;
        let now = self.now();
        self.keys.borrow_mut().issue(hash(&token), role, now.mono);
        self.keep().await;
        let dashboard = self.shared_state.dashboard.borrow();
        let url = dashboard.urls.first();
        let url = url.map(|url| format!("{url}/#token={token}"));
        let certificate = dashboard.certificate.as_ref();
        Reply::json(&NewToken {
            url: url.unwrap_or_default(),
            fingerprint: certificate.map(|shown| shown.fingerprint.clone()),
            token,
            role: role.as_str().to_owned(),
            until: api::stamp(keys::kept(now.mono.after(keys::TOKEN_LIFE), now)),
        })
    }

    /// Sets or removes the password. All sessions end.
    pub async fn set_password(&self, request: &ApiRequest) -> Reply {
        let wanted: PasswordRequest = match parsed(request, r#"{"password":"…","role":"operator"}"#)
        {
            Ok(wanted) => wanted,
            Err(reply) => return reply,
        };
        let Some(role) = role_of(wanted.role.as_deref()) else {
            return no_such_role();
        };
        let password = match wanted.password {
            None => None,
            Some(text) if !PASSWORD_BYTES.contains(&text.len()) => {
                return Reply::bad_request(
                    "a password must have 8 to 256 bytes",
                    Some("use three unrelated words"),
                );
            }
            Some(text) => match hashed(text, role).await {
                Ok(password) => Some(password),
                Err(error) => return Reply::unavailable(error.sentence(), error.fix.as_deref()),
            },
        };
        let has_password = password.is_some();
        let what = if has_password {
            format!("set the password of the dashboard, for {}", role.as_str())
        } else {
            "take the password of the dashboard away".to_owned()
        };
        let by = request.caller.in_words();
        self.write_down(&by, &what, AuditDecision::Permitted, "asked for")
            .await;
        {
            let mut keys = self.keys.borrow_mut();
            keys.password = password;
            keys.close_all(self.now().mono);
        }
        self.keep().await;
        log::warn!("dashboard: {what}, by {by}");
        Reply::json(&PasswordReport { has_password })
    }

    /// Keeps what opens. A disk that fails does not lock anybody out: it says so itself, and the
    /// next note writes this one too.
    async fn keep(&self) {
        let note = wire::keys::write(&self.keys.borrow(), self.now());
        let kept = async { Some(self.audit_writer.store().keep_note(NOTE, Some(note)).await) };
        match kept.or(late()).await {
            Some(Ok(())) => {}
            Some(Err(failure)) => log::warn!("dashboard: sessions are not saved: {failure}"),
            None => log::warn!("dashboard: sessions are not saved yet: the disk is slow"),
        }
    }

    /// A row of the audit, before the effect.
    async fn write_down(&self, by: &str, what: &str, verdict: AuditDecision, why: &str) {
        let entry = AuditEntry::new(by, what, verdict, why);
        let written = async {
            let now = self.now().wall;
            let ticket = self.audit_writer.begin(entry, now).await.ok()?;
            let outcome = match verdict {
                AuditDecision::Permitted => "done",
                AuditDecision::Refused => "refused",
            };
            let ended = self.audit_writer.end(ticket, outcome, Effect::default());
            ended.await.ok()
        };
        if written.or(late()).await.is_none() {
            log::warn!("dashboard: not in the audit log: {what}, by {by}");
        }
    }

    fn now(&self) -> Now {
        self.shared_state.now()
    }
}

async fn late<T>() -> Option<T> {
    clock::until(clock::now().mono.after(DISK_WITHIN)).await;
    None
}

fn hash(secret: &str) -> Hash {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    Hash(bytes)
}

fn rounds(rounds: u32) -> NonZeroU32 {
    NonZeroU32::new(rounds).unwrap_or(NonZeroU32::MIN)
}

fn is_right(known: &Password, password: &str) -> bool {
    pbkdf2::verify(
        pbkdf2::PBKDF2_HMAC_SHA256,
        rounds(known.rounds),
        &known.salt,
        password.as_bytes(),
        &known.hash,
    )
    .is_ok()
}

async fn hashed(password: String, role: Role) -> Result<Password> {
    let salt = random::bytes::<16>()?;
    let hash = executor::unblock(move || {
        let mut hash = [0; 32];
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA256,
            rounds(ROUNDS),
            &salt,
            password.as_bytes(),
            &mut hash,
        );
        hash
    });
    Ok(Password {
        salt,
        hash: hash.await,
        rounds: ROUNDS,
        role,
    })
}

/// Key under which failed attempts are counted together: an address, or the IPv6 network of one
/// household.
fn source(caller: &Caller) -> String {
    match caller.from {
        From::Socket(peer) => format!("uid {}", peer.uid),
        From::Port { address, .. } if address.is_loopback() => keys::LOOPBACK.to_owned(),
        From::Port { address, .. } => match address {
            std::net::IpAddr::V4(address) => address.to_string(),
            std::net::IpAddr::V6(address) => hex(address.octets().get(..8).unwrap_or_default()),
        },
    }
}

fn set_cookie(request: &ApiRequest, value: &str) -> String {
    let (name, secure) = if request.caller.from.is_encrypted() {
        (COOKIE_TLS, "; Secure")
    } else {
        (COOKIE, "")
    };
    let life = if value.is_empty() {
        0
    } else {
        keys::SESSION_LIFE.as_secs()
    };
    format!("{name}={value}; Path=/; Max-Age={life}; HttpOnly; SameSite=Strict{secure}")
}

fn wait_for(wait: Duration) -> Reply {
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    Reply::refusal(
        StatusCode::TOO_MANY_REQUESTS,
        format!("too many failed attempts; try again in {seconds} s"),
        Some("wait, or log in with a token: sudo pipeops-agent dashboard open"),
    )
    .with(header::RETRY_AFTER, &seconds.to_string())
}

fn role_of(word: Option<&str>) -> Option<Role> {
    word.map_or(Some(Role::Operator), Role::of_login)
}

fn no_such_role() -> Reply {
    Reply::bad_request("there is no such role", Some("viewer or operator"))
}

fn parsed<T: DeserializeOwned>(request: &ApiRequest, fix: &str) -> std::result::Result<T, Reply> {
    // What serde says may repeat what was sent, which is a secret here.
    super::object(&request.body)
        .map_err(|_error| Reply::bad_request("the body is not valid for this request", Some(fix)))
}
