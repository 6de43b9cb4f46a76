//! State that survives a restart: certificates, tokens, and the clusters that are known.
//!
//! One private JSON file holds all of it; the files beside it are copies for people and agents.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde::{Deserialize, Serialize};

use crate::options::ClientCertificates;

/// A failure to start or to keep state, in words.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// A cluster that registered once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cluster {
    /// The id that the plane gave or took over.
    pub cluster_id: String,
    /// The agent that registered it.
    pub agent_id: String,
    /// Its name, as registered.
    pub name: String,
    /// The bearer token for its Kubernetes API, as registered.
    pub k8s_service_token: Option<String>,
}

/// Everything that outlives a start.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) ca_pem: String,
    server_pem: String,
    server_key_pem: String,
    pub(crate) client_pem: String,
    pub(crate) client_key_pem: String,
    pub(crate) token: String,
    pub(crate) user_token: String,
    pub(crate) clusters: Vec<Cluster>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys and tokens stay out of every log.
        f.debug_struct("State")
            .field("clusters", &self.clusters.len())
            .finish_non_exhaustive()
    }
}

const FILE: &str = "plane.json";

impl State {
    /// Reads the state of a directory, or makes a new one.
    pub(crate) fn load_or_new(dir: Option<&Path>) -> Result<Self, Failure> {
        let Some(dir) = dir else {
            return Self::generate();
        };
        let path = dir.join(FILE);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::generate(),
            Err(error) => Err(Failure::new(format!(
                "cannot read {}: {error}",
                path.display()
            ))),
        }
    }

    fn generate() -> Result<Self, Failure> {
        let made = |error| Failure::new(format!("cannot make certificates: {error}"));
        let ca_key = rcgen::KeyPair::generate().map_err(made)?;
        let mut ca = CertificateParams::new(Vec::new()).map_err(made)?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.distinguished_name
            .push(DnType::CommonName, "pipeops-agent reference control plane");
        let ca_pem = ca.self_signed(&ca_key).map_err(made)?.pem();
        let issuer = Issuer::new(ca, ca_key);

        let leaf = |name: &str, names: &[&str], usage| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let key = rcgen::KeyPair::generate()?;
            let mut params = CertificateParams::new(names)?;
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![usage];
            params.use_authority_key_identifier_extension = true;
            let certificate = params.signed_by(&key, &issuer)?;
            Ok((certificate.pem(), key.serialize_pem()))
        };
        let names = ["localhost", "127.0.0.1", "::1"];
        let (server_pem, server_key_pem) =
            leaf("localhost", &names, ExtendedKeyUsagePurpose::ServerAuth).map_err(made)?;
        let (client_pem, client_key_pem) =
            leaf("agent", &["agent"], ExtendedKeyUsagePurpose::ClientAuth).map_err(made)?;
        Ok(Self {
            ca_pem,
            server_pem,
            server_key_pem,
            client_pem,
            client_key_pem,
            token: format!("clt_{}", random_text()?),
            user_token: format!("user_{}", random_text()?),
            clusters: Vec::new(),
        })
    }

    /// Writes the private file.
    pub(crate) fn save(&self, dir: &Path) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Failure::new(format!("cannot write {FILE}: {error}")))?;
        replace(&dir.join(FILE), &text, Access::Owner)
    }

    /// TLS for the listeners.
    pub(crate) fn tls(
        &self,
        clients: ClientCertificates,
    ) -> Result<Arc<rustls::ServerConfig>, Failure> {
        let bad = |error: String| Failure::new(format!("cannot set up TLS: {error}"));
        let chain = CertificateDer::from_pem_slice(self.server_pem.as_bytes())
            .map_err(|error| bad(error.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(self.server_key_pem.as_bytes())
            .map_err(|error| bad(error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(error.to_string()))?;
        let builder = match clients {
            ClientCertificates::Ignored => builder.with_no_client_auth(),
            ClientCertificates::Required => {
                let ca = CertificateDer::from_pem_slice(self.ca_pem.as_bytes())
                    .map_err(|error| bad(error.to_string()))?;
                let mut roots = rustls::RootCertStore::empty();
                roots.add(ca).map_err(|error| bad(error.to_string()))?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(|error| bad(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(vec![chain], key)
            .map_err(|error| bad(error.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// The id of a registering agent's cluster: what is known of the agent, else what it says it
    /// had, else a new one. Remembers the rest: a cluster has one agent that links, the last that
    /// registered.
    pub(crate) fn register(&mut self, registering: Cluster) -> Result<Cluster, Failure> {
        let of_agent = |cluster: &Cluster| cluster.agent_id == registering.agent_id;
        let of_id = |cluster: &Cluster| cluster.cluster_id == registering.cluster_id;
        let place = self.clusters.iter().position(of_agent);
        let place = place.or_else(|| self.clusters.iter().position(of_id));
        if let Some(known) = place.and_then(|place| self.clusters.get_mut(place)) {
            known.agent_id = registering.agent_id;
            known.name = registering.name;
            known.k8s_service_token = registering.k8s_service_token;
            return Ok(known.clone());
        }
        let mut cluster = registering;
        if cluster.cluster_id.is_empty() {
            cluster.cluster_id = uuid()?;
        }
        self.clusters.push(cluster.clone());
        Ok(cluster)
    }
}

/// A kubeconfig whose only cluster is reached through the plane.
pub(crate) fn kubeconfig(server: &str, ca_pem: &str, user_token: &str, name: &str) -> String {
    let ca = STANDARD.encode(ca_pem);
    // A name comes from the agent: as a JSON string it is also YAML, whatever it holds.
    let name = serde_json::Value::from(name);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: {name}\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {ca}\nusers:\n- name: plane-user\n  user:\n    token: {user_token}\n\
         contexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: plane-user\n\
         current-context: {name}\n"
    )
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|error| Failure::new(format!("no random numbers: {error:?}")))?;
    Ok(bytes)
}

/// 32 characters that nobody guesses.
fn random_text() -> Result<String, Failure> {
    Ok(URL_SAFE_NO_PAD.encode(random::<24>()?))
}

/// Eight characters that make request ids of two starts different.
pub(crate) fn random_prefix() -> Result<String, Failure> {
    Ok(format!("{:08x}", u32::from_be_bytes(random()?)))
}

/// A random UUID (version 4).
fn uuid() -> Result<String, Failure> {
    let bits = u128::from_be_bytes(random()?);
    let bits = bits & !(0xf << 76) | (0x4 << 76);
    let bits = bits & !(0x3 << 62) | (0x2 << 62);
    let text = format!("{bits:032x}");
    let mut out = String::with_capacity(36);
    for (place, digit) in text.chars().enumerate() {
        if matches!(place, 8 | 12 | 16 | 20) {
            out.push('-');
        }
        out.push(digit);
    }
    Ok(out)
}

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Owner,
    Everybody,
}

/// Writes a file beside its place and moves it there, so that a reader never sees half of it.
pub(crate) fn replace(path: &Path, content: &[u8], access: Access) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(format!("cannot write {}: {error}", path.display()));
    let beside = path.with_extension("new");
    let mode = match access {
        Access::Owner => 0o600,
        Access::Everybody => 0o644,
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&beside)
        .map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registering(agent_id: &str, cluster_id: &str) -> Cluster {
        Cluster {
            cluster_id: cluster_id.to_owned(),
            agent_id: agent_id.to_owned(),
            name: "edge".to_owned(),
            k8s_service_token: None,
        }
    }

    #[test]
    fn an_agent_keeps_its_cluster_id_however_it_registers() {
        let mut state = State::generate().unwrap();
        let first = state.register(registering("a", "")).unwrap().cluster_id;
        assert_eq!(first.len(), 36);
        assert_eq!(first.as_bytes()[14], b'4');
        let again = state.register(registering("a", "other")).unwrap();
        assert_eq!(again.cluster_id, first);
        let taken_over = state.register(registering("b", "was-mine")).unwrap();
        assert_eq!(taken_over.cluster_id, "was-mine");
        assert_eq!(state.clusters.len(), 2);
        let other_agent = state.register(registering("c", &first)).unwrap();
        assert_eq!(other_agent.cluster_id, first);
        assert_eq!(state.clusters.len(), 2);
        assert_eq!(state.clusters[0].agent_id, "c");
    }

    #[test]
    fn a_saved_state_comes_back_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let state = State::load_or_new(Some(dir.path())).unwrap();
        state.save(dir.path()).unwrap();
        let back = State::load_or_new(Some(dir.path())).unwrap();
        assert_eq!(back.token, state.token);
        assert_eq!(back.ca_pem, state.ca_pem);
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        back.tls(ClientCertificates::Required).unwrap();
    }
}
