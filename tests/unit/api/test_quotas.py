"""A tenant that has used up its quota is told so, and when to come again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from everbell.core.tenant import Limits, Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy
from everbell.stores.memory.store import MemoryStore
from everbell.testing.virtual import VirtualClock, run_virtual
from tests.unit.api.api_caller import EVENTS, SOON, Caller

JSON = {"content_type": "application/json"}


def limited(test: Callable[[Caller], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        tenants = Tenants(Tenant(), (Tenant("shop", limits=Limits(pending=3)),))
        engine = await Engine.start(MemoryStore(8), {}, tenants, clock, SeededEntropy(7))
        try:
            await test(Caller(engine, clock))
        finally:
            await engine.stop()

    run_virtual(main)


def test_a_single_event_is_answered_with_429() -> None:
    async def scene(caller: Caller) -> None:
        for number in range(3):
            assert (await caller.call("PUT", f"{EVENTS}/{number}", SOON, **JSON)).status == 201
        for method, target in (("POST", EVENTS), ("PUT", f"{EVENTS}/one-more")):
            answer = await caller.call(method, target, SOON, **JSON)
            assert answer.status == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json["type"].endswith("/throttled")
        assert (await caller.call("POST", "/v1/tenants/other/events", SOON, **JSON)).status == 201

    limited(scene)


def test_a_batch_is_taken_as_far_as_there_is_room() -> None:
    async def scene(caller: Caller) -> None:
        some = await caller.call("POST", f"{EVENTS}/batch", [SOON] * 5, **JSON)
        assert some.status == 207
        assert (some.json["accepted"], some.json["rejected"]) == (3, 2)
        assert {error["status"] for error in some.json["errors"]} == {429}
        none = await caller.call("POST", f"{EVENTS}/batch", [SOON] * 5, **JSON)
        assert none.status == 429
        assert "retry-after" in none.headers

    limited(scene)
