"""Django without a server: how a task becomes an event and a result, and how the queue of a worker calls it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import django
import pytest
from django.conf import settings

if not settings.configured:
    settings.configure(
        USE_TZ=True,
        EVERBELL={"TENANT": "shop"},
        TASKS={"default": {"BACKEND": "everbell.contrib.django.backend.EverbellBackend", "QUEUES": ["mail"]}},
    )
    django.setup()

from everbell import App, Occurrence, Refuse
from everbell.client.answers import AttemptView, EventView
from everbell.contrib.django.settings import everbell_settings, shared_client
from everbell.contrib.django.task_api import DjangoTask, TaskResultStatus
from everbell.contrib.django.task_event import event_of, new_result, stored_result
from everbell.contrib.django.task_queue import add_queues
from everbell.errors import EverbellError

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
calls: list[Any] = []


def _task(function: Any, **options: Any) -> Any:
    return DjangoTask(func=function, priority=0, backend="default", queue_name="mail", run_after=None, **options)


def _remind(number: int, *, loud: bool) -> None:
    calls.append((number, loud))


def _tell(context: Any) -> None:
    calls.append(context.attempt)
    raise Refuse("no")


remind = _task(_remind)
remind_path = f"{__name__}.remind"
tell = _task(_tell, takes_context=True)


def occurrence(path: str | None, attempt: int = 1, payload: bytes = b'{"args": [], "kwargs": {}}') -> Occurrence:
    headers = () if path is None else (("x-everbell-task", path),)
    return Occurrence("e", 1, attempt, "shop", 0, 1, payload, headers=headers)


def handler(path: str | None, app: App | None = None, attempt: int = 1, payload: bytes = b"") -> Any:
    app = app or App()
    add_queues(app)
    event = occurrence(path, attempt, payload or b'{"args": [], "kwargs": {}}')
    return app.handlers["mail"].of(event)(event)  # type: ignore[attr-defined] # a queue of tasks


def test_a_task_becomes_an_event_with_its_path_and_time() -> None:
    result = new_result(remind, "e", "default", ((7,), {"loud": True}))
    event = event_of(remind.using(run_after=NOON), result)
    assert event["payload"] == {"args": [7], "kwargs": {"loud": True}}
    assert (event["to"], event["at"], "in_" in event) == ("queue:mail", NOON, False)
    assert "".join(event["tags"]) == event["headers"]["x-everbell-task"] == remind.module_path
    assert event_of(remind, result)["in_"] == 0


def test_arguments_that_are_no_json_are_refused() -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        new_result(remind, "e", "default", ((object(),), {}))


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("scheduled", "READY"),
        ("retrying", "READY"),
        ("paused", "READY"),
        ("delivering", "RUNNING"),
        ("delivered", "SUCCESSFUL"),
        ("dead", "FAILED"),
        ("cancelled", "FAILED"),
        ("expired", "FAILED"),
    ],
)
def test_a_result_has_the_state_of_its_event(status: Any, told: str) -> None:
    attempt = AttemptView(
        number=1, started_at=NOON, duration_ms=1, result="failed", reason="OSError: gone [a.py:1 in b]"
    )
    view = EventView(
        id="e",
        tenant="shop",
        at=NOON,
        status=status,
        to="queue:mail",
        version=1,
        created_at=NOON,
        attempt_count=1,
        tags=(remind_path,),
        attempts=(attempt,),
    )
    result = stored_result(view, "default")
    assert (result.status, result.attempts, result.started_at, result.task.func) == (told, 1, NOON, _remind)
    assert [(each.exception_class, each.traceback) for each in result.errors] == [(OSError, attempt.reason)]
    with pytest.raises(NotImplementedError if told == "SUCCESSFUL" else ValueError):
        _ = result.return_value
    assert result.is_finished == (result.status in (TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL))


def test_a_queue_calls_the_task_that_an_event_names() -> None:
    calls.clear()
    handler(remind_path, payload=b'{"args": [7], "kwargs": {"loud": true}}')
    with pytest.raises(Refuse):
        handler(f"{__name__}.tell", attempt=3)
    assert calls == [(7, True), 3]


@pytest.mark.parametrize("path", [f"{__name__}._remind", "os.abort", "no.such.task", "nothing"])
def test_other_functions_cannot_be_called(path: str) -> None:
    with pytest.raises(EverbellError, match="no task"):
        handler(path)


def test_tasks_of_an_app_share_a_queue_with_tasks_of_django() -> None:
    app = App()
    seen: list[int] = []

    @app.task(queue="mail")
    def typed(number: int) -> None:
        seen.append(number)

    handler("typed", app, payload=b"5")
    assert seen == [5]


def test_there_is_one_client_for_the_settings() -> None:
    assert shared_client() is shared_client()
    assert everbell_settings().tenant == shared_client().tenant == "shop"
