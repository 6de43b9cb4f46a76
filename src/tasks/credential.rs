//! What the control plane is given in place of a Kubernetes credential: a random handle that means something on this box only, or,
//! where the owner wants it (`access.share_token`), a token of the narrow account that ends within the hour.
//!
//! Only a registration can carry it. So a handle is written to disk when the control plane has taken it, and what is not there leads
//! to a registration before anything else; a token is made anew and registered before the last one ends.

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

use super::{board::Board, delegate::Delegate, uplink::Command};
use crate::{
    core::{health::Severity, secret::Secret, time::Mono},
    host::{clock, random},
    store::{self, Notes},
};

/// The note that holds the handle.
const NOTE: &str = "access.handle";
/// Those that are known as ours: the last one may still be in use when the next is registered.
const KNOWN_MAX: usize = 2;
/// Between two requests for a token that could not be had.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// How long the first registration waits for a token.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked whether nothing runs, when a registration may end what runs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const SHARED: &str = "access.token-shared";

/// What kind of thing the control plane is given.
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
    known: RefCell<VecDeque<Given>>,
    /// What the last registration said.
    told: RefCell<Option<Secret>>,
    is_on_disk: Cell<bool>,
    taken: (Sender<()>, Receiver<()>),
}

#[derive(Clone, Debug)]
struct Given {
    secret: Secret,
    /// When it ends; `None`: never.
    ends: Option<Mono>,
}

/// A token as the API server gave it.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub secret: Secret,
    /// How long it is good for.
    pub life: Duration,
}

/// What is needed to keep the control plane supplied.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Who gets tokens.
    pub delegate: &'a Delegate,
    /// Where handles are kept.
    pub store: store::Handle,
    /// Where it is said that a token is shared.
    pub board: &'a Board,
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
            Ok(handle) => credential.add(Secret::new(handle), None),
            Err(error) => log::error!("the control plane gets no handle: {error}"),
        }
        credential
    }

    /// A handle that the control plane has already.
    pub fn of_handle(handle: Secret) -> Self {
        let credential = Self::empty(Kind::Handle);
        credential.add(handle, None);
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
        }
    }

    /// Whether the control plane must hear a registration, because what it holds is not ours any more.
    pub fn is_news(&self) -> bool {
        !self.is_on_disk.get()
    }

    /// What a registration says; `None` where there is nothing yet.
    pub fn offer(&self) -> Option<Secret> {
        let now = clock::now().mono;
        let newest = self.known.borrow().back().cloned();
        let offered = newest.filter(|given| given.ends.is_none_or(|ends| now < ends));
        let offered = offered.map(|given| given.secret);
        self.told.replace(offered.clone());
        offered
    }

    /// The control plane has taken what was offered last.
    pub fn taken(&self) {
        // Full: it is told already.
        self.taken.0.try_send(()).ok();
    }

    /// Whether the control plane has this from us.
    pub fn is_ours(&self, bearer: &str) -> bool {
        let now = clock::now().mono;
        self.known.borrow().iter().any(|given| {
            given.secret.reveal() == bearer && given.ends.is_none_or(|ends| now < ends)
        })
    }

    fn add(&self, secret: Secret, ends: Option<Mono>) {
        let mut known = self.known.borrow_mut();
        known.push_back(Given { secret, ends });
        while known.len() > KNOWN_MAX {
            known.pop_front();
        }
    }

    /// Gets the first token, but does not wait for ever: a control plane without a token is better than none.
    pub async fn prepare(&self, delegate: &Delegate) {
        if self.kind == Kind::Handle {
            return;
        }
        let asked = async {
            match delegate.shared_token().await {
                Ok(token) => self.add_token(&token),
                Err(error) => log::warn!("registering without a token: {error}"),
            }
        };
        let late = async {
            Timer::after(FIRST_WITHIN).await;
            log::warn!("registering without a token: the cluster does not answer");
        };
        asked.or(late).await;
    }

    fn add_token(&self, token: &Token) {
        let ends = clock::now().mono.after(token.life);
        self.add(token.secret.clone(), Some(ends));
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
            Err(failure) => log::warn!("the handle of the control plane is not on disk: {failure}"),
        }
    }

    async fn share(&self, parts: &Parts<'_>, is_idle: &impl Fn() -> bool) {
        // A handle of former days is no longer what the control plane holds.
        self.write_note(&parts.store, None).await;
        let mut is_first = !self.left().is_zero();
        loop {
            let life = if is_first {
                self.left()
            } else {
                self.next_token(parts).await
            };
            let now = clock::now().mono;
            let (due, overdue) = (now.after(life * 3 / 4), now.after(life * 5 / 6));
            if !is_first && parts.commands.send(Command::Register).await.is_err() {
                return;
            }
            is_first = false;
            let told = async {
                while self.taken.1.recv().await.is_ok() {
                    Self::say(parts.board);
                }
                future::pending().await
            };
            clock::until(due).or(told).await;
            // On a gateway a registration ends what runs: it waits for a quiet moment, while there is time.
            while !is_idle() && clock::now().mono < overdue {
                Timer::after(LOOK_EVERY).await;
            }
        }
    }

    fn left(&self) -> Duration {
        let newest = self.known.borrow().back().and_then(|given| given.ends);
        newest.map_or(Duration::ZERO, |ends| ends.since(clock::now().mono))
    }

    async fn next_token(&self, parts: &Parts<'_>) -> Duration {
        loop {
            match parts.delegate.shared_token().await {
                Ok(token) => {
                    self.add_token(&token);
                    return token.life;
                }
                Err(error) => log::warn!("no token to share: {error}"),
            }
            Timer::after(ASK_AGAIN).await;
        }
    }

    fn say(board: &Board) {
        let sentence = "the control plane holds a token of pipeops-cp that the API server believes, because access.share_token is true; each ends within the hour";
        let fix = "where the control plane can do without: access.share_token = false".to_owned();
        board.report(SHARED, Severity::Note, sentence, Some(fix));
    }
}
