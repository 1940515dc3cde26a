"""`everbell cancel`, `everbell reschedule` and `everbell redrive`: change what was scheduled.

None of them asks back; each prints what it did. Of several events one that cannot be changed keeps no other from it.
"""

from __future__ import annotations

import argparse

from everbell.cli.moments import exact, relative
from everbell.cli.options import add_server_options, add_time_options, open_client, positive
from everbell.cli.parser import FAILED, OK, TIMES, Misuse, Parser, add_command
from everbell.cli.printing import print_json
from everbell.cli.reporting import complain
from everbell.cli.terminal import harmless
from everbell.client.blocking import Client
from everbell.clock import SystemClock
from everbell.errors import EverbellError, Unreachable

_CANCEL_NOTES = """\
examples:
  everbell cancel order-17-timeout
  everbell cancel ev_1 ev_2                      several
  everbell cancel --key order-17                 all of a key that are neither finished nor dead
  everbell cancel --tag checkout

Once it is done, no new attempt starts. An attempt that is under way may still arrive."""

_RESCHEDULE_NOTES = f"""\
examples:
  everbell reschedule order-17-timeout --in 20m
  everbell reschedule order-17-timeout --at 2026-11-20T10:00:00+01:00
  everbell reschedule order-17-timeout --in 20m --version 3     only if nobody changed it since

{TIMES}"""

_REDRIVE_NOTES = """\
examples:
  everbell list --status dead                    see what is dead, and why: everbell show ID
  everbell redrive order-17-timeout
  everbell redrive --all                         everything that is dead
  everbell redrive --all --tag checkout

A redriven event is due at once and gets a new set of attempts."""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands."""
    cancel = add_command(
        commands, "cancel", "cancel events", "Cancel events by id, or all of a key or tag.", _CANCEL_NOTES, _cancel
    )
    cancel.add_argument("ids", metavar="ID", nargs="*")
    cancel.add_argument("--key", help="all events of this key")
    cancel.add_argument("--tag", help="all events with this tag")
    add_server_options(cancel)

    reschedule = add_command(
        commands,
        "reschedule",
        "give an event another time",
        "Give an event another time.",
        _RESCHEDULE_NOTES,
        _reschedule,
    )
    reschedule.add_argument("id", metavar="ID")
    add_time_options(reschedule, required=True)
    reschedule.add_argument("--version", metavar="N", type=positive, help="only if the event still has this version")
    add_server_options(reschedule)

    redrive = add_command(
        commands,
        "redrive",
        "give dead events another chance",
        "Give dead events a new set of attempts.",
        _REDRIVE_NOTES,
        _redrive,
    )
    redrive.add_argument("ids", metavar="ID", nargs="*")
    redrive.add_argument("--all", action="store_true", help="all dead events")
    redrive.add_argument("--key", help="with --all: of this key")
    redrive.add_argument("--tag", help="with --all: with this tag")
    add_server_options(redrive)


def _cancel(args: argparse.Namespace) -> int:
    by_match = args.key is not None or args.tag is not None
    if bool(args.ids) == by_match:
        raise Misuse("name events by ID, or choose them by --key, --tag or both")
    with open_client(args) as client:
        if args.ids:
            return _cancel_each(client, args)
        cancelled = client.cancel_matching(key=args.key, tag=args.tag)
    if args.json:
        print_json({"cancelled": cancelled})
    else:
        print(f"cancelled {_events(cancelled)}")
    return OK


def _cancel_each(client: Client, args: argparse.Namespace) -> int:
    code = OK
    for event_id in args.ids:
        try:
            event = client.cancel(event_id)
        except Unreachable:
            raise
        except EverbellError as error:
            complain("cancel", f"{event_id}: {error}")
            code = FAILED
            continue
        if args.json:
            print_json(event)
        else:
            print(f"cancelled {harmless(event.id)}")
    return code


def _reschedule(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        event = client.reschedule(args.id, at=args.at, in_=args.in_, version=args.version)
    if args.json:
        print_json(event)
    else:
        print(f"{harmless(event.id)} rings {relative(event.at, SystemClock().now())}, at {exact(event.at)}")
    return OK


def _redrive(args: argparse.Namespace) -> int:
    narrowed = args.key is not None or args.tag is not None
    if bool(args.ids) == args.all or (narrowed and not args.all):
        raise Misuse("name dead events by ID, or say --all, alone or with --key or --tag")
    with open_client(args) as client:
        result = client.redrive(args.ids) if args.ids else client.redrive_all(key=args.key, tag=args.tag)
    for error in result.errors:
        complain("redrive", f"{error.id}: {error.detail}")
    if args.json:
        print_json(result)
    elif result.redriven or not result.errors:
        print(f"redrove {_events(result.redriven)}")
    return FAILED if result.errors else OK


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count:,} events"
