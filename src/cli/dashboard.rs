//! `dashboard`: opens the dashboard from this machine, through SSH or from the network, and manages
//! its logins.

use std::{ffi::OsString, path::Path};

use serde_json::{Value, json};

use super::{
    args::Args,
    ask, browse, expose,
    output::{Output, Tone, printable},
    socket::{self, Ask},
    table::{CONFIG, Command, JSON, Opt, SET, SOCKET, Takes},
    view::View,
};
use crate::{
    core::url::{Url, bracketed},
    error::{Error, Exit, Result},
    host::facts::hostname,
    wire::api::{CHANGES_PATH, PASSWORD_PATH, SESSIONS_PATH, TOKENS_PATH},
};

/// Shorter passwords are guessed.
const PASSWORD_CHARS_MIN: usize = 10;

const ROLE: Opt = Opt::value(
    "role",
    Takes::Word(&["operator", "viewer"]),
    "ROLE",
    "Role of the login: operator may change things, viewer may only look",
)
.default("operator");

/// `dashboard`.
pub(super) static COMMAND: Command = Command {
    name: "dashboard",
    about: "Open the dashboard and control access to it",
    options: &[SOCKET, CONFIG, SET, JSON],
    below: &[&OPEN, &TOKEN, &PASSWORD, &LOGOUT, &expose::COMMAND],
    notes: "The dashboard listens on dashboard.listen, which is reachable from this machine only by default.",
    examples: &["sudo pipeops-agent dashboard open"],
    ..Command::BARE
};

static OPEN: Command = Command {
    name: "open",
    about: "Open the dashboard in a browser, or print how to reach it from another machine",
    options: &[
        ROLE,
        Opt::flag("print", "Print the address without starting a browser"),
        Opt::flag(
            browse::ON_INPUT,
            "Open the address on standard input, without asking an agent",
        ),
    ],
    notes: "The address contains a token that logs in once. The browser gets it from a file that only its user can read; the file is removed\n\
            after use, at the latest after a minute. With sudo it is the browser of the user who ran sudo.\n\
            On a machine without a screen it prints the ssh command that forwards the page to yours.",
    examples: &[
        "sudo pipeops-agent dashboard open",
        "sudo pipeops-agent dashboard open --print",
    ],
    exit: "0 success, 2 no agent answers or permission was denied.",
    run: Some(open),
    ..Command::BARE
};

static TOKEN: Command = Command {
    name: "token",
    about: "Print a login token that works once",
    options: &[ROLE],
    examples: &[
        "sudo pipeops-agent dashboard token",
        "sudo pipeops-agent dashboard token --role viewer",
    ],
    run: Some(token),
    ..Command::BARE
};

static PASSWORD: Command = Command {
    name: "password",
    about: "Set or remove the password of the dashboard",
    options: &[ROLE, Opt::flag("remove", "Remove the password")],
    notes: "Prompts for it twice, or reads it from the first line of standard input.\n\
            Existing sessions stay valid; to end them: pipeops-agent dashboard logout.",
    examples: &[
        "sudo pipeops-agent dashboard password",
        "sudo pipeops-agent dashboard password --role viewer",
        "sudo pipeops-agent dashboard password --remove",
    ],
    run: Some(password),
    ..Command::BARE
};

static LOGOUT: Command = Command {
    name: "logout",
    about: "End all dashboard sessions",
    examples: &["sudo pipeops-agent dashboard logout"],
    run: Some(logout),
    ..Command::BARE
};

/// Adds the hint to use sudo: only root and the agent's user may grant logins.
fn as_root(mut error: Error, args: &Args) -> Error {
    if error.fix.is_none() {
        let name = args.command().name;
        error.fix = Some(format!("sudo pipeops-agent dashboard {name}"));
    }
    error
}

fn new_token(args: &Args) -> Result<Value> {
    let body = json!({ "role": args.text(ROLE.long) });
    let cannot = "cannot get a login token for the dashboard";
    let token = socket::request(args, &Ask::Post(TOKENS_PATH, body), cannot)
        .map_err(|error| as_root(error, args))?;
    if View::new(&token).text("token").is_empty() {
        return Err(socket::unexpected("it has no token"));
    }
    Ok(token)
}

fn token(args: &Args, output: &mut Output) -> Result<Exit> {
    let token = new_token(args)?;
    if args.has("json") {
        output.json(&token);
        return Ok(Exit::Fine);
    }
    let view = View::new(&token);
    output.line(&printable(view.text("token")));
    if output.is_terminal() {
        let until = view.maybe("until").unwrap_or("the agent is restarted");
        let hint = format!("It logs in once as {}, until {until}.", view.text("role"));
        output.line(&output.toned(Tone::Faint, &printable(&hint)));
        if let Some(fingerprint) = view.maybe("fingerprint") {
            let hint = format!(
                "At {}, whose certificate has the SHA-256 fingerprint {fingerprint}.",
                view.text("url").split("/#").next().unwrap_or_default()
            );
            output.line(&output.toned(Tone::Faint, &printable(&hint)));
        }
    }
    Ok(Exit::Fine)
}

fn open(args: &Args, output: &mut Output) -> Result<Exit> {
    if args.has(browse::ON_INPUT) {
        return browse::open_from_input().map(|()| Exit::Fine);
    }
    let token = new_token(args)?;
    let view = View::new(&token);
    let url = view.text("url");
    if url.is_empty() {
        return Err(Error::new("the dashboard has no address")
            .why("dashboard.listen is off")
            .fix("set dashboard.listen, for example to 127.0.0.1:7480, and restart the agent"));
    }
    let way = around();
    if args.has("json") {
        let mut whole = token.clone();
        if let Some(fields) = whole.as_object_mut() {
            fields.insert("ssh".to_owned(), way.ssh(url).into());
        }
        output.json(&whole);
        return Ok(Exit::Fine);
    }
    output.line(&printable(url));
    if args.has("print") {
        return Ok(Exit::Fine);
    }
    if let Some(fingerprint) = view.maybe("fingerprint") {
        output.line(&printable(&format!(
            "The SHA-256 fingerprint of its certificate: {fingerprint}"
        )));
    }
    if browse::has_screen() {
        output.line(&output.toned(Tone::Faint, "Opening it in a browser."));
        let before = logins(args);
        match browse::open(url, || logins(args) != before) {
            Ok(()) => return Ok(Exit::Fine),
            Err(error) => output.warning(&error),
        }
    }
    if let Some(line) = way.ssh(url) {
        output.line("");
        output.line("From your own machine run this, then open the address above:");
        output.line(&format!("  {}", printable(&line)));
    }
    Ok(Exit::Fine)
}

/// Time and user of the newest recorded login.
fn logins(args: &Args) -> Option<String> {
    let changes = socket::request(args, &Ask::Get(CHANGES_PATH), "").ok()?;
    let view = View::new(&changes);
    let mut logins = view.list("changes").filter(|change| {
        change
            .text("what")
            .starts_with("log in to the dashboard as")
    });
    logins.next().map(|login| login.text("id").to_owned())
}

/// Surroundings of the person at the command line.
struct Environment {
    user: String,
    address: String,
}

fn around() -> Environment {
    let variable = |name: &str| -> Option<String> {
        let value = std::env::var_os(name).map(OsString::into_string);
        value
            .and_then(std::result::Result::ok)
            .filter(|text| !text.is_empty())
    };
    let by_ssh = variable("SSH_CONNECTION");
    // Its third word is the address by which this machine was reached.
    let address = by_ssh.as_deref().and_then(|line| line.split(' ').nth(2));
    Environment {
        user: variable("SUDO_USER")
            .or_else(|| variable("USER"))
            .unwrap_or_else(|| "root".to_owned()),
        address: address
            .map(str::to_owned)
            .or_else(|| hostname(Path::new("/")))
            .unwrap_or_else(|| "ADDRESS".to_owned()),
    }
}

impl Environment {
    /// The line that brings the port of `url` to another machine; `None` where the network reaches
    /// it as it is.
    fn ssh(&self, url: &str) -> Option<String> {
        let url = Url::parse(url.split('#').next()?).ok()?;
        let (host, port) = (bracketed(&url.host), url.port);
        let line = || format!("ssh -L {port}:{host}:{port} {}@{}", self.user, self.address);
        url.is_loopback().then(line)
    }
}

fn password(args: &Args, output: &mut Output) -> Result<Exit> {
    let password = if args.has("remove") {
        Value::Null
    } else {
        let typed = ask::secret("New dashboard password")?;
        if typed.reveal().chars().count() < PASSWORD_CHARS_MIN {
            return Err(Error::new("that password is too short").fix(format!(
                "use at least {PASSWORD_CHARS_MIN} characters; a few words are easier to type than symbols"
            )));
        }
        if ask::is_possible() && ask::secret("Once more")? != typed {
            return Err(Error::new("the passwords do not match"));
        }
        typed.reveal().into()
    };
    let body = json!({ "password": password, "role": args.text(ROLE.long) });
    let cannot = "cannot set the password of the page";
    let view = socket::request(args, &Ask::Put(PASSWORD_PATH, body), cannot)
        .map_err(|error| as_root(error, args))?;
    if args.has("json") {
        output.json(&view);
    } else if View::new(&view).flag("has_password") == Some(true) {
        let role = args.text(ROLE.long).unwrap_or_default();
        output.line(&format!("The password logs in as {role} from now on."));
    } else {
        output.line("Password login is off.");
    }
    Ok(Exit::Fine)
}

fn logout(args: &Args, output: &mut Output) -> Result<Exit> {
    let cannot = "cannot end the sessions of the page";
    let view = socket::request(args, &Ask::Delete(SESSIONS_PATH), cannot)
        .map_err(|error| as_root(error, args))?;
    if args.has("json") {
        output.json(&view);
    } else {
        output.line("All sessions were ended.");
    }
    Ok(Exit::Fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_ssh_brings_the_port_of_the_page() {
        let around = Environment {
            user: "pi".to_owned(),
            address: "192.0.2.7".to_owned(),
        };
        assert_eq!(
            around.ssh("http://127.0.0.1:7480/#token=abc").as_deref(),
            Some("ssh -L 7480:127.0.0.1:7480 pi@192.0.2.7")
        );
        assert_eq!(around.ssh("https://192.0.2.7:7480/#token=abc"), None);
    }
}
