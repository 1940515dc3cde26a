"""Trials that take minutes: `python -m tests.endurance postgres --minutes 10`, for one kind of trouble with `--only`.

Each line has a span of the trial, the deliveries per second, their ratio to the first span, and the tables of more
than a mebibyte with their indexes. The command fails if an acknowledged event was lost, or if the median ratio of the
second half is below 0.7.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from statistics import median

from tests.endurance.postgres import HARMS, SPANS, PostgresTrial, TrialResult
from tests.services.postgres import PostgresServer

RATIO_MIN = 0.7


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _is_good(kind: str, result: TrialResult) -> bool:
    later = median(result.ratios[len(result.ratios) // 2 :])
    _say(
        f"{kind}: {result.acknowledged} acknowledged, {result.lost} lost, {result.repeated} repeated, "
        f"refused calls {dict(result.refused) or 0}, sessions ended {result.kills}; "
        f"ratio of the second half {later:.2f}"
    )
    return not result.lost and later >= RATIO_MIN


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description="Run long trials.")
    parser.add_argument("store", choices=["postgres"])
    parser.add_argument("--minutes", type=float, default=10.0, help="for each kind of trouble")
    parser.add_argument("--only", choices=HARMS, action="append", help="this kind of trouble; may be repeated")
    arguments = parser.parse_args()
    results = []
    for kind in arguments.only or HARMS:
        _say(f"{kind}, {arguments.minutes:g} minutes in {SPANS} spans")
        with PostgresServer() as server:
            results.append(_is_good(kind, asyncio.run(PostgresTrial(server, kind, arguments.minutes).run(_say))))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
