"""Typed tasks: how they are scheduled, which arguments they get, and the outcome of each attempt."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import UNSET, Struct
from msgspec import json as msgspec_json

from everbell import App, Occurrence, Refuse, Retry, Task
from everbell.channels.handler import TimedOut, failure_of
from everbell.client.task import TaskQueue
from everbell.core.retry import Outcome
from everbell.errors import EverbellError, InvalidInput
from everbell.testing import VirtualBell, VirtualClock, run_virtual


@dataclass
class Reminder:
    user: int
    text: str = "hello"


class Order(Struct):
    lines: list[int]


def occurrence(payload: Any = None, task: str | None = None, **fields: Any) -> Occurrence:
    headers = () if task is None else (("x-everbell-task", task),)
    return Occurrence("e", 1, 1, "default", 0, 1, msgspec_json.encode(payload), headers=headers, **fields)


async def run(task: Task[Any]) -> Any:
    """Attempt an async task, or one with a limit."""
    result: Any = task.handler(occurrence())
    return await result


def attempt(task: Task[Any], given: Occurrence) -> Any:
    """The result of one attempt, or the outcome of the exception that it raised."""

    async def main() -> Any:
        try:
            result = task.handler(given)
            return await result if asyncio.iscoroutine(result) else result
        except Exception as error:
            return failure_of(error)

    return asyncio.run(main())


def test_a_task_gets_the_arguments_that_its_annotations_ask_for() -> None:
    app = App()

    @app.task
    def payload(reminder: Reminder) -> Any:
        return reminder

    @app.task
    def both(reminder: Reminder, event: Occurrence[Reminder]) -> Any:
        return reminder, event.id, event.payload

    @app.task
    async def whole(event: Occurrence[Order]) -> Any:
        return event.payload

    @app.task
    async def nothing() -> Any:
        return "called"

    @app.task
    def untyped(event):  # type: ignore[no-untyped-def]
        return event

    assert attempt(payload, occurrence({"user": 7})) == Reminder(7)
    assert attempt(both, occurrence({"user": 7})) == (Reminder(7), "e", Reminder(7))
    assert attempt(whole, occurrence({"lines": [1]})) == Order([1])
    assert attempt(nothing, occurrence()) == "called"
    assert attempt(untyped, occurrence({"any": "json"})) == {"any": "json"}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"user": "seven"}, "the payload does not fit Reminder: Expected `int`, got `str` - at `$.user`"),
        ({}, "the payload does not fit Reminder: Object missing required field `user`"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_with_the_field(payload: Any, reason: str) -> None:
    @App().task
    def remind(reminder: Reminder) -> None:
        raise AssertionError("it must not be called")

    assert attempt(remind, occurrence(payload)) == Outcome("refused", reason)


def test_a_model_with_its_own_validation_names_the_field_too() -> None:
    class Problem(ValueError):
        def errors(self) -> list[dict[str, Any]]:
            return [{"msg": "Input should be a valid integer", "loc": ("lines", 0, "price")}]

    class Model:
        """Has the methods of a pydantic model that Everbell uses."""

        @classmethod
        def model_validate_json(cls, raw: bytes) -> Model:
            if raw == b'"bad"':
                raise Problem("several lines")
            return cls()

        def model_dump(self, mode: str) -> Any:
            return {"mode": mode}

    def take(model: Any) -> Any:
        return model

    take.__annotations__["model"] = Model
    task = App().task(take)
    assert isinstance(attempt(task, occurrence({})), Model)
    assert "Input should be a valid integer - at `$.lines.0.price`" in attempt(task, occurrence("bad")).reason


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (Retry(after="5m", reason="the bank is closed"), Outcome("failed", "the bank is closed", None, 300_000)),
        (Refuse("gone"), Outcome("refused", "gone")),
        (TimedOut("too long"), Outcome("timeout", "too long")),
    ],
)
def test_a_task_controls_the_outcome(raised: Exception, outcome: Outcome) -> None:
    @App().task
    async def work() -> None:
        raise raised

    assert attempt(work, occurrence()) == outcome


def test_an_async_task_beyond_its_time_limit_is_cancelled() -> None:
    cancelled = []

    async def main(clock: VirtualClock) -> None:
        @App().task(timeout="2s")
        async def work(event: Occurrence[None]) -> None:
            assert event.deadline is not None
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(clock.now())
                raise

        start = clock.now()
        with pytest.raises(TimedOut, match="longer than 2 s"):
            await run(work)
        assert cancelled == [start + 2_000]

    run_virtual(main)


def test_a_task_that_ignores_its_cancellation_is_given_up() -> None:
    async def main(clock: VirtualClock) -> None:
        ended = asyncio.Event()

        @App().task(timeout="2s")
        async def stubborn() -> None:
            while not ended.is_set():
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue

        start = clock.now()
        with pytest.raises(TimedOut):
            await run(stubborn)
        assert clock.now() == start + 7_000
        ended.set()
        await asyncio.sleep(120)

    run_virtual(main)


def test_a_plain_task_beyond_its_time_limit_is_given_up() -> None:
    released = threading.Event()

    @App().task(timeout="1ms")
    def work() -> None:
        released.wait(60)

    assert attempt(work, occurrence()).result == "timeout"
    released.set()


def test_concurrency_of_a_task_is_limited() -> None:
    async def main(clock: VirtualClock) -> None:
        running = most = 0

        @App().task(concurrency=2)
        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1

        await asyncio.gather(*(run(work) for _ in range(5)))
        assert most == 2

    run_virtual(main)


def test_hooks_run_around_tasks_and_handlers_and_their_faults_change_nothing() -> None:
    app, seen = App(), []

    @app.hooks.before
    def begin(event: Occurrence) -> None:
        seen.append(("before", event.id))

    @app.hooks.after
    async def done(event: Occurrence) -> None:
        seen.append(("after", event.id))
        raise LookupError("in a hook")

    @app.hooks.on_failure
    def failed(event: Occurrence, error: BaseException) -> None:
        seen.append(("failed", str(error)))

    @app.task
    async def work(fails: bool) -> str:
        if fails:
            raise ValueError("no")
        return "result"

    @app.on("plain")
    def handle(event: Occurrence) -> None:
        seen.append(("thread", str(threading.current_thread() is not threading.main_thread())))

    assert attempt(work, occurrence(False)) == "result"
    assert attempt(work, occurrence(True)).result == "failed"
    asyncio.run(app.handlers["plain"](occurrence()))  # type: ignore[arg-type]
    assert seen == [
        *(("before", "e"), ("after", "e")),
        *(("before", "e"), ("failed", "no")),
        *(("before", "e"), ("thread", "True"), ("after", "e")),
    ]


def test_tasks_share_a_queue_and_are_found_by_name() -> None:
    app = App()

    @app.task(queue="mail")
    def one() -> str:
        return "one"

    @app.task(queue="mail", name="other")
    def two() -> str:
        return "two"

    queue = app.handlers["mail"]
    assert isinstance(queue, TaskQueue)
    assert (queue(occurrence(task="one")), queue(occurrence(task="other"))) == ("one", "two")
    with pytest.raises(
        EverbellError, match="no task named 'two'; the tasks of the queue 'mail' in this program are one"
    ):
        queue.of(occurrence(task="two"))
    with pytest.raises(EverbellError, match="header x-everbell-task is missing"):
        queue.of(occurrence())
    with pytest.raises(InvalidInput, match="already"):
        app.task(queue="mail")(one.function)
    with pytest.raises(InvalidInput, match="has a handler already"):
        app.on("mail")(one.function)


def test_the_arguments_of_an_event_are_complete() -> None:
    app = App()

    @app.task(queue="mail", retry={"max_attempts": 3}, expires="1h")
    def remind(reminder: Reminder) -> None: ...

    assert remind.event(Reminder(7), in_="20m", id="r", headers={"x-a": "b"}) == {
        "payload": Reminder(7),
        "to": "queue:mail",
        "in_": "20m",
        "id": "r",
        "retry": {"max_attempts": 3},
        "expires": "1h",
        "headers": {"x-everbell-task": "remind", "x-a": "b"},
    }
    assert remind.event(Reminder(7))["in_"] == 0
    remind(Reminder(7))  # The function itself.


def test_an_app_without_a_client_says_what_to_do() -> None:
    @App().task
    def remind() -> None: ...

    with pytest.raises(EverbellError, match=r"App\(client=AsyncClient"):
        asyncio.run(remind.schedule())


def test_tasks_of_the_library_are_scheduled_and_run() -> None:
    async def main(clock: VirtualClock) -> None:
        got: list[Any] = []
        async with VirtualBell() as bell:

            @bell.task(retry={"max_attempts": 2, "backoff": "1s"})
            async def remind(reminder: Reminder, event: Occurrence[Reminder]) -> None:
                got.append((reminder, event.attempt, event.is_last_attempt))
                if not event.is_last_attempt:
                    raise Retry(after="30s")

            @bell.task
            async def tick() -> None:
                got.append("tick")

            made = await remind.schedule(Reminder(7), in_="20m", id="r")
            assert made.created
            assert not (await remind.schedule(Reminder(7), in_="20m", id="r")).created
            await bell.advance("20m")
            assert got == [(Reminder(7), 1, False)]
            await bell.advance("30s")
            assert got[1:] == [(Reminder(7), 2, True)]
            got.clear()
            repeated = await tick.every("1h", count=2)
            assert repeated.id == "tick"
            assert not (await tick.every("1h", count=2)).created
            await bell.advance("3h")
            assert got == ["tick", "tick"]
            daily = await tick.cron("0 9 * * *", tz="Europe/Berlin", id="daily")
            assert (await bell.get(daily.id)).repeat == {"cron": "0 9 * * *", "tz": "Europe/Berlin"}

    run_virtual(main)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda a, b, c: None, "too many parameters"),
        (lambda *a: None, "no payload and no Occurrence"),
    ],
)
def test_a_function_that_cannot_be_a_task_is_refused(function: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        App().task(name="x")(function)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"concurrency": 0}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        App().task(**options)


def test_without_a_limit_from_the_server_no_attempt_is_known_to_be_the_last() -> None:
    assert not occurrence().is_last_attempt
    assert not occurrence(attempts_max=None).is_last_attempt
    assert occurrence(attempts_max=1).is_last_attempt
    assert occurrence(attempts_max=UNSET).deadline is None
