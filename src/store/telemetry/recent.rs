//! Recent events for people: rows from the newest back, and the boots of the machine.

use rusqlite::Connection;

use super::{boots::Boots, signed, unsigned};
use crate::core::{outbox::Row, time::Wall};

/// Rows before a sequence, the newest first.
pub(super) fn rows(
    connection: &Connection,
    table: &str,
    before: Option<u64>,
    count_max: u32,
) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT sequence, wall, body FROM {table} WHERE sequence < ?1 ORDER BY sequence DESC LIMIT ?2"
    ))?;
    let before = before.map_or(i64::MAX, signed);
    let rows = statement.query_map([before, i64::from(count_max)], |row| {
        Ok(Row {
            sequence: unsigned(row.get(0)?),
            at: Wall::from_millis(row.get(1)?),
            body: row.get(2)?,
        })
    })?;
    rows.collect()
}

/// Returns when the boots began that samples are of, as far as the clock of each is known.
pub(super) fn boots(boots: &Boots) -> Vec<Wall> {
    boots.offsets().map(Wall::from_millis).collect()
}
