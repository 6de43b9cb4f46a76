-- Frozen: what has been released is never edited, only followed by a higher number.
-- Commands that were accepted, beyond the changes that they began: none is carried out twice. `issued` is the time that the control
-- plane gave it, in milliseconds since 1970. Where the table is full, the command that was issued first makes room, and nothing that was
-- issued before the first one that is left is accepted any more.

CREATE TABLE command (
    id     TEXT PRIMARY KEY,
    issued INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX command_issued ON command (issued);

-- Action for a person.
ALTER TABLE change ADD COLUMN fix TEXT;

PRAGMA application_id = 2;
