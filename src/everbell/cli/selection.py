"""Options that choose events: by key, tag, target, id, due time and reason."""

from __future__ import annotations

import argparse
from typing import Any

from everbell.cli.options import instant
from everbell.cli.parser import Parser, argument

NAMES = "--key, --tag, --to, --id-prefix, --from, --until, --target or --reason"


add_dry_run_option = argument(
    "--dry-run", action="store_true", help="only count the events that match, and change none"
)


def add_selection_options(parser: Parser) -> None:
    """`--key`, `--tag`, `--to`, `--id-prefix`, `--from`, `--until`, `--target` and `--reason`."""
    group = parser.add_argument_group("which events")
    group.add_argument("--key", help="events of this key")
    group.add_argument("--tag", help="events with this tag")
    group.add_argument("--to", metavar="TARGET", help="the beginning of the target: queue:mail, https://shop.example/")
    group.add_argument("--id-prefix", metavar="TEXT", help="the beginning of the id")
    group.add_argument("--from", dest="from_", metavar="TIME", type=instant, help="due at this time or later")
    group.add_argument("--until", metavar="TIME", type=instant, help="due at this time or earlier")
    group.add_argument("--target", help="events of this receiver, as everbell targets names it")
    group.add_argument("--reason", metavar="TEXT", help="events that are dead for exactly this reason")


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """The given options, under the names of the client's arguments."""
    names = ("key", "tag", "to", "id_prefix", "from_", "until", "target", "reason")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
