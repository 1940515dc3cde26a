"""Answers that viewers share: how old they may be, which requests share them, and how much of them is kept."""

from __future__ import annotations

import asyncio

import pytest

from everbell.api import shared_answers
from everbell.api.shared_answers import SharedAnswers
from everbell.http.message import HttpRequest, HttpResponse
from everbell.testing.virtual import VirtualClock, run_virtual
from tests.unit.api.api_caller import EVENTS, Caller, called
from tests.unit.api.keys_stage import KeysStage, guarded

SHARED = {"cache_control": "max-age=10"}


async def found(caller: Caller, **headers: str) -> int:
    return len((await caller.call("GET", EVENTS, **headers)).json["events"])


def test_a_caller_that_accepts_an_older_answer_shares_it_for_a_second() -> None:
    async def test(caller: Caller) -> None:
        assert await found(caller, **SHARED) == 0
        await caller.schedule()
        await asyncio.sleep(0.9)
        assert await found(caller, **SHARED) == 0
        await asyncio.sleep(0.2)
        assert await found(caller, **SHARED) == 1

    called(test)


@pytest.mark.parametrize("header", ["", "no-cache", "max-age=0", "max-age=x", "max-age=10, no-cache", "max-age=-1"])
def test_every_other_caller_gets_an_answer_of_its_own(header: str) -> None:
    async def test(caller: Caller) -> None:
        assert await found(caller, **SHARED) == 0
        await caller.schedule()
        assert await found(caller, cache_control=header) == 1

    called(test)


def test_a_key_is_judged_before_an_answer_is_shared() -> None:
    async def test(stage: KeysStage) -> None:
        key = await stage.key("shop", ["read"])
        other = await stage.key("other", ["read"])
        path = "/v1/tenants/shop/queues"
        assert (await stage.call("GET", path, authorization=f"Bearer {key}", **SHARED)).status == 200
        assert (await stage.call("GET", path, authorization=f"Bearer {other}", **SHARED)).status == 403
        assert (await stage.call("GET", path, **SHARED)).status == 401

    guarded(test)


class Counted:
    """A handler that takes a while, and numbers its answers."""

    def __init__(self, seconds: float = 0.0, size: int = 1, status: int = 200) -> None:
        self.calls = 0
        self.seconds = seconds
        self.size = size
        self.status = status

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        self.calls += 1
        await asyncio.sleep(self.seconds)
        return HttpResponse(self.status, bytes(self.size))


async def ask(shared: SharedAnswers, handler: Counted, target: str = "/", max_age: int = 300) -> HttpResponse:
    answer = shared.sharing(handler)(HttpRequest("GET", target, {"cache-control": f"max-age={max_age}"}))
    assert not isinstance(answer, HttpResponse)
    return await answer


def test_viewers_that_ask_at_the_same_time_cost_one_computation_even_if_the_first_hangs_up() -> None:
    async def main(clock: VirtualClock) -> None:
        shared, handler = SharedAnswers(clock), Counted(0.5)
        first = asyncio.create_task(ask(shared, handler))
        others = [asyncio.create_task(ask(shared, handler)) for _ in range(9)]
        await asyncio.sleep(0.1)
        first.cancel()
        assert {answer.status for answer in await asyncio.gather(*others)} == {200}
        assert handler.calls == 1

    run_virtual(main)


def test_an_expensive_answer_is_shared_for_longer_but_never_longer_than_its_caller_accepts() -> None:
    async def main(clock: VirtualClock) -> None:
        shared, handler = SharedAnswers(clock), Counted(0.1)
        await ask(shared, handler)
        await asyncio.sleep(30)
        assert dict((await ask(shared, handler)).headers)["age"] == "30"
        assert handler.calls == 1
        await ask(shared, handler, max_age=20)
        assert handler.calls == 2
        await asyncio.sleep(0.1 * shared_answers.AGE_PER_COST + 1)
        await ask(shared, handler)
        assert handler.calls == 3

    run_virtual(main)


def test_failures_are_not_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        shared, handler = SharedAnswers(clock), Counted(status=503)
        for _ in range(2):
            await ask(shared, handler)
        assert handler.calls == 2

    run_virtual(main)


@pytest.mark.parametrize("size", [1, shared_answers.KEPT_BYTES_MAX // 4])
def test_what_is_kept_is_bounded_in_number_and_bytes(size: int) -> None:
    async def main(clock: VirtualClock) -> None:
        shared, handler = SharedAnswers(clock), Counted(size=size)
        many = shared_answers.KEPT_MAX + 5
        for number in range(many):
            await ask(shared, handler, f"/{number}")
        await ask(shared, handler, f"/{many - 1}")
        assert handler.calls == many, "the latest is kept"
        await ask(shared, handler, "/0")
        assert handler.calls == many + 1, "the oldest is not"
        assert len(shared._kept) <= shared_answers.KEPT_MAX
        assert sum(answer.size for answer in shared._kept.values()) == shared._bytes <= shared_answers.KEPT_BYTES_MAX

    run_virtual(main)
