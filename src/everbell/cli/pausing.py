"""`everbell pause`, `resume` and `pauses`: hold up a recurring event, a tenant, a key, a target or a queue."""

from __future__ import annotations

import argparse

from everbell.cli.options import add_server_options, duration, instant, open_client
from everbell.cli.parser import OK, TIMES, Misuse, argument, command, one_of
from everbell.cli.printing import due_text, print_json, print_list, print_result
from everbell.cli.reporting import note
from everbell.cli.terminal import harmless
from everbell.cli.timestamps import exact, relative
from everbell.client.answers import Paused
from everbell.clock import SystemClock
from everbell.core.pause import What

_NOTES = f"""\
examples:
  everbell pause --target https://shop.example --note "moving the database" --for 2h
  everbell pause --queue mail                    workers get no events
  everbell pause --key order-17                  in order afterwards, as before
  everbell pause --whole-tenant --tenant shop    everything of one tenant
  everbell pauses                                all pauses, each with its time, access key and reason
  everbell resume --queue mail
  everbell pause weekly-report --note "until the numbers are right"     a recurring event

Events are accepted during a pause; nothing is lost and no attempt is used up. Attempts in flight may end.
After it, overdue events are delivered, the oldest first. Events expire meanwhile. A host is paused with all its URLs.
A paused recurring event is not delivered; its misfire policy decides about the occurrences that it missed.

{TIMES}"""

_LIST_NOTES = """\
examples:
  everbell pauses
  everbell pauses --tenant shop --json
  everbell list --status paused                  recurring events that are paused one by one"""


def _thing(args: argparse.Namespace) -> tuple[What, str | None] | None:
    """The object of the pause; None for a recurring event."""
    things: tuple[tuple[What, str | None], ...] = (("key", args.key), ("target", args.target), ("queue", args.queue))
    found = next((thing for thing in things if thing[1] is not None), None)
    if (found is not None or args.whole_tenant) == (args.id is not None):
        raise Misuse("give the ID of a recurring event, or one of --key, --target, --queue and --whole-tenant")
    return ("tenant", None) if args.whole_tenant else found


_THINGS = (
    argument("id", metavar="ID", nargs="?", help="of a recurring event"),
    one_of(
        argument("--key", metavar="KEY", help="or all events of a key"),
        argument("--target", metavar="URL", help="or all that goes to a host, as in https://shop.example"),
        argument("--queue", metavar="NAME", help="or all that workers would get from a queue"),
        argument("--whole-tenant", action="store_true", help="or everything of the tenant"),
    ),
)


@command(
    "pause",
    "hold back events",
    "Pause a tenant, key, target, queue or event.",
    _NOTES,
    *_THINGS,
    argument("--note", metavar="TEXT", help="why"),
    one_of(
        argument("--until", metavar="TIME", type=instant, help="it goes on then by itself"),
        argument("--for", dest="for_", metavar="DURATION", type=duration, help="or after this long, as in 2h"),
    ),
    add_server_options,
)
def _pause(args: argparse.Namespace) -> int:
    thing = _thing(args)
    if thing is None:
        return _pause_event(args)
    with open_client(args) as client:
        paused = client.add_pause(*thing, note=args.note, until=args.until, for_=args.for_)
    if args.json:
        print_json(paused)
    else:
        end = "" if paused.until is None else f" until {exact(paused.until)}"
        print(f"{_label(paused)} is paused{end}; everbell resume {_option(paused)} lets it go on")
        if paused.unheard:
            note(f"{harmless(', '.join(paused.unheard))} gave no answer, and may start attempts for a moment")
    return OK


def _pause_event(args: argparse.Namespace) -> int:
    if args.until is not None or args.for_ is not None:
        raise Misuse("a recurring event is paused until it is resumed: leave out --until and --for")
    with open_client(args) as client:
        event = client.pause(args.id, note=args.note)
    print_result(
        event,
        f"{harmless(event.id)} is paused; everbell resume {harmless(event.id)} lets it ring again",
        as_json=args.json,
    )
    return OK


@command(
    "resume",
    "end a pause",
    "Resume a tenant, key, target, queue or event.",
    _NOTES,
    *_THINGS,
    argument("--note", metavar="TEXT", help="why; of a recurring event"),
    add_server_options,
)
def _resume(args: argparse.Namespace) -> int:
    thing = _thing(args)
    if thing is None:
        return _resume_event(args)
    if args.note is not None:
        raise Misuse("--note goes with a recurring event")
    with open_client(args) as client:
        ended = client.end_pause(*thing)
        others = client.pauses()
    if args.json:
        print_json(ended)
        return OK
    print(f"{_label(ended)} goes on")
    if others:
        note(f"still paused: {', '.join(_label(other) for other in others)}")
    return OK


def _resume_event(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        event = client.resume(args.id, note=args.note)
    print_result(event, due_text(event.id, event.at), as_json=args.json)
    return OK


@command(
    "pauses",
    "list pauses",
    "List the pauses of a tenant.",
    _LIST_NOTES,
    add_server_options,
)
def _pauses(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        pauses = client.pauses()
    now = SystemClock().now()
    if args.json or pauses:
        headings = ("WHAT", "NAME", "SINCE", "UNTIL", "BY", "NOTE")
        print_list(pauses, headings, lambda paused: _row(paused, now), as_json=args.json)
    else:
        note(f"nothing of tenant {args.tenant} is paused")
    return OK


def _row(paused: Paused, now: int) -> tuple[str, ...]:
    until = "" if paused.until is None else relative(paused.until, now)
    name, why = harmless(paused.name or "", 64), harmless(paused.note or "", 60)
    return paused.what, name, relative(paused.since, now), until, paused.by, why


def _label(paused: Paused) -> str:
    return f"{paused.what} {harmless(paused.name, 64)}" if paused.name else "the tenant"


def _option(paused: Paused) -> str:
    return f"--{paused.what} {harmless(paused.name)}" if paused.name else "--whole-tenant"
