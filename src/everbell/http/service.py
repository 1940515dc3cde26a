"""The state that the connections of one server share: the handler, the limits, and the set of open connections.

Rules. An exception in a handler ends here: the log has it, and the client gets a problem of status 500 without details
of the code. The server never cancels a request because its client left: the request may be half done, and a client
without an answer must assume that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

import msgspec

from everbell.http.body_budget import BodyBudget
from everbell.http.head_cache import HeadCache
from everbell.http.limits import ServerLimits
from everbell.http.message import HttpHandler, HttpRequest, HttpResponse, Screen, problem
from everbell.http.unsent_answers import UnsentAnswers

logger = logging.getLogger(__name__)

MakeProblem = Callable[[int, str], HttpResponse]


class OpenConnection(Protocol):
    """A connection, as the service sees it."""

    def check(self, now_s: float) -> None: ...

    def drain(self) -> None: ...

    def abort(self) -> None: ...


class Service:
    """One per server. `quiet` is set while there is neither a connection nor a running handler."""

    __slots__ = (
        "_handler",
        "_on_leave",
        "_served",
        "_tasks",
        "_turned_away",
        "budget",
        "draining",
        "heads",
        "limits",
        "loop",
        "problem",
        "quiet",
        "screen",
        "unsent",
    )

    def __init__(
        self,
        handler: HttpHandler,
        limits: ServerLimits,
        on_problem: MakeProblem = problem,
        *,
        loop: asyncio.AbstractEventLoop,
        on_leave: Callable[[], None] = lambda: None,
        screen: Screen = lambda request: "",
    ) -> None:
        """`on_leave` is called after each connection that closed."""
        self._handler = handler
        self.limits = limits
        self.problem = on_problem
        self.loop = loop
        self.draining = False
        self.heads = HeadCache()
        self.budget = BodyBudget(limits.bodies_bytes_max)
        self.unsent = UnsentAnswers(limits.unsent_bytes_max)
        self.screen = screen
        self._on_leave = on_leave
        self.quiet = asyncio.Event()
        self.quiet.set()
        self._served: set[OpenConnection] = set()
        self._turned_away: set[OpenConnection] = set()
        # The loop holds tasks weakly: without this set, the task of a client that left could vanish half way.
        self._tasks: set[asyncio.Future[HttpResponse]] = set()

    def connections(self) -> list[OpenConnection]:
        """All connections that are open now."""
        return [*self._served, *self._turned_away]

    def enter(self, connection: OpenConnection) -> bool:
        """Count a new connection; False when the server has no room for it."""
        self.quiet.clear()
        if len(self._served) < self.limits.connections_max:
            self._served.add(connection)
            return True
        self._turned_away.add(connection)
        if len(self._turned_away) > self.limits.turned_away_max:
            connection.abort()
        return False

    def leave(self, connection: OpenConnection) -> None:
        """Forget a connection that is closed."""
        self._served.discard(connection)
        self._turned_away.discard(connection)
        self._note_quiet()
        self._on_leave()

    def cancel_tasks(self) -> None:
        """Cancel the handlers that still run: the grace period is over."""
        for task in tuple(self._tasks):
            task.cancel()

    def answer(self, request: HttpRequest) -> HttpResponse | asyncio.Future[HttpResponse]:
        """Call the handler. Only a coroutine costs a task."""
        try:
            answer = self._handler(request)
            if isinstance(answer, HttpResponse) or asyncio.isfuture(answer):
                return answer
            task = asyncio.ensure_future(answer, loop=self.loop)
        except Exception as error:
            return self.failed(request.method, request.raw_path, error)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def response_of(self, answer: asyncio.Future[HttpResponse], method: str, raw_path: str) -> HttpResponse:
        """The response that a finished future holds, or the problem that stands for its failure."""
        if answer.cancelled():
            return self.problem(503, "The request was cancelled before it was done: try again.")
        error = answer.exception()
        return answer.result() if error is None else self.failed(method, raw_path, error)

    def failed(self, method: str, raw_path: str, error: BaseException) -> HttpResponse:
        """Log the error, and answer without its details."""
        told = {"method": method, "path": raw_path}
        logger.error("handler failed: method=%s path=%r", method, raw_path, exc_info=error, extra=told)
        return self.problem(500, "The server failed to answer this request; its log says why.")

    def refusal(self, status: int, detail: str) -> HttpResponse:
        """The answer to input that never became a request. A client that gets 503 may try again in a second."""
        problem = self.problem(status, detail)
        if status != HTTPStatus.SERVICE_UNAVAILABLE:
            return problem
        return msgspec.structs.replace(problem, headers=(*problem.headers, ("retry-after", "1")))

    def _forget_task(self, task: asyncio.Future[HttpResponse]) -> None:
        self._tasks.discard(task)
        self._note_quiet()

    def _note_quiet(self) -> None:
        if not self._served and not self._turned_away and not self._tasks:
            self.quiet.set()
