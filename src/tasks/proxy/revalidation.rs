//! Revalidation: watches what running calls rely on in the cluster, and ends those whose permission
//! was withdrawn.
//!
//! Nothing is queried while no running call relies on a managed namespace or on a right beyond
//! plain reading. `core::policy::standing` decides when to look and what an answer means.

use std::{rc::Rc, time::Duration};

use smol::{
    Task,
    channel::{Sender, bounded},
    future::FutureExt as _,
};

use super::{Shared, deadline::until};
use crate::{
    core::{
        policy::standing::{Dependency, Observed, Rounds},
        time::Mono,
    },
    host::clock,
    tasks::rights::delegate::Delegate,
};

/// Time for one look. Three fit into the 10 s after which a change must have had its effect.
const LOOK_WITHIN: Duration = Duration::from_secs(3);
/// Answers that wait. A subject has one look at a time, and there are as many subjects as long
/// calls at most, twice.
const ANSWERS_MAX: usize = 256;

/// The answer to a look.
struct Answer {
    subject: Dependency,
    began: Mono,
    found: LookupResult,
}

/// Result of a look-up.
enum LookupResult {
    Namespace(Option<Observed>),
    Grant(bool),
    /// The cluster does not say.
    Nothing,
}

/// Event that woke the task.
enum Wakeup {
    Answered(Answer),
    Otherwise,
}

/// Looks for ever. Runs as long as it is polled.
#[expect(clippy::infinite_loop, reason = "it ends when its task is dropped")]
pub(super) async fn keep(shared: Rc<Shared>) {
    let (answers, answered) = bounded(ANSWERS_MAX);
    let mut rounds = Rounds::default();
    let mut looks: Vec<Task<()>> = Vec::new();
    loop {
        let now = clock::now().mono;
        shared.admission.expire(now);
        let relied_on = shared.admission.relied_on();
        looks.retain(|look| !look.is_finished());
        if let Some(delegate) = &shared.dependencies.delegate {
            for subject in rounds.begin(&relied_on, now) {
                let look = look(Rc::clone(delegate), subject, answers.clone());
                looks.push(shared.dependencies.executor.spawn(look));
            }
        }
        let next = rounds.next(&relied_on).into_iter();
        let next = next.chain(shared.admission.expires()).min();
        let time = async {
            match next {
                Some(next) => clock::until(next).await,
                None => std::future::pending().await,
            }
            Wakeup::Otherwise
        };
        let changed = async {
            shared.admission.changed().await;
            Wakeup::Otherwise
        };
        let answer = async {
            match answered.recv().await {
                Ok(answer) => Wakeup::Answered(answer),
                Err(_) => std::future::pending().await,
            }
        };
        if let Wakeup::Answered(answer) = answer.or(changed).or(time).await {
            rounds.end(&answer.subject);
            record_answer(&shared, &answer);
        }
    }
}

fn record_answer(shared: &Shared, answer: &Answer) {
    let cut = match (&answer.subject, &answer.found) {
        (Dependency::Namespace(name), LookupResult::Namespace(found)) => {
            let rules = shared.rules.get();
            let admission = &shared.admission;
            admission.observed(rules, name, found.as_ref(), answer.began)
        }
        (Dependency::Grant(grant), LookupResult::Grant(is_granted)) => {
            let delegate = shared.dependencies.delegate.as_ref();
            let account = delegate.map_or_else(String::new, |delegate| delegate.account());
            shared.admission.granted(grant, *is_granted, &account)
        }
        (Dependency::Namespace(_) | Dependency::Grant(_), _) => 0,
    };
    if cut > 0 {
        log::warn!(
            "proxy: running calls that were cut because access to them was withdrawn: {cut}"
        );
    }
}

async fn look(delegate: Rc<Delegate>, subject: Dependency, answers: Sender<Answer>) {
    let began = clock::now().mono;
    let limit = began.after(LOOK_WITHIN);
    let found = match &subject {
        Dependency::Namespace(name) => match until(limit, delegate.observe(name)).await {
            Some(Ok((found, _))) => LookupResult::Namespace(found),
            Some(Err(why)) => nothing(&why),
            None => nothing("no answer in time"),
        },
        Dependency::Grant(grant) => match until(limit, delegate.is_granted(grant)).await {
            Some(Ok(is_granted)) => LookupResult::Grant(is_granted),
            Some(Err(why)) => nothing(&why),
            None => nothing("no answer in time"),
        },
    };
    let answer = Answer {
        subject,
        began,
        found,
    };
    if answers.send(answer).await.is_err() {
        log::trace!("proxy: nobody waits for a look any more");
    }
}

fn nothing(why: &str) -> LookupResult {
    log::debug!("proxy: a look at what running calls rely on failed: {why}");
    LookupResult::Nothing
}
