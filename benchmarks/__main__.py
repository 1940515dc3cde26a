"""`python -m benchmarks`: print all measurements of `everbell bench`, and store them as JSON and as a drawing.

Takes the options of `everbell bench`; `python -m benchmarks cluster` measures a cluster instead. The files in
`benchmarks/results` describe this machine only and are not stored in Git.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from everbell.bench.plot import draw
from everbell.cli.bench import bench, print_report, run_bench
from everbell.cli.parser import FAILED, OK, Parser

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure, print, store."""
    if sys.argv[1:] == ["cluster"]:
        # Imported late: only this module needs the servers that the tests start.
        from benchmarks.cluster import main as measure_cluster

        measure_cluster()
        return
    parser = Parser(prog="python -m benchmarks")
    bench.add_to(parser.add_subparsers())
    args = parser.parse_args(["bench", *sys.argv[1:]])
    report = run_bench(args, shows_progress=sys.stderr.isatty())
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print_report(report)
    draw(report.figures, args.plot or str(RESULTS / "latest.svg"))
    sys.exit(FAILED if report.failures else OK)


if __name__ == "__main__":
    main()
