"""Single events that arrive in one turn of the loop are scheduled with one call.

A busy server reads dozens of requests in a turn. Taken one by one, each would cost a task and a unit of work in the
engine, which is more than decoding and checking it. Nobody waits longer for this: the call is made before the loop
looks for input again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial

from everbell.core.spec import Draft
from everbell.engine.port import OperationsPort, Seen
from everbell.errors import EverbellError, OutcomeUnknown
from everbell.server.message import Response
from everbell.server.problem import INTERNAL, problem_of
from everbell.server.views import created_response, found_response

Results = list[str | Seen | EverbellError]


class _Sheaf:
    """The drafts of one tenant that came in one turn, and who waits for them."""

    __slots__ = ("answers", "drafts", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.drafts: list[Draft] = []
        self.answers: list[asyncio.Future[Response]] = []


class Gatherer:
    """Schedules drafts, and answers each as if it had come alone."""

    def __init__(self, operations: OperationsPort) -> None:
        self._operations = operations
        self._sheaves: dict[str, _Sheaf] = {}
        # The loop holds tasks weakly.
        self._under_way: set[asyncio.Future[Results]] = set()

    def add(self, tenant: str, draft: Draft) -> asyncio.Future[Response]:
        """Schedule one draft. The future always gets a response, if only a problem."""
        loop = asyncio.get_running_loop()
        sheaf = self._sheaves.get(tenant)
        if sheaf is None:
            if not self._sheaves:
                loop.call_soon(self._hand_over)
            sheaf = self._sheaves[tenant] = _Sheaf(tenant)
        answer: asyncio.Future[Response] = loop.create_future()
        sheaf.drafts.append(draft)
        sheaf.answers.append(answer)
        return answer

    def _hand_over(self) -> None:
        sheaves, self._sheaves = self._sheaves, {}
        for tenant, sheaf in sheaves.items():
            try:
                scheduled: Awaitable[Results] = self._operations.schedule_ids(tenant, sheaf.drafts)
            except Exception as error:
                _answer_all(sheaf, problem_of(_ours(error)))
                continue
            results = asyncio.ensure_future(scheduled)
            self._under_way.add(results)
            results.add_done_callback(partial(self._answer, sheaf))

    def _answer(self, sheaf: _Sheaf, results: asyncio.Future[Results]) -> None:
        self._under_way.discard(results)
        if results.cancelled():
            unknown = OutcomeUnknown("Everbell stopped meanwhile; with an id of your own, ask again")
            _answer_all(sheaf, problem_of(unknown))
            return
        error = results.exception()
        if error is not None:
            _answer_all(sheaf, problem_of(_ours(error)))
            return
        for answer, draft, result in zip(sheaf.answers, sheaf.drafts, results.result(), strict=True):
            if not answer.done():
                answer.set_result(_response(sheaf.tenant, draft, result))


def _response(tenant: str, draft: Draft, result: str | Seen | EverbellError) -> Response:
    if isinstance(result, str):
        return created_response(tenant, result, draft.due_at)
    return found_response(result) if isinstance(result, Seen) else problem_of(result)


def _answer_all(sheaf: _Sheaf, response: Response) -> None:
    for answer in sheaf.answers:
        if not answer.done():
            answer.set_result(response)


def _ours(error: BaseException) -> EverbellError:
    if isinstance(error, EverbellError):
        return error
    unexpected = EverbellError(INTERNAL)
    unexpected.__cause__ = error
    return unexpected
