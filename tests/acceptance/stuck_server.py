"""Run a server whose dispatcher lost its wake-up: `python -m tests.acceptance.stuck_server PYTHON -m everbell …`."""

from __future__ import annotations

import runpy
import sys

from everbell.engine.dispatcher import Dispatcher


def main() -> None:
    Dispatcher._pump_soon = lambda self: None  # type: ignore[method-assign]
    sys.argv = sys.argv[sys.argv.index("everbell") :]
    runpy.run_module("everbell", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
