//! A scripted agent: it says what the test tells it to.

use std::time::Duration;

use async_tungstenite::WebSocketStream;
use async_tungstenite::tungstenite::{Error, Message, client::IntoClientRequest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use plane::Plane;
use serde_json::{Value, json};
use smol::future::or;
use smol::net::TcpStream;
use smol::stream::StreamExt;

pub(crate) const LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn b64(data: &[u8]) -> String {
    STANDARD.encode(data)
}

pub(crate) fn unb64(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap()
}

#[derive(Debug)]
pub(crate) struct Agent {
    socket: WebSocketStream<TcpStream>,
}

async fn limited<T>(future: impl Future<Output = T>) -> T {
    or(future, async {
        smol::Timer::after(LIMIT).await;
        panic!("nothing came for 10 s");
    })
    .await
}

impl Agent {
    pub(crate) fn dial_controller(plane: &Plane) -> Result<Self, u16> {
        Self::dial(plane, "/api/v1/clusters/agent/ws", plane.token())
    }

    pub(crate) fn dial_gateway(plane: &Plane, cluster: &str) -> Result<Self, u16> {
        let path = format!(
            "/ws?agent_version=1&cluster_uuid={cluster}&supports_binary=true&supports_response_streaming=true\
             &supports_streaming=true&supports_websocket=true&supports_yamux=true"
        );
        Self::dial(plane, &path, plane.token())
    }

    /// As [`Agent::dial_gateway`], offering the extension.
    pub(crate) fn dial_edge(plane: &Plane, cluster: &str) -> Result<Self, u16> {
        let path = format!(
            "/ws?agent_version=1&cluster_uuid={cluster}&supports_binary=true&supports_edge=true\
             &supports_response_streaming=true&supports_streaming=true&supports_websocket=true\
             &supports_yamux=true"
        );
        Self::dial(plane, &path, plane.token())
    }

    /// The connection.
    pub(crate) fn into_socket(self) -> WebSocketStream<TcpStream> {
        self.socket
    }

    /// Connects, or gives the status that refused it.
    pub(crate) fn dial(plane: &Plane, path: &str, token: &str) -> Result<Self, u16> {
        let address = plane.plaintext_url().unwrap().trim_start_matches("http://");
        smol::block_on(limited(async {
            let tcp = TcpStream::connect(address).await.unwrap();
            let mut request = format!("ws://{address}{path}")
                .into_client_request()
                .unwrap();
            let bearer = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert("Authorization", bearer);
            match async_tungstenite::client_async(request, tcp).await {
                Ok((socket, _)) => Ok(Self { socket }),
                Err(Error::Http(response)) => Err(response.status().as_u16()),
                Err(other) => panic!("{other}"),
            }
        }))
    }

    fn write(&mut self, message: Message) {
        smol::block_on(limited(self.socket.send(message))).unwrap();
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        self.write(Message::text(text));
    }

    pub(crate) fn send_binary(&mut self, data: Vec<u8>) {
        self.write(Message::binary(data));
    }

    pub(crate) fn ping(&mut self, data: &'static [u8]) {
        self.write(Message::Ping(data.into()));
    }

    pub(crate) fn send(&mut self, kind: &str, id: Option<&str>, payload: &Value) {
        let mut message =
            json!({"type": kind, "payload": payload, "timestamp": "2026-06-16T05:50:28.1Z"});
        if let Some(id) = id {
            message["request_id"] = id.into();
        }
        self.send_text(&message.to_string());
    }

    pub(crate) fn head(&mut self, id: &str, status: u16, headers: &Value) {
        let payload = json!({"status": status, "headers": headers});
        self.send("proxy_response_header", Some(id), &payload);
    }

    pub(crate) fn chunk(&mut self, id: &str, data: &[u8]) {
        let payload = json!({"data": b64(data), "encoding": "base64", "size": data.len()});
        self.send("proxy_response_chunk", Some(id), &payload);
    }

    pub(crate) fn send_register(&mut self) {
        let payload = Self::registration();
        self.send("register", Some("req_1"), &payload);
    }

    /// Registers, offering the extension.
    pub(crate) fn register_edge(&mut self) -> Value {
        let mut payload = Self::registration();
        payload["features"]["supports_edge"] = true.into();
        self.send("register", Some("req_1"), &payload);
        self.next_json()
    }

    fn registration() -> Value {
        json!({
            "agent_id": "agent-1", "name": "edge", "k8s_version": "v1.34.4", "hostname": "h",
            "agent_version": "0.1.0", "server_ip": "192.0.2.1", "region": "unknown-country",
            "cloud_provider": "agent", "labels": {},
            "tunnel_port_config": {"kubernetes_api": 6443, "kubelet": 10250, "agent_http": 8080},
            "server_specs": {"cpu_cores": 2},
            "features": {"supports_streaming": true, "supports_binary_protocol": true,
                "supports_compression": true, "supports_websocket_proxy": true,
                "supports_gateway": true, "supports_response_streaming": true},
            "k8s_service_token": "k8s-token",
        })
    }

    pub(crate) fn register(&mut self) -> Value {
        self.send_register();
        self.next_json()
    }

    pub(crate) fn heartbeat(&mut self, cluster: &str) {
        let payload = json!({
            "cluster_id": cluster, "agent_id": "agent-1", "status": "healthy",
            "tunnel_status": "connected",
            "metadata": {"agent_version": "0.1.0", "k8s_version": "v1.34.4", "k8s_nodes": 1,
                "k8s_pods": 2, "cpu_usage": "3%", "memory_usage": "40%", "is_private": true,
                "gateway_routes": 0},
        });
        self.send("heartbeat", None, &payload);
    }

    fn next(&mut self) -> Option<Message> {
        smol::block_on(limited(self.socket.next())).and_then(Result::ok)
    }

    /// The next JSON message, in text or binary; pongs are passed over.
    pub(crate) fn next_json(&mut self) -> Value {
        loop {
            let message = self.next().expect("the session is open");
            if !message.is_pong() {
                let data = message.into_data();
                return serde_json::from_slice(&data).unwrap();
            }
        }
    }

    /// Returns whether what comes next is against RFC 6455.
    pub(crate) fn is_broken(&mut self) -> bool {
        matches!(
            smol::block_on(limited(self.socket.next())),
            Some(Err(Error::Protocol(_)))
        )
    }

    pub(crate) fn next_text(&mut self) -> String {
        let message = self.next().expect("the session is open");
        message.into_text().unwrap().as_str().to_owned()
    }

    pub(crate) fn next_binary(&mut self) -> Vec<u8> {
        let message = self.next().expect("the session is open");
        assert!(message.is_binary(), "{message:?}");
        message.into_data().to_vec()
    }

    pub(crate) fn next_pong(&mut self) -> Vec<u8> {
        let message = self.next().expect("the session is open");
        assert!(message.is_pong(), "{message:?}");
        message.into_data().to_vec()
    }

    /// The opcode and data of the next stream message, which must be for this stream.
    pub(crate) fn stream_data(&mut self, id: &str) -> Vec<u8> {
        let message = self.next_json();
        assert_eq!(message["type"], "ws_data");
        assert_eq!(message["request_id"], id);
        assert_eq!(message["payload"]["stream_id"], id);
        unb64(message["payload"]["data"].as_str().unwrap())
    }

    /// Reads to the end; gives the close frame's code if there was one.
    pub(crate) fn end(&mut self) -> Option<u16> {
        let mut code = None;
        while let Some(message) = self.next() {
            if let Message::Close(Some(frame)) = message {
                code = Some(frame.code.into());
            }
        }
        code
    }

    pub(crate) fn close(mut self) {
        smol::block_on(limited(self.socket.close(None))).unwrap();
        self.end();
    }
}
