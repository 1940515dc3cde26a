"""The statements of a collector. Its role needs what `grants_of` grants, and nothing else."""

from __future__ import annotations

from importlib.resources import files

FORMAT = 1
"""The format of the outbox that this version collects."""
CHANNEL = "everbell_outbox"
NOTIFY_ALWAYS, NOTIFY_NEVER = 1, 2
"""The values of everbell.outbox_wakeup."""

# One session at a time has the lock. The server ends a session that says nothing for a while: its process is frozen.
LOCK = "SELECT pg_try_advisory_lock(hashtextextended('everbell outbox', 8420))"
SESSION = """
    SET application_name = 'everbell outbox';
    SET default_transaction_isolation = 'read committed';
    SET statement_timeout = '30s';
    SET lock_timeout = '5s';
    SET idle_in_transaction_session_timeout = '5s';
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET plan_cache_mode = force_generic_plan;
    SET jit = off;
    SET synchronous_commit = off
"""
"""Deletions need no fsync of their own: a row that comes back after a crash of the database has no effect."""
IDLE_SESSION = "SET idle_session_timeout = '10s'"
IDLE_SESSION_MIN_VERSION = 14
SETTINGS = "SELECT format, identity FROM everbell.outbox_settings"

# The first rows in the ranges, without those of some tenants, up to a number of rows and bytes, but at least one row.
# A single statement has a single snapshot, so the smallest running transaction belongs to exactly these rows.
LOOK = """
    WITH found AS (
        SELECT one.* FROM unnest($1::bigint[], $2::bigint[]) AS unseen (low, high)
        CROSS JOIN LATERAL (
            SELECT * FROM everbell.outbox
            WHERE seq BETWEEN low AND high AND coalesce(tenant, $3) <> ALL ($4::text[])
            ORDER BY seq LIMIT $5
        ) AS one
        ORDER BY seq LIMIT $5
    ), sized AS (
        SELECT *, sum(coalesce(octet_length(body), 0)) OVER (ORDER BY seq) - coalesce(octet_length(body), 0) AS before
        FROM found
    )
    SELECT
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS running,
        (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM everbell.outbox_seq) AS last,
        seq, kind::text, tenant, id, asked_at, body
    FROM (SELECT) AS always LEFT JOIN sized ON before < $6
    ORDER BY seq
"""
REMOVE = """
    WITH gone AS (DELETE FROM everbell.outbox WHERE seq = ANY ($1::bigint[]))
    SELECT pg_current_xact_id()::text::bigint
"""
REFUSE = """
    WITH refused AS (SELECT * FROM unnest($1::bigint[], $2::text[]) AS refused (seq, reason)),
    gone AS (DELETE FROM everbell.outbox AS row USING refused WHERE row.seq = refused.seq RETURNING row.*)
    INSERT INTO everbell.outbox_refused (seq, kind, tenant, id, asked_at, body, reason)
    SELECT gone.*, refused.reason FROM gone JOIN refused USING (seq) ON CONFLICT DO NOTHING
"""
TRANSACTION = "SELECT pg_current_xact_id()::text::bigint"
WAKE_UP = "SELECT setval('everbell.outbox_wakeup', $1)"
CLEAN_UP = "SELECT everbell.outbox_clean_up()"
STAY = "SELECT 1"


def install_script(application: str | None = None, collector: str | None = None) -> str:
    """The SQL that installs the outbox, with the rights of two roles, if they are named."""
    script = files("everbell.outbox").joinpath("outbox.sql").read_text()
    return script + "".join(f"{grant};\n" for grant in grants_of(application, collector))


def grants_of(application: str | None, collector: str | None) -> list[str]:
    """The application may only call functions. The collector may only collect."""
    roles = filter(None, (application, collector))
    grants = [f"GRANT USAGE ON SCHEMA everbell TO {_quoted(role)}" for role in roles]
    if application is not None:
        functions = "everbell.schedule, everbell.cancel, everbell.reschedule, everbell.once"
        grants.append(f"GRANT EXECUTE ON FUNCTION {functions} TO {_quoted(application)}")
    if collector is not None:
        role = _quoted(collector)
        grants += [
            f"GRANT SELECT ON everbell.outbox_settings, everbell.outbox_seq TO {role}",
            f"GRANT SELECT, DELETE ON everbell.outbox TO {role}",
            f"GRANT INSERT ON everbell.outbox_refused TO {role}",
            f"GRANT UPDATE ON everbell.outbox_wakeup TO {role}",
            f"GRANT EXECUTE ON FUNCTION everbell.outbox_clean_up TO {role}",
        ]
    return grants


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
