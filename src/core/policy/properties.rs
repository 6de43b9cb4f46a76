//! What holds of every call, not only of those on the lists.

use proptest::prelude::*;

use super::{Attributes, Level, Object, Rules, Terms, Verb, decide, tables};
use crate::core::proxy::{Asked, Call, Cluster, KubePath, Limit, Scheme, Target, route};

#[path = "../../../tests/hostile/model.rs"]
mod model;

use model::{Info, request_info};

fn asked(method: &str, path: &str, query: &str, is_websocket: bool) -> Asked {
    Asked {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: Vec::new(),
        scheme: Scheme::Http,
        namespace: String::new(),
        service: String::new(),
        port: 0,
        is_websocket,
        protocol: String::new(),
        limit: Limit::Default,
    }
}

fn decided(level: Level, call: &Call) -> Option<Terms> {
    let rules = Rules {
        level,
        ..Rules::default()
    };
    decide(&rules, call).ok()
}

/// Our reading in the words of the model; names that only a selector holds are not the model's business.
fn read(method: &str, path: &KubePath, query: &str) -> Option<Info> {
    let mut info = Info {
        path: unescaped(path.as_str()),
        ..Info::default()
    };
    match Attributes::of(method, path, query)? {
        Attributes::Path { verb, .. } => info.verb = verb,
        Attributes::Object(object) => {
            let Object {
                verb,
                group,
                version,
                namespace,
                resource,
                subresource,
                name,
                has_more: _,
            } = object;
            let bytes = |text: std::borrow::Cow<'_, str>| text.as_bytes().to_vec();
            info.is_object = true;
            verb.word().clone_into(&mut info.verb);
            info.group = bytes(group);
            info.version = bytes(version);
            info.namespace = bytes(namespace);
            info.resource = bytes(resource);
            info.subresource = bytes(subresource);
            if !matches!(verb, Verb::List | Verb::Watch) || path.is_legacy_watch() {
                info.name = bytes(name);
            }
        }
    }
    Some(info)
}

fn unescaped(path: &str) -> Vec<u8> {
    let mut parts = path.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(digits, 16).unwrap());
        bytes.extend_from_slice(rest.as_bytes());
    }
    bytes
}

fn is_secret(info: &Info) -> bool {
    info.is_object && info.group.is_empty() && info.resource == b"secrets"
}

/// The model's reading, where it is text: our reading of a name that is no UTF-8 is only a stand-in for it.
fn is_text(info: &Info) -> bool {
    [
        &info.group,
        &info.version,
        &info.namespace,
        &info.resource,
        &info.subresource,
        &info.name,
    ]
    .into_iter()
    .all(|bytes| std::str::from_utf8(bytes).is_ok())
}

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

/// Escapes one letter of a word.
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
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The invariant of the whole: what the API server makes of the request that is sent is what was judged.
    #[test]
    fn what_the_api_server_resolves_is_what_was_judged(
        method in method(), path in path(), query in query(), is_websocket in any::<bool>(),
    ) {
        let Ok(call) = route(&asked(method, &path, &query, is_websocket), Cluster::Known) else {
            return Ok(());
        };
        let Target::Kubernetes(sent) = &call.target else { panic!("a service") };
        let target = format!("{}?{}", sent.as_str(), call.query);
        let resolved = request_info(&call.method, &target);
        if resolved.as_ref().is_none_or(is_text) {
            prop_assert_eq!(&read(&call.method, sent, &call.query), &resolved);
        }
        // A path that is sound as it was asked for keeps its meaning.
        if path.starts_with('/') && !path.contains('?') && !path.trim_matches('/').contains("//") {
            let raw = request_info(&call.method, &format!("{path}?{query}"));
            let without_path = |info: Info| Info { path: Vec::new(), ..info };
            if raw.is_some() {
                prop_assert_eq!(raw.map(without_path), resolved.map(without_path));
            }
        }
        // And it stays itself when it is canonicalised once more.
        prop_assert_eq!(KubePath::parse(sent.as_str()), Ok(sent.clone()));
    }

    #[test]
    fn what_a_stricter_level_permits_a_looser_one_permits_too(
        method in method(), path in path(), query in query(), is_websocket in any::<bool>(),
    ) {
        if let Ok(call) = route(&asked(method, &path, &query, is_websocket), Cluster::Known) {
            let [full, managed, read_only, off] =
                [Level::Full, Level::Managed, Level::ReadOnly, Level::Off].map(|level| decided(level, &call));
            prop_assert_eq!(full, Some(Terms::Free));
            prop_assert_eq!(off, None);
            if read_only.is_some() {
                prop_assert_eq!(&managed, &read_only);
                prop_assert_eq!(&read_only, &Some(Terms::Free));
            }
        }
    }

    #[test]
    fn read_only_permits_no_write_no_secret_and_no_way_in(
        method in method(), path in path(), query in query(), is_websocket in any::<bool>(),
    ) {
        let Ok(call) = route(&asked(method, &path, &query, is_websocket), Cluster::Known) else {
            return Ok(());
        };
        if decided(Level::ReadOnly, &call).is_none() {
            return Ok(());
        }
        let Target::Kubernetes(sent) = &call.target else { panic!("a service") };
        let info = request_info(&call.method, &format!("{}?{}", sent.as_str(), call.query)).unwrap();
        let asks = info.verb == "create" && info.resource.starts_with(b"selfsubject");
        prop_assert!(asks || matches!(info.verb.as_str(), "get" | "head" | "list" | "watch"), "{:?}", info);
        prop_assert!(asks || matches!(call.method.as_str(), "GET" | "HEAD"));
        prop_assert!(!is_secret(&info));
        for way in ["exec", "attach", "portforward", "proxy", "token", "binding", "eviction"] {
            prop_assert_ne!(info.subresource.as_slice(), way.as_bytes());
        }
    }

    #[test]
    fn what_is_changed_or_entered_lies_in_the_namespace_of_its_terms(
        method in method(), path in path(), query in query(), is_websocket in any::<bool>(),
    ) {
        let Ok(call) = route(&asked(method, &path, &query, is_websocket), Cluster::Known) else {
            return Ok(());
        };
        let Some(terms) = decided(Level::Managed, &call) else {
            return Ok(());
        };
        let Target::Kubernetes(sent) = &call.target else { panic!("a service") };
        let info = request_info(&call.method, &format!("{}?{}", sent.as_str(), call.query)).unwrap();
        match terms {
            Terms::InManaged(name) => {
                prop_assert_eq!(info.namespace, name.as_bytes());
                prop_assert!(!name.starts_with("kube-") && name != "default");
            }
            Terms::NewNamespace => {
                prop_assert_eq!((info.verb.as_str(), info.resource.as_slice()), ("create", b"namespaces".as_slice()));
                prop_assert!(info.name.is_empty());
            }
            Terms::Free => {
                let asks = info.verb == "create" && info.resource.starts_with(b"selfsubject");
                prop_assert!(asks || matches!(info.verb.as_str(), "get" | "head" | "list" | "watch"), "{:?}", info);
                prop_assert!(!is_secret(&info));
            }
        }
    }
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
    let call = route(&asked(method, &path, "", false), Cluster::Known).unwrap();
    let is_listed = tables::has(tables::CHANGE, group, resource, part);
    let wanted = match namespace {
        "shop" if is_listed => Some(Terms::InManaged("shop".to_owned())),
        "" if method == "POST" && path == "/api/v1/namespaces" => Some(Terms::NewNamespace),
        _ => None,
    };
    assert_eq!(decided(Level::Managed, &call), wanted, "{method} {path}");
    assert_eq!(decided(Level::ReadOnly, &call), None, "{method} {path}");
}
