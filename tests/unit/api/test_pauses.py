"""Pauses over HTTP: requests, answers, and lines of the audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everbell.core.pause import TENANT_PAUSES_MAX
from everbell.testing import VirtualBell, run_virtual
from everbell.testing.virtual import VirtualClock
from tests.unit.api.keys_stage import KeysStage, guarded

PAUSES = "/v1/tenants/shop/pauses"


def test_a_tenant_pauses_and_resumes_its_own_objects(tmp_path: Path) -> None:
    audit_file = tmp_path / "audit"

    async def scene(stage: KeysStage) -> None:
        operator, admin = await stage.key("*", ["admin"]), await stage.key("shop", ["admin"])
        admin_id = admin.split("_")[1]
        spec = {"what": "target", "name": "https://Shop.example/", "note": "moving", "for": "2h"}
        made = await stage.call("POST", PAUSES, spec, admin)
        assert made.status == 201, made.body
        assert made.json == {
            "what": "target",
            "name": "https://shop.example",
            "note": "moving",
            "by": admin_id,
            "since": "2026-01-01T00:00:00.000Z",
            "until": "2026-01-01T02:00:00.000Z",
        }
        again = await stage.call("POST", PAUSES, {"what": "target", "name": "https://shop.example"}, operator)
        assert (again.status, again.json["by"]) == (200, operator.split("_")[1])
        assert "until" not in again.json
        assert (await stage.call("POST", PAUSES, {"what": "tenant"}, admin)).status == 201

        listed = (await stage.call("GET", PAUSES, key=await stage.key("shop", ["read"]))).json["pauses"]
        assert [(each["what"], each.get("name")) for each in listed] == [
            ("target", "https://shop.example"),
            ("tenant", None),
        ]
        assert (await stage.call("GET", "/v1/tenants/shop", key=admin)).json["pauses"] == listed
        tenants = (await stage.call("GET", "/v1/tenants", key=operator)).json["tenants"]
        assert [(each["name"], each["pauses"]) for each in tenants if each["pauses"]] == [("shop", 2)]
        assert (await stage.call("GET", "/v1/tenants/bank/pauses", key=operator)).json == {"pauses": []}

        gone = await stage.call("DELETE", f"{PAUSES}?what=target&name=https%3A%2F%2Fshop.example", key=admin)
        assert (gone.status, gone.json["what"]) == (200, "target")
        assert (await stage.call("DELETE", f"{PAUSES}?what=tenant", key=admin)).status == 200
        missing = await stage.call("DELETE", f"{PAUSES}?what=tenant", key=admin)
        assert (missing.status, missing.json["detail"]) == (404, "tenant 'shop' is not paused")

    guarded(scene, audit="changes", audit_file=audit_file)
    lines = [json.loads(line) for line in audit_file.read_text().splitlines()]
    assert [(line["operation"], line["status"], line["subject"]) for line in lines] == [
        ("pause", 201, "target https://shop.example"),
        ("pause", 200, "target https://shop.example"),
        ("pause", 201, "tenant"),
        ("resume", 200, "target https://shop.example"),
        ("resume", 200, "tenant"),
        ("resume", 404, "tenant"),
    ]
    assert {line["tenant"] for line in lines} == {"shop"}


@pytest.mark.parametrize(
    ("method", "query", "body", "field"),
    [
        ("POST", "", {}, "what"),
        ("POST", "", {"what": "everything"}, "what"),
        ("POST", "", {"what": "key"}, "name"),
        ("POST", "", {"what": "key", "name": "k", "untill": "x"}, "untill"),
        ("POST", "", {"what": "target", "name": "https://shop.example/path"}, "name"),
        ("POST", "", {"what": "key", "name": "k", "until": "2020-01-01T00:00:00Z"}, "until"),
        ("POST", "", {"what": "key", "name": "k", "for": "2h", "until": "2030-01-01T00:00:00Z"}, "for"),
        ("POST", "", {"what": "key", "name": "k", "note": "n" * 1_001}, "note"),
        ("DELETE", "", b"", "what"),
        ("DELETE", "?what=queue", b"", "name"),
        ("DELETE", "?what=tenant&name=shop", b"", "name"),
    ],
)
def test_a_pause_that_makes_no_sense_is_refused(method: str, query: str, body: Any, field: str) -> None:
    async def scene(stage: KeysStage) -> None:
        answer = await stage.call(method, PAUSES + query, body)
        assert answer.status == 422, answer.body
        assert answer.json["field"] == field

    guarded(scene)


def test_too_many_pauses_are_refused_with_advice() -> None:
    async def scene(stage: KeysStage) -> None:
        for number in range(TENANT_PAUSES_MAX):
            await stage.call("POST", PAUSES, {"what": "key", "name": f"{number}"})
        answer = await stage.call("POST", PAUSES, {"what": "key", "name": "more"})
        assert answer.status == 409
        assert "resume some, or pause the target or the tenant as a whole" in answer.json["detail"]

    guarded(scene)


def test_pauses_work_in_the_library_and_on_virtual_time() -> None:
    async def main(clock: VirtualClock) -> None:
        bell = VirtualBell()
        async with bell:
            await bell.add_pause("target", "https://shop.example", note="night", for_="1h")
            await bell.schedule({"n": 1}, to="https://shop.example/a", in_="1m")
            await bell.schedule({"n": 2}, to="https://bank.example/a", in_="1m")
            await bell.advance("30m")
            assert [each.payload for each in bell.delivered] == [{"n": 2}]
            (paused,) = await bell.pauses()
            assert (paused.what, paused.name, paused.note, paused.by) == (
                "target",
                "https://shop.example",
                "night",
                "nobody",
            )
            assert 'everbell_pauses{what="target"} 1' in await bell.metrics()
            await bell.advance("31m")
            assert [each.payload for each in bell.delivered] == [{"n": 2}, {"n": 1}]
            assert await bell.pauses() == ()
            await bell.add_pause("key", "k")
            await bell.end_pause("key", "k")

    run_virtual(main)
