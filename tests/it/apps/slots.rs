//! Changes that wait for something that may never come: they keep no other app from anything.

use super::{Bench, SOON, config_map, deployment, drift::LOOK};
use crate::agent::until_every;

#[test]
fn an_app_goes_back_is_removed_and_is_deployed_beside_changes_that_wait() {
    let Some(bench) = Bench::prepared(|agent| agent.with("PIPEOPS_TEST_SOAK_MS", "300")) else {
        return;
    };
    bench.bind();
    let deploys = |app: &str, manifests: &str| {
        let (code, said) = bench.apply(app, manifests);
        assert_eq!(code, 0, "{said}");
    };
    for (app, value) in [("web", "one"), ("gone", "one"), ("web", "two")] {
        deploys(app, &config_map(app, value));
        bench.until_verdict(app, "good");
    }
    assert_eq!(bench.get("configmap/web", "{.data.value}"), "two");
    for app in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let waits = deployment(app, "").replace("  selector", "  paused: true\n  selector");
        deploys(app, &waits);
        bench.until_verdict(app, "paused");
    }

    let (code, said) = bench.apps(&["rollback", "web"]);
    assert_eq!(code, 0, "{said}");
    until_every(LOOK, "it went back", SOON / 6, || {
        (bench.get("configmap/web", "{.data.value}") == "one").then_some(())
    });
    bench.until_verdict("web", "good");
    let (code, said) = bench.apps(&["remove", "gone"]);
    assert_eq!(code, 0, "{said}");

    deploys("late", &config_map("late", "one"));
    bench.until_verdict("late", "waiting");
    assert_eq!(bench.apps(&["pause", "late"]).0, 0);
    bench.until_verdict("late", "good");
    bench.until_verdict("a", "paused");
}
