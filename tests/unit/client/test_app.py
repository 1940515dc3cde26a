"""An app: the context around its handlers and tasks, and the clients that its tasks are scheduled with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from everbell import App, AsyncClient, Client, Everbell, EverbellError, Occurrence

EVENT = Occurrence("e", 1, 1, "shop", 0, 1, b"1", headers=(("x-everbell-task", "remind"),))
inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def around() -> Iterator[None]:
    token = inside.set(True)
    try:
        yield
    finally:
        inside.reset(token)


def test_the_context_is_entered_around_handlers_and_tasks() -> None:
    app = App(around=around)
    seen: list[bool] = []

    @app.on("plain")
    def plain(event: Occurrence) -> None:
        seen.append(inside.get())

    @app.on("async")
    async def awaited(event: Occurrence) -> None:
        await asyncio.sleep(0)
        seen.append(inside.get())

    @app.task(queue="tasks")
    def remind(number: int) -> None:
        seen.append(inside.get())

    @app.task(queue="awaited")
    async def remind_awaited(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(inside.get())

    async def main() -> None:
        app.handlers["plain"](EVENT)
        await app.handlers["async"](EVENT)  # type: ignore[misc] # A handler may also be a plain function.
        remind.handler(EVENT)
        await remind_awaited.handler(EVENT)  # type: ignore[misc] # the same

    asyncio.run(main())
    assert seen == [True] * 4
    assert not inside.get()


def test_a_task_says_which_client_it_needs() -> None:
    def task_of(app: App | Everbell) -> None:
        @app.task
        def remind(number: int) -> None: ...

        remind.schedule_blocking(7)

    with pytest.raises(EverbellError, match="has no client"):
        task_of(App())
    with pytest.raises(EverbellError, match=r"use `await …schedule"):
        task_of(App(AsyncClient()))
    with pytest.raises(EverbellError, match=r"`await …schedule"):
        task_of(Everbell("memory:"))
    with Client("http://127.0.0.1:1", attempts_max=1) as client, pytest.raises(EverbellError, match="refused"):
        task_of(App(lambda: client))

    async def awaits() -> None:
        app = App(Client())

        @app.task
        def remind(number: int) -> None: ...

        with pytest.raises(EverbellError, match="use schedule_blocking"):
            await remind.schedule(7)

    asyncio.run(awaits())
