//! Manifests: YAML or JSON read into objects, each judged before anything is asked of the cluster.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use litemap::LiteMap;

use crate::core::order::{GatherExt as _, OrderExt as _};

use serde_json::{Map, Value};

use super::{
    super::{value::text, yaml},
    OBJECTS_MAX, charts,
    kinds::{Kind, advice, kind_of},
};

/// One object.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    /// The object as it is sent, with its namespace.
    pub object: Value,
}

impl Manifest {
    /// `Deployment shop/web`.
    pub fn in_words(&self) -> String {
        format!("{} {}/{}", self.kind.name, self.namespace, self.name)
    }

    /// Returns whether this is the object of another manifest of the same app.
    pub fn is_same_object(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name == other.name
    }

    /// Path in the API.
    pub fn path(&self) -> String {
        self.kind.path(&self.namespace, &self.name)
    }
}

/// Reason why manifests are refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// Object, or place in the file.
    pub what: String,
    /// Reason.
    pub why: String,
    /// Action for a person.
    pub fix: String,
}

pub(super) fn problem(
    what: impl Into<String>,
    why: impl Into<String>,
    fix: impl Into<String>,
) -> Problem {
    Problem {
        what: what.into(),
        why: why.into(),
        fix: fix.into(),
    }
}

/// Custom resources, by `apiVersion` and `kind` of their manifests.
pub type Customs = LiteMap<(String, String), Kind>;

/// Reads manifests of kinds that are built in.
///
/// # Errors
/// As [`objects`] and [`judged`].
#[cfg(any(test, feature = "internals"))]
pub fn parse(text: &str, namespace: Option<&str>) -> Result<Vec<Manifest>, Problem> {
    judged(objects(text)?, namespace, &Customs::new())
}

/// Reads the objects of manifests.
///
/// # Errors
/// The first one that cannot be read, or there is none, or there are too many.
pub fn objects(text: &str) -> Result<Vec<Value>, Problem> {
    let mut objects = Vec::new();
    for document in documents(text) {
        let place = document.in_words();
        let read = yaml::parse_manifest_below(&document.text, document.lines_before);
        let value = read.map_err(|why| {
            problem(
                format!("{place} cannot be read"),
                why,
                "correct that place in the manifest",
            )
        })?;
        take(value, &place, &mut objects)?;
    }
    if objects.is_empty() {
        return Err(nothing());
    }
    if objects.len() > OBJECTS_MAX {
        return Err(problem(
            format!("{} objects", objects.len()),
            format!("an app has {OBJECTS_MAX} at most"),
            "deploy it as several apps",
        ));
    }
    Ok(objects)
}

/// Reason why manifests without an object are refused.
fn nothing() -> Problem {
    problem(
        "there is nothing to deploy",
        "the manifests hold no object",
        "to remove an app: sudo pipeops-agent apps remove NAME",
    )
}

/// `apiVersion` and `kind` of the objects whose kinds are not built in.
pub fn not_built_in(objects: &[Value]) -> BTreeSet<(String, String)> {
    let kinds = objects
        .iter()
        .map(|object| (text(object, "/apiVersion"), text(object, "/kind")));
    let others = kinds.filter(|(api_version, kind)| kind_of(api_version, kind).is_none());
    others
        .map(|(api_version, kind)| (api_version.to_owned(), kind.to_owned()))
        .gather()
}

/// Judges objects and puts them in the order in which they are written. Objects without a namespace
/// get the one that was asked for; `None`: the one of the others.
///
/// # Errors
/// The first object that is refused, and why.
pub fn judged(
    objects: Vec<Value>,
    namespace: Option<&str>,
    customs: &Customs,
) -> Result<Vec<Manifest>, Problem> {
    if objects.is_empty() {
        return Err(nothing());
    }
    let namespace = common_namespace(&objects, namespace)?;
    let mut seen = BTreeSet::new();
    let mut manifests = Vec::new();
    for object in objects {
        let manifest = judged_one(object, &namespace, customs)?;
        if !seen.insert((manifest.kind.name.clone(), manifest.name.clone())) {
            return Err(problem(
                manifest.in_words(),
                "it is there twice",
                "remove one of them",
            ));
        }
        manifests.push(manifest);
    }
    manifests.order_by(|one, other| {
        (one.kind.order(), &one.name).cmp(&(other.kind.order(), &other.name))
    });
    Ok(manifests)
}

/// One document of the manifests.
#[derive(Debug, Default)]
struct Document {
    /// File, where there are several.
    file: Option<String>,
    /// Its number in the file.
    number: usize,
    /// Lines of the file before it.
    lines_before: usize,
    text: String,
}

impl Document {
    /// `document 2`, or `document 2 of web.yaml`.
    fn in_words(&self) -> String {
        let of = self.file.as_ref().map(|file| format!(" of {file}"));
        format!("document {}{}", self.number, of.unwrap_or_default())
    }

    fn is_blank(&self) -> bool {
        self.text.lines().all(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#')
        })
    }
}

/// Mark of the line that parts files, before the name of the one that follows.
const FILE_MARK: &str = "--- # file ";

/// Joins files of manifests. Their names stay with them, for what is said about their documents.
pub fn joined<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let files: Vec<_> = files.into_iter().collect();
    if let [(_, one)] = files.as_slice() {
        return (*one).to_owned();
    }
    let mut all = String::new();
    for (name, text) in files {
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        all.extend([FILE_MARK, &name, "\n", text, end]);
    }
    all
}

/// The documents of a text: parted by lines of three dashes.
fn documents(text: &str) -> impl Iterator<Item = Document> + use<> {
    let mut documents = vec![Document {
        number: 1,
        ..Document::default()
    }];
    // Number of the document, and of the line in the file.
    let (mut file, mut number, mut lines) = (None, 1, 0_usize);
    for line in text.lines() {
        lines = lines.saturating_add(1);
        if let Some(name) = line.strip_prefix(FILE_MARK) {
            (file, number, lines) = (Some(name.to_owned()), 0, 0);
        }
        let behind = line.strip_prefix("---");
        let behind = behind.filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if let Some(behind) = behind.map(str::trim) {
            let begins_here = !behind.is_empty() && !behind.starts_with('#');
            // What stands before the first line of dashes is often empty.
            let is_empty = documents.last().is_some_and(Document::is_blank);
            number += usize::from(!is_empty || number == 0);
            documents.push(Document {
                file: file.clone(),
                number,
                lines_before: lines.saturating_sub(usize::from(begins_here)),
                text: if begins_here {
                    format!("{behind}\n")
                } else {
                    String::new()
                },
            });
        } else if let Some(last) = documents.last_mut() {
            last.text.push_str(line);
            last.text.push('\n');
        }
    }
    documents
        .into_iter()
        .filter(|document| !document.is_blank())
}

/// Takes an object in, or the items of a list.
fn take(value: Value, place: &str, objects: &mut Vec<Value>) -> Result<(), Problem> {
    match value {
        Value::Null => Ok(()),
        Value::Object(mut fields) if fields.get("kind").and_then(Value::as_str) == Some("List") => {
            let items = fields.remove("items");
            for item in items
                .as_ref()
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                take(item.clone(), place, objects)?;
            }
            Ok(())
        }
        Value::Object(fields) => {
            let object = Value::Object(fields);
            if let Some(why) = nameless(&object) {
                return Err(Problem {
                    what: format!("{place} is not a manifest of an app"),
                    ..why
                });
            }
            objects.push(object);
            Ok(())
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Err(problem(
            place,
            "it is not an object",
            "each document needs apiVersion, kind and metadata",
        )),
    }
}

/// The reason why an object cannot be one of an app: it does not say what it is.
fn nameless(object: &Value) -> Option<Problem> {
    let is_absent = |pointer: &&str| text(object, pointer).is_empty();
    let absent = ["/apiVersion", "/kind", "/metadata/name"]
        .into_iter()
        .find(is_absent)?;
    let is_kustomize = text(object, "/apiVersion").starts_with("kustomize.")
        || (is_absent(&"/kind") && object.get("resources").is_some());
    let fix = if is_kustomize {
        "have kustomize build the manifests, and deploy what it writes: kubectl kustomize FOLDER > web.yaml"
    } else if !text(object, "/metadata/generateName").is_empty() {
        "generateName is not possible: an app has to find its objects again"
    } else {
        "add it, or move what is not a manifest to another folder"
    };
    let absent = absent.trim_start_matches('/').replace('/', ".");
    Some(problem(
        format!("an object of kind {:?}", text(object, "/kind")),
        format!("it has no {absent}"),
        fix,
    ))
}

/// One namespace for the whole app.
///
/// # Errors
/// There is none, or more than one.
pub fn common_namespace(objects: &[Value], asked: Option<&str>) -> Result<String, Problem> {
    let named: BTreeSet<&str> = objects
        .iter()
        .map(|object| text(object, "/metadata/namespace"))
        .filter(|name| !name.is_empty())
        .gather();
    let mut all: BTreeSet<&str> = named.clone();
    all.extend(asked);
    let mut every = all.iter();
    match (every.next(), every.next()) {
        (Some(one), None) if is_label(one) => Ok((*one).to_owned()),
        (Some(one), None) => Err(problem(
            format!("the namespace {one:?}"),
            "its name is not valid in Kubernetes",
            "use up to 63 lowercase letters, digits and dashes",
        )),
        (None, _) => Err(problem(
            "no namespace is named",
            "neither the command line nor the manifests say where the app belongs",
            "add --namespace NAME",
        )),
        (Some(one), Some(other)) => Err(problem(
            "more than one namespace",
            format!("an app belongs to one namespace, but both {one} and {other} are named"),
            "deploy it as several apps, one for each namespace",
        )),
    }
}

fn judged_one(mut object: Value, namespace: &str, customs: &Customs) -> Result<Manifest, Problem> {
    let (api_version, kind) = (
        text(&object, "/apiVersion").to_owned(),
        text(&object, "/kind").to_owned(),
    );
    let name = text(&object, "/metadata/name").to_owned();
    let shown = format!("{kind} {name}");
    if let Some(why) = nameless(&object) {
        return Err(why);
    }
    let key = (api_version, kind);
    let known = kind_of(&key.0, &key.1).or_else(|| customs.get(&key).cloned());
    let Some(kind) = known else {
        let (api_version, kind) = &key;
        return Err(problem(
            shown,
            format!("apps deploys no {kind} of {api_version}"),
            advice(api_version, kind),
        ));
    };
    if !is_object_name(&name) {
        return Err(problem(
            shown,
            "its name is not valid in Kubernetes",
            "names have lowercase letters, digits, dashes and dots",
        ));
    }
    if kind.name == "Secret" && text(&object, "/type") == "kubernetes.io/service-account-token" {
        return Err(problem(
            shown,
            "it asks for an account token that never expires",
            "mount a projected token in place of it",
        ));
    }
    if kind.is_chart()
        && let Some((why, fix)) = charts::refused(&kind, &object)
    {
        return Err(problem(shown, why, fix));
    }
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = metadata {
        metadata.insert("namespace".to_owned(), Value::String(namespace.to_owned()));
        // What the API server sets is nobody's to send.
        for field in [
            "uid",
            "resourceVersion",
            "managedFields",
            "creationTimestamp",
            "generation",
            "ownerReferences",
            "selfLink",
        ] {
            metadata.remove(field);
        }
        // The note of kubectl holds the whole object again, values included.
        let annotations = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut);
        annotations.map(|all: &mut Map<String, Value>| {
            all.remove("kubectl.kubernetes.io/last-applied-configuration")
        });
    }
    object.as_object_mut().map(|fields| fields.remove("status"));
    if kind.name == "Secret" {
        encode_texts(&mut object);
    }
    Ok(Manifest {
        kind,
        namespace: namespace.to_owned(),
        name,
        object,
    })
}

/// Moves the texts of a Secret into its data, where the API server puts them. Applied as texts, its
/// keys would not be ours there: none would go with its manifest, and no change of one be seen.
fn encode_texts(secret: &mut Value) {
    let texts = secret.get("stringData").and_then(Value::as_object).cloned();
    // The API server says what is wrong with others.
    let texts = texts.filter(|texts| texts.values().all(Value::is_string));
    let (Some(texts), Some(fields)) = (texts, secret.as_object_mut()) else {
        return;
    };
    fields.remove("stringData");
    let data = fields.entry("data").or_insert(Value::Null);
    if data.is_null() {
        *data = Value::Object(Map::new());
    }
    let encoded = texts.into_iter().map(|(key, text)| {
        let text = text.as_str().unwrap_or_default();
        (key, Value::String(STANDARD.encode(text)))
    });
    if let Some(data) = data.as_object_mut() {
        data.extend(encoded);
    }
}

/// Returns whether a name can be that of a namespace.
fn is_label(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(is_plain)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

pub(super) fn is_object_name(name: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    name.len() <= 253 && name.bytes().all(is_plain) && !name.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str =
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 1}\n";
    const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: shop, uid: x}\ndata: {a: b}\n";

    #[test]
    fn texts_of_a_secret_are_sent_as_data_and_nothing_else_is() {
        let sent = |kind: &str, fields: &str| {
            let text = format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\n{fields}\n");
            let object = &parse(&text, Some("shop")).unwrap()[0].object;
            (object["data"].clone(), object["stringData"].clone())
        };
        let texts = "data: {p: b2xk, q: b2xk}\nstringData: {p: new, r: \"\"}";
        let data = serde_json::json!({"p": "bmV3", "q": "b2xk", "r": ""});
        assert_eq!(sent("Secret", texts), (data, Value::Null));
        assert_eq!(sent("Secret", "stringData: {}").1, Value::Null);
        for wrong in ["stringData: [s3cret]", "stringData: {p: 5, q: x}"] {
            let (data, texts) = sent("Secret", wrong);
            assert!(data.is_null() && !texts.is_null(), "{wrong}");
        }
        assert!(sent("ConfigMap", texts).1.is_object());
    }

    fn refused(text: &str, namespace: Option<&str>) -> Problem {
        parse(text, namespace).unwrap_err()
    }

    #[test]
    fn what_others_read_is_written_first_and_all_lies_in_one_namespace() {
        let text = format!("# head\n---\n{WEB}---\n{MAP}---\n# nothing\n");
        let all = parse(&text, None).unwrap();
        let words: Vec<_> = all.iter().map(Manifest::in_words).collect();
        assert_eq!(words, ["ConfigMap shop/web", "Deployment shop/web"]);
        assert_eq!(
            all[1].path(),
            "/apis/apps/v1/namespaces/shop/deployments/web"
        );
        assert_eq!(all[1].object["metadata"]["namespace"], "shop");
        assert!(all[0].object["metadata"].get("uid").is_none());
        let list = r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}]}"#;
        assert_eq!(parse(list, Some("x")).unwrap()[0].in_words(), "Service x/a");
    }

    #[test]
    fn what_is_refused_says_what_to_do() {
        assert_eq!(refused("", None).what, "there is nothing to deploy");
        assert_eq!(refused(WEB, None).fix, "add --namespace NAME");
        assert_eq!(refused(MAP, Some("other")).what, "more than one namespace");
        assert_eq!(
            refused(&format!("{WEB}---\n{WEB}"), Some("a")).why,
            "it is there twice"
        );
        assert_eq!(refused("a: [", Some("a")).what, "document 1 cannot be read");
        for (api_version, kind, fix) in [
            (
                "v1",
                "Namespace",
                "create it first: kubectl create namespace NAME",
            ),
            (
                "rbac.authorization.k8s.io/v1",
                "ClusterRoleBinding",
                "rights are granted by the cluster's owner: kubectl apply",
            ),
            (
                "extensions/v1beta1",
                "Deployment",
                "apiVersion: apps/v1 is the one that apps deploys, not \"extensions/v1beta1\"",
            ),
            (
                "helm.cattle.io/v1",
                "HelmChart",
                "add failurePolicy: abort to its spec; a chart that fails is then left as it is until you repair it",
            ),
            (
                "example.com/v1",
                "Job",
                "apiVersion: batch/v1 is the one that apps deploys, not \"example.com/v1\"",
            ),
            (
                "example.com/v1",
                "Widget",
                "apply it with kubectl; apps deploys ServiceAccount, Secret, ConfigMap, PersistentVolumeClaim, NetworkPolicy, HelmChartConfig, HelmChart, Service, Job, Deployment, StatefulSet, DaemonSet, CronJob, PodDisruptionBudget, HorizontalPodAutoscaler, Ingress, HTTPRoute, GRPCRoute, TCPRoute, TLSRoute, UDPRoute",
            ),
        ] {
            let text = format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: a}}\n");
            assert_eq!(refused(&text, Some("a")).fix, fix);
        }
        let token = "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/service-account-token\nmetadata: {name: a}\n";
        assert_eq!(
            refused(token, Some("a")).fix,
            "mount a projected token in place of it"
        );
        let path = "apiVersion: v1\nkind: Secret\nmetadata: {name: ../x}\n";
        assert_eq!(
            refused(path, Some("a")).why,
            "its name is not valid in Kubernetes"
        );
    }

    #[test]
    fn a_mistake_is_found_by_its_file_and_its_line_there() {
        let files = [
            ("a.yaml", MAP),
            ("b.yaml", "# head\n---\na: b\r\n---\n---\nkind: [\n"),
        ];
        let problem = |files: &[(&str, &str)]| {
            let all = joined(files.iter().copied());
            let found = objects(&all).unwrap_err();
            (found.what, found.why)
        };
        let words = |what: &str, why: &str| (what.to_owned(), why.to_owned());
        assert_eq!(
            problem(&files),
            words(
                "document 1 of b.yaml is not a manifest of an app",
                "it has no apiVersion"
            )
        );
        let broken = format!("{WEB}---\n---\nkind: x: y\n");
        assert_eq!(
            problem(&[("a.yaml", MAP), ("b.yaml", &broken)]),
            words(
                "document 2 of b.yaml cannot be read",
                "line 7: mapping values are not allowed in this context"
            )
        );
        assert_eq!(
            problem(&[("b.yaml", &broken)]),
            words(
                "document 2 cannot be read",
                "line 7: mapping values are not allowed in this context"
            )
        );
        assert_eq!(objects(&joined([("a", WEB), ("b", MAP)])).unwrap().len(), 2);
    }

    #[test]
    fn nothing_behind_the_end_of_a_document_is_lost() {
        let count = |text: &str| objects(text).map(|found| found.len());
        let map =
            |name: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}");
        let (a, b) = (map("a"), map("b"));
        assert_eq!(
            count(&format!("{a}\n--- {b}\n---\t# c\n{}", map("c"))),
            Ok(3)
        );
        for lost in [format!("{a}\n{b}\n"), format!("{a}\n...\n{b}\n")] {
            let found = count(&lost).unwrap_err();
            assert_eq!(found.what, "document 1 cannot be read", "{lost}");
        }
        let broken = count(&format!("{a}\n--- {{a: b: c}}\n")).unwrap_err();
        assert!(broken.why.starts_with("line 2: "), "{broken:?}");
    }

    #[test]
    fn the_name_of_a_namespace_is_one_before_it_stands_in_a_command() {
        for wrong in ["a b", "a;b", "a/b", "%61", "A", "-a", "a-", ""] {
            assert!(common_namespace(&[], Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(
            common_namespace(&[], Some("shop-1")),
            Ok("shop-1".to_owned())
        );
    }

    #[test]
    fn what_kustomize_reads_is_no_manifest_and_says_how_to_get_one() {
        for text in [
            "resources: [a.yaml]\n",
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n",
        ] {
            let fix = refused(text, Some("a")).fix;
            assert!(fix.contains("kubectl kustomize FOLDER"), "{fix}");
        }
        let generated = "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: a-}\n";
        let found = refused(generated, Some("a"));
        assert_eq!(found.why, "it has no metadata.name");
        assert!(found.fix.starts_with("generateName is not possible"));
    }

    #[test]
    fn custom_resources_are_those_that_were_found_and_never_taken_for_what_is_built_in() {
        let custom = |kind: &str, name: &str| {
            format!("apiVersion: example.com/v1\nkind: {kind}\nmetadata: {{name: {name}}}\n")
        };
        let text = [
            custom("Service", "a"),
            custom("Widget", "b"),
            WEB.to_owned(),
        ]
        .join("---\n");
        let objects = objects(&text).unwrap();
        let found = not_built_in(&objects);
        let pair = |kind: &str| ("example.com/v1".to_owned(), kind.to_owned());
        assert_eq!(found, ["Service", "Widget"].map(pair).into());
        let kind = |resource| Kind::custom("example.com/v1", resource).unwrap();
        let mut customs = Customs::new();
        customs.insert(pair("Service"), kind("services.example.com"));
        assert!(judged(objects.clone(), Some("shop"), &customs).is_err());
        customs.insert(pair("Widget"), kind("widgets.example.com"));
        // One that takes the place of what is built in is not asked for.
        customs.insert(
            ("v1".to_owned(), "Secret".to_owned()),
            kind("secrets.example.com"),
        );
        let all = judged(objects, Some("shop"), &customs).unwrap();
        let words: Vec<_> = all.iter().map(Manifest::in_words).collect();
        assert_eq!(
            words,
            [
                "services.example.com shop/a",
                "widgets.example.com shop/b",
                "Deployment shop/web"
            ]
        );
        assert_eq!(
            all[0].path(),
            "/apis/example.com/v1/namespaces/shop/services/a"
        );
    }
}
