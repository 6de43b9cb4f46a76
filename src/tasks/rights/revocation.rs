//! Invalidates shared tokens that permit more than the current access level.
//!
//! A token ends with its account: bindings are removed first, then the account is deleted and
//! recreated. A note on disk, written before the first token, makes this continue after a restart
//! until it is done.

use std::{cell::RefCell, rc::Rc, time::Duration};

use smol::{Timer, future::FutureExt as _, lock::Mutex};

use super::delegate::Delegate;
use crate::{
    core::{
        access::{Issued, permits_sharing},
        health::Severity,
        policy::Level,
    },
    host::clock,
    store::{self, Notes},
    tasks::state::SharedState,
};

/// The note about tokens that may still be good.
const NOTE: &str = "access.shared";
/// Wait before another attempt.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// Time for the bindings; the account does not wait for them longer.
const SWEEP_WITHIN: Duration = Duration::from_secs(3);

const STILL_GOOD: &str = "access.tokens-still-good";
const WITHHELD: &str = "access.token-withheld";

/// Tokens that were given away.
#[derive(Debug)]
pub struct Revocation {
    delegate: Rc<Delegate>,
    store: store::Handle,
    shared_state: Rc<SharedState>,
    /// True if the settings share tokens.
    shares: bool,
    issued: RefCell<Option<Issued>>,
    /// One at a time: a token is not recorded while its account is made again.
    changing: Mutex<()>,
}

impl Revocation {
    /// Takes up what an earlier start left.
    pub fn new(
        delegate: Rc<Delegate>,
        (store, notes): (store::Handle, &Notes),
        shared_state: Rc<SharedState>,
        shares: bool,
    ) -> Self {
        let issued = match notes.get(NOTE) {
            Some(note) => Some(Issued::from_note(note)),
            // What was written there is not known.
            None => (notes.is_unreadable && shares).then(|| Issued::from_note("")),
        };
        Self {
            delegate,
            store,
            shared_state,
            shares,
            issued: RefCell::new(issued),
            changing: Mutex::new(()),
        }
    }

    /// Records that a token is about to be made. Returns the level that it is made under.
    ///
    /// # Errors
    /// Why none may be made now.
    pub async fn prepare_token(&self) -> Result<Level, String> {
        let _one_at_a_time = self.changing.lock().await;
        let level = self.delegate.level();
        if !self.shares || !permits_sharing(level) {
            return Err(format!("access is {}", level.as_str()));
        }
        let before = self.issued.borrow().clone();
        if before.as_ref().is_some_and(|it| it.must_go(level, true)) {
            return Err("tokens that were shared earlier still have to be revoked".to_owned());
        }
        if let Err(why) = self.check_rights(level).await {
            self.shared_state.report(
                WITHHELD,
                Severity::Warning,
                format!("no token is shared with the control plane: {why}"),
                Some(self.delegate.manifest().command()),
            );
            return Err(why);
        }
        self.shared_state.clear(WITHHELD);
        let uid = self.delegate.account_uid().await?;
        let uid = uid.ok_or("the cluster has no account pipeops-cp")?;
        let issued = Issued::and(before.as_ref(), level, &uid);
        if before.as_ref() != Some(&issued) {
            // In memory first: a disk that fails later must not lose it.
            self.issued.replace(Some(issued.clone()));
            let kept = self.store.keep_note(NOTE, Some(issued.note())).await;
            kept.map_err(|failure| format!("it cannot be written down before: {failure}"))?;
        }
        Ok(level)
    }

    /// Returns whether a token that was made under this level is recorded: if not, nothing would
    /// make it worthless later.
    pub fn covers(&self, made_under: Level) -> bool {
        let issued = self.issued.borrow();
        issued.as_ref().is_some_and(|it| it.level <= made_under)
    }

    /// Checks that tokens can be revoked now and at the next change of the level.
    async fn check_rights(&self, level: Level) -> Result<(), String> {
        if level != Level::Full {
            let removed = self.delegate.remove_full_binding().await;
            removed.map_err(|why| format!("pipeops-cp may still have full access: {why}"))?;
        }
        if self.delegate.may_recreate_account().await? {
            return Ok(());
        }
        Err(
            "the agent could not revoke it again, because it may not recreate the ServiceAccount pipeops-cp"
                .to_owned(),
        )
    }

    /// Makes tokens worthless whenever that is due. Runs as long as it is polled.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn run(&self) {
        loop {
            let is_done = self.settle().await;
            let again = async {
                if is_done {
                    std::future::pending::<()>().await;
                }
                Timer::after(TRY_AGAIN).await;
            };
            again.or(self.delegate.level_changed()).await;
        }
    }

    /// Makes tokens worthless where they permit too much. Returns whether nothing remains to be
    /// done.
    async fn settle(&self) -> bool {
        let _one_at_a_time = self.changing.lock().await;
        let issued = self.issued.borrow().clone();
        let level = self.delegate.level();
        let Some(issued) = issued.filter(|issued| issued.must_go(level, self.shares)) else {
            self.shared_state.clear(STILL_GOOD);
            return true;
        };
        let late = async {
            clock::until(clock::now().mono.after(SWEEP_WITHIN)).await;
            Err("it takes long".to_owned())
        };
        if let Err(why) = self.delegate.sweep().or(late).await {
            log::warn!("access: not all bindings of pipeops-cp are removed yet: {why}");
        }
        let outcome = self.revoke(&issued).await;
        if let Err(why) = &outcome {
            log::warn!("access: shared tokens are still valid: {why}");
            self.shared_state.report(
                STILL_GOOD,
                Severity::Critical,
                format!(
                    "tokens of pipeops-cp that the control plane received are still valid although access is {}: {why}",
                    level.as_str()
                ),
                Some(self.delegate.manifest().command()),
            );
            return false;
        }
        self.shared_state.clear(STILL_GOOD);
        true
    }

    async fn revoke(&self, issued: &Issued) -> Result<(), String> {
        let uid = self.delegate.account_uid().await?;
        match uid {
            Some(uid) if !issued.is_of(&uid) => {}
            uid => self.delegate.recreate_account(uid.as_deref()).await?,
        }
        log::warn!("access: tokens that the control plane received are revoked");
        self.issued.replace(None);
        // Whoever waits for this to make another token goes on.
        self.delegate.credential().set_level(self.delegate.level());
        // Tried again: doing it twice costs nothing.
        let kept = self.store.keep_note(NOTE, None).await;
        if let Err(failure) = kept {
            log::warn!("access: the revocation of shared tokens is not saved: {failure}");
        }
        Ok(())
    }
}
