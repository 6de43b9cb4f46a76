//! The order of a change: written down, in force, kept.

use std::{path::Path, pin::pin, rc::Rc};

use pipeops_agent::{
    core::{
        authorization::Role,
        policy::{Level, Rules},
    },
    dashboard::{Caller, From, Peer},
    executor::Executor,
    files::Spool,
    host::clock,
    store::Store,
    tasks::{
        proxy::{
            self, Proxy,
            level::{Access, AccessDependencies, Configured, Refused},
        },
        state::SharedState,
    },
};
use rusqlite::{Connection, OpenFlags};
use smol::{block_on, future::poll_once};

static ROOT: Caller = operator(0);

const fn operator(uid: u32) -> Caller {
    Caller {
        role: Role::Operator,
        from: From::Socket(Peer {
            uid,
            gid: 0,
            pid: 7,
        }),
        session: None,
    }
}

struct Room {
    access: Access,
    proxy: Rc<Proxy>,
    shared_state: Rc<SharedState>,
    store: Store,
    directory: tempfile::TempDir,
}

impl Room {
    fn new(configured: Level) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let opened = Store::open(directory.path().join("state"), clock::now().wall);
        let (store, loaded) = block_on(opened).unwrap();
        let rules = Rules {
            level: configured,
            ..Rules::default()
        };
        let parts = proxy::ProxyDependencies {
            executor: Rc::new(Executor::new()),
            client: None,
            delegate: None,
            rules,
            spool: Spool::new(directory.path()),
        };
        let proxy = Rc::new(Proxy::audited(parts, store.handle().into()));
        let shared_state = Rc::new(SharedState::new(clock::now));
        let parts = AccessDependencies {
            configured: Configured {
                rules,
                from: "here:1".to_owned(),
                edit: "change it here".to_owned(),
            },
            proxy: Rc::clone(&proxy),
            audit_writer: store.handle().into(),
            shared_state: Rc::clone(&shared_state),
        };
        Self {
            access: Access::new(parts, &loaded.notes),
            proxy,
            shared_state,
            store,
            directory,
        }
    }

    fn level(&self) -> Level {
        self.proxy.rules().level
    }

    fn notes(&self) -> String {
        let path = self.directory.path().join("state/notes.json");
        std::fs::read_to_string(path).unwrap_or_default()
    }
}

/// The rows that are on disk, by whoever looks.
fn rows(directory: &Path) -> Vec<(String, String)> {
    let path = directory.join("state/state.db");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = Connection::open_with_flags(path, flags).unwrap();
    let mut query = connection
        .prepare("SELECT who, what FROM audit ORDER BY number")
        .unwrap();
    let rows = query
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn a_change_is_on_disk_before_its_effect_and_kept_after_it() {
    let room = Room::new(Level::Full);
    block_on(async {
        for (level, what) in [
            (Level::Off, "access full -> off"),
            (Level::Managed, "access off -> managed"),
        ] {
            let before = room.level();
            let mut change = pin!(room.access.set(level, &ROOT));
            let done = loop {
                // Looked at after every step that the change makes.
                let step = poll_once(change.as_mut()).await;
                let is_in_force = room.level() != before;
                let last = rows(room.directory.path()).pop();
                let row = ("uid 0, pid 7".to_owned(), what.to_owned());
                assert!(!is_in_force || last == Some(row), "{last:?}");
                if let Some(done) = step {
                    break done.unwrap();
                }
                wait_a_turn().await;
            };
            assert!(done.is_kept && done.trouble.is_none(), "{done:?}");
            assert_eq!(room.level(), level);
            assert!(room.notes().contains(level.as_str()), "{}", room.notes());
        }
    });
}

/// Lets the store's thread do something.
async fn wait_a_turn() {
    smol::Timer::after(std::time::Duration::from_millis(1)).await;
}

#[test]
fn strictness_does_not_wait_for_a_disk() {
    let room = Room::new(Level::Managed);
    block_on(async {
        room.store.close().await.unwrap();
        let done = room.access.set(Level::Off, &ROOT).await.unwrap();
        assert_eq!(done.level, "off");
        assert!(!done.is_kept);
        let trouble = done.trouble.unwrap();
        assert!(trouble.contains("not in the audit"), "{trouble}");
        assert!(trouble.contains("does not survive a restart"), "{trouble}");
    });
    assert_eq!(room.proxy.rules().level, Level::Off);
    let holds = room
        .shared_state
        .with_conditions(|list| list.get("access.not-kept").is_some());
    assert!(holds);
}

#[test]
fn two_wishes_at_once_are_granted_one_after_the_other() {
    let room = Room::new(Level::Managed);
    let operator = operator(4242);
    block_on(async {
        let tighten = room.access.set(Level::Off, &operator);
        let loosen = room.access.set(Level::ReadOnly, &operator);
        let (granted, denied) = smol::future::zip(tighten, loosen).await;
        assert_eq!(granted.unwrap().level, "off");
        let Err(Refused::Forbidden(refusal)) = denied else {
            panic!("{denied:?}");
        };
        assert_eq!(
            refusal.fix.as_deref(),
            Some("sudo pipeops-agent access read-only")
        );
    });
    assert_eq!(room.level(), Level::Off);
}
