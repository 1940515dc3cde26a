"""`everbell forecast`: how many events are due, per minute or hour, ahead."""

from __future__ import annotations

import argparse

from everbell.cli.options import add_server_options, open_client, positive
from everbell.cli.parser import OK, argument, command
from everbell.cli.printing import print_json
from everbell.cli.reporting import note
from everbell.cli.terminal import Paint
from everbell.cli.timestamps import exact
from everbell.client.answers import LoadForecast

_BAR_CELLS = 40

_NOTES = """\
examples:
  everbell forecast                              the next hour, minute by minute
  everbell forecast --per hour --count 48        two days
  everbell forecast --all-tenants --json | jq .overdue

Events that repeat count with every occurrence, retries with their next attempt. Overdue events are due and not yet
delivered; those that wait behind the head of their key count, too."""


@command(
    "forecast",
    "how many events are due ahead",
    "Count the events that are due ahead.",
    _NOTES,
    argument("--per", choices=("minute", "hour"), default="minute", help="minute (unless said) or hour"),
    argument("--count", metavar="N", type=positive, help="how many of them (60 minutes, 24 hours)"),
    argument("--all-tenants", action="store_true", help="of all tenants together"),
    add_server_options,
)
def _forecast(args: argparse.Namespace) -> int:
    count = args.count or (60 if args.per == "minute" else 24)
    with open_client(args) as client:
        forecast = client.forecast(per=args.per, count=count, all_tenants=args.all_tenants)
    if args.json:
        print_json(forecast)
        return OK
    _print(forecast, Paint())
    if forecast.known_until is not None:
        note(f"from {exact(forecast.known_until)} on there may be more: that was too much to count")
    return OK


def _print(forecast: LoadForecast, paint: Paint) -> None:
    late = "" if forecast.oldest_overdue is None else f", the oldest for {forecast.oldest_overdue}"
    print(paint(f"overdue  {forecast.overdue:,}{late}", "yellow" if forecast.overdue else "dim"))
    most = max((span.due for span in forecast.spans), default=0)
    width = len(f"{most:,}")
    for span in forecast.spans:
        bar = "█" * -(-span.due * _BAR_CELLS // max(most, 1))
        print(f"{span.at:%Y-%m-%d %H:%M}  {span.due:>{width},}  {paint(bar, 'cyan')}".rstrip())
