"""`everbell preview` and `backfill`: commands for recurring events, beside pausing them.

A preview of an expression needs no server: the times are the same everywhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from everbell.cli.options import add_server_options, instant, open_client, positive
from everbell.cli.parser import FAILED, OK, TIMES, Misuse, argument, command
from everbell.cli.printing import print_json, print_result
from everbell.cli.repeat_options import add_clock_options, expression
from everbell.cli.reporting import complain, note
from everbell.cli.terminal import Paint, Table
from everbell.cli.timestamps import exact, relative
from everbell.client.recurrence_calls import Upcoming
from everbell.clock import SystemClock
from everbell.core.recurrence import upcoming
from everbell.core.repeat_spec import RepeatSpec, first_of, repeat_of
from everbell.core.time import parse_instant
from everbell.core.timetable import local_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES_SHOWN = 10
_TIMES_MAX = 1_000

_PREVIEW_NOTES = """\
examples:
  everbell preview "0 9 * * MON-FRI" --tz Europe/Berlin
  everbell preview "30 2 * * *" --tz Europe/Berlin --gap after --from 2027-03-26T00:00:00Z --count 5
  everbell preview --id weekly-report            of an event that is scheduled

An expression has five fields: minute, hour, day of month, month, day of week; six begin with seconds. Or it is @hourly,
@daily, @weekly, @monthly, @yearly. L is the last day of the month, FRIL its last Friday, MON#2 its second Monday."""

_BACKFILL_NOTES = f"""\
examples:
  everbell backfill weekly-report --from 2026-10-01T00:00:00Z --until 2026-10-31T23:59:59Z

Every time of the range becomes an event of its own, due at once, the oldest first. To repeat the command is harmless.

{TIMES}"""


@command(
    "preview",
    "show when events ring",
    "Show the next times of a recurrence.",
    _PREVIEW_NOTES,
    argument("expression", metavar="CRON", nargs="?", type=expression, help='as in "0 9 * * MON-FRI"'),
    argument("--id", help="of an event that is scheduled, instead of an expression"),
    add_clock_options,
    argument("--from", dest="from_", metavar="TIME", type=instant, help="not before this time; now"),
    argument("--count", metavar="N", type=positive, help=f"how many times ({_TIMES_SHOWN})"),
    add_server_options,
)
def _preview(args: argparse.Namespace) -> int:
    if (args.expression is None) == (args.id is None):
        raise Misuse("give a cron expression, or --id ID for an event that is scheduled")
    count = min(args.count or _TIMES_SHOWN, _TIMES_MAX)
    if args.id is None:
        times = list(islice(_times(args), count))
    elif args.tz or args.gap or args.repeated or args.from_:
        raise Misuse("an event has its own zone, rules and beginning; --id goes with --count only")
    else:
        with open_client(args) as client:
            times = list(client.preview_event(args.id, count=count).occurrences)
    _print_times(times, args.json)
    return OK


def _times(args: argparse.Namespace) -> Iterator[Upcoming]:
    """The times of an expression, as a server would tell them."""
    repeat = repeat_of(RepeatSpec(cron=args.expression, tz=args.tz, gap=args.gap, repeated=args.repeated))
    first_at = first_of(repeat, None if args.from_ is None else parse_instant(args.from_), SystemClock().now())
    for number, at in upcoming(repeat, first_at):
        moment = _EPOCH + timedelta(milliseconds=at)
        yield Upcoming(number, moment, local_text(at, repeat.tz))


def _print_times(times: list[Upcoming], as_json: bool) -> None:
    now = SystemClock().now()
    rows = []
    for shown in times:
        if as_json:
            print_json(shown)
            continue
        rings = shown.rings_at or shown.at
        rows.append((str(shown.number), exact(rings), relative(rings, now), _local(shown)))
    if rows:
        Table(("", "RINGS", "", "LOCALLY"), Paint()).print(rows)
    elif not as_json:
        note("it never rings again")


def _local(shown: Upcoming) -> str:
    return "" if shown.local is None else f"{datetime.fromisoformat(shown.local):%a %Y-%m-%d %H:%M:%S %z}"


@command(
    "backfill",
    "ring for a past range",
    "Ring for the times of a past range of a recurring event.",
    _BACKFILL_NOTES,
    argument("id", metavar="ID", help="which event"),
    argument("--from", dest="from_", metavar="TIME", type=instant, required=True, help="the first time"),
    argument("--until", metavar="TIME", type=instant, required=True, help="the last time, in the past"),
    add_server_options,
)
def _backfill(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        made = client.backfill(args.id, from_=args.from_, until=args.until)
    for error in made.errors:
        complain("backfill", f"occurrence {error.index + 1} of the range: {error.detail}")
    print_result(
        made,
        f"scheduled {made.scheduled:,}" + (f", {made.existing:,} were there already" if made.existing else ""),
        as_json=args.json,
    )
    return FAILED if made.errors else OK
