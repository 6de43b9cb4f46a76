//! Audit of proxied calls: writes, reads of Secrets and entries into containers row by row before
//! their effect, other reads and floods of refusals as sums.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
    time::Duration,
};

use smol::{
    channel::{Receiver, Sender, bounded},
    future::FutureExt as _,
};

use super::{admission::Withdrawal, deadline::until};
use crate::{
    core::{
        access::reason,
        audit::{
            AuditDecision, AuditEntry, CONTROL_PLANE, Effect, Minute, RecordForm, RequestKind,
            RequestOutcome, Summary, service_root,
        },
        policy::Rules,
        proxy::{Call, CallTarget, Class, Refusal},
        time::{Mono, Wall, in_words},
    },
    host::clock,
    store::Failure,
    tasks::audit::{AuditWriter, Begun},
};

/// Interval between writes of sums.
const SUMS_EVERY: Duration = Duration::from_secs(60);
/// Minimum time between two writes of sums, for calls that begin and may go on for a long time.
const SUMS_INTERVAL_MIN: Duration = Duration::from_secs(10);
/// Ends of rows that wait for the disk: as many as exchanges can end at once.
const ENDS_MAX: usize = 128;

/// Audit of the proxy.
#[derive(Debug)]
pub(super) struct Audit {
    queue: Option<Queue>,
    rules: Rc<Cell<Rules>>,
    minute: RefCell<Minute>,
}

#[derive(Debug)]
struct Queue {
    audit_writer: AuditWriter,
    ends: Sender<End>,
    ended: Receiver<End>,
    hurry: (Sender<()>, Receiver<()>),
}

#[derive(Debug)]
struct End {
    begun: Begun,
    outcome: RequestOutcome,
    effect: Effect,
}

/// One permitted call. Its end is written when it is dropped, however that comes.
#[derive(Debug)]
pub(super) struct Record {
    audit: Rc<Audit>,
    target: RefCell<Option<AuditTarget>>,
    started: Mono,
    outcome: RefCell<RequestOutcome>,
    /// HTTP status of the API server's answer.
    status: Cell<Option<u16>>,
    /// Filled when the permission is withdrawn: that is how the call ended, then.
    withdrawal: Rc<OnceCell<Withdrawal>>,
    pub(super) received_bytes: Cell<u64>,
    pub(super) sent_bytes: Cell<u64>,
}

/// Destination of the end of a call.
#[derive(Debug)]
enum AuditTarget {
    /// A row of its own.
    Row(Begun),
    /// The sum of the minute.
    Sum(AuditEntry),
    /// The sum of the minute, in which it was counted when it began.
    Counted(AuditEntry),
    /// The sum of the minute, by the root of the service.
    ServiceRequest(AuditEntry),
}

impl Audit {
    /// The audit, or none: then nothing is written down.
    pub(super) fn new(audit_writer: Option<AuditWriter>, rules: Rc<Cell<Rules>>) -> Rc<Self> {
        let queue = audit_writer.map(|audit_writer| {
            let (ends, ended) = bounded(ENDS_MAX);
            let hurry = bounded(1);
            Queue {
                audit_writer,
                ends,
                ended,
                hurry,
            }
        });
        Rc::new(Self {
            queue,
            rules,
            minute: RefCell::new(Minute::new(clock::now().mono)),
        })
    }

    /// Writes a permitted call down. What cannot be written down may not go on: the text says why.
    pub(super) async fn authorization(
        self: &Rc<Self>,
        call: &Call,
        withdrawal: Rc<OnceCell<Withdrawal>>,
    ) -> Result<Record, String> {
        let record = Record {
            audit: Rc::clone(self),
            target: RefCell::new(None),
            started: clock::now().mono,
            outcome: RefCell::default(),
            status: Cell::new(None),
            withdrawal,
            received_bytes: Cell::new(0),
            sent_bytes: Cell::new(0),
        };
        let Some(queue) = &self.queue else {
            return Ok(record);
        };
        let rules = self.rules.get();
        let why = match rules.tightened_from {
            None => format!("access.level = {}", rules.level.as_str()),
            Some(_) => format!("access = {}, set by hand", rules.level.as_str()),
        };
        let entry = AuditEntry::new(
            CONTROL_PLANE,
            &call.audit_line(),
            AuditDecision::Permitted,
            &why,
        );
        let target = match (self.form_of_permitted(call), RequestKind::of(call)) {
            (RecordForm::Sum, RequestKind::ServiceRequest) => {
                AuditTarget::ServiceRequest(AuditEntry::new(
                    CONTROL_PLANE,
                    &service_root(call),
                    AuditDecision::Permitted,
                    &why,
                ))
            }
            (RecordForm::Sum, _) if call.class == Class::Long => {
                let now = clock::now().wall;
                let begun = entry.clone();
                self.minute.borrow_mut().add(begun, Effect::default(), now);
                self.flush_soon();
                AuditTarget::Counted(entry)
            }
            (RecordForm::Sum, _) => AuditTarget::Sum(entry),
            (RecordForm::TooMany(wait), kind) => {
                return Err(self.refuse_unwritten(call, too_many(kind, wait)));
            }
            (RecordForm::Row, _) if queue.audit_writer.store().is_hung() => {
                return Err(self.refuse_unwritten(call, unwritable(&Failure::Hung)));
            }
            (RecordForm::Row, _) => {
                let begun = queue
                    .audit_writer
                    .begin_call(entry, clock::now().wall)
                    .await;
                AuditTarget::Row(begun.map_err(|failure| unwritable(&failure))?)
            }
        };
        record.target.replace(Some(target));
        Ok(record)
    }

    /// Counts a call that is refused because no row can be written for it; returns the reason.
    fn refuse_unwritten(&self, call: &Call, reason: String) -> String {
        let refused = AuditEntry::refused(CONTROL_PLANE, &call.audit_line(), &reason, None);
        let now = clock::now().wall;
        self.minute
            .borrow_mut()
            .add(refused, Effect::default(), now);
        reason
    }

    /// Counts a refused call; what it returns is to be written as a row, with [`Audit::refused`].
    pub(super) fn refuse(&self, call: &Call, refusal: &Refusal) -> Option<AuditEntry> {
        self.queue.as_ref()?;
        let kind = RequestKind::of(call);
        let now = clock::now().mono;
        if let (RequestKind::Exec, CallTarget::Kubernetes(path)) = (kind, &call.target)
            && self.minute.borrow_mut().is_same_upgrade(path.as_str(), now)
        {
            return None;
        }
        let reason = reason(Some(call), refusal);
        let entry = AuditEntry::refused(CONTROL_PLANE, &call.audit_line(), &reason, refusal.fix());
        let form = self
            .minute
            .borrow_mut()
            .form(kind, AuditDecision::Refused, now);
        match form {
            RecordForm::Row => Some(entry),
            RecordForm::Sum | RecordForm::TooMany(_) => {
                let wall = clock::now().wall;
                self.minute.borrow_mut().add(entry, Effect::default(), wall);
                None
            }
        }
    }

    /// Writes the row of a refusal. There is no effect to hold back, so a disk that fails costs the
    /// row alone.
    pub(super) async fn refused(&self, entry: AuditEntry) {
        let Some(queue) = &self.queue else {
            return;
        };
        let now = clock::now().wall;
        if queue.audit_writer.store().is_hung() {
            self.minute.borrow_mut().add(entry, Effect::default(), now);
            return;
        }
        match queue.audit_writer.begin(entry, now).await {
            Ok(begun) => {
                let end = End {
                    begun,
                    outcome: RequestOutcome::Refused,
                    effect: Effect::default(),
                };
                write_end(&queue.audit_writer, end).await;
            }
            Err(error) => log::warn!("proxy: a refusal is not in the audit log: {error}"),
        }
    }

    /// Writes ends as they come and sums once a minute. Runs as long as it is polled.
    pub(super) async fn keep(self: Rc<Self>) {
        let Some(queue) = &self.queue else {
            return;
        };
        let mut written = clock::now().mono;
        let mut sums_at = written.after(SUMS_EVERY);
        loop {
            let ended = async { Some(queue.ended.recv().await) };
            let hurried = async {
                match queue.hurry.1.recv().await {
                    Ok(()) => None,
                    Err(_) => std::future::pending().await,
                }
            };
            match until(sums_at, ended.or(hurried)).await {
                Some(Some(Ok(end))) => {
                    queue.audit_writer.store().until_answering().await;
                    write_end(&queue.audit_writer, end).await;
                }
                Some(Some(Err(_))) => return,
                Some(None) => sums_at = sums_at.min(written.after(SUMS_INTERVAL_MIN)),
                None => {
                    // What waits here needs no room in the queue of a disk that hangs.
                    queue.audit_writer.store().until_answering().await;
                    self.write_sums().await;
                    written = clock::now().mono;
                    sums_at = written.after(SUMS_EVERY);
                }
            }
        }
    }

    /// Writes what was summed up and what has ended so far.
    pub(super) async fn write_sums(&self) {
        let Some(queue) = &self.queue else {
            return;
        };
        while let Ok(end) = queue.ended.try_recv() {
            write_end(&queue.audit_writer, end).await;
        }
        let sums = self.minute.borrow_mut().take_sums();
        if sums.is_empty() {
            return;
        }
        if let Err(error) = queue.audit_writer.store().audit_sums(sums).await {
            log::warn!("proxy: the sums of a minute are not in the audit log: {error}");
        }
    }

    /// Requests since then, including those that are not written yet. `None`: there is no audit.
    pub(super) async fn summary(&self, since: Wall) -> Option<Result<Summary, Failure>> {
        let queue = self.queue.as_ref()?;
        let summary = queue
            .audit_writer
            .store()
            .audit_summary(CONTROL_PLANE, since)
            .await;
        Some(summary.map(|mut summary| {
            // Read afterwards: what was written in the meantime is missed rather than counted
            // twice.
            for sum in self.minute.borrow().sums() {
                summary.add(&sum);
            }
            summary
        }))
    }

    fn form_of_permitted(&self, call: &Call) -> RecordForm {
        let now = clock::now().mono;
        let mut minute = self.minute.borrow_mut();
        let kind = RequestKind::of(call);
        if kind == RequestKind::ServiceRequest {
            minute.form_of_service_request(&service_root(call), now)
        } else {
            minute.form(kind, AuditDecision::Permitted, now)
        }
    }

    /// Has sums written soon: a call began that may take long.
    fn flush_soon(&self) {
        if let Some(queue) = &self.queue {
            // Full: it is going to happen anyway.
            queue.hurry.0.try_send(()).ok();
        }
    }
}

/// Answer to a caller whose row cannot be written.
fn unwritable(failure: &Failure) -> String {
    format!("busy: cannot write the audit log: {failure}")
}

/// Answer to a caller for whom the audit has no room.
fn too_many(kind: RequestKind, wait: Duration) -> String {
    let what = match kind {
        RequestKind::Secret => "reads of Secrets",
        RequestKind::Exec | RequestKind::ServiceRequest => "ways into the cluster",
        RequestKind::Write | RequestKind::Read => "changes",
    };
    let since = if wait > SUMS_EVERY {
        "on one day"
    } else {
        "in a minute"
    };
    let wait = in_words(wait);
    format!(
        "busy: too many {what} {since}, and each is written into the audit; try again in {wait}"
    )
}

async fn write_end(audit_writer: &AuditWriter, end: End) {
    let End {
        begun,
        outcome,
        effect,
    } = end;
    if let Err(error) = audit_writer.end(begun, &outcome.text(), effect).await {
        log::warn!("proxy: the end of a call is not in the audit log: {error}");
    }
}

impl Record {
    /// Keeps the status of the answer. An application's own is no outcome: its answers were carried
    /// through.
    pub(super) fn answered(&self, target: &CallTarget, status: u16) {
        if matches!(target, CallTarget::Kubernetes(_)) {
            self.status.set(Some(status));
        }
    }

    fn outcome(&self) -> RequestOutcome {
        if let Some(Withdrawal { why, .. }) = self.withdrawal.get() {
            return RequestOutcome::Withdrawn(why.clone());
        }
        match (self.outcome.take(), self.status.get()) {
            (RequestOutcome::Done | RequestOutcome::Failed, Some(status)) if status >= 400 => {
                RequestOutcome::Rejected(status)
            }
            (outcome, _) => outcome,
        }
    }

    /// Records the outcome.
    pub(super) fn ended(&self, outcome: RequestOutcome) {
        self.outcome.replace(outcome);
    }

    /// Counts bytes of the request.
    pub(super) fn received(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.received_bytes
            .set(self.received_bytes.get().saturating_add(bytes));
    }

    /// Counts bytes of the answer.
    pub(super) fn sent(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.sent_bytes
            .set(self.sent_bytes.get().saturating_add(bytes));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let now = clock::now();
        let duration = now.mono.since(self.started).as_millis();
        let effect = Effect {
            received_bytes: self.received_bytes.get(),
            sent_bytes: self.sent_bytes.get(),
            duration_ms: u64::try_from(duration).unwrap_or(u64::MAX),
        };
        match self.target.take() {
            None => {}
            Some(AuditTarget::Sum(entry)) => {
                self.audit.minute.borrow_mut().add(entry, effect, now.wall);
            }
            Some(AuditTarget::Counted(entry)) => {
                let mut minute = self.audit.minute.borrow_mut();
                minute.add_effect(entry, effect, now.wall);
            }
            Some(AuditTarget::ServiceRequest(entry)) => {
                let mut minute = self.audit.minute.borrow_mut();
                minute.add_service_request(entry, effect, now.wall);
            }
            Some(AuditTarget::Row(begun)) => {
                let end = End {
                    begun,
                    outcome: self.outcome(),
                    effect,
                };
                let queue = self.audit.queue.as_ref();
                if queue.is_some_and(|queue| queue.ends.try_send(end).is_err()) {
                    log::warn!("proxy: the end of a call is not in the audit log: too many wait");
                }
            }
        }
    }
}
