//! Reading, writing, watching: everything of kubectl that is a plain request.

use std::time::Duration;

use super::{bench::Bench, running::Running};
use crate::agent::{SOON, put};

#[test]
fn kubectl_reads_writes_and_watches_while_heartbeats_carry_the_cluster() {
    let Some(mut bench) = Bench::calm() else {
        return;
    };
    bench.in_both_forms(|bench, _| {
        reads(bench);
        applies_and_deletes(bench);
        watches_and_follows(bench);
    });
    carries_the_cluster(&bench);
    assert_eq!(bench.plane.violations(), Vec::<String>::new());
}

fn reads(bench: &Bench) {
    assert!(bench.text(&["get", "nodes"]).contains(" Ready "));
    let described = bench.text(&["describe", "pod", "shell", "-n", "fixtures"]);
    assert!(described.contains("Container ID:"), "{described}");
    let can = ["auth", "can-i", "create", "pods/exec", "-n", "fixtures"];
    assert_eq!(bench.text(&can), "yes\n");
    let whoami = bench.text(&["auth", "whoami"]);
    assert!(whoami.contains(":pipeops-cp"), "{whoami}");
}

fn applies_and_deletes(bench: &Bench) {
    let manifest = bench.agent.folder().join("map.yaml");
    let file = manifest.display().to_string();
    let map = |letter: &str| {
        let head =
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: through, namespace: fixtures}\n";
        put(
            &manifest,
            &format!("{head}data: {{letter: \"{letter}\"}}\n"),
        );
    };
    let letter = ["get", "-f", &file, "-o", "jsonpath={.data.letter}"];
    map("ä/ß");
    assert!(bench.text(&["apply", "-f", &file]).contains("created"));
    assert_eq!(bench.text(&letter), "ä/ß");
    map("another");
    assert!(bench.text(&["apply", "-f", &file]).contains("configured"));
    let by_server = ["apply", "-f", &file, "--server-side", "--force-conflicts"];
    assert!(bench.text(&by_server).contains("serverside-applied"));
    assert_eq!(bench.text(&letter), "another");
    assert!(bench.text(&["delete", "-f", &file]).contains("deleted"));
    let gone = bench.run(&letter);
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(
        gone.status.code() == Some(1) && said.contains("NotFound"),
        "{said}"
    );
}

fn watches_and_follows(bench: &Bench) {
    let watch = ["get", "configmaps", "-n", "fixtures", "-w", "-o", "name"];
    let mut watch = Running::start(bench.kubectl(&watch));
    let log = ["logs", "-f", "logger", "-n", "fixtures", "--tail=1"];
    let mut log = Running::start(bench.kubectl(&log));
    log.line("a line of the log", |line| line.starts_with("line "));
    log.line("the line after it", |line| line.starts_with("line "));
    bench.text(&["create", "configmap", "watched", "-n", "fixtures"]);
    watch.line("the new object", |line| line == "configmap/watched");
    bench.text(&["delete", "configmap", "watched", "-n", "fixtures"]);
    watch.line("its end", |line| line == "configmap/watched");
    for command in [&mut watch, &mut log] {
        command.interrupt();
        command.ends(SOON);
    }
}

fn carries_the_cluster(bench: &Bench) {
    // The first one may go out before both lists are complete.
    let beat = bench.plane.until(Duration::from_secs(45), |view| {
        let beat = view.heartbeats.back()?;
        let is_whole =
            beat["metadata"]["k8s_nodes"] == 1 && beat["metadata"]["k8s_pods"].as_u64() >= Some(5);
        is_whole.then(|| beat.clone())
    });
    let beat = beat.expect("a heartbeat with one node and its pods");
    let version = beat["metadata"]["k8s_version"].as_str().unwrap();
    assert!(version.starts_with("v1."), "{beat}");
}
