"""The admin API of PagerDuty's scheduler: look at tasks, and drop one that blocks its queue.

The tasks come in by a Kafka topic (`--kafka-topics TOPIC=TENANT:pagerduty`). The original serves these paths below
`/api/v1`, and a service may mount them elsewhere; here they are at both places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from everbell.api.facade import Facade, FacadePorts
from everbell.api.route import ResponseKind, Route
from everbell.api.views import json_response
from everbell.core.event import Attempt, Event, Record
from everbell.core.time import format_instant, parse_instant
from everbell.edge.bodies import Body, read_query
from everbell.engine.requests import Cancel, Find, Get
from everbell.engine.seen import Seen
from everbell.errors import Conflict, EverbellError, InvalidInput
from everbell.facades.pagerduty_task import POLICY, TaskRecord, task_id, task_key
from everbell.http.message import HttpRequest, HttpResponse
from everbell.stores.port import Filter

TaskStatus = Literal["Incomplete", "Success", "Failure", "Dropped"]
_LIMIT_MAX = 1_000
_ENDS: dict[str, TaskStatus] = {
    "delivered": "Success",
    "dead": "Failure",
    "expired": "Failure",
    "cancelled": "Dropped",
}


class TaskQuery(Struct, frozen=True):
    """The task that is meant."""

    key: str = ""


class TasksQuery(Struct, frozen=True, rename="camel"):
    """The times of the tasks, and how many to show."""

    from_: str = msgspec.field(default="", name="from")
    to: str = ""
    limit: str = ""
    from_ordering_id: str | None = None
    from_uniqueness_key: str | None = None


class TaskAttempt(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One try at a task."""

    attempt_number: int
    started_at: str
    finished_at: str
    task_result: TaskStatus
    task_result_updated_at: str
    exception_message: str | None = None


class TaskDetails(Struct, frozen=True):
    """The tries at a task: the first and the latest."""

    attempts: list[TaskAttempt]


class TaskView(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A task as the admin API shows it."""

    key: str | None = None
    partition_id: int | None = None
    data: dict[str, str] | None = None
    number_of_attempts: int | None = None
    status: TaskStatus | None = None
    details: TaskDetails | None = None
    enqueued_at: str | None = None


class TaskAnswer(Struct, frozen=True):
    """One task, or the reasons why there is none."""

    task: TaskView | None
    errors: list[str]


class TasksAnswer(Struct, frozen=True):
    """Tasks that have not ended."""

    tasks: list[TaskView]
    errors: list[str]


class StatusAnswer(Struct, frozen=True):
    """Whether the API runs."""

    status: str


class StatusChange(Struct, frozen=True):
    """The only change of a task: its status becomes Dropped."""

    status: str


class DropRequest(Struct, frozen=True):
    """A change of a task."""

    task: StatusChange


_WRONG = ResponseKind(400, "the request is wrong; `errors` says why", TaskAnswer)
_UNKNOWN = ResponseKind(404, "there is no such task", TaskAnswer)
_STATUS = (ResponseKind(200, "it runs", StatusAnswer),)
_TASK = (ResponseKind(200, "the task as it is now", TaskAnswer), _WRONG, _UNKNOWN)
_TASKS = (ResponseKind(200, "tasks in the order of their times", TasksAnswer), _WRONG)
_DROPPED = (ResponseKind(204, "the task will not run"), _WRONG, _UNKNOWN)
_DROP_EXAMPLE = {"task": {"status": "Dropped"}}


def _look(path: str, summary: str, responses: tuple[ResponseKind, ...], query: type | None = None) -> Route:
    return Route("GET", path, summary, responses, access="read", query=query)


def _drop(path: str, summary: str) -> Route:
    return Route(
        "PUT",
        path,
        summary,
        _DROPPED,
        access="schedule",
        problems=(409,),
        query=TaskQuery,
        body=DropRequest,
        example=_DROP_EXAMPLE,
    )


class PagerDutyApi(Facade, tag="pagerduty"):
    """Tasks, as users of the admin API of PagerDuty's scheduler ask for them (`--facade pagerduty=TENANT`)."""

    product = "pagerduty"
    takes_tenant = True
    policy: ClassVar[Mapping[str, Any]] = POLICY

    def __init__(self, ports: FacadePorts, tenant: str | None) -> None:
        assert tenant is not None, "the setting names the tenant"
        super().__init__(ports, tenant)
        self._tenant = tenant
        self._drops = Body(DropRequest)

    @_look("/api/v1/status", "Liveness probe of the admin API", _STATUS)
    async def admin_status(self, request: HttpRequest) -> HttpResponse:
        """The answer is a sentence with the time."""
        now = format_instant(self.edge.now())
        return json_response(StatusAnswer(f"Scheduler Admin API is running! The time is: {now}"))

    @_look("/status", "The same as /api/v1/status", _STATUS)
    async def admin_status_too(self, request: HttpRequest) -> HttpResponse:
        """The answer is a sentence with the time."""
        return await self.admin_status(request)

    @_look("/api/v1/task", "Read a task", _TASK, TaskQuery)
    async def get_task(self, request: HttpRequest) -> HttpResponse:
        """The task has its tries. Its data is kept until it ends."""
        seen = await self.ask(Get(self._tenant, self._id(request)))
        return json_response(TaskAnswer(self._view(seen, whole=True), []))

    @_look("/task", "The same as /api/v1/task", _TASK, TaskQuery)
    async def get_task_too(self, request: HttpRequest) -> HttpResponse:
        """The task has its tries. Its data is kept until it ends."""
        return await self.get_task(request)

    @_look("/api/v1/tasks", "List tasks that have not ended", _TASKS, TasksQuery)
    async def list_tasks(self, request: HttpRequest) -> HttpResponse:
        """They are due from one time on, before another."""
        query = read_query(request, TasksQuery)
        if not (query.from_ and query.to and query.limit):
            raise InvalidInput("'from', 'to', and 'limit' are required params")
        if not (query.limit.isascii() and query.limit.isdecimal() and 0 < int(query.limit[:9]) <= _LIMIT_MAX):
            raise InvalidInput(f"Unparseable limit: give a number from 1 to {_LIMIT_MAX}")
        from_at, to_at = _time(query.from_), _time(query.to)
        if from_at >= to_at:
            raise InvalidInput("'from' must be before 'to'")
        found = await self._found(from_at, to_at, int(query.limit), _first(query, from_at))
        return json_response(TasksAnswer(found, []))

    @_look("/tasks", "The same as /api/v1/tasks", _TASKS, TasksQuery)
    async def list_tasks_too(self, request: HttpRequest) -> HttpResponse:
        """They are due from one time on, before another."""
        return await self.list_tasks(request)

    @_drop("/api/v1/task", "Drop a task")
    async def drop_task(self, request: HttpRequest) -> HttpResponse:
        """The next task of its ordering id may run."""
        event_id, change = self._id(request), self._drops.parse(request.body)
        if change.task.status != "Dropped":
            raise InvalidInput("The only valid value for status is Dropped")
        try:
            await self.ask(Cancel(self._tenant, event_id))
        except Conflict:
            if (await self.ask(Get(self._tenant, event_id))).status != "cancelled":
                raise
        return HttpResponse(204, b"")

    @_drop("/task", "The same as PUT /api/v1/task")
    async def drop_task_too(self, request: HttpRequest) -> HttpResponse:
        """The next task of its ordering id may run."""
        return await self.drop_task(request)

    def refusal(self, error: EverbellError) -> HttpResponse:
        """Errors are a list of texts, and 400 is for everything that is wrong with a request."""
        status = 400 if isinstance(error, InvalidInput) else error.status
        return json_response(TaskAnswer(None, [str(error)]), status)

    def _id(self, request: HttpRequest) -> str:
        return task_id(read_query(request, TaskQuery).key, self.edge.policy_of_known(self._tenant))

    async def _found(self, from_at: int, to_at: int, limit: int, first: tuple[int, str, str]) -> list[TaskView]:
        """Tasks in the order of time, ordering id and uniqueness key, beginning with `first`."""
        found: list[tuple[tuple[int, str, str], TaskView]] = []
        wanted, cursor = Filter(self._tenant, from_at=from_at, until_at=to_at - 1), None
        while True:
            page, cursor = await self.ask(Find(wanted, cursor, _LIMIT_MAX))
            for seen in page:
                place = _place(seen.event)
                if place >= first:
                    found.append((place, self._view(seen, whole=False)))
            found = sorted(found, key=lambda one: one[0])[:limit]
            if cursor is None:
                return [view for _, view in found]

    def _view(self, seen: Seen, *, whole: bool) -> TaskView:
        event = seen.event
        produced_at = event.produced_at
        return TaskView(
            task_key(event.due_at, event.key or "", event.id),
            event.partition if isinstance(event, Event) else None,
            self._data(event) if whole else None,
            event.attempt_count,
            _ENDS.get(seen.status, "Incomplete"),
            TaskDetails([_attempt(attempt) for attempt in event.attempts]) if whole else None,
            None if produced_at is None else format_instant(produced_at),
        )

    def _data(self, event: Event | Record) -> dict[str, str] | None:
        if isinstance(event, Record) or self.edge.hides_payloads(self._tenant):
            return None
        try:
            return msgspec.json.decode(event.payload, type=TaskRecord).task_data
        except msgspec.MsgspecError:
            return None  # An event that came another way.


def _place(event: Event | Record) -> tuple[int, str, str]:
    return event.due_at, event.key or "", event.id.split(",", 2)[-1]


def _first(query: TasksQuery, from_at: int) -> tuple[int, str, str]:
    return from_at, query.from_ordering_id or "", query.from_uniqueness_key or ""


def _time(text: str) -> int:
    try:
        return parse_instant(text)
    except InvalidInput:
        raise InvalidInput(f"Text {text[:64]!r} could not be parsed") from None


def _attempt(attempt: Attempt) -> TaskAttempt:
    ended = format_instant(attempt.started_at + attempt.duration_ms)
    result: TaskStatus = "Success" if attempt.result == "delivered" else "Failure"
    return TaskAttempt(attempt.number, format_instant(attempt.started_at), ended, result, ended, attempt.reason)
