"""Bulk operations of users in a cluster: any node may be asked, and the operation covers the events of all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everbell.client.blocking import Client
from everbell.client.queue_calls import Failure
from tests.acceptance.fleet import Fleet
from tests.acceptance.processes import CommandLine
from tests.services import shared

FAR = "2126-11-20T10:00:00Z"
LATER = "2126-11-20T11:30:00.000Z"
MANY = 1_200
"""More than a page of events, and some on each node."""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("fleet")
    with Fleet(folder, shared.postgres().fresh_schema()) as fleet:
        fleet.grow("n1", "n2")
        fleet.until_balanced("n1", "n2")
        yield fleet.nodes["n1"].url, fleet.nodes["n2"].url


def test_any_node_reschedules_exports_and_cancels_the_events_of_all_nodes(
    urls: tuple[str, str], tmp_path: Path
) -> None:
    one, other = (CommandLine(url) for url in urls)
    ids = [f"many-{number}" for number in range(MANY)]
    with Client(urls[0]) as client:
        made = client.schedule_many(
            {"payload": number, "at": FAR, "id": name, "to": "queue:many", "tags": ["many"]}
            | ({"key": f"k-{number % 40}"} if number % 2 else {})
            for number, name in enumerate(ids)
        )
    assert made.accepted == MANY
    moved = other("reschedule", "--tag", "many", "--by", "1h30m")
    assert (moved.code, moved.out) == (0, f"rescheduled {MANY:,} events\n")
    listed = one("list", "--tag", "many", "--all", "--json").documents
    assert {event["id"]: event["at"] for event in listed} == dict.fromkeys(ids, LATER)
    exported = other("export", "--to", "queue:many")
    assert sorted(line["id"] for line in exported.documents) == sorted(ids)
    # No node schedules an existing event again.
    file = tmp_path / "events.ndjson"
    file.write_text(exported.out)
    assert one("schedule", f"@{file}").code == 0
    assert one("cancel", "--id-prefix", "many-").out == f"cancelled {MANY:,} events\n"
    assert other("list", "--tag", "many", "--all", "--json").documents == []


def test_an_idempotency_key_is_known_on_all_nodes(urls: tuple[str, str]) -> None:
    with Client(urls[0]) as one, Client(urls[1]) as other:
        first = one.schedule(1, to="queue:once", at=FAR, idempotency_key="import-7")
        again = other.schedule(1, to="queue:once", at=FAR, idempotency_key="import-7")
        assert first.id == again.id
        assert len(list(one.list(to="queue:once"))) == 1


def test_any_node_redrives_the_dead_events_of_all_nodes(urls: tuple[str, str]) -> None:
    names = [f"dead-{number}" for number in range(20)]
    with Client(urls[0]) as one, Client(urls[1]) as other:
        for name in names:
            one.schedule(1, to="queue:dead", in_="0s", id=name)
        failed = 0
        while failed < len(names):
            leases = other.lease("dead", wait="20s", limit=100)
            other.fail("dead", [Failure(lease.token, "no such order", permanent=True) for lease in leases])
            failed += len(leases)
        assert {event.id for event in one.dead()} == set(names)
        assert CommandLine(urls[1])("redrive", "--all").out == "redrove 20 events\n"
        done: set[str] = set()
        while len(done) < len(names):
            leases = one.lease("dead", wait="20s", limit=100)
            one.ack("dead", [lease.token for lease in leases])
            done |= {lease.occurrence.id for lease in leases}
        assert done == set(names)


def test_any_node_pauses_resumes_and_backfills_a_recurring_event(urls: tuple[str, str]) -> None:
    one, other = (CommandLine(url) for url in urls)
    assert one("schedule", "1", "--cron", "0 9 * * *", "--id", "report", "--to", "queue:reports").code == 0
    assert len(other("preview", "--id", "report", "--count", "5", "--json").documents) == 5
    assert other("pause", "report", "--note", "holidays").code == 0
    (shown,) = one("show", "report", "--json").documents
    assert (shown["status"], shown["paused"]["note"]) == ("paused", "holidays")
    assert one("resume", "report").code == 0
    backfill = ("backfill", "report", "--from", "2025-11-10T00:00:00Z", "--until", "2025-11-14T00:00:00Z")
    assert other(*backfill).out == "scheduled 4\n"
    assert one(*backfill).out == "scheduled 0, 4 were there already\n"
