"""`everbell kill`, `lift` and `kills`: end everything with a tag, a key or a target, or everything of a tenant."""

from __future__ import annotations

import argparse

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import OK, Misuse, argument, command, one_of
from everbell.cli.printing import print_json, print_list
from everbell.cli.reporting import note
from everbell.cli.terminal import harmless
from everbell.cli.timestamps import relative
from everbell.client.answers import Killed
from everbell.clock import SystemClock
from everbell.core.kill import KillKind

_NOTES = """\
examples:
  everbell kill --tag nightly --note "wrong prices"
  everbell kill --key order-17
  everbell kill --target https://shop.example/remind
  everbell kill --whole-tenant --tenant shop
  everbell kills                                 all kills, each with the number of events that it ended
  everbell lift --tag nightly

All events end as cancelled, recurring and dead ones too, and so do those that arrive until the kill is lifted.
Lifting it does not bring them back."""

_LIST_NOTES = """\
examples:
  everbell kills
  everbell kills --tenant shop --json"""

_THINGS = (
    one_of(
        argument("--tag", metavar="TAG", help="all events with a tag"),
        argument("--key", metavar="KEY", help="or all events of a key"),
        argument("--target", metavar="URL", help="or all that goes to a URL, a host, a topic or a queue"),
        argument("--whole-tenant", action="store_true", help="or everything of the tenant"),
    ),
)


def _thing(args: argparse.Namespace) -> tuple[KillKind, str | None]:
    things: tuple[tuple[KillKind, str | None], ...] = (("tag", args.tag), ("key", args.key), ("target", args.target))
    found = next((thing for thing in things if thing[1] is not None), None)
    if found is None and not args.whole_tenant:
        raise Misuse("give one of --tag, --key, --target and --whole-tenant")
    return found or ("tenant", None)


@command(
    "kill",
    "end all events of a job",
    "End everything with a tag, key or target.",
    _NOTES,
    *_THINGS,
    argument("--note", metavar="TEXT", help="why"),
    add_server_options,
)
def _kill(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        killed = client.kill(*_thing(args), note=args.note)
    if args.json:
        print_json(killed)
    else:
        print(f"{_label(killed)} is killed; everbell lift {_option(killed)} accepts new events again")
        if killed.unheard:
            note(f"{harmless(', '.join(killed.unheard))} gave no answer, and may start attempts for a moment")
    return OK


@command("lift", "end a kill", "Lift a kill.", _NOTES, *_THINGS, add_server_options)
def _lift(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        lifted = client.lift(*_thing(args))
    if args.json:
        print_json(lifted)
    else:
        print(f"the kill of {_label(lifted)} is lifted; it ended {lifted.ended} events")
    return OK


@command("kills", "list kills", "List the kills of a tenant.", _LIST_NOTES, add_server_options)
def _kills(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        kills = client.kills()
    now = SystemClock().now()
    if args.json or kills:
        headings = ("WHAT", "NAME", "SINCE", "ENDED", "BY", "NOTE")
        print_list(kills, headings, lambda killed: _row(killed, now), as_json=args.json)
    else:
        note(f"nothing of tenant {args.tenant} is killed")
    return OK


def _row(killed: Killed, now: int) -> tuple[str, ...]:
    ended = f"{killed.ended}{' so far' if killed.searching else ''}"
    name, why = harmless(killed.name or "", 64), harmless(killed.note or "", 60)
    return killed.what, name, relative(killed.since, now), ended, killed.by, why


def _label(killed: Killed) -> str:
    return f"{killed.what} {harmless(killed.name, 64)}" if killed.name else "the tenant"


def _option(killed: Killed) -> str:
    return f"--{killed.what} {harmless(killed.name)}" if killed.name else "--whole-tenant"
