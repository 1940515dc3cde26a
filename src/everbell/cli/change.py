"""`everbell cancel`, `reschedule`, `redrive`, `discard` and `unblock`: change what was scheduled.

None of them asks back; each prints what it did. Of several events one that cannot be changed keeps no other from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from everbell.cli.bulk import cancel_all, events, reschedule_all
from everbell.cli.moments import exact, relative
from everbell.cli.options import add_server_options, add_time_options, open_client, positive, positive_number
from everbell.cli.parser import FAILED, OK, TIMES, Misuse, Parser, add_command
from everbell.cli.printing import print_json
from everbell.cli.reporting import complain, note
from everbell.cli.selection import NAMES, add_selection_options, chosen
from everbell.cli.terminal import harmless
from everbell.client.answers import EventView
from everbell.client.blocking import Client
from everbell.clock import SystemClock
from everbell.errors import Conflict, EverbellError, Unreachable

_CANCEL_NOTES = """\
examples:
  everbell cancel order-17-timeout
  everbell cancel ev_1 ev_2                      several
  everbell cancel --key order-17                 all of a key that are neither finished nor dead
  everbell cancel --tag checkout --until 2026-11-20T10:00:00Z
  everbell cancel --to https://shop.example/     all that go there

Once it is done, no new attempt starts. An attempt that is under way may still arrive."""

_RESCHEDULE_NOTES = f"""\
examples:
  everbell reschedule order-17-timeout --in 20m
  everbell reschedule order-17-timeout --at 2026-11-20T10:00:00+01:00
  everbell reschedule order-17-timeout --in 20m --version 3     only if nobody changed it since
  everbell reschedule order-17-timeout --by -5m                 five minutes earlier
  everbell reschedule --tag checkout --by 2h                    all with the tag, each two hours later

{TIMES}"""

_REDRIVE_NOTES = """\
examples:
  everbell list --status dead                    see what is dead, and why: everbell show ID
  everbell redrive order-17-timeout
  everbell redrive --all                         everything that is dead
  everbell redrive --all --tag checkout
  everbell redrive --all --to https://shop.example/ --rate 10     ten a second, to spare a receiver

A redriven event gets a new set of attempts. It is due at once, or, with --rate, when its turn comes."""

_DISCARD_NOTES = """\
examples:
  everbell discard order-17-timeout
  everbell discard --all                         everything that is dead
  everbell discard --tag checkout --until 2026-11-01T00:00:00Z

A discarded event counts as cancelled. If it blocked its key, the next of the key goes on."""

_UNBLOCK_NOTES = """\
examples:
  everbell unblock order-17 --look               what the key waits for, and how many wait
  everbell unblock order-17                      cancel that one, so that the next may go

The head of a key is the event whose end the others wait for: one that is being tried again, is under way, or is dead.
Dropping a head that repeats cancels all its occurrences."""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands."""
    cancel = add_command(
        commands, "cancel", "cancel events", "Cancel events by id, or all that match.", _CANCEL_NOTES, _cancel
    )
    cancel.add_argument("ids", metavar="ID", nargs="*", help="which events, where no option chooses them")
    add_selection_options(cancel)
    add_server_options(cancel)

    reschedule = add_command(
        commands,
        "reschedule",
        "give events another time",
        "Give an event, or all that match, another time.",
        _RESCHEDULE_NOTES,
        _reschedule,
    )
    reschedule.add_argument("id", metavar="ID", nargs="?", help="which event, where no option chooses several")
    add_time_options(reschedule, required=True, by=True)
    add_selection_options(reschedule)
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
    redrive.add_argument("ids", metavar="ID", nargs="*", help="which dead events, unless --all")
    redrive.add_argument("--all", action="store_true", help="all dead events")
    redrive.add_argument("--rate", metavar="N", type=positive_number, help="so many a second, instead of all at once")
    add_selection_options(redrive)
    add_server_options(redrive)

    discard = add_command(
        commands, "discard", "give up on dead events", "Cancel dead events, for good.", _DISCARD_NOTES, _discard
    )
    discard.add_argument("ids", metavar="ID", nargs="*", help="which dead events, where no option chooses them")
    discard.add_argument("--all", action="store_true", help="all dead events")
    add_selection_options(discard)
    add_server_options(discard)

    unblock = add_command(
        commands,
        "unblock",
        "drop the event that a key waits for",
        "Cancel the event that the others of a key wait for.",
        _UNBLOCK_NOTES,
        _unblock,
    )
    unblock.add_argument("key", metavar="KEY", help="the key whose events wait")
    unblock.add_argument("--look", action="store_true", help="only say what the key waits for")
    add_server_options(unblock)


def _cancel(args: argparse.Namespace) -> int:
    choice = chosen(args)
    if bool(args.ids) == bool(choice):
        raise Misuse(f"name events by ID, or choose them by {NAMES}")
    with open_client(args) as client:
        if args.ids:
            return _each(client.cancel, args, "cancel", "cancelled")
        return cancel_all(client.cancel_page, choice, "cancelled", as_json=args.json)


def _discard(args: argparse.Namespace) -> int:
    choice = chosen(args)
    if bool(args.ids) == bool(choice or args.all):
        raise Misuse(f"name dead events by ID, say --all, or choose them by {NAMES}")
    with open_client(args) as client:
        if not args.ids:
            return cancel_all(client.discard_dead, choice, "discarded", as_json=args.json)
        return _each(partial(_discard_one, client), args, "discard", "discarded")


def _discard_one(client: Client, event_id: str) -> EventView:
    event = client.get(event_id)
    if event.status != "dead":
        raise Conflict(f"the event is {event.status}, not dead; everbell cancel cancels it")
    return client.cancel(event_id, version=event.version)


def _each(act: Callable[[str], EventView], args: argparse.Namespace, command: str, verb: str) -> int:
    code = OK
    for event_id in args.ids:
        try:
            event = act(event_id)
        except Unreachable:
            raise
        except EverbellError as error:
            complain(command, f"{event_id}: {error}")
            code = FAILED
            continue
        if args.json:
            print_json(event)
        else:
            print(f"{verb} {harmless(event.id)}")
    return code


def _reschedule(args: argparse.Namespace) -> int:
    choice = chosen(args)
    if (args.id is not None) == bool(choice) or (choice and args.version is not None):
        raise Misuse(f"name one event by ID, or choose some by {NAMES}; --version goes with an ID")
    with open_client(args) as client:
        if choice:
            return reschedule_all(client, choice, args)
        event = client.reschedule(args.id, at=args.at, in_=args.in_, by=args.by, version=args.version)
    if args.json:
        print_json(event)
    else:
        print(f"{harmless(event.id)} rings {relative(event.at, SystemClock().now())}, at {exact(event.at)}")
    return OK


def _redrive(args: argparse.Namespace) -> int:
    choice = chosen(args)
    if bool(args.ids) == args.all or (choice and not args.all):
        raise Misuse(f"name dead events by ID, or say --all, alone or with {NAMES}")
    with open_client(args) as client:
        named = args.ids
        result = client.redrive(named, rate=args.rate) if named else client.redrive_all(**choice, rate=args.rate)
    for error in result.errors:
        complain("redrive", f"{error.id}: {error.detail}")
    if args.json:
        print_json(result)
    elif result.redriven or not result.errors:
        print(f"redrove {events(result.redriven)}")
    return FAILED if result.errors else OK


def _unblock(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        line = client.look_at_key(args.key)
        if line.head is None:
            note(f"nothing of the key {harmless(args.key)} is due")
            return FAILED if not args.look else OK
        dropped = line.head if args.look else client.cancel(line.head.id, version=line.head.version)
    if args.json:
        print_json(line if args.look else dropped)
        return OK
    waiting = f"{events(line.waiting)}{' or more' if line.more else ''}"
    verb = f"is {line.head.status}" if args.look else "is cancelled"
    print(f"{harmless(dropped.id)} {verb}; {waiting} in line behind it")
    return OK
