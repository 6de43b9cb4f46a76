//! Formats on disk: the databases, the small files beside them, and the words in both.

use pipeops_agent::{
    core::{
        audit,
        event::Source,
        identity::{Fingerprint, ForeignIdentity, Identity},
        journal::{Outcome, StepState},
        outbox::{Loss, Stream},
        time::Wall,
    },
    wire::state::{write_clock, write_identity},
};
use plane::Plane;
use rusqlite::{Connection, OpenFlags};

use super::{hold, words};
use crate::agent::{Agent, SOON, until};

/// The schema of a database that the agent made.
fn schema(agent: &Agent, name: &str) -> Option<Vec<String>> {
    let connection =
        Connection::open_with_flags(agent.state(name), OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    let version: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .ok()?;
    let mut query = connection
        .prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY name")
        .ok()?;
    let rows = query.query_map([], |row| row.get::<_, String>(0)).ok()?;
    let mut lines = vec![format!("-- {name}: user_version {version}")];
    for row in rows {
        lines.push(format!("{};", row.ok()?));
    }
    (version > 0).then_some(lines)
}

#[test]
fn the_databases_keep_their_schemas() {
    let plane = Plane::start(plane::Options::default()).unwrap();
    let agent = Agent::start_for(&plane);
    agent.until_linked();
    for name in ["state", "telemetry"] {
        let database = format!("{name}.db");
        let lines = until("the database is there", SOON, || schema(&agent, &database));
        hold(&format!("{name}.sql"), lines);
    }
}

#[test]
fn words_in_databases_stay() {
    let states = [
        StepState::Intended,
        StepState::Acted,
        StepState::Verified,
        StepState::Done,
        StepState::Failed,
        StepState::Undone,
    ];
    let ended = [
        audit::RequestOutcome::Cancelled,
        audit::RequestOutcome::Done,
        audit::RequestOutcome::Failed,
        audit::RequestOutcome::LinkLost,
        audit::RequestOutcome::Refused,
        audit::RequestOutcome::Rejected(404),
        audit::RequestOutcome::Withdrawn("why".to_owned()),
    ];
    let ended = ended.map(|outcome| outcome.text());
    hold(
        "words-on-disk.txt",
        [
            words("stream", Stream::ALL.map(Stream::as_str)),
            words(
                "loss",
                [Loss::Budget, Loss::Damaged, Loss::Retention].map(Loss::as_str),
            ),
            words(
                "source of an event",
                [Source::Cluster, Source::Agent].map(Source::as_str),
            ),
            words(
                "verdict of the audit",
                [
                    audit::AuditDecision::Permitted,
                    audit::AuditDecision::Refused,
                ]
                .map(audit::AuditDecision::as_str),
            ),
            words("outcome of the audit", ended),
            words("others of the audit", [audit::OTHERS]),
            words("state of a step", states.map(StepState::as_str)),
            words(
                "outcome of a change",
                [Outcome::Done, Outcome::Undone, Outcome::Failed].map(Outcome::as_str),
            ),
        ],
    );
}

#[test]
fn small_files_keep_their_form() {
    let identity = Identity {
        generation: 7,
        agent_id: "agent-1".to_owned(),
        cluster_id: Some("c-1".to_owned()),
        cluster_uuid: Some("u-1".to_owned()),
        gateway_ws_url: Some("wss://gateway.example/ws".to_owned()),
        fingerprint: Fingerprint {
            machine: Some("m".to_owned()),
            board: Some("b".to_owned()),
        },
        left_behind: Some(ForeignIdentity {
            agent_id: "agent-0".to_owned(),
            cluster_id: Some("c-0".to_owned()),
        }),
    };
    let files = [
        ("identity.json", write_identity(&identity).unwrap()),
        ("clock", write_clock(Wall::from_millis(1_781_589_028_123))),
    ];
    let lines =
        files.map(|(name, content)| format!("{name}:\n{}", String::from_utf8(content).unwrap()));
    hold("files.txt", lines);
}
