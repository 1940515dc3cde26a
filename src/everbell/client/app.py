"""The functions that a worker runs, by the name of the queue that they handle.

    app = App()

    @app.on("mail")
    async def send_mail(event: Occurrence) -> None:
        await smtp.send(event.payload["to"], event.payload["text"])

Returning is success; raising is a failure that is retried by the event's policy; raising `Refuse` makes the event
dead at once. Coroutine functions run on the worker's loop, plain ones in threads.

Typed tasks are the same with types on both sides:

    app = App(client=AsyncClient("http://bell:8420"))

    @app.task(queue="mail")
    async def remind(reminder: Reminder) -> None:
        ...

    await remind.schedule(Reminder(user=7), in_="20m")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from everbell.channels.handler import HandlerFunction
from everbell.client.awaiting import AsyncClient
from everbell.client.blocking import Client
from everbell.client.task import Around, Task, TaskOptions, TaskQueue, TaskScope
from everbell.client.task_maker import TaskMaker
from everbell.clock import SystemClock
from everbell.core.occurrence import Occurrence
from everbell.core.target import group_of
from everbell.errors import EverbellError, InvalidInput

AnyHandler = TypeVar("AnyHandler", bound=HandlerFunction)

DEFAULT_QUEUE = "default"


AnyClient = AsyncClient | Client


class App(TaskMaker):
    """The handlers and tasks of a program.

    Its tasks are scheduled with `client`, which may be set later: an `AsyncClient` for `await task.schedule(…)`, a
    `Client` for `task.schedule_blocking(…)`, or a function that returns one. `around` makes a context manager, such as
    `app_context` of Flask. It is entered around every call of a handler or task, in the same thread.
    """

    def __init__(
        self, client: AnyClient | Callable[[], AnyClient] | None = None, *, around: Around | None = None
    ) -> None:
        super().__init__()
        self.client = client
        self.handlers: dict[str, HandlerFunction] = {}
        """The handlers by queue."""
        self._around = around
        self._scope = TaskScope(self._awaiting, SystemClock(), self.hooks, self._blocking, around)

    def on(self, queue: str) -> Callable[[AnyHandler], AnyHandler]:
        """Handle the events of `queue:…` with the function below; it gets an `Occurrence`."""
        group_of(f"queue:{queue}")

        def register(handler: AnyHandler) -> AnyHandler:
            if queue in self.handlers:
                raise InvalidInput(f"the queue {queue!r} has a handler already: one queue, one handler")
            inside: HandlerFunction = handler if self._around is None else _surrounded(handler, self._around)
            self.handlers[queue] = inside if not self.hooks else self.hooks.wrapped(inside)
            return handler

        return register

    def _make_task(
        self, function: Callable[..., object], name: str, queue: str | None, options: TaskOptions
    ) -> Task[Any]:
        queue = queue or DEFAULT_QUEUE
        group_of(f"queue:{queue}")
        task: Task[Any] = Task(function, name, f"queue:{queue}", options, self._scope)
        tasks = self.handlers.setdefault(queue, TaskQueue(queue))
        if not isinstance(tasks, TaskQueue):
            raise InvalidInput(f"the queue {queue!r} has a handler already: a queue has one handler, or tasks")
        tasks.add(task)
        return task

    def _awaiting(self) -> AsyncClient:
        client = self._connected()
        if isinstance(client, Client):
            raise EverbellError(
                "the client of this app blocks: use schedule_blocking, or make the app with AsyncClient"
            )
        return client

    def _blocking(self) -> Client:
        client = self._connected()
        if isinstance(client, AsyncClient):
            raise EverbellError("the client of this app awaits: use `await …schedule(…)`, or make the app with Client")
        return client

    def _connected(self) -> AnyClient:
        client = self.client
        if client is None:
            raise EverbellError(
                "this app has no client to schedule with: make it with App(client=AsyncClient(…)), "
                "or use client.schedule(**task.event(…))"
            )
        return client if isinstance(client, AsyncClient | Client) else client()


def _surrounded(handler: HandlerFunction, around: Around) -> HandlerFunction:
    if inspect.iscoroutinefunction(handler):

        @wraps(handler)
        async def call(occurrence: Occurrence) -> object:
            with around():
                return await handler(occurrence)
    else:

        @wraps(handler)
        def call(occurrence: Occurrence) -> object:
            with around():
                return handler(occurrence)

    return call
