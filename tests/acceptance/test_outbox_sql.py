"""The functions of the outbox in a real PostgreSQL: the messages of the API, order of commits, roles, once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from everbell.core.spec import EventSpec, draft
from everbell.core.tenant import Tenant
from everbell.core.time import parse_duration
from everbell.edge.bodies import Body
from everbell.errors import InvalidInput
from everbell.outbox.install import install
from everbell.outbox.settings import read_outbox
from everbell.outbox.statements import LOCK, LOOK, REFUSE, REMOVE, SETTINGS, WAKE_UP
from tests.acceptance.processes import CommandLine
from tests.services import shared

GOOD: dict[str, Any] = {"to": "queue:mail", "in": "1h", "payload": {"a": 1}}

BAD: list[Any] = [
    [],
    5,
    None,
    {"to": 5},
    {"to": "mail"},
    {"to": "queue:"},
    {"to": "queue:a b"},
    {"to": "handler:x/y"},
    {"to": "kafka://a b"},
    {"to": "http://"},
    {"to": "http://user@host/"},
    {"to": "https://host:0/"},
    {"to": "https://host:70000/"},
    {"to": "https://-host/"},
    {"to": "https://127.1/"},
    {"to": "https://host/#part"},
    {"to": "x" * 2_049},
    {"at": 1, "in": None},
    {"at": "tomorrow", "in": None},
    {"at": "2026-11-20T10:00:00", "in": None},
    {"at": "2026-02-30T10:00:00Z", "in": None},
    {"at": "1969-02-20T10:00:00Z", "in": None},
    {"at": "2026-11-20T25:00:00Z", "in": None},
    {"at": "1" * 65, "in": None},
    {"at": "2026-11-20T10:00:00Z"},
    {"in": None},
    {"in": []},
    {"in": True},
    {"in": "soon"},
    {"in": "-1s"},
    {"in": -1},
    {"in": "P"},
    {"in": "9999999w"},
    {"in": 10**15},
    {"id": 5},
    {"id": ""},
    {"id": "x" * 513},
    {"id": "é" * 300},
    {"id": "a\nb"},
    {"id": "ev_1"},
    {"key": []},
    {"key": "\u2028"},
    {"key": "k", "repeat": {"every": "1h", "overlap": "allow"}},
    {"headers": []},
    {"headers": {"a": 1}},
    {"headers": {"a b": "c"}},
    {"headers": {"Host": "c"}},
    {"headers": {"ce-id": "c"}},
    {"headers": {"x": "é"}},
    {"headers": {"x": "1", "X": "2"}},
    {"tags": {}},
    {"tags": [1]},
    {"tags": [""]},
    {"tags": ["x" * 65]},
    {"tags": ["a\tb"]},
    {"retry": 5},
    {"retry": {"max_attempts": 0}},
    {"retry": {"max_attempts": "x"}},
    {"retry": {"max_attempts": 1_001}},
    {"retry": {"backoff": []}},
    {"retry": {"backoff": "x"}},
    {"retry": {"backoff": "1h", "max_backoff": "1m"}},
    {"retry": {"nothing": 1}},
    {"repeat": 5},
    {"repeat": {}},
    {"repeat": {"every": []}},
    {"repeat": {"every": "1ms"}},
    {"repeat": {"every": "1h", "cron": "* * * * *"}},
    {"repeat": {"every": "1h", "tz": "UTC"}},
    {"repeat": {"every": "1h", "count": 0}},
    {"repeat": {"every": "1h", "until": "never"}},
    {"repeat": {"every": "1h", "misfire": "never"}},
    {"repeat": {"every": "1h", "overlap": "never"}},
    {"repeat": {"cron": "* * *"}},
    {"repeat": {"cron": "* * * * *", "tz": "Nowhere"}},
    {"repeat": {"cron": "* * * * *", "gap": "never"}},
    {"repeat": {"cron": "* * * * *", "repeated": "never"}},
    {"expires": []},
    {"expires": 0},
    {"expires": "3 dayses"},
    {"expires": "days"},
    {"expires": "x"},
    {"content_type": 5},
    {"content_type": "text/plain"},
    {"payload": 1, "payload_base64": "aaaa"},
    {"payload": None, "payload_base64": "aaaa"},
    {"payload": None, "payload_base64": "a", "content_type": "text/plain"},
    {"payload": None, "payload_base64": "aaaa", "content_type": "text"},
    {"traceparent": 5},
    {"traceparent": "00"},
    {"delivery": 5},
    {"delivery": "never"},
    {"qqqqq": 5},
]


def run(work: Callable[[Any], Awaitable[None]], url: str) -> None:
    """Run a scene with a connection."""

    async def scene() -> None:
        connection = await asyncpg.connect(url)
        try:
            await work(connection)
        finally:
            await connection.close()

    asyncio.run(scene())


@pytest.fixture
def url() -> str:
    """A database with an outbox."""
    url = shared.postgres().fresh_database()
    install(read_outbox(url), None, None)
    return url


def refusal_of_the_api(event: Any) -> str:
    try:
        draft(Body(EventSpec).parse(json.dumps(event).encode()), Tenant(), 0)
    except InvalidInput as wrong:
        return str(wrong)
    raise AssertionError(f"{event} is valid")


def as_event(wrong: Any) -> Any:
    return GOOD | wrong if isinstance(wrong, dict) else wrong


def test_bad_input_fails_in_the_transaction_with_the_message_of_the_api(url: str) -> None:
    async def scene(connection: Any) -> None:
        differences = []
        for wrong in BAD:
            event = as_event(wrong)
            with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
                await connection.execute("SELECT everbell.schedule($1)", json.dumps(event))
            if refused.value.args[0] != refusal_of_the_api(event):
                differences.append((wrong, refused.value.args[0], refusal_of_the_api(event)))
        assert differences == []
        assert await connection.fetchval("SELECT count(*) FROM everbell.outbox") == 0

    run(scene, url)


def test_units_may_be_spelled_out(url: str) -> None:
    async def scene(connection: Any) -> None:
        for value in ("3 days", "1 Hour 30 Minutes", "2weeks", "90 seconds", "1h30m", 1.5):
            asked = await connection.fetchval("SELECT everbell.outbox_duration('in', $1)", json.dumps(value))
            assert asked == parse_duration(value), value

    run(scene, url)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("cancel('')", "id: expected a string of length >= 1"),
        ("cancel('a', 'no tenant')", "tenant: a tenant's name has 1 to 64 letters, digits, dots, dashes or"),
        ("reschedule('a', '{}')", "at: give at (a time) or in (a duration from now)"),
        ("reschedule('a', '[]')", "expected an object, got an array"),
        ("reschedule('a', '{\"by\": \"0s\"}')", "by: must be longer than nothing"),
        ("reschedule('a', '{\"by\": \"x\"}')", "by: 'x' is not a duration such as"),
        ('reschedule(\'a\', \'{"by": "1s", "in": 1}\')', "by: give one of at, in, by and repeat"),
        ("reschedule('a', '{\"to\": \"queue:b\"}')", "to: a transaction changes the time of an event"),
    ],
)
def test_bad_changes_fail_in_the_transaction(url: str, call: str, message: str) -> None:
    async def scene(connection: Any) -> None:
        with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
            await connection.execute(f"SELECT everbell.{call}")
        assert refused.value.args[0].startswith(message)

    run(scene, url)


def test_everything_that_the_api_accepts_is_accepted(url: str) -> None:
    good: list[dict[str, Any]] = [
        {},
        {"to": "https://example.com:8443/a?b=c", "key": "k", "id": "é 1", "tags": ["a", "b"]},
        {"to": "kafka://cluster/topic", "headers": {"x-a": "b"}, "retry": {"max_attempts": 3, "backoff": "1s"}},
        {"in": None, "at": "2026-11-20T10:00:00.123456+02:00", "expires": "PT1H30M", "retry": None},
        {"in": 0.25, "repeat": {"every": "1d12h", "count": 3, "until": "2030-01-01T00:00:00Z", "jitter": "1s"}},
        {"in": None, "repeat": {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "gap": "after", "repeated": "twice"}},
        {"payload": None, "payload_base64": "aGFsbG8=", "content_type": "text/plain; charset=utf-8"},
        {"delivery": "structured", "retry": {"max_attempts": None}},
        {"to": None, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    ]

    async def scene(connection: Any) -> None:
        for event in good:
            draft(Body(EventSpec).parse(json.dumps(GOOD | event).encode()), Tenant(to="queue:a"), 0)
            await connection.execute("SELECT everbell.schedule($1)", json.dumps(GOOD | event))
        assert await connection.fetchval("SELECT count(*) FROM everbell.outbox") == len(good)

    run(scene, url)


SIMPLE = {
    "to": ("queue:a", "queue:" + "a" * 128, "queue:" + "a" * 129, "queue:a\n", "queue:", "queue:é", None, 1),
    "in": (
        "1h",
        "9999999m",
        "999999h",
        "9999999h",
        "9999w",
        "99999999w",
        "1h\n",
        "",
        "-1s",
        0,
        0.5,
        -1,
        1e9,
        1e12,
        None,
    ),
    "id": ("a", "order-7:1/2.x", "a" * 255, "a" * 513, "", "a\n", "ev_a", "tx:a", 7, None),
    "key": ("k", "k_1", "k" * 512, "k" * 513, "k\x00", "k\x7f", [], None),
    "payload": (1, None, {"to": 1, "in": "x"}, "\x00", ["\u2028"]),
}
"""Values at the edges of the check for simple events. Most combinations are not valid."""


def test_the_check_for_simple_events_accepts_only_what_the_api_accepts(url: str) -> None:
    chances = random.Random(20)
    texts = ['{"to": 1, "to": "queue:a", "in": "1h"}', '{"to": "queue:a", "in": "1h", "payload": 1e999999}']
    for _ in range(400):
        names = [name for name in SIMPLE if name in ("to", "in") or chances.random() < 0.4]
        # Mostly the first value, so that many events are wrong in one field only.
        texts.append(
            json.dumps(
                {name: SIMPLE[name][0] if chances.random() < 0.7 else chances.choice(SIMPLE[name]) for name in names}
            )
        )

    async def scene(connection: Any) -> None:
        simple = 0
        for text in texts:
            try:
                draft(Body(EventSpec).parse(text.encode()), Tenant(to="queue:a"), 0)
                refusal = None
            except InvalidInput as wrong:
                refusal = str(wrong)
            is_simple = await _is_simple(connection, text)
            assert not (is_simple and refusal), (text, refusal)
            simple += is_simple
            if refusal is None and "\\u0000" not in text:
                await connection.fetchval("SELECT everbell.schedule($1)", text)
        assert 50 < simple < len(texts) - 50

    run(scene, url)


_NO_FULL_CHECK = """
    CREATE OR REPLACE FUNCTION everbell.outbox_check_event(event json) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'not simple'; END $$
"""


async def _is_simple(connection: Any, text: str) -> bool:
    """Whether an event is scheduled without the full check, which fails here; nothing of it stays."""
    attempt = connection.transaction()
    await attempt.start()
    try:
        await connection.execute(_NO_FULL_CHECK)
        await connection.fetchval("SELECT everbell.schedule($1)", text)
        return True
    except (asyncpg.RaiseError, asyncpg.UntranslatableCharacterError):
        # PostgreSQL itself refuses a zero byte in an id or a key.
        return False
    finally:
        await attempt.rollback()


def test_transactions_of_one_name_wait_for_each_other_so_that_numbers_are_in_the_order_of_commits(url: str) -> None:
    async def scene(connection: Any) -> None:
        other = await asyncpg.connect(url)
        first = connection.transaction()
        await first.start()
        await connection.execute("SELECT everbell.schedule($1)", json.dumps(GOOD | {"key": "k"}))
        later = asyncio.create_task(other.execute("SELECT everbell.schedule($1)", json.dumps(GOOD | {"key": "k"})))
        free = await asyncpg.connect(url)
        # Transactions of other names, and of none, do not wait.
        await free.execute("SELECT everbell.schedule($1)", json.dumps(GOOD | {"key": "l"}))
        await free.execute("SELECT everbell.schedule($1)", json.dumps(GOOD))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not await free.fetchval(waiting):
            assert not later.done()
        assert not later.done()
        await first.commit()
        await later
        rows = await free.fetch("SELECT body::json->>'key' AS key FROM everbell.outbox ORDER BY seq")
        assert [row["key"] for row in rows] == ["k", "l", None, "k"]
        await other.close()
        await free.close()

    run(scene, url)


def test_the_application_only_calls_functions_and_the_collector_only_collects() -> None:
    server = shared.postgres()
    url = server.fresh_database()
    database = url.rpartition("/")[2]
    names = {"app": f"app_{database}", "col": f"col {database}"}
    for name in names.values():
        server.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'")
    done = CommandLine()("outbox", "install", url, "--application", names["app"], "--collector", names["col"])
    assert done.code == 0, done

    async def connected(who: str) -> Any:
        return await asyncpg.connect(url, user=names[who], password="x")

    async def scene(owner: Any) -> None:
        app, collector = await connected("app"), await connected("col")
        await app.execute("SELECT everbell.schedule($1), everbell.once('a', 1)", json.dumps(GOOD))
        for statement in (
            "SELECT * FROM everbell.outbox",
            "INSERT INTO everbell.outbox VALUES (1, 's', NULL, 'a', 0, '{}')",
            "DELETE FROM everbell.outbox",
            "DELETE FROM everbell.once_done",
            "SELECT everbell.outbox_clean_up()",
            "SELECT setval('everbell.outbox_wakeup', 2)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await app.execute(statement)
        for statement in (
            "SELECT everbell.cancel('a')",
            "SELECT everbell.once('a', 2)",
            "UPDATE everbell.outbox SET id = 'b'",
            "SELECT * FROM everbell.once_done",
            "CREATE TABLE everbell.mine (a int)",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await collector.execute(statement)
        # Every statement of a collector is allowed.
        assert await collector.fetchval(LOCK)
        assert await collector.fetchval(SETTINGS)
        (row,) = await collector.fetch(LOOK, [0], [10], "default", [], 10, 1_000)
        await collector.fetch(REFUSE, [row["seq"]], ["why"])
        await collector.fetch(REMOVE, [row["seq"]])
        await collector.fetch(WAKE_UP, 2)
        await collector.fetch("SELECT everbell.outbox_clean_up()")
        for connection in (app, collector):
            await connection.close()

    run(scene, url)


def test_once_is_true_for_one_transaction_and_old_entries_are_removed(url: str) -> None:
    async def scene(connection: Any) -> None:
        other = await asyncpg.connect(url)

        async def first(of: Any, number: int) -> bool:
            return bool(await of.fetchval("SELECT everbell.once('a', $1)", number))

        block = connection.transaction()
        await block.start()
        assert await first(connection, 1)
        waiting = asyncio.create_task(first(other, 1))
        await block.rollback()
        assert await waiting, "the first transaction was rolled back"
        assert not await first(connection, 1)
        assert await first(connection, 2)
        await connection.execute(
            "UPDATE everbell.once_done SET done_at = now() - interval '31 days' WHERE occurrence = 1"
        )
        await connection.execute(
            "INSERT INTO everbell.outbox_refused VALUES (1, 's', NULL, 'a', 0, '{}', 'x', '2020-01-01')"
        )
        assert await connection.fetchval("SELECT everbell.outbox_clean_up()") == 2
        assert await first(connection, 1)
        assert not await first(connection, 2)
        await other.close()

    run(scene, url)


def test_installing_again_keeps_rows_and_settings(url: str) -> None:
    async def scene(connection: Any) -> None:
        await connection.execute("SELECT everbell.schedule($1)", json.dumps(GOOD))
        before = await connection.fetch("SELECT * FROM everbell.outbox_settings")
        await connection.execute(CommandLine()("outbox", "sql").out)
        assert await connection.fetch("SELECT * FROM everbell.outbox_settings") == before
        assert await connection.fetchval("SELECT count(*) FROM everbell.outbox") == 1

    run(scene, url)


def test_a_look_is_bounded_by_rows_and_by_bytes(url: str) -> None:
    async def scene(connection: Any) -> None:
        event = json.dumps(GOOD | {"payload": "x" * 20_000})
        await connection.execute("SELECT everbell.schedule($1::text::json) FROM generate_series(1, 10)", event)

        async def look(low: int, rows: int, size: int, *without: str) -> list[int]:
            found = await connection.fetch(LOOK, [low], [100], "default", without, rows, size)
            return [row["seq"] for row in found]

        assert await look(1, 100, 10**6) == list(range(1, 11))
        assert await look(4, 2, 10**6) == [4, 5]
        assert await look(4, 100, 50_000) == [4, 5, 6]
        assert await look(4, 100, 1) == [4], "a row that is larger than the limit comes alone"
        assert await look(1, 100, 10**6, "default") == [None]

    run(scene, url)
