"""`everbell keys`: list, make and revoke access keys."""

from __future__ import annotations

import argparse

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import OK, Misuse, Parser, add_command
from everbell.cli.printing import print_json
from everbell.cli.terminal import Paint, Table, harmless
from everbell.client.answers import KeyView
from everbell.core.access import SCOPES

_NOTES = """\
examples:
  everbell keys create --all-tenants --scope admin --note "ops"      an operator's key, the first to make
  everbell keys create --tenant shop --note "order service"          to schedule and read in one tenant
  everbell keys create --tenant shop --scope work --note "mailers"   for workers
  everbell keys list
  everbell keys revoke n4wy6ylcmfrgg33

Scopes: read looks at events; schedule makes, changes and cancels them; work takes them from
queues; admin may do all of that, and with --all-tenants everything there is.
From the first key on, a server wants one for every request: set EVERBELL_TOKEN.
A key is printed once. Who loses it makes another and revokes it; that counts at once, everywhere."""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    parser = add_command(commands, "keys", "list, make and revoke access keys", "Say who may do what.", _NOTES, _keys)
    parser.add_argument("action", metavar="ACTION", choices=("list", "create", "revoke"), help="list, create or revoke")
    parser.add_argument("id", metavar="ID", nargs="?", help="which key to revoke")
    parser.add_argument(
        "--scope",
        metavar="SCOPE,…",
        default="schedule,read",
        help=f"what a new key opens, of {', '.join(SCOPES)} (schedule,read)",
    )
    parser.add_argument("--all-tenants", action="store_true", help="for all tenants, not only --tenant")
    parser.add_argument("--note", metavar="TEXT", default="", help="who gets the new key")
    add_server_options(parser)


def _keys(args: argparse.Namespace) -> int:
    if (args.id is not None) != (args.action == "revoke"):
        raise Misuse(
            "revoke needs the ID of a key, which list shows" if args.id is None else f"{args.action} takes no ID"
        )
    return {"list": _list, "create": _create, "revoke": _revoke}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        keys = client.keys()
    if args.json:
        for key in keys:
            print_json(key)
    else:
        Table(("ID", "TENANT", "SCOPES", "CREATED", "REVOKED", "NOTE"), Paint()).print([_row(key) for key in keys])
    return OK


def _row(key: KeyView) -> tuple[str, ...]:
    revoked = "" if key.revoked_at is None else f"{key.revoked_at:%Y-%m-%d %H:%M}"
    scopes = ",".join(key.scopes)
    return key.id, key.tenant, scopes, f"{key.created_at:%Y-%m-%d %H:%M}", revoked, harmless(key.note, 60)


def _create(args: argparse.Namespace) -> int:
    scopes = [scope.strip() for scope in args.scope.split(",") if scope.strip()]
    with open_client(args) as client:
        made = client.create_key(scopes, all_tenants=args.all_tenants, note=args.note)
    if args.json:
        print_json(made)
    else:
        print(made.key)
    return OK


def _revoke(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        revoked = client.revoke_key(args.id)
    if args.json:
        print_json(revoked)
    else:
        print(f"revoked {revoked.id}")
    return OK
