//! Hosts of Git repositories that the owner lists for the control plane.

use std::{fmt, net::Ipv6Addr};

use super::repository::{Cause, Failure, Repository};
use crate::core::url::Authority;

/// Host with its port, in one form for each: lower case, an IPv6 address as short as it can be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GitHost {
    name: String,
    /// `None`: the usual one of https or ssh.
    port: Option<u16>,
}

impl GitHost {
    /// Reads `host`, `host:port` or `[address]:port`; `None`: it is none of these.
    pub fn parse(text: &str) -> Option<Self> {
        let authority = Authority::parse(text).ok()?;
        let name = if authority.is_bracketed {
            let address: Ipv6Addr = authority.host.parse().ok()?;
            format!("[{address}]")
        } else {
            is_name(authority.host).then(|| authority.host.to_ascii_lowercase())?
        };
        let port = authority.port().ok()?;
        Some(Self { name, port })
    }

    /// Name of the file with the credentials for it.
    pub fn file_name(&self) -> String {
        self.to_string().replace(['[', ']'], "").replace(':', "_")
    }

    fn is(&self, other: &Self, usual: u16) -> bool {
        let port = |host: &Self| host.port.unwrap_or(usual);
        self.name == other.name && port(self) == port(other)
    }
}

impl fmt::Display for GitHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Letters, digits, dashes and dots, and no empty part: neither a wildcard nor a name that ends
/// with a dot.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_part =
        |part: &str| !part.is_empty() && !part.starts_with('-') && part.bytes().all(is_letter);
    name.len() <= 253 && name.split('.').all(is_part)
}

impl Repository {
    /// Host of its address; without a port where that is the usual one.
    pub fn git_host(&self) -> Option<GitHost> {
        let mut host = GitHost::parse(self.host())?;
        host.port = host.port.filter(|port| *port != self.usual_port());
        Some(host)
    }

    fn usual_port(&self) -> u16 {
        if self.is_ssh() { 22 } else { 443 }
    }

    /// Judges whether the control plane may deploy from it: its host has to be one of those that
    /// the owner lists.
    ///
    /// # Errors
    /// Not allowed; the line that would allow it.
    pub fn is_listed(&self, hosts: &[GitHost]) -> Result<(), Failure> {
        let Some(host) = self.git_host() else {
            let why = format!(
                "its address names the host in a way that cannot be compared: {}",
                self.host()
            );
            let fix = "write it like git.example or git.example:8443";
            return Err(self.failure(Cause::Host, &why, Some(fix)));
        };
        if hosts
            .iter()
            .any(|listed| listed.is(&host, self.usual_port()))
        {
            return Ok(());
        }
        let why = format!("the owner of this machine does not list {host} in apps.git_hosts");
        let lines = hosts.iter().chain([&host]).map(GitHost::to_string);
        let lines: Vec<_> = lines.collect();
        let fix = format!(
            "if what is there may be deployed, set git_hosts = {:?} in [apps] of /etc/pipeops-agent/config.toml and restart the agent",
            lines.join(", ")
        );
        Err(self.failure(Cause::Host, &why, Some(&fix)))
    }
}

impl Failure {
    /// The failure, with the file in which its credentials are looked for where some are asked for.
    #[must_use]
    pub fn with_credentials_in(mut self, file: &str) -> Self {
        if matches!(self.cause, Cause::Access | Cause::Missing) {
            self.error = self.error.fix(format!(
                "check the address, and put credentials with read access into {file} (docs/apps.md, From the control plane)"
            ));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Option<String> {
        GitHost::parse(text).map(|host| host.to_string())
    }

    fn repository(url: &str) -> Repository {
        let written = Repository {
            url: url.to_owned(),
            ..Repository::default()
        };
        written.checked().unwrap()
    }

    #[test]
    fn a_host_has_one_form() {
        for (text, read) in [
            ("git.example", "git.example"),
            ("GIT.Example:8443", "git.example:8443"),
            ("10.0.0.1:22", "10.0.0.1:22"),
            ("[2001:DB8::0:1]", "[2001:db8::1]"),
            ("[::1]:2222", "[::1]:2222"),
        ] {
            assert_eq!(host(text).as_deref(), Some(read));
        }
        for text in [
            "",
            "*",
            "*.example",
            ".example",
            "git.example.",
            "a..b",
            "-a",
            "a:",
            "a:0",
            "a:+1",
            "a:65536",
            "a:1:2",
            "::1",
            "[::1",
            "[::1]2",
            "[::1]:",
            "[a]",
            "a b",
            "a/b",
            "u@a",
            "https://a",
        ] {
            assert_eq!(host(text), None, "{text}");
        }
        assert_eq!(
            GitHost::parse("[::1]:2222").unwrap().file_name(),
            "__1_2222"
        );
    }

    #[test]
    fn only_listed_hosts_pass_with_their_port_and_no_others_like_them() {
        let listed = ["git.example", "other.example:8443", "[::1]:2222"];
        let listed = listed.map(|text| GitHost::parse(text).unwrap());
        for url in [
            "https://git.example/a",
            "https://GIT.example:443/a",
            "ssh://git@git.example/a",
            "git@git.example:a",
            "ssh://git@git.example:22/a",
            "https://other.example:8443/a",
            "ssh://[0:0::1]:2222/a",
        ] {
            assert!(repository(url).is_listed(&listed).is_ok(), "{url}");
        }
        for url in [
            "https://git.example:8443/a",
            "https://git.example:22/a",
            "ssh://git.example:443/a",
            "https://sub.git.example/a",
            "https://git.example.evil.example/a",
            "https://evil.example/git.example",
            "https://other.example/a",
            "https://git.example./a",
            "https://git.example:8443:443/a",
            "ssh://git.example@evil.example/a",
            "ssh://[::1]/a",
        ] {
            let refused = repository(url).is_listed(&listed).unwrap_err();
            assert_eq!(refused.cause, Cause::Host, "{url}");
        }
        let refused = repository("https://evil.example:444/a").is_listed(&listed[..1]);
        let error = refused.unwrap_err().error;
        assert!(
            error.sentence().contains("does not list evil.example:444"),
            "{error}"
        );
        let fix = error.fix.unwrap();
        assert!(
            fix.contains(r#"git_hosts = "git.example, evil.example:444""#),
            "{fix}"
        );
    }
}
