"""Many power failures: `python -m tests.power_loss --seed 1 --minutes 10`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.power_loss.crashes import crash, record_program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1)
    options = parser.parse_args()
    until_s = time.monotonic() + 60 * options.minutes
    seed, count, failures = options.seed, 0, 0
    while time.monotonic() < until_s:
        with TemporaryDirectory(prefix="everbell-test-") as folder:
            recording = record_program(Path(folder) / "run", seed, 200)
            for call, verdict in crash(recording, Random(seed), 1.0, Path(folder)):
                count += 1
                if verdict is not None:
                    failures += 1
                    sys.stdout.write(f"seed {seed}, call {call}: {verdict}\n")
                if time.monotonic() >= until_s:
                    break
        seed += 1
    sys.stdout.write(f"power failures: {count}, seeds {options.seed} to {seed - 1}, {failures} failed\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
