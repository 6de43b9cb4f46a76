use serde_json::{Value, json};

use super::*;
use crate::core::proxy::{Cluster, RawRequest, route};

#[path = "../../../../tests/hostile/pods.rs"]
mod lists;

use lists::{Standard, pods};

fn found(pod: &Value, standard: PodSecurity) -> Vec<Breach> {
    breaches(pod.to_string().as_bytes(), standard).unwrap()
}

#[test]
fn every_pod_of_the_list_meets_what_it_says() {
    let pods = pods();
    assert!(pods.len() > 60, "{}", pods.len());
    let mut wrong = Vec::new();
    for pod in pods {
        for (standard, meets) in [
            (PodSecurity::Privileged, true),
            (PodSecurity::Baseline, pod.meets != Standard::None),
            (PodSecurity::Restricted, pod.meets == Standard::Restricted),
        ] {
            let found = found(&pod.object, standard);
            if found.is_empty() != meets {
                wrong.push(format!("{standard:?}: {}: {found:?}", pod.what));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_name_is_what_an_object_can_be_called() {
    for name in ["web", "web-0", "0", "a.b-1", &"x".repeat(253)] {
        assert!(is_name(name), "{name}");
    }
    for name in [
        "",
        "Web",
        "-a",
        "a-",
        ".a",
        "a.",
        "a_b",
        "a/b",
        &"x".repeat(254),
    ] {
        assert!(!is_name(name), "{name}");
    }
}

#[test]
fn a_volume_that_is_not_restricted_names_its_source() {
    let pod = json!({"spec": {"volumes": [{"name": "a", "nfs": {}}, {"name": "b", "hostPath": {}}, {"name": "c"}]}});
    let found = found(&pod, PodSecurity::Restricted);
    let volumes = found.iter().filter(|it| it.field.contains("volumes"));
    let values: Vec<_> = volumes
        .map(|breach| (breach.field.as_str(), breach.value.as_str()))
        .collect();
    for wanted in [
        (r#"spec.volumes["a"]"#, "nfs"),
        (r#"spec.volumes["b"]"#, "hostPath"),
        (r#"spec.volumes["c"]"#, "no source"),
    ] {
        assert!(values.contains(&wanted), "{wanted:?}: {values:?}");
    }
}

#[test]
fn a_breach_names_its_field_and_the_refusal_the_pod() {
    let pod = json!({"spec": {"hostNetwork": true, "containers": [
        {"name": "web", "securityContext": {"privileged": true, "capabilities": {"add": ["SYS_ADMIN"]}}}]}});
    let found = found(&pod, PodSecurity::Baseline);
    let fields: Vec<&str> = found.iter().map(|breach| breach.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.hostNetwork",
            "spec.containers[\"web\"].securityContext.privileged",
            "spec.containers[\"web\"].securityContext.capabilities.add",
        ]
    );
    let rules = Rules::default();
    let Refusal(text) = settle_pod(&rules, ("shop", "web"), &found).unwrap_err();
    assert!(
        text.starts_with(
            "refused by the agent: the Pod shop/web does not meet the Pod Security Standard \"baseline\" (access.pod_security): \
             spec.hostNetwork is true, and 2 more"
        ),
        "{text}"
    );
    assert_eq!(settle_pod(&rules, ("shop", "web"), &[]), Ok(()));
}

#[test]
fn a_pod_that_cannot_be_read_is_an_error() {
    for text in [
        "",
        "[]",
        r#"{"spec":{"hostPID":"true"}}"#,
        r#"{"spec":{},"spec":{"hostPID":true}}"#,
    ] {
        let found = breaches(text.as_bytes(), PodSecurity::Baseline);
        assert!(found.is_err(), "{text}: {found:?}");
    }
}

#[test]
fn calls_that_lead_into_pods_name_them() {
    let pod = |name: &str| Ok(Some(Entered::Pod(name.to_owned())));
    let service = |name: &str| Ok(Some(Entered::Service(name.to_owned())));
    for (request, wanted) in [
        ("POST pods/web/exec", pod("web")),
        ("GET pods/web/exec", pod("web")),
        ("POST pods/we%62/attach", pod("web")),
        ("POST pods/web/portforward", pod("web")),
        ("GET pods/web/proxy/x/y", pod("web")),
        ("GET pods/web:8080/proxy/", pod("web")),
        ("GET pods/https:web:8080/proxy/", pod("web")),
        ("GET pods/https:web:/proxy/", pod("web")),
        ("GET services/https:web:443/proxy/", service("web")),
        ("GET services/web/proxy", service("web")),
        ("PATCH pods/web/ephemeralcontainers", pod("web")),
        ("PUT pods/web/ephemeralcontainers", pod("web")),
        ("GET pods/web/ephemeralcontainers", Ok(None)),
        ("GET pods/web/log", Ok(None)),
        ("GET pods/web", Ok(None)),
        ("POST pods/web/eviction", Ok(None)),
    ] {
        let (method, path) = request.split_once(' ').unwrap();
        let asked = RawRequest::kubernetes(method, &format!("/api/v1/namespaces/shop/{path}"), "");
        let call = route(&asked, Cluster::Known).unwrap();
        assert_eq!(entered(&call), wanted, "{request}");
    }
    for path in [
        "pods/a:b:c:d/proxy",
        "pods/A/exec",
        "pods/:web/exec",
        "pods/a%20b/exec",
    ] {
        let asked = RawRequest::kubernetes("GET", &format!("/api/v1/namespaces/shop/{path}"), "");
        let call = route(&asked, Cluster::Known).unwrap();
        assert!(entered(&call).is_err(), "{path}");
    }
}
