"""The options of recurring events."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from everbell.cli.options import checked, duration, instant, positive
from everbell.cli.parser import Misuse, Parser
from everbell.core.cron import parse_cron
from everbell.core.event import Misfire, Overlap
from everbell.core.timetable import Gap, Repeated, check_zone


def add_repeat_options(parser: Parser) -> None:
    """`--every`, `--cron` and their details."""
    group = parser.add_argument_group("recurrence")
    when = group.add_mutually_exclusive_group()
    when.add_argument(
        "--every",
        metavar="DURATION",
        type=duration,
        help="the interval; without --at or --in it begins with one",
    )
    when.add_argument("--cron", metavar="CRON", type=expression, help='as in "0 9 * * MON-FRI"; see everbell preview')
    add_clock_options(group)
    group.add_argument("--count", metavar="N", type=positive, help="how many times in all")
    group.add_argument("--until", metavar="TIME", type=instant, help="not after this time")
    group.add_argument("--jitter", metavar="DURATION", type=duration, help="each rings later by a random part of this")
    group.add_argument("--misfire", choices=get_args(Misfire), help="which late occurrences ring (all)")
    group.add_argument("--catch-up", metavar="DURATION", type=duration, help="how late an occurrence may ring")
    group.add_argument(
        "--overlap", choices=get_args(Overlap), help="an occurrence that is due while the last is in flight (wait)"
    )


def add_clock_options(parser: argparse._ActionsContainer) -> None:
    """The zone of an expression, and the rules for changes of its clocks."""
    parser.add_argument("--tz", metavar="ZONE", type=zone, help="the zone of the expression, as in Europe/Berlin (UTC)")
    parser.add_argument("--gap", choices=get_args(Gap), help="at a time that the clocks leave out (skip)")
    parser.add_argument("--repeated", choices=get_args(Repeated), help="at a time that the clocks show twice")


def repeat_field(args: argparse.Namespace) -> dict[str, Any] | None:
    """The field `repeat` of the JSON; None without options."""
    given = {
        "every": args.every,
        "cron": args.cron,
        "tz": args.tz,
        "gap": args.gap,
        "repeated": args.repeated,
        "count": args.count,
        "until": args.until,
        "jitter": args.jitter,
        "misfire": args.misfire,
        "catch_up": args.catch_up,
        "overlap": args.overlap,
    }
    repeat = {name: value for name, value in given.items() if value is not None}
    if repeat and args.every is None and args.cron is None:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in repeat)
        raise Misuse(f"{names} can only go with --every or --cron; give one of them too")
    return repeat or None


@checked
def expression(text: str) -> str:
    """A cron expression as it was written, if it is one."""
    parse_cron(text)
    return text


@checked
def zone(text: str) -> str:
    """The name of a zone, if it is one."""
    return check_zone(text)
