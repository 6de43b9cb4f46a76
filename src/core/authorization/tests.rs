use super::*;

const PAGE: Responder = Responder::Builtin(Builtin::Page);
const ASSET: Responder = Responder::Builtin(Builtin::Asset);
const STATUS: Responder = Responder::Agent(View::Status);
const METRICS: Responder = Responder::Agent(View::Metrics);
const ACCESS: Responder = Responder::Agent(View::Access);
const SET_ACCESS: Responder = Responder::Agent(View::SetAccess);
const JSON: Option<&str> = Some("application/json; charset=utf-8");

fn asked<'a>(method: &'a str, path: &'a str) -> Request<'a> {
    Request {
        transport: Transport::Socket,
        is_encrypted: false,
        also_here: &[],
        method,
        path,
        hosts: &["localhost:7480"],
        origin: None,
        fetch_site: None,
        content_type: None,
        has_body: false,
        role: Role::Viewer,
    }
}

fn view(request: &Request<'_>) -> Result<Responder, Fault> {
    judge(request).map(|(route, _)| route.what)
}

#[test]
fn each_request_gets_its_route_or_what_is_wrong_with_it() {
    let not = |allowed: &str| Err(Fault::Method(allowed.to_owned()));
    for (method, path, has_body, wanted) in [
        ("GET", "/api/v1/status", false, Ok(STATUS)),
        ("HEAD", "/api/v1/status", false, Ok(STATUS)),
        (
            "GET",
            "/healthz",
            false,
            Ok(Responder::Builtin(Builtin::Health)),
        ),
        (
            "GET",
            "/livez",
            false,
            Ok(Responder::Builtin(Builtin::Health)),
        ),
        ("GET", "/metrics", false, Ok(METRICS)),
        ("GET", "/metrics", true, Err(Fault::Body)),
        ("POST", "/metrics", false, not("GET, HEAD")),
        ("get", "/metrics", false, not("GET, HEAD")),
        ("GET", "/api/v1/access", false, Ok(ACCESS)),
        ("GET", "/", false, Ok(PAGE)),
        ("GET", "/assets/app.js", false, Ok(ASSET)),
        ("GET", "/assets/", false, Err(Fault::Nothing)),
        ("GET", "/assets/../x", false, Err(Fault::Nothing)),
        ("GET", "/assets/..", false, Err(Fault::Nothing)),
        ("GET", "/assets/%2e%2e", false, Err(Fault::Nothing)),
        ("GET", "/assets/a\\b", false, Err(Fault::Nothing)),
        ("GET", "/assets/a/b", false, Err(Fault::Nothing)),
        ("POST", "/nowhere", true, Err(Fault::Nothing)),
        ("GET", "", false, Err(Fault::Nothing)),
        ("GET", "*", false, Err(Fault::Nothing)),
        ("GET", "/api/v1/status/", false, Err(Fault::Nothing)),
        ("GET", "//api/v1/status", false, Err(Fault::Nothing)),
        ("GET", "/api/v1/../v1/status", false, Err(Fault::Nothing)),
        ("GET", "/API/v1/status", false, Err(Fault::Nothing)),
        ("GET", "/api/v1/%73tatus", false, Err(Fault::Nothing)),
        ("POST", "/api/v1/access/decision", true, not("GET, HEAD")),
        ("PUT", "/api/v1/access", true, not("GET, HEAD, POST")),
        ("DELETE", "/healthz", true, not("GET, HEAD")),
        ("GET", "/api/v1/status", true, Err(Fault::Body)),
    ] {
        let request = Request {
            has_body,
            ..asked(method, path)
        };
        assert_eq!(view(&request), wanted, "{method} {path}");
    }
}

#[test]
fn the_port_answers_only_under_names_of_this_machine_and_the_socket_under_any() {
    let also_here = ["edge-7".to_owned(), "192.0.2.7".to_owned()];
    let view = |hosts: &[&str]| {
        view(&Request {
            transport: Transport::Port,
            hosts,
            also_here: &also_here,
            ..asked("GET", "/metrics")
        })
    };
    for host in [
        "localhost",
        "LocalHost:7480",
        "127.0.0.1",
        "127.0.0.1:65535",
        "[::1]",
        "[::1]:80",
        "Edge-7:7480",
        "192.0.2.7:7480",
    ] {
        assert_eq!(view(&[host]), Ok(METRICS), "{host}");
    }
    for host in [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:7480",
        "127.0.0.2",
        "0.0.0.0:7480",
        "[::1]evil.example",
        "[::1",
        "::1",
        "localhost:",
        "localhost:99999",
        "localhost:80:80",
        "user@localhost",
        "2130706433",
        "192.0.2.71",
        "edge-7.",
    ] {
        assert_eq!(view(&[host]), Err(Fault::OtherMachine), "{host}");
    }
    assert_eq!(view(&[]), Err(Fault::OtherMachine));
    let two = ["localhost", "evil.example"];
    assert_eq!(view(&two), Err(Fault::OtherMachine));
    let request = Request {
        hosts: &["x"],
        ..asked("GET", "/metrics")
    };
    assert_eq!(judge(&request).unwrap().0.what, METRICS);
}

#[test]
fn who_may_not_is_told_how_to_become_somebody_who_may() {
    for (role, method, path, wanted) in [
        (Role::Nobody, "GET", "/metrics", Ok(METRICS)),
        (Role::Nobody, "GET", "/api/v1/status", Err(Fault::Unknown)),
        (Role::Anonymous, "GET", "/api/v1/status", Ok(STATUS)),
        (
            Role::Anonymous,
            "GET",
            "/api/v1/access",
            Err(Fault::Unknown),
        ),
        (Role::Viewer, "GET", "/api/v1/access", Ok(ACCESS)),
        (
            Role::Anonymous,
            "POST",
            "/api/v1/access",
            Err(Fault::Unknown),
        ),
        (
            Role::Viewer,
            "POST",
            "/api/v1/access",
            Err(Fault::ViewerOnly),
        ),
        (Role::Operator, "POST", "/api/v1/access", Ok(SET_ACCESS)),
    ] {
        let request = Request {
            transport: Transport::Port,
            role,
            content_type: JSON,
            ..asked(method, path)
        };
        assert_eq!(view(&request), wanted, "{role:?} {method} {path}");
    }
}

#[test]
fn a_change_is_json() {
    for (content_type, wanted) in [
        (JSON, Ok(SET_ACCESS)),
        (Some("Application/JSON"), Ok(SET_ACCESS)),
        (Some("text/plain"), Err(Fault::NotJson)),
        (Some("application/jsonp"), Err(Fault::NotJson)),
        (
            Some("application/x-www-form-urlencoded"),
            Err(Fault::NotJson),
        ),
        (None, Err(Fault::NotJson)),
    ] {
        let request = Request {
            content_type,
            has_body: true,
            role: Role::Operator,
            ..asked("POST", "/api/v1/access")
        };
        assert_eq!(view(&request), wanted, "{content_type:?}");
    }
}

/// `METHOD PATH`, `Origin`, `Sec-Fetch-Site`.
type FromPage = (
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
    Result<Responder, Fault>,
);

const PAGES: &[FromPage] = &[
    ("GET /", None, Some("cross-site"), Ok(PAGE)),
    ("GET /", None, Some("none"), Ok(PAGE)),
    ("GET /", Some("http://evil"), None, FOREIGN),
    ("GET /assets/app.js", None, Some("cross-site"), FOREIGN),
    ("GET /api/v1/status", None, None, Ok(STATUS)),
    ("GET /api/v1/status", None, Some("same-origin"), Ok(STATUS)),
    ("GET /api/v1/status", None, Some("none"), Ok(STATUS)),
    ("GET /api/v1/status", None, Some("same-site"), FOREIGN),
    ("GET /api/v1/status", None, Some("cross-site"), FOREIGN),
    ("GET /api/v1/status", Some("http://evil"), None, FOREIGN),
    ("POST /api/v1/access", None, Some("cross-site"), FOREIGN),
    ("POST /api/v1/access", None, Some("none"), FOREIGN),
    ("POST /api/v1/access", None, None, Ok(SET_ACCESS)),
    (
        "POST /api/v1/access",
        Some("http://localhost:7480"),
        Some("same-origin"),
        Ok(SET_ACCESS),
    ),
    (
        "POST /api/v1/access",
        Some("https://LOCALHOST:7480"),
        None,
        Ok(SET_ACCESS),
    ),
    (
        "POST /api/v1/access",
        Some("http://localhost:3000"),
        None,
        FOREIGN,
    ),
    (
        "POST /api/v1/access",
        Some("http://localhost"),
        None,
        FOREIGN,
    ),
    (
        "POST /api/v1/access",
        Some("http://localhost:7480.evil.example"),
        None,
        FOREIGN,
    ),
    ("POST /api/v1/access", Some("null"), None, FOREIGN),
    ("POST /api/v1/access", Some(""), None, FOREIGN),
];
const FOREIGN: Result<Responder, Fault> = Err(Fault::Foreign);

#[test]
fn pages_of_others_are_refused() {
    for (line, origin, fetch_site, wanted) in PAGES {
        let (method, path) = line.split_once(' ').unwrap();
        let request = Request {
            transport: Transport::Port,
            role: Role::Operator,
            content_type: JSON,
            origin: *origin,
            fetch_site: *fetch_site,
            ..asked(method, path)
        };
        assert_eq!(view(&request), *wanted, "{line} {origin:?} {fetch_site:?}");
    }
}

#[test]
fn over_tls_a_page_of_the_plain_scheme_is_somebody_elses() {
    let view = |origin| {
        view(&Request {
            transport: Transport::Network,
            is_encrypted: true,
            role: Role::Operator,
            content_type: JSON,
            origin: Some(origin),
            ..asked("POST", "/api/v1/access")
        })
    };
    assert_eq!(view("https://localhost:7480"), Ok(SET_ACCESS));
    assert_eq!(view("http://localhost:7480"), FOREIGN);
    assert_eq!(view("https://localhost"), FOREIGN);
}

#[test]
fn whoever_comes_over_the_network_without_a_login_is_told_that_the_process_works_and_no_more() {
    let open = |transport| {
        let routes = ROUTES.iter().filter(move |route| {
            route.least(transport) == Role::Nobody && route.whence == Exposure::Anywhere
        });
        routes
            .map(|route| (route.method.words(), route.path))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        open(Transport::Network),
        [
            ("GET, HEAD", "/"),
            ("GET, HEAD", "/assets/{id}"),
            ("GET, HEAD", "/healthz"),
            ("GET, HEAD", "/livez"),
            ("GET, HEAD", "/api/v1/session"),
            ("POST", "/api/v1/session"),
            ("DELETE", "/api/v1/session"),
            ("GET, HEAD", "/api/v1/openapi.json"),
        ]
    );
    for what in ["/metrics", "/readyz"] {
        let asked = |transport, role| {
            view(&Request {
                transport,
                role,
                ..asked("GET", what)
            })
        };
        assert_eq!(asked(Transport::Network, Role::Nobody), Err(Fault::Unknown));
        assert!(asked(Transport::Network, Role::Viewer).is_ok());
        assert!(asked(Transport::Port, Role::Nobody).is_ok());
    }
}

#[test]
fn no_path_has_two_routes_of_one_method_and_what_changes_is_for_operators() {
    for (n, route) in ROUTES.iter().enumerate() {
        let earlier = ROUTES.iter().take(n);
        for other in earlier {
            let is_same = other.path == route.path && other.method == route.method;
            assert!(!is_same, "{route:?}");
        }
        // Who logs in or out is nobody yet.
        let is_login = route.path == "/api/v1/session";
        // On the socket the handler compares who asks with apps.operators.
        let is_of_apps = route.path.starts_with("/api/v1/apps");
        if route.method.changes() && !is_login && route.whence == Exposure::Anywhere {
            assert_eq!(route.role, Role::Operator, "{route:?}");
            assert_eq!(route.role_elsewhere, Role::Operator, "{route:?}");
        }
        if route.method.changes() && !is_login && !is_of_apps {
            assert_eq!(route.role_on_socket, Role::Operator, "{route:?}");
        }
    }
}

#[test]
fn operators_of_the_page_change_apps_and_set_no_manifests_and_no_source() {
    let ways = ROUTES.iter().filter(|route| {
        let is_of_apps = route.path.starts_with("/api/v1/apps");
        is_of_apps && route.method.changes() && route.whence == Exposure::Anywhere
    });
    let ways: Vec<_> = ways
        .map(|route| (route.method, route.path.replace("{id}", "web")))
        .collect();
    let wanted = [
        "rollback", "deploy", "pull", "restart", "scale", "suggest", "cancel", "pause", "resume",
    ];
    let wanted = wanted.map(|way| (Method::Post, format!("/api/v1/apps/web/{way}")));
    let removal = (Method::Delete, "/api/v1/apps/web".to_owned());
    assert_eq!(ways, [&[removal], &wanted[..]].concat());
    for (transport, role, wanted) in [
        (Transport::Port, Role::Anonymous, Some(Fault::Unknown)),
        (Transport::Port, Role::Viewer, Some(Fault::ViewerOnly)),
        (Transport::Network, Role::Viewer, Some(Fault::ViewerOnly)),
        (Transport::Port, Role::Operator, None),
        (Transport::Network, Role::Operator, None),
        (Transport::Socket, Role::Viewer, None),
    ] {
        for (method, path) in &ways {
            let request = Request {
                transport,
                role,
                content_type: JSON,
                has_body: method.brings_body(),
                ..asked(method.words(), path)
            };
            assert_eq!(
                view(&request).err(),
                wanted,
                "{transport:?} {role:?} {path}"
            );
            let foreign = Request {
                origin: Some("https://evil.example"),
                ..request
            };
            if transport != Transport::Socket {
                assert_eq!(view(&foreign), FOREIGN, "{path}");
            }
        }
    }
}

#[test]
fn a_cookie_is_found_among_others_and_two_of_one_name_are_none() {
    for (header, wanted) in [
        ("session=abc", Some("abc")),
        ("a=1; session=abc; b=2", Some("abc")),
        ("a=1;session=abc", Some("abc")),
        ("session=a=b", Some("a=b")),
        ("session=", Some("")),
        ("xsession=abc", None),
        ("session", None),
        ("Session=abc", None),
        ("session=abc; session=abd", None),
        ("", None),
    ] {
        assert_eq!(cookie(header, "session"), wanted, "{header}");
    }
}
