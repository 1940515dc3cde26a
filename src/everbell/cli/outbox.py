"""`everbell outbox`: install the functions that schedule inside the transactions of an application."""

from __future__ import annotations

import argparse

from everbell.cli.options import checked
from everbell.cli.parser import OK, Misuse, argument, command
from everbell.outbox.install import install
from everbell.outbox.settings import read_outbox
from everbell.outbox.statements import install_script

_NOTES = """\
examples:
  everbell outbox install postgresql://owner@db/shop --application shop --collector everbell
  everbell outbox sql > migrations/0042_everbell.sql        for your own migrations
  everbell serve --outbox postgresql://everbell@db/shop     collects the events after each commit

It adds everbell.schedule, cancel, reschedule and once to the database. Installing it again changes nothing.
Without roles, only the owner of the schema may call the functions, and collect."""


@command(
    "outbox",
    "schedule inside the transactions of an application",
    "Add functions to a PostgreSQL database that schedule and cancel events inside its transactions.",
    _NOTES,
    argument("action", metavar="ACTION", choices=("install", "sql"), help="install it, or print its SQL"),
    argument("url", metavar="URL", nargs="?", type=checked(read_outbox), help="the database to install it in"),
    argument("--application", metavar="ROLE", help="let this role call the functions"),
    argument("--collector", metavar="ROLE", help="let this role collect, and do nothing else"),
)
def _outbox(args: argparse.Namespace) -> int:
    if (args.url is None) != (args.action == "sql"):
        raise Misuse("install needs the URL of a database" if args.url is None else "sql takes no URL")
    if args.action == "sql":
        print(install_script(args.application, args.collector), end="")
        return OK
    install(args.url, args.application, args.collector)
    print(f"installed in {args.url.name}")
    return OK
