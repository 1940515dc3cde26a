"""`everbell blocked` and `everbell dead`: keys and events that wait for a decision."""

from __future__ import annotations

import argparse

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import OK, command
from everbell.cli.printing import print_json
from everbell.cli.reporting import note
from everbell.cli.selection import add_selection_options, chosen
from everbell.cli.terminal import Paint, Table, harmless
from everbell.client.answers import OrderingKeyLine

_KEYS_MAX = 1_000

_BLOCKED_NOTES = """\
examples:
  everbell blocked                               keys with the event that each waits for, and how many events wait
  everbell blocked --json | jq -r '.keys[].key'

A key is blocked while its head is retried, paused or dead. `everbell unblock KEY` cancels the head."""

_DEAD_NOTES = """\
examples:
  everbell dead                                  how many died, of which target and for which reason
  everbell dead --tag checkout
  everbell redrive --all --target https://shop.example:443 --rate 50

Options of redrive and discard choose a group: --target and --reason take the text that is printed here; --json has it
in full."""


@command(
    "blocked",
    "list blocked keys",
    "List the ordering keys that are blocked by their head.",
    _BLOCKED_NOTES,
    add_server_options,
)
def _blocked(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        found = client.blocked_keys(limit=_KEYS_MAX)
    if args.json:
        print_json(found)
        return OK
    if not found.keys:
        note("no key is blocked")
    Table(("KEY", "HEAD", "STATUS", "WAITING", "REASON"), Paint()).print([_key_row(line) for line in found.keys])
    if found.more:
        note(f"there are more: these are the first {len(found.keys):,}")
    if found.unheard:
        note(f"no answer from {', '.join(map(harmless, found.unheard))}: keys may be missing")
    return OK


@command(
    "dead",
    "group dead events",
    "Group dead events by target and reason, the largest group first.",
    _DEAD_NOTES,
    add_selection_options,
    add_server_options,
)
def _dead(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        found = client.dead_groups(**chosen(args))
    if args.json:
        print_json(found)
        return OK
    if not found.groups:
        note("no event is dead")
    rows = [
        (f"{group.count:,}", harmless(group.target, 40), harmless(group.reason, 60), harmless(group.example, 40))
        for group in found.groups
    ]
    Table(("EVENTS", "TARGET", "REASON", "FOR EXAMPLE"), Paint()).print(rows)
    if found.more:
        note(f"there are more: these groups are of the oldest {found.counted:,} dead events")
    return OK


def _key_row(line: OrderingKeyLine) -> tuple[str, ...]:
    head = line.head
    waiting = f"{line.waiting:,}{'+' if line.more else ''}"
    if head is None:
        return (harmless(line.key, 40), "", "", waiting, "")
    return (harmless(line.key, 40), harmless(head.id, 40), head.status, waiting, harmless(head.reason or "", 60))
