//! Kubeconfigs for people.

use super::{super::k3s::View, *};
use crate::core::k3s::{KUBECONFIG, viewer};

fn machine() -> Tree {
    let k3s = "case \"$*\" in\n\
         *'apply -f'*) [ ! -e k3s-is-down ] || { echo refused >&2; exit 1; }; for file; do :; done; cp \"$file\" applied;;\n\
         *'get clusterrole view'*) [ -e asked ] && echo '[{}]'; touch asked;;\n\
         *'config view'*) echo 'https://127.0.0.1:6443 Q0E=';;\n\
         *'create token'*) echo \"token-$*\" | tr -d ' ';;\n\
         *) exit 1;;\n\
         esac";
    Tree::in_memory()
        .with("run/systemd/system/x", "")
        .program("k3s", k3s)
        .with("usr/local/bin/k3s", "")
        .program("systemctl", "")
        .with(KUBECONFIG.trim_start_matches('/'), "admin")
}

fn view(server: Option<&str>) -> View {
    View {
        hours: 12,
        server: server.map(str::to_owned),
    }
}

#[test]
fn a_kubeconfig_for_looking_has_a_token_that_ends_and_not_the_administrators() {
    let tree = machine();
    let text = tree.keeper().k3s_view(&view(None)).unwrap();
    assert_eq!(tree.read("applied").unwrap(), viewer::MANIFEST);
    assert!(tree.read("asked").is_some(), "the role was waited for");
    assert!(
        text.contains("createtokenpipeops-viewer--duration=12h"),
        "{text}"
    );
    assert!(
        text.contains("server: \"https://127.0.0.1:6443\""),
        "{text}"
    );
    assert!(!text.contains("admin"), "{text}");
    let at = |server| tree.keeper().k3s_view(&view(Some(server))).unwrap();
    for (given, wanted) in [
        ("https://192.0.2.10:443", "https://192.0.2.10:443"),
        ("https://192.0.2.10/", "https://192.0.2.10:6443"),
        ("https://[2001:db8::1]", "https://[2001:db8::1]:6443"),
        ("https://k8s.example/box", "https://k8s.example/box"),
    ] {
        let text = at(given);
        assert!(text.contains(&format!("server: \"{wanted}\"")), "{text}");
    }
    let text = at("https://192.0.2.10:6443");
    assert!(
        text.contains("certificate-authority-data: \"Q0E=\""),
        "{text}"
    );
    assert_eq!(tree.keeper().k3s_admin().unwrap(), "admin");
}

#[test]
fn a_k3s_that_does_not_answer_gives_none_and_says_so() {
    let tree = machine();
    tree.put("k3s-is-down", "", 0o644);
    let refused = tree.keeper().k3s_view(&view(None)).unwrap_err();
    assert!(refused.sentence().contains("refused"), "{refused}");
    assert!(refused.to_string().contains("k3s status"), "{refused}");
}

#[test]
fn a_plan_of_a_kubeconfig_makes_no_account_and_no_token() {
    let tree = machine();
    let before = tree.snapshot();
    let plan = tree.keeper().k3s_view_plan(&view(None)).unwrap();
    assert_eq!(plan.steps.len(), 2, "{plan:?}");
    assert!(plan.steps[0].does.contains("kube-system/pipeops-viewer"));
    assert!(plan.steps[1].does.contains("12 h"), "{plan:?}");
    assert_eq!(tree.snapshot(), before);
    assert!(!tree.calls().contains("create token"), "{}", tree.calls());
}
