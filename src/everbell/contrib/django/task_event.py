"""A task of Django as an event: its arguments are the payload, and its path is a header and the tags.

The header is for the worker. The tags stay when the event has ended, so that its result still names the task, and the
operations page and `everbell list --tag` find the events of a task.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.module_loading import import_string

from everbell.client.answers import EventView
from everbell.client.task import TASK_HEADER
from everbell.contrib.django.task_api import DjangoTask, TaskError, TaskResult, TaskResultStatus
from everbell.core.occurrence import Occurrence
from everbell.errors import EverbellError

_TAG_LENGTH = 64
_FINAL = {
    "delivered": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
    "expired": TaskResultStatus.FAILED,
}


class EverbellResult(TaskResult):  # type: ignore[misc] # Django comes without types.
    """A result without the return value, which Everbell does not keep."""

    __slots__ = ()

    @property
    def return_value(self) -> Any:
        """Raises `NotImplementedError` for a task that has ended: store results in a model."""
        if self.status == TaskResultStatus.SUCCESSFUL:
            raise NotImplementedError("Everbell keeps no return values: let the task store its result in a model")
        return TaskResult.return_value.fget(self)


def event_of(task: Any, result: Any) -> dict[str, Any]:
    """The arguments of `schedule`, for a client or an outbox."""
    path = task.module_path
    time = {"in_": 0} if task.run_after is None else {"at": _aware(task.run_after)}
    return {
        "payload": {"args": result.args, "kwargs": result.kwargs},
        "to": f"queue:{task.queue_name}",
        "headers": {TASK_HEADER: path},
        "tags": [path[start : start + _TAG_LENGTH] for start in range(0, len(path), _TAG_LENGTH)],
        **time,
    }


def new_result(task: Any, id: str, backend: str, arguments: tuple[Any, Any], **others: Any) -> Any:
    """The result of a task that was not attempted yet. Raises `TypeError` for arguments that are no JSON."""
    fields: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "errors": [],
        "worker_ids": [],
        **others,
    }
    args, kwargs = arguments
    return EverbellResult(task=task, id=id, backend=backend, args=args, kwargs=kwargs, **fields)


def stored_result(view: EventView, backend: str) -> Any:
    """The result as the server knows it. The arguments of an event that has ended are gone."""
    payload = view.payload if isinstance(view.payload, dict) else {}
    starts = [attempt.started_at for attempt in view.attempts]
    status = _FINAL.get(view.status, TaskResultStatus.READY)
    return new_result(
        task_at("".join(view.tags or ())),
        view.id,
        backend,
        (payload.get("args", []), payload.get("kwargs", {})),
        status=TaskResultStatus.RUNNING if view.status == "delivering" else status,
        enqueued_at=view.created_at,
        started_at=starts[0] if starts else None,
        last_attempted_at=starts[-1] if starts else None,
        finished_at=view.finished_at,
        errors=[_error(attempt.reason or attempt.result) for attempt in view.attempts if attempt.result != "delivered"],
        worker_ids=["worker"] * view.attempt_count,
    )


def path_in(event: Occurrence) -> str | None:
    """The path of the task that an occurrence names."""
    return next((value for name, value in event.headers if name == TASK_HEADER), None)


def task_at(path: str) -> Any:
    """The task with this path. Raises `EverbellError`: a worker with newer code may have it."""
    try:
        task = import_string(path)
    except ImportError as error:
        raise EverbellError(f"this program has no task {path!r}: {error}") from error
    if not isinstance(task, DjangoTask):
        raise EverbellError(f"{path} is no task: it has no @task")
    return task


def failure(error: BaseException, traceback: Sequence[str]) -> Any:
    """An error in a result."""
    kind = type(error)
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(traceback))


def _error(reason: str) -> Any:
    """The reason of an attempt names the class of the exception without its module."""
    name = reason.partition(":")[0]
    kind = getattr(builtins, name, None)
    known = isinstance(kind, type) and issubclass(kind, BaseException)
    return TaskError(exception_class_path=f"builtins.{name if known else 'Exception'}", traceback=reason)


def _aware(time: datetime) -> datetime:
    aware: datetime = timezone.make_aware(time) if timezone.is_naive(time) else time
    return aware
