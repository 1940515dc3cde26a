"""What the connections of one server share: the handler, the limits, and who is there.

Rules. Whatever a handler does wrong ends here, in the log and in a problem of status 500 that tells the client nothing
of the code. A request that was begun is never cancelled because its client left: it may be half done, and a client
that got no answer may only assume that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from everbell.server.heads import KnownHeads
from everbell.server.held import HeldBodies
from everbell.server.limits import ServerLimits
from everbell.server.message import Handler, Request, Response, problem

logger = logging.getLogger(__name__)

Problem = Callable[[int, str], Response]

# Those turned away still get their answer, but a flood of them must not hold a socket each.
TURNED_AWAY_MAX = 256


class Guest(Protocol):
    """A connection, as the service sees it."""

    def check(self, now_s: float) -> None: ...

    def drain(self) -> None: ...

    def abort(self) -> None: ...


class Service:
    """One per server. `quiet` is set while there is no connection and no handler at work."""

    __slots__ = (
        "_handler",
        "_tasks",
        "_turned_away",
        "_welcome",
        "draining",
        "heads",
        "held",
        "limits",
        "loop",
        "on_leave",
        "problem",
        "quiet",
    )

    def __init__(
        self,
        handler: Handler,
        limits: ServerLimits,
        on_problem: Problem = problem,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._handler = handler
        self.limits = limits
        self.problem = on_problem
        self.loop = loop
        self.draining = False
        self.heads = KnownHeads()
        self.held = HeldBodies(limits.bodies_bytes_max)
        self.on_leave: Callable[[], None] = lambda: None
        """Told of each connection that is closed."""
        self.quiet = asyncio.Event()
        self.quiet.set()
        self._welcome: set[Guest] = set()
        self._turned_away: set[Guest] = set()
        # The loop holds tasks weakly: without this, one whose client left could vanish half way.
        self._tasks: set[asyncio.Future[Response]] = set()

    def guests(self) -> list[Guest]:
        """All connections that are open now."""
        return [*self._welcome, *self._turned_away]

    def enter(self, guest: Guest) -> bool:
        """Count a new connection; False when there is no room to serve it."""
        self.quiet.clear()
        if len(self._welcome) < self.limits.connections_max:
            self._welcome.add(guest)
            return True
        self._turned_away.add(guest)
        if len(self._turned_away) > TURNED_AWAY_MAX:
            guest.abort()
        return False

    def leave(self, guest: Guest) -> None:
        """Forget a connection that is closed."""
        self._welcome.discard(guest)
        self._turned_away.discard(guest)
        self._note_quiet()
        self.on_leave()

    def cancel_tasks(self) -> None:
        """End the handlers still at work: the grace is over."""
        for task in tuple(self._tasks):
            task.cancel()

    def answer(self, request: Request) -> Response | asyncio.Future[Response]:
        """Ask the handler. Only a coroutine costs a task."""
        try:
            answer = self._handler(request)
            if isinstance(answer, Response) or asyncio.isfuture(answer):
                return answer
            task = asyncio.ensure_future(answer, loop=self.loop)
        except Exception as error:
            return self.failed(request.method, request.raw_path, error)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def response_of(self, answer: asyncio.Future[Response], method: str, raw_path: str) -> Response:
        """The response that a finished future holds, or the problem that stands for its failure."""
        if answer.cancelled():
            return self.problem(503, "The request was cancelled before it was done: try again.")
        error = answer.exception()
        return answer.result() if error is None else self.failed(method, raw_path, error)

    def failed(self, method: str, raw_path: str, error: BaseException) -> Response:
        """Log what went wrong and answer without saying it."""
        told = {"method": method, "path": raw_path}
        logger.error("handler failed: method=%s path=%r", method, raw_path, exc_info=error, extra=told)
        return self.problem(500, "The server failed to answer this request; its log says why.")

    def _forget_task(self, task: asyncio.Future[Response]) -> None:
        self._tasks.discard(task)
        self._note_quiet()

    def _note_quiet(self) -> None:
        if not self._welcome and not self._turned_away and not self._tasks:
            self.quiet.set()
