"""The functions that a worker runs, by the name of the queue that they handle.

    app = App()

    @app.on("mail")
    async def send_mail(event: Occurrence) -> None:
        await smtp.send(event.payload["to"], event.payload["text"])

Returning is success; raising is a failure that is retried by the event's policy; raising `Refuse` makes the event
dead at once. Coroutine functions run on the worker's loop, plain ones in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from everbell.channels.handler import HandlerFunction
from everbell.core.target import group_of
from everbell.errors import InvalidInput

AnyHandler = TypeVar("AnyHandler", bound=HandlerFunction)


class App:
    """The handlers of a program."""

    def __init__(self) -> None:
        self.handlers: dict[str, HandlerFunction] = {}

    def on(self, queue: str) -> Callable[[AnyHandler], AnyHandler]:
        """Handle the events of `queue:…` with the function below; it gets an `Occurrence`."""
        group_of(f"queue:{queue}")

        def register(handler: AnyHandler) -> AnyHandler:
            if queue in self.handlers:
                raise InvalidInput(f"the queue {queue!r} has a handler already: one queue, one handler")
            self.handlers[queue] = handler
            return handler

        return register
