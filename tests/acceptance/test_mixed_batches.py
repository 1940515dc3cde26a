"""Batches that create, replace and cancel, through a gateway and across a kill, where tenants must be registered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everbell.client.blocking import Client
from everbell.errors import InvalidInput
from tests.acceptance.processes import CommandLine, ServerProcess

FAR = "2126-11-20T10:00:00Z"
COUNT = 2_500
"""More than one batch of the client, and more than one write of the engine."""


@pytest.mark.parametrize("gateways", ["0", "1"])
def test_mixed_batches_are_exact_and_survive_a_kill(gateways: str, tmp_path: Path) -> None:
    options = ("--gateways", gateways, "--require-tenants")
    with ServerProcess(tmp_path, *options, store=f"rocksdb:{tmp_path / 'store'}") as server:
        with Client(server.url, "shop") as client:
            with pytest.raises(InvalidInput, match="there is no tenant 'shop'"):
                client.schedule(1, at=FAR, to="queue:a")
            client.set_policy({"to": "queue:a"})
            client.schedule_many(_event(number, "old") for number in range(COUNT))

            items = [item for number in range(COUNT) for item in _items(number)]
            done = client.schedule_many(items)

            assert done.statuses == [status for number in range(COUNT) for status in _statuses(number)]
        server.kill()
        server.start()
        with Client(server.url, "shop") as client:
            for number in (0, 1, 2, COUNT - 1):
                event = client.get(f"e{number}")
                expected = ("cancelled", None) if number % 2 else ("scheduled", "newest")
                assert (event.status, event.payload) == expected
            assert client.get("new-0").payload == "fresh"
        lines = "\n".join(map(json.dumps, [{"mode": "cancel", "id": "e0"}, _event(2, "last", mode="put")]))
        told = CommandLine(server.url)("schedule", "-", "--lines", "--tenant", "shop", stdin=lines)
        assert (told.code, told.out) == (0, "scheduled 0 events, replaced 1, cancelled 1\n")


def _event(number: int, payload: str, **fields: Any) -> dict[str, Any]:
    return {"id": f"e{number}", "at": FAR, "payload": payload, **fields}


def _items(number: int) -> list[dict[str, Any]]:
    """Two changes of an event, of which every second is a cancel, and a new event."""
    last = {"mode": "cancel", "id": f"e{number}"} if number % 2 else _event(number, "newest", mode="put")
    return [_event(number, "newer", mode="put"), last, {**_event(number, "fresh", mode="put"), "id": f"new-{number}"}]


def _statuses(number: int) -> list[str]:
    return ["replaced", "cancelled" if number % 2 else "replaced", "created"]
