//! Cursors of the destinations, which decide what may not be deleted yet.

use std::collections::BTreeSet;

use litemap::LiteMap;
use rusqlite::{Connection, Transaction, params};

use super::{signed, unsigned};
use crate::core::outbox::{Cursor, Range, Stream};

/// Destinations times streams that are known at most.
const CURSORS_MAX: usize = 64;

/// Cursors of all destinations. They are written with the next flush: an acknowledgement that a
/// power cut takes is asked for again.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    known: LiteMap<(String, Stream), (u64, Cursor)>,
    /// Destinations that may still be on disk and are none any more.
    forgotten: BTreeSet<String>,
    is_dirty: bool,
}

impl Cursors {
    /// Those on disk.
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut statement =
            connection.prepare_cached("SELECT destination, stream, epoch, ranges FROM cursor")?;
        let mut rows = statement.query([])?;
        let mut known = LiteMap::new();
        while let Some(row) = rows.next()? {
            let (stream, ranges): (String, String) = (row.get(1)?, row.get(3)?);
            if let Some(stream) = Stream::of(&stream)
                && known.len() < CURSORS_MAX
            {
                let cursor = Cursor::of(ranges.split(' ').filter_map(range));
                known.insert((row.get(0)?, stream), (unsigned(row.get(2)?), cursor));
            }
        }
        Ok(Self {
            known,
            forgotten: BTreeSet::new(),
            is_dirty: false,
        })
    }

    /// Takes those that were on disk when that could be read at last. What was settled since is
    /// newer.
    pub(super) fn join(&mut self, found: Self) {
        for (key, at) in found.known {
            if self.forgotten.contains(&key.0) {
                self.is_dirty = true;
                continue;
            }
            let known = self.known.entry(key).or_insert_with(|| at.clone());
            if known.0 == 0 {
                *known = at;
            }
        }
    }

    /// Nobody waits for records under this name any more.
    pub(super) fn forget(&mut self, destination: &str) {
        let before = self.known.len();
        self.known.retain(|(known, _), _| known != destination);
        self.is_dirty |= self.known.len() < before;
        self.forgotten.insert(destination.to_owned());
    }

    /// Position of a destination in a stream: known from now on, whether it has anything or not.
    pub(super) fn position(
        &mut self,
        destination: String,
        stream: Stream,
        epoch: Option<u64>,
    ) -> (u64, Cursor) {
        self.forgotten.remove(&destination);
        let key = (destination, stream);
        let known = self.known.get(&key);
        match (known, epoch) {
            (Some((of, cursor)), None) => (*of, cursor.clone()),
            (Some((of, cursor)), Some(epoch)) if *of == epoch => (epoch, cursor.clone()),
            (_, epoch) => {
                let begin = (epoch.unwrap_or(0), Cursor::default());
                if self.known.len() < CURSORS_MAX || known.is_some() {
                    self.known.insert(key, begin.clone());
                    self.is_dirty = true;
                }
                begin
            }
        }
    }

    /// Keeps what a destination has.
    pub(super) fn settle(&mut self, destination: String, stream: Stream, at: (u64, Cursor)) {
        let key = (destination, stream);
        if self.known.get(&key) != Some(&at)
            && (self.known.len() < CURSORS_MAX || self.known.contains_key(&key))
        {
            self.known.insert(key, at);
            self.is_dirty = true;
        }
    }

    pub(super) const fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Writes those that are not on disk.
    pub(super) fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        if !self.is_dirty {
            return Ok(());
        }
        let mut delete = transaction.prepare_cached("DELETE FROM cursor WHERE destination = ?1")?;
        for destination in &self.forgotten {
            delete.execute([destination])?;
        }
        let mut upsert = transaction.prepare_cached(
            "INSERT INTO cursor (destination, stream, epoch, ranges) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO UPDATE SET epoch = ?3, ranges = ?4 WHERE epoch != ?3 OR ranges != ?4",
        )?;
        for ((destination, stream), (epoch, cursor)) in &self.known {
            let ranges: Vec<String> = cursor
                .ranges()
                .map(|range| format!("{}-{}", range.from(), range.to()))
                .collect();
            upsert.execute(params![
                destination,
                stream.as_str(),
                signed(*epoch),
                ranges.join(" ")
            ])?;
        }
        Ok(())
    }

    /// They are on disk.
    pub(super) const fn written(&mut self) {
        self.is_dirty = false;
    }

    /// The database was recreated: destinations are kept, what they had of it is void.
    pub(super) fn reset(&mut self, is_void: impl Fn(Stream) -> bool) {
        for ((_, stream), at) in &mut self.known {
            if is_void(*stream) {
                *at = (0, Cursor::default());
            }
        }
        self.is_dirty = true;
    }

    /// Returns whether some destination still has to get a record of this range.
    pub(super) fn want(&self, stream: Stream, epoch: u64, range: Range) -> bool {
        self.of(stream)
            .any(|(of, cursor)| of != epoch || !cursor.missing(range).is_empty())
    }

    fn of(&self, stream: Stream) -> impl Iterator<Item = (u64, &Cursor)> {
        self.known
            .iter()
            .filter(move |((_, of), _)| *of == stream)
            .map(|(_, (epoch, cursor))| (*epoch, cursor))
    }

    /// All: who, of which stream, what.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Stream, u64, &Cursor)> {
        self.known
            .iter()
            .map(|((who, stream), (epoch, cursor))| (who.as_str(), *stream, *epoch, cursor))
    }
}

fn range(text: &str) -> Option<Range> {
    let (from, to) = text.split_once('-')?;
    Range::new(from.parse().ok()?, to.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::schema;
    use Stream::{Audit, Events, Metrics};

    const EPOCH: u64 = 7;

    fn up_to(last: u64) -> Cursor {
        Cursor::of(Range::new(1, last))
    }

    fn database() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        schema::migrate(&mut connection, &schema::TELEMETRY).unwrap();
        connection
    }

    fn written(connection: &mut Connection, cursors: &mut Cursors) {
        let transaction = connection.transaction().unwrap();
        cursors.write(&transaction).unwrap();
        transaction.commit().unwrap();
        cursors.written();
    }

    /// Cursors that know of `destination` in `stream` that it has the first `last` records.
    fn known(destination: &str, stream: Stream, last: u64) -> Cursors {
        let mut cursors = Cursors::default();
        cursors.settle(destination.to_owned(), stream, (EPOCH, up_to(last)));
        cursors
    }

    fn position(cursors: &mut Cursors, destination: &str, epoch: u64) -> Cursor {
        let (of, cursor) = cursors.position(destination.to_owned(), Metrics, Some(epoch));
        assert_eq!(of, epoch);
        cursor
    }

    #[test]
    fn what_is_settled_is_written_and_what_is_forgotten_leaves_the_disk() {
        let mut database = database();
        let mut cursors = known("plane", Metrics, 5);
        assert!(cursors.is_dirty());
        written(&mut database, &mut cursors);
        cursors.settle("plane".to_owned(), Metrics, (EPOCH, up_to(5)));
        assert!(!cursors.is_dirty(), "it is on disk already");
        cursors.settle("plane".to_owned(), Metrics, (EPOCH, up_to(9)));
        assert!(cursors.is_dirty());
        written(&mut database, &mut cursors);
        let mut found = Cursors::load(&database).unwrap();
        assert_eq!(position(&mut found, "plane", EPOCH), up_to(9));

        cursors.forget("plane");
        assert!(cursors.is_dirty());
        written(&mut database, &mut cursors);
        assert_eq!(Cursors::load(&database).unwrap().iter().count(), 0);
    }

    #[test]
    fn what_is_known_of_another_epoch_counts_for_nothing() {
        let mut cursors = known("plane", Metrics, 5);
        let range = |from, to| Range::new(from, to).unwrap();
        assert!(!cursors.want(Metrics, EPOCH, range(1, 5)));
        assert!(cursors.want(Metrics, EPOCH, range(5, 6)));
        assert!(cursors.want(Metrics, EPOCH + 1, range(1, 5)));
        assert!(!cursors.want(Events, EPOCH, range(1, 9)), "nobody waits");
        assert_eq!(position(&mut cursors, "plane", EPOCH), up_to(5));
        assert_eq!(
            position(&mut cursors, "plane", EPOCH + 1),
            Cursor::default()
        );
    }

    #[test]
    fn a_disk_that_comes_late_adds_what_nobody_knew_and_replaces_nothing() {
        let mut cursors = known("newer", Metrics, 9);
        cursors.forget("gone");
        cursors.forget("back");
        cursors.position("back".to_owned(), Metrics, None);
        for destination in ["newer", "gone", "back", "only there"] {
            cursors.join(known(destination, Metrics, 5));
        }
        let all: Vec<_> = cursors
            .iter()
            .map(|(who, _, _, cursor)| (who, cursor.clone()))
            .collect();
        let wanted = [
            ("back", up_to(5)),
            ("newer", up_to(9)),
            ("only there", up_to(5)),
        ];
        assert_eq!(all, wanted);
        assert!(cursors.is_dirty(), "one of them is to leave the disk");
    }

    #[test]
    fn a_file_that_begins_anew_voids_what_was_known_of_it() {
        let mut cursors = known("plane", Metrics, 5);
        cursors.settle("plane".to_owned(), Audit, (EPOCH, up_to(5)));
        cursors.written();
        cursors.reset(|stream| stream == Metrics);
        let all: Vec<_> = cursors.iter().collect();
        let none = Cursor::default();
        let kept = up_to(5);
        let wanted = [("plane", Metrics, 0, &none), ("plane", Audit, EPOCH, &kept)];
        assert_eq!(all, wanted);
        assert!(cursors.is_dirty());
    }

    #[test]
    fn destinations_are_bounded() {
        let mut cursors = Cursors::default();
        for number in 0..=CURSORS_MAX {
            position(&mut cursors, &format!("d{number}"), EPOCH);
        }
        assert_eq!(cursors.iter().count(), CURSORS_MAX);
        // One that is known is not refused for that.
        cursors.settle("d0".to_owned(), Metrics, (EPOCH, up_to(3)));
        assert_eq!(position(&mut cursors, "d0", EPOCH), up_to(3));
        assert_eq!(position(&mut cursors, "d0", EPOCH + 1), Cursor::default());
        assert_eq!(position(&mut cursors, "d0", EPOCH + 1), Cursor::default());
    }
}
