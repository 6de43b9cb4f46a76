//! The header that begins every stream (docs/protocol.md, Stream header).

/// The header of a stream. The fields may hold anything: tests send what an agent must refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// 1 for tunnels of the existing protocol, 2 for the extension.
    pub version: u8,
    /// 1 TCP, 2 UDP, 3 HTTP to the Kubernetes API, 4 HTTP to a service.
    pub kind: u8,
    /// The service's port; 0 for the Kubernetes API.
    pub port: u16,
    /// The service's name; empty for the Kubernetes API.
    pub service: String,
    /// The service's namespace; empty for the Kubernetes API.
    pub namespace: String,
    /// For the log.
    pub id: String,
}

impl StreamHeader {
    /// HTTP to the Kubernetes API.
    pub fn kubernetes(id: &str) -> Self {
        Self {
            version: 2,
            kind: 3,
            port: 0,
            service: String::new(),
            namespace: String::new(),
            id: id.to_owned(),
        }
    }

    /// HTTP to a service.
    pub fn service(namespace: &str, service: &str, port: u16) -> Self {
        Self {
            version: 2,
            kind: 4,
            port,
            service: service.to_owned(),
            namespace: namespace.to_owned(),
            id: "test".to_owned(),
        }
    }

    /// The bytes on the wire. What is longer than a length can say is cut there.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.version, self.kind];
        bytes.extend(self.port.to_be_bytes());
        for text in [&self.service, &self.namespace, &self.id] {
            let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
            bytes.extend(length.to_be_bytes());
            bytes.extend(text.bytes().take(length.into()));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_example_is_written() {
        let header = StreamHeader {
            version: 1,
            kind: 1,
            id: "tunnel-abc123".into(),
            ..StreamHeader::service("databases", "postgres", 5432)
        };
        let mut expected = b"\x01\x01\x15\x38\0\x08postgres\0\x09databases".to_vec();
        expected.extend(b"\0\x0dtunnel-abc123");
        assert_eq!(header.bytes(), expected);
        assert_eq!(
            StreamHeader::kubernetes("x").bytes(),
            b"\x02\x03\0\0\0\0\0\0\0\x01x"
        );
    }
}
