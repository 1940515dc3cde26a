"""A queue of a worker that runs the tasks of Django, and perhaps tasks of an `everbell.App` beside them."""

from __future__ import annotations

from traceback import format_exception
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone

from everbell.channels.handler import HandlerFunction, Refuse
from everbell.client.app import App
from everbell.client.task import Task, TaskOptions, TaskQueue, TaskScope
from everbell.clock import SystemClock
from everbell.contrib.django.backend import EverbellBackend
from everbell.contrib.django.settings import everbell_settings
from everbell.contrib.django.task_api import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from everbell.contrib.django.task_event import failure, path_in, task_at
from everbell.core.occurrence import Occurrence


def add_queues(app: App) -> None:
    """Let an app run the tasks of all backends that are Everbell's. Raises `ImproperlyConfigured`."""
    for backend in task_backends.all():
        if isinstance(backend, EverbellBackend):
            for queue in sorted(backend.queues):
                app.handlers[queue] = _joined(queue, app, backend)


def _joined(queue: str, app: App, backend: EverbellBackend) -> TaskQueue:
    present = app.handlers.get(queue)
    if present is not None and type(present) is not TaskQueue:
        raise ImproperlyConfigured(f"the queue {queue!r} of TASKS has another handler already; give it another name")
    scope = TaskScope(everbell_settings().awaiting_client, SystemClock(), app.hooks)
    return DjangoTaskQueue(queue, backend, scope, present)


class DjangoTaskQueue(TaskQueue):
    """Finds each task by its path, in the modules of the project."""

    def __init__(self, name: str, backend: EverbellBackend, scope: TaskScope, others: TaskQueue | None) -> None:
        super().__init__(name)
        self._backend = backend
        self._others = others
        options = TaskOptions(timeout_s=backend.timeout_s)
        self._task: Task[Any] = Task(self._run, name, f"queue:{name}", options, scope)

    def of(self, occurrence: Occurrence) -> HandlerFunction:
        path = path_in(occurrence)
        if self._others is not None and (path is None or "." not in path):
            return self._others.of(occurrence)
        return self._task.handler

    def _run(self, event: Occurrence[Any]) -> None:
        """Run a task in this thread, with database connections of its own."""
        path = path_in(event)
        if path is None:
            raise Refuse("this event names no task; it was not enqueued by Django")
        try:
            self._attempt(task_at(path), event)
        finally:
            # The thread may end with this attempt. A pool of connections, where the project has one, keeps them open.
            connections.close_all()

    def _attempt(self, task: Any, event: Occurrence[Any]) -> None:
        result = _running(task, event, self._backend.alias)
        sender = type(self._backend)
        task_started.send(sender=sender, task_result=result)
        context = [TaskContext(task_result=result)] if task.takes_context else []
        try:
            value = task.call(*context, *result.args, **result.kwargs)
        except BaseException as error:
            result.errors.append(failure(error, format_exception(error)))
            # A task that will be tried again has not finished.
            if event.is_last_attempt or isinstance(error, Refuse):
                _finish(result, TaskResultStatus.FAILED)
                task_finished.send(sender=sender, task_result=result)
            raise
        object.__setattr__(result, "_return_value", value)
        _finish(result, TaskResultStatus.SUCCESSFUL)
        task_finished.send(sender=sender, task_result=result)


def _running(task: Any, event: Occurrence[Any], backend: str) -> Any:
    now = timezone.now()
    return TaskResult(
        task=task,
        id=event.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=event.payload["args"],
        kwargs=event.payload["kwargs"],
        backend=backend,
        errors=[],
        worker_ids=["worker"] * event.attempt,  # Django counts the attempts by their workers.
    )


def _finish(result: Any, status: Any) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", status)
