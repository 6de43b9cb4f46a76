//! Credential of the control plane: a random handle that only this machine understands, or, if the
//! owner wants it (`access.share_token`), a token of the narrow account that expires within the
//! hour.
//!
//! Only a registration can carry it. A handle is written to disk once the control plane has
//! accepted it; if there is none, the agent registers first. A token is renewed and registered
//! before the last one expires.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    time::Duration,
};

use smol::{
    Timer,
    channel::{Receiver, Sender, bounded},
    future::{self, FutureExt as _},
};

use super::{delegate::Delegate, revocation::Revocation};
use crate::{
    core::{
        access::permits_sharing, health::Severity, link::Command, policy::Level, secret::Secret,
        time::Mono,
    },
    host::{clock, random},
    store::{self, Notes},
    tasks::state::SharedState,
};

/// The note that holds the handle.
const NOTE: &str = "access.handle";
/// Those that are known as ours: the last one may still be in use when the next is registered.
const KNOWN_MAX: usize = 2;
/// Between two requests for a token that could not be had.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// Time that the first registration waits for a token.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// Interval between checks for running calls, when a registration may end them.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const SHARED: &str = "access.token-shared";

/// Kind of the credential.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A random word.
    Handle,
    /// A token that the API server believes.
    Token,
}

/// The thing, and which of them are ours.
#[derive(Debug)]
pub struct Credential {
    kind: Kind,
    known: RefCell<VecDeque<IssuedToken>>,
    /// Credential of the last registration.
    told: RefCell<Option<Secret>>,
    is_on_disk: Cell<bool>,
    taken: (Sender<()>, Receiver<()>),
    /// The level that holds: nothing is offered that permits more.
    level: Cell<Level>,
    levels: (Sender<()>, Receiver<()>),
    /// True if a registration has said anything yet.
    has_offered: Cell<bool>,
    /// Lifetime of the newest token when it was issued.
    life: Cell<Duration>,
}

#[derive(Clone, Debug)]
struct IssuedToken {
    secret: Secret,
    /// Time when it ends; `None`: never.
    ends: Option<Mono>,
    /// The level that it was made under; `None`: it permits nothing by itself.
    made_under: Option<Level>,
}

impl IssuedToken {
    fn is_good(&self, now: Mono) -> bool {
        self.ends.is_none_or(|ends| now < ends)
    }

    /// Returns whether it permits no more than this level.
    fn fits(&self, level: Level) -> bool {
        let made_under = self.made_under;
        made_under.is_none_or(|made_under| permits_sharing(level) && level <= made_under)
    }
}

/// A token as the API server gave it.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub secret: Secret,
    /// Lifetime.
    pub life: Duration,
}

/// Components that keep the control plane supplied.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Issuer of tokens.
    pub delegate: &'a Delegate,
    /// Records tokens before they are made.
    pub revocation: &'a Revocation,
    /// Store of handles.
    pub store: store::Handle,
    /// State for the condition that a token is shared.
    pub shared_state: &'a SharedState,
    /// The way to the link.
    pub commands: Sender<Command>,
}

impl Credential {
    /// The one of the last start, or a new one.
    pub fn new(kind: Kind, notes: &Notes) -> Self {
        if kind == Kind::Token {
            return Self::empty(kind);
        }
        if let Some(kept) = notes.get(NOTE) {
            return Self::of_handle(Secret::new(kept));
        }
        let credential = Self::empty(kind);
        match random::hex::<32>() {
            Ok(handle) => credential.add_handle(Secret::new(handle)),
            Err(error) => log::error!("the control plane gets no handle: {error}"),
        }
        credential
    }

    /// A handle that the control plane has already.
    pub fn of_handle(handle: Secret) -> Self {
        let credential = Self::empty(Kind::Handle);
        credential.add_handle(handle);
        credential.is_on_disk.set(true);
        credential
    }

    fn empty(kind: Kind) -> Self {
        Self {
            kind,
            known: RefCell::default(),
            told: RefCell::default(),
            is_on_disk: Cell::new(false),
            taken: bounded(1),
            level: Cell::new(Level::Off),
            levels: bounded(1),
            has_offered: Cell::new(false),
            life: Cell::new(Duration::ZERO),
        }
    }

    /// Holds a level from now on.
    pub fn set_level(&self, level: Level) {
        self.level.set(level);
        // Full: it is told already.
        self.levels.0.try_send(()).ok();
    }

    /// The level that is held.
    pub fn level(&self) -> Level {
        self.level.get()
    }

    /// Returns whether the control plane must hear a registration, because what it holds is not
    /// ours any more.
    pub fn is_due(&self) -> bool {
        !self.is_on_disk.get()
    }

    /// Credential for a registration; `None` if there is none yet, or the level allows none.
    pub fn offer(&self) -> Option<Secret> {
        let offered = self.current().map(|given| given.secret);
        self.told.replace(offered.clone());
        self.has_offered.set(true);
        offered
    }

    /// The newest that is good and that the level permits.
    fn current(&self) -> Option<IssuedToken> {
        let now = clock::now().mono;
        let newest = self.known.borrow().back().cloned();
        newest.filter(|given| given.is_good(now) && given.fits(self.level.get()))
    }

    /// The control plane has taken what was offered last.
    pub fn taken(&self) {
        // Full: it is told already.
        self.taken.0.try_send(()).ok();
    }

    /// Returns whether the control plane has this from us.
    pub fn is_ours(&self, bearer: &str) -> bool {
        let now = clock::now().mono;
        let known = self.known.borrow();
        known
            .iter()
            .any(|given| given.secret.reveal() == bearer && given.is_good(now))
    }

    fn add(&self, given: IssuedToken) {
        let mut known = self.known.borrow_mut();
        known.push_back(given);
        while known.len() > KNOWN_MAX {
            known.pop_front();
        }
    }

    fn add_handle(&self, secret: Secret) {
        self.add(IssuedToken {
            secret,
            ends: None,
            made_under: None,
        });
    }

    /// Gets the first token, but does not wait for ever: a control plane without a token is better than none.
    pub async fn prepare(&self, delegate: &Delegate, revocation: &Revocation) {
        if self.kind == Kind::Handle || !permits_sharing(self.level.get()) {
            return;
        }
        let asked = async {
            if let Err(error) = self.get_token(delegate, revocation).await {
                log::warn!("registering without a token: {error}");
            }
        };
        let late = async {
            Timer::after(FIRST_WITHIN).await;
            log::warn!("registering without a token: the cluster does not answer");
        };
        asked.or(late).await;
    }

    /// Gets a token that the level permits. It is recorded before it is made, so that it can be made worthless after any crash.
    async fn get_token(&self, delegate: &Delegate, revocation: &Revocation) -> Result<(), String> {
        let made_under = revocation.prepare_token().await?;
        let token = delegate.shared_token().await?;
        let given = IssuedToken {
            secret: token.secret,
            ends: Some(clock::now().mono.after(token.life)),
            made_under: Some(made_under),
        };
        if !given.fits(self.level.get()) || !revocation.covers(made_under) {
            return Err("access has changed in the meantime".to_owned());
        }
        self.life.set(token.life);
        self.add(given);
        Ok(())
    }

    /// Keeps the control plane supplied, for ever. `is_idle` says whether a registration would end nothing.
    pub async fn supply(&self, parts: Parts<'_>, is_idle: impl Fn() -> bool) {
        match self.kind {
            Kind::Handle => self.keep_handle(&parts).await,
            Kind::Token => self.share(&parts, &is_idle).await,
        }
    }

    async fn keep_handle(&self, parts: &Parts<'_>) {
        while self.taken.1.recv().await.is_ok() {
            let told = self.told.borrow().clone();
            let Some(handle) = told.filter(|_| !self.is_on_disk.get()) else {
                continue;
            };
            self.write_note(&parts.store, Some(&handle)).await;
        }
    }

    async fn write_note(&self, store: &store::Handle, handle: Option<&Secret>) {
        let word = handle.map(|handle| handle.reveal().to_owned());
        match store.keep_note(NOTE, word).await {
            Ok(()) => self.is_on_disk.set(handle.is_some()),
            // Not lost: the next start makes and registers another one.
            Err(failure) => log::warn!("the handle of the control plane is not saved: {failure}"),
        }
    }

    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    async fn share(&self, parts: &Parts<'_>, is_idle: &impl Fn() -> bool) {
        // A handle of former days is no longer what the control plane holds.
        self.write_note(&parts.store, None).await;
        loop {
            let changed = async {
                if self.levels.1.recv().await.is_err() {
                    future::pending().await
                }
            };
            let told = async {
                while self.taken.1.recv().await.is_ok() {
                    self.report_shared(parts.shared_state);
                }
                future::pending().await
            };
            let shared = self.share_one(parts, is_idle);
            Box::pin(shared).or(changed).or(told).await;
        }
    }

    /// Sees to it that the control plane holds the one token that it may hold, and waits until that needs another one. A change of the
    /// level begins again.
    async fn share_one(&self, parts: &Parts<'_>, is_idle: &impl Fn() -> bool) {
        let Some(given) = self.current() else {
            parts.shared_state.clear(SHARED);
            // The control plane hears at once that it has no token any more.
            self.register(parts).await;
            if !permits_sharing(self.level.get()) {
                future::pending::<()>().await;
            }
            return self.next_token(parts).await;
        };
        self.register(parts).await;
        let now = clock::now().mono;
        let left = given.ends.map_or(Duration::ZERO, |ends| ends.since(now));
        let life = self.life.get().max(left);
        let used = life.saturating_sub(left);
        let due = now.after((life * 3 / 4).saturating_sub(used));
        let overdue = now.after((life * 5 / 6).saturating_sub(used));
        clock::until(due).await;
        // On a gateway a registration ends what runs: it waits for a quiet moment, while there is time.
        while !is_idle() && clock::now().mono < overdue {
            Timer::after(LOOK_EVERY).await;
        }
        self.next_token(parts).await;
    }

    /// Registers where the last registration said something else than the next one will. The first registration needs no reason.
    async fn register(&self, parts: &Parts<'_>) {
        let next = self.current().map(|given| given.secret);
        if !self.has_offered.get() || *self.told.borrow() == next {
            return;
        }
        if parts.commands.send(Command::Register).await.is_err() {
            future::pending().await
        }
        // Until that registration is made, another one has no other reason.
        self.told.replace(next);
    }

    /// Gets the next token, however long that takes.
    async fn next_token(&self, parts: &Parts<'_>) {
        while let Err(error) = self.get_token(parts.delegate, parts.revocation).await {
            log::warn!("cannot get a token to share: {error}");
            Timer::after(ASK_AGAIN).await;
        }
    }

    fn report_shared(&self, shared_state: &SharedState) {
        if self.current().is_none() {
            return;
        }
        let sentence = "the control plane holds a Kubernetes token of pipeops-cp, because access.share_token is true; each token expires within an hour";
        let fix = "set access.share_token = false if the control plane does not need it".to_owned();
        shared_state.report(SHARED, Severity::Note, sentence, Some(fix));
    }
}
