-- Frozen: what has been released is never edited, only followed by a higher number.
-- The minutes in which a series was there first and last. seen is brought up to date when an hour is finished: each time on the first day of a
-- series, then once a day. A number is given again when the last sample of its series is gone; born tells the two apart.

ALTER TABLE series ADD COLUMN born INTEGER NOT NULL DEFAULT 1;
ALTER TABLE series ADD COLUMN seen INTEGER NOT NULL DEFAULT 0;

UPDATE series SET seen = max(
    ifnull((SELECT max(sequence) FROM minute), 0),
    ifnull((SELECT max(sequence_to) FROM chunk), 0)
);

-- The first minute of a boot; 0: it is not known.
ALTER TABLE boot ADD COLUMN sequence_from INTEGER NOT NULL DEFAULT 0;
