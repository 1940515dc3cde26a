"""Run a command of Everbell with a wrong clock: `off_clock.py SECONDS PYTHON -m everbell …`, in this process."""

from __future__ import annotations

import runpy
import sys
import time


def main() -> None:
    """Shift the clock of this process only; the rest of the machine keeps the right time."""
    off_ns = int(sys.argv[1]) * 1_000_000_000
    right = time.time_ns
    time.time_ns = lambda: right() + off_ns
    sys.argv = sys.argv[sys.argv.index("everbell") :]
    runpy.run_module("everbell", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
