//! Requests and limits from stored usage: shown, deployed, kept, and taken back.

use std::time::Duration;

use pipeops_agent::{
    core::{
        series::{Key, Point, Series, Tick},
        time::{Mono, Now, Wall},
    },
    store::telemetry::{Options, Telemetry},
};
use serde_json::{Value, json};
use smol::block_on;

use super::{Bench, SOON, deployment};
use crate::agent::until_every;

const DAY_MS: i64 = 86_400_000;
const EVERY_MS: i64 = 900_000;
const MI: i64 = 1 << 20;
const SIZED: &str =
    ", resources: {requests: {cpu: 500m, memory: 16Mi}, limits: {cpu: \"1\", memory: 32Mi}}";

fn point(name: &str, (namespace, pod): (&str, &str), digits: u8, value: i64) -> Point {
    let labels = [("namespace", namespace), ("pod", pod)];
    Point {
        series: Series {
            key: Key::new(name, &labels).unwrap(),
            digits,
        },
        value,
    }
}

impl Bench {
    /// Stops the agent, makes its app a week older, and stores usage of this Pod for `days` up to
    /// now: 40 Mi and 0.05 cores, in the hour from 14:00 UTC 60 Mi and 0.1 cores.
    fn used(&mut self, app: &str, pod: &str, days: i64) {
        self.agent.stop();
        let week = |time: &mut Value| *time = json!(time.as_i64().unwrap() - 8 * DAY_MS);
        let now = self.record(app)["revisions"][0]["at"].as_i64().unwrap();
        self.change_record(app, |record| {
            for revision in record["revisions"].as_array_mut().unwrap() {
                week(&mut revision["at"]);
                week(&mut revision["since"]);
            }
        });
        let first = now - days * DAY_MS;
        let at = |wall: i64| Now {
            mono: Mono::since_boot(Duration::from_millis(
                u64::try_from(wall - first).unwrap() + 60_000,
            )),
            wall: Wall::from_millis(wall),
        };
        let options = Options {
            disk_bytes_max: 256 << 20,
            boot_id: "a boot that is over".to_owned(),
            epoch: 7,
        };
        let place = (self.namespace.as_str(), pod);
        block_on(async {
            let opened = Telemetry::open(&self.agent.state(""), options, at(first)).await;
            let (telemetry, conditions) = opened.unwrap();
            assert_eq!(conditions, []);
            let handle = telemetry.handle();
            for wall in (0..days * DAY_MS / EVERY_MS).map(|step| first + step * EVERY_MS) {
                let is_busy = wall / 3_600_000 % 24 == 14;
                let (cpu, memory) = if is_busy {
                    (1000, 60 * MI)
                } else {
                    (500, 40 * MI)
                };
                let points = vec![
                    point("cluster_pod_cpu_cores", place, 4, cpu),
                    point("cluster_pod_memory_working_set_bytes", place, 0, memory),
                ];
                let tick = Tick {
                    at: at(wall),
                    clock_is_set: true,
                    points,
                };
                handle.take(tick).await.unwrap();
                handle.flush(at(wall), true).await.unwrap();
                if wall / EVERY_MS % 4 == 0 {
                    assert_eq!(handle.tend(at(wall)).await.unwrap(), []);
                }
            }
            telemetry.close().await.unwrap();
        });
        self.agent.start();
        self.agent.until_linked();
    }

    fn suggested(&self, app: &str) -> (i32, Value) {
        let (code, said) = self.apps(&["suggest", app, "--json"]);
        let value = serde_json::from_str(&said);
        (
            code,
            value.unwrap_or_else(|error| panic!("{error}: {said}")),
        )
    }

    fn until_good(&self, app: &str, revision: u64) {
        let what = format!("revision {revision} of {app} is good");
        until_every(Duration::from_millis(500), &what, SOON, || {
            let (_, why) = self.why(app);
            (why["good"] == revision && why["runs"] == revision).then_some(())
        });
    }

    fn sizes(&self, name: &str) -> Value {
        let fields = "{.spec.template.spec.containers[0].resources}";
        serde_json::from_str(&self.get(&format!("deployment/{name}"), fields)).unwrap()
    }
}

#[test]
fn sizes_from_stored_usage_are_shown_deployed_kept_and_taken_back() {
    let soaks = |agent: crate::agent::Agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300");
    let Some(mut bench) = Bench::prepared(soaks) else {
        return;
    };
    bench.bind();
    let (code, said) = bench.apply("web", &deployment("web", SIZED));
    assert_eq!(code, 0, "{said}");
    bench.until_good("web", 1);
    let (code, said) = bench.apps(&["suggest", "web"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("nothing can be suggested yet"), "{said}");

    let pods = bench.get("pods", "{.items[*].metadata.name}");
    bench.used("web", &pods, 8);
    let (code, found) = bench.suggested("web");
    let container = &found["containers"][0];
    assert_eq!(
        (code, &container["state"]),
        (0, &json!("change")),
        "{found}"
    );
    let wanted = json!({"cpu_request": "120m", "memory_request": "72Mi", "cpu_limit": "1000m", "memory_limit": "80Mi"});
    assert_eq!(container["suggested"], wanted);
    assert_eq!(container["usage"]["cpu_hour"], 14);
    assert_eq!(container["usage"]["memory_peak_bytes"], 60 * MI);
    let (code, said) = bench.apps(&["suggest", "web"]);
    assert_eq!(code, 0, "{said}");
    for part in [
        "Deployment/web, container web",
        "CPU request: 500m -> 120m",
        "CPU limit: 1000m\n",
        "p95 of the busiest hour is 100m CPU (14:00 UTC) and 60Mi memory (14:00 UTC)",
        "apply: sudo pipeops-agent apps suggest web --apply",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }

    let (code, said) = bench.apps(&["suggest", "web", "--apply", "--wait"]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("undo: sudo pipeops-agent apps rollback web"),
        "{said}"
    );
    let sized = json!({"requests": {"cpu": "120m", "memory": "72Mi"}, "limits": {"cpu": "1", "memory": "80Mi"}});
    assert_eq!(bench.sizes("web"), sized);
    // Another version of the same manifest keeps them; its usage begins anew.
    let other = format!("{SIZED}, env: [{{name: LEVEL, value: two}}]");
    let (code, said) = bench.apply("web", &deployment("web", &other));
    assert_eq!(code, 0, "{said}");
    bench.until_good("web", 3);
    assert_eq!(bench.sizes("web"), sized);
    assert_eq!(bench.suggested("web").0, 2);

    let (code, said) = bench.apps(&["rollback", "web", "--to", "1", "--wait"]);
    assert_eq!(code, 0, "{said}");
    let before = json!({"requests": {"cpu": "500m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "32Mi"}});
    assert_eq!(bench.sizes("web"), before);
    // Other words of the manifest win.
    let (code, said) = bench.apps(&["rollback", "web", "--to", "2", "--wait"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(bench.sizes("web"), sized);
    let larger = SIZED.replace("32Mi", "64Mi");
    let (code, said) = bench.apply("web", &deployment("web", &larger));
    assert_eq!(code, 0, "{said}");
    bench.until_good("web", 4);
    let own = json!({"requests": {"cpu": "500m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}});
    assert_eq!(bench.sizes("web"), own);
}

#[test]
fn pods_of_several_containers_and_little_usage_give_no_suggestion() {
    let soaks = |agent: crate::agent::Agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300");
    let Some(mut bench) = Bench::prepared(soaks) else {
        return;
    };
    bench.bind();
    let one = deployment("one", "");
    let two = deployment("two", "");
    let image = super::IMAGE;
    let beside = format!(
        "      - {{name: beside, image: \"{image}\", imagePullPolicy: Never, command: [sleep, \"3600\"]}}\n"
    );
    let (code, said) = bench.apply("web", &format!("{one}---\n{two}{beside}"));
    assert_eq!(code, 0, "{said}");
    bench.until_good("web", 1);
    let pod = bench.get(
        "pods",
        "{.items[?(@.metadata.labels.app==\"one\")].metadata.name}",
    );
    bench.used("web", &pod, 0);
    let (code, found) = bench.suggested("web");
    assert_eq!((code, &found["change"]), (2, &Value::Null));
    let containers = found["containers"].as_array().unwrap();
    let states: Vec<_> = containers.iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["unknown"; 3]);
    let why = |index: usize| containers[index]["why"].as_str().unwrap();
    assert!(
        why(0).contains("usage of this version is stored"),
        "{}",
        why(0)
    );
    assert!(
        why(1).starts_with("its Pods run 2 containers"),
        "{}",
        why(1)
    );
    let (code, said) = bench.apps(&["suggest", "web", "--apply"]);
    assert_eq!(code, 2, "{said}");
    assert_eq!(bench.record("web")["running"], 1);
    let (code, said) = bench.apps(&["suggest", "nothing"]);
    assert!(
        code == 2 && said.contains("there is no app nothing"),
        "{said}"
    );
}
