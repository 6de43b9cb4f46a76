//! Promises about truth and withdrawal: how soon a change of the world is the first line, and how
//! soon a call ends that is no longer allowed, as the integration tests find it with the program
//! that is measured; and what an agent without work asks of its cluster.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Bench, Group, Results};
use crate::agent::{Agent, Kind};
use crate::child::Running;
use crate::os;
use crate::table::{Figure, Measured, number};

pub(crate) const TRUTH: Group = Group {
    name: "truth",
    about: "from a change of the world to a true first line, from a withdrawal to the cut (half an hour; only when it is named)",
    figures: &[
        Figure::new("cluster cut", "s"),
        Figure::new("cluster mended", "s"),
        Figure::new("API server stopped", "s"),
        Figure::new("API server started", "s"),
        Figure::new("control plane gone", "s"),
        Figure::new("control plane back", "s"),
        Figure::new("token refused", "s"),
        Figure::new("token replaced", "s"),
        Figure::new("Pod without its image", "s"),
        Figure::new("Pod deleted", "s"),
        Figure::new("manifest missing", "s"),
        Figure::new("manifest applied", "s"),
        Figure::new("from a stricter level to the cut", "s"),
        Figure::new("from a removed label to the cut", "s"),
        Figure::new(
            "from the freeze to the condition and the first refusal",
            "s",
        ),
        Figure::new("the page while the disk hangs", "ms"),
        Figure::new("plain reads while the disk hangs", "ms"),
        Figure::new(CALLS, "1/h"),
    ],
    measure: truth,
};

const CALLS: &str = "calls of a steady cluster's API";
/// Tests that print figures.
const TESTS: [&str; 3] = [
    "verdict::",
    "withdrawn::from_withdrawal",
    "hang::a_disk_that_hangs_is_told",
];
/// 90 s: an agent that starts compares all rights and lists everything once.
const SETTLES: Duration = Duration::from_secs(90);
/// 20 min: two rounds of what is done every ten minutes.
const STEADY_FOR: Duration = Duration::from_secs(1_200);
/// The same where it is only seen that it works.
const LOOKED_AT: Duration = Duration::from_secs(30);
/// 90 min: longer than everything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(5_400);
const LOOK: Duration = Duration::from_millis(500);

fn truth(bench: &mut Bench) -> Results {
    vec![(Kind::Ours, measured(bench))]
}

fn measured(bench: &Bench) -> Result<Vec<Measured>, String> {
    let ours = bench.agents.iter().find(|agent| agent.kind == Kind::Ours);
    let binary = ours.ok_or("our agent is not there")?.binary.clone();
    let work = bench.work.join("truth");
    std::fs::create_dir_all(&work).map_err(|error| error.to_string())?;
    let is_quick = bench.options.is_quick;
    let mut steady = Steady::start(bench, binary.clone(), &work)?;
    let log = work.join("log");
    let mut tests = Running::start("cargo test", &mut tests(bench, &binary, &log)?)?;
    let start = os::now();
    let ended = loop {
        steady.look()?;
        if let Some(status) = tests.ended()? {
            break status;
        }
        if os::since(start) > LIMIT {
            return Err(format!("the tests did not end within {LIMIT:?}"));
        }
        os::pause(LOOK);
    };
    if !ended.success() {
        return Err(format!("a promise was not kept: see {}", log.display()));
    }
    let calls = steady.calls(if is_quick { LOOKED_AT } else { STEADY_FOR })?;
    let text = std::fs::read_to_string(&log).map_err(|error| error.to_string())?;
    let taken = figures(&text);
    let figures = TRUTH.figures.iter();
    let found = |figure: &Figure| match taken.get(figure.name) {
        Some(taken) => taken.measured(figure.unit),
        None if figure.name == CALLS => calls.clone(),
        None => Measured::missing(format!("no line about it in {}", log.display())),
    };
    Ok(figures.map(found).collect())
}

/// The integration tests, with the program that is measured.
fn tests(bench: &Bench, binary: &Path, log: &Path) -> Result<Command, String> {
    let [changes, withdrawals] = if bench.options.is_quick {
        ["1", "2"]
    } else {
        ["10", "200"]
    };
    let log = File::create_new(log)
        .or_else(|_| File::options().write(true).truncate(true).open(log))
        .map_err(|error| format!("cannot write {}: {error}", log.display()))?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    let mut tests = os::program("cargo");
    tests
        .args(["test", "--quiet", "--locked", "--test", "it", "--"])
        .args(TESTS)
        .args(["--nocapture", "--test-threads", "3"])
        .current_dir(&bench.repository)
        .env("PIPEOPS_TEST_AGENT", binary)
        .env("PIPEOPS_VERDICT_TRIES", changes)
        .env("PIPEOPS_TEST_TRIES", withdrawals)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors);
    Ok(tests)
}

/// An agent that nobody asks anything, and a proxy that lists its calls.
struct Steady {
    agent: Agent,
    calls: Calls,
    started: Instant,
    /// Number of calls when it had settled, and the time.
    settled: Option<(usize, Instant)>,
}

impl Steady {
    fn start(bench: &Bench, binary: PathBuf, work: &Path) -> Result<Self, String> {
        let calls = Calls::listed(bench, work)?;
        let cluster = bench.cluster.by_way_of(&calls.url);
        let mut agent = Agent::new(Kind::Ours, binary, &work.join("steady"))?;
        agent.start(&cluster)?;
        Ok(Self {
            agent,
            calls,
            started: os::now(),
            settled: None,
        })
    }

    fn look(&mut self) -> Result<(), String> {
        self.agent.pid()?;
        if self.settled.is_none() && os::since(self.started) > SETTLES {
            self.settled = Some((self.calls.list()?.len(), os::now()));
        }
        Ok(())
    }

    /// Calls an hour, measured for at least so long.
    fn calls(mut self, at_least: Duration) -> Result<Measured, String> {
        let (before, since) = loop {
            self.look()?;
            match self.settled {
                Some(settled) if os::since(settled.1) >= at_least => break settled,
                Some(_) | None => os::pause(LOOK),
            }
        };
        let hours = os::since(since).as_secs_f64() / 3_600.0;
        let calls = self.calls.list()?;
        let new = calls.get(before..).unwrap_or_default();
        let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
        for call in new {
            let count = kinds.entry(call).or_default();
            *count = count.saturating_add(1);
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let most = kinds.iter().take(3);
        let most: Vec<_> = most
            .map(|(call, count)| format!("{call} {count}"))
            .collect();
        let count: u64 = kinds.iter().map(|(_, count)| count).sum();
        let note = format!("in {:.0} min: {}", hours * 60.0, most.join(", "));
        Ok(Measured::new(os::float(count) / hours, note))
    }
}

/// Calls that pass through kubectl's own proxy, which lists them.
struct Calls {
    list: PathBuf,
    url: String,
    _proxy: Running,
}

impl Calls {
    fn listed(bench: &Bench, work: &Path) -> Result<Self, String> {
        let list = work.join("calls");
        os::write(&list, "")?;
        let file = File::options().append(true).open(&list);
        let file = file.map_err(|error| format!("cannot open {}: {error}", list.display()))?;
        let mut kubectl = bench.cluster.kubectl_command()?;
        kubectl
            .args(["proxy", "--port", "0", "-v=6"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file);
        let mut proxy = Running::start("kubectl proxy", &mut kubectl)?;
        let mut line = String::new();
        let read = BufReader::new(proxy.output()?).read_line(&mut line);
        read.map_err(|error| format!("kubectl proxy says nothing: {error}"))?;
        let address = line.trim().rsplit(' ').next().unwrap_or_default();
        Ok(Self {
            url: format!("http://{address}"),
            list,
            _proxy: proxy,
        })
    }

    /// All calls so far.
    fn list(&self) -> Result<Vec<String>, String> {
        let text = std::fs::read_to_string(&self.list);
        let text = text.map_err(|error| format!("cannot read {}: {error}", self.list.display()))?;
        Ok(text.lines().filter_map(call).collect())
    }
}

/// Verb and resource of a line of the proxy about an answer.
fn call(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("\"Response\" verb=\"")?;
    let (verb, rest) = rest.split_once('"')?;
    let (_, rest) = rest.split_once("url=\"https://")?;
    let path = rest.split(['"', '?']).next()?;
    let (_, path) = path.split_once('/')?;
    Some(format!("{verb} /{path}"))
}

/// A figure of a test.
#[derive(Clone, Debug, PartialEq)]
struct Taken {
    p50: Option<Duration>,
    most: Duration,
    count: Option<u64>,
}

impl Taken {
    /// The longest; the others are the note.
    fn measured(&self, unit: &str) -> Measured {
        let of = |length: Duration| match unit {
            "ms" => length.as_secs_f64() * 1e3,
            _ => length.as_secs_f64(),
        };
        let note = match (self.p50, self.count) {
            (Some(p50), Some(count)) => {
                format!("the longest of {count}; p50 {} {unit}", number(of(p50)))
            }
            _ => "once".to_owned(),
        };
        Measured::new(of(self.most), note)
    }
}

/// Lines `figure: NAME: p50 1.2s, max 3.4s of 10` and `figure: NAME: 1.2s`.
fn figures(text: &str) -> BTreeMap<&str, Taken> {
    let line = |line| -> Option<(&str, Taken)> {
        let (_, rest): (&str, &str) = str::split_once(line, "figure: ")?;
        let (name, values) = rest.rsplit_once(": ")?;
        let taken = match values.strip_prefix("p50 ") {
            Some(values) => {
                let (p50, values) = values.split_once(", max ")?;
                let (most, count) = values.split_once(" of ")?;
                Taken {
                    p50: Some(duration(p50)?),
                    most: duration(most)?,
                    count: Some(count.trim().parse().ok()?),
                }
            }
            None => Taken {
                p50: None,
                most: duration(values.trim())?,
                count: None,
            },
        };
        Some((name, taken))
    };
    text.lines().filter_map(line).collect()
}

/// A length of time as Rust prints it.
fn duration(text: &str) -> Option<Duration> {
    let place = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (digits, unit) = text.split_at_checked(place)?;
    let value: f64 = digits.parse().ok()?;
    let scale = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    };
    Duration::try_from_secs_f64(value * scale).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_tests_are_found_among_their_other_lines() {
        let text = "running 3 tests\n\
            test hang::it ... figure: the page while the disk hangs: p50 1.9ms, max 12.0ms of 100\n\
            figure: cluster cut: p50 12.5s, max 13.4s of 10\n\
            figure: from the freeze to the condition and the first refusal: 4.4s\n\
            figure: 12 writes acknowledged around 15 hangs, none lost\n";
        let found = figures(text);
        assert_eq!(found.len(), 3);
        let cut = found["cluster cut"].measured("s");
        assert_eq!(cut.value, Some(13.4));
        assert!(
            cut.note.contains("10") && cut.note.contains("12.5"),
            "{}",
            cut.note
        );
        let page = found["the page while the disk hangs"].measured("ms");
        assert_eq!(page.value.map(f64::round), Some(12.0));
        let condition = TRUTH.figures.iter().find(|it| it.name.contains("freeze"));
        assert_eq!(found[condition.unwrap().name].count, None);
    }

    #[test]
    fn answers_are_counted_and_other_lines_of_the_proxy_are_not() {
        let answer = "I1 1 1 round_trippers.go:632] \"Response\" verb=\"GET\" \
            url=\"https://10.0.0.2:6443/api/v1/nodes?watch=true\" status=\"200 OK\" milliseconds=40";
        assert_eq!(call(answer).as_deref(), Some("GET /api/v1/nodes"));
        assert_eq!(
            call("I1 1 1 proxy_server.go:131] Filter accepting GET /api/v1/nodes"),
            None
        );
    }
}
