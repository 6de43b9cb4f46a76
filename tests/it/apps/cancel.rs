//! A change that is under way is cancelled: dropped, taken back, or left as it is.

use serde_json::json;

use super::{Bench, SOON, config_map, drift::LOOK};
use crate::agent::until_every;

#[test]
fn a_change_is_cancelled_in_the_queue_in_progress_and_at_the_first_version() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.bind();
    let deploys = |bench: &Bench, app: &str, value: &str| {
        let (code, said) = bench.apply(app, &config_map(app, value));
        assert_eq!(code, 0, "{said}");
    };
    let cancels = |bench: &Bench, app: &str| {
        let (code, said) = bench.apps(&["cancel", app]);
        assert_eq!(code, 0, "{said}");
        said
    };

    // A first version stays.
    deploys(&bench, "web", "one");
    bench.until_verdict("web", "soaking");
    let said = cancels(&bench, "web");
    assert!(
        said.starts_with("web: revision 1 was cancelled by ")
            && said.contains("stays as it is, because no other version was good"),
        "{said}"
    );
    let (code, why) = bench.why("web");
    assert_eq!(
        (code, &why["verdict"], &why["change"]["state"]),
        (1, &json!("bad"), &json!("failed")),
        "{why:#}"
    );
    assert_eq!(bench.get("configmap/web", "{.data.value}"), "one");
    let (code, said) = bench.apps(&["cancel", "web"]);
    assert!(
        code == 2 && said.contains("no change of web is under way"),
        "{said}"
    );

    // A later one goes back to the last that was good.
    bench.are_good(&["web"]);
    deploys(&bench, "web", "two");
    bench.until_verdict("web", "soaking");
    assert_eq!(bench.get("configmap/web", "{.data.value}"), "two");
    let said = cancels(&bench, "web");
    assert!(said.contains("and revision 1 is put back"), "{said}");
    until_every(LOOK, "it is put back", SOON, || {
        (bench.get("configmap/web", "{.data.value}") == "one").then_some(())
    });
    let (_, history) = bench.apps(&["history", "web"]);
    assert!(
        history.contains("bad") && history.contains("revision 2 was cancelled by"),
        "{history}"
    );
    let (code, said) = bench.apps(&["cancel", "web"]);
    assert!(code == 0, "{said}");

    // One that waits for its turn is dropped, and the others go on.
    for name in ["a", "b", "c", "d", "e", "f", "g", "h", "late"] {
        deploys(&bench, name, "one");
    }
    bench.until_verdict("late", "waiting");
    let said = cancels(&bench, "late");
    assert!(said.contains("before anything of it was written"), "{said}");
    assert!(!bench.objects("configmaps").contains("late"));
    bench.until_verdict("h", "soaking");
    deploys(&bench, "late", "two");
    bench.until_verdict("late", "waiting");
}
