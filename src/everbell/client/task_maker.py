"""`@app.task` and `@bell.task`: the decorator, with types that follow those of the decorated function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

from everbell.client.event_json import DurationLike, Retrying
from everbell.client.hooks import Hooks
from everbell.client.task import Task, TaskOptions, limit_s
from everbell.core.occurrence import Occurrence

T = TypeVar("T")


class MakeTask(Protocol):
    """Makes a task of a function; the type of its payload is the type of the function's parameter."""

    @overload
    def __call__(self, function: Callable[[], object], /) -> Task[None]: ...
    @overload
    def __call__(self, function: Callable[[Occurrence[T]], object], /) -> Task[T]: ...
    @overload
    def __call__(self, function: Callable[[T, Occurrence[T]], object], /) -> Task[T]: ...
    @overload
    def __call__(self, function: Callable[[T], object], /) -> Task[T]: ...


class TaskMaker(ABC):
    """A program with tasks."""

    def __init__(self) -> None:
        self.hooks = Hooks()

    @overload
    def task(self, function: Callable[[], object], /) -> Task[None]: ...
    @overload
    def task(self, function: Callable[[Occurrence[T]], object], /) -> Task[T]: ...
    @overload
    def task(self, function: Callable[[T, Occurrence[T]], object], /) -> Task[T]: ...
    @overload
    def task(self, function: Callable[[T], object], /) -> Task[T]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retrying | None = None,
        expires: DurationLike | None = None,
        timeout: DurationLike | None = None,
        concurrency: int | None = None,
    ) -> MakeTask: ...
    def task(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retrying | None = None,
        expires: DurationLike | None = None,
        timeout: DurationLike | None = None,
        concurrency: int | None = None,
    ) -> Any:
        """Make a task of the function below; see `everbell.Task`.

        `name` is stored with every event, so keep it when you rename the function. `timeout` limits one attempt.
        `concurrency` limits how many attempts of this task run at a time in this process. `retry` and `expires` are for
        all its events that have none of their own.
        """
        options = TaskOptions(retry, expires, limit_s(timeout), concurrency)

        def make(function: Callable[..., object]) -> Task[Any]:
            return self._make_task(function, name or str(getattr(function, "__name__", "")), queue, options)

        return make if function is None else make(function)

    @abstractmethod
    def _make_task(
        self, function: Callable[..., object], name: str, queue: str | None, options: TaskOptions
    ) -> Task[Any]:
        """Make and register a task."""
