//! Errors of connections: a closed list of kinds, each with the phase it happened in, and the
//! sentence and fix for people.

use std::fmt;
use std::io;
use std::time::Duration;

use rustls::CertificateError;

use crate::core::time::{Wall, in_words};
use crate::error::Retry;

/// Phase of a connection. Ordered: a later phase proves that the earlier ones work.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Phase {
    /// Our own settings: an address, a certificate or a key that cannot be used. Nothing was sent.
    Settings,
    /// Turning the name into addresses.
    Dns,
    /// The TCP connection, to the target or to the proxy.
    Tcp,
    /// The proxy's answer to our CONNECT.
    Proxy,
    /// The TLS handshake.
    Tls,
}

/// Kind of an error.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ErrorKind {
    /// A setting cannot be used; the text says which and why.
    Unusable(String),
    /// The phase was not over when the time was.
    Deadline(Duration),
    /// The resolver's answer, in its words.
    UnknownHost(String),
    /// Nothing listens there.
    ConnectionRefused,
    /// No way to that network, or to that host.
    Unreachable(String),
    /// The connection broke.
    Broken(String),
    /// The proxy answered our CONNECT with something but 2xx.
    ProxyRefused {
        /// The proxy's status.
        status: u16,
        /// The rest of its status line.
        reason: String,
    },
    /// The proxy's bytes are not an answer to CONNECT.
    ProxyGarbage(String),
    /// The certificate begins to be valid after the time that we believe it is.
    CertificateNotYetValid {
        /// The time that was believed.
        now: Wall,
        /// The certificate's first moment.
        not_before: Wall,
    },
    /// The certificate ended before the time that we believe it is.
    CertificateExpired {
        /// The time that was believed.
        now: Wall,
        /// The certificate's last moment.
        not_after: Wall,
    },
    /// The certificate is not signed by a trusted CA.
    UnknownIssuer,
    /// The certificate is for other names.
    WrongName(String),
    /// Another reason not to believe the certificate.
    BadCertificate(String),
    /// The peer does not take our certificate, or wants one that we do not have.
    ClientCertificateRefused(String),
    /// The peer does not speak TLS on that port.
    NotTls,
    /// Another failure of TLS.
    Tls(String),
}

/// Reason why there is no connection to `target`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Error {
    /// Phase that it had reached.
    pub phase: Phase,
    pub kind: ErrorKind,
    /// `host:port` of what was tried, or the setting's name.
    pub target: String,
}

impl Error {
    /// An error from its three parts.
    pub fn new(phase: Phase, kind: ErrorKind, target: impl Into<String>) -> Self {
        Self {
            phase,
            kind,
            target: target.into(),
        }
    }

    /// A setting that cannot be used.
    pub fn unusable(setting: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(Phase::Settings, ErrorKind::Unusable(why.into()), setting)
    }

    /// Reads an I/O error of `phase`, and the TLS error inside where there is one.
    pub fn from_io(phase: Phase, error: &io::Error, target: impl Into<String>) -> Self {
        let inside = error
            .get_ref()
            .and_then(|inside| inside.downcast_ref::<rustls::Error>());
        let kind = match inside {
            Some(tls) => tls_kind(tls),
            None => io_kind(phase, error),
        };
        Self::new(phase, kind, target)
    }

    /// Action for a person.
    pub fn fix(&self) -> Option<String> {
        let fix = match &self.kind {
            ErrorKind::Unusable(_) => return None,
            ErrorKind::Deadline(_) => match self.phase {
                Phase::Settings => return None,
                Phase::Dns => "check the name servers in /etc/resolv.conf".to_owned(),
                Phase::Tcp => format!(
                    "a firewall may drop the packets: allow outgoing TCP to {}, or set https_proxy",
                    self.target
                ),
                Phase::Proxy => "the proxy is silent: check its log, or no_proxy".to_owned(),
                Phase::Tls => "something on the path may block TLS: check proxies and the MTU".to_owned(),
            },
            ErrorKind::UnknownHost(_) => "check the name, and the name servers in /etc/resolv.conf".to_owned(),
            ErrorKind::ConnectionRefused => format!("nothing listens on {}: check address and port, and that the service runs", self.target),
            ErrorKind::Unreachable(_) => "check the cable or Wi-Fi, the address and the default route (ip route)".to_owned(),
            ErrorKind::Broken(_) => return None,
            ErrorKind::ProxyRefused { status: 407, .. } => {
                "configure the proxy's user and password: https_proxy=http://user:password@host:port".to_owned()
            }
            ErrorKind::ProxyRefused { .. } => format!("allow CONNECT to {} on the proxy, or add the host to no_proxy", self.target),
            ErrorKind::ProxyGarbage(_) => "https_proxy must be an HTTP proxy: check its scheme and port".to_owned(),
            ErrorKind::CertificateNotYetValid { not_before, .. } => format!(
                "set this machine's clock (timedatectl set-ntp true): it is behind {}, or the certificate was created on a machine whose clock is ahead",
                not_before.rfc3339()
            ),
            ErrorKind::CertificateExpired { not_after, .. } if *not_after < super::tls::build_date() => {
                "renew the certificate of the server: it expired before this program was built, so this machine's clock is not the cause".to_owned()
            }
            ErrorKind::CertificateExpired { .. } => {
                "renew the certificate of the server; if it is good, this machine's clock is ahead (date -u)".to_owned()
            }
            ErrorKind::UnknownIssuer => "set tls.ca_file to the CA that signed it; a TLS-inspecting proxy has a CA of its own".to_owned(),
            ErrorKind::WrongName(_) => "use a name that the certificate contains, or renew it with this name".to_owned(),
            ErrorKind::BadCertificate(why) if why == OF_A_CA => {
                "create a certificate for the server that is none of a CA (openssl req -x509 -addext basicConstraints=critical,CA:FALSE …), or one that its CA signs".to_owned()
            }
            ErrorKind::BadCertificate(_) => "renew the certificate of the server".to_owned(),
            ErrorKind::ClientCertificateRefused(_) => "renew the client certificate; a CA that the server trusts must sign it".to_owned(),
            ErrorKind::NotTls => "the server does not use TLS there: check scheme and port".to_owned(),
            ErrorKind::Tls(_) => return None,
        };
        Some(fix)
    }

    /// Returns whether trying again can help.
    pub fn retry(&self) -> Retry {
        match self.kind {
            ErrorKind::Unusable(_) => Retry::Never,
            ErrorKind::Broken(_) => Retry::Soon,
            ErrorKind::Deadline(_)
            | ErrorKind::UnknownHost(_)
            | ErrorKind::ConnectionRefused
            | ErrorKind::Unreachable(_)
            | ErrorKind::ProxyRefused { .. }
            | ErrorKind::ProxyGarbage(_)
            | ErrorKind::CertificateNotYetValid { .. }
            | ErrorKind::CertificateExpired { .. }
            | ErrorKind::UnknownIssuer
            | ErrorKind::WrongName(_)
            | ErrorKind::BadCertificate(_)
            | ErrorKind::ClientCertificateRefused(_)
            | ErrorKind::NotTls
            | ErrorKind::Tls(_) => Retry::Later,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = &self.target;
        match &self.kind {
            ErrorKind::Unusable(why) => write!(f, "cannot use {target}: {why}"),
            ErrorKind::Deadline(limit) => {
                let limit = in_words(*limit);
                match self.phase {
                    Phase::Settings => write!(f, "{target} was not ready in {limit}"),
                    Phase::Dns => write!(f, "the name lookup of {target} timed out after {limit}"),
                    Phase::Tcp => write!(f, "connecting to {target} timed out after {limit}"),
                    Phase::Proxy => write!(f, "the proxy did not answer within {limit} ({target})"),
                    Phase::Tls => {
                        write!(f, "the TLS handshake with {target} timed out after {limit}")
                    }
                }
            }
            ErrorKind::UnknownHost(why) => write!(f, "cannot resolve {target}: {why}"),
            ErrorKind::ConnectionRefused => {
                write!(f, "cannot connect to {target}: connection refused")
            }
            ErrorKind::Unreachable(why) => write!(f, "cannot reach {target}: {why}"),
            ErrorKind::Broken(why) => write!(f, "lost the connection to {target}: {why}"),
            ErrorKind::ProxyRefused { status, reason } => {
                write!(
                    f,
                    "the proxy refused CONNECT to {target}: {status} {reason}"
                )
            }
            ErrorKind::ProxyGarbage(why) => {
                write!(
                    f,
                    "the proxy for {target} did not answer like a proxy: {why}"
                )
            }
            ErrorKind::CertificateNotYetValid { now, not_before } => write!(
                f,
                "the certificate of {target} is not valid before {}; the time here is {}",
                not_before.rfc3339(),
                now.rfc3339()
            ),
            ErrorKind::CertificateExpired { now, not_after } => write!(
                f,
                "the certificate of {target} expired at {}; the time here is {}",
                not_after.rfc3339(),
                now.rfc3339()
            ),
            ErrorKind::UnknownIssuer => {
                write!(
                    f,
                    "the certificate of {target} is not signed by a trusted CA"
                )
            }
            ErrorKind::WrongName(why) => {
                write!(f, "the certificate of {target} is for another name: {why}")
            }
            ErrorKind::BadCertificate(why) => {
                write!(f, "the certificate of {target} is invalid: {why}")
            }
            ErrorKind::ClientCertificateRefused(why) => {
                write!(f, "{target} rejected the client certificate: {why}")
            }
            ErrorKind::NotTls => write!(f, "{target} does not use TLS"),
            ErrorKind::Tls(why) => write!(f, "TLS with {target} failed: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<&Error> for crate::error::Error {
    fn from(error: &Error) -> Self {
        let mut converted = Self::new(error.to_string()).retry(error.retry());
        converted.fix = error.fix();
        converted
    }
}

fn io_kind(phase: Phase, error: &io::Error) -> ErrorKind {
    use io::ErrorKind as Io;
    let text = error.to_string();
    let unreachable = [
        Io::HostUnreachable,
        Io::NetworkUnreachable,
        Io::NetworkDown,
        Io::AddrNotAvailable,
        Io::TimedOut,
    ];
    if error.kind() == Io::ConnectionRefused {
        ErrorKind::ConnectionRefused
    } else if unreachable.contains(&error.kind()) {
        ErrorKind::Unreachable(text)
    } else if error.kind() == Io::UnexpectedEof && phase == Phase::Tls {
        ErrorKind::Broken("the peer closed it in the middle of the handshake".to_owned())
    } else {
        ErrorKind::Broken(text)
    }
}

fn tls_kind(error: &rustls::Error) -> ErrorKind {
    if let rustls::Error::InvalidCertificate(why) = error {
        return certificate_kind(why);
    }
    if let rustls::Error::AlertReceived(alert) = error {
        use rustls::AlertDescription as Alert;
        let refused = [
            Alert::BadCertificate,
            Alert::UnsupportedCertificate,
            Alert::CertificateRevoked,
            Alert::CertificateExpired,
            Alert::CertificateUnknown,
            Alert::UnknownCA,
            Alert::AccessDenied,
            Alert::CertificateRequired,
        ];
        if refused.contains(alert) {
            return ErrorKind::ClientCertificateRefused(format!("{alert:?}"));
        }
    }
    if matches!(error, rustls::Error::InvalidMessage(_)) {
        return ErrorKind::NotTls;
    }
    ErrorKind::Tls(error.to_string())
}

/// Fault of a server's certificate that `openssl req -x509` made.
const OF_A_CA: &str = "it is the certificate of a CA, which no server may use";

fn certificate_kind(why: &CertificateError) -> ErrorKind {
    let wall = |time: &rustls::pki_types::UnixTime| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Wall::from_millis(seconds.saturating_mul(1000))
    };
    if let CertificateError::ExpiredContext { time, not_after } = why {
        return ErrorKind::CertificateExpired {
            now: wall(time),
            not_after: wall(not_after),
        };
    }
    if let CertificateError::NotValidYetContext { time, not_before } = why {
        return ErrorKind::CertificateNotYetValid {
            now: wall(time),
            not_before: wall(not_before),
        };
    }
    // A new CA of the same name as a trusted one.
    if matches!(
        why,
        CertificateError::UnknownIssuer | CertificateError::BadSignature
    ) {
        return ErrorKind::UnknownIssuer;
    }
    let text = why.to_string();
    // Known to rustls by its text only.
    if text.contains("CaUsedAsEndEntity") {
        return ErrorKind::BadCertificate(OF_A_CA.to_owned());
    }
    if matches!(
        why,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
    ) {
        return ErrorKind::WrongName(text);
    }
    ErrorKind::BadCertificate(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        pki_types::UnixTime,
    };

    fn of(why: CertificateError) -> Error {
        let tls = rustls::Error::InvalidCertificate(why);
        let io = io::Error::new(io::ErrorKind::InvalidData, tls);
        Error::from_io(Phase::Tls, &io, "cp.example:443")
    }

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn a_certificate_from_the_future_points_at_the_clock() {
        let error = of(CertificateError::NotValidYetContext {
            time: at(0),
            not_before: at(86_400),
        });
        assert_eq!(
            error.to_string(),
            "the certificate of cp.example:443 is not valid before 1970-01-02T00:00:00.000Z; the time here is 1970-01-01T00:00:00.000Z"
        );
        assert!(error.fix().is_some_and(|fix| fix.contains("clock")));
    }

    #[test]
    fn a_certificate_that_ended_before_the_build_is_not_the_clocks_fault() {
        let ended_long_ago = of(CertificateError::ExpiredContext {
            time: at(1_000_000_000),
            not_after: at(900_000_000),
        });
        assert!(
            ended_long_ago
                .fix()
                .is_some_and(|fix| fix.contains("not the cause"))
        );
        let ended_ahead = of(CertificateError::ExpiredContext {
            time: at(9_000_000_001),
            not_after: at(9_000_000_000),
        });
        assert!(ended_ahead.fix().is_some_and(|fix| fix.contains("ahead")));
    }

    #[test]
    fn a_certificate_of_a_ca_is_told_as_one() {
        let mut made = rcgen::CertificateParams::new(["cp.example".to_owned()]).unwrap();
        made.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let made = made
            .self_signed(&rcgen::KeyPair::generate().unwrap())
            .unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.der().clone()).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots.into(), provider.into()).build();
        let name = "cp.example".try_into().unwrap();
        let refused =
            verifier
                .unwrap()
                .verify_server_cert(made.der(), &[], &name, &[], at(1_700_000_000));
        let Err(rustls::Error::InvalidCertificate(why)) = refused else {
            panic!("{refused:?}");
        };
        let error = of(why);
        assert_eq!(
            error.to_string(),
            "the certificate of cp.example:443 is invalid: it is the certificate of a CA, which no server may use"
        );
        assert!(error.fix().is_some_and(|fix| fix.contains("CA:FALSE")));
    }

    #[test]
    fn each_phase_has_its_own_sentence_for_a_deadline() {
        let mut seen = Vec::new();
        for phase in [Phase::Dns, Phase::Tcp, Phase::Proxy, Phase::Tls] {
            let error = Error::new(phase, ErrorKind::Deadline(Duration::from_secs(10)), "a:1");
            assert!(error.fix().is_some(), "{phase:?}");
            seen.push(error.to_string());
        }
        seen.dedup();
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn only_a_setting_is_not_worth_another_try() {
        assert_eq!(
            Error::unusable("tls.ca_file", "empty").retry(),
            Retry::Never
        );
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = Error::from_io(Phase::Tcp, &refused, "a:1");
        assert_eq!(
            (error.kind.clone(), error.retry()),
            (ErrorKind::ConnectionRefused, Retry::Later)
        );
    }
}
