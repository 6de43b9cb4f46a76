//! TLS as a server: certificate and key of the dashboard.

use std::{fmt, io, sync::Arc};

use futures_rustls::TlsAcceptor;
use ring::digest::{SHA256, digest};
use rustls::{
    ServerConfig,
    client::verify_server_name,
    crypto::ring as provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::{ParsedCertificate, ServerSessionMemoryCache},
};
use smol::io::{AsyncRead, AsyncWrite};

use super::Error;

/// Sessions that are remembered, so that a browser's next connection is cheap. Each takes about 1
/// KB.
const SESSIONS_MAX: usize = 32;

/// A certificate with its key, ready to be shown. Cheap to clone.
#[derive(Clone)]
pub struct Served {
    acceptor: TlsAcceptor,
    certificate: CertificateDer<'static>,
    fingerprint: Arc<str>,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Served({})", self.fingerprint)
    }
}

impl Served {
    /// From PEM: the certificate with those between it and its authority, and its key. One text may
    /// have both.
    ///
    /// # Errors
    /// A certificate or key that cannot be used, or that do not belong together.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, Error> {
        let unusable = |why: String| Error::unusable("the certificate", why);
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| unusable(error.to_string()))?;
        let Some(first) = chain.first().cloned() else {
            return Err(unusable("there is none in its file".to_owned()));
        };
        let fingerprint: Vec<_> = digest(&SHA256, &first)
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| Error::unusable("the key", error.to_string()))?;
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
                .with_protocol_versions(rustls::ALL_VERSIONS)
                .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
                .map_err(|error| {
                    if matches!(error, rustls::Error::InconsistentKeys(_)) {
                        return unusable("it does not match the certificate".to_owned());
                    }
                    unusable(error.to_string())
                })?;
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS_MAX);
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            certificate: first,
            fingerprint: fingerprint.join(":").into(),
        })
    }

    /// SHA-256 of the certificate, as browsers and `openssl x509 -fingerprint -sha256` show it:
    /// `AB:CD:…`.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The certificate itself, in DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns whether the certificate is for this name or address.
    pub fn is_for(&self, name: &str) -> bool {
        let Ok(name) = ServerName::try_from(name) else {
            return false;
        };
        ParsedCertificate::try_from(&self.certificate)
            .is_ok_and(|parsed| verify_server_name(&parsed, &name).is_ok())
    }

    /// TLS handshake with a client. The caller holds the deadline.
    ///
    /// # Errors
    /// The client violates the protocol.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + use<S>> {
        self.acceptor.accept(stream).await
    }
}
