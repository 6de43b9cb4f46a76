//! Digests of images: those that the Pods of a good revision run, its manifests with them on the
//! way back, and images without which its Pods do not start while their registry is away.

use litemap::LiteMap;
use serde_json::{Value, json};

use super::{App, Manifest, Overlay, place};
use crate::core::{
    images::{ImageDigest, is_digest},
    rollout::{Key, Observation, images_of},
};

/// Images of a revision whose digests are kept, and workloads of it that go back by them. The
/// record has to fit into a Secret of 1 MiB: eleven revisions take 430 KB at most, beside 440 KB
/// of inventory.
const IMAGES_MAX: usize = 64;
/// The longest name of an image whose digest is kept: a registry takes repositories of 255 bytes.
const IMAGE_BYTES_MAX: usize = 255;
/// Images that are reported as needing their registry.
const NEEDS_MAX: usize = 20;

/// Words in place of a digest.
const SEVERAL: &str = "several";
const LOCAL: &str = "local";
const ELSEWHERE: &str = "elsewhere";
const UNSEEN: &str = "unseen";

/// Reason why an image is not pinned, by what is kept in place of its digest; `None`: that is one.
pub fn unpinned(kept: &str) -> Option<&'static str> {
    match kept {
        SEVERAL => Some("its Pods run different images of that name"),
        LOCAL => Some("it was imported on the node, which knows no digest of a registry for it"),
        ELSEWHERE => Some("the node knows it under the name of another repository"),
        UNSEEN => Some("no Pod ran it when the revision became good"),
        kept if is_digest(kept) => None,
        _ => Some("its digest cannot be read"),
    }
}

/// Tag of an image; `None`: it names none, or a digest.
fn tag(image: &str) -> Option<&str> {
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    (!tag.contains('/')).then_some(tag)
}

/// Repository of an image under its full name: `docker.io/library/nginx` for `nginx:1.27`.
fn repository(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        Some(_) | None => name,
    };
    let (host, path) = match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
        Some(_) | None => ("docker.io", name),
    };
    match host {
        "docker.io" | "index.docker.io" if path.contains('/') => format!("docker.io/{path}"),
        "docker.io" | "index.docker.io" => format!("docker.io/library/{path}"),
        host => format!("{host}/{path}"),
    }
}

/// Digest of an image by the `imageID` of a container, else the word for its absence. The node may
/// name another repository that has the same image: there it may have another digest.
fn digest<'a>(image: &str, id: &'a str) -> &'a str {
    // cri-dockerd: docker-pullable://nginx@sha256:…
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    match id.split_once('@') {
        Some((name, digest)) if name.len() <= IMAGE_BYTES_MAX && is_digest(digest) => {
            if repository(name) == repository(image) {
                digest
            } else {
                ELSEWHERE
            }
        }
        Some(_) | None => LOCAL,
    }
}

/// Place of the Pods in a workload. A Job has none: it does not run again on the way back.
pub fn pod_of(manifest: &Manifest) -> Option<&'static str> {
    match &*manifest.kind.name {
        "Deployment" | "StatefulSet" | "DaemonSet" => Some("/spec/template/spec"),
        "CronJob" => Some("/spec/jobTemplate/spec/template/spec"),
        _ => None,
    }
}

fn containers(manifest: &Manifest) -> impl Iterator<Item = &Value> {
    let pod = pod_of(manifest).and_then(|path| manifest.object.pointer(path));
    let list = move |field| pod?.get(field)?.as_array();
    ["containers", "initContainers"]
        .into_iter()
        .filter_map(list)
        .flatten()
}

fn text<'a>(container: &'a Value, field: &str) -> &'a str {
    let found = container.get(field).and_then(Value::as_str);
    found.unwrap_or_default()
}

/// Images of a workload, as its manifest names them.
fn images(manifest: &Manifest) -> impl Iterator<Item = &str> {
    containers(manifest).map(|container| text(container, "image"))
}

/// A workload in an overlay: `Deployment/web`.
pub fn workload(manifest: &Manifest) -> String {
    format!("{}/{}", manifest.kind.name, manifest.name)
}

/// Digests that the Pods of a version run, by the names of its images. An image that its manifest
/// names by digest is left out.
pub fn digests(manifests: &[Manifest], seen: &Observation) -> LiteMap<String, String> {
    let is_kept = |image: &&str| {
        let is_plain = image
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'@');
        (1..=IMAGE_BYTES_MAX).contains(&image.len()) && is_plain
    };
    let mut found = LiteMap::new();
    for image in manifests.iter().flat_map(images).filter(is_kept) {
        if found.len() < IMAGES_MAX || found.contains_key(image) {
            found.insert(image.to_owned(), UNSEEN.to_owned());
        }
    }
    // Pods of a CronJob are of any age.
    let is_running = |one: &&Manifest| pod_of(one).is_some() && one.kind.name != "CronJob";
    for manifest in manifests.iter().filter(is_running) {
        let key = Key {
            kind: manifest.kind.name.to_string(),
            namespace: manifest.namespace.clone(),
            name: manifest.name.clone(),
        };
        for (image, id) in images_of(&key, seen) {
            let Some(known) = found.get_mut(image) else {
                continue;
            };
            let digest = digest(image, id);
            if known == UNSEEN {
                digest.clone_into(known);
            } else if known != digest {
                SEVERAL.clone_into(known);
            }
        }
    }
    found
}

/// Digests of the images that apps need although no Pod may run them now, at most `max`: those of
/// what runs first, then of what each app goes back to by itself, and of what a person goes back
/// to.
pub fn images_to_keep(apps: &[App], max: usize) -> Vec<ImageDigest> {
    let mut found = Vec::new();
    let ranks: [fn(&App) -> u64; 3] = [|app| app.running, |app| app.good, App::rollback_target];
    let ranked = ranks
        .iter()
        .flat_map(|rank| apps.iter().map(|app| app.revision(rank(app))));
    for revision in ranked.flatten() {
        let kept = revision.overlay.digests.values();
        for digest in kept.filter_map(|kept| ImageDigest::parse(kept)) {
            if found.len() < max && !found.contains(&digest) {
                found.push(digest);
            }
        }
    }
    found
}

impl Overlay {
    fn digest(&self, image: &str) -> Option<&str> {
        let kept = self.digests.get(image).map(String::as_str);
        kept.filter(|kept| is_digest(kept))
    }

    /// Digest of an image of the manifests, also of one that they name by it.
    pub fn known_digest<'a>(&'a self, image: &'a str) -> Option<&'a str> {
        let named = image.split_once('@').map(|(_, digest)| digest);
        named
            .filter(|named| is_digest(named))
            .or_else(|| self.digest(image))
    }

    /// Keeps the digests of a version that has become good. A digest that is known stays: that is
    /// what it was good with first.
    pub fn keep_digests(&mut self, found: LiteMap<String, String>) {
        for (image, digest) in found {
            if self.digest(&image).is_none() {
                self.digests.insert(image, digest);
            }
        }
    }

    /// Forgets digests: the words of the manifests count.
    pub fn unpin(&mut self) {
        self.digests.clear();
        self.pinned.clear();
    }

    /// Workloads of a version that go back by digest. One that is as it was (`current`), with Pods
    /// that still run the same images (`running`), is left alone, because its Pods would be
    /// replaced for nothing.
    pub fn to_pin(
        &self,
        (version, current): (&[Manifest], &[Manifest]),
        running: &LiteMap<String, String>,
    ) -> Vec<String> {
        let goes = |manifest: &&Manifest| {
            let is_same = current.contains(manifest);
            images(manifest).any(|image| {
                self.digest(image).is_some_and(|then| {
                    !is_same || running.get(image).is_none_or(|now| now.as_str() != then)
                })
            })
        };
        let going = version.iter().filter(goes).map(workload);
        going.take(IMAGES_MAX).collect()
    }

    /// Names the images of a workload by digest, if it goes back so. The tag stays for people. A
    /// digest that is on the node needs no registry, where the manifest does not say when to pull.
    pub(super) fn lay_digests(&self, manifest: &mut Manifest) {
        if self.pinned.is_empty() || !self.pinned.contains(&workload(manifest)) {
            return;
        }
        let pod = pod_of(manifest).and_then(|path| manifest.object.pointer_mut(path));
        let Some(Value::Object(pod)) = pod else {
            return;
        };
        for (field, list) in pod {
            let is_meant = field == "containers" || field == "initContainers";
            let Some(list) = list.as_array_mut().filter(|_| is_meant) else {
                continue;
            };
            for container in list {
                let image = text(container, "image");
                let Some(digest) = self.digest(image) else {
                    continue;
                };
                let pinned = format!("{image}@{digest}");
                place(container, &["image"], json!(pinned));
                if container.get(POLICY).is_none() {
                    place(container, &[POLICY], json!("IfNotPresent"));
                }
            }
        }
    }
}

const POLICY: &str = "imagePullPolicy";

/// An image without which Pods do not start while its registry is away.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Need {
    pub image: String,
    /// Object whose Pods need it.
    pub object: String,
    /// Reason.
    pub why: String,
    /// Action for a person.
    pub fix: String,
}

/// Images that Pods of these manifests could not be started with while their registry is away:
/// those that are pulled at each start, and those that only a pull secret brings back. One that
/// `stays` on the node needs no bringing back.
pub fn needs(manifests: &[Manifest], stays: impl Fn(&str) -> bool) -> Vec<Need> {
    let mut found: Vec<Need> = Vec::new();
    for manifest in manifests {
        let secrets = pod_of(manifest)
            .and_then(|path| manifest.object.pointer(path)?.get("imagePullSecrets"))
            .and_then(Value::as_array);
        let secret = secrets.and_then(|all| all.first());
        for container in containers(manifest) {
            let image = text(container, "image");
            let secret = secret.filter(|_| !stays(image));
            let Some((why, fix)) = need(container, image, secret) else {
                continue;
            };
            if found.len() < NEEDS_MAX && !found.iter().any(|it| it.image == image && it.why == why)
            {
                found.push(Need {
                    image: image.to_owned(),
                    object: manifest.in_words(),
                    why,
                    fix,
                });
            }
        }
    }
    found
}

fn need(container: &Value, image: &str, secret: Option<&Value>) -> Option<(String, String)> {
    let is_latest = match tag(image) {
        Some(tag) => tag == "latest",
        None => !image.contains('@'),
    };
    match text(container, POLICY) {
        "Never" => None,
        "Always" => Some((
            "it is pulled at each start (imagePullPolicy: Always)".to_owned(),
            "set imagePullPolicy: IfNotPresent".to_owned(),
        )),
        "" if is_latest => Some((
            "it is pulled at each start, because it names no version".to_owned(),
            "name a version in place of latest, or set imagePullPolicy: IfNotPresent".to_owned(),
        )),
        _ => secret.map(|secret| {
            (
                format!(
                    "once the node has removed it, only its registry and the pull secret {} bring it back",
                    text(secret, "name")
                ),
                format!(
                    "keep a copy, on k3s: sudo /usr/local/bin/k3s ctr images export /var/lib/rancher/k3s/agent/images/COPY.tar {}",
                    image.split('@').next().unwrap_or_default()
                ),
            )
        }),
    }
}

#[cfg(test)]
mod tests;
