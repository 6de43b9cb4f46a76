use super::*;
use crate::core::series::{Key, Known, Series};

/// 2026-01-01T00:00:00Z.
const NEW_YEAR_MS: i64 = 1_767_225_600_000;

/// A Pod whose value is `at` each step since New Year, for so many days.
fn line(days: i64, digits: u8, at: impl Fn(i64) -> (i64, i64)) -> Line {
    let aggregate = |step: i64| {
        let (mean, max) = at(step);
        Aggregate {
            at: Wall::from_millis(NEW_YEAR_MS + step * STEP_MS),
            min: 0,
            mean,
            max,
            count: 15,
        }
    };
    Line {
        known: Known {
            number: 1,
            series: Series {
                key: Key::new("usage", &[]).unwrap(),
                digits,
            },
        },
        aggregates: (0..days * 96).map(aggregate).collect(),
    }
}

fn mi(count: i64) -> i64 {
    count << 20
}

/// Quiet but for the hour from 14:00: 50 Mi and 0.05 cores, then 100 Mi and 0.1 cores, once 120 Mi
/// and 0.4 cores.
fn usual(days: i64) -> [Line; 2] {
    let is_busy = |step: i64| step % 96 / 4 == 14;
    let cpu = line(days, 4, |step| match step {
        57 => (1000, 4000),
        step if is_busy(step) => (1000, 1100),
        _ => (500, 600),
    });
    let memory = line(days, 0, |step| match step {
        57 => (mi(90), mi(120)),
        step if is_busy(step) => (mi(90), mi(100)),
        _ => (mi(40), mi(50)),
    });
    [cpu, memory]
}

fn seen(now: Sizes, [cpu, memory]: &[Line; 2]) -> Observed<'_> {
    Observed {
        now,
        cpu: std::slice::from_ref(cpu),
        memory: std::slice::from_ref(memory),
        ran_out: false,
        is_run: false,
        autoscaler: "",
    }
}

fn sized(text: &str) -> Sizes {
    let words: Vec<_> = text.split(' ').collect();
    let mut resources = json!({"requests": {}, "limits": {}});
    for (word, (list, resource, _)) in words.iter().zip(Sizes::default().quantities()) {
        if *word != "-" {
            resources[list][resource] = json!(word);
        }
    }
    Sizes::of(&json!({ "resources": resources }))
}

fn suggested(now: &str, change: impl Fn(&mut Observed<'_>)) -> String {
    suggested_after(10, now, change)
}

fn suggested_after(days: i64, now: &str, change: impl Fn(&mut Observed<'_>)) -> String {
    let lines = usual(days);
    let mut seen = seen(sized(now), &lines);
    change(&mut seen);
    suggest(&seen).unwrap().sizes.to_string()
}

#[test]
fn sizes_are_read_and_written_as_quantities() {
    for (text, shown) in [
        ("0.5 0.5Gi 1 1Gi", "500m 512Mi 1000m 1024Mi"),
        ("- 1000 - 128974848", "- 1000 - 123Mi"),
        ("- - - -", "- - - -"),
    ] {
        assert_eq!(sized(text).to_string(), shown);
    }
    let number = json!({"resources": {"requests": {"cpu": 2}, "limits": {"memory": "much"}}});
    assert_eq!(Sizes::of(&number).to_string(), "2000m - - -");
}

#[test]
fn requests_follow_p95_of_the_busiest_hour_and_the_memory_limit_the_peak() {
    assert_eq!(suggested("- - - -", |_| {}), "120m 120Mi - 160Mi");
    let lines = usual(10);
    let found = suggest(&seen(Sizes::default(), &lines)).unwrap();
    assert_eq!(
        found.why,
        "over 10 d of 1 Pod, p95 of the busiest hour is 100m CPU (14:00 UTC) and 100Mi memory (14:00 UTC), \
         the peaks are 400m and 120Mi"
    );
    assert_eq!(found.usage["memory_peak_bytes"], mi(120));
    assert_eq!(found.usage["from"], "2026-01-01T00:00:00.000Z");
    assert_eq!(found.usage["to"], "2026-01-11T00:00:00.000Z");
}

#[test]
fn sizes_that_almost_fit_stay() {
    for now in ["110m 112Mi - 150Mi", "130m 128Mi 2000m 176Mi"] {
        assert_eq!(suggested(now, |_| {}), now);
    }
    assert_eq!(
        suggested("500m 512Mi 1000m 1Gi", |_| {}),
        "120m 120Mi 1000m 160Mi"
    );
}

#[test]
fn a_memory_limit_is_lowered_after_a_week_only() {
    assert_eq!(
        suggested_after(6, "- - - 1Gi", |_| {}),
        "120m 120Mi - 1024Mi"
    );
    assert_eq!(
        suggested_after(7, "- - - 1Gi", |_| {}),
        "120m 120Mi - 160Mi"
    );
    assert_eq!(
        suggested_after(2, "- - - 64Mi", |_| {}),
        "120m 144Mi - 160Mi"
    );
}

#[test]
fn a_limit_that_was_too_small_is_raised_by_half() {
    let limit = |now: &str| suggested(now, |seen| seen.ran_out = true);
    assert_eq!(limit("120m 120Mi - 128Mi"), "120m 120Mi - 192Mi");
    // Not by the limit, which there is none of.
    assert_eq!(limit("120m 120Mi - -"), "120m 120Mi - 160Mi");
    let lines = usual(1);
    let mut out = seen(sized("- - 420m 128Mi"), &lines);
    out.ran_out = true;
    let found = suggest(&out).unwrap();
    assert_eq!(found.sizes.to_string(), "120m 144Mi 630m 192Mi");
    assert!(
        found.why.ends_with(
            "400m and 120Mi, and it ran out of memory at its limit of 128Mi, and its CPU limit is reached"
        ),
        "{}",
        found.why
    );
}

#[test]
fn a_limit_is_never_below_its_request() {
    assert_eq!(suggested("- - 50m 16Mi", |_| {}), "120m 120Mi 120m 160Mi");
    let scaled = |seen: &mut Observed<'_>| seen.autoscaler = "web";
    assert_eq!(suggested("10m 1Gi - 2Gi", scaled), "10m 1024Mi - 1024Mi");
}

#[test]
fn requests_stay_where_an_autoscaler_compares_usage_with_them() {
    let lines = usual(10);
    let mut scaled = seen(sized("10m 16Mi - -"), &lines);
    scaled.autoscaler = "web";
    let found = suggest(&scaled).unwrap();
    assert_eq!(found.sizes.to_string(), "10m 16Mi - 160Mi");
    assert!(
        found
            .why
            .ends_with("the HorizontalPodAutoscaler web may scale by them")
    );
}

#[test]
fn too_little_usage_gives_no_suggestion() {
    let error = |lines: &[Line; 2], is_run| {
        let mut few = seen(Sizes::default(), lines);
        few.is_run = is_run;
        suggest(&few).unwrap_err()
    };
    assert_eq!(
        error(&usual(0), false),
        "no usage of this version is stored"
    );
    let mut short = usual(1);
    short[1].aggregates.truncate(20);
    assert_eq!(
        error(&short, false),
        "usage of this version is stored for 5 h, and a day is needed"
    );
    // It was off for most of the time.
    let mut holes = usual(2);
    holes[1]
        .aggregates
        .retain(|aggregate| aggregate.at.millis() / STEP_MS % 8 == 0);
    assert_eq!(
        error(&holes, false),
        "usage of 24 quarters of an hour is stored, and 48 are needed"
    );
    assert_eq!(
        error(&holes, true),
        "usage of 1 runs is stored, and 3 are needed"
    );
    let mut no_cpu = usual(2);
    no_cpu[0].aggregates.clear();
    assert_eq!(error(&no_cpu, false), "its CPU usage is not stored");
}

#[test]
fn usage_counts_from_when_the_workload_became_what_it_is() {
    let times = |from: i64, to: i64| [from, to].map(Wall::from_millis);
    let since = |revisions: &[([Wall; 2], bool)]| unchanged_since(revisions).map(Wall::millis);
    // Restarted and scaled, which is the same workload.
    assert_eq!(
        since(&[
            (times(1, 2), false),
            (times(3, 4), true),
            (times(5, 6), true)
        ]),
        Some(3)
    );
    // Put back after a while, and not judged again yet.
    assert_eq!(since(&[(times(1, 9), true), (times(5, 6), false)]), Some(9));
    assert_eq!(since(&[(times(1, 2), true), (times(5, 6), false)]), None);
}

#[test]
fn a_pod_is_known_by_the_name_that_its_controller_gave_it() {
    for (kind, pod, wanted) in [
        ("Deployment", "web-7d4b9-x2x4z", true),
        ("Deployment", "web-api-7d4b9-x2x4z", false),
        ("StatefulSet", "web-0", true),
        ("StatefulSet", "web-0-x2x4z", false),
        ("DaemonSet", "web-x2x4z", true),
        ("DaemonSet", "web-api", false),
        ("CronJob", "web-29000000-x2x4z", true),
        ("CronJob", "web-x2x4z", false),
        ("Job", "web-x2x4z", false),
    ] {
        assert_eq!(
            is_pod_of((kind, "web"), &["web-7d4b9"], pod),
            wanted,
            "{kind} {pod}"
        );
    }
}
