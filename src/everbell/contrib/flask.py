"""Everbell in a Flask application: tasks that run in its context, a client, and the worker `flask everbell worker`.

    bell = FlaskBell()                 # bell.init_app(app) in a factory, or FlaskBell(app)

    @bell.task(queue="mail")
    def remind(order: Order) -> None:
        ...

    @app.post("/orders/<int:number>")
    def place(number: int) -> ResponseReturnValue:
        return remind.schedule_blocking(Order(number), in_="3 days").to_dict()

The settings are `EVERBELL_SERVER`, `EVERBELL_TENANT`, `EVERBELL_TOKEN`, `EVERBELL_CA` and `EVERBELL_CERT` in the
configuration of the application, or else in the environment, as for the command line.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from typing import Any

import click
from flask import Flask, current_app, has_app_context
from flask.cli import AppGroup

from everbell.client.address import DEFAULT_URL
from everbell.client.app import App
from everbell.client.awaiting import AsyncClient
from everbell.client.blocking import Client
from everbell.client.worker_process import WorkerOptions, run_worker
from everbell.core.time import parse_duration
from everbell.errors import EverbellError
from everbell.log_lines import set_up_logging

__all__ = ["FlaskBell", "client"]

_EXTENSION = "everbell"


def client() -> Client:
    """The client of the current application, one for all its threads. Raises `EverbellError` without one."""
    found = current_app.extensions.get(_EXTENSION) if has_app_context() else None
    if not isinstance(found, _Extension):
        raise EverbellError(
            "there is no Flask application with FlaskBell here: call this in a request or app.app_context()"
        )
    return found.client


class FlaskBell(App):
    """An `everbell.App` of Flask. Its handlers and tasks run in the context of the application that runs the worker."""

    def __init__(self, flask_app: Flask | None = None) -> None:
        super().__init__(client, around=self._context)
        self._flask_app: Flask | None = None
        if flask_app is not None:
            self.init_app(flask_app)

    def init_app(self, flask_app: Flask) -> None:
        """Add this to an application, as in a factory: its client, and `flask everbell worker`."""
        self._flask_app = flask_app
        flask_app.extensions[_EXTENSION] = _Extension(flask_app.config)
        flask_app.cli.add_command(_commands(self, flask_app))

    def _context(self) -> AbstractContextManager[object]:
        if self._flask_app is None:
            raise EverbellError("this FlaskBell belongs to no application: call init_app(app)")
        context: AbstractContextManager[object] = self._flask_app.app_context()
        return context

    def run_for(self, flask_app: Flask, options: WorkerOptions) -> int:
        """Run a worker for an application until it is told to stop; returns the exit code."""
        self._flask_app = flask_app
        extension: _Extension = flask_app.extensions[_EXTENSION]
        return run_worker(lambda: self, extension.awaiting_client, options)


class _Extension:
    """What one application has of Everbell."""

    def __init__(self, config: dict[str, Any]) -> None:
        def read(name: str, default: str | None = None) -> Any:
            return config.get(f"EVERBELL_{name}") or os.environ.get(f"EVERBELL_{name}") or default

        self._server = read("SERVER", DEFAULT_URL)
        self._tenant = read("TENANT", "default")
        self._token = read("TOKEN")
        self._tls = {"ca": read("CA"), "certificate": read("CERT")}
        self.client = Client(self._server, self._tenant, self._token, **self._tls)

    def awaiting_client(self) -> AsyncClient:
        return AsyncClient(self._server, self._tenant, self._token, **self._tls)


def _commands(bell: FlaskBell, flask_app: Flask) -> AppGroup:
    group = AppGroup("everbell", help="Everbell: run tasks.")

    # A worker enters the context of the application around each task, not around itself.
    @group.command("worker", with_appcontext=False)
    @click.option("--queue", "queues", multiple=True, help="Pull from this queue only; repeatable.")
    @click.option(
        "--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Tasks at a time per queue."
    )
    @click.option(
        "--processes", type=click.IntRange(1), default=1, show_default=True, help="Processes that share the queues."
    )
    @click.option("--reload", is_flag=True, help="Restart when a Python file here changes.")
    @click.option("--name", help="The name of this worker; without it, host and process.")
    @click.option("--lease", default="30s", show_default=True, help="How long a worker may be silent.")
    @click.option("--grace", default="30s", show_default=True, help="For running tasks after a stop.")
    def worker(queues: tuple[str, ...], lease: str, grace: str, **options: Any) -> None:
        """Run the tasks of this application: pull their events from the Everbell server of the configuration."""
        set_up_logging("INFO")
        try:
            lease_s, grace_s = (
                parse_duration(text, name) / 1_000 for text, name in ((lease, "lease"), (grace, "grace"))
            )
            code = bell.run_for(
                flask_app, WorkerOptions(lease_s=lease_s, grace_s=grace_s, queues=queues or None, **options)
            )
        except EverbellError as error:
            raise click.ClickException(str(error)) from error
        sys.exit(code)

    return group
