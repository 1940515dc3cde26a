"""`everbell bench`: measure this machine, each figure beside its goal and beside the bare work of the same run."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from everbell.bench.figures import Figure, best_of
from everbell.bench.plot import draw
from everbell.bench.run import MEASUREMENTS, Report, describe_machine, measure, names_of
from everbell.bench.scale import scale_of
from everbell.bench.scene import OnProgress, Scene
from everbell.bench.table import lines_of, machine_line
from everbell.cli.options import add_json_option, positive
from everbell.cli.parser import FAILED, OK, argument, command
from everbell.cli.printing import print_json
from everbell.cli.reporting import complain, note
from everbell.cli.terminal import Progress
from everbell.clock import SystemClock

_TERMINATED = 143

_NOTES = f"""\
examples:
  everbell bench --quick                         everything, smaller, in about a minute
  everbell bench --only ingest --only late
  everbell bench --rounds 3                      the best of three, where others use the machine, too
  everbell bench --only postgres --postgres postgresql://user@localhost/test
  everbell bench --only outbox --postgres postgresql://user@localhost/test
  everbell bench --only replicas --postgres postgresql://user@localhost/test
  everbell bench --only kafka --kafka localhost:9092
  everbell bench --only shards --cassandra cassandra://user:password@localhost/test
  everbell bench --json > figures.json
  everbell bench --plot figures.svg              needs matplotlib: pip install 'everbell[bench]'

The measurements are {", ".join(MEASUREMENTS)}.
Everything happens on loopback and in temporary directories, which are removed. The whole takes
some minutes and up to 10 GB of disk for a while; --quick takes a tenth of it."""


def run_bench(args: argparse.Namespace, *, shows_progress: bool = True) -> Report:
    """Make the measurements that the options choose."""
    signal.signal(signal.SIGTERM, _end)
    machine = describe_machine()
    scene = Scene(
        scale_of(quick=args.quick, events=args.events),
        args.gateways,
        args.postgres,
        args.kafka,
        args.cassandra,
        _Bars(shows_progress).begin,
    )
    figures: list[Figure] = []
    failures: list[str] = []
    for result in measure(names_of(args.only, scene), scene, args.rounds):
        if isinstance(result, str):
            failures.append(result)
            complain("bench", result)
            continue
        figures.append(result)
        if shows_progress:
            note(f"{result.goal.work}: {result.value:,.2f} {result.goal.unit}")
    return Report(machine, tuple(best_of(figures)), tuple(failures))


def print_report(report: Report) -> None:
    """The machine, the table, the notes."""
    print(machine_line(report.machine))
    print()
    print("\n".join(lines_of(report.figures)))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 64")
    return int(text)


@command(
    "bench",
    "measure this machine",
    "Measure this machine: each figure beside its goal, and beside the bare work done in the same run.",
    _NOTES,
    argument("--quick", action="store_true", help="smaller, for a first impression"),
    argument(
        "--only", metavar="NAME", action="append", choices=list(MEASUREMENTS), help="this measurement; may be repeated"
    ),
    argument(
        "--rounds",
        metavar="N",
        type=positive,
        default=1,
        help="measure N times, in turns, and report the best and all (measurements of minutes run once)",
    ),
    argument("--events", metavar="N", type=positive, help="the number of events in each measurement"),
    argument(
        "--gateways", metavar="N", type=_count, help="gateways of the server (else 0 and 1 are compared; 1 for Kafka)"
    ),
    argument("--postgres", metavar="URL", help="measure with this database, too (in schemas of its own)"),
    argument("--kafka", metavar="HOST:PORT", help="measure with this Kafka, too (in topics of its own)"),
    argument("--cassandra", metavar="URL", help="measure with this Cassandra, too (in a keyspace of its own)"),
    argument("--plot", metavar="FILE", help="draw the rates into this file (.svg, .png)"),
    add_json_option,
)
def bench(args: argparse.Namespace) -> int:
    report = run_bench(args, shows_progress=sys.stderr.isatty())
    if args.json:
        print_json(report)
    else:
        print_report(report)
    if args.plot:
        draw(report.figures, args.plot)
    return FAILED if report.failures else OK


class _Bars:
    """One bar at a time, on stderr where that is a terminal."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._bar: Progress | None = None

    def begin(self, work: str, total: int) -> OnProgress:
        """A new bar in place of the last."""
        if not self._on:
            return lambda done: None
        if self._bar is not None:
            self._bar.clear()
        note(work)
        bar = self._bar = Progress(total, SystemClock())
        return lambda done: bar.show(done, done)


def _end(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM: end by an exception, so that all started processes are stopped."""
    sys.exit(_TERMINATED)
