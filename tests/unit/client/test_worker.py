"""Workers against a server in memory, on virtual time: when handlers run, and which outcomes the server gets."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from socket import gethostname
from typing import Any

import pytest
from msgspec.structs import replace

from everbell.channels.handler import Refuse
from everbell.client.app import App
from everbell.client.problems import ProblemError
from everbell.client.queue_calls import Failure
from everbell.client.worker import Worker
from everbell.clock import Clock
from everbell.core.occurrence import Occurrence
from everbell.core.queue_view import WorkerInfo
from everbell.errors import InvalidInput, Unreachable
from everbell.testing import run_virtual
from tests.unit.client.fake_leases import FakeLeases

STOPPED = "the worker stopped before this was done"


class Unusual(BaseException):
    """An exception that is not an `Exception`."""


def placeless(failure: Failure) -> Failure:
    """The failure without the place in the handler, at the end of its reason."""
    return replace(failure, reason=(failure.reason or "").partition(" [")[0])


class Play:
    """A worker with one queue, "q", and the server that it pulls from."""

    def __init__(self, handler: Callable[[Occurrence], Awaitable[object] | object], **options: Any) -> None:
        self.server = FakeLeases()
        self.app = App()
        self.app.on("q")(handler)
        concurrency = int(options.pop("concurrency", 4))
        self.worker = Worker(self.app, self.server, concurrency, backoff=lambda failures: 0.5, **options)
        self.running: asyncio.Task[None] = asyncio.get_running_loop().create_task(self.worker.run())

    async def stop(self) -> None:
        self.worker.stop()
        await self.running


def play(main: Callable[[], Awaitable[None]]) -> None:
    async def on_virtual_time(clock: Clock) -> None:
        await main()

    run_virtual(on_virtual_time)


def test_events_are_handled_and_acknowledged() -> None:
    async def main() -> None:
        seen = []

        async def handle(event: Occurrence) -> None:
            seen.append((event.id, event.payload))

        scene = Play(handle)
        scene.server.put("q", "a", "b")
        await scene.server.told(2)
        assert seen == [("a", {"n": 1}), ("b", {"n": 1})]
        assert scene.server.acked == ["a", "b"]
        await scene.stop()
        assert (scene.worker.handled, scene.worker.failed) == (2, 0)

    play(main)


def test_failures_are_told_with_their_reason() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            match event.id:
                case "refused":
                    raise Refuse("no such user")
                case "refused-silently":
                    raise Refuse
                case "exits":
                    raise SystemExit(3)
                case "odd":
                    raise Unusual("odd")
                case "cancels":
                    raise asyncio.CancelledError
                case "latin-1":
                    raise FileNotFoundError("caf\udce9.txt")
                case "refused-at-length":
                    raise Refuse("x" * 600)
                case _:
                    raise ValueError("x" * 600)

        scene = Play(handle)
        names = ("refused", "refused-silently", "exits", "odd", "cancels", "latin-1", "refused-at-length", "fails")
        scene.server.put("q", *names)
        await scene.server.told(len(names))
        told = {failure.lease: placeless(failure) for failure in scene.server.failed}
        assert told["refused"] == Failure("refused", "no such user", permanent=True)
        assert told["refused-silently"].reason == "the handler refused it"
        assert told["exits"] == Failure("exits", "SystemExit: 3")
        assert told["odd"] == Failure("odd", "Unusual: odd")
        assert told["cancels"] == Failure("cancels", "the handler cancelled itself")
        assert told["latin-1"] == Failure("latin-1", r"FileNotFoundError: caf\udce9.txt")
        assert told["refused-at-length"] == Failure("refused-at-length", "x" * 500, permanent=True)
        assert told["fails"].reason == "ValueError: " + "x" * 488
        assert not told["fails"].permanent
        await scene.stop()
        assert scene.worker.failed == len(names)

    play(main)


def test_no_more_is_leased_than_may_run() -> None:
    async def main() -> None:
        running = most = 0

        async def handle(event: Occurrence) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1

        scene = Play(handle, concurrency=3)
        scene.server.put("q", *"abcdefgh")
        await scene.server.told(8)
        assert most == 3
        assert max(scene.server.limits) == 3
        await scene.stop()

    play(main)


def test_a_stuck_handler_leaves_the_others_their_room() -> None:
    async def main() -> None:
        never = asyncio.Event()

        async def handle(event: Occurrence) -> None:
            if event.id == "stuck":
                await never.wait()

        scene = Play(handle, concurrency=2)
        scene.server.put("q", "stuck", *"abcde")
        await scene.server.told(5)
        assert scene.server.acked == [*"abcde"]
        never.set()
        await scene.stop()

    play(main)


def test_acknowledgements_travel_together() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            pass

        scene = Play(handle, concurrency=1_000)
        scene.server.put("q", *(f"e{n}" for n in range(1_000)))
        await scene.server.told(1_000)
        assert scene.server.ack_calls <= 3
        await scene.stop()

    play(main)


def test_leases_of_long_handlers_are_extended_in_time() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            await asyncio.sleep(95)

        scene = Play(handle, lease_s=30.0)
        scene.server.put("q", "long")
        await scene.server.told(1)
        assert scene.server.acked == ["long"]
        assert [(round(at), tokens) for at, tokens in scene.server.extended if tokens] == [
            (10 * n, ("long",)) for n in range(1, 10)
        ]
        await scene.stop()

    play(main)


def test_a_worker_stops_extending_a_lost_lease() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            await asyncio.sleep(45)

        scene = Play(handle, lease_s=30.0)
        scene.server.put("q", "a")
        await asyncio.sleep(5)
        scene.server.held.clear()  # The server restarted, and gave it to another.
        await scene.server.told(1)
        assert [tokens for _, tokens in scene.server.extended if tokens] == [("a",)]
        await scene.stop()

    play(main)


def test_an_event_that_was_not_begun_is_dropped_with_its_lease() -> None:
    async def main() -> None:
        seen = []

        async def handle(event: Occurrence) -> None:
            seen.append(event.id)

        scene = Play(handle)
        puller = scene.worker._pullers[0]
        scene.server.put("q", "a", "b")
        puller._take(await scene.server.lease("q", limit=2, wait=0.0, lease=None, worker=None))
        puller._lose(["a"])
        await scene.server.told(1)
        assert seen == scene.server.acked == ["b"]
        await scene.stop()

    play(main)


def test_a_worker_tells_its_name_host_version_and_queues() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            await asyncio.sleep(40)

        scene = Play(handle, lease_s=30.0, name="mail-1")
        scene.server.put("q", "a")
        await scene.server.told(1)
        (told,) = set(scene.server.workers)
        assert told == WorkerInfo("mail-1", gethostname(), version("everbell"), ("q",))
        assert len(scene.server.workers) > 2, "it tells so with every lease and extension"
        await scene.stop()

    play(main)


def test_a_worker_without_a_name_is_named_by_its_host_and_process() -> None:
    app = App()
    app.on("q")(print)
    assert Worker(app, FakeLeases()).name == f"{gethostname()}-{os.getpid()}"


def test_a_worker_pulls_from_some_queues_of_its_app() -> None:
    app = App()
    for queue in ("mail", "sms", "letters"):
        app.on(queue)(print)
    assert Worker(app, FakeLeases(), queues=["sms", "mail"]).queues == ("mail", "sms")
    assert Worker(app, FakeLeases()).queues == ("mail", "sms", "letters")
    with pytest.raises(InvalidInput, match="no handler for fax; it has handlers for mail, sms, letters"):
        Worker(app, FakeLeases(), queues=["fax"])
    with pytest.raises(InvalidInput, match="1 to 128 characters"):
        Worker(app, FakeLeases(), name="x" * 129)


def test_a_server_that_is_down_is_waited_for() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            pass

        scene = Play(handle)
        await asyncio.sleep(1)
        scene.server.break_down(Unreachable("the server restarts"))
        scene.server.put("q", "a")
        await asyncio.sleep(20)
        scene.server.down = None
        await scene.server.told(1)
        assert scene.server.acked == ["a"]
        assert scene.server.lease_calls < 50
        await scene.stop()

    play(main)


def test_outcomes_wait_until_the_server_hears_them() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            scene.server.break_down(Unreachable("the server restarts"))
            if event.id == "bad":
                raise ValueError("bad")

        scene = Play(handle, concurrency=2)
        scene.server.put("q", "good", "bad")
        await asyncio.sleep(10)
        assert not scene.server.acked
        scene.server.down = None
        await scene.server.told(2)
        assert (scene.server.acked, [failure.lease for failure in scene.server.failed]) == (["good"], ["bad"])
        await scene.stop()

    play(main)


def test_a_final_error_stops_the_worker_after_its_work_is_done() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            scene.server.break_down(ProblemError("the token is not known", 401))
            await asyncio.sleep(1)
            scene.server.down = None

        scene = Play(handle, concurrency=2)
        scene.server.put("q", "a")
        with pytest.raises(ProblemError, match="not known"):
            await scene.running
        assert scene.server.acked == ["a"]

    play(main)


def test_outcomes_that_are_refused_for_good_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def handle(event: Occurrence) -> None:
            scene.server.break_down(InvalidInput("no"))
            done.set()

        scene = Play(handle, concurrency=1)
        scene.server.put("q", "a")
        with pytest.raises(InvalidInput):
            await scene.running
        assert done.is_set()
        assert not scene.server.acked

    with caplog.at_level(logging.ERROR):
        play(main)
    assert "the server refused 1 outcomes" in caplog.text


def test_stopping_gives_back_pending_events_and_lets_handlers_finish() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            scene.worker.stop()
            await asyncio.sleep(20)

        scene = Play(handle, concurrency=3, lease_s=30.0)
        scene.server.put("q", "a", "b", "c")
        await scene.running
        assert scene.server.acked == ["a"]
        assert scene.server.failed == [Failure(name, STOPPED, retry_after=0) for name in ("b", "c")]
        assert [tokens for _, tokens in scene.server.extended if tokens] == [("a",)]
        assert not scene.server.held

    play(main)


def test_the_grace_ends() -> None:
    async def main() -> None:
        cancelled = []

        async def handle(event: Occurrence) -> None:
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                cancelled.append(event.id)
                raise

        scene = Play(handle, grace_s=30.0)
        scene.server.put("q", "a")
        await asyncio.sleep(1)
        scene.worker.stop()
        await scene.running
        assert asyncio.get_running_loop().time() == pytest.approx(31)
        assert cancelled == ["a"]
        assert scene.server.failed == [Failure("a", STOPPED, retry_after=0)]

    play(main)


def test_in_a_hurry_there_is_no_grace() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            await asyncio.sleep(1_000)

        scene = Play(handle, grace_s=500.0)
        scene.server.put("q", "a")
        await asyncio.sleep(1)
        scene.worker.stop()
        await asyncio.sleep(1)
        scene.worker.stop(hurry=True)
        await scene.running
        assert asyncio.get_running_loop().time() == pytest.approx(2)
        assert scene.server.failed == [Failure("a", STOPPED, retry_after=0)]

    play(main)


def test_a_server_that_stays_away_does_not_keep_a_worker_from_stopping(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            scene.server.break_down(Unreachable("gone for good"))

        scene = Play(handle)
        scene.server.put("q", "a")
        await asyncio.sleep(1)
        await scene.stop()

    play(main)
    assert "some outcomes were not reported" in caplog.text


def test_stopping_before_the_beginning() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            pass

        scene = Play(handle)
        await scene.stop()
        assert scene.server.lease_calls == 0

    play(main)


def test_queues_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        never = asyncio.Event()
        seen = []
        server, app = FakeLeases(), App()

        @app.on("slow")
        async def slow(event: Occurrence) -> None:
            await never.wait()

        @app.on("quick")
        async def quick(event: Occurrence) -> None:
            seen.append(event.id)

        worker = Worker(app, server, 1, backoff=lambda failures: 0.5, grace_s=0.0)
        running = asyncio.get_running_loop().create_task(worker.run())
        server.put("slow", "s")
        server.put("quick", "a", "b")
        await server.told(2)
        assert seen == ["a", "b"]
        worker.stop()
        await running

    play(main)


def test_cancelling_a_worker_leaves_nothing_running() -> None:
    async def main() -> None:
        async def handle(event: Occurrence) -> None:
            await asyncio.sleep(1_000)

        scene = Play(handle)
        scene.server.put("q", "a")
        await asyncio.sleep(1)
        scene.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scene.running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play(main)


@contextmanager
def released(event: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        event.set()


def test_plain_functions_run_in_threads_and_may_return_awaitables() -> None:
    async def main() -> None:
        seen = []

        async def later(name: str) -> None:
            seen.append((name, threading.current_thread() is threading.main_thread()))

        def handle(event: Occurrence) -> object:
            seen.append((event.id, threading.current_thread() is threading.main_thread()))
            if event.id == "b":
                raise ValueError("b")
            return later("later") if event.id == "c" else None

        scene = Play(handle, concurrency=1)
        scene.server.put("q", "a", "b", "c")
        await scene.server.told(3)
        assert seen == [("a", False), ("b", False), ("c", False), ("later", True)]
        assert list(map(placeless, scene.server.failed)) == [Failure("b", "ValueError: b")]
        await scene.stop()
        assert scene.worker.stranded == 0

    asyncio.run(main())


def test_every_exception_of_a_plain_function_is_reported_and_frees_its_place() -> None:
    async def main() -> None:
        def handle(event: Occurrence) -> None:
            match event.id:
                case "stops":
                    next(iter(()))
                case "exits":
                    raise SystemExit(3)
                case "odd":
                    raise Unusual("odd")

        scene = Play(handle, concurrency=1)
        scene.server.put("q", "stops", "exits", "odd", "good")
        await asyncio.wait_for(scene.server.told(4), 10)
        assert list(map(placeless, scene.server.failed)) == [
            Failure("stops", "RuntimeError: the handler raised StopIteration"),
            Failure("exits", "SystemExit: 3"),
            Failure("odd", "Unusual: odd"),
        ]
        assert scene.server.acked == ["good"]
        await scene.stop()

    asyncio.run(main())


def test_a_thread_that_does_not_end_is_left_behind() -> None:
    release = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        def handle(event: Occurrence) -> None:
            loop.call_soon_threadsafe(begun.set)
            release.wait()

        scene = Play(handle, concurrency=1)
        scene.server.put("q", "a")
        await begun.wait()
        scene.worker.stop(hurry=True)
        await scene.running
        assert scene.worker.stranded == 1
        assert scene.server.failed == [Failure("a", STOPPED, retry_after=0)]

    with released(release):
        asyncio.run(main())


def test_signals_stop_a_worker_and_a_second_one_hurries_it() -> None:
    async def main() -> None:
        server, app = FakeLeases(), App()
        begun = asyncio.Event()

        @app.on("q")
        async def handle(event: Occurrence) -> None:
            begun.set()
            await asyncio.Event().wait()

        worker = Worker(app, server, grace_s=3_600)
        running = asyncio.get_running_loop().create_task(worker.run_until_signal())
        server.put("q", "a")
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)  # The loop reads its signals.
        assert not running.done()
        os.kill(os.getpid(), signal.SIGINT)
        await running
        assert server.failed == [Failure("a", STOPPED, retry_after=0)]

    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_app_has_one_handler_for_a_queue() -> None:
    app = App()

    @app.on("mail")
    def send(event: Occurrence) -> None:
        pass

    assert app.handlers == {"mail": send}
    with pytest.raises(InvalidInput, match="has a handler already"):
        app.on("mail")(send)
    with pytest.raises(InvalidInput, match="is not a queue name"):
        app.on("no spaces")


def test_a_worker_that_could_do_nothing_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(InvalidInput, match="the app has no handlers"):
            Worker(App(), FakeLeases())
        app = App()
        app.on("q")(lambda event: None)
        with pytest.raises(InvalidInput, match="concurrency"):
            Worker(app, FakeLeases(), 0)

    asyncio.run(main())
