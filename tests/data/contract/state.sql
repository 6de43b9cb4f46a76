-- state.db: user_version 3
CREATE TABLE audit (
    number         INTEGER PRIMARY KEY,
    at             INTEGER NOT NULL,
    who            TEXT NOT NULL,
    what           TEXT NOT NULL,
    verdict        TEXT NOT NULL CHECK (verdict IN ('permitted', 'refused')),
    why            TEXT NOT NULL,
    outcome        TEXT,
    received_bytes INTEGER,
    sent_bytes     INTEGER,
    duration_ms    INTEGER
, sequence INTEGER) STRICT;
CREATE UNIQUE INDEX audit_sequence ON audit (sequence) WHERE sequence IS NOT NULL;
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
CREATE TABLE change (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    id      TEXT NOT NULL UNIQUE,
    origin  TEXT NOT NULL,
    kind    TEXT NOT NULL,
    body    TEXT NOT NULL,
    started INTEGER NOT NULL,
    ended   INTEGER,
    outcome TEXT CHECK (outcome IN ('done', 'undone', 'failed')),
    why     TEXT, sequence INTEGER, fix TEXT,
    CHECK ((ended IS NULL) = (outcome IS NULL))
) STRICT;
CREATE UNIQUE INDEX change_sequence ON change (sequence) WHERE sequence IS NOT NULL;
CREATE INDEX change_unfinished ON change (number) WHERE ended IS NULL;
CREATE TABLE command (
    id     TEXT PRIMARY KEY,
    issued INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX command_issued ON command (issued);
CREATE TABLE identity (
    only            INTEGER PRIMARY KEY CHECK (only = 1),
    generation      INTEGER NOT NULL,
    agent_id        TEXT NOT NULL,
    cluster_id      TEXT,
    cluster_uuid    TEXT,
    gateway_ws_url  TEXT,
    machine         TEXT,
    board           TEXT,
    left_agent_id   TEXT,
    left_cluster_id TEXT
) STRICT;
CREATE TABLE step (
    change   INTEGER NOT NULL REFERENCES change (number) ON DELETE CASCADE,
    position INTEGER NOT NULL CHECK (position >= 0),
    name     TEXT NOT NULL,
    state    TEXT NOT NULL CHECK (state IN ('intended', 'acted', 'verified', 'done', 'failed', 'undone')),
    undo     TEXT,
    detail   TEXT,
    updated  INTEGER NOT NULL,
    PRIMARY KEY (change, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE stream (
    name  TEXT PRIMARY KEY,
    -- Below 2^53: it is a number in JSON.
    epoch INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
