//! Event stream of the running agent, compared with its lists of the same things.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use plane::{Cut, Sessions};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, SOON, until},
    login::House,
};

/// A message of the stream.
#[derive(Clone, Debug)]
struct Message {
    id: u64,
    name: String,
    data: Value,
}

/// A viewer on the socket.
struct Watching {
    socket: UnixStream,
    rest: String,
    heard: Vec<Message>,
}

impl Watching {
    /// Everything that is told of these topics, from now on or from behind `last_id`.
    fn topics(agent: &Agent, topics: &str, last_id: Option<u64>) -> Self {
        let mut socket = UnixStream::connect(agent.folder().join("agent.sock")).unwrap();
        let resume = last_id.map_or_else(String::new, |id| format!("last-event-id: {id}\r\n"));
        let request =
            format!("GET /api/v1/stream?topics={topics} HTTP/1.0\r\nhost: agent\r\n{resume}\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let mut watching = Self {
            socket,
            rest: String::new(),
            heard: Vec::new(),
        };
        watching.until("its beginning", |_| Some(()));
        watching
    }

    fn read(&mut self) {
        let mut piece = [0; 8192];
        let Ok(length) = self.socket.read(&mut piece) else {
            return;
        };
        let piece = piece.get(..length).unwrap();
        self.rest.push_str(std::str::from_utf8(piece).unwrap());
        while let Some((message, rest)) = self.rest.split_once("\n\n") {
            let field = |name: &str| {
                let mut lines = message.lines();
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
            };
            if let (Some(id), Some(name), Some(data)) = (field("id"), field("event"), field("data"))
            {
                self.heard.push(Message {
                    id: id.parse().unwrap(),
                    name: name.to_owned(),
                    data: serde_json::from_str(data).unwrap(),
                });
            }
            self.rest = rest.to_owned();
        }
    }

    /// Reads until something is among what was heard.
    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&[Message]) -> Option<T>) -> T {
        until(&format!("the stream has {what}"), SOON, || {
            self.read();
            (!self.heard.is_empty()).then(|| look(&self.heard))?
        })
    }

    fn until_data(&mut self, name: &str, is_wanted: impl Fn(&Value) -> bool) -> Message {
        self.until(name, |heard| {
            let mut found = heard.iter();
            found
                .find(|message| message.name == name && is_wanted(&message.data))
                .cloned()
        })
    }

    fn named(&self, name: &str) -> Vec<&Message> {
        let named = self.heard.iter();
        named.filter(|message| message.name == name).collect()
    }
}

#[test]
fn a_change_is_told_when_it_begins_and_when_it_ends_as_the_list_has_it() {
    let here = House::new(&[]);
    let mut watching = Watching::topics(&here.agent, "changes", None);
    let off = r#"{"level":"off"}"#;
    assert_eq!(here.on_socket("POST /api/v1/access", off).code, 200);
    let is_ours = |data: &Value| data["what"] == "access full -> off";
    let done = watching.until_data("change", |data| is_ours(data) && data["outcome"] == "done");
    let told = watching.named("change");
    let outcomes: Vec<_> = told.iter().map(|it| it.data["outcome"].clone()).collect();
    assert_eq!(outcomes, ["running", "done"]);
    assert_eq!(told[0].data["id"], told[1].data["id"]);
    let list = here.agent.view("/api/v1/changes");
    assert_eq!(list["changes"][0], done.data);
    assert!(
        done.data["who"]
            .as_str()
            .unwrap()
            .starts_with("uid 0, pid ")
    );

    // It is taken back by its id, by root alone.
    let undo = format!(
        "POST /api/v1/changes/{}/undo",
        done.data["id"].as_str().unwrap()
    );
    let operator = here.session("operator");
    let refused = here.ask(&undo, &operator, "{}");
    assert_eq!(refused.code, 403, "{}", refused.body);
    let undone = here.on_socket(&undo, "{}");
    assert_eq!(
        (undone.code, undone.json()["outcome"].clone()),
        (200, json!("undone"))
    );
    watching.until_data("change", |data| {
        data["what"] == "access off -> full" && data["outcome"] == "done"
    });
    // It is not the one that holds any more.
    assert_eq!(here.on_socket(&undo, "{}").code, 503);

    // What cannot be done begins, too, and ends so: there is no root helper here.
    let fix = here.on_socket("POST /api/v1/problems/limits.inotify/fix", "{}");
    assert_eq!(fix.code, 503, "{}", fix.body);
    watching.until_data("change", |data| {
        data["what"] == "fix limits.inotify" && data["outcome"] == "failed"
    });
    // A login from elsewhere says where that is.
    here.session("viewer");
    let login = watching.until_data("change", |data| {
        let what = data["what"].as_str().unwrap();
        what.starts_with("log in") && data["outcome"] == "done"
    });
    assert_eq!(login.data["from"], "127.0.0.1");

    // Nobody who has not logged in is told.
    assert_eq!(here.get("/api/v1/stream?topics=changes", "").code, 401);
}

#[test]
fn an_event_is_told_at_once_and_has_the_number_that_the_list_and_the_disk_have() {
    let mut here = House::new(&[]);
    here.agent.until_linked();
    let mut watching = Watching::topics(&here.agent, "events", None);
    let is_lost = |data: &Value| data["reason"] == "link.lost" && data["severity"] == "warning";
    here.plane.cut(Sessions::All, Cut::Reset);
    let told = watching.until_data("event", is_lost).data;
    let listed = |here: &House| {
        let events = here.agent.view("/api/v1/events?limit=500");
        events["events"].as_array().unwrap().clone()
    };
    // It is in the list before any flush, and once.
    let same: Vec<_> = listed(&here).into_iter().filter(is_lost).collect();
    assert_eq!(same, [told]);

    // The same within the minute is the same event, with a count.
    here.agent.until_linked();
    here.plane.cut(Sessions::All, Cut::Reset);
    until(
        "it is counted, or is another one of the next minute",
        SOON,
        || {
            watching.read();
            let all = watching.named("event");
            let of_one = all.iter().filter(|it| is_lost(&it.data)).count();
            (of_one > 1).then_some(())
        },
    );

    // A stop writes it: the numbers on disk are those that were told.
    let told = listed(&here);
    here.agent.stop();
    here.agent.start();
    here.agent.until_linked();
    let kept = listed(&here);
    for event in &told {
        // The session that is back may be counted after the list was read.
        let is_it = |it: &&Value| it["count"].as_u64() >= event["count"].as_u64();
        let named =
            |it: &Value| ["id", "reason", "message", "subject"].map(|name| it[name].clone());
        let same = kept.iter().filter(|it| named(it) == named(event));
        assert_eq!(same.filter(is_it).count(), 1, "{event}: {kept:?}");
    }
    let mut numbers: Vec<_> = kept.iter().map(|it| it["id"].as_u64().unwrap()).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), kept.len());
}

#[test]
fn who_comes_back_with_the_last_number_misses_nothing_and_hears_nothing_twice() {
    let here = House::new(&[]);
    let level = |level: &str| {
        let body = json!({"level": level}).to_string();
        assert_eq!(here.on_socket("POST /api/v1/access", &body).code, 200);
    };
    let mut first = Watching::topics(&here.agent, "changes", None);
    level("off");
    let seen = first
        .until_data("change", |data| data["outcome"] == "done")
        .id;
    drop(first);
    // Nobody watches now.
    level("full");
    level("managed");
    let mut back = Watching::topics(&here.agent, "changes", Some(seen));
    level("off");
    back.until_data("change", |data| {
        data["what"] == "access managed -> off" && data["outcome"] == "done"
    });
    let told = back.named("change");
    let told: Vec<_> = told
        .iter()
        .map(|it| format!("{} {}", it.data["what"], it.data["outcome"]).replace('"', ""))
        .collect();
    let wanted = [
        "access off -> full running",
        "access off -> full done",
        "access full -> managed running",
        "access full -> managed done",
        "access managed -> off running",
        "access managed -> off done",
    ];
    assert_eq!(told, wanted);
    assert!(back.named("reset").is_empty());
    let ids: Vec<_> = back.named("change").iter().map(|it| it.id).collect();
    assert!(ids.is_sorted() && ids[0] > seen, "{ids:?} after {seen}");
}
