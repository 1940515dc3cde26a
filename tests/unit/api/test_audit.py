"""The audit log: the caller and the object of each change, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.api.keys_stage import KeysStage, guarded

SHOP = "/v1/tenants/shop"
SECRET = "the crown jewels"
JSON = {"content_type": "application/json"}


def entries(file: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()] if file.exists() else []


async def a_day(stage: KeysStage) -> dict[str, str]:
    """The requests of an operator, a producer and a worker; returns the ids of their keys."""
    operator = await stage.key("*", ["admin"])
    made = {}
    for name, scopes in {"producer": ["schedule", "read"], "worker": ["work"]}.items():
        spec = {"tenant": "shop", "scopes": scopes}
        made[name] = (await stage.call("POST", "/v1/keys", spec, operator, **JSON)).json
    producer, worker = made["producer"]["key"], made["worker"]["key"]
    event = {"in": "1h", "to": "queue:work", "payload": SECRET, "headers": {"x-secret": SECRET}}
    await stage.call("POST", f"{SHOP}/events", event, producer, **JSON)
    await stage.call("PUT", f"{SHOP}/events/a", event, producer, **JSON)
    await stage.call("GET", f"{SHOP}/events/a", key=producer)
    await stage.call("PATCH", f"{SHOP}/events/a", {"payload": SECRET}, producer, **JSON)
    await stage.call("DELETE", f"{SHOP}/events/a", key=producer)
    await stage.call("DELETE", f"{SHOP}/events?key=order-17", key=producer)
    await stage.call("DELETE", f"{SHOP}/events/a", key=worker)
    await stage.call("DELETE", f"{SHOP}/events/a", key="evk_nobody")
    await stage.call("POST", f"{SHOP}/queues/work/lease", {}, worker, **JSON)
    await stage.call("GET", "/healthz")
    await stage.call("POST", "/v1/cluster/drain", {"node": "n1"}, operator, **JSON)
    await stage.call("DELETE", f"/v1/keys/{made['worker']['id']}", key=operator)
    return {name: key["id"] for name, key in made.items()} | {"operator": operator.split("_")[1]}


def test_changes_are_logged_with_caller_and_outcome(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    ids: dict[str, str] = {}

    async def scene(stage: KeysStage) -> None:
        ids.update(await a_day(stage))

    guarded(scene, audit="changes", audit_file=file)

    names = {key_id: name for name, key_id in ids.items()} | {"stranger": "stranger"}
    written = [
        (names[entry["who"]], entry["operation"], entry.get("tenant"), entry.get("subject"), entry["status"])
        for entry in entries(file)
    ]
    assert written == [
        ("operator", "create_key", None, ids["producer"], 201),
        ("operator", "create_key", None, ids["worker"], 201),
        ("producer", "change_event", "shop", "a", 200),
        ("producer", "cancel_event", "shop", "a", 200),
        ("producer", "cancel_events", "shop", "key=order-17", 200),
        ("worker", "cancel_event", "shop", "a", 403),
        ("stranger", "cancel_event", "shop", "a", 401),
        ("operator", "drain_node", None, "n1", 418),
        ("operator", "revoke_key", None, ids["worker"], 200),
    ]
    assert all(entry["peer"] == "192.0.2.7" and entry["at"].endswith("Z") for entry in entries(file))


def test_a_bulk_operation_has_one_line_with_its_selection_and_the_number_of_events(tmp_path: Path) -> None:
    file = tmp_path / "audit"

    async def scene(stage: KeysStage) -> None:
        for name in ("a", "b", "c"):
            spec = {"in": "1h", "to": "queue:work", "tags": ["t"]}
            await stage.call("PUT", f"{SHOP}/events/{name}", spec, **JSON)
        await stage.call("PATCH", f"{SHOP}/events?tag=t", {"by": "1h"}, **JSON)
        await stage.call("DELETE", f"{SHOP}/events?tag=t", **JSON)
        await stage.call("POST", f"{SHOP}/dead/redrive", {"all": True, "tag": "t"}, **JSON)

    guarded(scene, audit="changes", audit_file=file)

    assert [(entry["operation"], entry["subject"], entry["events"]) for entry in entries(file)] == [
        ("reschedule_events", "tag=t", 3),
        ("cancel_events", "tag=t", 3),
        ("redrive_dead", "all tag=t", 0),
    ]


@pytest.mark.parametrize("extent", ["changes", "all"])
def test_neither_secrets_nor_payloads_are_in_it(extent: Any, tmp_path: Path) -> None:
    file = tmp_path / "audit"

    async def scene(stage: KeysStage) -> None:
        await a_day(stage)

    guarded(scene, audit=extent, audit_file=file)

    assert SECRET.encode() not in file.read_bytes()
    assert b"evk_" not in file.read_bytes()


def test_all_has_the_requests_of_producers_workers_and_readers(tmp_path: Path) -> None:
    file = tmp_path / "audit"

    async def scene(stage: KeysStage) -> None:
        await a_day(stage)

    guarded(scene, audit="all", audit_file=file)

    operations = [entry["operation"] for entry in entries(file)]
    assert {"schedule_event", "put_event", "get_event", "lease_events", "cancel_event"} <= set(operations)
    assert "healthz" not in operations


def test_off_is_off(tmp_path: Path) -> None:
    async def scene(stage: KeysStage) -> None:
        await a_day(stage)

    guarded(scene, audit="off", audit_file=tmp_path / "audit")

    assert not (tmp_path / "audit").exists()


def test_the_file_may_be_moved_away_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "audit"

    async def scene(stage: KeysStage) -> None:
        await stage.call("DELETE", f"{SHOP}/events/a")
        file.rename(tmp_path / "audit.1")
        await stage.call("DELETE", f"{SHOP}/events/b")

    guarded(scene, audit="changes", audit_file=file)

    assert [entry["subject"] for entry in entries(tmp_path / "audit.1")] == ["a"]
    assert [entry["subject"] for entry in entries(file)] == ["b"]
    assert [entry["who"] for entry in entries(file)] == ["nobody"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_stops_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: KeysStage) -> None:
        assert (await stage.call("DELETE", f"{SHOP}/events/a")).status == 404

    guarded(scene, audit="changes", audit_file=tmp_path / "missing" / "audit")

    assert "cannot be written" in caplog.text
    assert '"operation":"cancel_event"' in caplog.text, "a line that cannot be written goes to the server's log"


def test_without_a_file_it_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: KeysStage) -> None:
        await stage.call("DELETE", f"{SHOP}/events/a")

    with caplog.at_level(logging.INFO, "everbell.audit"):
        guarded(scene, audit="changes")

    (record,) = [record for record in caplog.records if record.name == "everbell.audit"]
    assert msgspec.json.decode(record.getMessage())["subject"] == "a"
