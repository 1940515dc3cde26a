"""Many events at a time, by the command line: cancelled, rescheduled, and moved from one server to another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from everbell.client.blocking import Client
from tests.acceptance.processes import CommandLine, ServerProcess

FAR = "2126-11-20T10:00:00Z"
LATER = "2126-11-20T11:30:00.000Z"
MANY = 2_300
"""More than two pages of events."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def everbell(server: ServerProcess) -> CommandLine:
    return CommandLine(server.url)


def _schedule(server: ServerProcess, count: int, tenant: str = "default", **fields: Any) -> list[str]:
    """Schedule `count` events due far ahead; returns their ids."""
    name = fields.pop("name")
    ids = [f"{name}-{number}" for number in range(count)]
    with Client(server.url, tenant) as client:
        made = client.schedule_many({"payload": 1, "at": FAR, "id": each, **fields} for each in ids)
    assert made.accepted == count
    return ids


def _times(everbell: CommandLine, *options: str) -> dict[str, str]:
    """The due times of the events that the options select."""
    return {event["id"]: event["at"] for event in everbell("list", "--all", "--json", *options).documents}


@pytest.mark.parametrize(
    ("tenant", "option", "value"),
    [("a", "--key", "k-1"), ("b", "--tag", "t-1"), ("c", "--to", "queue:one"), ("d", "--id-prefix", "one-")],
)
def test_a_bulk_cancel_cancels_exactly_the_matching_events(
    everbell: CommandLine, server: ServerProcess, tenant: str, option: str, value: str
) -> None:
    _schedule(server, 3, tenant, name="one", to="queue:one", key="k-1", tags=["t-1"])
    others = _schedule(server, 2, tenant, name="other", to="queue:other", key="k-2", tags=["t-2"])
    done = everbell("cancel", option, value, "--tenant", tenant)
    assert (done.code, done.out, done.err) == (0, "cancelled 3 events\n", "")
    assert sorted(_times(everbell, "--tenant", tenant)) == others
    assert everbell("cancel", option, value, "--tenant", tenant).out == "cancelled 0 events\n"


def test_a_bulk_cancel_goes_through_all_pages(everbell: CommandLine, server: ServerProcess) -> None:
    _schedule(server, MANY, name="page", to="queue:page", tags=["page"])
    _schedule(server, 1, name="early", to="queue:page", tags=["page"], at="2126-11-19T00:00:00Z")
    done = everbell("cancel", "--tag", "page", "--from", FAR, "--until", FAR, "--json")
    assert done.documents == [{"cancelled": MANY}]
    assert list(_times(everbell, "--tag", "page")) == ["early-0"]


def test_a_bulk_reschedule_moves_each_event_once(everbell: CommandLine, server: ServerProcess) -> None:
    ids = _schedule(server, MANY, name="move", to="queue:move", tags=["move"])
    done = everbell("reschedule", "--tag", "move", "--by", "1h30m")
    assert (done.code, done.out, done.err) == (0, f"rescheduled {MANY:,} events\n", "")
    assert _times(everbell, "--tag", "move") == dict.fromkeys(ids, LATER)
    assert everbell("reschedule", "--tag", "move", "--by=-1h30m", "--json").documents == [
        {"rescheduled": MANY, "skipped": 0}
    ]
    assert set(_times(everbell, "--tag", "move").values()) == {"2126-11-20T10:00:00.000Z"}
    assert everbell("reschedule", "--id-prefix", "move-", "--at", LATER).code == 0
    assert set(_times(everbell, "--tag", "move").values()) == {LATER}


def test_an_event_that_cannot_be_rescheduled_is_named_and_the_others_move(
    everbell: CommandLine, server: ServerProcess
) -> None:
    ids = _schedule(server, 2, name="held", to="queue:held")
    with Client(server.url) as client:
        client.reschedule("held-0", in_="0s")
        (lease,) = client.lease("held", wait="20s")
        done = everbell("reschedule", "--to", "queue:held", "--at", LATER)
        client.give_back("held", [lease.token])
    assert done.code == 1
    assert done.out == "rescheduled 1 event, left 1 as it was\n"
    assert done.err.startswith("everbell reschedule: held-0: ")
    assert _times(everbell, "--to", "queue:held")[ids[1]] == LATER


def test_no_event_is_rescheduled_beyond_the_horizon(everbell: CommandLine, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('limits = { horizon = "30d" }\n')
    assert everbell("tenants", "set", "near", str(policy)).code == 0
    for name in ("a", "b"):
        tomorrow = everbell("schedule", "1", "--in", "1d", "--to", "queue:q", "--id", name, "--tenant", "near")
        assert tomorrow.code == 0
    before = _times(everbell, "--tenant", "near")
    assert everbell("reschedule", "a", "--by", "20d", "--tenant", "near").code == 0
    done = everbell("reschedule", "--to", "queue:q", "--by", "20d", "--tenant", "near")
    assert done.code == 1
    assert done.out == "rescheduled 1 event, left 1 as it was\n"
    assert done.err == "everbell reschedule: a: by: lies beyond the tenant's horizon\n"
    after = _times(everbell, "--tenant", "near")
    assert after["a"] > before["a"]
    assert after["b"] > before["b"]


def _every_kind(client: Client) -> None:
    """Schedule an event of each kind that an export has to contain."""
    client.schedule({"n": 1.0, "text": "ü"}, to="queue:a", at=FAR, id="plain", tags=["x", "y"], key="k")
    client.schedule(b"\x00\xff", to="http://127.0.0.1:9/b", at=FAR, id="bytes", content_type="image/png")
    client.schedule(None, to="queue:a", at=FAR, id="own-rules", headers={"x-shop": "7"}, expires="1h")
    client.schedule(1, to="queue:a", at=FAR, id="retries", retry={"max_attempts": 3, "backoff": "1s"})
    client.schedule(2, to="queue:a", at=FAR)
    client.schedule(3, to="queue:c", id="cron", repeat={"cron": "0 9 * * MON", "tz": "Europe/Berlin", "jitter": "5m"})
    client.schedule(4, to="queue:a", at=FAR, id="every", repeat={"every": "1h", "count": 5, "overlap": "skip"})
    client.schedule(5, to="queue:a", at=FAR, id="resting", repeat={"every": "1d"})
    client.pause("resting")


def test_events_move_from_one_server_to_another(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    file = tmp_path / "events.ndjson"
    with ServerProcess(tmp_path / "old") as old, ServerProcess(tmp_path / "new") as new:
        there, here = CommandLine(new.url), CommandLine(old.url)
        with Client(old.url) as client:
            _every_kind(client)
        exported = here("export")
        assert (exported.code, exported.err) == (0, "exported 7 events, left out 1 that is paused\n")
        file.write_text(exported.out)
        assert there("schedule", f"@{file}").out == "scheduled 7 events\n"
        again = there("export")
        assert _by_id(again.out) == _by_id(exported.out)
        # A second import schedules nothing twice.
        assert there("schedule", f"@{file}").code == 0
        assert len(there("list", "--all", "--json").documents) == 7
        (cron,) = there("list", "--to", "queue:c", "--json").documents
        (before,) = here("list", "--to", "queue:c", "--json").documents
        assert cron["at"] == before["at"]


def test_the_remaining_occurrences_of_a_recurring_event_move_to_another_server(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    past = (datetime.now(UTC) - timedelta(hours=1, minutes=30)).isoformat()
    with ServerProcess(tmp_path / "old") as old, ServerProcess(tmp_path / "new") as new:
        with Client(old.url) as client:
            client.schedule(1, to="queue:q", at=past, id="hourly", repeat={"every": "1h", "count": 5})
            for _ in range(2):
                (lease,) = client.lease("q", wait="20s")
                client.ack("q", [lease.token])
            (before,) = CommandLine(old.url)("list", "--json").documents
        exported = CommandLine(old.url)("export")
        assert CommandLine(new.url)("schedule", "-", "--lines", stdin=exported.out).code == 0
        (after,) = CommandLine(new.url)("list", "--json").documents
        assert (after["id"], after["at"]) == ("hourly", before["at"])
        assert after["repeat"]["count"] == 3


def test_an_export_shows_how_each_event_ended(everbell: CommandLine, server: ServerProcess) -> None:
    _schedule(server, 2, name="end", to="queue:end", tags=["end"])
    assert everbell("cancel", "--tag", "end").code == 0
    told = everbell("export", "--status", "cancelled", "--tag", "end")
    assert {(event["id"], event["status"]) for event in told.documents} == {
        ("end-0", "cancelled"),
        ("end-1", "cancelled"),
    }


def _by_id(lines: str) -> dict[str, Any]:
    events = [json.loads(line) for line in lines.splitlines()]
    return {event["id"]: event for event in events}
