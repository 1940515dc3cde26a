"""`everbell tenants`: list tenants, and show, set and delete their policies."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import OK, Misuse, argument, command
from everbell.cli.printing import print_json, print_list
from everbell.cli.terminal import Paint, Table, harmless
from everbell.client.answers import PolicyView, TenantLine

_NOTES = """\
examples:
  everbell tenants list
  everbell tenants show shop
  everbell tenants set shop policy.toml               all fields that the file leaves out follow the settings
  everbell tenants set shop policy.json --version 17  only if it is still version 17
  everbell tenants delete shop                        the server's settings apply again

A policy is a file in TOML or JSON with the fields of a [tenants.NAME] table of the settings:
  timeout = "5s"
  retry = { max_attempts = 20 }
  limits = { rate = 500 }
It applies within a moment, on every node, also to events that are scheduled already."""


@command(
    "tenants",
    "list tenants, show and set their policies",
    "Look after tenants.",
    _NOTES,
    argument(
        "action",
        metavar="ACTION",
        nargs="?",
        default="list",
        choices=("list", "show", "set", "delete"),
        help="list (the default), show, set or delete",
    ),
    argument("name", metavar="NAME", nargs="?", help="which tenant; else the one of --tenant"),
    argument("file", metavar="FILE", nargs="?", help="its policy, in TOML or JSON"),
    argument("--version", metavar="N", type=int, help="only if its policy has this version"),
    add_server_options,
)
def _tenants(args: argparse.Namespace) -> int:
    if (args.file is not None) != (args.action == "set"):
        raise Misuse("set needs NAME and FILE" if args.file is None else f"{args.action} takes no FILE")
    if args.action == "list":
        return _list(args)
    args.tenant = args.name or args.tenant
    with open_client(args) as client:
        if args.action == "set":
            seen = client.set_policy(_read(args.file), version=args.version)
        elif args.action == "delete":
            seen = client.delete_policy(version=args.version)
        else:
            seen = client.policy()
    return _show(args, seen)


def _list(args: argparse.Namespace) -> int:
    if args.name is not None:
        raise Misuse("list takes no NAME")
    with open_client(args) as client:
        tenants = client.tenants()
    print_list(tenants, ("TENANT", "VERSION", "PENDING", "DEAD", "PAUSED"), _row, as_json=args.json)
    return OK


def _row(line: TenantLine) -> tuple[str, ...]:
    return line.name, str(line.version or ""), str(line.pending), str(line.dead), str(line.pauses or "")


def _show(args: argparse.Namespace, seen: PolicyView) -> int:
    if args.json:
        print_json(seen)
        return OK
    rows = [
        (name, harmless(json.dumps(value, ensure_ascii=False), 200), seen.sources.get(name, ""))
        for name, value in seen.policy.items()
    ]
    print(f"{seen.name}, version {seen.version}" if seen.version else f"{seen.name}, by the server's settings")
    Table(("FIELD", "VALUE", "FROM"), Paint()).print(rows)
    for paused in seen.pauses:
        print(harmless(f"paused: {paused.what} {paused.name or ''}".rstrip(), 200))
    return OK


def _read(file: str) -> dict[str, Any]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise Misuse(f"{file} cannot be read: {wrong}") from None
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except ValueError as wrong:
        raise Misuse(f"{file} is neither TOML nor JSON: {wrong}") from None
    if not isinstance(document, dict):
        raise Misuse(f"{file} is not a table of fields")
    return document
