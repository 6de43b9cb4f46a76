//! Liveness of the cluster: sends a small request after silence, after a call without an answer,
//! and on demand.
//!
//! A quiet cluster sends bookmarks about once a minute, and the election of the linking agent
//! queries it now and then. So the request is rare: it is sent after [`SILENT_FOR`] without a byte
//! from the API server.

use std::{cell::Cell, rc::Rc, time::Duration};

use smol::{future::FutureExt as _, lock::Mutex};

use crate::{
    core::{
        health::Severity,
        time::Mono,
        verdict::{UNREACHABLE, sentences},
    },
    error::Error as Shown,
    host::clock,
    kube::{Client, Heard, START_K3S},
    tasks::state::SharedState,
};

/// Silence after which the API server is probed.
const SILENT_FOR: Duration = Duration::from_secs(20);
/// The same when a person asks for the state of the cluster.
const SILENT_FOR_PEOPLE: Duration = Duration::from_secs(10);
/// Time that the API server has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Time between two probes of an API server that does not answer.
const RETRY_FIRST: Duration = Duration::from_secs(5);
/// The same after [`LONG`].
const RETRY_LONGEST: Duration = Duration::from_secs(15);
/// Silence after which it is asked less often.
const LONG: Duration = Duration::from_secs(600);
/// Minimum time between two probes: a flood of failing calls is no flood of probes.
const PROBE_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Path of the request, which every authenticated user may send.
const PROBE_PATH: &str = "/readyz";

/// Liveness of the cluster.
#[derive(Debug)]
pub struct Liveness {
    client: Client,
    heard: Rc<Heard>,
    shared_state: Rc<SharedState>,
    /// One probe at a time; the others wait for its answer.
    asking: Mutex<()>,
    /// The end of the last probe.
    asked: Cell<Option<Mono>>,
}

impl Liveness {
    /// Probes nothing yet.
    pub fn new(client: Client, shared_state: Rc<SharedState>) -> Self {
        Self {
            heard: client.heard(),
            client,
            shared_state,
            asking: Mutex::new(()),
            asked: Cell::new(None),
        }
    }

    /// Watches over the cluster until it is dropped.
    #[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
    pub async fn run(&self) {
        let mut failures = self.heard.failures();
        loop {
            let is_silent = self.heard.silence().is_some();
            let changed = self.heard.changed(failures, is_silent);
            clock::until(self.due(is_silent)).or(changed).await;
            let has_failed = self.heard.failures() != failures;
            let is_due = has_failed || self.due(is_silent) <= self.now();
            if is_due && self.heard.silence().is_some() == is_silent {
                self.ask().await;
                // The question itself fails as other calls do.
                failures = self.heard.failures();
            }
            self.report_silence();
        }
    }

    /// Makes sure that what is known is not older than [`SILENT_FOR_PEOPLE`], within
    /// [`ANSWER_WITHIN`] or so.
    pub async fn refresh(&self) {
        if self.is_silent() || self.now().since(self.last()) < SILENT_FOR_PEOPLE {
            return;
        }
        self.ask().await;
        self.report_silence();
    }

    /// Returns whether the API server does not answer.
    pub fn is_silent(&self) -> bool {
        self.heard.silence().is_some()
    }

    fn now(&self) -> Mono {
        self.shared_state.now().mono
    }

    fn last(&self) -> Mono {
        self.heard
            .last()
            .unwrap_or_else(|| self.shared_state.started().mono)
    }

    /// The moment of the next question, where no call fails before.
    fn due(&self, is_silent: bool) -> Mono {
        let is_long = self.now().since(self.last()) > LONG;
        let again = if is_long { RETRY_LONGEST } else { RETRY_FIRST };
        let next = self.asked.get().map(|asked| asked.after(again));
        let silent = self.last().after(SILENT_FOR);
        match next {
            Some(next) if is_silent => next,
            Some(next) => next.max(silent),
            None => silent,
        }
    }

    /// Asks, unless somebody else has just asked.
    async fn ask(&self) {
        let _one_at_a_time = self.asking.lock().await;
        let asked = self.asked.get();
        if asked.is_some_and(|asked| self.now().since(asked) < PROBE_INTERVAL_MIN) {
            return;
        }
        let before = self.heard.last();
        let answer = self.client.read(PROBE_PATH, ANSWER_WITHIN).await;
        self.asked.set(Some(self.now()));
        if let Err(error) = answer
            && error.is_silence()
            && self.heard.last() == before
            && !self.is_silent()
        {
            self.heard.set_silent(error);
        }
    }

    /// Shows what is known.
    fn report_silence(&self) {
        let Some(why) = self.heard.silence() else {
            self.shared_state.clear(UNREACHABLE);
            return;
        };
        let shown = Shown::from(&why);
        let sentence = sentences::cluster_unreachable(&shown.sentence());
        let fix = shown.fix.unwrap_or_else(|| START_K3S.to_owned());
        self.shared_state
            .report(UNREACHABLE, Severity::Warning, sentence, Some(fix));
    }
}
