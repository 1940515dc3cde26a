"""`everbell keys`: list, make and revoke access keys."""

from __future__ import annotations

import argparse

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import OK, Misuse, argument, command
from everbell.cli.printing import print_list, print_result
from everbell.cli.terminal import harmless
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
A key is printed once. If it is lost, create another and revoke the lost one; that applies at once, everywhere."""


@command(
    "keys",
    "list, make and revoke access keys",
    "Manage access keys.",
    _NOTES,
    argument("action", metavar="ACTION", choices=("list", "create", "revoke"), help="list, create or revoke"),
    argument("id", metavar="ID", nargs="?", help="which key to revoke"),
    argument(
        "--scope",
        metavar="SCOPE,…",
        default="schedule,read",
        help=f"the scopes of a new key, of {', '.join(SCOPES)} (schedule,read)",
    ),
    argument("--all-tenants", action="store_true", help="for all tenants, not only --tenant"),
    argument("--note", metavar="TEXT", default="", help="a note, such as the owner of the key"),
    add_server_options,
)
def _keys(args: argparse.Namespace) -> int:
    if (args.id is not None) != (args.action == "revoke"):
        raise Misuse(
            "revoke needs the ID of a key, which list shows" if args.id is None else f"{args.action} takes no ID"
        )
    return {"list": _list, "create": _create, "revoke": _revoke}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        keys = client.keys()
    print_list(keys, ("ID", "TENANT", "SCOPES", "CREATED", "REVOKED", "NOTE"), _row, as_json=args.json)
    return OK


def _row(key: KeyView) -> tuple[str, ...]:
    revoked = "" if key.revoked_at is None else f"{key.revoked_at:%Y-%m-%d %H:%M}"
    scopes = ",".join(key.scopes)
    return key.id, key.tenant, scopes, f"{key.created_at:%Y-%m-%d %H:%M}", revoked, harmless(key.note, 60)


def _create(args: argparse.Namespace) -> int:
    scopes = [scope.strip() for scope in args.scope.split(",") if scope.strip()]
    with open_client(args) as client:
        made = client.create_key(scopes, all_tenants=args.all_tenants, note=args.note)
    print_result(made, made.key, as_json=args.json)
    return OK


def _revoke(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        revoked = client.revoke_key(args.id)
    print_result(revoked, f"revoked {revoked.id}", as_json=args.json)
    return OK
