"""`manage.py everbell_worker`: runs the tasks of Django, and the handlers of the app in the settings."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.module_loading import import_string

from everbell.client.app import App
from everbell.client.worker_process import WorkerOptions, run_worker
from everbell.contrib.django.settings import everbell_settings
from everbell.core.time import parse_duration
from everbell.errors import EverbellError
from everbell.log_lines import set_up_logging


class Command(BaseCommand):  # type: ignore[misc] # Django comes without types.
    """A worker with the settings of the project. Its options are those of `everbell worker`."""

    help = "Run tasks: pull their events from the Everbell server of the settings, until it is told to stop."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--queue", action="append", dest="queues", help="pull from this queue only; repeatable")
        parser.add_argument("--concurrency", type=int, default=16, help="tasks at a time per queue (16)")
        parser.add_argument("--processes", type=int, default=1, help="processes that share the queues (1)")
        parser.add_argument("--reload", action="store_true", help="restart when a Python file here changes")
        parser.add_argument("--name", help="the name of this worker (host and process)")
        parser.add_argument("--lease", default="30s", help="how long a worker may be silent (30s)")
        parser.add_argument("--grace", default="30s", help="for running tasks after a stop (30s)")

    def handle(self, *arguments: Any, **options: Any) -> None:
        if not logging.getLogger("everbell.worker").hasHandlers():
            set_up_logging("INFO")
        try:
            wanted = WorkerOptions(
                options["concurrency"],
                parse_duration(options["lease"], "lease") / 1_000,
                parse_duration(options["grace"], "grace") / 1_000,
                options["name"],
                options["queues"],
                options["processes"],
                options["reload"],
            )
            code = run_worker(_load, everbell_settings().awaiting_client, wanted)
        except EverbellError as error:
            raise CommandError(str(error)) from error
        if code:
            sys.exit(code)


def _load() -> App:
    path = everbell_settings().app
    app = App() if path is None else import_string(path)
    if not isinstance(app, App):
        raise ImproperlyConfigured(f"EVERBELL: APP is {path!r}, which is no everbell.App")
    try:
        from everbell.contrib.django.task_queue import add_queues
    except ModuleNotFoundError as missing:
        # Django before 6 has no tasks of its own; a project may do without them.
        if missing.name not in ("django.tasks", "django_tasks"):
            raise
    else:
        add_queues(app)
    if not app.handlers:
        raise ImproperlyConfigured(
            "there is nothing to run: name an everbell.App in EVERBELL, or give TASKS the backend "
            "everbell.contrib.django.backend.EverbellBackend with QUEUES"
        )
    return app
