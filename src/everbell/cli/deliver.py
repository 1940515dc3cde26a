"""`everbell deliver`: ring an event now, whatever its time, or only try what its receiver would say."""

from __future__ import annotations

import argparse

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import FAILED, OK, Parser, add_command
from everbell.cli.printing import print_json
from everbell.cli.terminal import harmless

_NOTES = """\
examples:
  everbell deliver order-17-timeout              it is due at once, and goes out as it would have at its time
  everbell deliver order-17-timeout --dry-run    one attempt that changes nothing about the event; the receiver gets it

Of an event that repeats, the occurrence that comes next rings now. With --dry-run the exit code is 1 where the attempt
failed. An event in a queue cannot be tried out: nothing is sent until a worker asks."""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    parser = add_command(
        commands, "deliver", "ring an event now", "Ring an event now, or only try it.", _NOTES, _deliver
    )
    parser.add_argument("id", metavar="ID", help="which event")
    parser.add_argument("--dry-run", action="store_true", help="make one attempt, and tell what came of it")
    add_server_options(parser)


def _deliver(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        if args.dry_run:
            trial = client.try_out(args.id)
            if args.json:
                print_json(trial)
            else:
                parts = [trial.result, "" if trial.code is None else str(trial.code), harmless(trial.reason or "")]
                print(f"{harmless(args.id)}: {', '.join(part for part in parts if part)}")
            return OK if trial.result == "delivered" else FAILED
        event = client.deliver(args.id)
    if args.json:
        print_json(event)
    else:
        print(f"{harmless(event.id)} rings now")
    return OK
