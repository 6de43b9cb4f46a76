//! Credential of the control plane: a random handle that only this machine understands, or, if the
//! owner wants it (`access.share_token`), a token of the narrow account that expires within the
//! hour.
//!
//! Only a registration can carry it. A handle is written to disk once the control plane has
//! accepted it; if there is none, the agent registers first. A token is renewed and registered
//! before the last one expires.

pub mod supply;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    time::Duration,
};

use smol::channel::{Receiver, Sender, bounded};

use crate::{
    core::{access::permits_sharing, policy::Level, secret::Secret, time::Mono},
    host::{clock, random},
    store::Notes,
};

/// The note that holds the handle.
const NOTE: &str = "access.handle";
/// Those that are known as ours: the last one may still be in use when the next is registered.
const KNOWN_MAX: usize = 2;

/// Kind of the credential.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CredentialKind {
    /// A random word.
    Handle,
    /// A token that the API server believes.
    Token,
}

/// The thing, and which of them are ours.
#[derive(Debug)]
pub struct Credential {
    kind: CredentialKind,
    known: RefCell<VecDeque<IssuedToken>>,
    /// Credential of the last registration.
    offered: RefCell<Option<Secret>>,
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

impl Credential {
    /// The one of the last start, or a new one.
    pub fn new(kind: CredentialKind, notes: &Notes) -> Self {
        if kind == CredentialKind::Token {
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
        let credential = Self::empty(CredentialKind::Handle);
        credential.add_handle(handle);
        credential.is_on_disk.set(true);
        credential
    }

    fn empty(kind: CredentialKind) -> Self {
        Self {
            kind,
            known: RefCell::default(),
            offered: RefCell::default(),
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
        self.offered.replace(offered.clone());
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
}
