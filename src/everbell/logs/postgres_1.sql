-- Format 1 of the log in PostgreSQL. A later format is a file of its own that changes this one.

-- One row. Whoever appends holds it until its entry is committed, so entries become visible in order and without gaps.
CREATE TABLE log_head (
    format int NOT NULL,
    last_index bigint NOT NULL,
    trimmed bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE log_entries (
    index bigint PRIMARY KEY,
    data bytea NOT NULL
);

CREATE TABLE log_snapshot (
    one boolean PRIMARY KEY CHECK (one),
    index bigint NOT NULL,
    data bytea NOT NULL
);

-- The times are those of the server's clock, and of no other.
CREATE TABLE log_leases (
    member text COLLATE "C" PRIMARY KEY,
    ends_at timestamptz NOT NULL
) WITH (fillfactor = 50);

INSERT INTO log_head VALUES (1, 0, 0);
