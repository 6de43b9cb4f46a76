//! Access level: stored on disk, enforced by the proxy, and shown.
//!
//! `core::access` decides whether a change is granted. Nothing that comes from the link leads here.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use smol::{future::FutureExt as _, lock::Mutex};

use super::Proxy;
use crate::{
    core::{
        access::{Authority, Change, Denied, EffectiveLevel, Inquiry, Override, Tightened},
        audit::{AuditDecision, AuditEntry, Effect},
        health::Severity,
        policy::{Level, Rules},
        time::{DAY_MS, Wall, in_words},
    },
    dashboard::{Caller, Reply, StatusCode},
    host::clock,
    store::{Failure, Notes},
    tasks::{
        audit::{AuditWriter, Begun},
        state::SharedState,
    },
    wire::api::{self, AccessChange, AccessReport, ByHand, Decision, LastDay, Running},
};

/// The note that a level is kept as.
const NOTE: &str = "access.override";
/// Time for the disk per step of a change: somebody waits for it, and a stricter level does not
/// wait for a disk that hangs.
const DISK_WITHIN: Duration = Duration::from_millis(1500);
/// Time for counting the audit.
const COUNT_WITHIN: Duration = Duration::from_secs(3);

const UNKNOWN: &str = "access.unknown";
const NOT_KEPT: &str = "access.not-kept";

/// Level of the configuration.
#[derive(Clone, Debug)]
pub struct Configured {
    pub rules: Rules,
    /// Origin of `access.level`, for people.
    pub from: String,
    /// Instruction to change it there.
    pub edit: String,
}

/// Components of a change.
#[derive(Debug)]
pub struct AccessDependencies {
    /// Level of the configuration.
    pub configured: Configured,
    /// Holds the rules.
    pub proxy: Rc<Proxy>,
    /// Keeps what is set by hand, and who did that.
    pub audit_writer: AuditWriter,
    /// Shows what is wrong.
    pub shared_state: Rc<SharedState>,
}

/// Reasons why a level is not set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refused {
    /// This caller may not.
    Forbidden(api::ErrorBody),
    /// Nobody may, as things stand.
    Conflict(api::ErrorBody),
}

impl From<Refused> for Reply {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Forbidden(refusal) => Self::json(&refusal).with_code(StatusCode::FORBIDDEN),
            Refused::Conflict(refusal) => Self::json(&refusal).with_code(StatusCode::CONFLICT),
        }
    }
}

/// The owner's switch.
#[derive(Debug)]
pub struct Access {
    dependencies: AccessDependencies,
    standing: RefCell<EffectiveLevel>,
    /// True if what holds is not on disk yet.
    is_unkept: Cell<bool>,
    /// One change after the other.
    changing: Mutex<()>,
    /// One look into the audit at a time: it is read from the thread that calls wait for.
    counting: Mutex<()>,
}

impl Access {
    /// Takes up what was set by hand before the restart. The proxy holds it when this returns.
    pub fn new(dependencies: AccessDependencies, notes: &Notes) -> Self {
        let by_hand = if notes.is_unreadable {
            Override::Unknown
        } else {
            Override::from_note(notes.get(NOTE))
        };
        let standing = EffectiveLevel {
            configured: dependencies.configured.rules.level,
            by_hand,
        };
        let access = Self {
            // The next note that anybody keeps would make a readable file without this one.
            is_unkept: Cell::new(notes.is_unreadable),
            dependencies,
            standing: RefCell::new(standing),
            changing: Mutex::new(()),
            counting: Mutex::new(()),
        };
        access.apply();
        let standing = access.standing.borrow().clone();
        if standing.is_tightened() {
            log::warn!(
                "access is {}, set on this machine; the configuration says {}",
                standing.level().as_str(),
                standing.configured.as_str()
            );
        }
        access
    }

    /// Makes the proxy hold what stands. Returns how many running calls were cut.
    fn apply(&self) -> usize {
        let AccessDependencies {
            configured,
            proxy,
            shared_state,
            ..
        } = &self.dependencies;
        let standing = self.standing.borrow();
        let cut = proxy.set_rules(standing.rules(configured.rules));
        if standing.by_hand == Override::Unknown {
            let word = standing.configured.as_str();
            shared_state.report(
                UNKNOWN,
                Severity::Critical,
                "cannot read the access level that was set on this machine, so nothing passes until it is set again",
                Some(format!("sudo pipeops-agent access {word}, or something stricter")),
            );
        } else {
            shared_state.clear(UNKNOWN);
        }
        cut
    }

    /// Writes what is not on disk yet. Call it at the start and every half minute.
    pub async fn tend(&self) {
        if self.is_unkept.get() {
            let _one_at_a_time = self.changing.lock().await;
            self.keep().await.ok();
        }
    }

    /// The level that holds, in short.
    pub fn in_short(&self) -> api::Access {
        let standing = self.standing.borrow();
        let configured = standing.configured.as_str().to_owned();
        api::Access {
            level: standing.level().as_str().to_owned(),
            tightened_from: standing.is_tightened().then_some(configured),
        }
    }

    /// Everything about it.
    pub async fn report(&self) -> AccessReport {
        let (last_day, last_day_why) = match self.last_day().await {
            Ok(last_day) => (Some(last_day), None),
            Err(why) => (None, Some(why)),
        };
        let load = self.dependencies.proxy.load();
        let standing = self.standing.borrow();
        AccessReport {
            level: standing.level().as_str().to_owned(),
            configured: api::Configured {
                level: standing.configured.as_str().to_owned(),
                from: self.dependencies.configured.from.clone(),
            },
            by_hand: shape_of_override(&standing),
            last_day,
            last_day_why,
            running: Running {
                short: count(load.short_running),
                waiting: count(load.short_waiting),
                long: count(load.long_running),
            },
        }
    }

    async fn last_day(&self) -> Result<LastDay, String> {
        let now = self.dependencies.shared_state.now().wall;
        let since = Wall::from_millis(now.millis().saturating_sub(DAY_MS));
        let counted = async {
            let _one_at_a_time = self.counting.lock().await;
            self.dependencies.proxy.asked_since(since).await
        };
        match within(COUNT_WITHIN, counted).await {
            Some(Some(Ok(summary))) => Ok((&summary).into()),
            Some(Some(Err(failure))) => Err(failure.to_string()),
            Some(None) => Err("nothing is written down".to_owned()),
            None => Err(slow(COUNT_WITHIN)),
        }
    }

    /// Dry run of a request.
    pub async fn decision(&self, inquiry: &Inquiry) -> Decision {
        let explanation = self.dependencies.proxy.explain(inquiry).await;
        let account = self.dependencies.proxy.account();
        Decision {
            level: self.dependencies.proxy.rules().level.as_str().to_owned(),
            identity: account.filter(|_| explanation.is_delegated()),
            ..(&explanation).into()
        }
    }

    /// Sets a level for an operator: audit row first, then in force, then stored.
    pub async fn set(&self, level: Level, caller: &Caller) -> Result<AccessChange, Refused> {
        let _one_at_a_time = self.changing.lock().await;
        let by = caller.in_words();
        let request = Tightened {
            level,
            since: Some(self.dependencies.shared_state.now().wall),
            by: Some(by.clone()),
        };
        let before = self.standing.borrow().clone();
        let change = before
            .change(request, authority(caller))
            .map_err(|denied| {
                let refused = self.refused(denied, level);
                log::info!(
                    "access stays {}: {by} asked for {}",
                    before.level().as_str(),
                    level.as_str()
                );
                refused
            })?;
        match change {
            Change::Nothing => Ok(self.changed(&before, 0, &[])),
            Change::ByHand(by_hand) => Ok(self.put_in_force(&before, by_hand, &by).await),
        }
    }

    async fn put_in_force(
        &self,
        before: &EffectiveLevel,
        by_hand: Override,
        by: &str,
    ) -> AccessChange {
        let after = EffectiveLevel {
            by_hand,
            ..before.clone()
        };
        let what = format!(
            "access {} -> {}",
            before.level().as_str(),
            after.level().as_str()
        );
        let ticket = self.write_down(by, &what, before.configured).await;
        self.standing.replace(after);
        self.is_unkept.set(true);
        let cut = self.apply();
        log::warn!("{what}, by {by}; running calls that were cut: {cut}");
        let mut trouble = Vec::new();
        match ticket {
            Ok(ticket) => {
                let ended = self
                    .dependencies
                    .audit_writer
                    .end(ticket, "done", Effect::default());
                drop(within(DISK_WITHIN, ended).await);
            }
            Err(why) => trouble.push(format!("it is not in the audit log: {why}")),
        }
        if let Err(why) = self.keep().await {
            trouble.push(format!("it does not survive a restart yet: {why}"));
        }
        self.changed(before, cut, &trouble)
    }

    /// The row that is on disk before the effect, as far as there is a disk.
    async fn write_down(&self, by: &str, what: &str, configured: Level) -> Result<Begun, String> {
        let why = format!("set by hand; access.level = {}", configured.as_str());
        let entry = AuditEntry::new(by, what, AuditDecision::Permitted, &why);
        let now = self.dependencies.shared_state.now().wall;
        let begun = within(
            DISK_WITHIN,
            self.dependencies.audit_writer.begin(entry, now),
        )
        .await;
        in_time(begun)
    }

    /// Keeps what was set, or says why that cannot be done now; then it is tried again.
    async fn keep(&self) -> Result<(), String> {
        let note = self.standing.borrow().by_hand.note();
        let kept = within(
            DISK_WITHIN,
            self.dependencies.audit_writer.store().keep_note(NOTE, note),
        )
        .await;
        let kept = in_time(kept);
        let shared_state = &self.dependencies.shared_state;
        match &kept {
            Ok(()) => {
                self.is_unkept.set(false);
                shared_state.clear(NOT_KEPT);
            }
            Err(why) => shared_state.report(
                NOT_KEPT,
                Severity::Warning,
                format!(
                    "the access level set on this machine does not survive a restart yet: {why}"
                ),
                Some("repair the disk; the agent retries automatically".to_owned()),
            ),
        }
        kept
    }

    fn changed(&self, before: &EffectiveLevel, cut: usize, trouble: &[String]) -> AccessChange {
        AccessChange {
            level: self.standing.borrow().level().as_str().to_owned(),
            before: before.level().as_str().to_owned(),
            cut: count(cut),
            is_kept: !self.is_unkept.get(),
            trouble: (!trouble.is_empty()).then(|| trouble.join("; ")),
        }
    }

    fn refused(&self, denied: Denied, wanted: Level) -> Refused {
        let standing = self.standing.borrow();
        let Configured { from, edit, .. } = &self.dependencies.configured;
        let (held, wanted) = (standing.level().as_str(), wanted.as_str());
        match denied {
            Denied::OwnerOnly => Refused::Forbidden(api::ErrorBody {
                error: format!("access is {held}, and only root can make it less strict"),
                fix: Some(format!("sudo pipeops-agent access {wanted}")),
            }),
            Denied::BeyondConfiguration => Refused::Conflict(api::ErrorBody {
                error: format!(
                    "the configuration allows {} at most, not {wanted} ({from})",
                    standing.configured.as_str()
                ),
                fix: Some(format!(
                    "{edit}, then: sudo systemctl restart pipeops-agent (with OpenRC: sudo rc-service pipeops-agent restart)"
                )),
            }),
        }
    }
}

const fn authority(caller: &Caller) -> Authority {
    if caller.is_root() {
        Authority::Owner
    } else {
        Authority::Operator
    }
}

fn shape_of_override(standing: &EffectiveLevel) -> Option<ByHand> {
    let is_in_force = standing.is_tightened();
    match &standing.by_hand {
        Override::None => None,
        Override::Unknown => Some(ByHand {
            is_in_force,
            ..ByHand::default()
        }),
        Override::Known(Tightened { level, since, by }) => Some(ByHand {
            level: Some(level.as_str().to_owned()),
            is_in_force,
            since: since.map(api::stamp),
            by: by.clone(),
        }),
    }
}

fn in_time<T>(answered: Option<Result<T, Failure>>) -> Result<T, String> {
    match answered {
        Some(answer) => answer.map_err(|failure| failure.to_string()),
        None => Err(slow(DISK_WITHIN)),
    }
}

fn slow(limit: Duration) -> String {
    format!("the disk has not answered for {}", in_words(limit))
}

/// `None` where the time is over first; what was asked of the disk then happens later, or never.
async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Option<T> {
    let moment = clock::now().mono.after(time);
    let late = async {
        clock::until(moment).await;
        None
    };
    async { Some(work.await) }.or(late).await
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
