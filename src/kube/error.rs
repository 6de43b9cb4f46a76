//! Errors of API calls: a closed list, because callers decide by kind.

use std::fmt;
use std::time::Duration;

use crate::core::time::in_words;
use crate::error::{Error as AgentError, Retry};
use crate::net;

/// Help for a cluster of this machine that is stopped or does not answer: commands.
pub const START_K3S: &str = "sudo systemctl start k3s; journalctl -u k3s -n 50 (with OpenRC: sudo rc-service k3s start; tail -n 50 /var/log/k3s.log)";

/// Reasons why a call failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Error {
    /// There is no usable kubeconfig; the text says why and how to mend it.
    Unconfigured(AgentError),
    /// No connection.
    Connection(net::Error),
    /// No head of an answer in time.
    NoAnswer {
        /// Method and path, without the query.
        call: String,
        /// The time it had.
        limit: Duration,
    },
    /// The connection broke before the answer was complete.
    Broken {
        /// Method and path.
        call: String,
        /// Reason from HTTP.
        why: String,
    },
    /// The API answered with an error.
    Refused {
        /// Method and path.
        call: String,
        /// The HTTP status.
        status: u16,
        /// The machine-readable reason of a `Status` object: `NotFound`, `Expired`,
        /// `AlreadyExists`.
        reason: String,
        /// Its text for people, shortened.
        message: String,
    },
    /// The answer is larger than the call may hold in memory.
    TooLarge {
        /// Method and path.
        call: String,
        /// The most that it may hold.
        bytes_max: usize,
    },
    /// The answer is not what was asked for.
    Undecodable {
        /// Method and path.
        call: String,
        /// Message of the parser.
        why: String,
    },
    /// The request cannot be sent: a header, a path or a name that HTTP or Kubernetes does not
    /// allow.
    BadRequest(String),
    /// A service cannot be reached, for a reason that Kubernetes knows.
    Service {
        /// `namespace/name:port`.
        service: String,
        /// Reason.
        why: String,
        /// Action for a person.
        fix: String,
    },
}

impl Error {
    /// Returns whether the API says that the thing does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Returns whether the API says that we may not.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { status: 403, .. })
    }

    /// Returns whether the API says that it is there already, or that it has changed in between.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status: 409, .. })
    }

    /// Returns whether the API says that the resource version is too old (410): list again.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { status: 410, .. })
    }

    /// Returns whether nothing came from the API server: no connection, no answer, or half of one.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::Connection(_) | Self::NoAnswer { .. } | Self::Broken { .. } => true,
            Self::Unconfigured(_)
            | Self::Refused { .. }
            | Self::TooLarge { .. }
            | Self::Undecodable { .. }
            | Self::BadRequest(_)
            | Self::Service { .. } => false,
        }
    }

    /// Returns whether the time was over.
    pub fn is_deadline(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => true,
            Self::Connection(error) => matches!(error.kind, net::ErrorKind::Deadline(_)),
            Self::Unconfigured(_)
            | Self::Broken { .. }
            | Self::Refused { .. }
            | Self::TooLarge { .. }
            | Self::Undecodable { .. }
            | Self::BadRequest(_)
            | Self::Service { .. } => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unconfigured(error) => f.write_str(&error.sentence()),
            Self::Connection(error) => write!(f, "no connection to the Kubernetes API: {error}"),
            Self::NoAnswer { call, limit } => {
                write!(
                    f,
                    "{call}: no answer of the Kubernetes API in {}",
                    in_words(*limit)
                )
            }
            Self::Broken { call, why } => write!(f, "{call}: the connection broke: {why}"),
            Self::Refused {
                call,
                status,
                reason,
                message,
            } => {
                write!(f, "{call}: {status} {reason}")?;
                if message.is_empty() {
                    Ok(())
                } else {
                    write!(f, ": {message}")
                }
            }
            Self::TooLarge { call, bytes_max } => {
                write!(f, "{call}: the answer is larger than {bytes_max} bytes")
            }
            Self::Undecodable { call, why } => {
                write!(f, "{call}: the answer is not what was asked for: {why}")
            }
            Self::BadRequest(why) => f.write_str(why),
            Self::Service { service, why, .. } => write!(f, "service {service}: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<net::Error> for Error {
    fn from(error: net::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<&Error> for AgentError {
    fn from(error: &Error) -> Self {
        let converted = Self::new(error.to_string());
        match error {
            Error::Unconfigured(inner) => inner.clone(),
            Error::Connection(net) => {
                let mut converted = converted.retry(net.retry());
                converted.fix = if is_stopped_here(net) {
                    Some(START_K3S.to_owned())
                } else {
                    net.fix()
                };
                converted
            }
            Error::NoAnswer { .. } => converted
                .retry(Retry::Later)
                .fix("journalctl -u k3s -n 50 (with OpenRC: tail -n 50 /var/log/k3s.log); often the disk is too slow for the datastore"),
            Error::Broken { .. } => converted.retry(Retry::Soon),
            Error::Refused { status: 401, .. } => converted.retry(Retry::Later).fix(
                "the kubeconfig's certificate or token is no longer valid: restart k3s, or provide a new kubeconfig",
            ),
            Error::Refused { status: 403, .. } => converted
                .retry(Retry::Later)
                .fix("give the kubeconfig's user the rights: kubectl auth can-i --list"),
            Error::Refused { status, .. } if *status >= 500 || *status == 429 => {
                converted.retry(Retry::Soon)
            }
            Error::Refused { .. }
            | Error::TooLarge { .. }
            | Error::Undecodable { .. }
            | Error::BadRequest(_) => converted,
            Error::Service { fix, .. } => converted.retry(Retry::Later).fix(fix.clone()),
        }
    }
}

/// Returns whether nobody listens at an API server of this machine.
fn is_stopped_here(error: &net::Error) -> bool {
    let host = error.target.rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_matches(['[', ']']);
    let is_loopback = host
        .parse()
        .map_or(host == "localhost", |ip: std::net::IpAddr| ip.is_loopback());
    is_loopback && error.kind == net::ErrorKind::ConnectionRefused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_of_this_machine_that_is_stopped_has_a_command_as_its_fix() {
        let fix = |target: &str| {
            let refused =
                net::Error::new(net::Phase::Tcp, net::ErrorKind::ConnectionRefused, target);
            AgentError::from(&Error::from(refused)).fix.unwrap()
        };
        for target in ["127.0.0.1:6443", "[::1]:6443", "localhost:6443"] {
            assert!(
                fix(target).starts_with("sudo systemctl start k3s; journalctl -u k3s -n 50"),
                "{target}"
            );
        }
        let elsewhere = fix("192.0.2.7:6443");
        assert!(
            elsewhere.contains("nothing listens on 192.0.2.7:6443"),
            "{elsewhere}"
        );
    }
}
