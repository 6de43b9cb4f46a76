//! Summary of the audit over a period: requests by kind and decision, and the newest refusals with
//! their reasons.

use super::{AuditDecision, REFUSALS_SHOWN_MAX, RequestKind, Sum};
use crate::core::{order::OrderExt as _, time::Wall};

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Number of permitted requests.
    pub permitted: u64,
    /// Number of refused requests.
    pub refused: u64,
    /// Bytes that came in with them.
    pub received_bytes: u64,
    /// Bytes that went out with their answers.
    pub sent_bytes: u64,
}

/// Refused requests with the same reason.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// Method and path.
    pub what: String,
    /// The reason.
    pub why: String,
    /// Time when the last one came; of what is summed, the minute.
    pub last: Wall,
    /// Number of requests.
    pub count: u64,
}

/// Everything of a stretch of time.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Summary {
    /// Requests that only read.
    pub reads: Counts,
    /// Requests that change something.
    pub changes: Counts,
    /// Ways into containers and to what serves there: exec, attach, port-forward, proxies,
    /// services.
    pub entries: Counts,
    /// Requests beyond the limits, which have no kind.
    pub others: Counts,
    /// The newest refusals, the newest first.
    pub refusals: Vec<Refused>,
}

impl Summary {
    /// The requests of a kind; `None`: those that were too many to be told apart.
    pub fn counts(&mut self, kind: Option<RequestKind>) -> &mut Counts {
        match kind {
            Some(RequestKind::Read | RequestKind::Secret) => &mut self.reads,
            Some(RequestKind::Write) => &mut self.changes,
            Some(RequestKind::Exec | RequestKind::ServiceRequest) => &mut self.entries,
            None => &mut self.others,
        }
    }

    /// Adds what is not on disk yet.
    pub fn add(&mut self, sum: &Sum) {
        let what = sum.entry.what();
        let added = Counts {
            received_bytes: sum.effect.received_bytes,
            sent_bytes: sum.effect.sent_bytes,
            ..Counts::of(sum.entry.decision(), sum.count)
        };
        self.counts(RequestKind::of_line(what)).add(added);
        if sum.entry.decision() == AuditDecision::Permitted {
            return;
        }
        let why = sum.entry.why();
        let known = self
            .refusals
            .iter_mut()
            .find(|refused| refused.what == what && refused.why == why);
        match known {
            Some(known) => {
                known.count = known.count.saturating_add(sum.count);
                known.last = known.last.max(sum.minute);
            }
            None => self.refusals.push(Refused {
                what: what.to_owned(),
                why: why.to_owned(),
                last: sum.minute,
                count: sum.count,
            }),
        }
        self.refusals
            .order_by_key(|refused| std::cmp::Reverse(refused.last));
        self.refusals.truncate(REFUSALS_SHOWN_MAX);
    }

    /// All kinds together.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for counts in [self.reads, self.changes, self.entries, self.others] {
            total.add(counts);
        }
        total
    }
}

impl Counts {
    /// So many that were decided like this.
    pub fn of(decision: AuditDecision, count: u64) -> Self {
        let (permitted, refused) = match decision {
            AuditDecision::Permitted => (count, 0),
            AuditDecision::Refused => (0, count),
        };
        Self {
            permitted,
            refused,
            ..Self::default()
        }
    }

    /// Adds others.
    pub fn add(&mut self, others: Self) {
        for (mine, theirs) in [
            (&mut self.permitted, others.permitted),
            (&mut self.refused, others.refused),
            (&mut self.received_bytes, others.received_bytes),
            (&mut self.sent_bytes, others.sent_bytes),
        ] {
            *mine = mine.saturating_add(theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::audit::{AuditEntry, Effect};

    fn sum(what: &str, decision: AuditDecision, minute: i64, count: u64) -> Sum {
        Sum {
            minute: Wall::from_millis(minute),
            entry: AuditEntry::new("control-plane", what, decision, "because"),
            count,
            effect: Effect {
                sent_bytes: 10,
                ..Effect::default()
            },
        }
    }

    #[test]
    fn what_is_added_is_counted_and_refusals_are_the_newest_first() {
        let mut summary = Summary::default();
        for n in 0..30 {
            summary.add(&sum(&format!("POST /{n}"), AuditDecision::Refused, n, 1));
        }
        summary.add(&sum("POST /29", AuditDecision::Refused, 5, 2));
        summary.add(&sum("POST /12", AuditDecision::Refused, 100, 1));
        summary.add(&sum("GET /", AuditDecision::Permitted, 100, 7));
        assert_eq!((summary.changes.refused, summary.reads.permitted), (33, 7));
        assert_eq!(summary.refusals.len(), REFUSALS_SHOWN_MAX);
        let newest: Vec<_> = summary.refusals.iter().take(2).collect();
        assert_eq!((newest[0].what.as_str(), newest[0].count), ("POST /12", 2));
        assert_eq!((newest[1].what.as_str(), newest[1].count), ("POST /29", 3));
        assert_eq!(summary.total().sent_bytes, 330);
    }
}
