"""`everbell export`: events as lines of JSON that `everbell schedule` takes again."""

from __future__ import annotations

import argparse
from typing import get_args

from everbell.cli.bulk import events
from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import OK, argument, command
from everbell.cli.printing import print_line
from everbell.cli.reporting import note
from everbell.cli.selection import add_selection_options, chosen
from everbell.cli.terminal import Progress
from everbell.clock import SystemClock
from everbell.core.event import Status

_NOTES = """\
examples:
  everbell export > events.ndjson                          all that are neither finished nor dead
  everbell export --tag checkout --tenant shop > checkout.ndjson
  everbell schedule @events.ndjson --server http://other:8420     import them on another server
  everbell export --status dead | jq .payload
  everbell export --status delivered > delivered.ndjson    their outcomes; these cannot be scheduled again

Ids of your own are kept, others are made from the old ones, so importing a file twice schedules nothing twice. Of an
event that repeats, the remaining occurrences are exported. Paused events are left out without --status paused: after
an import they would ring again. Events that change while the export runs may be in it as they were before or after."""


@command(
    "export",
    "write events as lines of JSON",
    "Write events to standard output.",
    _NOTES,
    argument("--status", choices=get_args(Status), metavar="STATUS", help=", ".join(get_args(Status))),
    add_selection_options,
    add_server_options,
)
def _export(args: argparse.Namespace) -> int:
    progress = Progress(None, SystemClock())
    written = left_out = 0
    cursor: str | None = None
    with open_client(args) as client:
        while True:
            page = client.export_page(status=args.status, **chosen(args), cursor=cursor)
            for line in page.lines:
                print_line(line)
            written += len(page.lines)
            left_out += page.left_out
            cursor = page.cursor
            if cursor is None:
                break
            progress.show(0, written)
    progress.clear()
    paused = "1 that is paused" if left_out == 1 else f"{left_out:,} that are paused"
    note(f"exported {events(written)}" + (f", left out {paused}" if left_out else ""))
    return OK
