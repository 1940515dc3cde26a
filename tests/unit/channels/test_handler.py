"""Handlers in this process: async ones on virtual time, plain ones in real threads."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from everbell.channels.handler import REASON_LENGTH_MAX, HandlerChannel, Refuse
from everbell.core.occurrence import Occurrence
from everbell.core.retry import DELIVERED, Outcome
from everbell.core.tenant import Tenant
from everbell.testing import VirtualClock, run_virtual
from tests.unit.channels.fake_delivery import FakeDelivery

IMPATIENT = Tenant("shop", timeout_ms=1_000)


def deliver(handler: Callable[[Occurrence], Awaitable[object]], **fields: str) -> FakeDelivery:
    """Deliver to an async handler, on virtual time."""

    async def main(clock: VirtualClock) -> FakeDelivery:
        channel = HandlerChannel()
        channel.register("mail", handler)
        delivery = FakeDelivery(fields.get("to", "handler:mail"), tenant=IMPATIENT)
        channel.start([delivery])
        await delivery.until_settled()
        await channel.close()
        return delivery

    return run_virtual(main)


def test_returning_is_success() -> None:
    got: list[Occurrence] = []

    async def handler(event: Occurrence) -> None:
        got.append(event)

    assert deliver(handler).outcome == DELIVERED
    assert (got[0].id, got[0].payload, got[0].attempt, got[0].epoch) == ("order-17", {"order": 17}, 1, 9)


def told(outcome: Outcome) -> str:
    """The reason, without the place in the handler."""
    return (outcome.reason or "").partition(" [")[0]


def test_raising_is_a_failure_that_is_tried_again() -> None:
    async def handler(event: Occurrence) -> None:
        raise ValueError("no such user yet")

    outcome = deliver(handler).outcome
    assert outcome.result == "failed"
    # The reason ends with the place in the handler.
    assert re.fullmatch(r"ValueError: no such user yet \[test_handler\.py:\d+ in handler\]", outcome.reason or "")


@pytest.mark.parametrize(
    ("refusal", "reason"), [(Refuse("gone"), "gone"), (Refuse(), "the handler refused it"), (Refuse, None)]
)
def test_refusing_is_final(refusal: Exception | type[Exception], reason: str | None) -> None:
    async def handler(event: Occurrence) -> None:
        raise refusal

    outcome = deliver(handler).outcome
    assert outcome.result == "refused"
    assert reason is None or outcome.reason == reason


class Speechless(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


class Unusual(BaseException):
    """An exception that programs seldom raise."""


@pytest.mark.parametrize(
    ("raised", "reason"), [(SystemExit("bad arguments"), "SystemExit: bad arguments"), (Unusual("odd"), "Unusual: odd")]
)
def test_an_unusual_exception_is_a_failure_too(raised: BaseException, reason: str) -> None:
    async def handler(event: Occurrence) -> None:
        raise raised

    outcome = deliver(handler).outcome
    assert (outcome.result, told(outcome)) == ("failed", reason)


def test_an_interrupt_from_the_keyboard_ends_the_program() -> None:
    async def main() -> None:
        # The interrupt also stays in the runner's task, which nothing awaits.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        channel = HandlerChannel()

        async def handler(event: Occurrence) -> None:
            raise KeyboardInterrupt

        channel.register("mail", handler)
        delivery = FakeDelivery("handler:mail")
        channel.start([delivery])
        await delivery.until_settled()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (ValueError("caf\udce9.txt"), r"ValueError: caf\udce9.txt"),
        (Refuse("caf\udce9.txt"), r"caf\udce9.txt"),
        (ValueError("\udce9" * 600), "ValueError: " + r"\udce9" * 81 + r"\u"),
        (Refuse("x" * 600), "x" * 500),
        (Speechless(), "Speechless: its text cannot be told, LookupError was raised instead"),
    ],
    ids=["no UTF-8", "refused", "escapes", "long", "speechless"],
)
def test_a_reason_is_short_and_storable_for_every_exception(raised: Exception, reason: str) -> None:
    async def handler(event: Occurrence) -> None:
        raise raised

    outcome = deliver(handler).outcome
    assert told(outcome) == reason
    assert len(outcome.reason or "") <= REASON_LENGTH_MAX
    assert msgspec.json.encode(outcome)


def test_a_handler_that_is_missing_may_come() -> None:
    async def handler(event: Occurrence) -> None: ...

    outcome = deliver(handler, to="handler:absent").outcome
    assert outcome.result == "failed"
    assert "'absent'" in (outcome.reason or "")


def test_a_handler_that_takes_too_long_is_cancelled() -> None:
    ended: list[str] = []

    async def handler(event: Occurrence) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    assert deliver(handler).outcome.result == "timeout"
    assert ended == ["cancelled"]


def test_a_handler_that_resists_its_deadline_does_not_disable_later_deadlines() -> None:
    async def main(clock: VirtualClock) -> None:
        # Given a runner with a handler that swallowed its cancellation.
        channel = HandlerChannel()

        async def handler(event: Occurrence) -> None:
            try:
                await asyncio.sleep(60)  # Of virtual time: longer than its deadline.
            except asyncio.CancelledError:
                if event.payload == "stubborn":
                    return
                raise

        channel.register("mail", handler)
        stubborn = FakeDelivery("handler:mail", b'"stubborn"', tenant=IMPATIENT)
        others = [FakeDelivery("handler:mail", tenant=IMPATIENT) for _ in range(3)]

        # When more come, then each of them has its deadline.
        channel.start([stubborn])
        await asyncio.sleep(0.5)
        channel.start(others)
        await stubborn.until_settled()
        channel.start(others[:1])
        await asyncio.sleep(30)

        assert {outcome.result for other in others for outcome in other.outcomes} == {"timeout"}
        assert [len(other.outcomes) for other in others] == [2, 1, 1]
        await channel.close()

    run_virtual(main)


def test_a_handler_that_awaited_a_cancelled_task_has_failed() -> None:
    async def handler(event: Occurrence) -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    assert deliver(handler).outcome.result == "failed"


def test_many_handlers_wait_side_by_side() -> None:
    async def main(clock: VirtualClock) -> None:
        channel = HandlerChannel()

        async def handler(event: Occurrence) -> None:
            await asyncio.sleep(0.5)

        channel.register("mail", handler)
        deliveries = [FakeDelivery("handler:mail") for _ in range(100)]
        start_at = clock.now()
        channel.start(deliveries)
        for delivery in deliveries:
            await delivery.until_settled()

        assert clock.now() == start_at + 500
        await channel.close()

    run_virtual(main)


def test_a_cancelled_event_is_not_delivered() -> None:
    async def main(clock: VirtualClock) -> None:
        channel = HandlerChannel()
        got: list[Occurrence] = []

        async def handler(event: Occurrence) -> None:
            got.append(event)

        channel.register("mail", handler)
        unwanted = FakeDelivery("handler:mail", wanted=False)
        channel.start([unwanted])
        await asyncio.sleep(1)
        assert (got, unwanted.outcomes) == ([], [])
        await channel.close()

    run_virtual(main)


def test_closing_gives_up_without_settling() -> None:
    async def main(clock: VirtualClock) -> None:
        channel = HandlerChannel()

        async def handler(event: Occurrence) -> None:
            await asyncio.sleep(0.9)

        channel.register("mail", handler)
        delivery = FakeDelivery("handler:mail")
        channel.start([delivery])
        await asyncio.sleep(0.5)
        await channel.close()
        await asyncio.sleep(5)
        assert delivery.outcomes == []

    run_virtual(main)


def test_a_plain_function_runs_in_a_thread_and_does_not_hold_up_the_loop() -> None:
    async def main() -> None:
        channel = HandlerChannel()
        released = threading.Event()
        threads: list[str] = []

        def handler(event: Occurrence) -> None:
            threads.append(threading.current_thread().name)
            assert released.wait(10)

        async def quick(event: Occurrence) -> None: ...

        channel.register("slow", handler)
        channel.register("quick", quick)
        slow, fast = FakeDelivery("handler:slow"), FakeDelivery("handler:quick")
        channel.start([slow, fast])
        assert await fast.until_settled() == DELIVERED
        assert slow.outcomes == []
        released.set()
        assert await slow.until_settled() == DELIVERED
        assert threads[0].startswith("everbell-handler")
        await channel.close()

    asyncio.run(main())


def test_a_plain_function_may_refuse_fail_or_return_something_to_await() -> None:
    async def main() -> None:
        channel = HandlerChannel()
        awaited: list[str] = []

        def refuse(event: Occurrence) -> None:
            raise Refuse("no")

        def fail(event: Occurrence) -> None:
            raise OSError("down")

        async def remember(event: Occurrence) -> None:
            awaited.append(event.id)

        channel.register("refuse", refuse)
        channel.register("fail", fail)
        channel.register("indirect", lambda event: remember(event))
        deliveries = [FakeDelivery(f"handler:{name}") for name in ("refuse", "fail", "indirect")]
        channel.start(deliveries)
        results = [(await delivery.until_settled()).result for delivery in deliveries]

        assert results == ["refused", "failed", "delivered"]
        assert awaited == ["order-17"]
        await channel.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (StopIteration(), "RuntimeError: the handler raised StopIteration"),
        (SystemExit("bad arguments"), "SystemExit: bad arguments"),
        (Unusual("odd"), "Unusual: odd"),
    ],
)
def test_every_exception_of_a_plain_function_is_a_failure(raised: BaseException, reason: str) -> None:
    async def main() -> None:
        channel = HandlerChannel()

        def handler(event: Occurrence) -> None:
            raise raised

        channel.register("mail", handler)
        delivery = FakeDelivery("handler:mail")
        channel.start([delivery])
        outcome = await delivery.until_settled()
        assert (outcome.result, told(outcome)) == ("failed", reason)
        await channel.close()

    asyncio.run(main())


def test_a_channel_that_was_closed_runs_plain_functions_again_in_another_loop() -> None:
    channel = HandlerChannel()
    channel.register("mail", lambda event: None)

    async def main() -> None:
        delivery = FakeDelivery("handler:mail")
        channel.start([delivery])
        assert await delivery.until_settled() == DELIVERED
        await channel.close()

    asyncio.run(main())
    asyncio.run(main())


def test_a_channel_that_was_closed_watches_deadlines_again() -> None:
    channel = HandlerChannel()

    async def handler(event: Occurrence) -> None:
        if event.payload == "slow":
            await asyncio.Event().wait()

    channel.register("mail", handler)

    async def main(clock: VirtualClock) -> None:
        # The quick one is done, and the channel closed, while the timer of the deadlines is set.
        for payload, result in ((b'"slow"', "timeout"), (b'"quick"', "delivered")):
            delivery = FakeDelivery("handler:mail", payload, tenant=IMPATIENT)
            channel.start([delivery])
            assert (await delivery.until_settled()).result == result
        await channel.close()

    run_virtual(main)
    run_virtual(main)


def test_a_channel_closed_before_its_first_step_drops_its_deliveries() -> None:
    channel = HandlerChannel()

    async def handler(event: Occurrence) -> None: ...

    channel.register("mail", handler)
    given_up = FakeDelivery("handler:mail")

    async def too_short(clock: VirtualClock) -> None:
        channel.start([given_up])
        await channel.close()

    async def again(clock: VirtualClock) -> None:
        delivery = FakeDelivery("handler:mail")
        channel.start([delivery])
        assert await delivery.until_settled() == DELIVERED
        await channel.close()

    run_virtual(too_short)
    run_virtual(again)
    assert given_up.outcomes == []
