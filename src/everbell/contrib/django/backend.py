"""A backend for `TASKS` of Django: tasks that are enqueued become events, and run in `manage.py everbell_worker`.

    TASKS = {"default": {
        "BACKEND": "everbell.contrib.django.backend.EverbellBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"OUTBOX": "default", "RETRY": {"max_attempts": 5}, "TIMEOUT": "30s"},
    }}

With `OUTBOX`, the name of a PostgreSQL database of the project, a task exists if the transaction that enqueued it
commits. Without it, a task exists when `enqueue` returns, also if the transaction is rolled back later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from everbell.client.task import limit_s
from everbell.contrib.django import client, outbox
from everbell.contrib.django.task_api import BaseTaskBackend, TaskResultDoesNotExist, task_enqueued
from everbell.contrib.django.task_event import event_of, new_result, stored_result
from everbell.errors import InvalidInput, NotFound

_OPTIONS = ("OUTBOX", "RETRY", "EXPIRES", "TIMEOUT")


class EverbellBackend(BaseTaskBackend):  # type: ignore[misc] # Django comes without types.
    """Everbell as a backend of tasks: retries, times in the future, coroutines and results, but no priorities."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = False

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(self.options.keys() - set(_OPTIONS))
        if unknown:
            raise ImproperlyConfigured(f"TASKS: {', '.join(unknown)} is no option; there are {', '.join(_OPTIONS)}")
        self.outbox: str | None = self.options.get("OUTBOX")
        """The name of the database with the outbox."""
        try:
            self.timeout_s = limit_s(self.options.get("TIMEOUT"))
        except InvalidInput as error:
            raise ImproperlyConfigured(f"TASKS: {error}") from error

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Schedule the task. Raises `EverbellError` if the server refuses it or cannot be reached."""
        self.validate_task(task)
        result = new_result(task, "", self.alias, (args, kwargs))
        event = event_of(task, result) | self._policy()
        scheduler = client() if self.outbox is None else outbox(self.outbox)
        scheduled = scheduler.schedule(**event)
        object.__setattr__(result, "id", scheduled if isinstance(scheduled, str) else scheduled.id)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The state of a task. A task in the outbox has none before it was collected."""
        try:
            return stored_result(client().get(result_id), self.alias)
        except NotFound:
            raise TaskResultDoesNotExist(result_id) from None

    def _policy(self) -> dict[str, Any]:
        given = {"retry": self.options.get("RETRY"), "expires": self.options.get("EXPIRES")}
        return {name: value for name, value in given.items() if value is not None}
