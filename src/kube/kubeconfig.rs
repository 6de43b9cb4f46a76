//! Address and credentials of the API server: kubeconfig files as kubectl merges them, and the
//! service account inside a cluster.
//!
//! What cannot be honoured (exec plugins, impersonation, passwords) is refused with a fix; leaving
//! it out silently could mean more rights than the owner meant to give.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::slice;

use base64::Engine;

use crate::core::k3s::connect;
use crate::core::secret::Secret;
use crate::core::yaml;
use crate::error::{Error, Result, Retry};
use crate::net::tls::{ClientIdentity, Roots, Settings as TlsSettings, Verification};
use crate::wire::json::{self, fields};

/// The file that k3s writes at each start of its server.
pub const K3S_KUBECONFIG: &str = "/etc/rancher/k3s/k3s.yaml";

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A kubeconfig of 400 clusters with their certificates takes 3 MB.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Source of the access to the cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// Kubeconfig files; the first that names a thing wins. Those that do not exist are left out.
    Files(Vec<PathBuf>),
    /// The k3s of this machine.
    K3s {
        /// Kubeconfig of the agent's own account, if k3s was connected.
        own: PathBuf,
        /// Kubeconfig of the administrator, which root alone can read by default.
        admin: PathBuf,
    },
    /// The service account that a Pod is given.
    InCluster {
        /// `KUBERNETES_SERVICE_HOST`.
        host: String,
        /// `KUBERNETES_SERVICE_PORT`.
        port: u16,
        /// The directory with `token` and `ca.crt`.
        directory: PathBuf,
    },
}

impl Source {
    /// Chooses as kubectl does, then for k3s: the files of `KUBECONFIG` (colon list), else the
    /// service account of a Pod (`KUBERNETES_SERVICE_HOST` and `_PORT`), else what k3s gave the
    /// agent, else k3s' own file.
    pub fn choose(
        kubeconfig: Option<&str>,
        service_host: Option<&str>,
        service_port: Option<&str>,
    ) -> Self {
        let files: Vec<PathBuf> = kubeconfig
            .unwrap_or_default()
            .split(':')
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .collect();
        if !files.is_empty() {
            return Self::Files(files);
        }
        match (service_host, service_port.unwrap_or("443").parse()) {
            (Some(host), Ok(port)) if !host.is_empty() => Self::InCluster {
                host: host.to_owned(),
                port,
                directory: PathBuf::from(SERVICE_ACCOUNT),
            },
            _ => Self::K3s {
                own: PathBuf::from(connect::KUBECONFIG),
                admin: PathBuf::from(K3S_KUBECONFIG),
            },
        }
    }
}

/// The agent's own bearer token.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Token(pub Option<Secret>);

/// Everything that a connection to the cluster needs, read from disk.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// `https://host:port/base`, as written.
    pub server: String,
    /// TLS to the server, without who we are.
    pub tls: TlsSettings,
    /// Client certificate.
    pub client: Option<ClientIdentity>,
    pub token: Token,
    /// The proxy of this cluster alone.
    pub proxy_url: Option<String>,
    /// The files that were read, so that a change of one is noticed.
    pub files: Vec<PathBuf>,
}

/// Reads `source`. Blocking: call it in the pool.
///
/// # Errors
/// The file and line that cannot be used, why, and the fix.
pub fn load(source: &Source) -> Result<Cluster> {
    match source {
        Source::Files(paths) => load_files(paths),
        Source::K3s { own, admin } if own.exists() => load_files(slice::from_ref(own)),
        Source::K3s { admin, .. } => load_files(slice::from_ref(admin)),
        Source::InCluster {
            host,
            port,
            directory,
        } => load_service_account(host, *port, directory),
    }
}

fn load_service_account(host: &str, port: u16, directory: &Path) -> Result<Cluster> {
    let (token_file, ca_file) = (directory.join("token"), directory.join("ca.crt"));
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    Ok(Cluster {
        server: format!("https://{host}:{port}"),
        tls: TlsSettings {
            roots: Roots::ExtraOnly,
            extra_ca_pem: Some(read(&ca_file)?),
            ..TlsSettings::default()
        },
        client: None,
        token: Token(Some(read_token(&token_file)?)),
        proxy_url: None,
        files: vec![token_file, ca_file],
    })
}

#[derive(Debug, Default)]
struct Kubeconfig {
    current_context: Option<String>,
    clusters: Option<Vec<NamedCluster>>,
    contexts: Option<Vec<NamedContext>>,
    users: Option<Vec<NamedUser>>,
}
fields!(Kubeconfig {
    current_context: "current-context",
    clusters,
    contexts,
    users
});

#[derive(Debug, Default)]
struct NamedCluster {
    name: String,
    cluster: Option<ClusterEntry>,
}
fields!(NamedCluster { name, cluster });

#[derive(Debug, Default)]
struct NamedContext {
    name: String,
    context: Option<ContextEntry>,
}
fields!(NamedContext { name, context });

#[derive(Debug, Default)]
struct NamedUser {
    name: String,
    user: Option<UserEntry>,
}
fields!(NamedUser { name, user });

#[derive(Debug, Default)]
struct ClusterEntry {
    server: Option<String>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}
fields!(ClusterEntry {
    server,
    certificate_authority: "certificate-authority",
    certificate_authority_data: "certificate-authority-data",
    insecure_skip_tls_verify: "insecure-skip-tls-verify",
    tls_server_name: "tls-server-name",
    proxy_url: "proxy-url",
});

#[derive(Debug, Default)]
struct ContextEntry {
    cluster: Option<String>,
    user: Option<String>,
}
fields!(ContextEntry { cluster, user });

#[derive(Debug, Default)]
struct UserEntry {
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    token: Option<String>,
    token_file: Option<String>,
    username: Option<String>,
    exec: Option<()>,
    auth_provider: Option<()>,
    impersonated: Option<String>,
}
fields!(UserEntry {
    client_certificate: "client-certificate",
    client_certificate_data: "client-certificate-data",
    client_key: "client-key",
    client_key_data: "client-key-data",
    token,
    token_file: "tokenFile",
    username,
    exec,
    auth_provider: "auth-provider",
    impersonated: "as",
});

/// A named entry with the file that it is from: its relative paths are relative to that file.
struct Located<T> {
    entry: T,
    directory: PathBuf,
    path: PathBuf,
}

fn load_files(paths: &[PathBuf]) -> Result<Cluster> {
    let mut files = Vec::new();
    let mut parsed = Vec::new();
    for path in paths {
        match parse_file(path) {
            Ok(Some(kubeconfig)) => {
                files.push(path.clone());
                parsed.push((path.clone(), kubeconfig));
            }
            Ok(None) => {}
            Err(error) => return Err(error),
        }
    }
    if parsed.is_empty() {
        return Err(nothing_there(paths));
    }
    let current = parsed
        .iter()
        .find_map(|(_, file)| file.current_context.clone().filter(|name| !name.is_empty()))
        .ok_or_else(|| {
            let shown = shown(paths);
            Error::new(format!("{shown} names no current-context"))
                .fix("kubectl config use-context NAME")
        })?;
    let context = find(&mut parsed, |file| {
        let list = file.contexts.as_mut()?;
        let index = list.iter().position(|named| named.name == current)?;
        list.swap_remove(index).context
    })
    .ok_or_else(|| missing(paths, "context", &current))?
    .entry;
    let cluster_name = context.cluster.unwrap_or_default();
    let cluster = find(&mut parsed, |file| {
        let list = file.clusters.as_mut()?;
        let index = list.iter().position(|named| named.name == cluster_name)?;
        list.swap_remove(index).cluster
    })
    .ok_or_else(|| missing(paths, "cluster", &cluster_name))?;
    let user_name = context.user.unwrap_or_default();
    let user = find(&mut parsed, |file| {
        let list = file.users.as_mut()?;
        let index = list.iter().position(|named| named.name == user_name)?;
        list.swap_remove(index).user
    });
    let user = match user {
        Some(user) => Some(user),
        None if user_name.is_empty() => None,
        None => return Err(missing(paths, "user", &user_name)),
    };
    assemble(cluster, user, files)
}

fn find<T>(
    files: &mut [(PathBuf, Kubeconfig)],
    mut pick: impl FnMut(&mut Kubeconfig) -> Option<T>,
) -> Option<Located<T>> {
    files.iter_mut().find_map(|(path, file)| {
        pick(file).map(|entry| Located {
            entry,
            directory: path.parent().map(Path::to_path_buf).unwrap_or_default(),
            path: path.clone(),
        })
    })
}

fn assemble(
    cluster: Located<ClusterEntry>,
    user: Option<Located<UserEntry>>,
    mut files: Vec<PathBuf>,
) -> Result<Cluster> {
    let path = cluster.path.display().to_string();
    let entry = cluster.entry;
    let server = entry
        .server
        .filter(|server| !server.is_empty())
        .ok_or_else(|| Error::new(format!("{path}: the cluster has no server")))?;
    let ca = material(
        entry.certificate_authority_data,
        entry.certificate_authority.map(PathBuf::from),
        &cluster.directory,
        &path,
        &mut files,
    )?;
    if entry.insecure_skip_tls_verify == Some(true) {
        return Err(Error::new(format!(
            "{path}: insecure-skip-tls-verify is not accepted"
        ))
        .why("a server in place of the API server would get the agent's credentials")
        .fix(format!(
            "KUBECONFIG={path} kubectl config set-cluster NAME --insecure-skip-tls-verify=false \
             --certificate-authority=CA.crt --embed-certs (NAME of the cluster and its CA: kubectl config view)"
        )));
    }
    let tls = TlsSettings {
        roots: if ca.is_some() {
            Roots::ExtraOnly
        } else {
            Roots::System
        },
        extra_ca_pem: ca,
        client: None,
        verification: Verification::Full,
        server_name: entry.tls_server_name.filter(|name| !name.is_empty()),
        application_protocols: Vec::new(),
    };
    let (client, token) = match user {
        None => (None, Token(None)),
        Some(user) => credentials(user, &mut files)?,
    };
    Ok(Cluster {
        server,
        tls,
        client,
        token,
        proxy_url: entry.proxy_url.filter(|url| !url.is_empty()),
        files,
    })
}

fn credentials(
    user: Located<UserEntry>,
    files: &mut Vec<PathBuf>,
) -> Result<(Option<ClientIdentity>, Token)> {
    let path = user.path.display().to_string();
    let entry = user.entry;
    let refuse = |what: &str| {
        Err(Error::new(format!("{path}: the user has {what}, which the agent does not use"))
            .fix("use a kubeconfig with a token or a client certificate: kubectl create token SERVICEACCOUNT"))
    };
    if entry.exec.is_some() {
        return refuse("an exec plugin");
    }
    if entry.auth_provider.is_some() {
        return refuse("an auth-provider");
    }
    if entry.username.is_some_and(|name| !name.is_empty()) {
        return refuse("a user name and password");
    }
    if entry.impersonated.is_some_and(|name| !name.is_empty()) {
        return refuse("impersonation (as)");
    }
    let certificate = material(
        entry.client_certificate_data,
        entry.client_certificate.map(PathBuf::from),
        &user.directory,
        &path,
        files,
    )?;
    let key = material(
        entry.client_key_data,
        entry.client_key.map(PathBuf::from),
        &user.directory,
        &path,
        files,
    )?;
    let client = match (certificate, key) {
        (Some(certificate_pem), Some(key_pem)) => Some(ClientIdentity {
            certificate_pem,
            key_pem,
        }),
        (None, None) => None,
        (Some(_), None) => {
            return Err(Error::new(format!(
                "{path}: a client certificate without its key"
            )));
        }
        (None, Some(_)) => {
            return Err(Error::new(format!(
                "{path}: a client key without its certificate"
            )));
        }
    };
    // As kubectl does: the file wins over the text, because it is the one that is renewed.
    let token = match entry.token_file {
        Some(file) if !file.is_empty() => {
            let file = user.directory.join(file);
            let token = read_token(&file)?;
            files.push(file);
            Some(token)
        }
        _ => entry
            .token
            .filter(|token| !token.is_empty())
            .map(Secret::new),
    };
    Ok((client, Token(token)))
}

/// The bytes of a certificate or key, given in the file itself (wins) or by path.
fn material(
    data: Option<String>,
    file: Option<PathBuf>,
    directory: &Path,
    path: &str,
    files: &mut Vec<PathBuf>,
) -> Result<Option<Vec<u8>>> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        let text: String = data.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_err(|error| {
                Error::new(format!("{path}: certificate or key data is not base64")).because(&error)
            })?;
        return Ok(Some(bytes));
    }
    let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else {
        return Ok(None);
    };
    let file = directory.join(file);
    let bytes = read(&file)?;
    files.push(file);
    Ok(Some(bytes))
}

fn parse_file(path: &Path) -> Result<Option<Kubeconfig>> {
    if matches!(std::fs::metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
    {
        return Ok(None);
    }
    let bytes = read(path)?;
    let shown = path.display();
    let text = String::from_utf8(bytes).map_err(|error| {
        Error::new(format!("cannot read {shown}"))
            .why(format!("it is not UTF-8: {}", error.utf8_error()))
    })?;
    parse(&text)
        .map(Some)
        .map_err(|why| {
            Error::new(format!("cannot read {shown}"))
                .why(why)
                .fix(format!("kubectl --kubeconfig {shown} config view --raw --flatten > new.yaml writes it in plain form"))
        })
}

fn parse(text: &str) -> std::result::Result<Kubeconfig, String> {
    let value = yaml::parse(text)?;
    if value.is_null() {
        return Ok(Kubeconfig::default());
    }
    // The values of a kubeconfig are secrets, so serde's text, which may quote them, is cut at the
    // first quote.
    let text = value.to_string();
    drop(value);
    json::shape(text.as_bytes()).map_err(|error| {
        let text = error.to_string();
        text.split(['"', ':']).next().unwrap_or_default().to_owned()
    })
}

fn read_token(path: &Path) -> Result<Secret> {
    let bytes = read(path)?;
    let text = String::from_utf8(bytes).map_err(|_not_text| {
        Error::new(format!("{} is not text", path.display())).fix("it must hold a token")
    })?;
    let token = text.trim();
    if token.is_empty() {
        return Err(Error::new(format!("{} is empty", path.display())).retry(Retry::Soon));
    }
    Ok(Secret::new(token))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |error: &std::io::Error| {
        let explained = Error::new(format!("cannot read {}", path.display())).because(error);
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            return explained.retry(Retry::Later).fix(permission_fix(path));
        }
        explained.retry(Retry::Later)
    };
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(&error))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(Error::new(format!(
            "{} is larger than 8 MiB",
            path.display()
        )));
    }
    Ok(bytes)
}

fn permission_fix(path: &Path) -> String {
    if path == Path::new(K3S_KUBECONFIG) {
        return "sudo pipeops-agent k3s connect gives the agent a credential of its own".to_owned();
    }
    format!(
        "run as root, or create a copy for the agent: install -m 600 -o pipeops-agent {0} /etc/pipeops-agent/kubeconfig, and set agent.kubeconfig to it",
        path.display()
    )
}

fn shown(paths: &[PathBuf]) -> String {
    let shown: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    shown.join(", ")
}

fn nothing_there(paths: &[PathBuf]) -> Error {
    Error::new("there is no cluster")
        .why(format!("{} does not exist", shown(paths)))
        .fix("install k3s, or set KUBECONFIG to the file of an existing cluster")
        .retry(Retry::Later)
}

fn missing(paths: &[PathBuf], kind: &str, name: &str) -> Error {
    Error::new(format!("{} has no {kind} named {name:?}", shown(paths)))
        .fix("kubectl config get-contexts shows what is there")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
        use std::io::Write;
        let path = directory.join(name);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
        path
    }

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters:\n- name: c\n  cluster:\n    server: https://127.0.0.1:6443\n{cluster}contexts:\n- name: default\n  context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user:\n    {user}\n"
        )
    }

    #[expect(
        clippy::unwrap_in_result,
        reason = "a directory for a test is not under test"
    )]
    fn load_text(text: &str) -> Result<Cluster> {
        let directory = tempfile::tempdir().unwrap();
        let path = write(directory.path(), "config", text);
        load(&Source::Files(vec![path]))
    }

    #[test]
    fn data_in_the_file_wins_over_paths_and_may_be_folded() {
        let cluster = load_text(&kubeconfig(
            "    certificate-authority: /does/not/exist\n    certificate-authority-data: |\n      aGVs\n      bG8=\n    tls-server-name: k3s\n",
            "token: 123",
        ))
        .unwrap();
        assert_eq!(
            cluster.tls.extra_ca_pem.as_deref(),
            Some(b"hello".as_slice())
        );
        assert_eq!(cluster.tls.server_name.as_deref(), Some("k3s"));
        assert_eq!(cluster.token.0.unwrap().reveal(), "123");
    }

    #[test]
    fn paths_are_relative_to_their_file_and_watched() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "token", " secret\n");
        let text = kubeconfig("", "tokenFile: token\n    token: old");
        let path = write(directory.path(), "config", &text);
        let cluster = load(&Source::Files(vec![path.clone()])).unwrap();
        assert_eq!(cluster.token.0.unwrap().reveal(), "secret");
        assert_eq!(cluster.files, [path, directory.path().join("token")]);
    }

    #[test]
    fn the_first_file_that_names_a_thing_wins() {
        let directory = tempfile::tempdir().unwrap();
        let first = write(
            directory.path(),
            "a",
            "current-context: default\nusers: null\ncontexts: []\n",
        );
        let second = write(directory.path(), "b", &kubeconfig("", "token: b"));
        let third = write(directory.path(), "c", &kubeconfig("", "token: c"));
        let absent = directory.path().join("absent");
        let cluster = load(&Source::Files(vec![absent, first, second, third])).unwrap();
        assert_eq!(cluster.token.0.unwrap().reveal(), "b");
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_with_a_fix() {
        for user in [
            "exec: {command: aws, apiVersion: client.authentication.k8s.io/v1}",
            "auth-provider: {name: gcp}",
            "{username: a, password: b}",
            "{as: admin, token: x}",
        ] {
            let error = load_text(&kubeconfig("", user)).unwrap_err();
            assert!(error.fix.is_some(), "{error}");
            assert!(error.what.contains("does not use"), "{error}");
        }
    }

    #[test]
    fn verification_cannot_be_switched_off() {
        for ca in ["", "    certificate-authority-data: Q0E=\n"] {
            let cluster = format!("{ca}    insecure-skip-tls-verify: true\n");
            let error = load_text(&kubeconfig(&cluster, "token: x")).unwrap_err();
            assert!(error.what.contains("is not accepted"), "{error}");
            let fix = error.fix.unwrap_or_default();
            assert!(fix.contains("--insecure-skip-tls-verify=false"), "{fix}");
        }
        let checked = kubeconfig("    insecure-skip-tls-verify: false\n", "token: x");
        assert!(load_text(&checked).is_ok());
    }

    #[test]
    fn a_broken_file_is_named_and_its_secrets_are_not() {
        let broken = [
            kubeconfig("", "{token: {s3cret: s3cret}}"),
            kubeconfig("", "token: s3cret").replace("name: u", "nome: u"),
            kubeconfig("", "{client-key-data: czNjcmV0, token: x}"),
            kubeconfig("", "token: 's3cret"),
            kubeconfig("    insecure-skip-tls-verify: s3cret\n", "token: s3cret"),
            "s3cret".to_owned(),
        ];
        for text in broken {
            let error = load_text(&text).unwrap_err().to_string();
            assert!(error.contains("config"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn no_file_at_all_says_how_to_add_a_cluster() {
        let error = load(&Source::Files(vec![PathBuf::from("/does/not/exist")])).unwrap_err();
        assert_eq!(error.what, "there is no cluster");
        assert_eq!(error.retry, Retry::Later);
        assert!(error.fix.is_some_and(|fix| fix.contains("KUBECONFIG")));
    }

    #[test]
    fn kubeconfig_comes_before_the_pod_and_the_pod_before_k3s() {
        let files = |list: &[&str]| Source::Files(list.iter().map(PathBuf::from).collect());
        assert_eq!(
            Source::choose(Some("a::b"), Some("10.43.0.1"), None),
            files(&["a", "b"])
        );
        assert!(matches!(
            Source::choose(Some(""), Some("10.43.0.1"), Some("6443")),
            Source::InCluster { port: 6443, .. }
        ));
        assert_eq!(
            Source::choose(None, None, None),
            Source::K3s {
                own: PathBuf::from(connect::KUBECONFIG),
                admin: PathBuf::from(K3S_KUBECONFIG)
            }
        );
    }

    #[test]
    fn a_pods_service_account_gives_token_and_ca() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "token", "t");
        write(directory.path(), "ca.crt", "pem");
        let cluster = load(&Source::InCluster {
            host: "fd00::1".to_owned(),
            port: 443,
            directory: directory.path().to_path_buf(),
        })
        .unwrap();
        assert_eq!(cluster.server, "https://[fd00::1]:443");
        assert_eq!(cluster.token.0.unwrap().reveal(), "t");
        assert_eq!(cluster.files.len(), 2);
    }

    #[test]
    fn a_credential_of_its_own_is_preferred_to_the_administrators() {
        let directory = tempfile::tempdir().unwrap();
        let [own, admin] = ["own", "admin"].map(|name| directory.path().join(name));
        let source = Source::K3s {
            own: own.clone(),
            admin: admin.clone(),
        };
        assert!(load(&source).is_err());
        let put = |path: &Path, token: &str| {
            let bearer = connect::Bearer {
                account: connect::ACCOUNT,
                token,
                note: "made",
            };
            let text = connect::kubeconfig("https://127.0.0.1:6443 Q0E=", &bearer).unwrap();
            crate::files::replace(path, text.as_bytes(), 0o600).unwrap();
        };
        let token = || load(&source).unwrap().token.0.unwrap().reveal().to_owned();
        put(&admin, "admin");
        assert_eq!(token(), "admin");
        put(&own, "own");
        assert_eq!(token(), "own");
    }

    #[test]
    fn an_unreadable_k3s_file_stays_the_administrators() {
        let fix = permission_fix(Path::new(K3S_KUBECONFIG));
        assert!(
            fix.contains("k3s connect") && !fix.contains("mode"),
            "{fix}"
        );
    }

    proptest! {
        #[test]
        fn garbage_between_good_lines_never_panics(text in "[-a-c:\\[\\]{} \n\"']{0,60}") {
            let found = parse(&kubeconfig(&text, &text));
            prop_assert!(found.map_or_else(|why| !why.is_empty(), |_| true));
        }
    }
}
