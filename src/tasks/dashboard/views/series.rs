//! Charts: the list of series, and values of some of them at common times.

use std::{collections::BTreeMap, time::Duration};

use super::{ViewResult, silent};
use crate::{
    core::{
        order::OrderExt as _,
        series::{Aggregate, Key, Line, Listed, Page, Query, Search, Select, float, unit},
        time::Wall,
    },
    store::telemetry::Handle,
    wire::api::{Column, Mark, SeriesHead, SeriesList, Values},
};

/// Series of one question.
pub const KEYS_MAX: usize = 16;
/// Points of one column.
pub const POINTS_MAX: u32 = 2000;
/// Steps that people read easily, in seconds. The first is twice the usual interval, so that a tick
/// that comes late leaves no hole.
const STEPS_S: [u32; 13] = [
    30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800,
];
/// Marks of one answer: what is beyond would only cover the chart.
const MARKS_MAX: usize = 100;
/// The metric that says when a board slowed itself down.
const THROTTLED: &str = "host_throttled";

/// Subjects whose series are shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Subjects {
    /// Those of the machine.
    Host,
    /// Those of the cluster too: their labels are names of workloads.
    All,
}

/// Prefix of the names of cluster series.
const CLUSTER: &str = "cluster_";
/// Series of one page at most, and without a word about it.
pub const LIMIT_MAX: u32 = 1000;
/// Series of a page where nothing else is asked for.
pub const LIMIT: u32 = 500;

impl Subjects {
    fn has(self, key: &str) -> bool {
        self == Self::All || subject(key) == "host"
    }
}

/// Query.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Question {
    /// The series, by their keys.
    pub keys: Vec<String>,
    /// The first second.
    pub from: i64,
    /// The second after the last.
    pub to: i64,
    /// Points of each column at most.
    pub points: u32,
}

fn subject(key: &str) -> &'static str {
    if key.starts_with(CLUSTER) {
        "cluster"
    } else {
        "host"
    }
}

/// A page of the list of series whose key contains a text. `next` is where it begins; `None` where
/// that was never the end of a page.
pub async fn list(
    samples: &Handle,
    subjects: Subjects,
    (contains, next, limit): (&str, &str, u32),
) -> Option<ViewResult<SeriesList>> {
    let after = match next {
        "" => None,
        next => Some(listed(next)?),
    };
    let search = Search {
        contains: contains.to_lowercase(),
        without: match subjects {
            Subjects::Host => CLUSTER,
            Subjects::All => "",
        },
        after,
        limit: usize::try_from(limit.clamp(1, LIMIT_MAX)).unwrap_or(1),
    };
    let page = samples.series(search).await;
    Some(
        page.map_err(|failure| silent(&failure))
            .map(|page| page_of(&page)),
    )
}

fn page_of(page: &Page) -> SeriesList {
    let next = page.series.last().filter(|_| page.has_more);
    SeriesList {
        next: next.map(token),
        total: page.total,
        series: page.series.iter().filter_map(head).collect(),
    }
}

/// `None` for a key that this program would not write.
fn head(listed: &Listed) -> Option<SeriesHead> {
    let key = Key::parse(&listed.key).ok()?;
    let labels = key.labels();
    Some(SeriesHead {
        key: listed.key.clone(),
        metric: key.name().to_owned(),
        labels: labels
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        unit: unit(key.name()).to_owned(),
        subject: subject(&listed.key).to_owned(),
        live: !listed.has_ended,
    })
}

/// Token for the next page.
fn token(last: &Listed) -> String {
    let word = if last.has_ended { "ended" } else { "live" };
    format!("{word}:{}", last.key)
}

fn listed(token: &str) -> Option<Listed> {
    let (word, key) = token.split_once(':')?;
    let has_ended = match word {
        "ended" => true,
        "live" => false,
        _ => return None,
    };
    let key = key.to_owned();
    Some(Listed { has_ended, key })
}

/// Values of some series. Those that are not there, or are not shown to this viewer, are left out.
pub async fn values(samples: &Handle, subjects: Subjects, asked: Question) -> ViewResult<Values> {
    let step_s = step(&asked);
    let query = |select| Query {
        select,
        from: second(asked.from),
        to: second(asked.to),
        step: Some(Duration::from_secs(u64::from(step_s))),
    };
    let keys = asked.keys.iter().filter(|key| subjects.has(key)).cloned();
    let lines = samples.query(query(Select::Keys(keys.collect()))).await;
    let lines = lines.map_err(|failure| silent(&failure))?;
    let throttled = samples
        .query(query(Select::Matching(THROTTLED.to_owned(), Vec::new())))
        .await
        .unwrap_or_default();
    let boots = samples.boots().await.unwrap_or_default();
    Ok(answer(
        &asked,
        step_s,
        &lines,
        marks(&asked, &boots, throttled.first()),
    ))
}

fn second(seconds: i64) -> Wall {
    Wall::from_millis(seconds.saturating_mul(1000))
}

/// The smallest easy step with which the columns are no longer than was asked for.
fn step(asked: &Question) -> u32 {
    let span = asked.to.saturating_sub(asked.from);
    let points = i64::from(asked.points.clamp(2, POINTS_MAX));
    let fits = |step: &&u32| span / i64::from(**step) <= points;
    let largest = STEPS_S.last().copied().unwrap_or(u32::MAX);
    STEPS_S.iter().find(fits).copied().unwrap_or_else(|| {
        // A span of centuries.
        u32::try_from(span / points)
            .unwrap_or(u32::MAX)
            .max(largest)
    })
}

fn answer(asked: &Question, step_s: u32, lines: &[Line], marks: Vec<Mark>) -> Values {
    let mut times: BTreeMap<i64, usize> = BTreeMap::new();
    for aggregate in lines.iter().flat_map(|line| &line.aggregates) {
        times.insert(aggregate.at.millis() / 1000, 0);
    }
    // The time after the last before a hole, so that a chart shows the hole, with nothing measured.
    let known: Vec<i64> = times.keys().copied().collect();
    for pair in known.windows(2) {
        if let [one, other] = pair
            && other - one > i64::from(step_s)
        {
            times.insert(one + i64::from(step_s), 0);
        }
    }
    for (index, place) in times.values_mut().enumerate() {
        *place = index;
    }
    let mut columns: BTreeMap<String, Column> = BTreeMap::new();
    for line in lines {
        let key = line.known.series.key.to_string();
        let column = columns.entry(key.clone()).or_insert_with(|| Column {
            unit: unit(line.known.series.key.name()).to_owned(),
            key,
            mean: vec![None; times.len()],
            min: vec![None; times.len()],
            max: vec![None; times.len()],
        });
        for aggregate in &line.aggregates {
            let place = times.get(&(aggregate.at.millis() / 1000)).copied();
            if let Some(place) = place {
                put(column, place, aggregate, line.known.series.digits)
            }
        }
    }
    Values {
        from: asked.from,
        to: asked.to,
        step_s: u64::from(step_s),
        times: times.into_keys().collect(),
        series: columns.into_values().collect(),
        marks,
    }
}

fn put(column: &mut Column, place: usize, aggregate: &Aggregate, digits: u8) {
    let values = [
        (&mut column.mean, aggregate.mean),
        (&mut column.min, aggregate.min),
        (&mut column.max, aggregate.max),
    ];
    for (values, value) in values {
        if let Some(slot) = values.get_mut(place) {
            *slot = Some(float(value, digits)).filter(|number| number.is_finite());
        }
    }
}

/// Boots, and the beginnings of throttling.
fn marks(asked: &Question, boots: &[Wall], throttled: Option<&Line>) -> Vec<Mark> {
    let is_shown = |time: &i64| (asked.from..asked.to).contains(time);
    let mark = |kind: &str, text: &str| {
        let (kind, text) = (kind.to_owned(), text.to_owned());
        move |time| Mark {
            time,
            kind: kind.clone(),
            text: text.clone(),
        }
    };
    let boots = boots.iter().map(|boot| boot.millis() / 1000);
    let mut marks: Vec<_> = boots
        .filter(is_shown)
        .map(mark("boot", "the machine booted"))
        .collect();
    let mut was = false;
    let began = throttled
        .into_iter()
        .flat_map(|line| &line.aggregates)
        .filter_map(|aggregate| {
            let is = aggregate.max > 0;
            let begins = is && !std::mem::replace(&mut was, is);
            was = is;
            begins.then_some(aggregate.at.millis() / 1000)
        });
    marks.extend(began.map(mark("throttled", "the board was throttled (power or heat)")));
    marks.order_by_key(|mark| mark.time);
    let surplus = marks.len().saturating_sub(MARKS_MAX);
    marks.split_off(surplus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::series::{Known, Series};

    fn asked(from: i64, to: i64, points: u32) -> Question {
        Question {
            keys: Vec::new(),
            from,
            to,
            points,
        }
    }

    fn line(name: &str, aggregates: &[(i64, i64)]) -> Line {
        Line {
            known: Known {
                number: 1,
                series: Series {
                    key: Key::new(name, &[]).unwrap(),
                    digits: 1,
                },
            },
            aggregates: aggregates
                .iter()
                .map(|(at, value)| Aggregate {
                    at: second(*at),
                    min: *value,
                    mean: *value,
                    max: *value,
                    count: 1,
                })
                .collect(),
        }
    }

    #[test]
    fn a_step_is_one_that_people_read_and_gives_no_more_points_than_wanted() {
        for (span, points, wanted) in [
            (3600, 240, 30),
            (86_400, 300, 300),
            (86_400 * 365, 400, 86_400),
            (86_400 * 365 * 5, 300, 604_800),
            (0, 0, 30),
            (-5, 10, 30),
            (i64::MAX, 2000, u32::MAX),
        ] {
            assert_eq!(step(&asked(0, span, points)), wanted, "{span} {points}");
        }
    }

    #[test]
    fn a_page_ends_where_the_next_one_begins() {
        for (has_ended, key) in [(false, "host_load1"), (true, "a{b=\"live:x\"}")] {
            let last = Listed {
                has_ended,
                key: key.to_owned(),
            };
            assert_eq!(listed(&token(&last)), Some(last));
        }
        for odd in ["host_load1", "dead:x", ":", ""] {
            assert_eq!(listed(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_hole_is_a_time_with_nothing_and_columns_share_their_times() {
        let lines = [
            line("host_a_ratio", &[(0, 10), (30, 20), (120, 30)]),
            line("host_b", &[(30, 7)]),
        ];
        let values = answer(&asked(0, 200, 10), 30, &lines, Vec::new());
        assert_eq!(values.times, [0, 30, 60, 120]);
        let columns: Vec<_> = values.series.iter().map(|c| (&*c.key, &*c.unit)).collect();
        assert_eq!(columns, [("host_a_ratio", "ratio"), ("host_b", "")]);
        assert_eq!(
            values.series[0].mean,
            [Some(1.0), Some(2.0), None, Some(3.0)]
        );
        assert_eq!(values.series[1].max, [None, Some(0.7), None, None]);
    }

    #[test]
    fn a_boot_and_each_beginning_of_throttling_are_marked() {
        let throttled = line(THROTTLED, &[(10, 0), (20, 1), (30, 1), (40, 0), (50, 1)]);
        let boots = [second(5), second(500)];
        let marks = marks(&asked(0, 100, 10), &boots, Some(&throttled));
        let marks: Vec<_> = marks.iter().map(|mark| (mark.time, &*mark.kind)).collect();
        assert_eq!(marks, [(5, "boot"), (20, "throttled"), (50, "throttled")]);
    }
}
