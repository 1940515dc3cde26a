"""`everbell worker module:app`: runs the handlers of an app and pulls their events from a server."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from typing import get_args

from everbell.cli.options import add_server_options, duration_s, positive
from everbell.cli.parser import argument, command
from everbell.cli.printing import print_json
from everbell.client.app import App
from everbell.client.awaiting import AsyncClient
from everbell.client.worker import Worker
from everbell.client.worker_process import WorkerOptions, run_worker
from everbell.errors import InvalidInput
from everbell.log_lines import LogFormat, set_up_logging

_NOTES = """\
examples:
  everbell worker shop.jobs:app
  everbell worker shop.jobs:app --server http://bell:8420 --tenant shop --concurrency 64
  everbell worker shop.jobs:app --name mail-1 --queue mail
  everbell worker shop.jobs:app --processes 4
  everbell worker shop.jobs:app --reload

An app, in shop/jobs.py:
  from everbell import App, Occurrence, Refuse
  app = App()

  @app.on("mail")                              # events to queue:mail
  async def send(event: Occurrence) -> None:   # or a plain function: it gets a thread
      if "to" not in event.payload:
          raise Refuse("no recipient")         # dead at once; other errors are retried
      ...

The module is looked for in the current directory first.
Leases of long-running handlers are extended. A worker that dies loses nothing: its
events are leased again when their lease expires. SIGTERM or Ctrl-C stops it: running
handlers finish (--grace), other events are given back. A second signal stops it at once."""


@command(
    "worker",
    "run handlers that pull events",
    "Run the handlers of an app, and pull their events from a server.",
    _NOTES,
    argument("app", metavar="MODULE:APP", help="where the app is, as in shop.jobs:app"),
    argument("--name", metavar="NAME", help="the name of this worker in everbell queues (host and process)"),
    argument(
        "--queue", metavar="QUEUE", action="append", dest="queues", help="pull from this queue only; repeatable (all)"
    ),
    argument("--concurrency", metavar="N", type=positive, default=16, help="handlers at a time per queue (16)"),
    argument(
        "--lease", metavar="DURATION", type=duration_s, default=30.0, help="how long a worker may be silent (30s)"
    ),
    argument("--grace", metavar="DURATION", type=duration_s, default=30.0, help="for handlers after a stop (30s)"),
    argument("--processes", metavar="N", type=positive, default=1, help="processes that share the queues (1)"),
    argument("--reload", action="store_true", help="restart when a Python file here changes, for development"),
    argument("--verbose", action="store_true", help="log the traceback of every failure"),
    argument(
        "--log-format", choices=get_args(LogFormat), default="text", help="lines for people, or a JSON document a line"
    ),
    add_server_options,
)
def _work(args: argparse.Namespace) -> int:
    set_up_logging("DEBUG" if args.verbose else "INFO", layout=args.log_format)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    options = WorkerOptions(
        args.concurrency, args.lease, args.grace, args.name, args.queues, args.processes, args.reload
    )

    def connect() -> AsyncClient:
        return AsyncClient(args.server, args.tenant, args.token, ca=args.ca, certificate=args.cert)

    def report(worker: Worker) -> None:
        if args.json:
            print_json({"handled": worker.handled, "failed": worker.failed})

    return run_worker(lambda: load_app(args.app), connect, options, report)


def load_app(place: str) -> App:
    """The app named by `module:name`. Raises `InvalidInput` if there is none."""
    module_name, colon, name = place.partition(":")
    # Without a name before and after each dot, Python would take it for relative to a package, and there is none.
    if not colon or not name.isidentifier() or not all(module_name.split(".")):
        raise InvalidInput(f"{place!r} does not name an app; write MODULE:APP, as in shop.jobs:app")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InvalidInput(f"there is no module {error.name!r} here; run it where the module is") from error
    app = getattr(module, name, None)
    if not isinstance(app, App):
        found = "nothing" if app is None else f"a {type(app).__name__}"
        raise InvalidInput(f"{place} is {found}, not an everbell.App")
    return app
