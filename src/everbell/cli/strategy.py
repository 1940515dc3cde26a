"""`everbell strategy`: how the partitions are shared out, changed while the cluster runs."""

from __future__ import annotations

import argparse

from everbell.cli.options import add_server_options, checked, open_client
from everbell.cli.parser import OK, Misuse, argument, command
from everbell.cli.printing import print_json
from everbell.cli.status import print_members
from everbell.cli.terminal import Paint
from everbell.core.cluster import Balanced, Group, Percentage, Strategy, Weighted
from everbell.errors import InvalidInput

_NOTES = """\
examples:
  everbell strategy                              how they are shared out now
  everbell strategy balanced                     every node gets the same number
  everbell strategy weighted                     by --capacity, which is the default
  everbell strategy weighted n1=3 n2=1           n1 gets three times as many as n2; overrides --capacity
  everbell strategy percentage eu:30:0:64:shop,bank
                                                 a group: name, percent of the nodes, first partition, how many,
                                                 and the tenants with events there

No more partitions move than must. The slice of a group may only be changed while its tenants have no events."""


@command(
    "strategy",
    "share out the partitions",
    "Show or change how partitions are shared.",
    _NOTES,
    argument(
        "strategy",
        nargs="?",
        choices=("balanced", "weighted", "percentage"),
        metavar="STRATEGY",
        help="balanced, weighted or percentage; without it, the current one is shown",
    ),
    argument("details", nargs="*", metavar="DETAIL", help="weights (NODE=N) or groups"),
    add_server_options,
)
def _run(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        view = client.cluster() if args.strategy is None else client.set_strategy(_strategy(args))
    if args.json:
        print_json(view)
        return OK
    print(_words(view.strategy))
    print_members(view, Paint())
    return OK


def _strategy(args: argparse.Namespace) -> Strategy:
    try:
        if args.strategy == "weighted":
            return Weighted(dict(map(_weight, args.details)))
        if args.strategy == "percentage":
            return Percentage(tuple(map(_group, args.details)))
    except argparse.ArgumentTypeError as wrong:
        raise Misuse(str(wrong)) from None
    if args.details:
        raise Misuse("balanced needs no details")
    return Balanced()


@checked
def _weight(text: str) -> tuple[str, int]:
    name, equals, weight = text.rpartition("=")
    if not equals or not name or not weight.isdecimal():
        raise InvalidInput(f"{text!r} is not a weight such as n1=3")
    return name, int(weight)


@checked
def _group(text: str) -> Group:
    parts = text.split(":")
    if len(parts) != 5 or not all(part.isdecimal() for part in parts[1:4]):
        raise InvalidInput(f"{text!r} is not a group such as eu:30:0:64:shop,bank")
    name, percent, first, count, tenants = parts
    return Group(name, int(percent), int(first), int(count), tuple(filter(None, tenants.split(","))))


def _words(strategy: Strategy) -> str:
    match strategy:
        case Balanced():
            return "balanced: every node the same"
        case Weighted(weights) if weights:
            return "weighted: " + ", ".join(f"{name}={weight}" for name, weight in weights.items())
        case Weighted():
            return "weighted: by capacity"
        case Percentage(groups):
            return "percentage: " + "; ".join(
                f"{group.name} {group.percent}% of the nodes, {group.count} partitions from {group.first} on, for"
                f" {', '.join(group.tenants) or 'no tenant'}"
                for group in groups
            )
