//! `k3s token`: an invitation for another machine to join this server.

use serde_json::json;

use super::{DRY_RUN, keeper, report};
use crate::{
    cli::{
        args::Args,
        output::Output,
        table::{Command, JSON, Opt, Takes},
    },
    core::k3s::Role,
    error::{Exit, Result},
    files,
    keeper::k3s::InviteRequest,
    wire::keeper::PlannedStep,
};

/// `k3s token`.
pub(super) static COMMAND: Command = Command {
    name: "token",
    about: "Create a token for another machine to join this server",
    options: &[
        Opt::value(
            "ttl",
            Takes::Text,
            "TIME",
            "Lifetime of the token, such as 30m or 2h",
        )
        .default("1h"),
        Opt::value(
            "address",
            Takes::Text,
            "ADDRESS",
            "Address, or ADDRESS:PORT, at which the new machine reaches this server (default: that of its node)",
        ),
        Opt::flag(
            "server-role",
            "Print the token for a further server: that of the cluster, which never expires",
        ),
        Opt::value(
            "to",
            Takes::File,
            "FILE",
            "Write the token to this file, readable by root only, instead of printing it",
        ),
        DRY_RUN,
    ],
    notes: "The token has the hash of the cluster's CA, so that the new machine talks to this server and to no other.\n\
            The new machine prompts for it or reads it from a file: on a command line, every user could read it.",
    examples: &[
        "sudo pipeops-agent k3s token",
        "sudo pipeops-agent k3s token --ttl 30m --to /root/join-token",
    ],
    run: Some(token),
    ..Command::BARE
};

/// Longest lifetime, in minutes.
const MINUTES_MAX: u32 = 24 * 60;

fn token(args: &Args, output: &mut Output) -> Result<Exit> {
    let keeper = keeper(args, "k3s token")?;
    let minutes = args.read("ttl", |text| {
        minutes(text).ok_or_else(|| "it is a time such as 30m or 2h, 24h at most".to_owned())
    })?;
    let minutes = minutes.unwrap_or(60);
    let is_for_server = args.has("server-role");
    let file = args.path("to");
    let wanted = InviteRequest {
        lifetime: format!("{minutes}m"),
        address: args.text("address").map(str::to_owned),
        role: if is_for_server {
            Role::Server
        } else {
            Role::Worker
        },
    };
    if args.has(DRY_RUN.long) {
        let mut plan = keeper.k3s_invite_plan(&wanted)?;
        plan.steps.extend(file.map(|path| PlannedStep {
            does: format!("write {} (mode 600)", path.display()),
            undo: "remove it".to_owned(),
        }));
        report::plan(&plan, args, output);
        return Ok(Exit::Fine);
    }
    let found = keeper.k3s_invite(&wanted)?;
    let token = found.token.text.reveal();
    if let Some(path) = &file {
        files::replace(path, format!("{token}\n").as_bytes(), files::PRIVATE)?;
    }
    let from = file.as_ref().map_or("-", |_| "FILE");
    let role = if is_for_server { " --server-role" } else { "" };
    let version = found.version.map(|version| format!(" --version {version}"));
    let command = format!(
        "sudo pipeops-agent k3s join --server {}{role} --token-file {from}{}",
        found.server,
        version.unwrap_or_default()
    );
    if args.has(JSON.long) {
        let mut answer = json!({
            "server": found.server,
            "minutes": (!is_for_server).then_some(minutes),
            "command": command,
        });
        if let (None, Some(answer)) = (&file, answer.as_object_mut()) {
            answer.insert("token".to_owned(), json!(token));
        }
        output.json(&answer);
        return Ok(Exit::Fine);
    }
    output.line(&if is_for_server {
        "run this on the new machine; the token never expires and gives full control of the cluster:".to_owned()
    } else {
        format!("on the new machine, within {minutes} minutes:")
    });
    output.line(&format!("  {command}"));
    if let Some(path) = &file {
        let path = path.display();
        output.line(&format!("FILE is a copy of {path}, which is a secret"));
    } else {
        output.line("it prompts for this token (input is hidden):");
        output.line(&format!("  {token}"));
    }
    Ok(Exit::Fine)
}

fn minutes(text: &str) -> Option<u32> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "m" => 1,
        "h" => 60,
        _ => return None,
    };
    let minutes = number.parse::<u32>().ok()?.checked_mul(unit)?;
    (1..=MINUTES_MAX).contains(&minutes).then_some(minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_at_most_a_day() {
        assert_eq!(minutes("30m"), Some(30));
        assert_eq!(minutes("24h"), Some(1440));
        for wrong in [
            "",
            "h",
            "0m",
            "25h",
            "1d",
            "-1h",
            "1.5h",
            "99999999999h",
            "ü",
        ] {
            assert_eq!(minutes(wrong), None, "{wrong}");
        }
    }
}
