-- Format 1 of the PostgreSQL store. A later format is a file of its own that changes this one.
--
-- Times are milliseconds since 1970, bodies are the rows that every store writes. Names compare by their bytes, which
-- is the order that every store has. Each table has one index, for each costs as much as the row itself: an event is
-- found by its place, and a made id carries that.

CREATE TABLE store (
    format int NOT NULL,
    partitions int NOT NULL,
    created_at bigint NOT NULL,
    cluster text,
    claimed_epoch bigint,  -- the highest one when the cluster claimed the store
    blocks bigint NOT NULL DEFAULT -1  -- of sequences that were given away
);

CREATE TABLE fence (
    partition int PRIMARY KEY,
    epoch bigint NOT NULL
);

-- The last operation of each process that writes, so that it can learn after a lost connection whether it was made.
CREATE TABLE writers (
    writer bigint PRIMARY KEY,
    operation bigint NOT NULL,
    result bigint NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);

CREATE TABLE scheduled (
    run_at bigint NOT NULL,
    sequence bigint NOT NULL,
    partition int NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (partition, run_at, sequence)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

CREATE TABLE waiting (
    partition int NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    due_at bigint NOT NULL,
    sequence bigint NOT NULL,
    body bytea,
    PRIMARY KEY (partition, tenant, key, due_at, sequence)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

CREATE TABLE dead (
    tenant text COLLATE "C" NOT NULL,
    run_at bigint NOT NULL,
    sequence bigint NOT NULL,
    body bytea,
    PRIMARY KEY (tenant, run_at, sequence)
);

-- What is kept of finished events, by the hour in which it expires; occurrence 0 is that of an event that is over.
CREATE TABLE records (
    hour int NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    occurrence bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (hour, tenant, id, occurrence)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- Where events lie whose ids were given by clients, or that are not where their made ids say.
-- space is E (scheduled), W (waiting), D (dead) or H (finished: then at is the hour of the record).
CREATE TABLE ids (
    tenant text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    space text NOT NULL,
    partition int NOT NULL,
    at bigint NOT NULL,
    sequence bigint NOT NULL,
    key text COLLATE "C",
    PRIMARY KEY (tenant, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE heads (
    partition int NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    head bigint,
    PRIMARY KEY (partition, tenant, key)
) WITH (fillfactor = 80);

-- Each writer adds to rows of its own, so that none waits for another; the sums are what counts.
CREATE TABLE counts (
    tenant text COLLATE "C" NOT NULL,
    writer bigint NOT NULL,
    pending bigint NOT NULL,
    dead bigint NOT NULL,
    delivered bigint NOT NULL,
    cancelled bigint NOT NULL,
    expired bigint NOT NULL,
    PRIMARY KEY (tenant, writer)
) WITH (fillfactor = 20);

-- Rows that could not be decoded.
CREATE TABLE graves (
    space text NOT NULL,
    partition int NOT NULL,
    tenant text,
    key text,
    at bigint NOT NULL,
    sequence bigint NOT NULL,
    body bytea NOT NULL,
    buried_at timestamptz NOT NULL DEFAULT now()
);

-- Whoever writes under an epoch shares a lock of that epoch until its transaction ends, and whoever takes partitions
-- has the locks of all epochs that were in force for them to itself. A lock of an epoch costs nothing on disk, and one
-- serves all partitions that came with it; the rows of the fence say what is in force.
CREATE FUNCTION epoch_lock(epoch bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (hashtext(current_schema())::bigint << 32) | (epoch & 4294967295)
$$;

-- Remember the operation, or fail if it was given up in the meantime.
CREATE FUNCTION settle(by_writer bigint, its_operation bigint, its_result bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO writers AS w (writer, operation, result) VALUES (by_writer, its_operation, its_result)
    ON CONFLICT (writer) DO UPDATE SET operation = its_operation, result = its_result, seen_at = now()
    WHERE w.operation < its_operation;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'operation % of writer % was given up', its_operation, by_writer USING ERRCODE = 'EB001';
    END IF;
END
$$;

-- Put epochs in force. Returns the partitions whose epoch is as high already, or the next block of sequences.
CREATE FUNCTION take_partitions(
    by_writer bigint, its_operation bigint, wanted int[], wanted_epochs bigint[], OUT fenced int[], OUT block bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM store FOR UPDATE;  -- One at a time.
    PERFORM pg_advisory_xact_lock(epoch_lock(epoch))
    FROM (SELECT DISTINCT epoch FROM fence WHERE partition = ANY (wanted) ORDER BY epoch) AS in_force;
    SELECT array_agg(w.partition ORDER BY w.partition) INTO fenced
    FROM unnest(wanted, wanted_epochs) AS w (partition, epoch) LEFT JOIN fence AS f ON f.partition = w.partition
    WHERE f.epoch IS NULL OR f.epoch >= w.epoch;
    IF fenced IS NOT NULL THEN
        RETURN;
    END IF;
    UPDATE fence AS f SET epoch = w.epoch
    FROM unnest(wanted, wanted_epochs) AS w (partition, epoch) WHERE f.partition = w.partition;
    UPDATE store SET blocks = blocks + 1 RETURNING blocks INTO block;
    PERFORM settle(by_writer, its_operation, block);
END
$$;

-- Make the changes of one apply that were not copied in before, in the same transaction. Returns the partitions whose
-- epoch is another one, or that a claimed id is taken: then nothing was made here.
CREATE FUNCTION apply_changes(
    by_writer bigint, its_operation bigint, is_relaxed boolean,
    claimed int[], claimed_epochs bigint[],
    gone_partitions int[], gone_run_ats bigint[], gone_sequences bigint[],
    new_partitions int[], new_run_ats bigint[], new_sequences bigint[], new_bodies bytea[],
    record_hours int[], record_tenants text[], record_ids text[], record_occurrences bigint[], record_bodies bytea[],
    counted counts[],
    gone_waiting waiting[], new_waiting waiting[],
    gone_dead dead[], new_dead dead[],
    freed_ids ids[], claimed_ids ids[], put_ids ids[], gone_ids ids[],
    put_heads heads[], gone_heads heads[],
    OUT fenced int[], OUT taken boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- Rows that go are found one by one, and then deleted by where they lie. Joined with what is to go, the planner would
    -- compare all with all as soon as it believes that a table is empty: it is at times, and is analysed then, too.
    places tid[];
BEGIN
    taken := false;
    PERFORM pg_advisory_xact_lock_shared(epoch_lock(epoch))
    FROM (SELECT DISTINCT epoch FROM unnest(claimed_epochs) AS epoch ORDER BY epoch) AS own;
    SELECT array_agg(c.partition ORDER BY c.partition) INTO fenced
    FROM unnest(claimed, claimed_epochs) AS c (partition, epoch) LEFT JOIN fence AS f ON f.partition = c.partition
    WHERE f.epoch IS DISTINCT FROM c.epoch;
    IF fenced IS NOT NULL THEN
        RETURN;
    END IF;

    IF cardinality(claimed_ids) > 0 THEN
        BEGIN
            places := ARRAY(
                SELECT (SELECT i.ctid FROM ids AS i WHERE i.tenant = f.tenant AND i.id = f.id
                        AND (i.space, i.at, i.sequence) = (f.space, f.at, f.sequence))
                FROM unnest(freed_ids) AS f);
            DELETE FROM ids WHERE ctid = ANY (places);
            INSERT INTO ids SELECT * FROM unnest(claimed_ids);
        EXCEPTION WHEN unique_violation THEN
            taken := true;
            RETURN;
        END;
    END IF;

    -- Whatever goes goes first, for something new may come to its place.
    IF cardinality(gone_partitions) > 0 THEN
        places := ARRAY(
            SELECT (SELECT s.ctid FROM scheduled AS s
                    WHERE s.partition = g.partition AND s.run_at = g.run_at AND s.sequence = g.sequence)
            FROM unnest(gone_partitions, gone_run_ats, gone_sequences) AS g (partition, run_at, sequence));
        DELETE FROM scheduled WHERE ctid = ANY (places);
    END IF;
    IF cardinality(gone_waiting) > 0 THEN
        places := ARRAY(
            SELECT (SELECT w.ctid FROM waiting AS w
                    WHERE (w.partition, w.tenant, w.key, w.due_at, w.sequence)
                        = (g.partition, g.tenant, g.key, g.due_at, g.sequence))
            FROM unnest(gone_waiting) AS g);
        DELETE FROM waiting WHERE ctid = ANY (places);
    END IF;
    IF cardinality(gone_dead) > 0 THEN
        places := ARRAY(
            SELECT (SELECT d.ctid FROM dead AS d
                    WHERE (d.tenant, d.run_at, d.sequence) = (g.tenant, g.run_at, g.sequence))
            FROM unnest(gone_dead) AS g);
        DELETE FROM dead WHERE ctid = ANY (places);
    END IF;
    IF cardinality(gone_ids) > 0 THEN
        places := ARRAY(
            SELECT (SELECT i.ctid FROM ids AS i WHERE (i.tenant, i.id) = (g.tenant, g.id)) FROM unnest(gone_ids) AS g);
        DELETE FROM ids WHERE ctid = ANY (places);
    END IF;
    IF cardinality(gone_heads) > 0 THEN
        places := ARRAY(
            SELECT (SELECT h.ctid FROM heads AS h
                    WHERE (h.partition, h.tenant, h.key) = (g.partition, g.tenant, g.key))
            FROM unnest(gone_heads) AS g);
        DELETE FROM heads WHERE ctid = ANY (places);
    END IF;

    IF cardinality(new_partitions) > 0 THEN
        INSERT INTO scheduled (partition, run_at, sequence, body)
        SELECT * FROM unnest(new_partitions, new_run_ats, new_sequences, new_bodies);
    END IF;
    IF cardinality(new_waiting) > 0 THEN
        INSERT INTO waiting SELECT * FROM unnest(new_waiting);
    END IF;
    IF cardinality(new_dead) > 0 THEN
        INSERT INTO dead SELECT * FROM unnest(new_dead);
    END IF;
    IF cardinality(record_hours) > 0 THEN
        INSERT INTO records (hour, tenant, id, occurrence, body)
        SELECT * FROM unnest(record_hours, record_tenants, record_ids, record_occurrences, record_bodies)
        ON CONFLICT (hour, tenant, id, occurrence) DO UPDATE SET body = excluded.body;
    END IF;
    IF cardinality(put_ids) > 0 THEN
        INSERT INTO ids SELECT * FROM unnest(put_ids)
        ON CONFLICT (tenant, id) DO UPDATE SET space = excluded.space, partition = excluded.partition,
            at = excluded.at, sequence = excluded.sequence, key = excluded.key;
    END IF;
    IF cardinality(put_heads) > 0 THEN
        INSERT INTO heads SELECT * FROM unnest(put_heads)
        ON CONFLICT (partition, tenant, key) DO UPDATE SET head = excluded.head;
    END IF;
    IF cardinality(counted) > 0 THEN
        INSERT INTO counts AS c SELECT * FROM unnest(counted)
        ON CONFLICT (tenant, writer) DO UPDATE SET pending = c.pending + excluded.pending,
            dead = c.dead + excluded.dead, delivered = c.delivered + excluded.delivered,
            cancelled = c.cancelled + excluded.cancelled, expired = c.expired + excluded.expired;
    END IF;

    PERFORM settle(by_writer, its_operation, 0);
    IF is_relaxed THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;
