//! Assertions of the fuzz targets.

use pipeops_agent::core;

#[path = "../hostile/invariants.rs"]
mod invariants;
#[path = "../hostile/model.rs"]
mod model;

/// Asserts everything that holds of a line of `tests/hostile`: `METHOD PATH?QUERY`, where the
/// method `WS` is a WebSocket.
pub fn request(line: &str) {
    let (method, target) = line.split_once(' ').unwrap_or(("GET", line));
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_websocket = method == "WS";
    let method = if is_websocket { "GET" } else { method };
    let _ = invariants::hold(method, path, query, is_websocket);
}

/// Asserts what holds of every body: the first letter says what it is for, the rest is its bytes.
/// What is judged harmless has to be harmless for a reader that takes the last of two values, and
/// for one that takes any of them.
pub fn body(data: &[u8]) {
    use core::{
        policy::{Content, PodSecurity, Rules, breaches, judge_body, written},
        proxy::{Cluster, RawRequest, route},
    };
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let _ = breaches(body, PodSecurity::Restricted);
    let resource = ["services", "secrets", "pods"][usize::from(kind / 4) % 3];
    let (method, content_type) = [
        ("POST", "application/json"),
        ("POST", "application/yaml"),
        ("POST", "application/vnd.kubernetes.protobuf"),
        ("PATCH", "application/apply-patch+yaml"),
    ][usize::from(*kind) % 4];
    let name = if method == "PATCH" { "/x" } else { "" };
    let path = format!("/api/v1/namespaces/shop/{resource}{name}");
    let mut asked = RawRequest::kubernetes(method, &path, "");
    asked.headers = vec![("Content-Type".to_owned(), vec![content_type.to_owned()])];
    let call = route(&asked, Cluster::Known).expect("a request that makes sense");
    let written = written(&call).expect("a body that is judged");
    let content = Content::of(&call, &written).expect("a type that is known");
    let judged = judge_body(&Rules::default(), &call, &written, content, body.to_vec());
    let Ok(judged) = judged else { return };
    if !judged.faults.is_empty() || resource == "pods" {
        return;
    }
    if content == Content::Protobuf {
        let texts = texts_of(&judged.body[4..], 0);
        let is_there = |path: &[u64], wanted: &str| {
            texts
                .iter()
                .any(|(found, text)| found == path && text == wanted)
        };
        match resource {
            "services" => {
                assert!(!is_there(&[2, 2, 4], "NodePort") && !is_there(&[2, 2, 4], "LoadBalancer"));
                assert!(!texts.iter().any(|(path, _)| path == &[2, 2, 5]));
            }
            _ => assert!(!is_there(&[2, 3], "kubernetes.io/service-account-token")),
        }
        return;
    }
    let sent: serde_json::Value = serde_json::from_slice(&judged.body).expect("JSON");
    match resource {
        "services" => {
            let kind = sent["spec"]["type"].as_str().unwrap_or_default();
            assert!(["", "ClusterIP", "ExternalName"].contains(&kind), "{sent}");
            let addresses = sent["spec"]["externalIPs"].as_array();
            assert!(addresses.is_none_or(Vec::is_empty), "{sent}");
        }
        _ => assert_ne!(
            sent["type"], "kubernetes.io/service-account-token",
            "{sent}"
        ),
    }
}

/// Every text of a message and of all that could be messages in it, as a lax decoder finds them:
/// with the path of their numbers.
fn texts_of(mut message: &[u8], depth: usize) -> Vec<(Vec<u64>, String)> {
    let mut texts = Vec::new();
    while let Some((tag, rest)) = number(message) {
        // Decoders keep 32 bits of it.
        let field = (tag >> 3) & u64::from(u32::MAX);
        let Some(rest) = (match tag & 7 {
            0 => number(rest).map(|(_, rest)| rest),
            1 => rest.get(8..),
            5 => rest.get(4..),
            2 => number(rest).and_then(|(length, rest)| {
                let bytes = rest.get(..usize::try_from(length).ok()?)?;
                texts.push((vec![field], String::from_utf8_lossy(bytes).into_owned()));
                if depth < 4 {
                    for (mut path, text) in texts_of(bytes, depth + 1) {
                        path.insert(0, field);
                        texts.push((path, text));
                    }
                }
                rest.get(bytes.len()..)
            }),
            _ => None,
        }) else {
            return texts;
        };
        message = rest;
    }
    texts
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (place, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(place).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[place + 1..]));
        }
    }
    None
}

/// Asserts what holds of every request to the dashboard: a line is `TRANSPORT ROLE METHOD PATH HOST
/// ORIGIN SITE TYPE COOKIE`, with spaces between.
pub fn dashboard_request(line: &str) {
    use core::authorization::{self, Exposure, Fault, Request, Role, Transport};
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let transport = match next() {
        "socket" => Transport::Socket,
        "network" => Transport::Network,
        _ => Transport::Port,
    };
    let is_encrypted = transport == Transport::Network;
    let role = match next() {
        "operator" => Role::Operator,
        "viewer" => Role::Viewer,
        "anonymous" => Role::Anonymous,
        _ => Role::Nobody,
    };
    let (method, path, host) = (next(), next(), next());
    let mut header = || Some(next()).filter(|text| *text != "-");
    let (origin, site, kind) = (header(), header(), header());
    let cookie = next();
    let request = Request {
        transport,
        is_encrypted,
        also_here: &[],
        method,
        path,
        hosts: &[host],
        origin,
        fetch_site: site,
        content_type: kind,
        has_body: false,
        role,
    };
    match authorization::judge(&request) {
        Ok((route, id)) => {
            assert!(role >= route.least(transport), "{line}");
            assert!(!id.contains('/') && !id.contains(".."), "{line}");
            if transport != Transport::Socket {
                assert!(authorization::is_here(host, &[]), "{line}");
                assert!(route.whence == Exposure::Anywhere, "{line}");
                assert!(
                    origin.is_none_or(|origin| authorization::is_same_origin(
                        origin,
                        host,
                        is_encrypted
                    )),
                    "{line}"
                );
            }
        }
        Err(Fault::Method(allowed)) => {
            assert!(!allowed.split(", ").any(|one| one == method), "{line}");
        }
        Err(_) => {}
    }
    if let Some(value) = authorization::cookie(cookie, "session") {
        assert!(cookie.contains(value), "{line}");
    }
}

/// Asserts what holds of every byte of the control plane: messages, yamux frames, and the headers
/// of streams, which mean the same in one piece and in many.
pub fn control_plane_bytes(data: &[u8]) {
    use core::yamux::{MuxLimits, Yamux};
    use pipeops_agent::wire::{control, stream::HeaderReader};

    let _ = control::decode(data);

    let limits = MuxLimits {
        streams_max: 4,
        buffered_bytes_max: 600_000,
    };
    let mut session = Yamux::new(limits);
    let mut rest = data;
    loop {
        let received = session.receive(rest);
        rest = &rest[received.used..];
        let load = session.load();
        assert!(load.streams <= limits.streams_max);
        assert!(load.buffered_bytes <= limits.buffered_bytes_max);
        while session.next_control().is_some() {}
        if received.event.is_none() {
            assert!(rest.is_empty() || session.is_ended());
            break;
        }
    }

    let (used, whole) = HeaderReader::default().read(data);
    let mut reader = HeaderReader::default();
    let mut at = 0;
    let in_pieces = loop {
        let piece = data.get(at..=at).unwrap_or_default();
        let (taken, read) = reader.read(piece);
        at += taken;
        match read {
            Ok(None) if !piece.is_empty() => {}
            Ok(None) | Ok(Some(_)) | Err(_) => break read,
        }
    };
    assert_eq!((used, whole), (at, in_pieces));
}

/// Asserts what holds of every manifest: what is read lies in one namespace, under a path of its
/// own, also where the API server says it.
pub fn manifests(text: &str) {
    if let Ok(list) = serde_json::from_str(text)
        && let Ok(kind) = core::apps::discovered(&list, "example.com/v1", "Widget")
    {
        let path = kind.path("shop", "a");
        let rest = path.strip_prefix("/apis/example.com/v1/namespaces/shop/");
        let plural = rest.and_then(|rest| rest.strip_suffix("/a"));
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        assert!(
            plural.is_some_and(|plural| plural.bytes().all(is_plain)),
            "{path}"
        );
    }
    let Ok(manifests) = core::apps::parse(text, Some("shop")) else {
        return;
    };
    for manifest in manifests {
        assert_eq!(manifest.namespace, "shop", "{text}");
        assert_eq!(manifest.object["metadata"]["namespace"], "shop", "{text}");
        assert_eq!(
            manifest.object["metadata"]["name"],
            manifest.name.as_str(),
            "{text}"
        );
        let path = manifest.path();
        let (_, name) = path.split_once("/namespaces/shop/").expect("a namespace");
        assert_eq!(name.split('/').count(), 2, "{path}");
        assert!(
            !path.contains("..") && path.bytes().all(|byte| byte.is_ascii_graphic()),
            "{path}"
        );
    }
}

/// Asserts what holds of every block of series: one that can be read is written and read as the
/// same.
pub fn block(data: &[u8]) {
    use core::series::block::Block;

    // Packed, so that inputs reach what is inside.
    for bytes in [data.to_vec(), core::series::block::pack(data)] {
        if let Ok(block) = Block::decode(&bytes) {
            assert_eq!(Block::decode(&block.encode()), Ok(block));
        }
    }
}
