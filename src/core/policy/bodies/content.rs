//! Forms of a body: JSON, YAML and Kubernetes' protobuf.

use serde_json::Value;

use super::{
    super::{protobuf, schema},
    BodyKind, Write, Written, kinds,
};
use crate::core::{
    proxy::{Call, values},
    yaml,
};

/// Largest body that is judged, in JSON or protobuf. The datastore takes objects of 1.5 MiB.
pub const BODY_BYTES_MAX: usize = 2 << 20;
/// Largest manifest in YAML: it is read whole, on the thread that everything runs on.
pub(super) const MANIFEST_BYTES_MAX: usize = 512 << 10;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The form of a body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Content {
    Json,
    /// YAML; sent in JSON.
    Yaml,
    /// Kubernetes' protobuf.
    Protobuf,
    /// The manifest of a server-side apply, in YAML; sent in JSON, which is YAML.
    Apply,
}

impl Content {
    /// Reads the type of a body.
    ///
    /// # Errors
    /// The type, where it is none that can be judged.
    pub fn of(call: &Call, written: &Written) -> Result<Self, String> {
        let named: Vec<&str> = values(&call.headers, "content-type").collect();
        let [named] = named[..] else {
            return if named.is_empty() && written.write != Write::Apply {
                // What the API server takes it for.
                Ok(Self::Json)
            } else {
                Err("it has more than one Content-Type".to_owned())
            };
        };
        if written.write == Write::Apply {
            return Ok(Self::Apply);
        }
        let kind = named.split(';').next().unwrap_or_default().trim();
        let is = |wanted: &str| kind.eq_ignore_ascii_case(wanted);
        if kind.is_empty() || is(JSON) {
            Ok(Self::Json)
        } else if is(YAML) {
            Ok(Self::Yaml)
        } else if is(PROTOBUF) && written.subject != BodyKind::Certificate {
            Ok(Self::Protobuf)
        } else {
            Err(format!("its Content-Type is {kind:?}"))
        }
    }

    /// The type that is sent.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Json | Self::Yaml => JSON,
            Self::Protobuf => PROTOBUF,
            Self::Apply => kinds::APPLY,
        }
    }

    /// The form in which an existing object is read, to be compared with a body of this one.
    #[must_use]
    pub const fn existing(self) -> Self {
        match self {
            Self::Json | Self::Yaml | Self::Apply => Self::Json,
            Self::Protobuf => Self::Protobuf,
        }
    }

    /// Media type in `Accept` that returns an existing object in this form.
    pub const fn accept(self) -> &'static str {
        self.existing().as_str()
    }

    /// Largest body of this form.
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Json | Self::Protobuf => BODY_BYTES_MAX,
            Self::Yaml | Self::Apply => MANIFEST_BYTES_MAX,
        }
    }
}

/// A body and what was read of it.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) object: Value,
    pub(super) body: Vec<u8>,
}

/// Reads a body.
pub(super) fn read(subject: BodyKind, content: Content, body: Vec<u8>) -> Result<Read, String> {
    if body.len() > content.bytes_max() {
        return Err(format!(
            "it is larger than {} KiB",
            content.bytes_max() >> 10
        ));
    }
    let (object, body) = match content {
        Content::Json => (schema::read_json(&body, subject.schema())?, body),
        Content::Yaml | Content::Apply => {
            let text = std::str::from_utf8(&body).map_err(|error| error.to_string())?;
            let body = yaml::parse_manifest(text)?.to_string().into_bytes();
            (schema::read_json(&body, subject.schema())?, body)
        }
        Content::Protobuf => {
            let mut read = protobuf::read(&body, subject.schema())?;
            if let Some(object) = read.object.as_object_mut() {
                object.insert("kind".to_owned(), read.kind.into());
                object.insert("apiVersion".to_owned(), read.api_version.into());
            }
            (read.object, body)
        }
    };
    let kind = super::text(&object, "/kind");
    if !kind.is_empty() && kind != subject.kind() {
        return Err(format!(
            "the body is a {kind:?}, but the path is for {}",
            subject.kind()
        ));
    }
    Ok(Read { object, body })
}
