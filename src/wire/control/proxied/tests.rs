//! Reading of the messages of proxied exchanges.

use super::*;
use crate::{
    core::proxy::HeaderList,
    wire::control::{Inbound, decode},
};
use proptest::prelude::*;
use std::time::Duration;

fn message(text: &str) -> ProxyMessage {
    match decode(text.as_bytes()) {
        Ok(Inbound::Proxy(message)) => message,
        other => panic!("{text}: {other:?}"),
    }
}

fn request(payload: &str) -> ProxyRequest {
    let text = format!(r#"{{"type":"proxy_request","request_id":"r","payload":{payload}}}"#);
    let ProxyMessage::Request(request) = message(&text) else {
        panic!("{payload}");
    };
    *request
}

fn unusable(payload: &str) -> String {
    let text = format!(r#"{{"type":"proxy_request","request_id":"r","payload":{payload}}}"#);
    let ProxyMessage::Unusable { reason, .. } = message(&text) else {
        panic!("{payload}");
    };
    reason
}

#[test]
fn the_examples_of_the_protocol_are_read() {
    let first = request(
        r#"{"method":"GET","path":"/api/v1/namespaces/default/pods","query":"limit=50&watch=false",
            "headers":{"Accept":["application/json"],"Authorization":["Bearer eyJ"]},"supports_response_streaming":true,"timeout":30000}"#,
    );
    assert_eq!(first.answer, AnswerForm::Streaming);
    assert_eq!(first.asked.query, "limit=50&watch=false");
    assert_eq!(first.asked.limit, Limit::Timeout(Duration::from_secs(30)));
    assert_eq!(first.asked.headers[1].1, ["Bearer eyJ"]);
    let second = request(
        r#"{"method":"POST","path":"/login","scheme":"https","namespace":"pipeops-system","service_name":"traefik","service_port":80,
            "headers":{"Host":["app.example.com"],"Content-Type":["application/json"]},"body":"eyJ1IjoiYSJ9","body_encoding":"base64"}"#,
    );
    assert_eq!(second.answer, AnswerForm::Buffered);
    assert_eq!(
        (second.asked.scheme, second.asked.port),
        (Scheme::Https, 80)
    );
    assert_eq!(
        second.body,
        RequestBody::Inline(Bytes::from_static(br#"{"u":"a"}"#))
    );
}

#[test]
fn values_of_the_wrong_type_are_absent() {
    let read = request(
        r#"{"method":5,"path":null,"query":["a"],"headers":"x","service_port":"80","namespace":{"a":1},"timeout":true,
            "supports_response_streaming":"true","is_websocket":1,"body":7,"use_streaming":"yes","deadline":5}"#,
    );
    let nothing = request("{}");
    assert_eq!(read.asked, nothing.asked);
    assert_eq!(
        (read.body, read.answer),
        (RequestBody::None, AnswerForm::Buffered)
    );
    assert_eq!(nothing.asked.limit, Limit::Default);
}

#[test]
fn headers_are_strings_or_arrays_of_strings_and_the_last_of_two_counts() {
    let read = request(
        r#"{"headers":{"A":"1","B":["2",3,{"x":[4]},"5"],"C":7,"A":"6","d\u0041":["\n"]}}"#,
    );
    let wanted: HeaderList = [
        ("B", vec!["2", "5"]),
        ("C", vec![]),
        ("A", vec!["6"]),
        ("dA", vec!["\n"]),
    ]
    .into_iter()
    .map(|(name, values)| {
        (
            name.to_owned(),
            values.into_iter().map(str::to_owned).collect(),
        )
    })
    .collect();
    assert_eq!(read.asked.headers, wanted);
}

#[test]
fn numbers_are_doubles_cut_towards_zero() {
    for (number, wanted) in [
        ("80", 80),
        ("80.9", 80),
        ("-1.9", -1),
        ("8e1", 80),
        ("1e300", 0),
        ("-0.0", 0),
        ("65536.0", 65_536),
    ] {
        let read = request(&format!(r#"{{"service_port":{number}}}"#));
        assert_eq!(read.asked.port, wanted, "{number}");
    }
}

#[test]
fn time_limits_are_read_in_all_their_forms() {
    for (payload, wanted) in [
        (
            r#"{"timeout":1500.7}"#,
            Limit::Timeout(Duration::from_millis(1500)),
        ),
        (
            r#"{"timeout":"1m30s"}"#,
            Limit::Timeout(Duration::from_secs(90)),
        ),
        (
            r#"{"timeout":"1.5h"}"#,
            Limit::Timeout(Duration::from_secs(5400)),
        ),
        (
            r#"{"timeout":"250ms"}"#,
            Limit::Timeout(Duration::from_millis(250)),
        ),
        (r#"{"timeout":"0"}"#, Limit::Default),
        (r#"{"timeout":"-5s"}"#, Limit::Default),
        (r#"{"timeout":-5}"#, Limit::Default),
        (r#"{"timeout":"5"}"#, Limit::Default),
        (r#"{"timeout":"soon"}"#, Limit::Default),
        (
            r#"{"timeout":5000,"deadline":"1970-01-01T00:00:01.5Z"}"#,
            Limit::Deadline(Wall::from_millis(1500)),
        ),
        (
            r#"{"timeout":5000,"deadline":"noon"}"#,
            Limit::Timeout(Duration::from_secs(5)),
        ),
    ] {
        assert_eq!(request(payload).asked.limit, wanted, "{payload}");
    }
}

#[test]
fn bodies_are_read_in_all_their_forms() {
    for (payload, wanted) in [
        (r#"{"body":"a\u00fc"}"#, RequestBody::Inline("aü".into())),
        (
            r#"{"body":"YQ==","body_encoding":"Base64"}"#,
            RequestBody::Inline("a".into()),
        ),
        (
            r#"{"body":"Y\r\nQ==","body_encoding":"base64"}"#,
            RequestBody::Inline("a".into()),
        ),
        (
            r#"{"body":"YQ==","body_encoding":"hex"}"#,
            RequestBody::Inline("YQ==".into()),
        ),
        (
            r#"{"body":{ "b" : [ 1 , "x \" y" ] } }"#,
            RequestBody::Inline(r#"{"b":[1,"x \" y"]}"#.into()),
        ),
        (r#"{"body":""}"#, RequestBody::None),
        (r#"{"body":null}"#, RequestBody::None),
        (r#"{"body":"x","streaming":true}"#, RequestBody::Chunked),
        (
            r#"{"body":"x","body_binary":true}"#,
            RequestBody::NextBinary,
        ),
    ] {
        assert_eq!(request(payload).body, wanted, "{payload}");
    }
    for payload in [
        r#"{"body":"YQ","body_encoding":"base64"}"#,
        r#"{"body":"Y_==","body_encoding":"base64"}"#,
        r#"{"body":"\ud800"}"#,
    ] {
        assert!(unusable(payload).contains("body"), "{payload}");
    }
}

#[test]
fn what_is_too_much_is_named_and_not_stored() {
    let many: Vec<String> = (0..300_000)
        .map(|number| format!("\"h{number}\":\"v\""))
        .collect();
    let text = format!(r#"{{"headers":{{{}}}}}"#, many.join(","));
    assert!(unusable(&text).starts_with("headers are more than"));
    let text = format!(
        r#"{{"headers":{{"a":[{}]}}}}"#,
        "\"\",".repeat(300_000) + "\"\""
    );
    assert!(unusable(&text).starts_with("headers are more than"));
    let text = format!(r#"{{"body":"{}"}}"#, "x".repeat(9 << 20));
    assert!(unusable(&text).starts_with("the request body is larger"));
    let text = format!(
        r#"{{"type":"proxy_request","request_id":"{}","payload":{{}}}}"#,
        "i".repeat(600)
    );
    assert!(matches!(message(&text), ProxyMessage::Unusable { id, .. } if id.len() == 600));
    let text = text.replace(&"i".repeat(600), &"i".repeat(70_000));
    assert!(matches!(message(&text), ProxyMessage::Nameless));
}

#[test]
fn a_binary_body_says_whose_it_is() {
    assert_eq!(
        binary_body(b"\x00\x02idbody"),
        Some(("id", b"body".as_slice()))
    );
    assert_eq!(binary_body(b"\x00\x02id"), Some(("id", b"".as_slice())));
    for short in [b"".as_slice(), b"\x00", b"\x00\x03id", b"\x00\x01\xff"] {
        assert_eq!(binary_body(short), None);
    }
}

#[test]
fn the_id_of_a_frame_is_looked_for_where_the_protocol_says() {
    for (text, stream, application) in [
        (
            r#"{"type":"ws_data","request_id":"e","payload":{"data":"AQ=="}}"#,
            None,
            Some("e"),
        ),
        (
            r#"{"type":"ws_data","request_id":"e","payload":{"stream_id":"s","data":"AQ=="}}"#,
            Some("s"),
            Some("s"),
        ),
        (
            r#"{"type":"proxy_websocket_data","request_id":"e","payload":{"request_id":"p","stream_id":"s"}}"#,
            Some("s"),
            Some("p"),
        ),
    ] {
        let ProxyMessage::SocketData(read) = message(text) else {
            panic!("{text}");
        };
        assert_eq!(
            (read.stream_id.as_deref(), read.application_id.as_deref()),
            (stream, application)
        );
    }
    assert!(matches!(
        message(r#"{"type":"ws_data","payload":{"data":"AQ=="}}"#),
        ProxyMessage::Nameless
    ));
}

/// JSON of any shape, with the protocol's own names in it.
fn json() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("headers"),
        Just("body"),
        Just("timeout"),
        Just("service_port"),
        Just("data"),
        Just("stream_id"),
        Just("path"),
        Just("x"),
    ];
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<f64>().prop_filter_map("finite", |n| n.is_finite().then(|| n.to_string())),
        "[ -~]{0,12}".prop_map(|text| serde_json::to_string(&text).unwrap()),
        Just("\"\\ud800\"".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec((name.clone(), inner), 0..5).prop_map(|members| {
                let members: Vec<String> = members
                    .into_iter()
                    .map(|(name, value)| format!("\"{name}\":{value}"))
                    .collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
        let decoded = decode(&bytes);
        prop_assert!(decoded.is_ok() || !decoded.unwrap_err().reason.is_empty());
        prop_assert!(binary_body(&bytes).is_none_or(|(id, body)| id.len() + body.len() + 2 == bytes.len()));
    }

    #[test]
    fn every_object_with_a_proxy_type_is_a_proxy_message(payload in json(), kind in prop_oneof![
        Just("proxy_request"), Just("proxy_request_chunk"), Just("ws_start"), Just("ws_data"), Just("ws_close"), Just("proxy_cancel"),
    ]) {
        let text = format!(r#"{{"payload":{payload},"type":"{kind}","request_id":"r"}}"#);
        let is_object = payload.starts_with('{') || payload == "null";
        match decode(text.as_bytes()) {
            Ok(Inbound::Proxy(_)) => prop_assert!(is_object),
            Ok(other) => prop_assert!(false, "{other:?}"),
            Err(_) => prop_assert!(!is_object, "{text}"),
        }
    }
}
