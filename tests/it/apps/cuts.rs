//! The end of the process right after a write of a change, in the journal, in the records or in the
//! cluster: the next start brings the app where it was meant to be, without a person, and no id is
//! carried out twice.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};

use super::{SOON, command::Bench, deployment, job};
use crate::{
    agent::{clock, put, until_every},
    cluster::kubectl,
};

const LOOK: Duration = Duration::from_millis(50);
/// No step has that many writes.
const WRITES_MAX: usize = 60;

/// A change that is cut off, by the name that the table has for it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Deploy,
    Remove,
    Rollback,
    BadUpdate,
}

struct Cuts {
    bench: Bench,
    file: PathBuf,
    is_long: bool,
    /// Commands so far: the id of the next one.
    commands: usize,
    /// Changes that were cut off so far.
    count: usize,
}

fn version(value: &str, more: &str) -> String {
    let map = format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{value: {value}}}\n---\n"
    );
    deployment("web", more) + &map + &job("true")
}

/// The write after which an agent ended, by its log.
fn last_write(log: &str) -> String {
    let (_, last) = log.rsplit_once("cut after: ").unwrap();
    last.lines().next().unwrap().to_owned()
}

impl Cuts {
    fn new() -> Option<Self> {
        let bench = Bench::prepared("managed", |agent| {
            let file = agent.folder().join("cut").display().to_string();
            agent
                .with("PIPEOPS_TEST_CUT_FILE", file)
                .with("PIPEOPS_TEST_SOAK_MS", "300")
        })?;
        Some(Self {
            file: bench.agent.folder().join("cut"),
            bench,
            is_long: std::env::var_os("PIPEOPS_TORTURE").is_some(),
            commands: 0,
            count: 0,
        })
    }

    /// Returns whether a change of this kind is cut off after its nth write: each one in the long
    /// run.
    fn is_tried(&self, step: Step, write: usize) -> bool {
        let some: &[usize] = match step {
            Step::Deploy => &[12],
            Step::Remove | Step::Rollback => &[],
            Step::BadUpdate => &[22],
        };
        self.is_long || some.contains(&write)
    }

    fn next_id(&mut self) -> String {
        self.commands += 1;
        format!("c-{}", self.commands)
    }

    fn does(&mut self, verb: &str, args: &Value) -> Value {
        let id = self.next_id();
        self.bench.accepted(&id, verb, args);
        self.bench.outcome(&id)
    }

    fn list(&self, kind: &str, fields: &str) -> String {
        let fields = format!("jsonpath={fields}");
        kubectl(&["-n", &self.bench.namespace, "get", kind, "-o", &fields])
    }

    fn jobs(&self) -> String {
        self.list("jobs", "{.items[*].metadata.uid}")
    }

    fn value(&self) -> String {
        let fields = r#"{.items[?(@.metadata.name=="settings")].data.value}"#;
        self.list("configmaps", fields)
    }

    /// Records and revisions that are kept.
    fn kept(&self) -> String {
        let own = ["-n", self.bench.accounts.namespace(), "get", "secrets"];
        let fields = "jsonpath={range .items[*]}{.metadata.name} {end}";
        let names = kubectl(&[&own[..], &["-o", fields]].concat());
        let ours = |name: &&str| name.starts_with("pipeops-app.web");
        let names: Vec<_> = names.split_whitespace().filter(ours).collect();
        names.join(" ")
    }

    fn revisions(&self) -> usize {
        let (code, said) = self.bench.apps(&["history", "web", "--json"]);
        assert_eq!(code, 0, "{said}");
        let history: Value = serde_json::from_str(&said).unwrap();
        history
            .as_array()
            .unwrap_or_else(|| panic!("{history:#}"))
            .len()
    }

    /// Carries a command out while the agent ends after its nth write. Returns the last write and
    /// the outcome; `None`: it has fewer writes.
    fn cut(&mut self, write: usize, verb: &str, args: &Value) -> Option<(String, Value)> {
        let id = self.next_id();
        put(&self.file, &"x".repeat(write));
        self.bench.plane.command(&id, verb, args);
        let bench = &mut self.bench;
        let is_cut = until_every(LOOK, "it is cut off or over", SOON, || {
            if bench.agent.has_ended() {
                return Some(true);
            }
            let outcome = bench.plane.outcome(&id, Duration::ZERO);
            outcome.map(|_| false)
        });
        std::fs::remove_file(&self.file).unwrap();
        if !is_cut {
            return None;
        }
        let bench = &mut self.bench;
        bench.agent.wait_end(SOON);
        let last = last_write(&bench.agent.log());
        let jobs = self.jobs();
        let bench = &mut self.bench;
        let restarted = bench.plane.mark();
        bench.agent.start();
        bench.agent.until_linked();
        bench.until_agreed_after(restarted);
        // Content alone is of a change that was not accepted.
        let is_there = |cuts: &Self| cuts.kept().split(' ').any(|name| name == "pipeops-app.web");
        let revisions = |cuts: &Self| is_there(cuts).then(|| cuts.revisions());
        for round in ["again", "after its end"] {
            let before = (round == "after its end").then(|| revisions(self));
            let again = self.bench.commanded(&id, verb, args);
            assert_eq!(again["state"], "known", "{last}, {round}: {again:#}");
            self.bench.outcome(&id);
            if let Some(before) = before {
                assert_eq!(before, revisions(self), "{last}: it was carried out twice");
            }
        }
        let outcome = self.bench.outcome(&id);
        if verb != "app.remove" && !jobs.is_empty() {
            assert_eq!(self.jobs(), jobs, "{last}: the Job ran twice");
        }
        self.count += 1;
        Some((last, outcome))
    }

    /// Returns whether a change that was cut off was accepted, and a line of the table. What was
    /// not is said to have done nothing.
    fn was_accepted(step: Step, write: usize, (last, outcome): &(String, Value)) -> bool {
        let (state, why) = (&outcome["state"], outcome["why"].as_str().unwrap());
        println!("{step:?} {write:>2}  {last:<40} {state}: {why}");
        let is_early = ["journal: begin", "content of a revision"].contains(&last.as_str());
        if is_early {
            assert_eq!(state, "failed", "{outcome:#}");
            assert!(why.contains("nothing of it was done"), "{outcome:#}");
        }
        !is_early
    }

    /// A new app is deployed and removed, cut off after the nth write of each. Says whether one of
    /// them has that many.
    fn comes_and_goes(&mut self, write: usize) -> bool {
        let args = self.bench.apply("web", &version("one", ""));
        let mut had = false;
        let is_there = self.is_tried(Step::Deploy, write)
            && match self.cut(write, "app.apply", &args) {
                None => true,
                Some(cut) => {
                    had = true;
                    let is_accepted = Self::was_accepted(Step::Deploy, write, &cut);
                    assert_eq!(self.value(), if is_accepted { "one" } else { "" });
                    assert!(!is_accepted || cut.1["state"] == "done", "{:#}", cut.1);
                    is_accepted
                }
            };
        if !is_there {
            assert_eq!(self.does("app.apply", &args)["state"], "done");
        }
        assert_eq!((self.value().as_str(), self.revisions()), ("one", 1));
        let args = json!({"app": "web"});
        let is_gone = self.is_tried(Step::Remove, write)
            && match self.cut(write, "app.remove", &args) {
                None => true,
                Some(cut) => {
                    had = true;
                    let is_accepted = Self::was_accepted(Step::Remove, write, &cut);
                    assert!(!is_accepted || cut.1["state"] == "done", "{:#}", cut.1);
                    is_accepted
                }
            };
        if !is_gone {
            assert_eq!(self.value(), "one");
            assert_eq!(self.does("app.remove", &args)["state"], "done");
        }
        assert_eq!(self.kept(), "");
        let left = self.list("configmaps,deployments,jobs", "{.items[*].metadata.name}");
        assert_eq!(left.trim(), "kube-root-ca.crt");
        had
    }

    /// Back to an earlier version, cut off after the nth write.
    fn goes_back(&mut self, write: usize) -> bool {
        let (to, wanted) = match self.value().as_str() {
            "one" => (2, "two"),
            _ => (1, "one"),
        };
        let before = self.value();
        let args = json!({"app": "web", "to": to});
        let Some(cut) = self.cut(write, "app.rollback", &args) else {
            return false;
        };
        let is_accepted = Self::was_accepted(Step::Rollback, write, &cut);
        assert!(!is_accepted || cut.1["state"] == "done", "{:#}", cut.1);
        let value = if is_accepted { wanted } else { &before };
        assert_eq!((self.value().as_str(), self.revisions()), (value, 2));
        true
    }

    /// A version that does not work, cut off after the nth write: it is rolled back.
    fn fails(&mut self, write: usize) -> bool {
        let more = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: only-new}\n";
        let bad = version(&format!("bad-{write}"), ", command: [/app/missing]") + more;
        let before = self.value();
        let args = self.bench.apply("web", &bad);
        let Some(cut) = self.cut(write, "app.apply", &args) else {
            return false;
        };
        if Self::was_accepted(Step::BadUpdate, write, &cut) {
            assert_eq!(cut.1["state"], "undone", "{:#}", cut.1);
            let why = cut.1["why"].as_str().unwrap();
            assert!(why.starts_with("rolled back to revision "), "{why}");
            assert!(why.contains("cannot be started"), "{why}");
        }
        let command = "{.spec.template.spec.containers[0].command}";
        assert_eq!(self.bench.get("deployment/web", command), "");
        assert_eq!(self.value(), before);
        assert!(
            !self
                .list("configmaps", "{.items[*].metadata.name}")
                .contains("only-new")
        );
        let (_, said) = self.bench.apps(&["why", "web", "--json"]);
        let why: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(why["running"]["verdict"], "good", "{why:#}");
        true
    }

    /// Cuts a change off after each of its writes.
    fn at_each_write(&mut self, step: Step, change: fn(&mut Self, usize) -> bool) {
        for write in 1..=WRITES_MAX {
            if self.is_tried(step, write) && !change(self, write) {
                assert!(self.is_long, "{step:?} has fewer than {write} writes");
                return;
            }
        }
        assert!(!self.is_long, "{step:?} has more writes than are tried");
    }
}

#[test]
fn a_change_that_is_cut_off_at_any_write_ends_right_and_once() {
    let Some(mut cuts) = Cuts::new() else { return };
    let began = clock();
    for write in 1..=WRITES_MAX {
        let is_tried = [Step::Deploy, Step::Remove].map(|step| cuts.is_tried(step, write));
        if is_tried.contains(&true) && !cuts.comes_and_goes(write) {
            break;
        }
    }
    for value in ["one", "two"] {
        let args = cuts.bench.apply("web", &version(value, ""));
        assert_eq!(cuts.does("app.apply", &args)["state"], "done");
    }
    cuts.at_each_write(Step::Rollback, Cuts::goes_back);
    cuts.at_each_write(Step::BadUpdate, Cuts::fails);
    println!("{} cuts in {} s", cuts.count, (clock() - began).as_secs());
    assert_eq!(cuts.bench.plane.violations(), Vec::<String>::new());
}
