//! Event objects of `core/v1`. Those written through `events.k8s.io/v1` appear there, too, under
//! these names.

use super::{Metadata, Object, TargetRef};
use crate::core::{
    event::{EventContent, Sighting, Source},
    health::Severity,
    time::Wall,
};
use crate::wire::json::fields;

/// Event: something happened to an object, once or repeatedly.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Event {
    /// The head.
    pub metadata: Metadata,
    /// Object that it is about.
    pub involved_object: TargetRef,
    /// A word for it.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// `Normal` or `Warning`.
    pub kind: String,
    /// Number of occurrences; absent if `series` has it, or for a single one.
    pub count: i64,
    /// Time of the first occurrence.
    pub first_timestamp: Option<String>,
    /// Time of the last occurrence.
    pub last_timestamp: Option<String>,
    /// Time of the first occurrence, by the newer API.
    pub event_time: Option<String>,
    /// Occurrences, by the newer API.
    pub series: Option<Series>,
}
fields!(Event {
    metadata,
    involved_object: "involvedObject",
    reason,
    message,
    kind: "type",
    count,
    first_timestamp: "firstTimestamp",
    last_timestamp: "lastTimestamp",
    event_time: "eventTime",
    series,
});

/// Series of a repeated event.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Series {
    /// Number of occurrences so far.
    pub count: i64,
    /// Time of the last occurrence.
    pub last_observed_time: Option<String>,
}
fields!(Series {
    count,
    last_observed_time: "lastObservedTime"
});

impl Object for Event {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Event {
    /// Occurrences and times. An event without a time is of `now`.
    pub fn sighting(&self, now: Wall) -> Sighting<'_> {
        let series = self.series.as_ref();
        let count = series.map_or(self.count, |series| series.count.max(self.count));
        let observed = series.and_then(|series| series.last_observed_time.as_deref());
        let event_time = self.event_time.as_deref();
        let last = time(&[observed, self.last_timestamp.as_deref(), event_time]).unwrap_or(now);
        Sighting {
            id: &self.metadata.uid,
            count: u32::try_from(count.max(1)).unwrap_or(u32::MAX),
            first: time(&[self.first_timestamp.as_deref(), event_time]).unwrap_or(last),
            last,
        }
    }

    /// Event without its count.
    pub fn happening(self) -> EventContent {
        let TargetRef {
            kind,
            namespace,
            name,
        } = self.involved_object;
        let parts = [kind, namespace, name];
        let named: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        EventContent {
            source: Source::Cluster,
            severity: match self.kind.as_str() {
                "Warning" => Severity::Warning,
                _ => Severity::Note,
            },
            subject: named.join("/"),
            reason: self.reason,
            message: self.message,
        }
    }
}

/// The first of these that is a time.
fn time(texts: &[Option<&str>]) -> Option<Wall> {
    texts
        .iter()
        .find_map(|text| text.and_then(Wall::parse_rfc3339))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall::from_millis(1_781_589_028_000);

    fn event(text: &str) -> Event {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_older_and_the_newer_form_say_the_same() {
        let older = event(
            r#"{"metadata":{"uid":"u"},"involvedObject":{"kind":"Pod","namespace":"shop","name":"web-0"},"reason":"BackOff","message":"Back-off","type":"Warning","count":4,"firstTimestamp":"2026-06-16T05:50:20Z","lastTimestamp":"2026-06-16T05:50:28Z","eventTime":null}"#,
        );
        let newer = event(
            r#"{"metadata":{"uid":"u"},"involvedObject":{"kind":"Pod","namespace":"shop","name":"web-0"},"reason":"BackOff","message":"Back-off","type":"Warning","firstTimestamp":null,"lastTimestamp":null,"eventTime":"2026-06-16T05:50:20.000000Z","series":{"count":4,"lastObservedTime":"2026-06-16T05:50:28.000000Z"}}"#,
        );
        for event in [older, newer] {
            let seen = event.sighting(Wall::default());
            assert_eq!((seen.id, seen.count, seen.last), ("u", 4, NOW));
            assert_eq!(seen.first, Wall::from_millis(NOW.millis() - 8000));
            let what = event.happening();
            assert_eq!(
                (what.subject.as_str(), what.severity),
                ("Pod/shop/web-0", Severity::Warning)
            );
        }
    }

    #[test]
    fn what_says_little_or_nonsense_happened_once_and_now() {
        for text in [
            "{}",
            r#"{"count":-3,"lastTimestamp":"yesterday","involvedObject":{}}"#,
        ] {
            let event = event(text);
            let seen = event.sighting(NOW);
            assert_eq!((seen.count, seen.first, seen.last), (1, NOW, NOW), "{text}");
            assert_eq!(event.happening().severity, Severity::Note);
        }
    }
}
