-- Everbell's outbox: schedule, cancel and reschedule events inside your own transactions.
--
--   SELECT everbell.schedule('{"to": "queue:mail", "in": "20m", "payload": {"order": 7}}');   the event's id
--   SELECT everbell.cancel('order-7');
--   SELECT everbell.reschedule('order-7', '{"by": "2h"}');
--   SELECT everbell.once('order-7', 1);   true for the first transaction that says so
--
-- Install it with `everbell outbox install URL`, or with your own migrations: it can run again, and changes nothing then.
-- Events and changes are the JSON of the HTTP API. They become rows of everbell.outbox, which `everbell serve --outbox`
-- collects after your commit. It needs PostgreSQL 13 or later.

CREATE SCHEMA IF NOT EXISTS everbell;

CREATE TABLE IF NOT EXISTS everbell.outbox_settings (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    format int NOT NULL,
    identity text NOT NULL,  -- names this outbox in the marks of changed events
    once_kept interval NOT NULL DEFAULT '30 days',
    refused_kept interval NOT NULL DEFAULT '30 days'
);
INSERT INTO everbell.outbox_settings (format, identity) VALUES (1, gen_random_uuid()::text) ON CONFLICT DO NOTHING;

CREATE SEQUENCE IF NOT EXISTS everbell.outbox_seq;

-- 1: every transaction notifies the collector. 2: the collector looks often enough by itself. A sequence, because its
-- value is current for every transaction and leaves no dead rows behind.
CREATE SEQUENCE IF NOT EXISTS everbell.outbox_wakeup;

CREATE TABLE IF NOT EXISTS everbell.outbox (
    seq bigint PRIMARY KEY,
    kind "char" NOT NULL,  -- s: schedule, c: cancel, r: reschedule
    tenant text,
    id text NOT NULL,
    asked_at bigint NOT NULL,  -- milliseconds since 1970; `in` counts from here
    body text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

-- Rows that Everbell could not accept, with the reason.
CREATE TABLE IF NOT EXISTS everbell.outbox_refused (
    seq bigint PRIMARY KEY,
    kind "char" NOT NULL,
    tenant text,
    id text NOT NULL,
    asked_at bigint NOT NULL,
    body text,
    reason text NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS everbell.once_done (
    tenant text NOT NULL,
    id text NOT NULL,
    occurrence bigint NOT NULL,
    done_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, id, occurrence)
);
CREATE INDEX IF NOT EXISTS once_done_done_at ON everbell.once_done (done_at);

-- The messages below are those of the HTTP API: tests/acceptance/test_outbox_sql.py compares them. Only the functions that
-- run as their owner set the search path: it costs as much as the rest of a small function, and the others inherit it.

CREATE OR REPLACE FUNCTION everbell.outbox_refuse(field text, reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = coalesce(field || ': ', '') || reason;
END $$;

CREATE OR REPLACE FUNCTION everbell.outbox_kind(value json) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE json_typeof(value)
        WHEN 'number' THEN CASE WHEN value::text ~ '^-?[0-9]+$' THEN 'an integer' ELSE 'a number' END
        WHEN 'string' THEN 'a string' WHEN 'boolean' THEN 'true or false'
        WHEN 'object' THEN 'an object' WHEN 'array' THEN 'an array' ELSE 'null' END
$$;

-- Refuse a value whose type is none of `kinds`, which are the words of the message.
CREATE OR REPLACE FUNCTION everbell.outbox_expect(field text, value json, kinds text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    got text := everbell.outbox_kind(value);
    count int := array_length(kinds, 1);
BEGIN
    IF got = ANY (kinds) OR (got = 'an integer' AND 'a number' = ANY (kinds)) THEN
        RETURN;
    END IF;
    PERFORM everbell.outbox_refuse(field, 'expected ' || CASE WHEN count = 1 THEN kinds[1]
        ELSE array_to_string(kinds[1:count - 1], ', ') || ' or ' || kinds[count] END || ', got ' || got);
END $$;

CREATE OR REPLACE FUNCTION everbell.outbox_check_length(field text, value text, longest int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF value = '' THEN
        PERFORM everbell.outbox_refuse(field, 'expected a string of length >= 1');
    ELSIF length(value) > longest THEN
        PERFORM everbell.outbox_refuse(field, 'expected a string of length <= ' || longest);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION everbell.outbox_check_name(field text, value text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF octet_length(value) > 512 THEN
        PERFORM everbell.outbox_refuse(field, 'is longer than 512 bytes');
    ELSIF value ~ '[\x01-\x1f\x7f-\x9f\u2028\u2029]' THEN
        PERFORM everbell.outbox_refuse(field, 'must not contain control characters');
    END IF;
END $$;

-- The milliseconds of "250ms", "1h30m", "3 days", "PT20M" or a number of seconds.
CREATE OR REPLACE FUNCTION everbell.outbox_duration(field text, value json) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
    given text := value #>> '{}';
    -- Units may be spelled out, as in "1 hour 30 minutes".
    short text := CASE WHEN given ~* 'week|day|hour|minute|second' THEN regexp_replace(lower(given),
        '\s*(w(?=eek)|d(?=ay)|h(?=our)|m(?=inute)|s(?=econd))(?:eek|ay|our|inute|econd)s?\s*', '\1', 'g') ELSE given END;
    part text[];
    total numeric := 0;
    units jsonb := '{"ms": 1, "s": 1000, "m": 60000, "h": 3600000, "d": 86400000, "w": 604800000}';
    examples text := '"250ms", "90s", "1h30m", "PT20M" or a number of seconds';
BEGIN
    IF json_typeof(value) = 'number' THEN
        total := ceil(round(given::numeric * 1000000) / 1000);
    ELSIF length(given) > 64 THEN
        PERFORM everbell.outbox_refuse(field, '''' || left(given, 64) || '''… is longer than 64 characters; write ' || examples);
    ELSIF given LIKE '-%' THEN
        total := -1;
    ELSIF short ~ '^(\d{1,15}(\.\d{1,9})?(ms|s|m|h|d|w))+$' THEN
        FOR part IN SELECT regexp_matches(short, '(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w)', 'g') LOOP
            total := total + ceil(part[1]::numeric * (units ->> part[2])::numeric);
        END LOOP;
    ELSIF upper(given) ~ '^P(\d{1,9}W)?(\d{1,9}D)?(T(\d{1,9}H)?(\d{1,9}M)?(\d{1,12}(\.\d{1,9})?S)?)?$' AND upper(given) !~ '[PT]$' THEN
        FOR part IN SELECT regexp_matches(lower(given), '(\d{1,15}(?:\.\d{1,9})?)([wdhms])', 'g') LOOP
            total := total + ceil(part[1]::numeric * (units ->> part[2])::numeric);
        END LOOP;
    ELSE
        PERFORM everbell.outbox_refuse(field, '''' || given || ''' is not a duration such as ' || examples);
    END IF;
    IF total < 0 AND total >= -31622400000000 THEN
        PERFORM everbell.outbox_refuse(field, 'must not be negative');
    ELSIF abs(total) > 31622400000000 THEN
        PERFORM everbell.outbox_refuse(field, 'is longer than a thousand years');
    END IF;
    RETURN total;
END $$;

-- Refuse text that is not an RFC 3339 time with an offset.
CREATE OR REPLACE FUNCTION everbell.outbox_check_instant(field text, given text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part text[];
    days int;
BEGIN
    IF length(given) > 64 THEN
        PERFORM everbell.outbox_refuse(field, '''' || left(given, 64) || '''… is longer than 64 characters; write 2026-11-20T10:00:00Z');
    ELSIF given ~ '^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?$' THEN
        PERFORM everbell.outbox_refuse(field, '''' || given || ''' has no offset; write 2026-11-20T10:00:00Z or …+02:00');
    END IF;
    part := regexp_match(given, '^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.\d{1,18})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)$');
    IF part IS NULL THEN
        PERFORM everbell.outbox_refuse(field, '''' || given || ''' is not an RFC 3339 time with an offset such as 2026-11-20T10:00:00Z');
    END IF;
    IF part[1] <> '0000' AND part[2]::int BETWEEN 1 AND 12 THEN
        days := extract(day FROM make_date(part[1]::int, part[2]::int, 1) + interval '1 month - 1 day');
    END IF;
    IF days IS NULL OR part[3]::int NOT BETWEEN 1 AND days OR part[4] > '23' OR part[5] > '59' OR part[6] > '59' THEN
        PERFORM everbell.outbox_refuse(field, '''' || given || ''' does not exist in the calendar');
    ELSIF upper(given)::timestamptz NOT BETWEEN '1970-01-01Z'::timestamptz AND '9999-12-31 23:59:59.999Z'::timestamptz THEN
        PERFORM everbell.outbox_refuse(field, 'must lie between the years 1970 and 9999');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION everbell.outbox_check_url(given text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part text[];
    host text;
    labels text[];
BEGIN
    IF given LIKE '%#%' THEN
        PERFORM everbell.outbox_refuse('to', 'a URL to send to has no fragment (#…); leave it away');
    END IF;
    part := regexp_match(given, '^https?://(\[[0-9a-fA-F:.]*\]|[^][/?#@:\\]+)(?::([0-9]{1,5}))?([/?][!-~]*)?$', 'i');
    IF part IS NULL THEN
        PERFORM everbell.outbox_refuse('to', '''' || left(given, 64) || ''' cannot be sent to: write http:// or https://, a host, perhaps a port, then a path;'
            || ' printable ASCII characters only, and no user name');
    ELSIF part[2]::int NOT BETWEEN 1 AND 65535 THEN
        PERFORM everbell.outbox_refuse('to', part[2]::int || ' is not a port; ports go from 1 to 65535');
    END IF;
    host := lower(part[1]);
    IF host LIKE '[%' OR host ~ '[^\x01-\x7f]' THEN
        RETURN;  -- Everbell checks these when it collects the row.
    END IF;
    labels := string_to_array(regexp_replace(host, '\.$', ''), '.');
    IF length(host) > 253 OR EXISTS (SELECT FROM unnest(labels) AS label WHERE label !~ '^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$') THEN
        PERFORM everbell.outbox_refuse('to', '''' || left(part[1], 64) || ''' is not a host name');
    ELSIF labels[array_length(labels, 1)] ~ '^([0-9]+|0x.*)$'
        AND host !~ '^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\.|$)){4}$' THEN
        PERFORM everbell.outbox_refuse('to', '''' || left(host, 64) || ''' is not an IPv4 address; write four decimal numbers');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION everbell.outbox_check_target(given text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    scheme text := split_part(given, ':', 1);
    rest text := substr(given, length(scheme) + 2);
    topic text;
BEGIN
    IF given ~ '^queue:[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' THEN
        RETURN;
    ELSIF length(given) > 2048 THEN
        PERFORM everbell.outbox_refuse('to', 'is longer than 2048 characters');
    ELSIF given LIKE 'queue:%' OR given LIKE 'handler:%' THEN
        IF rest !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' THEN
            PERFORM everbell.outbox_refuse('to', '''' || left(rest, 64) || ''' is not a ' || scheme
                || ' name: letters, digits, dot, dash and underscore, at most 128');
        ELSIF scheme = 'handler' THEN
            PERFORM everbell.outbox_refuse('to', 'a server has no handlers; use queue:name and a worker, or https://…');
        END IF;
    ELSIF given LIKE 'http://%' OR given LIKE 'https://%' THEN
        PERFORM everbell.outbox_check_url(given);
    ELSIF given LIKE 'kafka://%' THEN
        topic := regexp_replace(substr(given, 9), '^.*/', '');
        IF topic !~ '^[A-Za-z0-9._-]{1,249}$' OR topic IN ('.', '..') THEN
            PERFORM everbell.outbox_refuse('to', '''' || left(topic, 64) || ''' is not a topic: letters, digits, dot, dash and underscore, at most 249');
        END IF;
    ELSE
        PERFORM everbell.outbox_refuse('to', '''' || left(given, 64) || ''' is not a target; write https://…, http://…, kafka://topic, queue:name or handler:name');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION everbell.outbox_check_headers(headers json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    name text;
    value json;
    seen text[] := '{}';
BEGIN
    FOR name, value IN SELECT * FROM json_each(headers) LOOP
        IF name !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$' THEN
            PERFORM everbell.outbox_refuse('headers', '''' || left(name, 64) || ''' is not a header name');
        ELSIF lower(name) = ANY ('{host,content-length,content-type,transfer-encoding,connection,keep-alive,te,trailer,upgrade,expect,traceparent}')
            OR lower(name) ~ '^(ce-|webhook-|everbell-|proxy-)' THEN
            PERFORM everbell.outbox_refuse('headers.' || left(name, 64), 'is set by Everbell itself');
        ELSIF value #>> '{}' !~ '^[\t\x20-\x7e]*$' THEN
            PERFORM everbell.outbox_refuse('headers.' || left(name, 64), 'has characters that a header cannot carry (printable ASCII only)');
        ELSIF lower(name) = ANY (seen) THEN
            PERFORM everbell.outbox_refuse('headers', 'names the same header twice');
        END IF;
        seen := seen || lower(name);
    END LOOP;
END $$;

-- The types of the fields of `retry` and `repeat`, in the order of the text.
CREATE OR REPLACE FUNCTION everbell.outbox_check_parts(field text, parts json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    name text;
    value json;
    place text;
    choices text;
BEGIN
    FOR name, value IN SELECT * FROM json_each(parts) LOOP
        place := field || '.' || left(name, 64);
        IF place IN ('retry.backoff', 'retry.max_backoff') THEN
            PERFORM everbell.outbox_expect(place, value, '{a number,a string}');
        ELSIF place = 'retry.max_attempts' THEN
            PERFORM everbell.outbox_expect(place, value, '{an integer,"null"}');
            IF (value #>> '{}')::numeric NOT BETWEEN 1 AND 1000 THEN
                PERFORM everbell.outbox_refuse(place, 'expected an integer ' || CASE WHEN (value #>> '{}')::numeric < 1 THEN '>= 1' ELSE '<= 1000' END);
            END IF;
        ELSIF place IN ('repeat.every', 'repeat.jitter', 'repeat.catch_up') THEN
            PERFORM everbell.outbox_expect(place, value, '{a number,a string,"null"}');
        ELSIF place IN ('repeat.until', 'repeat.cron', 'repeat.tz') THEN
            PERFORM everbell.outbox_expect(place, value, '{a string,"null"}');
        ELSIF place = 'repeat.count' THEN
            PERFORM everbell.outbox_expect(place, value, '{an integer,"null"}');
            IF (value #>> '{}')::numeric NOT BETWEEN 1 AND 1000000000 THEN
                PERFORM everbell.outbox_refuse(place, 'expected an integer ' || CASE WHEN (value #>> '{}')::numeric < 1 THEN '>= 1' ELSE '<= 1000000000' END);
            END IF;
        ELSIF place IN ('repeat.gap', 'repeat.repeated', 'repeat.misfire', 'repeat.overlap') THEN
            choices := CASE name WHEN 'gap' THEN 'after, skip' WHEN 'repeated' THEN 'once, twice' WHEN 'misfire' THEN 'all, latest, skip' ELSE 'allow, skip, wait' END;
            IF json_typeof(value) = 'string' AND NOT (value #>> '{}') = ANY (string_to_array(choices, ', ')) THEN
                PERFORM everbell.outbox_refuse(place, 'must be one of ' || choices);
            END IF;
        ELSE
            PERFORM everbell.outbox_refuse(place, 'there is no such field');
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION everbell.outbox_check_retry(retry json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    backoff numeric := everbell.outbox_duration('retry.backoff', coalesce(retry -> 'backoff', '2'));
BEGIN
    IF everbell.outbox_duration('retry.max_backoff', coalesce(retry -> 'max_backoff', '600')) < backoff THEN
        PERFORM everbell.outbox_refuse('retry.max_backoff', 'must not be shorter than backoff');
    END IF;
END $$;

-- Everbell checks the parts of a cron expression when it collects the row; Python's helpers check them here, too.
CREATE OR REPLACE FUNCTION everbell.outbox_check_repeat(repeat json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    every text := repeat ->> 'every';
    cron text := repeat ->> 'cron';
    fields int := array_length(regexp_split_to_array(btrim(cron), '\s+'), 1);
    name text;
BEGIN
    IF every IS NULL AND cron IS NULL THEN
        PERFORM everbell.outbox_refuse('repeat.every', 'is missing: give every (an interval) or cron (an expression)');
    ELSIF every IS NOT NULL AND cron IS NOT NULL THEN
        PERFORM everbell.outbox_refuse('repeat.cron', 'give either every or cron, not both');
    ELSIF every IS NOT NULL AND everbell.outbox_duration('repeat.every', repeat -> 'every') < 10 THEN
        PERFORM everbell.outbox_refuse('repeat.every', 'must be at least 10ms');
    ELSIF cron NOT LIKE '@%' AND fields NOT IN (5, 6) THEN
        PERFORM everbell.outbox_refuse('repeat.cron', 'has ' || fields || CASE fields WHEN 1 THEN ' field' ELSE ' fields' END
            || '; there are five (minute, hour, day of month, month, day of week), or six with the seconds first');
    END IF;
    IF every IS NOT NULL THEN
        FOREACH name IN ARRAY ARRAY['tz', 'gap', 'repeated'] LOOP
            IF repeat ->> name IS NOT NULL THEN
                PERFORM everbell.outbox_refuse('repeat.' || name, 'goes with cron; every is an interval, the same in all zones');
            END IF;
        END LOOP;
    END IF;
    IF repeat ->> 'until' IS NOT NULL THEN
        PERFORM everbell.outbox_check_instant('repeat.until', repeat ->> 'until');
    END IF;
    IF repeat ->> 'tz' IS NOT NULL THEN
        BEGIN
            PERFORM now() AT TIME ZONE (repeat ->> 'tz');
        EXCEPTION WHEN invalid_parameter_value THEN
            PERFORM everbell.outbox_refuse('repeat.tz', '''' || (repeat ->> 'tz') || ''' is not a time zone such as Europe/Berlin, America/New_York or UTC');
        END;
    END IF;
    FOREACH name IN ARRAY ARRAY['jitter', 'catch_up'] LOOP
        IF repeat ->> name IS NOT NULL THEN
            PERFORM everbell.outbox_duration('repeat.' || name, repeat -> name);
        END IF;
    END LOOP;
END $$;

-- One of `at`, `in` and, where the event has a due time already, `by`; none is needed where `repeat` says when.
CREATE OR REPLACE FUNCTION everbell.outbox_check_due(asked json) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF asked ->> 'at' IS NOT NULL THEN
        IF asked ->> 'in' IS NOT NULL THEN
            PERFORM everbell.outbox_refuse('in', 'give either at or in, not both');
        END IF;
        PERFORM everbell.outbox_check_instant('at', asked ->> 'at');
    ELSIF asked ->> 'in' IS NOT NULL THEN
        IF extract(epoch FROM clock_timestamp()) * 1000 + everbell.outbox_duration('in', asked -> 'in') > 253402300799999 THEN
            PERFORM everbell.outbox_refuse('in', 'must lie between the years 1970 and 9999');
        END IF;
    ELSIF asked ->> 'repeat' IS NULL THEN
        PERFORM everbell.outbox_refuse('at', 'give at (a time) or in (a duration from now)');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION everbell.outbox_check_event(event json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    name text;
    value json;
    item json;
    place int;
BEGIN
    IF json_typeof(event) IS DISTINCT FROM 'object' THEN
        PERFORM everbell.outbox_expect(NULL, coalesce(event, 'null'), '{an object}');
    END IF;
    -- First the types, in the order of the text, as the decoder of the API does.
    FOR name, value IN SELECT * FROM json_each(event) LOOP
        IF name IN ('to', 'at', 'id', 'key', 'content_type', 'payload_base64', 'traceparent') THEN
            IF json_typeof(value) <> 'string' THEN
                PERFORM everbell.outbox_expect(name, value, '{a string,"null"}');
            ELSIF name IN ('id', 'key') THEN
                PERFORM everbell.outbox_check_length(name, value #>> '{}', 512);
            END IF;
        ELSIF name IN ('in', 'expires') THEN
            IF json_typeof(value) NOT IN ('string', 'number') THEN
                PERFORM everbell.outbox_expect(name, value, '{a number,a string,"null"}');
            END IF;
        ELSIF name = 'headers' THEN
            PERFORM everbell.outbox_expect(name, value, '{an object,"null"}');
            IF json_typeof(value) = 'object' THEN
                FOR item IN SELECT each.value FROM json_each(value) AS each LOOP
                    PERFORM everbell.outbox_expect('headers', item, '{a string}');
                END LOOP;
            END IF;
        ELSIF name = 'tags' THEN
            PERFORM everbell.outbox_expect(name, value, '{an array,"null"}');
            IF json_typeof(value) = 'array' THEN
                FOR item, place IN SELECT * FROM json_array_elements(value) WITH ORDINALITY LOOP
                    PERFORM everbell.outbox_expect('tags[' || place - 1 || ']', item, '{a string}');
                    PERFORM everbell.outbox_check_length('tags[' || place - 1 || ']', item #>> '{}', 64);
                    PERFORM everbell.outbox_check_name('tags', item #>> '{}');
                END LOOP;
            END IF;
        ELSIF name IN ('retry', 'repeat') THEN
            PERFORM everbell.outbox_expect(name, value, '{an object,"null"}');
            IF json_typeof(value) = 'object' THEN
                PERFORM everbell.outbox_check_parts(name, value);
            END IF;
        ELSIF name = 'delivery' THEN
            PERFORM everbell.outbox_expect(name, value, '{a string,"null"}');
            IF (value #>> '{}') NOT IN ('binary', 'payload', 'structured') THEN
                PERFORM everbell.outbox_refuse(name, 'must be one of binary, payload, structured');
            END IF;
        ELSIF name <> 'payload' THEN
            PERFORM everbell.outbox_refuse(left(name, 64), 'there is no such field');
        END IF;
    END LOOP;
    -- Then the rules, in the order of the API.
    IF event ->> 'repeat' IS NOT NULL THEN
        PERFORM everbell.outbox_check_repeat(event -> 'repeat');
    END IF;
    PERFORM everbell.outbox_check_due(event);
    IF event ->> 'to' IS NOT NULL THEN
        PERFORM everbell.outbox_check_target(event ->> 'to');
    END IF;
    IF event ->> 'payload_base64' IS NULL THEN
        IF event ->> 'content_type' IS NOT NULL THEN
            PERFORM everbell.outbox_refuse('content_type', 'goes with payload_base64; a JSON payload is application/json');
        END IF;
    ELSIF event ->> 'payload' IS NOT NULL THEN
        PERFORM everbell.outbox_refuse('payload_base64', 'give either payload or payload_base64, not both');
    ELSIF event ->> 'content_type' IS NULL OR event ->> 'content_type' !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+/[!#$%&''*+.^_`|~0-9A-Za-z-]+(;[\x20-\x7e]*)?$' THEN
        PERFORM everbell.outbox_refuse('content_type', 'payload_base64 needs a content type such as image/png');
    ELSIF event ->> 'payload_base64' !~ '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$' THEN
        PERFORM everbell.outbox_refuse('payload_base64', 'is not base64');
    END IF;
    IF event ->> 'id' IS NOT NULL THEN
        PERFORM everbell.outbox_check_name('id', event ->> 'id');
        IF event ->> 'id' LIKE 'ev\_%' THEN
            PERFORM everbell.outbox_refuse('id', 'may not begin with ev_: such ids are made by Everbell');
        END IF;
    END IF;
    IF event ->> 'key' IS NOT NULL THEN
        PERFORM everbell.outbox_check_name('key', event ->> 'key');
        IF event #>> '{repeat,overlap}' = 'allow' THEN
            PERFORM everbell.outbox_refuse('repeat.overlap', 'allow goes without a key: events of a key go one at a time');
        END IF;
    END IF;
    IF event ->> 'traceparent' !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]{0,128})?$' THEN
        PERFORM everbell.outbox_refuse('traceparent', 'is not a W3C traceparent');
    END IF;
    IF event ->> 'headers' IS NOT NULL THEN
        PERFORM everbell.outbox_check_headers(event -> 'headers');
    END IF;
    IF event ->> 'retry' IS NOT NULL THEN
        PERFORM everbell.outbox_check_retry(event -> 'retry');
    END IF;
    IF event ->> 'expires' IS NOT NULL AND everbell.outbox_duration('expires', event -> 'expires') = 0 THEN
        PERFORM everbell.outbox_refuse('expires', 'must be longer than nothing');
    END IF;
END $$;

-- Add a row. Everbell collects rows in the order of `seq`, so for an id or a key that has to be the order of commits:
-- the lock on its name lasts until the end of the transaction, and the number is taken under the lock. The transaction
-- gets its own id before its first number: so a collector can tell when no transaction with a smaller number still runs.
CREATE OR REPLACE FUNCTION everbell.outbox_add(kind "char", tenant text, id text, names text[], body text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    name text;
    own xid8;
BEGIN
    IF tenant !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$' THEN
        PERFORM everbell.outbox_refuse('tenant', 'a tenant''s name has 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit');
    ELSIF octet_length(body) > 16777216 THEN
        PERFORM everbell.outbox_refuse(NULL, 'has more than 16777216 bytes');
    END IF;
    FOREACH name IN ARRAY names LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(name, 8420));
    END LOOP;
    own := pg_current_xact_id();
    INSERT INTO everbell.outbox VALUES (
        nextval('everbell.outbox_seq'), kind, tenant, id, ceil(extract(epoch FROM clock_timestamp()) * 1000), body);
    -- PostgreSQL lets transactions that notify commit only one after the other. NULL: no collector was there yet.
    IF pg_sequence_last_value('everbell.outbox_wakeup') IS DISTINCT FROM 2 THEN
        PERFORM pg_notify('everbell_outbox', '');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION everbell.schedule(event json, tenant text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event_id text;
    wakeup bigint;
BEGIN
    IF json_typeof(event) = 'object' THEN
        -- An event with only the most common fields, and values that are certainly valid, is checked and added by one
        -- statement: each further statement or expression of a function costs more than all of its checks. A digit of
        -- `fields` counts each field, so a field that comes twice, or that is not certainly valid, makes another number.
        INSERT INTO everbell.outbox AS row
        SELECT
            -- As in outbox_add: first the locks, then the transaction's own id, then the number.
            CASE
                WHEN simple.key IS NOT NULL AND pg_advisory_xact_lock(hashtextextended('key:' || simple.key, 8420)) IS NULL THEN NULL
                WHEN simple.id IS NOT NULL AND pg_advisory_xact_lock(hashtextextended('id:' || simple.id, 8420)) IS NULL THEN NULL
                WHEN pg_current_xact_id() IS NULL THEN NULL
                ELSE nextval('everbell.outbox_seq')
            END,
            's', schedule.tenant, coalesce(simple.id, 'tx:' || gen_random_uuid()),
            ceil(extract(epoch FROM clock_timestamp()) * 1000), schedule.event::text
        FROM (
            SELECT
                sum(CASE
                    WHEN field.key = 'payload' THEN 100
                    WHEN field.key = 'to' AND field.value::text ~ '^"queue:[A-Za-z0-9][A-Za-z0-9._-]{0,127}"$' THEN 1
                    WHEN field.key = 'in' AND field.value::text
                        ~ '^("([0-9]{1,7}(ms|s|m)|[0-9]{1,6}h|[0-9]{1,4}[dw])"|[0-9]{1,9}(\.[0-9]{1,9})?)$' THEN 10
                    WHEN field.key = 'id' AND field.value::text ~ '^"[A-Za-z0-9.:/-]{1,255}"$' THEN 1000
                    WHEN field.key = 'key' AND field.value::text ~ '^"[A-Za-z0-9_.:/-]{1,255}"$' THEN 10000
                    ELSE 1000000
                END) AS fields,
                max(field.value #>> '{}') FILTER (WHERE field.key = 'id') AS id,
                max(field.value #>> '{}') FILTER (WHERE field.key = 'key') AS key
            FROM json_each(event) AS field
        ) AS simple
        WHERE simple.fields IN (11, 111, 1011, 1111, 10011, 10111, 11011, 11111)
            AND (schedule.tenant IS NULL OR schedule.tenant ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$')
            AND octet_length(event::text) <= 16777216
        RETURNING row.id, pg_sequence_last_value('everbell.outbox_wakeup') INTO event_id, wakeup;
        IF FOUND THEN
            IF wakeup IS DISTINCT FROM 2 THEN
                PERFORM pg_notify('everbell_outbox', '');
            END IF;
            RETURN event_id;
        END IF;
    END IF;
    PERFORM everbell.outbox_check_event(event);
    event_id := coalesce(event ->> 'id', 'tx:' || gen_random_uuid());
    -- Other transactions cannot know an id that is made here, so only a given one is locked.
    PERFORM everbell.outbox_add('s', tenant, event_id,
        array_remove(ARRAY['key:' || (event ->> 'key'), 'id:' || (event ->> 'id')], NULL), event::text);
    RETURN event_id;
END $$;

CREATE OR REPLACE FUNCTION everbell.cancel(id text, tenant text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM everbell.outbox_check_length('id', coalesce(id, ''), 512);
    PERFORM everbell.outbox_check_name('id', id);
    PERFORM everbell.outbox_add('c', tenant, id, ARRAY['id:' || id], NULL);
END $$;

CREATE OR REPLACE FUNCTION everbell.reschedule(id text, change json, tenant text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
    value json;
BEGIN
    PERFORM everbell.outbox_check_length('id', coalesce(id, ''), 512);
    PERFORM everbell.outbox_check_name('id', id);
    PERFORM everbell.outbox_expect(NULL, coalesce(change, 'null'), '{an object}');
    FOR name, value IN SELECT * FROM json_each(change) LOOP
        IF name = 'in' THEN
            PERFORM everbell.outbox_expect(name, value, '{a number,a string}');
        ELSIF name IN ('at', 'by') THEN
            PERFORM everbell.outbox_expect(name, value, '{a string}');
        ELSE
            PERFORM everbell.outbox_refuse(left(name, 64), 'a transaction changes the time of an event: give at, in or by');
        END IF;
    END LOOP;
    IF change ->> 'by' IS NULL THEN
        PERFORM everbell.outbox_check_due(change);
    ELSIF change ->> 'at' IS NOT NULL OR change ->> 'in' IS NOT NULL THEN
        PERFORM everbell.outbox_refuse('by', 'give one of at, in, by and repeat');
    ELSIF everbell.outbox_duration('by', to_json(regexp_replace(change ->> 'by', '^-', ''))) = 0 THEN
        PERFORM everbell.outbox_refuse('by', 'must be longer than nothing');
    END IF;
    PERFORM everbell.outbox_add('r', tenant, id, ARRAY['id:' || id], change::text);
END $$;

-- Whether this transaction is the first that handles the occurrence. Another one that is under way is waited for.
CREATE OR REPLACE FUNCTION everbell.once(id text, occurrence bigint, tenant text DEFAULT 'default') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO everbell.once_done VALUES (tenant, id, occurrence) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Remove old entries of everbell.once and old refused rows, some at a time; returns their number. The collector calls it.
CREATE OR REPLACE FUNCTION everbell.outbox_clean_up() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old_once bigint;
    old_refused bigint;
BEGIN
    DELETE FROM everbell.once_done WHERE ctid = ANY (ARRAY(
        SELECT done.ctid FROM everbell.once_done AS done, everbell.outbox_settings AS settings
        WHERE done.done_at < now() - settings.once_kept LIMIT 10000));
    GET DIAGNOSTICS old_once = ROW_COUNT;
    DELETE FROM everbell.outbox_refused AS refused USING everbell.outbox_settings AS settings
        WHERE refused.refused_at < now() - settings.refused_kept;
    GET DIAGNOSTICS old_refused = ROW_COUNT;
    RETURN old_once + old_refused;
END $$;

REVOKE ALL ON FUNCTION everbell.schedule, everbell.cancel, everbell.reschedule, everbell.once, everbell.outbox_clean_up FROM PUBLIC;
