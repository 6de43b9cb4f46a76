//! TLS as a client: trusted CAs, the client certificate, and the time to check certificates
//! against.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_rustls::TlsConnector;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::target::Target;
use super::{Error, ErrorKind, Phase, Stream};
use crate::core::time::Wall;

/// Sessions kept for resumption by one configuration. Each talks to one host, seldom to a second
/// one; a session takes about 1 KB.
const SESSIONS_MAX: usize = 8;

/// A file of certificates or a key is a few KB; the largest bundle of a distribution is 250 KB.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Returns when this program was built, or `SOURCE_DATE_EPOCH` (see build.rs). The true time is
/// later.
pub fn build_date() -> Wall {
    let seconds: i64 = env!("BUILD_EPOCH_S").parse().unwrap_or(0);
    Wall::from_millis(seconds.saturating_mul(1000))
}

/// The clock that certificates are checked with: the latest of the wall clock, the build date and
/// the first moment of the certificates that were verified before. A handshake proves no more than
/// that moment. A board without a battery wakes up in 1970, and without this it could not link, so
/// nobody could set its clock either.
#[derive(Clone, Copy)]
pub struct Clock {
    wall: fn() -> Wall,
    floor: Wall,
}

impl Clock {
    /// A clock over `wall` (the reader of host::clock) that never shows less than the build date or
    /// `recorded`, the time in the record on disk.
    pub fn new(wall: fn() -> Wall, recorded: Wall) -> Self {
        Self {
            wall,
            floor: build_date().max(recorded),
        }
    }

    /// The time that is believed now.
    pub fn now(&self) -> Wall {
        (self.wall)().max(self.floor)
    }

    /// A time that has certainly been.
    pub const fn floor(&self) -> Wall {
        self.floor
    }

    /// Returns whether the wall clock shows a time before one that has certainly been: it has not
    /// been set since boot.
    pub fn is_behind(&self) -> bool {
        !self.believes((self.wall)())
    }

    /// Returns whether a wall clock that shows this may have been set.
    pub fn believes(&self, wall: Wall) -> bool {
        wall >= self.floor
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock(not before {})", self.floor.rfc3339())
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let millis = u64::try_from(self.now().millis()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(millis)))
    }
}

/// Trusted certificate authorities, besides those of [`Settings::extra_ca_pem`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Roots {
    /// Mozilla's list, built in.
    #[default]
    BuiltIn,
    /// The distribution's list: 380 KB resident, but it follows the machine's owner.
    System,
    /// None: only the extra ones. For a cluster with its own CA.
    ExtraOnly,
}

/// Verification of the server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Verification {
    /// Chain, name and time are checked.
    #[default]
    Full,
    /// No verification: no CA that we know certifies services inside a cluster.
    Opportunistic,
}

/// Client certificate with its key, both PEM.
#[derive(Clone)]
pub struct ClientIdentity {
    /// The certificate, and the chain after it.
    pub certificate_pem: Vec<u8>,
    /// The key: PKCS#8, SEC1 or PKCS#1.
    pub key_pem: Vec<u8>,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientIdentity(..)")
    }
}

/// TLS settings for one peer.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Trusted authorities.
    pub roots: Roots,
    /// More authorities, PEM.
    pub extra_ca_pem: Option<Vec<u8>>,
    /// Client certificate, if the server asks for one.
    pub client: Option<ClientIdentity>,
    /// Verification of the server.
    pub verification: Verification,
    /// The name that the certificate must carry, where it is not the host's.
    pub server_name: Option<String>,
    /// Protocols offered above TLS (ALPN).
    pub application_protocols: Vec<Vec<u8>>,
}

/// TLS ready to connect. Cheap to clone; clones share the cache of sessions.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Builds TLS from its settings. With [`Roots::System`] this reads files: call it in the
    /// blocking pool.
    ///
    /// # Errors
    /// A certificate, key or name that cannot be used; the error names it.
    pub fn new(settings: &Settings, clock: Clock) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_details(Arc::clone(&provider), Arc::new(clock))
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .map_err(|error| Error::unusable("tls", error.to_string()))?;
        let builder = match settings.verification {
            Verification::Full => builder.with_root_certificates(authorities(settings)?),
            Verification::Opportunistic => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptsAnyCertificate(provider))),
        };
        let mut config = match &settings.client {
            None => builder.with_no_client_auth(),
            Some(client) => {
                let (chain, key) = client_identity(client)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| Error::unusable("the client certificate", error.to_string()))?
            }
        };
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        config
            .alpn_protocols
            .clone_from(&settings.application_protocols);
        let server_name = match &settings.server_name {
            None => None,
            Some(name) => Some(server_name(name)?),
        };
        Ok(Self {
            config: Arc::new(config),
            server_name,
        })
    }

    /// The handshake with `target` over a connected stream. The caller holds the deadline.
    ///
    /// # Errors
    /// In phase [`Phase::Tls`], with the reason why the certificate is not believed.
    pub async fn connect(&self, stream: Stream, target: &Target) -> Result<Stream, Error> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => server_name(&target.host)?,
        };
        let connector = TlsConnector::from(Arc::clone(&self.config));
        match connector.connect(name, stream).await {
            Ok(tls) => Ok(Stream::Tls(Box::new(tls))),
            Err(error) => Err(Error::from_io(Phase::Tls, &error, target.authority())),
        }
    }
}

/// Reads a file of certificates or a key. Blocking: call it in the pool.
///
/// # Errors
/// The path and why it cannot be read; more than 1 MiB is not a file of certificates.
pub fn read_pem(path: &Path) -> Result<Vec<u8>, Error> {
    use std::io::Read;
    let shown = path.display().to_string();
    let unreadable = |error: std::io::Error| Error::unusable(&shown, error.to_string());
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let read = file
        .take(PEM_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > PEM_BYTES_MAX {
        return Err(Error::unusable(&shown, "larger than 1 MiB"));
    }
    Ok(bytes)
}

fn server_name(host: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(host.to_owned()).map_err(|error| {
        Error::unusable(
            format!("{host:?} as the name of a TLS server"),
            error.to_string(),
        )
    })
}

fn authorities(settings: &Settings) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    match settings.roots {
        Roots::BuiltIn => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Roots::System => {
            let found = rustls_native_certs::load_native_certs();
            let (added, _ignored) = store.add_parsable_certificates(found.certs);
            if added == 0 && settings.extra_ca_pem.is_none() {
                let why = found.errors.first().map_or_else(
                    || "no certificate found; install ca-certificates, or set tls.roots = \"built-in\"".to_owned(),
                    ToString::to_string,
                );
                return Err(Error::unusable("the system's certificate authorities", why));
            }
        }
        Roots::ExtraOnly => {}
    }
    if let Some(pem) = &settings.extra_ca_pem {
        let mut added = 0_usize;
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate =
                certificate.map_err(|error| Error::unusable("the CA file", error.to_string()))?;
            store
                .add(certificate)
                .map_err(|error| Error::unusable("the CA file", error.to_string()))?;
            added += 1;
        }
        if added == 0 {
            return Err(Error::unusable("the CA file", "it contains no certificate"));
        }
    }
    Ok(store)
}

type Chain = Vec<CertificateDer<'static>>;

fn client_identity(client: &ClientIdentity) -> Result<(Chain, PrivateKeyDer<'static>), Error> {
    let bad = |why: String| Error::unusable("the client certificate", why);
    let chain = CertificateDer::pem_slice_iter(&client.certificate_pem)
        .collect::<Result<Chain, _>>()
        .map_err(|error| bad(error.to_string()))?;
    if chain.is_empty() {
        return Err(bad("it contains no certificate".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&client.key_pem)
        .map_err(|error| Error::unusable("the client key", error.to_string()))?;
    Ok((chain, key))
}

/// Checks that the server holds the key of the certificate it shows, and nothing else.
#[derive(Debug)]
struct AcceptsAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptsAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The kinds of [`Error`] that a new certificate, CA or key on disk could mend.
pub fn is_about_certificates(error: &Error) -> bool {
    error.phase == Phase::Tls
        && !matches!(
            error.kind,
            ErrorKind::Deadline(_) | ErrorKind::Broken(_) | ErrorKind::NotTls
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_1970() -> Wall {
        Wall::from_millis(5_000)
    }

    fn in_2100() -> Wall {
        Wall::from_millis(4_102_444_800_000)
    }

    #[test]
    fn a_board_in_1970_believes_the_build_date() {
        let clock = Clock::new(in_1970, Wall::from_millis(0));
        assert_eq!(clock.now(), build_date());
        assert!(clock.is_behind());
        // 2025-01-01: this code did not exist before.
        assert!(build_date() > Wall::from_millis(1_735_689_600_000));
    }

    #[test]
    fn the_last_believed_time_is_a_floor_and_the_wall_clock_wins_above_it() {
        let believed = Wall::from_millis(in_2100().millis() - 1);
        assert_eq!(Clock::new(in_1970, believed).now(), believed);
        let set = Clock::new(in_2100, believed);
        assert_eq!(set.now(), in_2100());
        assert!(!set.is_behind());
    }

    #[test]
    fn a_ca_file_without_a_certificate_is_refused() {
        let settings = Settings {
            roots: Roots::ExtraOnly,
            extra_ca_pem: Some(b"not a certificate".to_vec()),
            ..Settings::default()
        };
        let error = Tls::new(&settings, Clock::new(in_2100, in_1970())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot use the CA file: it contains no certificate"
        );
    }

    #[test]
    fn a_key_never_shows_in_debug_output() {
        let client = ClientIdentity {
            certificate_pem: b"cert".to_vec(),
            key_pem: b"secret".to_vec(),
        };
        let settings = Settings {
            client: Some(client),
            ..Settings::default()
        };
        assert!(!format!("{settings:?}").contains(&format!("{:?}", b"secret")));
    }
}
