//! Connectivity probe of the control plane, step by step, to find the side that is broken. It opens
//! connections of its own and no session.

use std::time::{Duration, UNIX_EPOCH};

use smol::io::{AsyncReadExt, AsyncWriteExt};

use super::dial::{Caller, TOKEN_FIX};
use crate::{
    core::{
        diagnosis::{PathStep, Probe, Side, StepResult},
        time::{Now, Wall, in_words},
        url::Security,
    },
    net::{
        self, ErrorKind, Phase, Stream, deadline,
        dial::Route,
        head::Head,
        steps::{Deadlines, Tried, try_steps},
        target::Target as Peer,
    },
    wire::handshake::DialTarget,
};

/// Deadline of each step.
const STEP_WITHIN: Duration = Duration::from_secs(3);
/// Deadlines of the steps to a connection.
const DEADLINES: Deadlines = Deadlines {
    step: STEP_WITHIN,
    all: STEP_WITHIN.saturating_mul(3),
};
/// The head of an answer at most.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// The clock is fine as long as it differs by no more than this from the control plane's: its stamp
/// has whole seconds, and is some seconds old on a slow line.
const CLOCK_FINE: Duration = Duration::from_secs(30);
/// Beyond this certificates and tokens begin to fail.
const CLOCK_BROKEN: Duration = Duration::from_secs(300);

/// Tests each step from the name to the answer, and compares the clocks. Ends within
/// [`STEP_WITHIN`] a step.
///
/// With a token the control plane says whether it accepts it.
pub async fn test_steps(
    caller: &Caller,
    target: &DialTarget,
    token: Option<&str>,
    clock: fn() -> Now,
) -> Vec<Probe> {
    let steps = [
        PathStep::Dns,
        PathStep::Tcp,
        PathStep::Tls,
        PathStep::Http,
        PathStep::Clock,
    ];
    let mut probes = Vec::new();
    let attempt = Attempt {
        caller,
        target,
        token,
        peer: Peer::new(&target.host, target.port),
        clock,
    };
    attempt.run(&mut probes).await;
    for step in steps {
        if probes.iter().all(|probe| probe.step != step) {
            probes.push(Probe::skipped(step));
        }
    }
    probes
}

struct Attempt<'a> {
    caller: &'a Caller,
    target: &'a DialTarget,
    token: Option<&'a str>,
    peer: Peer,
    clock: fn() -> Now,
}

impl Attempt<'_> {
    /// Adds steps until one fails.
    async fn run(&self, probes: &mut Vec<Probe>) -> Option<()> {
        let proxy = self.caller.proxies.between(&self.peer);
        let nearest = proxy.map_or(&self.peer, |proxy| &proxy.target);
        let by = match proxy {
            Some(_) => format!(" (the proxy {})", nearest.authority()),
            None => String::new(),
        };

        let tls = match self.target.security {
            Security::Tls => Some(&self.caller.tls),
            Security::Plain => None,
        };
        let route = Route::direct(&self.peer).with_tls(tls).through(proxy);
        let steps = try_steps(&self.caller.dialer, &route, DEADLINES, self.clock).await;
        Self::step(probes, PathStep::Dns, steps.dns, |found| {
            let some: Vec<_> = found
                .iter()
                .take(3)
                .map(|one| one.ip().to_string())
                .collect();
            match nearest.host.parse::<std::net::IpAddr>() {
                Ok(_) => format!("{}{by} is an address: no DNS needed", nearest.host),
                Err(_) => format!("{}{by} is {}", nearest.host, some.join(", ")),
            }
        })?;
        let name = nearest.authority();
        Self::step(probes, PathStep::Tcp, steps.tcp?, |()| {
            format!("{name} accepts connections{by}")
        })?;
        let host = self.target.host_header();
        let stream = Self::step(probes, PathStep::Tls, steps.whole?, |_| match tls {
            Some(_) => format!("{host} has a valid certificate"),
            None => "TLS is not configured".to_owned(),
        })?;

        let start = (self.clock)();
        let asked = deadline(STEP_WITHIN, self.ask(stream, &host)).await;
        let head = asked.unwrap_or_else(|late| Err(late.to_string()));
        let now = (self.clock)();
        let (probe, date) = answered(&host, head, self.token.is_some());
        let is_answer = probe.outcome == StepResult::Ok;
        probes.push(probe.took(now.mono.since(start.mono)));
        if is_answer {
            probes.push(clocks(date, now.wall));
        }
        Some(())
    }

    /// Asks for the endpoint of the session without opening one; returns the head of the answer.
    async fn ask(&self, mut stream: Stream, host: &str) -> Result<Vec<u8>, String> {
        // A token that no header can carry is the link's trouble to tell.
        let token = self.token.filter(|token| !token.contains(char::is_control));
        let authorization = match token {
            Some(token) => format!("authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let (path, agent) = (&self.target.path_and_query, &self.caller.user_agent);
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {agent}\r\n{authorization}connection: close\r\n\r\n"
        );
        let broken = |error: std::io::Error| error.to_string();
        stream.write_all(request.as_bytes()).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let mut head = Vec::new();
        let mut piece = [0; 1024];
        loop {
            let count = stream.read(&mut piece).await.map_err(broken)?;
            head.extend_from_slice(piece.get(..count).unwrap_or_default());
            let is_whole = head.windows(4).any(|end| end == b"\r\n\r\n");
            if is_whole || count == 0 || head.len() > HEAD_BYTES_MAX {
                return Ok(head);
            }
        }
    }

    /// Adds a step; what it made, where it worked.
    fn step<T>(
        probes: &mut Vec<Probe>,
        step: PathStep,
        tried: Tried<T>,
        describe: impl Fn(&T) -> String,
    ) -> Option<T> {
        let took = tried.took;
        match tried.result {
            Ok(made) => {
                probes.push(Probe::new(step, StepResult::Ok, describe(&made)).took(took));
                Some(made)
            }
            Err(error) => {
                let probe = Probe::new(step, StepResult::Failed(blame(&error)), error.to_string());
                probes.push(Probe {
                    fix: error.fix(),
                    ..probe.took(took)
                });
                None
            }
        }
    }
}

/// Side that most likely causes an error.
const fn blame(error: &net::Error) -> Side {
    match (&error.kind, error.phase) {
        (ErrorKind::Unusable(_), _) | (_, Phase::Settings) => Side::Node,
        // A certificate of the future: boards without a battery have old clocks. One that ended is
        // more often the server's.
        (ErrorKind::CertificateNotYetValid { .. } | ErrorKind::ClientCertificateRefused(_), _) => {
            Side::Node
        }
        (ErrorKind::ConnectionRefused | ErrorKind::CertificateExpired { .. }, _) => {
            Side::ControlPlane
        }
        (ErrorKind::WrongName(_) | ErrorKind::BadCertificate(_), _) => Side::ControlPlane,
        (
            ErrorKind::Deadline(_)
            | ErrorKind::UnknownHost(_)
            | ErrorKind::Unreachable(_)
            | ErrorKind::Broken(_)
            | ErrorKind::ProxyRefused { .. }
            | ErrorKind::ProxyGarbage(_)
            | ErrorKind::UnknownIssuer
            | ErrorKind::NotTls
            | ErrorKind::Tls(_),
            Phase::Dns | Phase::Tcp | Phase::Proxy | Phase::Tls,
        ) => Side::Network,
    }
}

/// Result of an answer: any status below 500 proves a working server, except one that rejects the
/// token.
fn answered(host: &str, head: Result<Vec<u8>, String>, has_token: bool) -> (Probe, Option<Wall>) {
    let head = match head {
        Ok(head) => head,
        Err(why) => {
            let seen = format!("{host} does not answer: {why}");
            return (
                Probe::new(PathStep::Http, StepResult::Failed(Side::ControlPlane), seen),
                None,
            );
        }
    };
    let head = Head::parse(&head);
    let probe = match head.as_ref().map(|head| head.status) {
        None => Probe::new(
            PathStep::Http,
            StepResult::Failed(Side::Network),
            format!("{host} does not answer with HTTP"),
        )
        .fix("check pipeops.api_url, and whether another server answers at that address"),
        Some(status) if status >= 500 => Probe::new(
            PathStep::Http,
            StepResult::Failed(Side::ControlPlane),
            format!("{host} answers HTTP {status}"),
        )
        .fix("wait: the agent keeps trying, and no recorded data is lost"),
        Some(401 | 403) if has_token => Probe::new(
            PathStep::Http,
            StepResult::Failed(Side::Node),
            format!("the token was rejected by {host}"),
        )
        .fix(TOKEN_FIX),
        // Without a token, or without an upgrade, most answers are refusals.
        Some(_) => Probe::new(PathStep::Http, StepResult::Ok, format!("{host} answers")),
    };
    let date = head.and_then(|head| date(head.header("date")?));
    (probe, date)
}

/// The time of a `Date` header.
fn date(text: &str) -> Option<Wall> {
    let since = httpdate::parse_http_date(text)
        .ok()?
        .duration_since(UNIX_EPOCH)
        .ok()?;
    i64::try_from(since.as_millis()).ok().map(Wall::from_millis)
}

/// Compares this machine's clock with the control plane's.
fn clocks(theirs: Option<Wall>, ours: Wall) -> Probe {
    let Some(theirs) = theirs else {
        return Probe::new(
            PathStep::Clock,
            StepResult::Unknown,
            "the control plane does not send its time",
        );
    };
    let apart = ours.millis().saturating_sub(theirs.millis());
    let by = Duration::from_millis(apart.unsigned_abs());
    if by <= CLOCK_FINE {
        return Probe::new(
            PathStep::Clock,
            StepResult::Ok,
            "this machine and the control plane have the same time",
        );
    }
    let way = if apart > 0 { "ahead of" } else { "behind" };
    let seen = format!(
        "this machine's clock is {} {way} the control plane's",
        in_words(by)
    );
    let outcome = if by > CLOCK_BROKEN {
        StepResult::Failed(Side::Node)
    } else {
        StepResult::Ok
    };
    Probe::new(PathStep::Clock, outcome, seen)
        .fix("timedatectl set-ntp true, or without a network: date -u -s 'YYYY-MM-DD HH:MM:SS'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_anything_that_speaks_http_and_does_not_complain_of_itself() {
        let asked =
            |head: &str, has_token| answered("cp", Ok(head.as_bytes().to_vec()), has_token).0;
        let outcome = |head: &str| asked(head, true).outcome;
        let refused = "HTTP/1.1 401 Unauthorized\r\n\r\n";
        assert_eq!(outcome(refused), StepResult::Failed(Side::Node));
        assert!(asked(refused, true).fix.is_some());
        // Nobody showed a token, so nobody was refused.
        assert_eq!(asked(refused, false).outcome, StepResult::Ok);
        assert!(!asked(refused, false).seen.contains("401"));
        assert_eq!(outcome("HTTP/1.1 200 OK\r\n\r\n"), StepResult::Ok);
        assert_eq!(outcome("HTTP/1.1 404 Not Found\r\n\r\n"), StepResult::Ok);
        assert_eq!(
            outcome("HTTP/1.1 503 x\r\n\r\n"),
            StepResult::Failed(Side::ControlPlane)
        );
        assert_eq!(outcome("SSH-2.0-x\r\n"), StepResult::Failed(Side::Network));
        assert_eq!(outcome(""), StepResult::Failed(Side::Network));
    }

    #[test]
    fn the_clocks_are_compared_by_the_date_of_the_answer() {
        let head = "HTTP/1.1 200 OK\r\nDate: Tue, 16 Jun 2026 05:50:28 GMT\r\n\r\n";
        let (_, theirs) = answered("cp", Ok(head.as_bytes().to_vec()), false);
        assert_eq!(theirs.map(Wall::millis), Some(1_781_589_028_000));
        let compared = |seconds: i64| {
            clocks(
                theirs,
                Wall::from_millis(1_781_589_028_000 + seconds * 1000),
            )
        };
        assert_eq!(compared(-20).outcome, StepResult::Ok);
        assert!(compared(120).fix.is_some() && compared(120).outcome == StepResult::Ok);
        let behind = compared(-86_400);
        assert_eq!(behind.outcome, StepResult::Failed(Side::Node));
        assert!(behind.seen.contains("behind"), "{}", behind.seen);
        for text in [
            "",
            "yesterday",
            "Tue, 16 JunJ 2026 05:50:28 GMT",
            "Tue, 99 Jun 2026 05:50:28 GMT",
        ] {
            assert_eq!(date(text), None, "{text}");
        }
    }
}
