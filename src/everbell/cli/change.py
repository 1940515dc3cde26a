"""`everbell cancel`, `reschedule`, `snooze`, `redrive`, `discard`, `unblock` and `deliver`: change scheduled events.

None of them asks for confirmation; each prints its result. An event that cannot be changed does not affect the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from everbell.cli.bulk import cancel_all, count_matching, events, reschedule_all
from everbell.cli.options import add_server_options, add_time_options, open_client, positive, positive_number
from everbell.cli.parser import FAILED, OK, TIMES, Misuse, argument, command
from everbell.cli.printing import due_text, print_json, print_result
from everbell.cli.reporting import complain, note
from everbell.cli.selection import NAMES, add_dry_run_option, add_selection_options, chosen
from everbell.cli.terminal import harmless
from everbell.client.answers import EventView
from everbell.client.blocking import Client
from everbell.errors import Conflict, EverbellError, Unreachable

_CANCEL_NOTES = """\
examples:
  everbell cancel order-17-timeout
  everbell cancel ev_1 ev_2                      several
  everbell cancel --key order-17                 all events of a key that are neither finished nor dead
  everbell cancel --tag checkout --until 2026-11-20T10:00:00Z
  everbell cancel --to https://shop.example/     all events for this receiver
  everbell cancel --key order-17 --dry-run       only count them

Once it is done, no new attempt starts. An attempt in flight may still arrive."""

_RESCHEDULE_NOTES = f"""\
examples:
  everbell reschedule order-17-timeout --in 20m
  everbell reschedule order-17-timeout --at 2026-11-20T10:00:00+01:00
  everbell reschedule order-17-timeout --in 20m --version 3     only if it is still version 3
  everbell reschedule order-17-timeout --by -5m                 five minutes earlier
  everbell reschedule --tag checkout --by 2h                    all with the tag, each two hours later

{TIMES}"""

_SNOOZE_NOTES = """\
examples:
  everbell snooze reminder-7 10m
  everbell snooze reminder-7 2h --version 3     only if it was not changed since

The due time moves later by the duration, in one step: two snoozes of ten minutes at once make twenty."""

_REDRIVE_NOTES = """\
examples:
  everbell list --status dead                    find dead events; the reasons: everbell show ID
  everbell redrive order-17-timeout
  everbell redrive --all                         all dead events
  everbell redrive --all --tag checkout
  everbell redrive --all --to https://shop.example/ --rate 10     ten per second, to spare a receiver

A redriven event gets a new set of attempts. It is due at once, or, with --rate, when its turn comes."""

_DISCARD_NOTES = """\
examples:
  everbell discard order-17-timeout
  everbell discard --all                         all dead events
  everbell discard --tag checkout --until 2026-11-01T00:00:00Z

A discarded event counts as cancelled. If it blocked its key, the next event of the key starts."""

_DELIVER_NOTES = """\
examples:
  everbell deliver order-17-timeout              it is due at once, and is delivered as usual
  everbell deliver order-17-timeout --dry-run    one attempt that changes nothing about the event; the receiver gets it

Of an event that repeats, the next occurrence rings now. With --dry-run the exit code is 1 if the attempt failed. An
event in a queue cannot be tried out: nothing is sent until a worker asks."""

_UNBLOCK_NOTES = """\
examples:
  everbell unblock order-17 --look               show the head of the key, and how many events wait
  everbell unblock order-17                      cancel the head, so that the next event starts

The head of a key is the event that has to end before the next one starts: it is being retried, in flight, or dead.
Dropping a head that repeats cancels all its occurrences."""


@command(
    "cancel",
    "cancel events",
    "Cancel events by id, or all events that match.",
    _CANCEL_NOTES,
    argument("ids", metavar="ID", nargs="*", help="which events, where no option chooses them"),
    add_selection_options,
    add_dry_run_option,
    add_server_options,
)
def _cancel(args: argparse.Namespace) -> int:
    choice = chosen(args)
    if bool(args.ids) == bool(choice):
        raise Misuse(f"name events by ID, or choose them by {NAMES}")
    _refuse_dry_run_of(args.ids, args)
    with open_client(args) as client:
        if args.dry_run:
            return count_matching(client, "cancel", choice, as_json=args.json)
        if args.ids:
            return _each(client.cancel, args, "cancel", "cancelled")
        return cancel_all(client.cancel_page, choice, "cancelled", as_json=args.json)


@command(
    "discard",
    "give up on dead events",
    "Cancel dead events, for good.",
    _DISCARD_NOTES,
    argument("ids", metavar="ID", nargs="*", help="which dead events, where no option chooses them"),
    argument("--all", action="store_true", help="all dead events"),
    add_selection_options,
    add_dry_run_option,
    add_server_options,
)
def _discard(args: argparse.Namespace) -> int:
    choice = chosen(args)
    if bool(args.ids) == bool(choice or args.all):
        raise Misuse(f"name dead events by ID, say --all, or choose them by {NAMES}")
    _refuse_dry_run_of(args.ids, args)
    with open_client(args) as client:
        if args.dry_run:
            return count_matching(client, "discard", choice | {"status": "dead"}, as_json=args.json)
        if not args.ids:
            return cancel_all(client.discard_dead, choice, "discarded", as_json=args.json)
        return _each(partial(_discard_one, client), args, "discard", "discarded")


def _refuse_dry_run_of(named: object, args: argparse.Namespace) -> None:
    if named and args.dry_run:
        raise Misuse(f"--dry-run counts events that are chosen by {NAMES}; everbell show ID shows one")


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
        print_result(event, f"{verb} {harmless(event.id)}", as_json=args.json)
    return code


@command(
    "reschedule",
    "give events another time",
    "Give an event, or all events that match, another time.",
    _RESCHEDULE_NOTES,
    argument("id", metavar="ID", nargs="?", help="which event, where no option chooses several"),
    partial(add_time_options, required=True, by=True),
    add_selection_options,
    add_dry_run_option,
    argument("--version", metavar="N", type=positive, help="only if the event still has this version"),
    add_server_options,
)
def _reschedule(args: argparse.Namespace) -> int:
    choice = chosen(args)
    if (args.id is not None) == bool(choice) or (choice and args.version is not None):
        raise Misuse(f"name one event by ID, or choose some by {NAMES}; --version goes with an ID")
    _refuse_dry_run_of(args.id, args)
    with open_client(args) as client:
        if args.dry_run:
            return count_matching(client, "reschedule", choice, as_json=args.json)
        if choice:
            return reschedule_all(client, choice, args)
        event = client.reschedule(args.id, at=args.at, in_=args.in_, by=args.by, version=args.version)
    print_result(event, due_text(event.id, event.at), as_json=args.json)
    return OK


@command(
    "snooze",
    "move an event later",
    "Move the due time of an event later by a duration.",
    _SNOOZE_NOTES,
    argument("id", metavar="ID", help="the id of the event"),
    argument("by", metavar="DURATION", help="how much later, such as 10m"),
    argument("--version", metavar="N", type=positive, help="only if the event still has this version"),
    add_server_options,
)
def _snooze(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        event = client.snooze(args.id, by=args.by, version=args.version)
    print_result(event, due_text(event.id, event.at), as_json=args.json)
    return OK


@command(
    "redrive",
    "give dead events another chance",
    "Give dead events a new set of attempts.",
    _REDRIVE_NOTES,
    argument("ids", metavar="ID", nargs="*", help="which dead events, unless --all"),
    argument("--all", action="store_true", help="all dead events"),
    argument("--rate", metavar="N", type=positive_number, help="events per second, instead of all at once"),
    add_selection_options,
    add_dry_run_option,
    add_server_options,
)
def _redrive(args: argparse.Namespace) -> int:
    choice = chosen(args)
    if bool(args.ids) == args.all or (choice and not args.all):
        raise Misuse(f"name dead events by ID, or say --all, alone or with {NAMES}")
    _refuse_dry_run_of(args.ids, args)
    with open_client(args) as client:
        if args.dry_run:
            return count_matching(client, "redrive", choice | {"status": "dead"}, as_json=args.json)
        named = args.ids
        result = client.redrive(named, rate=args.rate) if named else client.redrive_all(**choice, rate=args.rate)
    for error in result.errors:
        complain("redrive", f"{error.id}: {error.detail}")
    if args.json:
        print_json(result)
    elif result.redriven or not result.errors:
        print(f"redrove {events(result.redriven)}")
    return FAILED if result.errors else OK


@command(
    "unblock",
    "drop the event that a key waits for",
    "Cancel the event that the others of a key wait for.",
    _UNBLOCK_NOTES,
    argument("key", metavar="KEY", help="the ordering key"),
    argument("--look", action="store_true", help="only show the head of the key"),
    add_server_options,
)
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


@command(
    "deliver",
    "ring an event now",
    "Ring an event now, or only try it.",
    _DELIVER_NOTES,
    argument("id", metavar="ID", help="which event"),
    argument("--dry-run", action="store_true", help="make one attempt, and show its outcome"),
    add_server_options,
)
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
    print_result(event, f"{harmless(event.id)} rings now", as_json=args.json)
    return OK
