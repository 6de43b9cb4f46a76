//! Routing of requests, and refusals.

use super::*;

fn asked(path: &str) -> RawRequest {
    RawRequest::kubernetes("", path, "")
}

fn service_asked(namespace: &str, service: &str, port: i64, path: &str) -> RawRequest {
    RawRequest {
        namespace: namespace.to_owned(),
        service: service.to_owned(),
        port,
        ..asked(path)
    }
}

fn header(asked: &mut RawRequest, name: &str, value: &str) {
    asked
        .headers
        .push((name.to_owned(), vec![value.to_owned()]));
}

fn place(asked: &RawRequest) -> String {
    match route(asked, Cluster::Known) {
        Ok(call) => {
            let form = match &call.form {
                Form::Plain => "",
                Form::Socket(_) => " (socket)",
                Form::Upgrade(_) => " (upgrade)",
            };
            let target = match &call.target {
                CallTarget::Kubernetes(_) => "kubernetes",
                CallTarget::Service(_) => "service",
            };
            format!("{target}{form}")
        }
        Err(Refusal(text)) => text,
    }
}

#[test]
fn requests_go_where_the_protocol_says() {
    let no_route = "no route: the request names neither a service nor a path of the Kubernetes API";
    for (asked, wanted) in [
        (asked("/api/v1/pods"), "kubernetes"),
        (asked("/version"), "kubernetes"),
        (asked("/"), no_route),
        (asked("/metrics"), no_route),
        (asked("/apix"), no_route),
        (service_asked("a", "b", 80, "/api/v1/pods"), "service"),
        (service_asked("a", "b", 80, ""), "service"),
        (service_asked("a", "", 80, "/api/v1/pods"), "kubernetes"),
        (
            service_asked("a", "", 80, "/x"),
            "incomplete service routing information: namespace, service_name and service_port are needed together",
        ),
    ] {
        assert_eq!(place(&asked), wanted, "{asked:?}");
    }
    let refusal = route(&asked("/"), Cluster::None).unwrap_err();
    assert_eq!(refusal.0, "kubernetes client not initialized");
}

#[test]
fn a_host_does_not_change_where_a_path_of_the_api_goes() {
    let mut asked = asked("/api/v1/pods");
    header(&mut asked, "Host", "unknown.example.com");
    assert_eq!(place(&asked), "kubernetes");
}

#[test]
fn every_sign_of_a_websocket_is_seen() {
    let signs: [fn(&mut RawRequest); 6] = [
        |asked| asked.is_websocket = true,
        |asked| asked.protocol = "x".to_owned(),
        |asked| header(asked, "UPGRADE", "WebSocket"),
        |asked| header(asked, "sec-websocket-key", "k"),
        |asked| header(asked, "Sec-WebSocket-Version", "13"),
        |asked| header(asked, "Sec-Websocket-Protocol", "p"),
    ];
    for sign in signs {
        let mut exec = asked("/api/v1/namespaces/a/pods/b/exec");
        sign(&mut exec);
        assert_eq!(place(&exec), "kubernetes (socket)");
        let mut application = service_asked("a", "b", 80, "/ws");
        sign(&mut application);
        assert_eq!(place(&application), "service (socket)");
        let mut lost = asked("/ws");
        sign(&mut lost);
        assert_eq!(
            place(&lost),
            "missing service routing information for WebSocket"
        );
    }
    let mut blank = asked("/api/v1/pods");
    blank.protocol = "  ".to_owned();
    header(&mut blank, "Sec-WebSocket-Key", " ");
    assert_eq!(place(&blank), "kubernetes");
}

#[test]
fn targets_are_checked_for_requests_and_websockets_alike() {
    for is_websocket in [false, true] {
        for (namespace, service, port, path, wanted) in [
            ("a", "b.c", 80, "/", "invalid service name:"),
            ("a", "b/c", 80, "/", "invalid service name:"),
            ("a", "-b", 80, "/", "invalid service name:"),
            ("A", "b", 80, "/", "invalid namespace:"),
            ("a@evil", "b", 80, "/", "invalid namespace:"),
            ("a", "b", 65_536, "/", "invalid service port:"),
            ("a", "b", 80, "x", "invalid path:"),
            ("a", "b", 80, "/../x", "invalid path:"),
        ] {
            let mut asked = service_asked(namespace, service, port, path);
            asked.is_websocket = is_websocket;
            assert!(place(&asked).starts_with(wanted), "{asked:?}");
        }
    }
}

#[test]
fn streams_of_the_api_take_no_other_path() {
    let exec = route_stream(&asked("/api/v1/namespaces/a/pods/b/exec"), Cluster::Known);
    assert_eq!(
        exec.map(|call| call.form),
        Ok(Form::Socket(
            [
                "v4.channel.k8s.io",
                "v3.channel.k8s.io",
                "v2.channel.k8s.io",
                "channel.k8s.io"
            ]
            .map(str::to_owned)
            .to_vec()
        ))
    );
    for path in ["/x", "", "/api/%2e/x", "/api\\x", "/api/v1/../x", "/apifoo"] {
        let refusal = route_stream(&asked(path), Cluster::Known).unwrap_err();
        assert_eq!(refusal.0, NOT_KUBERNETES, "{path}");
    }
}

#[test]
fn a_handshake_is_judged_as_the_get_that_is_sent() {
    let mut asked = asked("/api/v1/namespaces/a/pods/b/exec");
    asked.method = "delete".to_owned();
    asked.is_websocket = true;
    asked.protocol = "v5.channel.k8s.io, v4.channel.k8s.io".to_owned();
    header(&mut asked, "Sec-WebSocket-Protocol", "v4.channel.k8s.io");
    header(&mut asked, "sec-websocket-extensions", "permessage-deflate");
    header(&mut asked, "Authorization", "Bearer x");
    let call = route(&asked, Cluster::Known).unwrap();
    assert_eq!(call.method, "GET");
    assert_eq!(
        call.form,
        Form::Socket(vec![
            "v5.channel.k8s.io".to_owned(),
            "v4.channel.k8s.io".to_owned()
        ])
    );
    let names: Vec<&str> = call.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Authorization"]);
}

#[test]
fn watches_and_followed_logs_are_long() {
    for (path, query, wanted) in [
        ("/api/v1/pods", "watch=true", Class::Long),
        (
            "/api/v1/namespaces/a/pods/b/log",
            "follow=true",
            Class::Long,
        ),
        ("/api/v1/watch/pods", "", Class::Long),
        ("/api/v1/pods", "limit=5", Class::Short),
    ] {
        let mut asked = asked(path);
        asked.query = query.to_owned();
        assert_eq!(
            route(&asked, Cluster::Known).map(|call| call.class),
            Ok(wanted)
        );
    }
}

#[test]
fn a_callers_limit_counts_for_all_and_without_one_only_silence_does() {
    let now = Now {
        mono: Mono::since_boot(Duration::from_secs(1000)),
        wall: Wall::from_millis(5_000_000),
    };
    let limits = |limit| {
        let mut asked = asked("/api/v1/pods");
        asked.limit = limit;
        route(&asked, Cluster::Known).unwrap().limits(now)
    };
    let seconds = |seconds| now.mono.after(Duration::from_secs(seconds));
    let default = limits(Limit::Default);
    assert_eq!((default.head, default.total), (seconds(120), None));
    let longer = limits(Limit::Timeout(Duration::from_secs(600)));
    assert_eq!(
        (longer.head, longer.total),
        (seconds(600), Some(seconds(600)))
    );
    let past = limits(Limit::Deadline(Wall::from_millis(4_999_999)));
    assert_eq!((past.head, past.total), (now.mono, Some(now.mono)));
}
