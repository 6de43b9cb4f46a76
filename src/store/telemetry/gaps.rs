//! Gap records: sequence ranges that were lost.

use rusqlite::{Connection, Transaction, params};

use super::{signed, unsigned};
use crate::core::outbox::{Gap, Loss, Range, Stream};

/// The gaps of a stream, in order.
pub(super) fn load(connection: &Connection, stream: Stream) -> rusqlite::Result<Vec<Gap>> {
    let mut statement = connection.prepare_cached(
        "SELECT sequence_from, sequence_to, why FROM gap WHERE stream = ?1 ORDER BY sequence_from",
    )?;
    let mut rows = statement.query([stream.as_str()])?;
    let mut gaps = Vec::new();
    while let Some(row) = rows.next()? {
        let why: String = row.get(2)?;
        let range = Range::new(unsigned(row.get(0)?), unsigned(row.get(1)?));
        gaps.extend(range.map(|range| Gap {
            range,
            loss: Loss::of(&why).unwrap_or(Loss::Damaged),
        }));
    }
    Ok(gaps)
}

/// Writes all gaps of a stream: they are few.
pub(super) fn write(
    transaction: &Transaction<'_>,
    stream: Stream,
    gaps: &[Gap],
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM gap WHERE stream = ?1")?
        .execute([stream.as_str()])?;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO gap (stream, sequence_from, sequence_to, why) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for gap in gaps {
        insert.execute(params![
            stream.as_str(),
            signed(gap.range.from()),
            signed(gap.range.to()),
            gap.loss.as_str()
        ])?;
    }
    Ok(())
}
