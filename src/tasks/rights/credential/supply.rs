//! Supply of the control plane with its credential: handles that are kept, tokens that are renewed.

use std::time::Duration;

use smol::{
    Timer,
    channel::Sender,
    future::{self, FutureExt as _},
};

use super::{
    super::{delegate::Delegate, revocation::Revocation},
    Credential, CredentialKind, IssuedToken, NOTE,
};
use crate::{
    core::{access::permits_sharing, health::Severity, link::LinkCommand, secret::Secret},
    host::clock,
    store,
    tasks::state::SharedState,
};

/// Between two requests for a token that could not be had.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// Time that the first registration waits for a token.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// Interval between checks for running calls, when a registration may end them.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const SHARED: &str = "access.token-shared";

/// Dependencies of [`Credential::supply`].
#[derive(Debug)]
pub struct SupplyDependencies<'a> {
    /// Issuer of tokens.
    pub delegate: &'a Delegate,
    /// Records tokens before they are made.
    pub revocation: &'a Revocation,
    /// Store of handles.
    pub store: store::Handle,
    /// State for the condition that a token is shared.
    pub shared_state: &'a SharedState,
    /// The way to the link.
    pub commands: Sender<LinkCommand>,
}

impl Credential {
    /// Gets the first token, but does not wait for ever: a control plane without a token is better
    /// than none.
    pub async fn prepare(&self, delegate: &Delegate, revocation: &Revocation) {
        if self.kind == CredentialKind::Handle || !permits_sharing(self.level.get()) {
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

    /// Gets a token that the level permits. It is recorded before it is made, so that it can be
    /// made worthless after any crash.
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

    /// Keeps the control plane supplied, for ever. `is_idle` says whether a registration would end
    /// nothing.
    pub async fn supply(&self, dependencies: SupplyDependencies<'_>, is_idle: impl Fn() -> bool) {
        match self.kind {
            CredentialKind::Handle => self.keep_handle(&dependencies).await,
            CredentialKind::Token => self.share(&dependencies, &is_idle).await,
        }
    }

    async fn keep_handle(&self, dependencies: &SupplyDependencies<'_>) {
        while self.taken.1.recv().await.is_ok() {
            let offered = self.offered.borrow().clone();
            let Some(handle) = offered.filter(|_| !self.is_on_disk.get()) else {
                continue;
            };
            self.write_note(&dependencies.store, Some(&handle)).await;
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
    async fn share(&self, dependencies: &SupplyDependencies<'_>, is_idle: &impl Fn() -> bool) {
        // A handle of former days is no longer what the control plane holds.
        self.write_note(&dependencies.store, None).await;
        loop {
            let changed = async {
                if self.levels.1.recv().await.is_err() {
                    future::pending().await
                }
            };
            let reporting = async {
                while self.taken.1.recv().await.is_ok() {
                    self.report_shared(dependencies.shared_state);
                }
                future::pending().await
            };
            let shared = self.share_one(dependencies, is_idle);
            Box::pin(shared).or(changed).or(reporting).await;
        }
    }

    /// Sees to it that the control plane holds the one token that it may hold, and waits until that
    /// needs another one. A change of the level begins again.
    async fn share_one(&self, dependencies: &SupplyDependencies<'_>, is_idle: &impl Fn() -> bool) {
        let Some(given) = self.current() else {
            dependencies.shared_state.clear(SHARED);
            // The control plane hears at once that it has no token any more.
            self.register(dependencies).await;
            if !permits_sharing(self.level.get()) {
                future::pending::<()>().await;
            }
            return self.next_token(dependencies).await;
        };
        self.register(dependencies).await;
        let now = clock::now().mono;
        let left = given.ends.map_or(Duration::ZERO, |ends| ends.since(now));
        let life = self.life.get().max(left);
        let used = life.saturating_sub(left);
        let due = now.after((life * 3 / 4).saturating_sub(used));
        let overdue = now.after((life * 5 / 6).saturating_sub(used));
        clock::until(due).await;
        // On a gateway a registration ends what runs: it waits for a quiet moment, while there is
        // time.
        while !is_idle() && clock::now().mono < overdue {
            Timer::after(POLL_INTERVAL).await;
        }
        self.next_token(dependencies).await;
    }

    /// Registers where the last registration said something else than the next one will. The first
    /// registration needs no reason.
    async fn register(&self, dependencies: &SupplyDependencies<'_>) {
        let next = self.current().map(|given| given.secret);
        if !self.has_offered.get() || *self.offered.borrow() == next {
            return;
        }
        if dependencies
            .commands
            .send(LinkCommand::Register)
            .await
            .is_err()
        {
            future::pending().await
        }
        // Until that registration is made, another one has no other reason.
        self.offered.replace(next);
    }

    /// Gets the next token, however long that takes.
    async fn next_token(&self, dependencies: &SupplyDependencies<'_>) {
        while let Err(error) = self
            .get_token(dependencies.delegate, dependencies.revocation)
            .await
        {
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
