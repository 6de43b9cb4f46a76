//! Login and logout.

use serde::{Deserialize, Serialize};

/// All sessions: DELETE ends them.
pub const SESSIONS_PATH: &str = "/api/v1/sessions";
/// New tokens, by POST on the socket.
pub const TOKENS_PATH: &str = "/api/v1/tokens";
/// The password, by PUT on the socket.
pub const PASSWORD_PATH: &str = "/api/v1/password";

/// Session of the requester.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct SessionReport {
    /// `none`, `anonymous`, `viewer` or `operator`.
    pub role: String,
    /// True if a password logs in.
    pub has_password: bool,
    /// Time when the session ends: RFC 3339 in UTC; `null`: there is none.
    pub until: Option<String>,
    /// `loopback`, `network` or `socket`.
    pub via: String,
}

/// A login: by a token or by the password.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Login {
    pub token: Option<String>,
    pub password: Option<String>,
}

/// Number of ended sessions.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct SessionsEnded {
    /// Sessions that there were.
    pub ended: u64,
}

/// Request for a token.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoginTokenRequest {
    /// `viewer` or `operator`; the latter where nothing is said.
    pub role: Option<String>,
}

/// A new token. It is told once and logs in once.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct NewToken {
    pub token: String,
    /// The address that logs in with it; empty where the dashboard is on no port.
    pub url: String,
    /// SHA-256 of the certificate that is shown there; `null` where it is not encrypted.
    pub fingerprint: Option<String>,
    /// Role that it grants.
    pub role: String,
    /// Until when: RFC 3339 in UTC.
    pub until: String,
}

/// Request to set the password.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PasswordRequest {
    /// The new one; `null`: none any more.
    pub password: Option<String>,
    /// `viewer` or `operator`; the latter where nothing is said.
    pub role: Option<String>,
}

/// Presence of a password.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct PasswordReport {
    /// True if a password logs in.
    pub has_password: bool,
}
