//! Effect of API answers on the fence and on the knowledge about other agents.

use crate::core::time::{Mono, in_words};

use super::{
    Ask, BARRED, Change, Election, FENCE_BARRED, FENCE_LONG, FENCE_SHORT, GOOD_BYES_MAX, Input,
    KnownLease, Output, RETRY_WAIT, RETRY_WAIT_ALONE, Record, Silence, Watched,
};

impl Election {
    /// Takes the answer of a call; says in words what it means.
    pub(super) fn answer(&mut self, input: Input, ask: Ask, began: Mono, now: Mono) -> String {
        let mut why = match input {
            Input::Unanswered(why) => {
                self.unanswered(Silence::NoAnswer, began, now);
                return why;
            }
            Input::ClockBehind(why) => {
                self.unanswered(Silence::ClockBehind, began, now);
                return why;
            }
            Input::Forbidden(why) => return self.forbidden(why, began, now),
            Input::NotFound if matches!(ask, Ask::Create(_)) => {
                return self.forbidden("its namespace is not there".to_owned(), began, now);
            }
            Input::NotFound => self.not_found(now),
            Input::Conflict => {
                self.is_stale = true;
                if matches!(ask, Ask::Create(_) | Ask::Update(_, Change::Acquired)) {
                    self.grace = None;
                }
                "another agent was faster".to_owned()
            }
            Input::Found(record) => self.found(record, began, now),
            Input::Written(version) => self.written(version, ask, began, now),
            Input::ClusterId(_) | Input::Registered | Input::LookAgain | Input::Stop => {
                String::new()
            }
        };
        self.answered = Some(now);
        self.silence = None;
        if self.barred.is_some() {
            if self.wanted(now).is_some() {
                // It may read but perhaps not write: nothing is better yet.
                self.grace = Some(began.after(FENCE_BARRED));
            } else {
                self.barred = None;
                self.grace = None;
                "the Lease can be used now".clone_into(&mut why);
            }
        }
        self.next = self.next_call(now);
        why
    }

    fn not_found(&mut self, now: Mono) -> String {
        self.is_stale = false;
        if self.seen != KnownLease::Nothing
            && let Some(watched) = &mut self.watched
        {
            // Somebody removed it. Its holder makes it again with its next call, or has no link
            // after its promise.
            watched.since = now;
            watched.is_quiet = false;
        }
        self.announced = None;
        self.seen = KnownLease::Nothing;
        "there is no Lease".to_owned()
    }

    fn found(&mut self, record: Record, began: Mono, now: Mono) -> String {
        let is_confirmed = self.renewed.is_some()
            && record.is_held_by(&self.me.id)
            && record.is_quiet()
            && record.others(&self.me.id).is_empty();
        let why = self.learn(record, now);
        if is_confirmed {
            self.move_fence(began.after(FENCE_LONG));
        }
        why
    }

    fn written(&mut self, version: String, ask: Ask, began: Mono, now: Mono) -> String {
        let (mut record, change) = match ask {
            Ask::Create(record) => (record, Change::Acquired),
            Ask::Update(record, change) => (record, change),
            // A write that nobody asked for: what is in the Lease must be read.
            Ask::Get => {
                self.is_stale = true;
                return String::new();
            }
        };
        record.version = version;
        match change {
            Change::Standby => {
                self.announced = Some((self.next_beat, now));
                self.next_beat = self.next_beat.wrapping_add(1);
            }
            Change::Renewed | Change::Acquired => {
                self.renewed = Some(began);
                let fence = if record.is_quiet() {
                    FENCE_LONG
                } else {
                    FENCE_SHORT
                };
                self.move_fence(began.after(fence));
            }
            Change::Released => {}
        }
        let before = self.watched.take();
        let why = self.learn(record, now);
        match before {
            Some(gone) if change == Change::Acquired => format!(
                "{} gave no sign of life for {}",
                gone.holder.words(),
                in_words(now.since(gone.since))
            ),
            Some(watched) => {
                // An announcement says nothing about the holder.
                self.watched = Some(watched);
                why
            }
            None => why,
        }
    }

    fn move_fence(&mut self, to: Mono) {
        self.fence = Some(self.fence.map_or(to, |fence| fence.max(to)));
    }

    /// Records the current Lease.
    fn learn(&mut self, record: Record, now: Mono) -> String {
        self.is_stale = false;
        let others = record.others(&self.me.id);
        self.ages
            .retain(|id, _| others.iter().any(|other| other.party.id == *id));
        for other in &others {
            let age = (other.beat, now);
            let known = self.ages.entry(other.party.id.clone()).or_insert(age);
            if known.0 != other.beat {
                *known = age;
            }
        }
        let announced = record.announced(&self.me.id);
        self.announced = self.announced.filter(|(beat, _)| announced == Some(*beat));
        if let (None, Some(earlier)) = (self.announced, announced) {
            // Of an earlier life: the same beat again would be no news.
            self.next_beat = self.next_beat.max(earlier.wrapping_add(1));
        }
        let why = match &record.holder {
            Some(holder) if holder.id == self.me.id => {
                self.watched = None;
                match others.first() {
                    Some(rival) => format!("{} stands by", rival.party.words()),
                    None => "no other agent stands by".to_owned(),
                }
            }
            Some(holder) => {
                let is_same = self.watched.as_ref().is_some_and(|watched| {
                    watched.holder.id == holder.id && watched.beat == record.beat
                });
                let since = self.watched.as_ref().filter(|_| is_same);
                self.watched = Some(Watched {
                    since: since.map_or(now, |watched| watched.since),
                    holder: holder.clone(),
                    beat: record.beat,
                    is_quiet: record.is_quiet(),
                    patience: record.patience(),
                });
                format!("{} holds the link", holder.words())
            }
            None => {
                self.watched = None;
                "nobody holds the link".to_owned()
            }
        };
        if !record.is_held_by(&self.me.id) {
            self.fence = None;
            self.renewed = None;
            self.is_registered = false;
        }
        let is_alone = record.is_held_by(&self.me.id) && record.is_quiet() && others.is_empty();
        let is_contested = self.watched.is_some() || !others.is_empty();
        self.seen = KnownLease::Record(record);
        if is_contested || is_alone {
            self.know_rivals(is_contested);
        }
        why
    }

    fn know_rivals(&mut self, knows: bool) {
        if knows {
            // What was given without an answer is no promise that a rival knows of.
            self.grace = None;
        }
        if self.knows_rivals != knows {
            self.knows_rivals = knows;
            self.outputs.push_back(Output::KeepRivals(knows));
        }
    }

    fn unanswered(&mut self, silence: Silence, began: Mono, now: Mono) {
        self.silence = Some(silence);
        if self.good_byes.is_some() {
            self.good_byes = Some(GOOD_BYES_MAX);
            self.next = now;
            return;
        }
        self.next = now.after(RETRY_WAIT);
        let is_free = self.barred.is_some() || !self.knows_rivals;
        let is_unheard = self
            .answered
            .is_none_or(|answered| now.since(answered) > FENCE_LONG);
        let has_waited = now >= self.ask_until && is_unheard && silence == Silence::NoAnswer;
        let had_link = self.fence.max(self.grace).is_some();
        if is_free && (had_link || has_waited) {
            self.grace = Some(began.after(FENCE_LONG));
            self.next = now.after(RETRY_WAIT_ALONE);
        }
    }

    fn forbidden(&mut self, why: String, began: Mono, now: Mono) -> String {
        self.answered = Some(now);
        self.silence = None;
        self.seen = KnownLease::Unknown;
        self.watched = None;
        self.renewed = None;
        if self.good_byes.is_some() {
            self.good_byes = Some(GOOD_BYES_MAX);
            self.next = now;
            return why;
        }
        self.barred = Some(why.clone());
        self.grace = Some(began.after(FENCE_BARRED));
        self.next = now.after(BARRED);
        why
    }
}
