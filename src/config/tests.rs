use std::{fs::DirBuilder, io::Write};

use super::*;
use crate::core::{policy::Level, s3::Bucket, url::Url};

/// A folder with a configuration in it.
struct Box {
    folder: tempfile::TempDir,
    sources: Sources,
}

impl Box {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources {
            file: Some(folder.path().join("config.toml")),
            folder: PathBuf::from("/here"),
            is_root: true,
            ..Sources::default()
        };
        let new = Self { folder, sources };
        new.file("config.toml", "");
        DirBuilder::new()
            .create(new.folder.path().join("config.d"))
            .unwrap();
        new.env("PIPEOPS_TOKEN", "clt_test")
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) {
        let mut file = tempfile::NamedTempFile::new_in(self.folder.path()).unwrap();
        file.write_all(text.as_ref()).unwrap();
        file.persist(self.folder.path().join(name)).unwrap();
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.sources.environment.insert(name.into(), value.into());
        self
    }

    fn set(mut self, assignment: &str) -> Self {
        self.sources.assignments.push(assignment.to_owned());
        self
    }

    fn load(&self) -> Loaded {
        load(&self.sources)
    }

    fn settings(&self) -> Settings {
        self.load()
            .settings()
            .unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    /// All problems, with the folder cut out.
    fn problems(&self) -> String {
        let folder = format!("{}/", self.folder.path().display());
        let loaded = self.load();
        let problems = loaded.problems().iter().map(ToString::to_string);
        problems.collect::<Vec<_>>().join("\n").replace(&folder, "")
    }

    fn warnings(&self) -> String {
        let folder = format!("{}/", self.folder.path().display());
        let loaded = self.load();
        let warnings = loaded.warnings().iter().map(ToString::to_string);
        warnings.collect::<Vec<_>>().join("\n").replace(&folder, "")
    }
}

fn shown(loaded: &Loaded, path: &str) -> (Option<String>, String) {
    let shown = loaded.shown();
    let setting = shown
        .iter()
        .find(|setting| setting.key.path == path)
        .unwrap();
    (setting.value.clone(), setting.origin.to_string())
}

#[test]
fn what_was_not_understood_allows_nothing_and_makes_no_open_backup() {
    let root_allows = |text: &str| {
        let machine = Box::new();
        machine.file("config.toml", text);
        machine.load().keeper().allow
    };
    assert!(root_allows("").repair && root_allows("").backup);
    assert!(!root_allows("[keeper]\nallow = [\"repair\"]").backup);
    for text in [
        "[keeper]\nallow = [\"repiar\"]",
        "[keeper]\nallow = \"none\"",
        "[keeper]\nalow = []",
        "[keepr]\nallow = []",
        "keeper = 1",
        "[agent]\nallow = []",
        "[k3s\nbackup_every = \"1d\"",
    ] {
        assert_eq!(root_allows(text), Allow::default(), "{text}");
    }
    // A problem elsewhere says nothing about the helper.
    for text in [
        "[telemetry]\nfoo = 1",
        "[pipeops]\ngateways = \"http://keeper.lan\"",
    ] {
        assert!(root_allows(text).repair, "{text}");
    }
    for text in [
        "[k3s]\nbackup_recipient = \"age1x\"",
        "[k3s\nbackup_recipients = \"age1x\"",
        "[k3ss]\nbackup_recipients = \"age1x\"",
    ] {
        let machine = Box::new();
        machine.file("config.toml", text);
        assert!(machine.load().k3s_backup().is_err(), "{text}");
    }
    let machine = Box::new();
    machine.file("config.toml", "[pipeops]\ngateways = \"http://k3s.lan\"");
    assert!(machine.load().k3s_backup().is_ok());
}

#[test]
fn what_stands_beside_a_file_that_is_yet_to_be_written_holds() {
    let mut made = Box::new();
    made.file("config.d/10.toml", "[pipeops]\nregion = \"beside\"\n");
    made.sources.file = Some(made.folder.path().join("new.toml"));
    assert!(made.load().settings().is_err());
    made.sources.is_new = true;
    let loaded = made.load();
    assert_eq!(loaded.settings().unwrap().pipeops.region, "beside");
}

#[test]
fn the_later_layer_wins_and_its_place_is_told() {
    let mut made = Box::new();
    let at = |name: &str| made.folder.path().join(name).display().to_string();
    let (main, one, two) = (
        at("config.toml"),
        at("config.d/10.toml"),
        at("config.d/20.toml"),
    );
    let region = |made: &Box| shown(&made.load(), "pipeops.region");
    let is = |value: &str, from: &str| (Some(value.to_owned()), from.to_owned());

    assert_eq!(region(&made), is("unknown-country", "default"));
    made.file("config.toml", "[pipeops]\n\nregion = \"main\"\n");
    assert_eq!(region(&made), is("main", &format!("{main}:3")));
    made.file("config.d/20.toml", "[pipeops]\nregion = \"two\"\n");
    made.file(
        "config.d/10.toml",
        "[pipeops]\nregion = \"one\"\ncloud_provider = \"one\"\n",
    );
    made.file("config.d/30.toml.bak", "this is not read");
    assert_eq!(region(&made), is("two", &format!("{two}:2")));
    assert_eq!(
        shown(&made.load(), "pipeops.cloud_provider"),
        is("one", &format!("{one}:3"))
    );
    made = made.env("PIPEOPS_REGION", "environment");
    assert_eq!(region(&made), is("environment", "PIPEOPS_REGION"));
    made = made.set("pipeops.region=flag");
    assert_eq!(region(&made), is("flag", "--set"));
    assert_eq!(made.settings().pipeops.region, "flag");
}

#[test]
fn the_environment_alone_is_enough() {
    let mut made = Box::new()
        .env("PIPEOPS_API_URL", "wss://cp.example")
        .env("PIPEOPS_CLUSTER_NAME", "edge")
        .env("PIPEOPS_AGENT_ID", "agent-1")
        .env("PIPEOPS_STATE_DIR", "state")
        .env("PIPEOPS_ACCESS_LEVEL", "full")
        .env("KUBECONFIG", "/k/config")
        .env("PIPEOPS_TELEMETRY_INTERVAL", "5s")
        .env("PIPEOPS_DASHBOARD_LISTEN", "127.0.0.1:7481")
        .env("PIPEOPS_DASHBOARD_ANONYMOUS", "none");
    made.sources.is_root = false;
    let settings = made.settings();
    let server = settings.pipeops.control_plane.unwrap();
    assert_eq!(server.api_url.to_string(), "https://cp.example");
    assert_eq!(settings.pipeops.cluster_name.as_deref(), Some("edge"));
    assert_eq!(settings.pipeops.agent_id.as_deref(), Some("agent-1"));
    assert_eq!(settings.agent.state_dir, Path::new("/here/state"));
    assert_eq!(
        settings.agent.kubeconfig.as_deref(),
        Some(Path::new("/k/config"))
    );
    assert_eq!(settings.access.level, Level::Full);
    assert_eq!(settings.telemetry.interval.as_secs(), 5);
    assert_eq!(settings.dashboard.listen.unwrap().port(), 7481);
    assert!(!settings.dashboard.shows_itself);
    assert_eq!(
        settings.dashboard.socket,
        Path::new("/here/state/agent.sock")
    );
}

#[test]
fn what_other_machines_are_shown_is_checked_before_they_come() {
    let made = |text: &str| {
        let made = Box::new().env("PIPEOPS_DASHBOARD_LISTEN", "0.0.0.0:7480");
        made.file("config.toml", text);
        made
    };
    let settings = made(
        "dashboard.names = \"box.lan, box_2.example\"\n\
         dashboard.cert_file = \"/c\"\ndashboard.key_file = \"/k\"\n",
    )
    .settings();
    assert!(!settings.dashboard.listen.unwrap().ip().is_loopback());
    assert_eq!(settings.dashboard.names, ["box.lan", "box_2.example"]);
    assert_eq!(
        settings.dashboard.certificate.unwrap().key_file,
        Path::new("/k")
    );
    for (text, wanted) in [
        (
            "dashboard.key_file = \"/k\"\n",
            "dashboard.key_file is set alone",
        ),
        (
            "dashboard.names = \"https://box.lan\"\n",
            "is not a valid host name",
        ),
        ("dashboard.names = \"*.lan\"\n", "is not a valid host name"),
    ] {
        let problems = made(text).problems();
        assert!(problems.contains(wanted), "{problems}");
    }
    let unused = "dashboard.cert_file = \"/c\"\ndashboard.key_file = \"/k\"\n";
    let unused = made(unused).env("PIPEOPS_DASHBOARD_LISTEN", "off");
    let warnings = unused.settings().warnings;
    assert!(warnings.iter().any(|it| it.what.contains("is not used")));
}

#[test]
fn the_regular_name_is_stronger_than_the_older_ones() {
    let made = Box::new()
        .env("PIPEOPS_STATE_DIR", "/old")
        .env("PIPEOPS_AGENT_STATE_DIR", "/regular")
        .env("HTTPS_PROXY", "")
        .env("https_proxy", "http://proxy:3128");
    let settings = made.settings();
    assert_eq!(settings.agent.state_dir, Path::new("/regular"));
    assert_eq!(settings.pipeops.proxy.unwrap().host, "proxy");
}

#[test]
fn a_setting_without_effect_is_accepted_with_a_warning() {
    let made = Box::new();
    made.file(
        "config.toml",
        "[agent]\nheartbeat_interval_disconnected = \"15s\"\nheartbeat_interval_connected = \"20s\"\n",
    );
    assert_eq!(
        made.warnings(),
        "config.toml:2: agent.heartbeat_interval_disconnected has no effect\n\
         fix: remove it; heartbeats are sent on a ready link only; agent.heartbeat_interval_connected is their interval"
    );
    assert_eq!(
        made.settings().agent.heartbeat,
        std::time::Duration::from_secs(20)
    );
}

#[test]
fn everything_wrong_is_told_at_once_with_its_line_and_its_fix() {
    let made = Box::new();
    made.file(
        "config.toml",
        "[pipeops]\napi_ulr = \"https://x\"\nca_file = \"/x\"\n\n[agent]\nstate_dir = \"relative\"\n\
         heartbeat_interval_connected = 30\n[acess]\n[access]\nlevel = \"readonly\"\n",
    );
    made.file(
        "config.d/a.toml",
        "[log]\nlevel = \"loud\"\n[tls]\ncert_file = \"/cert\"\n",
    );
    assert_eq!(
        made.problems(),
        "config.toml:2: unknown key \"pipeops.api_ulr\"\nfix: did you mean api_url?\n\
         config.toml:3: unknown key \"pipeops.ca_file\"\nfix: ca_file belongs below [tls]\n\
         config.toml:6: agent.state_dir must be an absolute path, found \"relative\"\nfix: begin it with /\n\
         config.toml:7: agent.heartbeat_interval_connected must be a duration with a unit, found a bare number\n\
         fix: write it like \"15s\"\n\
         config.toml:8: unknown section [acess]\nfix: did you mean [access]?\n\
         config.toml:10: access.level cannot be \"readonly\"\n\
         fix: did you mean read-only? (known: full, managed, read-only, off)\n\
         config.d/a.toml:2: log.level cannot be \"loud\"\nfix: write one of error, warn, info, debug, trace\n\
         config.d/a.toml:4: tls.cert_file is set alone\nfix: set tls.key_file too, or remove both"
    );
}

#[test]
fn what_is_not_toml_is_told_with_its_line() {
    let made = Box::new();
    made.file("config.toml", "[pipeops]\nregion = \"a\"\nregion = \n");
    assert!(
        made.problems()
            .starts_with("config.toml:3: this is not TOML: "),
        "{}",
        made.problems()
    );
    made.file("config.toml", "[pipeops]\nregion = \"a\"\nregion = \"b\"\n");
    assert!(
        made.problems().starts_with("config.toml:3: "),
        "{}",
        made.problems()
    );
    made.file("config.toml", "region = \"a\"\n");
    assert_eq!(
        made.problems(),
        "config.toml:1: \"region\" is before the first section\nfix: put it below [pipeops]"
    );
    made.file("config.toml", "pipeops = 1\n");
    assert!(made.problems().contains("pipeops must be a section"));
    made.file("config.toml", b"[log]\n# \xff\n");
    assert!(
        made.problems()
            .starts_with("config.toml:2: this is not UTF-8")
    );
    made.file("config.toml", "#".repeat(2 << 20));
    assert!(made.problems().contains("larger than 256 KiB"));
}

#[test]
fn hostile_files_end_in_an_error_not_in_a_crash() {
    let made = Box::new();
    for text in [
        format!("a = {}1{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("a{} = 1", ".a".repeat(100_000)),
        "[".repeat(250_000),
        "[pipeops]\n".repeat(25_000),
        "\0".repeat(1000),
    ] {
        made.file("config.toml", &text);
        assert!(!made.load().problems().is_empty());
    }
}

#[test]
fn a_named_file_must_be_there() {
    let mut made = Box::new();
    made.sources.file = Some("/nowhere/config.toml".into());
    let problems = made.problems();
    assert!(
        problems.contains("cannot read /nowhere/config.toml"),
        "{problems}"
    );
}

#[test]
fn a_secret_is_never_shown_and_never_taken_from_the_command_line() {
    let made = Box::new();
    let loaded = made.load();
    assert_eq!(
        shown(&loaded, "pipeops.token").0.as_deref(),
        Some("(set, hidden)")
    );
    assert!(!format!("{:?}", made.settings()).contains("clt_test"));

    let made = Box::new().set("pipeops.token=clt_argv");
    assert!(made.problems().contains("not accepted on the command line"));
    assert!(!made.problems().contains("clt_argv"));

    let made = Box::new().env("PIPEOPS_TOKEN", "clt_bad token");
    assert!(!made.problems().contains("clt_bad"), "{}", made.problems());
    made.file("config.toml", "[pipeops]\ntoken = { clt_bad = 1 }\n");
    assert!(!made.problems().contains("clt_bad"), "{}", made.problems());

    let made = Box::new().env("HTTPS_PROXY", "http://user:hunter2@proxy:1");
    let loaded = made.load();
    assert_eq!(
        shown(&loaded, "pipeops.proxy").0.as_deref(),
        Some("(password hidden)@proxy:1")
    );
    let made = Box::new().env("HTTPS_PROXY", "socks5://user:hunter2@proxy:1");
    assert!(!made.problems().contains("hunter2"));
}

#[test]
fn without_a_control_plane_no_token_is_needed() {
    let mut made = Box::new();
    made.sources.environment.clear();
    assert!(made.problems().contains("there is no token"));
    assert!(made.problems().contains("--api-url off"));
    let made = made.env("PIPEOPS_API_URL", "off");
    let pipeops = made.settings().pipeops;
    assert!(pipeops.control_plane.is_none());
    assert_eq!(pipeops.token_file(), None);
    let refused = pipeops.control_plane().unwrap_err();
    assert!(refused.fix.unwrap().contains("pipeops-agent up --api-url"));
}

#[test]
fn the_token_of_the_later_layer_counts_and_two_of_one_layer_are_a_mistake() {
    let made = Box::new();
    made.file("config.toml", "[pipeops]\ntoken_file = \"/etc/token\"\n");
    assert!(matches!(
        made.settings().pipeops.control_plane.unwrap().token,
        TokenSource::Inline(_)
    ));

    let made = made.env("PIPEOPS_TOKEN_FILE", "/run/token");
    assert!(made.problems().contains("there are two tokens"));

    let made = made.env("PIPEOPS_TOKEN", "");
    assert_eq!(
        made.settings().pipeops.control_plane.unwrap().token,
        TokenSource::File("/run/token".into())
    );
    assert!(
        made.warnings()
            .contains("cannot check the secret file /run/token")
    );

    let made = Box::new().env("PIPEOPS_TOKEN", "");
    assert!(made.problems().contains("there is no token"));
}

#[test]
fn nothing_leaves_this_machine_in_the_open_unless_it_was_allowed() {
    for (url, is_accepted) in [
        ("http://127.0.0.1:8080", true),
        ("ws://localhost:8080", true),
        ("ws://[::1]:8080", true),
        ("http://cp.example", false),
        ("ws://10.0.0.1", false),
        ("wss://cp.example", true),
    ] {
        let made = Box::new().env("PIPEOPS_API_URL", url);
        assert_eq!(made.load().problems().is_empty(), is_accepted, "{url}");
        let made = made.env("PIPEOPS_ALLOW_PLAINTEXT", "true");
        assert!(made.load().problems().is_empty(), "{url}");
        assert_eq!(made.warnings().is_empty(), is_accepted, "{url}");
    }
}

#[test]
fn verification_cannot_be_switched_off() {
    let made = Box::new().env("PIPEOPS_TLS_INSECURE_SKIP_VERIFY", "true");
    assert!(
        made.problems()
            .contains("fix: save the certificate of its CA")
    );
    let made = made.env("PIPEOPS_TLS_INSECURE_SKIP_VERIFY", "false");
    assert_eq!(made.problems(), "");
}

#[test]
fn variables_of_kubernetes_are_passed_over_and_unknown_ones_warn() {
    let made = Box::new()
        .env("PIPEOPS_AGENT_PORT", "tcp://10.0.0.1:8080")
        .env("PIPEOPS_AGENT_PORT_8080_TCP_ADDR", "10.0.0.1")
        .env("PIPEOPS_AGENT_SERVICE_HOST", "10.0.0.1")
        .env("PIPEOPS_AGENT_SERVICE_PORT_HTTP", "8080")
        .env("AGENT_PORT", "tcp://10.0.0.1:8080");
    assert_eq!(
        (made.warnings(), made.problems()),
        (String::new(), String::new())
    );
    let made = made
        .env("PIPEOPS_CLUSTERNAME", "x")
        .env("PIPEOPS_WS_PROTOCOL", "v2");
    assert_eq!(
        made.warnings(),
        "PIPEOPS_CLUSTERNAME is not a setting and has no effect\nfix: did you mean PIPEOPS_CLUSTER_NAME?\n\
         PIPEOPS_WS_PROTOCOL is not a setting and has no effect"
    );
}

#[test]
fn the_socket_is_where_the_command_line_looks_for_it() {
    let place = |change: fn(&mut Box)| {
        let mut made = Box::new();
        change(&mut made);
        made.load().socket().display().to_string()
    };
    assert_eq!(place(|_| ()), "/run/pipeops-agent/agent.sock");
    assert_eq!(
        place(|made| made.sources.is_root = false),
        "/var/lib/pipeops-agent/agent.sock"
    );
    let user = |made: &mut Box| {
        made.sources.is_root = false;
        let environment = &mut made.sources.environment;
        environment.insert("XDG_RUNTIME_DIR".into(), "/run/user/1000".into());
    };
    assert_eq!(place(user), "/run/user/1000/pipeops-agent/agent.sock");
    assert_eq!(
        place(|made| made
            .sources
            .assignments
            .push("dashboard.socket=/s".to_owned())),
        "/s"
    );
    let made = Box::new().set(&format!("agent.state_dir=/{}", "x".repeat(120)));
    assert!(
        made.problems().contains("set dashboard.socket"),
        "{}",
        made.problems()
    );
}

#[test]
fn access_is_known_without_a_token_and_not_where_a_line_could_not_be_read() {
    let level = |text: &str| {
        let made = Box::new();
        made.file("config.toml", text);
        made.load().access().map(|access| access.level)
    };
    assert_eq!(level(""), Some(Level::Managed));
    assert_eq!(level("[access]\nlevel = \"off\"\n"), Some(Level::Off));
    for odd in [
        "[access]\nlevel = \"of\"\n",
        "[acess]\nlevel = \"off\"\n",
        "[access]\nlevle = \"off\"\n",
        "[access\nlevel = \"off\"\n",
    ] {
        assert_eq!(level(odd), None, "{odd}");
    }
}

#[test]
fn the_example_file_is_right_as_it_is_and_with_every_default_uncommented() {
    let made = Box::new();
    let example = keys::example_file();
    made.file("config.toml", &example);
    assert_eq!(made.problems(), "");
    let uncommented: Vec<_> = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if !key.starts_with(' ') && !key.contains('…') => key,
            _ => line,
        })
        .collect();
    // An own kubeconfig and certificate files are named but not there: doubtful, not wrong.
    let made = made.env("PIPEOPS_TOKEN", "");
    made.file("config.toml", uncommented.join("\n"));
    assert_eq!(made.problems(), "");
    let found = made
        .load()
        .shown()
        .into_iter()
        .filter(|shown| shown.origin != Origin::Default);
    assert!(found.count() > 20);
}

#[test]
fn a_receiver_of_samples_is_taken_from_a_section_within_a_section_or_from_the_environment() {
    let made = Box::new();
    assert_eq!(made.settings().telemetry.remote_write, None);
    made.file(
        "config.toml",
        "[telemetry.remote_write]\nurl = \"https://metrics.example/api/v1/write\"\n\
         username = \"edge\"\npassword_file = \"/run/password\"\nlabels = { site = \"berlin\" }\n",
    );
    let receiver = made.settings().telemetry.remote_write.unwrap();
    assert_eq!(
        receiver.url.to_string(),
        "https://metrics.example/api/v1/write"
    );
    assert_eq!(
        receiver.credentials,
        Some(Credentials::Basic {
            username: "edge".to_owned(),
            password_file: "/run/password".into(),
        })
    );
    let (value, origin) = shown(&made.load(), "telemetry.remote_write.username");
    assert_eq!(value.as_deref(), Some("edge"));
    assert!(origin.ends_with("config.toml:3"), "{origin}");
    let made = made
        .env(
            "PIPEOPS_TELEMETRY_REMOTE_WRITE_URL",
            "http://localhost:8428/w",
        )
        .set("telemetry.remote_write.labels=rack=4");
    let receiver = made.settings().telemetry.remote_write.unwrap();
    assert_eq!(receiver.url.to_string(), "http://localhost:8428/w");
    assert_eq!(receiver.labels.get("rack").unwrap(), "4");
}

#[test]
fn what_does_not_fit_together_at_a_receiver_is_told() {
    let url = "url = \"https://metrics.example/w\"\n";
    let secret = "password_file = \"/run/password\"\n";
    for (lines, message) in [
        ("url = \"metrics.example\"", "it has no scheme"),
        ("url = \"http://10.0.0.7:8428/w\"", "is not encrypted"),
        (
            "url = \"https://edge:secret@metrics.example/w\"",
            "separate files",
        ),
        (&format!("{url}username = \"edge\""), "password_file too"),
        (&format!("{url}{secret}"), "username too"),
        (&format!("{url}{secret}username = \"a:b\""), "first colon"),
        (
            &format!("{url}{secret}username = \"a\"\nbearer_token_file = \"/run/token\""),
            "not both",
        ),
        (
            &format!("{url}labels = {{ a-b = \"1\" }}"),
            "no receiver takes",
        ),
        (
            &format!("{url}labels = {{ __name__ = \"1\" }}"),
            "no receiver takes",
        ),
        (
            "ulr = \"https://metrics.example/w\"",
            "did you mean telemetry.remote_write.url?",
        ),
    ] {
        let made = Box::new();
        made.file(
            "config.toml",
            format!("[telemetry.remote_write]\n{lines}\n"),
        );
        let problems = made.problems();
        assert!(problems.contains(message), "{lines}: {problems}");
        assert!(!problems.contains("secret@"), "{problems}");
    }
    let made = Box::new();
    made.file(
        "config.toml",
        "[telemetry.remote_write]\nusername = \"edge\"\n",
    );
    assert!(made.warnings().contains("has no effect"));
    let allowed = "allow_plaintext = true\nurl = \"http://10.0.0.7:8428/w\"";
    made.file(
        "config.toml",
        format!("[telemetry.remote_write]\n{allowed}\n"),
    );
    assert!(made.warnings().contains("unencrypted"));
    assert!(made.settings().telemetry.remote_write.is_some());
}

#[test]
fn a_bucket_for_backups_needs_recipients_a_key_and_its_secret() {
    let url = "backup_s3 = \"https://s3.example/b/f\"\n";
    let key = "backup_s3_key_id = \"AKID\"\n";
    let secret = "backup_s3_secret_file = \"/run/secret\"\n";
    let to =
        "backup_recipients = \"age1xmwwc06ly3ee5rytxm9mflaz2u56jjj36s0mypdrwsvlul66mv4q47ryef\"\n";
    let problems = |lines: &str| {
        let made = Box::new();
        made.file("config.toml", format!("[k3s]\n{lines}"));
        made.problems()
    };
    for (lines, message) in [
        (format!("{url}{key}{secret}"), "set k3s.backup_recipients"),
        (
            format!("{url}{key}{to}"),
            "set k3s.backup_s3_secret_file, too",
        ),
        (
            format!("{url}{secret}{to}"),
            "set k3s.backup_s3_key_id, too",
        ),
        (
            format!("{}{key}{secret}{to}", url.replace("/b/f", "")),
            "names no bucket",
        ),
        (
            format!("{}{key}{secret}{to}", url.replace("https", "http")),
            "is not encrypted",
        ),
        (
            format!("{}{key}{secret}{to}", url.replace("//", "//a:b@")),
            "separate files",
        ),
    ] {
        let problems = problems(&lines);
        assert!(problems.contains(message), "{lines}: {problems}");
    }
    let made = Box::new();
    made.file("config.toml", format!("[k3s]\n{url}{key}{secret}{to}"));
    let s3 = made.settings().k3s_backup.s3.unwrap();
    assert_eq!((&*s3.region, &*s3.bucket.folder), ("us-east-1", "f/"));
    assert!(made.warnings().contains("/run/secret"));
    assert!(!made.warnings().contains("has no effect"));
    for alone in [key, "backup_s3_region = \"eu\"\n", secret] {
        let made = Box::new();
        made.file("config.toml", format!("[k3s]\n{alone}"));
        let told = made.warnings();
        assert!(told.contains("without k3s.backup_s3"), "{alone}: {told}");
    }
}

#[test]
fn the_secret_of_a_bucket_is_read_anew_and_only_from_a_private_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let secret_file = folder.path().join("secret");
    let s3 = S3 {
        url: Url::parse("https://s3.example/b").unwrap(),
        bucket: Bucket::parse("/b").unwrap(),
        region: "us-east-1".to_owned(),
        key_id: "AKID".to_owned(),
        secret_file: secret_file.clone(),
    };
    assert!(s3.signer().is_err());
    for secret in ["one/+=", "two"] {
        crate::files::replace(&secret_file, format!("{secret}\n").as_bytes(), 0o600).unwrap();
        assert_eq!(s3.signer().unwrap().secret.reveal(), secret);
    }
    assert!(!format!("{:?}", s3.signer()).contains("two"));
    std::fs::set_permissions(&secret_file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = s3.signer().unwrap_err().to_string();
    assert!(refused.contains("chmod 600"), "{refused}");
}

#[test]
fn what_a_receiver_is_shown_is_read_anew_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let bearer = Credentials::Bearer(file.clone());
    let basic = Credentials::Basic {
        username: "edge".to_owned(),
        password_file: file.clone(),
    };
    assert!(
        bearer
            .authorization()
            .unwrap_err()
            .to_string()
            .contains("cannot read the token")
    );
    for (text, as_token, as_password) in [
        ("s3cret\n", Some("Bearer s3cret"), "Basic ZWRnZTpzM2NyZXQ="),
        ("two words\r\nmore", None, "Basic ZWRnZTp0d28gd29yZHM="),
    ] {
        let mut written = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
        written.write_all(text.as_bytes()).unwrap();
        written.persist(&file).unwrap();
        let token = bearer.authorization().ok();
        assert_eq!(
            token.as_ref().map(crate::core::secret::Secret::reveal),
            as_token
        );
        assert_eq!(basic.authorization().unwrap().reveal(), as_password);
        assert!(!format!("{token:?} {basic:?}").contains("s3cret"));
    }
}

#[test]
fn who_is_told_of_conditions_is_checked_and_never_shown() {
    let loaded = |quiet: &str, url: &str| {
        Box::new()
            .env("PIPEOPS_NOTIFY_QUIET", quiet)
            .env("PIPEOPS_NOTIFY_URL", url)
    };
    let right = loaded("22:00-07:00", "https://ntfy.example/topic-secret");
    let notify = right.settings().notify.unwrap();
    assert_eq!(notify.wanted.quiet.unwrap().from, 22 * 60);
    assert_eq!(
        (&*notify.kind, &*notify.url.path),
        ("webhook", "/topic-secret")
    );
    let (value, _) = shown(&right.load(), "notify.url");
    assert_eq!(value.as_deref(), Some("(set, hidden)"));
    for (quiet, url, word) in [
        ("22-7", "https://ntfy.example/topic-secret", "22:00-07:00"),
        (
            "22:00-07:00",
            "http://ntfy.example/topic-secret",
            "notify.allow_plaintext",
        ),
        ("22:00-07:00", "no address topic-secret", "write it like"),
    ] {
        let problems = loaded(quiet, url).problems();
        assert!(problems.contains(word), "{problems}");
        assert!(!problems.contains("topic-secret"), "{problems}");
    }
    let alone = loaded("22:00-07:00", "").warnings();
    assert!(
        alone.contains("without notify.url nobody is notified"),
        "{alone}"
    );
    assert!(loaded("", "http://127.0.0.1/x").settings().notify.is_some());
}

#[test]
fn the_page_of_settings_with_a_mistake_is_no_wider_than_they_say() {
    let page = |text: &str| {
        let folder = Box::new();
        folder.file("config.toml", text);
        folder.load().page()
    };
    let mistake = "[agent]\nlabel = 1\n";
    let listen = |address: &str| Some(address.parse().unwrap());
    assert_eq!(page(mistake), Some((listen("127.0.0.1:7480"), true)));
    let off = format!("{mistake}[dashboard]\nlisten = \"off\"\nanonymous = \"none\"\n");
    assert_eq!(page(&off), Some((None, false)));
    // A word that is not known may have meant the stricter one, and a file that is no TOML may have
    // said anything.
    let odd = "[dashboard]\nanonymous = \"nobody\"\n";
    assert_eq!(page(odd), Some((listen("127.0.0.1:7480"), false)));
    assert_eq!(page("[dashboard\n"), None);
}
