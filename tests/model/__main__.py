"""`make model`: explore all states of small clusters, and print how many there are."""

from __future__ import annotations

import argparse
import sys

from tests.model.explorer import Explorer
from tests.model.towns import LARGE, SMALL
from tests.model.values import Values


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--states", type=int, default=1_000_000, help="give up on a town with more states")
    parser.add_argument("--only", default="", help="only towns with this text in their names")
    options = parser.parse_args()
    is_whole = True
    sys.stdout.write(f"{'town':<44}{'states':>9}{'steps':>10}{'depth':>7}{'seconds':>9}\n")
    for town in (*SMALL, *LARGE):
        if options.only not in town.name:
            continue
        values = Values()
        report = Explorer(values, town.at_rest(values)).run(options.states)
        more = "" if report.is_complete or report.fault else "  not complete"
        figures = f"{report.states:>9,}{report.steps:>10,}{report.depth:>7}{report.seconds:>9.1f}"
        sys.stdout.write(f"{town.name:<44}{figures}{more}\n{report.fault}")
        sys.stdout.flush()
        is_whole = is_whole and report.is_complete and not report.fault
    return 0 if is_whole else 1


sys.exit(main())
