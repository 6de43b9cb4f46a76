//! The test cluster, started or found, and what the bench needs of it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::https::{Address, Trust};
use crate::os;

/// A running cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    script: PathBuf,
    dir: PathBuf,
    /// The bench started it, so the bench ends it.
    is_own: bool,
    /// `https://address:port` of its API server.
    pub(crate) api_url: String,
    /// A token of a cluster administrator, used by both agents and by direct requests.
    pub(crate) token_file: PathBuf,
    pub(crate) token: String,
    pub(crate) ca_file: PathBuf,
    pub(crate) ca_pem: String,
    /// The address of the Service that streams bytes.
    pub(crate) service_ip: String,
}

/// The Service of the fixtures whose pods stream bytes over https, made by `cluster fixtures`.
pub(crate) const SERVICE: &str = "echo";
pub(crate) const SERVICE_NAMESPACE: &str = "fixtures";
pub(crate) const SERVICE_PORT: u16 = 443;

/// 30 s: how long a new cluster may refuse the fixtures.
const FIXTURES_LIMIT: Duration = Duration::from_secs(30);

/// EX_TEMPFAIL: this machine cannot run a cluster.
const SKIPPED: i32 = 75;

impl Cluster {
    /// Starts the cluster in `PIPEOPS_BENCH_CLUSTER`, or one below `work`.
    pub(crate) fn start(repository: &Path, work: &Path) -> Result<Self, String> {
        let given = os::variable("PIPEOPS_BENCH_CLUSTER").map(PathBuf::from);
        let mut cluster = Self {
            script: repository.join("tests/cluster/cluster"),
            is_own: given.is_none(),
            dir: given.unwrap_or_else(|| work.join("cluster")),
            api_url: String::new(),
            token_file: PathBuf::new(),
            token: String::new(),
            ca_file: work.join("cluster-ca.pem"),
            ca_pem: String::new(),
            service_ip: String::new(),
        };
        let own_id = std::process::id().to_string();
        let owned = ["--owner", own_id.as_str()];
        cluster.run("up", if cluster.is_own { &owned } else { &[] })?;
        cluster.fixtures()?;
        cluster.token = cluster.run("token", &["bench"])?;
        cluster.token_file = cluster.dir.join("tokens/bench");
        cluster.api_url = cluster.variable("API_SERVER")?;
        cluster.ca_pem = authority(&read(&cluster.dir.join("tokens/bench.kubeconfig.yaml"))?)?;
        os::write(&cluster.ca_file, &cluster.ca_pem)?;
        let arguments = ["-n", SERVICE_NAMESPACE, "get", "service", SERVICE];
        cluster.service_ip =
            cluster.kubectl(&[&arguments[..], &["-o", "jsonpath={.spec.clusterIP}"]].concat())?;
        Ok(cluster)
    }

    /// A namespace that was just made has no service account yet, and refuses pods until then.
    fn fixtures(&self) -> Result<(), String> {
        let start = os::now();
        loop {
            match self.run("fixtures", &[]) {
                Err(_) if os::since(start) < FIXTURES_LIMIT => os::pause(Duration::from_secs(1)),
                made => return made.map(drop),
            }
        }
    }

    /// Its administrator's kubectl.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.run("kubectl", arguments)
    }

    /// Its kubectl, not started yet.
    pub(crate) fn kubectl_command(&self) -> Result<Command, String> {
        let mut kubectl = os::program(self.variable("KUBECTL")?);
        kubectl.env("KUBECONFIG", self.variable("KUBECONFIG")?);
        Ok(kubectl)
    }

    /// The same cluster by way of another address.
    pub(crate) fn by_way_of(&self, api_url: &str) -> Self {
        Self {
            script: self.script.clone(),
            dir: self.dir.clone(),
            is_own: false,
            api_url: api_url.to_owned(),
            token_file: self.token_file.clone(),
            token: self.token.clone(),
            ca_file: self.ca_file.clone(),
            ca_pem: self.ca_pem.clone(),
            service_ip: self.service_ip.clone(),
        }
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Result<String, String> {
        let output = os::program(&self.script)
            .arg(command)
            .arg(&self.dir)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("cannot run {}: {error}", self.script.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        outcome(command, output.status, text)
    }

    fn variable(&self, name: &str) -> Result<String, String> {
        let path = self.dir.join("env");
        let text = read(&path)?;
        value(&text, name).ok_or_else(|| format!("{} names no {name}", path.display()))
    }

    /// The API server itself.
    pub(crate) fn api(&self) -> Result<Address, String> {
        Address::new(
            &self.api_url,
            Some(self.token.clone()),
            Trust::Pem(&self.ca_pem),
        )
    }

    /// The Service that streams bytes, itself. Its pods make their certificates themselves.
    pub(crate) fn service(&self) -> Result<Address, String> {
        let url = format!("https://{}:{SERVICE_PORT}", self.service_ip);
        Address::new(&url, None, Trust::Anybody)
    }

    /// Its part of the proxy path of the Kubernetes API.
    pub(crate) fn service_path() -> String {
        format!(
            "/api/v1/namespaces/{SERVICE_NAMESPACE}/services/https:{SERVICE}:{SERVICE_PORT}/proxy"
        )
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.is_own
            && let Err(error) = self.run("down", &[])
        {
            os::progress(&error);
        }
    }
}

fn outcome(command: &str, status: ExitStatus, text: String) -> Result<String, String> {
    match status.code() {
        Some(0) => Ok(text),
        Some(SKIPPED) => Err(format!("no test cluster: {text}")),
        Some(_) | None => Err(format!("test cluster: {command} ended with {status}")),
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// A line `NAME=value`.
fn value(text: &str, name: &str) -> Option<String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    line.map(str::to_owned)
}

/// The certificate authority of a kubeconfig that carries one.
fn authority(kubeconfig: &str) -> Result<String, String> {
    let name = "certificate-authority-data:";
    let place = kubeconfig.split(name).nth(1);
    let encoded: String = place
        .unwrap_or_default()
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "+/=".contains(*c))
        .collect();
    let decoded = STANDARD
        .decode(&encoded)
        .map_err(|error| format!("the kubeconfig's CA is not base64: {error}"))?;
    String::from_utf8(decoded)
        .ok()
        .filter(|pem| pem.contains("BEGIN CERTIFICATE"))
        .ok_or_else(|| "the kubeconfig carries no CA".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ca_is_found_in_a_kubeconfig_of_any_layout() {
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let encoded = STANDARD.encode(pem);
        for text in [
            format!(
                "clusters: [{{cluster: {{certificate-authority-data: {encoded}, server: x}}}}]"
            ),
            format!("    certificate-authority-data: {encoded}\n    server: x\n"),
        ] {
            assert_eq!(authority(&text).unwrap(), pem);
        }
        assert!(authority("clusters: []").is_err());
    }

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let text = "API_SERVER_X=1\nAPI_SERVER=https://10.0.0.2:6443\n";
        assert_eq!(value(text, "API_SERVER").unwrap(), "https://10.0.0.2:6443");
        assert_eq!(value(text, "SERVER"), None);
    }
}
