-- Frozen: what has been released is never edited, only followed by a higher number.
-- Times are milliseconds since 1970. Sequences count the minutes that were measured: 1, 2, 3 … within the epoch.

CREATE TABLE meta (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    epoch INTEGER NOT NULL
) STRICT;

CREATE TABLE boot (
    number         INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    -- Wall clock minus the clock since boot: a guess that keeps boots in their order, and what it was once it could be believed.
    guess_ms       INTEGER NOT NULL,
    wall_offset_ms INTEGER
) STRICT;

CREATE TABLE series (
    number INTEGER PRIMARY KEY,
    key    TEXT NOT NULL,
    digits INTEGER NOT NULL,
    UNIQUE (key, digits)
) STRICT;

-- The journal. In the order of its key, so that a flush writes one end of the tree.
CREATE TABLE minute (
    sequence INTEGER PRIMARY KEY,
    block    BLOB NOT NULL
) STRICT;

-- Level 0 are single values, with their ticks here; 1, 2 and 3 are steps from wall_from on.
CREATE TABLE chunk (
    number        INTEGER PRIMARY KEY,
    level         INTEGER NOT NULL,
    sequence_from INTEGER NOT NULL,
    sequence_to   INTEGER NOT NULL,
    wall_from     INTEGER NOT NULL,
    wall_to       INTEGER NOT NULL,
    boot          INTEGER,
    -- Whether it is contained in a chunk of the next level.
    is_rolled     INTEGER NOT NULL,
    ticks         BLOB
) STRICT;

CREATE INDEX chunk_sequence ON chunk (level, sequence_from);
CREATE INDEX chunk_wall ON chunk (wall_from);

-- Its number is that of its chunk times 65536 plus that of its series.
CREATE TABLE part (
    number  INTEGER PRIMARY KEY,
    columns BLOB NOT NULL
) STRICT;

CREATE TABLE event (
    sequence INTEGER PRIMARY KEY,
    wall     INTEGER NOT NULL,
    body     TEXT NOT NULL
) STRICT;

CREATE TABLE log (
    sequence INTEGER PRIMARY KEY,
    wall     INTEGER NOT NULL,
    body     TEXT NOT NULL
) STRICT;

-- What each destination has: at most 16 ranges of one epoch, as text: 1-70 75-80.
CREATE TABLE cursor (
    destination TEXT NOT NULL,
    stream      TEXT NOT NULL,
    epoch       INTEGER NOT NULL,
    ranges      TEXT NOT NULL,
    PRIMARY KEY (destination, stream)
) STRICT, WITHOUT ROWID;

-- What was removed, so that it can be told to who comes later.
CREATE TABLE gap (
    stream        TEXT NOT NULL,
    sequence_from INTEGER NOT NULL,
    sequence_to   INTEGER NOT NULL,
    why           TEXT NOT NULL,
    PRIMARY KEY (stream, sequence_from)
) STRICT, WITHOUT ROWID;
