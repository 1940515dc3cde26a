"""Typed tasks: a function with a typed payload, and the way to schedule it.

    @app.task(queue="mail")
    async def remind(reminder: Reminder) -> None:
        ...

    await remind.schedule(Reminder(user=7), in_="20m", key="user-7")

The function takes the payload, or the `Occurrence`, or both in this order, or nothing. Its annotations say which, and
the type of the payload.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from everbell.channels.handler import HandlerFunction
from everbell.client.answers import Scheduled
from everbell.client.awaiting import AsyncClient
from everbell.client.blocking import Client
from everbell.client.event_json import DurationLike, InstantLike, Retrying
from everbell.client.hooks import Hooks
from everbell.client.payload_type import ReadPayload, reader_of
from everbell.client.time_limit import in_own_thread, limited
from everbell.clock import Clock
from everbell.core.occurrence import Occurrence, datetime_of
from everbell.core.time import parse_duration
from everbell.errors import EverbellError, InvalidInput

T = TypeVar("T")

Around = Callable[[], AbstractContextManager[object]]
"""Makes the context in which a task runs."""

TASK_HEADER = "x-everbell-task"
"""The header that names the task of an event, because several tasks may share a queue."""


class TypedOccurrence(Occurrence[T], frozen=True, gc=False):
    """An occurrence as a task gets it: the payload has the task's type."""

    value: Any = None
    deadline_at: int | None = None

    @property
    def payload(self) -> T:
        value: T = self.value
        return value

    @property
    def deadline(self) -> datetime | None:
        return None if self.deadline_at is None else datetime_of(self.deadline_at)


# All fields of an occurrence, then those of a typed one, by place. The checker of types does not know their number.
_typed_occurrence: Callable[..., TypedOccurrence[Any]] = TypedOccurrence


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a task, beside its name and its target."""

    retry: Retrying | None = None
    expires: DurationLike | None = None
    timeout_s: float | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise InvalidInput("must be more than nothing", "timeout")
        if self.concurrency is not None and self.concurrency < 1:
            raise InvalidInput("must be at least 1", "concurrency")


@dataclass(frozen=True, slots=True)
class TaskScope:
    """What the tasks of one program share."""

    client: Callable[[], AsyncClient]
    clock: Clock
    hooks: Hooks = field(default_factory=Hooks)
    blocking: Callable[[], Client] | None = None
    around: Around | None = None


class Task(Generic[T]):
    """A function that Everbell calls at a time, with a payload of type `T`."""

    def __init__(
        self, function: Callable[..., object], name: str, to: str, options: TaskOptions, scope: TaskScope
    ) -> None:
        self.function = function
        self.name = name
        self.to = to
        self._options = options
        self._scope = scope
        self._takes, self._read = _parameters(function)
        self._is_async = inspect.iscoroutinefunction(function)
        self._room = None if options.concurrency is None else asyncio.Semaphore(options.concurrency)

    def event(
        self,
        payload: T = None,  # type: ignore[assignment] # A task without a payload has None as its type.
        *,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        id: str | None = None,
        key: str | None = None,
        tags: Sequence[str] | None = None,
        retry: Retrying | None = None,
        expires: DurationLike | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The arguments of `schedule` of any client: `client.schedule(**remind.event(Reminder(7), in_="20m"))`."""
        named = {TASK_HEADER: self.name} if self.to.startswith("queue:") else {}
        given = {
            "payload": payload,
            "to": self.to,
            "at": at,
            "in_": in_ if at is not None or in_ is not None or repeat is not None else 0,
            "id": id,
            "key": key,
            "tags": tags,
            "retry": retry or self._options.retry,
            "expires": expires if expires is not None else self._options.expires,
            "headers": {**named, **(headers or {})} or None,
            "repeat": repeat,
        }
        return {argument: value for argument, value in given.items() if value is not None}

    async def schedule(
        self,
        payload: T = None,  # type: ignore[assignment] # A task without a payload has None as its type.
        *,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        id: str | None = None,
        key: str | None = None,
        tags: Sequence[str] | None = None,
        retry: Retrying | None = None,
        expires: DurationLike | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Scheduled:
        """Run the task `at` a time or `in_` a duration; without both, now."""
        fields = {name: value for name, value in locals().items() if name not in ("self", "payload")}
        return await self._scope.client().schedule(**self.event(payload, **fields))

    def schedule_blocking(
        self,
        payload: T = None,  # type: ignore[assignment] # A task without a payload has None as its type.
        *,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        id: str | None = None,
        key: str | None = None,
        tags: Sequence[str] | None = None,
        retry: Retrying | None = None,
        expires: DurationLike | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Scheduled:
        """Like `schedule`, for programs that block. The app needs a `Client`."""
        fields = {name: value for name, value in locals().items() if name not in ("self", "payload")}
        if self._scope.blocking is None:
            raise EverbellError("tasks of the library are scheduled with `await …schedule(…)`")
        return self._scope.blocking().schedule(**self.event(payload, **fields))

    async def every(
        self,
        interval: DurationLike,
        payload: T = None,  # type: ignore[assignment] # A task without a payload has None as its type.
        *,
        id: str | None = None,
        at: InstantLike | None = None,
        **repeat: Any,
    ) -> Scheduled:
        """Run the task again and again. The other arguments are those of `repeat`: `count`, `until`, `misfire`, …

        Its id is the name of the task unless you give one, so a program can ask for this at every start.
        """
        every = f"{interval // timedelta(milliseconds=1)}ms" if isinstance(interval, timedelta) else interval
        return await self._repeat(payload, id, at, {"every": every, **repeat})

    async def cron(
        self,
        expression: str,
        payload: T = None,  # type: ignore[assignment] # A task without a payload has None as its type.
        *,
        tz: str = "UTC",
        id: str | None = None,
        at: InstantLike | None = None,
        **repeat: Any,
    ) -> Scheduled:
        """Run the task by a cron expression in a time zone. Otherwise like `every`."""
        return await self._repeat(payload, id, at, {"cron": expression, "tz": tz, **repeat})

    async def _repeat(self, payload: T, id: str | None, at: InstantLike | None, repeat: Mapping[str, Any]) -> Scheduled:
        return await self._scope.client().schedule(**self.event(payload, id=id or self.name, at=at, repeat=repeat))

    def __call__(self, *arguments: Any) -> Any:
        """Call the function itself, without Everbell, as in a test."""
        return self.function(*arguments)

    @property
    def handler(self) -> HandlerFunction:
        """The function that a channel or a worker calls: async, or plain for a thread."""
        needs_loop = self._options.timeout_s is not None or self._room is not None or self._scope.hooks
        return self._on_loop if self._is_async or needs_loop else self._block

    async def _on_loop(self, occurrence: Occurrence) -> object:
        if self._room is None:
            return await self._attempt(occurrence)
        async with self._room:
            return await self._attempt(occurrence)

    async def _attempt(self, occurrence: Occurrence) -> object:
        hooks = self._scope.hooks
        if not hooks:
            return await self._run(occurrence)
        return await hooks.around(occurrence, partial(self._run, occurrence))

    async def _run(self, occurrence: Occurrence) -> object:
        limit_s = self._options.timeout_s
        running: Awaitable[object]
        if self._is_async:
            if limit_s is None:
                return await self._await(occurrence)
            running = self._await(occurrence)
        else:
            running = in_own_thread(partial(self._block, occurrence))
        return await running if limit_s is None else await limited(running, limit_s, self.name)

    async def _await(self, occurrence: Occurrence) -> object:
        with self._context():
            result = self._call(occurrence)
            return await result if inspect.isawaitable(result) else result

    def _block(self, occurrence: Occurrence) -> object:
        with self._context():
            return self._call(occurrence)

    def _context(self) -> AbstractContextManager[object]:
        return nullcontext() if self._scope.around is None else self._scope.around()

    def _call(self, occurrence: Occurrence) -> object:
        value = self._read(occurrence)
        if self._takes == "payload":
            return self.function(value)
        if self._takes == "nothing":
            return self.function()
        typed = self._typed(occurrence, value)
        return self.function(typed) if self._takes == "occurrence" else self.function(value, typed)

    def _typed(self, occurrence: Occurrence, value: Any) -> TypedOccurrence[Any]:
        fields = (getattr(occurrence, name) for name in Occurrence.__struct_fields__)
        limit_s = self._options.timeout_s
        deadline_at = None if limit_s is None else self._scope.clock.now() + int(limit_s * 1_000)
        return _typed_occurrence(*fields, value, deadline_at)


class TaskQueue:
    """The tasks of one queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: dict[str, Task[Any]] = {}

    def add(self, task: Task[Any]) -> None:
        """Add a task. Raises `InvalidInput` if its name is taken."""
        if task.name in self._tasks:
            raise InvalidInput(f"the queue {self.name!r} has a task named {task.name!r} already")
        self._tasks[task.name] = task

    def of(self, occurrence: Occurrence) -> HandlerFunction:
        """The handler of an occurrence. Raises `EverbellError` if this program has no such task."""
        name = next((value for header, value in occurrence.headers if header == TASK_HEADER), None)
        task = self._tasks.get(name or "")
        if task is not None:
            return task.handler
        if name is None and len(self._tasks) == 1:
            return next(iter(self._tasks.values())).handler
        known = ", ".join(self._tasks)
        wanted = f"the header {TASK_HEADER} is missing" if name is None else f"there is no task named {name!r}"
        raise EverbellError(f"{wanted}; the tasks of the queue {self.name!r} in this program are {known}")

    def __call__(self, occurrence: Occurrence) -> object:
        return self.of(occurrence)(occurrence)


def limit_s(timeout: DurationLike | None) -> float | None:
    """A time limit in seconds. Raises `InvalidInput`."""
    if timeout is None:
        return None
    return timeout.total_seconds() if isinstance(timeout, timedelta) else parse_duration(timeout, "timeout") / 1_000


def _parameters(function: Callable[..., object]) -> tuple[str, ReadPayload]:
    """How a function takes its arguments, and how its payload is read. Raises `InvalidInput`."""
    name = getattr(function, "__name__", str(function))
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise InvalidInput(f"the annotations of the task {name} cannot be resolved: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())
    kinds = [hints.get(each.name, Any) for each in parameters]
    if any(each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters):
        raise InvalidInput(f"the task {name} has parameters that are no payload and no Occurrence")
    match kinds:
        case []:
            return "nothing", lambda occurrence: None
        case [kind] if _is_occurrence(kind):
            return "occurrence", reader_of(_content(kind))
        case [kind]:
            return "payload", reader_of(kind)
        case [kind, second] if _is_occurrence(second):
            return "both", reader_of(kind)
        case _:
            raise InvalidInput(f"the task {name} has too many parameters: a payload, then an Occurrence")


def _is_occurrence(kind: Any) -> bool:
    return (get_origin(kind) or kind) is Occurrence


def _content(kind: Any) -> Any:
    """The type of the payload in `Occurrence[T]`."""
    return next(iter(get_args(kind)), Any)
