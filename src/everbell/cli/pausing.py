"""`everbell pause`, `resume` and `pauses`: hold up a recurring event, a tenant, a key, a target or a queue."""

from __future__ import annotations

import argparse

from everbell.cli.moments import exact, relative
from everbell.cli.options import add_server_options, duration, instant, open_client
from everbell.cli.parser import OK, TIMES, Misuse, Parser, add_command
from everbell.cli.printing import print_json
from everbell.cli.reporting import note
from everbell.cli.terminal import Paint, Table, harmless
from everbell.client.answers import Paused
from everbell.clock import SystemClock
from everbell.core.pause import What

_NOTES = f"""\
examples:
  everbell pause --target https://shop.example --note "moving the database" --for 2h
  everbell pause --queue mail                    workers are given nothing
  everbell pause --key order-17                  in order afterwards, as before
  everbell pause --whole-tenant --tenant shop    everything of one tenant
  everbell pauses                                what is paused, since when, by whom and why
  everbell resume --queue mail
  everbell pause weekly-report --note "until the numbers are right"     a recurring event

Events of what is paused are still taken in; nothing is lost and no attempt is used up. What is under way may end.
Resumed, what is overdue goes out, the oldest first. Expiry goes on meanwhile. A host is paused with all its URLs.
A recurring event that is paused rings no more; what passes meanwhile rings then as far as its misfire policy says.

{TIMES}"""

_LIST_NOTES = """\
examples:
  everbell pauses
  everbell pauses --tenant shop --json
  everbell list --status paused                  recurring events that are paused one by one"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands."""
    pause = add_command(
        commands, "pause", "let events wait for now", "Pause a tenant, key, target, queue or event.", _NOTES, _pause
    )
    _add_things(pause)
    pause.add_argument("--note", metavar="TEXT", help="why")
    ends = pause.add_mutually_exclusive_group()
    ends.add_argument("--until", metavar="TIME", type=instant, help="it goes on then by itself")
    ends.add_argument("--for", dest="for_", metavar="DURATION", type=duration, help="or after this long, as in 2h")
    add_server_options(pause)
    resume = add_command(commands, "resume", "let what is paused go on", "Let what is paused go on.", _NOTES, _resume)
    _add_things(resume)
    resume.add_argument("--note", metavar="TEXT", help="why; of a recurring event")
    add_server_options(resume)
    pauses = add_command(
        commands, "pauses", "show what is paused", "Show what of a tenant is paused, and why.", _LIST_NOTES, _pauses
    )
    add_server_options(pauses)


def _add_things(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="of a recurring event")
    things = parser.add_mutually_exclusive_group()
    things.add_argument("--key", metavar="KEY", help="or all events of a key")
    things.add_argument("--target", metavar="URL", help="or all that goes to a host, as in https://shop.example")
    things.add_argument("--queue", metavar="NAME", help="or all that workers would get from a queue")
    things.add_argument("--whole-tenant", action="store_true", help="or everything of the tenant")


def _thing(args: argparse.Namespace) -> tuple[What, str | None] | None:
    """What is meant; None for a recurring event."""
    found: tuple[What, str | None] | None = None
    if args.whole_tenant:
        found = "tenant", None
    elif args.key is not None:
        found = "key", args.key
    elif args.target is not None:
        found = "target", args.target
    elif args.queue is not None:
        found = "queue", args.queue
    if (found is None) == (args.id is None):
        raise Misuse("give the ID of a recurring event, or one of --key, --target, --queue and --whole-tenant")
    return found


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
            note(
                f"{harmless(', '.join(paused.unheard))} could not be asked, and may still start something for a moment"
            )
    return OK


def _pause_event(args: argparse.Namespace) -> int:
    if args.until is not None or args.for_ is not None:
        raise Misuse("a recurring event is paused until it is resumed: leave out --until and --for")
    with open_client(args) as client:
        event = client.pause(args.id, note=args.note)
    if args.json:
        print_json(event)
    else:
        print(f"{harmless(event.id)} is paused; everbell resume {harmless(event.id)} lets it ring again")
    return OK


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
    if args.json:
        print_json(event)
    else:
        print(f"{harmless(event.id)} rings {relative(event.at, SystemClock().now())}, at {exact(event.at)}")
    return OK


def _pauses(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        pauses = client.pauses()
    if args.json:
        for paused in pauses:
            print_json(paused)
    elif pauses:
        now = SystemClock().now()
        Table(("WHAT", "NAME", "SINCE", "UNTIL", "BY", "NOTE"), Paint()).print([_row(each, now) for each in pauses])
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
