-- telemetry.db: user_version 2
CREATE TABLE boot (
    number         INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    -- Wall clock minus the clock since boot: a guess that keeps boots in their order, and what it was once it could be believed.
    guess_ms       INTEGER NOT NULL,
    wall_offset_ms INTEGER
, sequence_from INTEGER NOT NULL DEFAULT 0) STRICT;
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
CREATE TABLE cursor (
    destination TEXT NOT NULL,
    stream      TEXT NOT NULL,
    epoch       INTEGER NOT NULL,
    ranges      TEXT NOT NULL,
    PRIMARY KEY (destination, stream)
) STRICT, WITHOUT ROWID;
CREATE TABLE event (
    sequence INTEGER PRIMARY KEY,
    wall     INTEGER NOT NULL,
    body     TEXT NOT NULL
) STRICT;
CREATE TABLE gap (
    stream        TEXT NOT NULL,
    sequence_from INTEGER NOT NULL,
    sequence_to   INTEGER NOT NULL,
    why           TEXT NOT NULL,
    PRIMARY KEY (stream, sequence_from)
) STRICT, WITHOUT ROWID;
CREATE TABLE log (
    sequence INTEGER PRIMARY KEY,
    wall     INTEGER NOT NULL,
    body     TEXT NOT NULL
) STRICT;
CREATE TABLE meta (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    epoch INTEGER NOT NULL
) STRICT;
CREATE TABLE minute (
    sequence INTEGER PRIMARY KEY,
    block    BLOB NOT NULL
) STRICT;
CREATE TABLE part (
    number  INTEGER PRIMARY KEY,
    columns BLOB NOT NULL
) STRICT;
CREATE TABLE series (
    number INTEGER PRIMARY KEY,
    key    TEXT NOT NULL,
    digits INTEGER NOT NULL, born INTEGER NOT NULL DEFAULT 1, seen INTEGER NOT NULL DEFAULT 0,
    UNIQUE (key, digits)
) STRICT;
