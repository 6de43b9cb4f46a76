-- Frozen: what has been released is never edited, only followed by a higher number.
-- What is delivered gets the next sequence of its stream when it is over, in the same transaction: an audit row when it ends, a sum when it
-- is written, a change when it ends. Sequences of the audit are shared by its rows and sums. The newest of each is never removed, so the
-- largest sequence that is there is the last one that was given.

CREATE TABLE stream (
    name  TEXT PRIMARY KEY,
    -- Below 2^53: it is a number in JSON.
    epoch INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO stream VALUES
    ('audit', random() & 9007199254740991),
    ('outcomes', random() & 9007199254740991);

ALTER TABLE audit ADD COLUMN sequence INTEGER;

UPDATE audit SET sequence = placed.place
FROM (SELECT number AS row, row_number() OVER (ORDER BY number) AS place FROM audit) AS placed
WHERE number = placed.row;

CREATE UNIQUE INDEX audit_sequence ON audit (sequence) WHERE sequence IS NOT NULL;

-- A sum that was delivered does not grow any more: what comes later in its minute is a sum of its own.
ALTER TABLE audit_sum RENAME TO audit_sum_1;

CREATE TABLE audit_sum (
    sequence       INTEGER PRIMARY KEY,
    minute         INTEGER NOT NULL,
    who            TEXT NOT NULL,
    what           TEXT NOT NULL,
    verdict        TEXT NOT NULL CHECK (verdict IN ('permitted', 'refused')),
    why            TEXT NOT NULL,
    count          INTEGER NOT NULL,
    received_bytes INTEGER NOT NULL,
    sent_bytes     INTEGER NOT NULL,
    duration_ms    INTEGER NOT NULL
) STRICT;

INSERT INTO audit_sum
SELECT (SELECT count(*) FROM audit) + row_number() OVER (ORDER BY minute, who, what, verdict, why),
       minute, who, what, verdict, why, count, received_bytes, sent_bytes, duration_ms
FROM audit_sum_1;

DROP TABLE audit_sum_1;

ALTER TABLE change ADD COLUMN sequence INTEGER;

UPDATE change SET sequence = placed.place
FROM (SELECT number AS row, row_number() OVER (ORDER BY ended, number) AS place FROM change WHERE ended IS NOT NULL) AS placed
WHERE number = placed.row;

CREATE UNIQUE INDEX change_sequence ON change (sequence) WHERE sequence IS NOT NULL;
