//! Identity of the agent, on disk twice: in the database, and in a small file that survives a
//! damaged one.
//!
//! Invariant: no copy is ever replaced by one of a lower generation.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::{
    Failure, Handle,
    disk::{Disk, IDENTITY, NotCommitted},
};
use crate::{
    core::{
        identity::{Fingerprint, ForeignIdentity, Identity},
        time::Wall,
    },
    error::{Error, Result, Retry},
    files,
    wire::state::{Unreadable, read_identity, write_identity},
};

/// Ten times what an identity with the longest texts takes.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// Location of the current identity.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Stored {
    /// On disk, in both places or in one.
    OnDisk,
    /// In memory; it is written when the disk comes back.
    InMemory(Error),
}

/// The identity that the agent uses, and where it is already.
#[derive(Debug, Default)]
pub(super) struct StoredIdentity {
    current: Option<Identity>,
    pub(super) is_in_database: bool,
    is_in_file: bool,
    /// The agent id of a newer identity that was found on disk later.
    other: Option<String>,
}

impl StoredIdentity {
    /// Copies on disk at the start; the newer one is kept.
    pub(super) fn found(database: Option<&Identity>, file: Option<&Identity>) -> Self {
        let copies = [file, database].into_iter().flatten();
        let current = copies.max_by_key(|copy| copy.generation);
        Self {
            is_in_database: current.is_some() && database == current,
            is_in_file: current.is_some() && file == current,
            current: current.cloned(),
            other: None,
        }
    }

    /// Sentence on a different identity on disk.
    pub(super) fn other_in_words(&self) -> Option<String> {
        let (other, current) = (self.other.as_ref()?, self.current.as_ref()?);
        Some(format!(
            "the disk came back with the identity {other}, and this agent runs as {}",
            current.agent_id
        ))
    }
}

impl Handle {
    /// Keeps the identity, in both places. It may be called again with the same one.
    pub async fn keep_identity(
        &self,
        identity: Identity,
        now: Wall,
    ) -> std::result::Result<Stored, Failure> {
        self.queue(move |disk| {
            disk.set_latest_time(now);
            keep(disk, identity)
        })
        .await
    }
}

fn keep(disk: &mut Disk, identity: Identity) -> std::result::Result<Stored, Failure> {
    if let Some(current) = &disk.identity.current
        && current.generation > identity.generation
    {
        return Err(Failure::Conflict(format!(
            "the identity of generation {} was followed by {}",
            identity.generation, current.generation
        )));
    }
    disk.identity = StoredIdentity {
        current: Some(identity),
        ..StoredIdentity::default()
    };
    let trouble = settle(disk);
    let kept = &disk.identity;
    Ok(match trouble {
        Some(error) if !kept.is_in_database && !kept.is_in_file => Stored::InMemory(error),
        Some(_) | None => Stored::OnDisk,
    })
}

/// Writes the identity where it is not yet. Returns what was in the way.
pub(super) fn settle(disk: &mut Disk) -> Option<Error> {
    let identity = disk.identity.current.clone()?;
    if let Some(newer) = disk.newer() {
        return Some(newer.clone());
    }
    let mut trouble = None;
    // The file first: it is the copy that a damaged database cannot take with it.
    if !disk.identity.is_in_file {
        let mut written = write_file(disk.directory(), &identity);
        let is_later = |error: &Error| error.retry == Retry::Later;
        if written.as_ref().is_err_and(is_later) && disk.make_room() {
            written = write_file(disk.directory(), &identity);
        }
        match written {
            Ok(None) => disk.identity.is_in_file = true,
            Ok(Some(other)) => disk.identity.other = Some(other),
            Err(error) => trouble = Some(error),
        }
    }
    if !disk.identity.is_in_database {
        match disk.write(|transaction| upsert(transaction, &identity)) {
            Ok(None) => disk.identity.is_in_database = true,
            Ok(Some(other)) => disk.identity.other = Some(other),
            Err(failure) => trouble = Some(failure.into()),
        }
    }
    trouble
}

/// The identity in the file. A missing or damaged one is none; the error is that a newer program
/// wrote it.
pub(super) fn read_file(directory: &Path) -> Result<Option<Identity>> {
    let path = directory.join(IDENTITY);
    let Ok(Some(content)) = files::read_if_there(&path, FILE_BYTES_MAX) else {
        return Ok(None);
    };
    match read_identity(&content) {
        Ok(identity) => Ok(Some(identity)),
        Err(Unreadable::Damaged) => Ok(None),
        Err(Unreadable::Newer) => Err(Error::new(format!(
            "{} is from a newer pipeops-agent",
            path.display()
        ))
        .fix(
            "install the newer pipeops-agent again, or move the file away to start with a new one",
        )),
    }
}

/// Writes the file, unless a newer identity is in it: then returns the agent id of that.
fn write_file(directory: &Path, identity: &Identity) -> Result<Option<String>> {
    let found = read_file(directory)?;
    match found {
        Some(found) if found == *identity => return Ok(None),
        Some(found) if found.generation > identity.generation => return Ok(Some(found.agent_id)),
        Some(_) | None => {}
    }
    let path = directory.join(IDENTITY);
    let content = write_identity(identity)
        .map_err(|error| Error::new(format!("cannot write {}", path.display())).because(&error))?;
    files::replace(&path, &content, files::PRIVATE).map(|()| None)
}

/// Writes the row, unless a newer identity is in it: then returns the agent id of that.
fn upsert(
    transaction: &Transaction<'_>,
    identity: &Identity,
) -> std::result::Result<Option<String>, NotCommitted> {
    if let Some(found) = select(transaction)?
        && found.generation > identity.generation
    {
        return Ok(Some(found.agent_id));
    }
    let left = identity.left_behind.as_ref();
    transaction.execute(
        "INSERT OR REPLACE INTO identity VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            i64::try_from(identity.generation).unwrap_or(i64::MAX),
            identity.agent_id,
            identity.cluster_id,
            identity.cluster_uuid,
            identity.gateway_ws_url,
            identity.fingerprint.machine,
            identity.fingerprint.board,
            left.map(|left| &left.agent_id),
            left.and_then(|left| left.cluster_id.as_ref()),
        ],
    )?;
    Ok(None)
}

/// The identity in the database.
pub(super) fn select(connection: &Connection) -> rusqlite::Result<Option<Identity>> {
    let query =
        "SELECT generation, agent_id, cluster_id, cluster_uuid, gateway_ws_url, machine, board,
        left_agent_id, left_cluster_id FROM identity";
    connection
        .query_row(query, [], |row| {
            let left_agent_id: Option<String> = row.get(7)?;
            let left_cluster_id = row.get(8)?;
            Ok(Identity {
                generation: u64::try_from(row.get::<_, i64>(0)?).unwrap_or(0),
                agent_id: row.get(1)?,
                cluster_id: row.get(2)?,
                cluster_uuid: row.get(3)?,
                gateway_ws_url: row.get(4)?,
                fingerprint: Fingerprint {
                    machine: row.get(5)?,
                    board: row.get(6)?,
                },
                left_behind: left_agent_id.map(|agent_id| ForeignIdentity {
                    agent_id,
                    cluster_id: left_cluster_id,
                }),
            })
        })
        .optional()
}
