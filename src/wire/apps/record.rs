//! Records and revisions of apps, as they lie in Secrets of the agent's namespace.
//!
//! Secrets, because a revision holds the values of the Secrets that it deploys; and in that
//! namespace, because the account of the control plane has no rights there.

use std::{
    borrow::Cow,
    io::{Read as _, Write as _},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};
use litemap::LiteMap;
use serde_json::{Value, json};

use crate::{
    core::{
        apps::{
            App, Contested, InventoryEntry, Kind, LastChange, Manifest, Overlay, Owner, Revision,
            RevisionOutcome, Source, Stage, Upstream, kind_of, repository::Repository,
        },
        rollout::RolloutVerdict,
        time::Wall,
    },
    wire::{
        json::{self, AsObject, fields},
        kube::Metadata,
    },
};

/// Label of our Secrets.
pub const LABEL: (&str, &str) = ("pipeops.io/app-record", "true");
/// Field of a Secret that holds the record of an app.
const RECORD: &str = "record";
/// Field of a Secret that holds the manifests of a revision.
const MANIFESTS: &str = "manifests";
/// Field of a packed custom resource with its plural and group. Objects that are packed as they are
/// are built in and have no such field.
const RESOURCE: &str = "resource";
/// The largest packed revision: the API server takes Secrets of 1 MiB.
pub const PACKED_BYTES_MAX: usize = 700 << 10;
/// The largest unpacked one: what is packed a thousandfold was not packed by us.
const UNPACKED_BYTES_MAX: u64 = 16 << 20;

/// A Secret, as far as it is read here.
#[derive(Debug, Default)]
pub struct Stored {
    /// Its head, with the resource version that a write must know.
    pub metadata: Metadata,
    data: LiteMap<String, String>,
}
fields!(Stored { metadata, data });

/// Name of the Secret with the record of an app.
pub fn record_name(app: &str) -> String {
    format!("pipeops-app.{app}")
}

/// Returns whether a Secret of this name holds the record of an app. Names of apps have no dots.
pub fn is_record(secret: &str) -> bool {
    let app = secret.strip_prefix("pipeops-app.");
    app.is_some_and(|app| !app.contains('.'))
}

/// Name of the Secret with a revision.
pub fn revision_name(app: &str, number: u64) -> String {
    format!("pipeops-app.{app}.r{number}")
}

fn secret(name: &str, namespace: &str, version: &str, data: &Value) -> Value {
    let mut metadata = json!({"name": name, "namespace": namespace, "labels": {LABEL.0: LABEL.1}});
    if let (false, Value::Object(fields)) = (version.is_empty(), &mut metadata) {
        fields.insert("resourceVersion".to_owned(), json!(version));
    }
    json!({"apiVersion": "v1", "kind": "Secret", "type": "pipeops.io/app", "metadata": metadata, "data": data})
}

/// An object of the inventory. A Job is never adopted: what does not hold is left out, so that the
/// largest record fits into a Secret.
fn entry_json(entry: &InventoryEntry) -> Value {
    let mut written = json!({"api_version": entry.api_version, "kind": entry.kind, "name": entry.name, "uid": entry.uid, "nonce": entry.nonce});
    let revisions = [
        ("ran", entry.ran_in),
        ("done", entry.done_in),
        ("adopted_in", entry.adopted_in),
    ];
    if let Value::Object(fields) = &mut written {
        for (name, revision) in revisions.into_iter().filter(|(_, it)| *it != 0) {
            fields.insert(name.to_owned(), json!(revision));
        }
        if entry.is_adopted {
            fields.insert("adopted".to_owned(), json!(true));
        }
    }
    written
}

/// The Secret of a record. `version` is the resource version that was read; empty: it is new.
pub fn record(app: &App, namespace: &str, version: &str) -> Value {
    let inventory: Vec<_> = app.inventory.iter().map(entry_json).collect();
    let revisions: Vec<_> = app.revisions.iter().map(revision_json).collect();
    let record = json!({
        "format": 1,
        "app": app.name,
        "namespace": app.namespace,
        "owner": app.owner.as_str(),
        "running": app.running,
        "good": app.good,
        "paused": app.is_paused,
        "by_hand": app.is_rolled_back_by_hand,
        "source": app.source.as_ref().map(source_json),
        "change": app.change.as_ref().map(change_json),
        "unproven_job": app.unproven_job,
        "inventory": inventory,
        "left": app.left.iter().map(left_json).collect::<Vec<_>>(),
        "revisions": revisions,
    });
    let data = json!({RECORD: STANDARD.encode(record.to_string())});
    secret(&record_name(&app.name), namespace, version, &data)
}

fn left_json(left: &Contested) -> Value {
    json!({"object": left.object, "field": left.field, "by": left.by})
}

fn change_json(change: &LastChange) -> Value {
    json!({"id": change.id, "by": change.by, "body": change.body, "stage": change.stage.as_str()})
}

fn source_json(source: &Source) -> Value {
    match &source.upstream {
        Upstream::Git(Repository {
            url,
            reference,
            path,
            credentials,
        }) => {
            json!({"git": url, "ref": reference, "path": path, "credentials": credentials, "taken": source.taken})
        }
        Upstream::Folder(place) => json!({"folder": place, "taken": source.taken}),
    }
}

fn revision_json(revision: &Revision) -> Value {
    let outcome = &revision.outcome;
    json!({
        "number": revision.number, "at": revision.at.millis(), "by": revision.by,
        "scaled": AsObject(&revision.overlay.scaled), "restarted": revision.overlay.restarted.millis(),
        "reconfigured": AsObject(&revision.overlay.reconfigured),
        "digests": AsObject(&revision.overlay.digests), "pinned": revision.overlay.pinned,
        "kept": revision.overlay.kept,
        "sized": AsObject(&revision.overlay.sized),
        "verdict": outcome.verdict.map_or("", RolloutVerdict::as_str), "cause": outcome.cause, "object": outcome.object, "sentence": outcome.sentence,
        "evidence": outcome.evidence, "fix": outcome.fix, "since": outcome.since.millis(),
        "took": revision.took_s, "inputs": outcome.inputs,
    })
}

#[derive(Debug, Default)]
struct RecordShape {
    app: String,
    namespace: String,
    owner: String,
    running: u64,
    good: u64,
    paused: bool,
    by_hand: bool,
    source: Option<SourceShape>,
    change: Option<ChangeShape>,
    unproven_job: String,
    inventory: Vec<EntryShape>,
    left: Vec<Contested>,
    revisions: Vec<RevisionShape>,
}
fields!(RecordShape {
    app,
    namespace,
    owner,
    running,
    good,
    paused,
    by_hand,
    source,
    change,
    unproven_job,
    inventory,
    left,
    revisions
});

fields!(Contested { object, field, by });

#[derive(Debug, Default)]
struct ChangeShape {
    id: String,
    by: String,
    body: String,
    stage: String,
}
fields!(ChangeShape {
    id,
    by,
    body,
    stage
});

#[derive(Debug, Default)]
struct SourceShape {
    folder: String,
    git: String,
    reference: String,
    path: String,
    credentials: String,
    taken: String,
}
fields!(SourceShape {
    folder,
    git,
    reference: "ref",
    path,
    credentials,
    taken
});

impl SourceShape {
    fn source(self) -> Source {
        let upstream = if self.folder.is_empty() {
            Upstream::Git(Repository {
                url: self.git,
                reference: self.reference,
                path: self.path,
                credentials: self.credentials,
            })
        } else {
            Upstream::Folder(self.folder)
        };
        Source {
            upstream,
            taken: self.taken,
        }
    }
}

#[derive(Debug, Default)]
struct EntryShape {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    nonce: String,
    adopted: bool,
    ran_in: u64,
    done_in: u64,
    adopted_in: u64,
}
fields!(EntryShape {
    api_version,
    kind,
    name,
    uid,
    nonce,
    adopted,
    ran_in: "ran",
    done_in: "done",
    adopted_in
});

#[derive(Debug, Default)]
struct RevisionShape {
    number: u64,
    at: i64,
    by: String,
    scaled: LiteMap<String, u64>,
    restarted: i64,
    reconfigured: LiteMap<String, u64>,
    digests: LiteMap<String, String>,
    pinned: Vec<String>,
    kept: Vec<String>,
    sized: LiteMap<String, String>,
    verdict: String,
    cause: String,
    object: String,
    sentence: String,
    evidence: String,
    fix: String,
    since: i64,
    took: u64,
    inputs: Vec<String>,
}
fields!(RevisionShape {
    number,
    at,
    by,
    scaled,
    restarted,
    reconfigured,
    digests,
    pinned,
    kept,
    sized,
    verdict,
    cause,
    object,
    sentence,
    evidence,
    fix,
    since,
    took,
    inputs
});

fn field(stored: &Stored, name: &str) -> Result<Vec<u8>, String> {
    let text = stored.data.get(name);
    let text =
        text.ok_or_else(|| format!("the Secret {} has no field {name}", stored.metadata.name))?;
    STANDARD
        .decode(text)
        .map_err(|error| format!("the Secret {} is damaged: {error}", stored.metadata.name))
}

/// Reads the record of an app.
///
/// # Errors
/// The Secret is not one of ours, or damaged.
pub fn read_record(stored: &Stored) -> Result<App, String> {
    let record = field(stored, RECORD)?;
    let shape: RecordShape = json::shape(&record)
        .map_err(|error| format!("the Secret {} is damaged: {error}", stored.metadata.name))?;
    if record_name(&shape.app) != stored.metadata.name {
        return Err(format!(
            "the Secret {} is about another app",
            stored.metadata.name
        ));
    }
    let owner = match shape.owner.as_str() {
        // A record of before there was a choice.
        "" => Owner::Machine,
        word => Owner::of(word)
            .ok_or_else(|| format!("the Secret {} names no owner", stored.metadata.name))?,
    };
    let entry = |entry: EntryShape| InventoryEntry {
        api_version: entry.api_version,
        kind: entry.kind,
        name: entry.name,
        uid: entry.uid,
        nonce: entry.nonce,
        is_adopted: entry.adopted,
        ran_in: entry.ran_in,
        done_in: entry.done_in,
        adopted_in: entry.adopted_in,
    };
    let revision = |found: RevisionShape| Revision {
        number: found.number,
        at: Wall::from_millis(found.at),
        by: found.by,
        overlay: Overlay {
            scaled: found.scaled,
            restarted: Wall::from_millis(found.restarted),
            reconfigured: found.reconfigured,
            digests: found.digests,
            pinned: found.pinned,
            kept: found.kept,
            sized: found.sized,
        },
        outcome: RevisionOutcome {
            verdict: RolloutVerdict::of(&found.verdict),
            cause: found.cause,
            object: found.object,
            sentence: found.sentence,
            evidence: found.evidence,
            fix: found.fix,
            inputs: found.inputs,
            since: Wall::from_millis(found.since),
        },
        took_s: found.took,
    };
    Ok(App {
        name: shape.app,
        namespace: shape.namespace,
        owner,
        running: shape.running,
        good: shape.good,
        is_paused: shape.paused,
        is_rolled_back_by_hand: shape.by_hand,
        source: shape.source.map(SourceShape::source),
        change: shape.change.map(|found| LastChange {
            id: found.id,
            by: found.by,
            body: found.body,
            stage: Stage::of(&found.stage).unwrap_or_default(),
        }),
        unproven_job: shape.unproven_job,
        inventory: shape.inventory.into_iter().map(entry).collect(),
        left: shape.left,
        revisions: shape.revisions.into_iter().map(revision).collect(),
    })
}

/// The Secret of a revision.
///
/// # Errors
/// The manifests are too large.
pub fn pack(
    app: &str,
    number: u64,
    namespace: &str,
    manifests: &[Manifest],
) -> Result<Value, String> {
    let objects: Vec<_> = manifests.iter().map(pack_one).collect();
    let cannot = |error: std::io::Error| format!("the manifests cannot be packed: {error}");
    let text = serde_json::to_vec(&objects).map_err(|error| error.to_string())?;
    let mut deflate = DeflateEncoder::new(Vec::new(), Compression::default());
    deflate.write_all(&text).map_err(cannot)?;
    let packed = deflate.finish().map_err(cannot)?;
    if packed.len() > PACKED_BYTES_MAX {
        return Err(format!(
            "the manifests take {} bytes packed, and {PACKED_BYTES_MAX} is the most",
            packed.len()
        ));
    }
    let data = json!({MANIFESTS: STANDARD.encode(packed)});
    Ok(secret(&revision_name(app, number), namespace, "", &data))
}

/// An object as it is packed: a custom resource with its plural, which its manifest does not say.
fn pack_one(manifest: &Manifest) -> Cow<'_, Value> {
    if manifest.kind.is_custom() {
        let object = &manifest.object;
        Cow::Owned(json!({RESOURCE: &*manifest.kind.name, "object": object}))
    } else {
        Cow::Borrowed(&manifest.object)
    }
}

/// Reads the manifests of a revision, in the order in which they were packed.
///
/// # Errors
/// The Secret is damaged.
pub fn unpack(stored: &Stored) -> Result<Vec<Manifest>, String> {
    let name = &stored.metadata.name;
    let packed = field(stored, MANIFESTS)?;
    let mut text = Vec::new();
    DeflateDecoder::new(packed.as_slice())
        .take(UNPACKED_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(|error| format!("the Secret {name} is damaged: {error}"))?;
    let objects: Vec<Value> = serde_json::from_slice(&text)
        .map_err(|error| format!("the Secret {name} is damaged: {error}"))?;
    let manifest = |mut object: Value| {
        let custom = object.get(RESOURCE).and_then(Value::as_str);
        let custom = custom.map(str::to_owned);
        if let (Some(_), Some(inner)) = (&custom, object.get_mut("object")) {
            object = inner.take();
        }
        let text = |pointer: &str| {
            let found = object.pointer(pointer).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let kind = match custom {
            Some(resource) => Kind::custom(&text("/apiVersion"), &resource),
            None => kind_of(&text("/apiVersion"), &text("/kind")),
        };
        let kind = kind.ok_or_else(|| {
            format!("the Secret {name} holds a kind that this version does not know")
        })?;
        Ok(Manifest {
            kind,
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            object,
        })
    };
    objects.into_iter().map(manifest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::{judged, parse};

    fn stored(secret: &Value) -> Stored {
        json::shape(secret.to_string().as_bytes()).unwrap()
    }

    fn every_overlay() -> Overlay {
        Overlay {
            scaled: LiteMap::from_iter([("Deployment/web".to_owned(), 3)]),
            restarted: Wall::from_millis(6),
            reconfigured: LiteMap::from_iter([("Deployment/web".to_owned(), 4)]),
            digests: LiteMap::from_iter([("web:1".to_owned(), "local".to_owned())]),
            pinned: vec!["Deployment/web".to_owned()],
            kept: vec!["Secret/key".to_owned()],
            sized: LiteMap::from_iter([(
                "Deployment/web/a".to_owned(),
                "- - - - > 60m - - -".to_owned(),
            )]),
        }
    }

    fn every_entry(of: &InventoryEntry) -> Vec<InventoryEntry> {
        let job = InventoryEntry {
            uid: "u".to_owned(),
            nonce: "n1".to_owned(),
            ran_in: 2,
            done_in: 3,
            ..of.clone()
        };
        let adopted = InventoryEntry {
            name: "b".to_owned(),
            is_adopted: true,
            adopted_in: 4,
            ..of.clone()
        };
        vec![job, adopted]
    }

    #[test]
    fn a_record_is_read_back_and_holds_no_values() {
        let mut app = App {
            name: "web".to_owned(),
            namespace: "shop".to_owned(),
            owner: Owner::ControlPlane,
            running: 2,
            good: 1,
            is_paused: true,
            is_rolled_back_by_hand: true,
            source: Some(Source {
                upstream: Upstream::Git(Repository {
                    url: "https://git.example/shop/web.git".to_owned(),
                    reference: "main".to_owned(),
                    path: "deploy".to_owned(),
                    credentials: "/etc/pipeops-agent/git-token".to_owned(),
                }),
                taken: "1a2b3c".to_owned(),
            }),
            change: Some(LastChange {
                id: "app-1".to_owned(),
                by: "uid 0".to_owned(),
                body: "{}".to_owned(),
                stage: Stage::Back,
            }),
            unproven_job: "Job shop/migrate".to_owned(),
            left: vec![Contested {
                object: "Deployment shop/web".to_owned(),
                field: "spec.replicas".to_owned(),
                by: "robot".to_owned(),
            }],
            ..App::default()
        };
        let manifests = parse(
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {p: s3cret}\n",
            Some("shop"),
        )
        .unwrap();
        app.inventory = every_entry(&InventoryEntry::of(&manifests[0]));
        app.revisions.push(Revision {
            number: 2,
            at: Wall::from_millis(5),
            by: "uid 0".to_owned(),
            overlay: every_overlay(),
            outcome: RevisionOutcome {
                verdict: Some(RolloutVerdict::Bad),
                cause: "container.oom".to_owned(),
                since: Wall::from_millis(7),
                inputs: vec!["Pod shop/web-1: Pending".to_owned()],
                ..RevisionOutcome::default()
            },
            took_s: 9,
        });
        let secret = record(&app, "pipeops-system", "77");
        assert_eq!(secret["metadata"]["resourceVersion"], "77");
        let text = String::from_utf8(field(&stored(&secret), RECORD).unwrap()).unwrap();
        assert!(!text.contains("s3cret"));
        assert_eq!(read_record(&stored(&secret)).unwrap(), app);
        app.source = Some(Source {
            upstream: Upstream::Folder("/etc/pipeops-agent/apps/web.yaml".to_owned()),
            taken: "1a2b3c".to_owned(),
        });
        let from_folder = record(&app, "pipeops-system", "77");
        assert_eq!(read_record(&stored(&from_folder)).unwrap(), app);
        let mut other = secret;
        other["metadata"]["name"] = json!("pipeops-app.shop");
        assert!(
            read_record(&stored(&other))
                .unwrap_err()
                .contains("another app")
        );
    }

    #[test]
    fn a_record_of_before_there_were_digests_is_read() {
        let old = json!({"app": "web", "good": 1, "revisions": [{"number": 1, "verdict": "good", "scaled": {"Deployment/web": 2}}]});
        let data = json!({RECORD: STANDARD.encode(old.to_string())});
        let app = read_record(&stored(&secret("pipeops-app.web", "x", "", &data))).unwrap();
        let scaled = LiteMap::from_iter([("Deployment/web".to_owned(), 2)]);
        let overlay = Overlay {
            scaled,
            ..Overlay::default()
        };
        assert_eq!((app.overlay(1), app.good), (overlay, 1));
    }

    #[test]
    fn the_largest_record_fits_into_a_secret() {
        let entry = |number: usize| InventoryEntry {
            api_version: "networking.k8s.io/v1".to_owned(),
            kind: "PersistentVolumeClaim".to_owned(),
            name: format!("{number:0>253}"),
            uid: "u".repeat(36),
            nonce: "n".repeat(32),
            is_adopted: true,
            adopted_in: 999_999,
            ..InventoryEntry::default()
        };
        let image = |number: usize| (format!("{number:0>255}"), format!("sha256:{:0>64}", 1));
        let overlay = Overlay {
            digests: (0..64).map(image).collect(),
            pinned: (0..64)
                .map(|number| format!("StatefulSet/{number:0>253}"))
                .collect(),
            sized: (0..crate::core::apps::suggest::CONTAINERS_MAX)
                .map(|number| (format!("StatefulSet/{number:0>317}"), "9".repeat(179)))
                .collect(),
            reconfigured: (0..8)
                .map(|number| (format!("StatefulSet/{number:0>253}"), 1_795_000_000_000))
                .collect(),
            ..Overlay::default()
        };
        let revision = Revision {
            overlay,
            outcome: RevisionOutcome {
                evidence: "e".repeat(2500),
                ..RevisionOutcome::default()
            },
            ..Revision::default()
        };
        let mut app = App {
            name: "web".to_owned(),
            unproven_job: format!("Job {:0>63}/{:0>63}", 1, 1),
            inventory: (0..crate::core::apps::OBJECTS_MAX).map(entry).collect(),
            revisions: vec![revision; 11],
            ..App::default()
        };
        app.revisions[10].outcome.inputs = vec!["i".repeat(120); 9];
        let secret = record(&app, "pipeops-system", "");
        let bytes = field(&stored(&secret), RECORD).unwrap();
        assert!(bytes.len() < 1 << 20, "{}", bytes.len());
    }

    #[test]
    fn a_revision_is_read_back() {
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: b}\n";
        let manifests = parse(text, Some("shop")).unwrap();
        let secret = pack("web", 3, "pipeops-system", &manifests).unwrap();
        assert_eq!(secret["metadata"]["name"], "pipeops-app.web.r3");
        assert_eq!(unpack(&stored(&secret)).unwrap(), manifests);
        let object = json!({"apiVersion": "example.com/v1", "kind": "Service", "resource": "x",
            "metadata": {"name": "c"}});
        let key = ("example.com/v1".to_owned(), "Service".to_owned());
        let kind = Kind::custom("example.com/v1", "services.example.com").unwrap();
        let custom = judged(
            vec![object],
            Some("shop"),
            &[(key, kind)].into_iter().collect(),
        )
        .unwrap();
        let kept = pack("web", 3, "pipeops-system", &custom).unwrap();
        assert_eq!(unpack(&stored(&kept)).unwrap(), custom);
        let mut damaged = secret;
        damaged["data"]["manifests"] = json!("AAAA");
        assert!(unpack(&stored(&damaged)).unwrap_err().contains("damaged"));
    }
}
