//! Commands of the control plane, and their acknowledgements.

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    fields::{Field, Fields, string},
    outbound::message,
};
use crate::{
    core::{
        command::{ARGS_BYTES_MAX, Deadline, RawCommand, is_id},
        time::Wall,
    },
    error::Error,
};

/// Reads `edge_command`; `None`: it has no id that an answer could name.
pub(super) fn command(fields: &Fields<'_>) -> Option<RawCommand> {
    let id = fields.word(Field::Id).filter(|id| is_id(id))?;
    let args = fields.raw(Field::Args).map(RawValue::get);
    let time = |field| {
        let text = fields.raw(field).and_then(string)?;
        (text.len() < 64).then(|| Wall::parse_rfc3339(&text))?
    };
    let has_deadline = fields
        .raw(Field::Deadline)
        .is_some_and(|raw| raw.get() != "null");
    Some(RawCommand {
        id,
        verb: fields.word(Field::CommandVerb).unwrap_or_default(),
        args_bytes: args.map_or(0, str::len),
        args: args
            .filter(|args| args.len() <= ARGS_BYTES_MAX)
            .map(str::to_owned),
        issued: time(Field::IssuedAt),
        deadline: match time(Field::Deadline) {
            Some(deadline) => Deadline::At(deadline),
            None if has_deadline => Deadline::Unreadable,
            None => Deadline::None,
        },
    })
}

/// Answer to a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CommandAnswer {
    /// Its intent is on disk.
    Accepted,
    /// It was accepted before.
    Known,
    /// It is not carried out.
    Refused(Error),
}

pub fn edge_command_ack(id: &str, answer: &CommandAnswer, now: Wall) -> String {
    #[derive(Serialize)]
    struct Payload<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        fix: Option<&'a str>,
        id: &'a str,
        state: &'a str,
    }
    let (state, refusal) = match answer {
        CommandAnswer::Accepted => ("accepted", None),
        CommandAnswer::Known => ("known", None),
        CommandAnswer::Refused(error) => ("refused", Some(error)),
    };
    let payload = Payload {
        error: refusal.map(Error::sentence),
        fix: refusal.and_then(|error| error.fix.as_deref()),
        id,
        state,
    };
    message("edge_command_ack", "", payload, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::{Inbound, decode};
    use serde_json::{Value, json};

    fn read(payload: &Value) -> Option<RawCommand> {
        let text = json!({"type": "edge_command", "payload": payload}).to_string();
        match decode(text.as_bytes()) {
            Ok(Inbound::EdgeCommand(said)) => said.map(|said| *said),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_command_is_read_with_wrong_types_as_absent() {
        let good = json!({
            "id": "c-1", "verb": "app.restart", "args": {"app": "web"},
            "issued_at": "1970-01-01T00:00:01Z", "deadline": "1970-01-01T00:00:02Z",
        });
        let said = read(&good).unwrap();
        assert_eq!(
            said,
            RawCommand {
                id: "c-1".to_owned(),
                verb: "app.restart".to_owned(),
                args: Some(r#"{"app":"web"}"#.to_owned()),
                args_bytes: 13,
                issued: Some(Wall::from_millis(1_000)),
                deadline: Deadline::At(Wall::from_millis(2_000)),
            }
        );
        let with = |name: &str, value: Value| {
            let mut bad = good.clone();
            bad[name] = value;
            read(&bad)
        };
        for id in [json!(7), json!(""), json!("a b"), json!("x".repeat(129))] {
            assert_eq!(with("id", id), None);
        }
        assert_eq!(with("verb", json!([])).unwrap().verb, "");
        assert_eq!(with("issued_at", json!(5)).unwrap().issued, None);
        assert_eq!(with("issued_at", json!("noon")).unwrap().issued, None);
        let deadline = |value| with("deadline", value).unwrap().deadline;
        assert_eq!(deadline(json!(null)), Deadline::None);
        assert_eq!(deadline(json!(5)), Deadline::Unreadable);
        let large = with("args", json!({"manifests": "x".repeat(ARGS_BYTES_MAX)})).unwrap();
        assert_eq!(large.args, None);
        assert!(large.args_bytes > ARGS_BYTES_MAX);
    }

    #[test]
    fn an_answer_is_as_the_protocol_has_it() {
        let now = Wall::from_millis(1_781_589_028_123);
        expect_test::expect![[r#"{"type":"edge_command_ack","payload":{"id":"c-1","state":"accepted"},"timestamp":"2026-06-16T05:50:28.123Z"}"#]]
            .assert_eq(&edge_command_ack("c-1", &CommandAnswer::Accepted, now));
        let refusal = Error::new("nothing was deployed")
            .why("no room")
            .fix("make room");
        expect_test::expect![[r#"{"type":"edge_command_ack","payload":{"error":"nothing was deployed: no room","fix":"make room","id":"c-1","state":"refused"},"timestamp":"2026-06-16T05:50:28.123Z"}"#]]
            .assert_eq(&edge_command_ack("c-1", &CommandAnswer::Refused(refusal), now));
    }
}
