//! Apps with an autoscaler: the number of Pods stays as it is while versions change hands.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::JoinHandle,
    time::Duration,
};

use super::{Bench, SOON, deployment, drift::LOOK};
use crate::{
    agent::{command, until_every},
    cluster::{admin, kubectl, variable},
};

/// Every number of Pods that a Deployment is given.
struct Numbers {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    reader: Option<JoinHandle<()>>,
}

impl Numbers {
    #[expect(
        clippy::disallowed_methods,
        reason = "it reads what kubectl prints, and ends with it"
    )]
    fn of(bench: &Bench, name: &str) -> Self {
        let fields = "jsonpath={.spec.replicas}{\"\\n\"}";
        let mut child = command(variable("KUBECTL"))
            .arg("--kubeconfig")
            .arg(admin())
            .args([
                "-n",
                &bench.namespace,
                "get",
                "deployment",
                name,
                "--watch",
                "-o",
                fields,
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (send, received) = channel();
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                send.send(line).ok();
            }
        });
        let mut numbers = Self {
            child,
            lines: received,
            seen: Vec::new(),
            reader: Some(reader),
        };
        until_every(Duration::from_millis(100), "it watches", SOON, || {
            (!numbers.seen().is_empty()).then_some(())
        });
        numbers
    }

    fn seen(&mut self) -> &[String] {
        self.seen.extend(self.lines.try_iter());
        &self.seen
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }
}

fn scaled(name: &str, replicas: &str, level: &str) -> String {
    let more = format!(", env: [{{name: LEVEL, value: {level}}}]");
    deployment(name, &more).replace("spec:\n  selector", &format!("spec:\n{replicas}  selector"))
}

fn scaler(name: &str) -> String {
    format!(
        "---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: {name}}}\nspec:\n  maxReplicas: 4\n  \
         minReplicas: 2\n  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}\n"
    )
}

const TWO: &str = "  replicas: 2\n";

#[test]
fn the_number_of_the_manifests_is_back_where_the_autoscaler_left_them() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let deployed = |manifests: &str| {
        let (code, said) = bench.apply("web", manifests);
        assert_eq!(code, 0, "{said}");
        bench.until_verdict("web", "good");
    };
    deployed(&(scaled("web", "", "one") + &scaler("web")));
    let number = || bench.get("deployment/web", "{.spec.replicas}");
    until_every(LOOK, "it is scaled", SOON, || {
        (number() == "2").then_some(())
    });
    deployed(&scaled("web", "  replicas: 1\n", "two"));
    // Pruning follows the verdict, and the number of Pods follows pruning.
    until_every(LOOK, "its own number", SOON, || {
        (number() == "1").then_some(())
    });
    assert!(!bench.objects("hpa").contains("/web"));
}

#[test]
fn the_number_of_pods_stays_when_it_is_left_to_an_autoscaler() {
    let Some(bench) = Bench::new() else { return };
    bench.bind();
    let deployed = |app: &str, manifests: &str| {
        let (code, said) = bench.apply(app, manifests);
        assert_eq!(code, 0, "{said}");
        bench.until_verdict(app, "soaking");
    };
    deployed("own", &scaled("own", TWO, "one"));
    deployed("foreign", &scaled("foreign", TWO, "one"));
    let mut numbers = ["own", "foreign"].map(|name| Numbers::of(&bench, name));
    // Its own comes in the version that leaves the number out, and is written after the workload.
    deployed("own", &(scaled("own", "", "two") + &scaler("own")));
    assert!(
        bench
            .objects("hpa")
            .contains("horizontalpodautoscaler.autoscaling/own")
    );
    let scale = ["-n", &bench.namespace, "autoscale", "deployment", "foreign"];
    kubectl(&[&scale[..], &["--min=2", "--max=4"]].concat());
    deployed("foreign", &scaled("foreign", "", "two"));
    // A number in the manifests is not written over that of the autoscaler either.
    let three = [
        "-n",
        &bench.namespace,
        "scale",
        "deployment",
        "foreign",
        "--replicas=3",
    ];
    kubectl(&three);
    deployed("foreign", &scaled("foreign", TWO, "three"));
    for (name, numbers) in ["own", "foreign"].iter().zip(&mut numbers) {
        let path = format!("deployment/{name}");
        let level = bench.get(&path, "{.spec.template.spec.containers[0].env[0].value}");
        assert_ne!(level, "one", "{name}");
        let seen = numbers.seen();
        let is_fine = |number: &String| ["2", "3"].contains(&number.as_str());
        assert!(
            seen.len() > 1 && seen.iter().all(is_fine),
            "{name}: {seen:?}"
        );
    }
    assert_eq!(bench.get("deployment/foreign", "{.spec.replicas}"), "3");
    let (code, said) = bench.apps(&["remove", "own"]);
    assert_eq!(code, 0, "{said}");
    assert!(!bench.objects("hpa").contains("/own"));
}
