"""`everbell list` and `everbell show`: find events, and show their state and attempts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import get_args

from everbell.cli.options import add_server_options, open_client, positive
from everbell.cli.parser import FAILED, OK, TIMES, argument, command, one_of
from everbell.cli.printing import FLEXIBLE, HEADINGS, STATUS_COLUMN, print_event, print_json, row
from everbell.cli.reporting import complain, note
from everbell.cli.selection import add_selection_options, chosen
from everbell.cli.terminal import Paint, Table
from everbell.client.answers import EventPage, EventView
from everbell.client.blocking import Client
from everbell.clock import SystemClock
from everbell.core.event import Status
from everbell.errors import NotFound

_ROWS = 50
_PAGE_EVENTS_MAX = 1_000

_LIST_NOTES = f"""\
examples:
  everbell list                                  all that are neither finished nor dead, by due time
  everbell list --status dead                    events to check; then: everbell show ID, everbell redrive ID
  everbell list --key order-17 --json            one JSON document a line
  everbell list --tag checkout --until 2026-11-20T10:00:00Z --all
  everbell list --to https://shop.example/ --id-prefix order-

{TIMES}"""

_SHOW_NOTES = """\
examples:
  everbell show order-17-timeout                 everything about it, with its latest attempts
  everbell show order-17-timeout --json | jq .status

Finished events stay visible for the tenant's retention, a day unless it says otherwise; their payload does not."""


@command(
    "list",
    "list events",
    "List the events that match, in the order they are due.",
    _LIST_NOTES,
    argument("--status", choices=get_args(Status), metavar="STATUS", help=", ".join(get_args(Status))),
    add_selection_options,
    one_of(
        argument("--limit", metavar="N", type=positive, default=_ROWS, help=f"the maximum number ({_ROWS})"),
        argument("--all", action="store_true", help="all of them, however many"),
    ),
    add_server_options,
)
def _list(args: argparse.Namespace) -> int:
    clock, paint = SystemClock(), Paint()
    table = Table(HEADINGS, paint, FLEXIBLE)
    shown = 0
    with open_client(args) as client:
        for page in _pages(client, args):
            events = page.events if args.all else page.events[: args.limit - shown]
            shown += len(events)
            if args.json:
                for event in events:
                    print_json(event)
            elif events:
                now = clock.now()
                table.print([row(event, now) for event in events], STATUS_COLUMN)
            if not args.all and shown >= args.limit:
                if page.rest is not None or len(page.events) > len(events):
                    note(f"the first {shown}; --all shows all")
                return OK
    if not shown and not args.json:
        note("nothing matches")
    return OK


def _pages(client: Client, args: argparse.Namespace) -> Iterator[EventPage]:
    page = client.page(
        status=args.status,
        **chosen(args),
        limit=_PAGE_EVENTS_MAX if args.all else min(args.limit, _PAGE_EVENTS_MAX),
    )
    yield page
    while page.rest is not None:
        page = client.run(page.rest)
        yield page


@command(
    "show",
    "show an event and its attempts",
    "Show everything about events.",
    _SHOW_NOTES,
    argument("ids", metavar="ID", nargs="+", help="which events"),
    add_server_options,
)
def _show(args: argparse.Namespace) -> int:
    code = OK
    with open_client(args) as client:
        for event_id in args.ids:
            try:
                event = client.get(event_id)
            except NotFound as error:
                complain("show", str(error))
                code = FAILED
            else:
                _print(event, args.json)
    return code


def _print(event: EventView, as_json: bool) -> None:
    if as_json:
        print_json(event)
    else:
        print_event(event, SystemClock().now(), Paint())
