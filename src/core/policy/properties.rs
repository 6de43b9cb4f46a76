//! Properties of every call, not only of those on the lists.

use proptest::{prelude::*, strategy::ValueTree};

use super::{Level, Terms, tables};

#[path = "../../../tests/hostile/invariants.rs"]
mod invariants;
#[path = "../../../tests/hostile/model.rs"]
mod model;

use invariants::{decided, hold};

/// Words that mean something in a path, and some that nearly do.
fn segment() -> impl Strategy<Value = String> {
    let words = [
        "api",
        "apis",
        "v1",
        "apps",
        "namespaces",
        "Namespaces",
        "shop",
        "kube-system",
        "default",
        "pods",
        "secrets",
        "nodes",
        "services",
        "deployments",
        "configmaps",
        "serviceaccounts",
        "rbac.authorization.k8s.io",
        "clusterroles",
        "example.com",
        "widgets",
        "exec",
        "EXEC",
        "attach",
        "portforward",
        "proxy",
        "log",
        "status",
        "finalize",
        "scale",
        "token",
        "binding",
        "eviction",
        "watch",
        "healthz",
        "version",
        "openapi",
        "..",
        ".",
        "",
        "%2e%2e",
        "%2F",
        "%5c",
        "%25",
        "%",
        "a b",
        "a%20b",
        "x;y",
        "system:x",
        "%3A",
        "ü",
        "%ff",
        "%00",
        "\r\n",
        "*",
        "-",
        "http:",
        "selfsubjectaccessreviews",
        "authorization.k8s.io",
    ];
    let mixed = (prop::sample::select(words.to_vec()), 0usize..8)
        .prop_map(|(word, place)| escape_one(word, place));
    prop_oneof![
        6 => prop::sample::select(words.to_vec()).prop_map(str::to_owned),
        2 => mixed,
        1 => "\\PC{0,6}",
        1 => "[%./\\\\a-f0-9]{0,6}",
    ]
}

/// Escapes one character of a word.
fn escape_one(word: &str, place: usize) -> String {
    let letters = word.bytes().filter(u8::is_ascii).enumerate();
    letters
        .map(|(at, byte)| {
            if at == place {
                format!("%{byte:02x}")
            } else {
                char::from(byte).to_string()
            }
        })
        .collect()
}

fn path() -> impl Strategy<Value = String> {
    let prefix = prop_oneof![
        3 => Just("/api/v1/namespaces/".to_owned()),
        3 => Just("/api/v1/".to_owned()),
        2 => Just("/apis/apps/v1/namespaces/".to_owned()),
        2 => Just("/apis/".to_owned()),
        1 => Just("/".to_owned()),
        1 => Just(String::new()),
    ];
    let slash = prop_oneof![9 => Just("/"), 1 => Just("//"), 1 => Just("%2f"), 1 => Just("\\")];
    (prefix, prop::collection::vec((segment(), slash), 0..8)).prop_map(|(mut path, segments)| {
        for (segment, slash) in segments {
            path.push_str(&segment);
            path.push_str(slash);
        }
        path
    })
}

fn query() -> impl Strategy<Value = String> {
    let fields = [
        "watch=true",
        "watch",
        "watch=0",
        "watch=FALSE",
        "w%61tch=1",
        "watch=1;x",
        "watch=%zz",
        "limit=5",
        "fieldSelector=metadata.name%3Dx",
        "follow=1",
        "",
        "=",
        "+watch=1",
        "watch=%66alse",
    ];
    prop::collection::vec(prop::sample::select(fields.to_vec()), 0..4)
        .prop_map(|fields| fields.join("&"))
}

fn method() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "FROB",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn the_invariants_hold_of_every_request(
        method in method(), path in path(), query in query(), is_websocket in any::<bool>(),
    ) {
        hold(method, &path, &query, is_websocket);
    }
}

/// The generator of paths is worth something only if much of what it makes is judged.
#[test]
fn most_generated_paths_make_sense_and_many_are_permitted() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut judged, mut permitted) = (0, 0);
    for _ in 0..1000 {
        let path = path().new_tree(&mut runner).unwrap().current();
        if let Some(call) = hold("GET", &path, "", false) {
            judged += 1;
            permitted += u32::from(decided(Level::Managed, &call).is_some());
        }
    }
    assert!(judged > 300 && permitted > 50, "{judged} {permitted}");
}

/// Resources that Kubernetes knows.
const KINDS: &tables::Table = &[
    (
        "",
        &[
            "bindings",
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "namespaces",
            "nodes",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "podtemplates",
            "replicationcontrollers",
            "resourcequotas",
            "secrets",
            "serviceaccounts",
            "services",
        ],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
        ],
    ),
    ("apiextensions.k8s.io", &["customresourcedefinitions"]),
    ("apiregistration.k8s.io", &["apiservices"]),
    (
        "apps",
        &[
            "controllerrevisions",
            "daemonsets",
            "deployments",
            "replicasets",
            "statefulsets",
        ],
    ),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    ("certificates.k8s.io", &["certificatesigningrequests"]),
    ("coordination.k8s.io", &["leases"]),
    ("discovery.k8s.io", &["endpointslices"]),
    ("events.k8s.io", &["events"]),
    ("flowcontrol.apiserver.k8s.io", &["flowschemas"]),
    ("helm.cattle.io", &["helmcharts"]),
    (
        "networking.k8s.io",
        &["ingressclasses", "ingresses", "networkpolicies"],
    ),
    ("node.k8s.io", &["runtimeclasses"]),
    ("policy", &["poddisruptionbudgets"]),
    (
        "rbac.authorization.k8s.io",
        &[
            "clusterrolebindings",
            "clusterroles",
            "rolebindings",
            "roles",
        ],
    ),
    ("resource.k8s.io", &["resourceclaims"]),
    ("scheduling.k8s.io", &["priorityclasses"]),
    (
        "storage.k8s.io",
        &["csidrivers", "storageclasses", "volumeattachments"],
    ),
];

/// Parts of objects that Kubernetes knows, and the whole.
const PARTS: [&str; 11] = [
    "",
    "status",
    "scale",
    "finalize",
    "token",
    "approval",
    "binding",
    "eviction",
    "ephemeralcontainers",
    "resize",
    "log",
];

/// Every resource, written by every method in a managed namespace and elsewhere.
#[test]
fn only_the_list_of_changes_is_changed() {
    let mut requests = 0;
    let kinds = KINDS
        .iter()
        .flat_map(|(group, names)| names.iter().map(move |name| (*group, *name)));
    for (group, resource) in kinds {
        for part in PARTS {
            for method in ["POST", "PUT", "PATCH", "DELETE"] {
                for namespace in ["", "shop", "kube-system"] {
                    is_changed_as_listed(method, (group, resource, part), namespace);
                    requests += 1;
                }
            }
        }
    }
    assert!(requests > 5000, "{requests}");
}

fn is_changed_as_listed(
    method: &str,
    (group, resource, part): (&str, &str, &str),
    namespace: &str,
) {
    let root = match group {
        "" => "/api/v1".to_owned(),
        group => format!("/apis/{group}/v1"),
    };
    let place = match namespace {
        "" => String::new(),
        namespace => format!("/namespaces/{namespace}"),
    };
    let part_path = match part {
        "" => String::new(),
        part => format!("/x/{part}"),
    };
    let path = format!("{root}{place}/{resource}{part_path}");
    let call = hold(method, &path, "", false).unwrap();
    let is_listed = tables::has(tables::CHANGE, group, resource, part);
    let wanted = match namespace {
        "shop" if is_listed => Some(Terms::InManaged("shop".to_owned())),
        "" if method == "POST" && path == "/api/v1/namespaces" => Some(Terms::NewNamespace),
        _ => None,
    };
    assert_eq!(decided(Level::Managed, &call), wanted, "{method} {path}");
    assert_eq!(decided(Level::ReadOnly, &call), None, "{method} {path}");
}
