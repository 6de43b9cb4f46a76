//! Joining of this machine to a server as a worker, and the invitation that a server gives.

use super::{super::Keeper, inspect::FindingSet};
use crate::{
    core::{
        k3s::{
            BINARY, Doubt, Role, Version,
            join::{self, Credential, Server, Token},
            servers::server_doubts,
            step::Staged,
        },
        secret::Secret,
    },
    error::{Error, Result},
    host::exec::{self, Limits},
    wire::keeper::{Finding, K3sPlan, PlannedStep},
};

/// Way back from a join.
pub(super) const UNDO: &str = "sudo pipeops-agent node leave";
/// Token of a join, among the checked copies.
const STAGED_TOKEN: &str = "join-token";

/// A server that this machine joins.
#[derive(Clone, Debug)]
pub struct Join {
    pub token: Token,
    /// Its answer, whose CA is the one of the token.
    pub server: Server,
    pub address: String,
}

impl Join {
    pub(super) fn sentence(&self, node: &str, version: Version, data_dir: &str) -> String {
        let role = match self.server.shared {
            None => "worker",
            Some(_) => "server",
        };
        format!(
            "join {} as the {role} {node}, with k3s {version} and its data in {data_dir}",
            self.address
        )
    }
}

/// A wanted invitation.
#[derive(Clone, Debug)]
pub struct InviteRequest {
    /// Lifetime of its token, as k3s takes it: `1h`.
    pub lifetime: String,
    /// Address that the new machine reaches this server at, with or without a port; `None`: that of
    /// its node.
    pub address: Option<String>,
    /// Role of the new machine: the token of servers is that of the cluster, which does not end.
    pub role: Role,
}

/// An invitation to join this server.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// Address of the server.
    pub server: String,
    pub token: Token,
    /// Version of this server, which it does not tell for the token of servers.
    pub version: Option<Version>,
}

impl Keeper {
    /// Adds what speaks against a join.
    pub(super) fn doubt(
        &self,
        join: &Join,
        node: &str,
        version: Version,
        ignored: &[String],
        findings: &mut FindingSet,
    ) {
        let server = join.server.version;
        let refused = [
            server.and_then(|server| join::skew(version, server)),
            join::name_doubt(node),
        ];
        let user = self.system.user_settings();
        let of_role = match &join.server.shared {
            None => join::settings_doubt(&user).into_iter().collect(),
            Some(shared) => server_doubts(shared, &user),
        };
        let refused = refused.into_iter().flatten().chain(of_role).map(finding);
        findings
            .refused
            .extend(refused.filter(|finding| !ignored.contains(&finding.id)));
        let lasts = matches!(join.token.credential, Credential::Password(_));
        let lasts = lasts && join.server.shared.is_none();
        let lasts = lasts.then(|| {
            (
                "join.token",
                "this token never ends, and stays on this machine".to_owned(),
                "take one that ends: sudo pipeops-agent k3s token, on the server".to_owned(),
            )
        });
        let unknown = server.is_none().then(|| {
            (
                "join.version-unknown",
                format!("the server does not tell its version for this token: {version} was not compared with it"),
                "it must not be older there: sudo pipeops-agent k3s status, on the server".to_owned(),
            )
        });
        let warned = join::name_warning(node)
            .into_iter()
            .chain(lasts)
            .chain(unknown);
        findings.warned.extend(warned.map(finding));
    }

    /// The token in a place of root's. The journal has its hash only.
    pub(super) fn stage_token(&self, join: &Join) -> Result<Staged> {
        let text = format!("{}\n", join.token.text.reveal());
        self.stage_text(STAGED_TOKEN, &text)
    }

    /// Has k3s make a token with which a machine can join this server.
    pub fn k3s_invite(&self, wanted: &InviteRequest) -> Result<Invitation> {
        let server = self.inviting(wanted)?;
        let cannot = || Error::new("cannot make a token");
        if wanted.role == Role::Server {
            let managed = self.managed()?;
            let path = format!("{}/server/token", self.data_dir(managed.as_ref()));
            let text = self.system.text(&path).unwrap_or_default();
            let token =
                Token::parse(&text).map_err(|why| cannot().why(format!("{path}: {why}")))?;
            return Ok(Invitation {
                server,
                token,
                version: self.k3s_version(),
            });
        }
        let argv = creation(wanted);
        let ended = exec::run(self.system.root(), &argv, Limits::SHORT)?;
        if !ended.success() {
            let said = ended.stderr.trim().chars().take(200);
            return Err(cannot()
                .why(format!("k3s says: {}", said.collect::<String>()))
                .fix("sudo pipeops-agent k3s status"));
        }
        let token = Secret::new(ended.stdout.trim());
        Ok(Invitation {
            server,
            token: Token::parse(token.reveal()).map_err(|why| cannot().why(why))?,
            version: None,
        })
    }

    /// The plan of such a token.
    pub fn k3s_invite_plan(&self, wanted: &InviteRequest) -> Result<K3sPlan> {
        let server = self.inviting(wanted)?;
        if wanted.role == Role::Server {
            return Ok(K3sPlan {
                does: format!("print the token of the cluster, with which servers join {server}"),
                undo: "none is needed: nothing is made".to_owned(),
                ..K3sPlan::default()
            });
        }
        Ok(K3sPlan {
            does: format!(
                "create a token with which a worker joins {server}, valid for {}",
                wanted.lifetime
            ),
            steps: vec![PlannedStep {
                does: format!("run {}", creation(wanted).join(" ")),
                undo: "it expires on its own".to_owned(),
            }],
            undo: "sudo /usr/local/bin/k3s token list shows its id; sudo /usr/local/bin/k3s token delete ID".to_owned(),
            ..K3sPlan::default()
        })
    }

    /// Address of this server for others, where it can invite them.
    fn inviting(&self, wanted: &InviteRequest) -> Result<String> {
        let cannot = || Error::new("cannot make a token");
        self.only_on_servers("k3s token")?;
        if !self.system.is_there(BINARY) {
            return Err(cannot()
                .why("there is no k3s on this machine")
                .fix("run it on the server: sudo pipeops-agent k3s token"));
        }
        let host = match &wanted.address {
            Some(address) => address.clone(),
            None => self.node_address()?,
        };
        let url = join::server(&self.system.server_at(&host)).map_err(|why| {
            cannot()
                .why(format!("{host}: {why}"))
                .fix("name the address of this server: --address ADDRESS")
        })?;
        Ok(format!("https://{}", url.authority()))
    }

    /// Address at which other machines reach the node of this one.
    fn node_address(&self) -> Result<String> {
        let node = match self.managed()? {
            Some(note) => note.node,
            None => self.node_name(None)?,
        };
        let jsonpath = "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
        let ended = self
            .system
            .kubectl(&["get", "node", &node, "-o", jsonpath])?;
        let address = ended.stdout.split_ascii_whitespace().next();
        address
            .filter(|_| ended.success())
            .map(str::to_owned)
            .ok_or_else(|| {
                Error::new(format!("the address of the node {node} is not known"))
                    .fix("sudo pipeops-agent k3s status; or name it: --address ADDRESS")
            })
    }
}

/// The command of k3s that makes a token.
fn creation(wanted: &InviteRequest) -> [&str; 7] {
    [
        BINARY,
        "token",
        "create",
        "--ttl",
        &wanted.lifetime,
        "--description",
        "made by pipeops-agent k3s token",
    ]
}

pub(super) fn finding((id, what, fix): Doubt) -> Finding {
    Finding {
        id: id.to_owned(),
        what,
        fix,
    }
}
