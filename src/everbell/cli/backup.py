"""`everbell backup`: a copy of a store, made by the server that uses it, or of one that nothing uses at the moment."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from everbell.cli.options import add_server_options, open_client
from everbell.cli.parser import OK, argument, command
from everbell.cli.printing import print_result
from everbell.errors import InvalidInput
from everbell.stores.rocksdb.directory import MARKER
from everbell.stores.rocksdb.store import RocksdbStore

_SCHEME = "rocksdb:"

_NOTES = """\
examples:
  everbell backup                                    made by the running server, in its --backups directory
  everbell backup /backups/monday                    of rocksdb:./everbell-data, while no server runs
  everbell backup --store rocksdb:/var/lib/everbell /backups/monday
  everbell serve --store rocksdb:/backups/monday     a backup is a store like any other

Without DEST the server makes the copy while it goes on; with DEST it has to be stopped first.
On the same file system, files that never change are linked rather than copied: the backup
takes little room and little time. Copy it elsewhere to survive the disk."""


@command(
    "backup",
    "copy a store",
    "Copy a store, while its server runs or while it is stopped.",
    _NOTES,
    argument("destination", metavar="DEST", nargs="?", help="a directory that does not exist yet"),
    argument("--store", metavar="URL", default="rocksdb:./everbell-data", help="the store (rocksdb:./everbell-data)"),
    add_server_options,
)
def _back_up(args: argparse.Namespace) -> int:
    if args.destination is None:
        return _ask_server(args)
    if not args.store.startswith(_SCHEME):
        raise InvalidInput(f"only {_SCHEME}PATH can be copied this way; a database has its own tools", "store")
    path = args.store.removeprefix(_SCHEME)
    # Opening would make a new store where there is none.
    if not (Path(path).expanduser() / MARKER).is_file():
        raise InvalidInput(f"there is no store in {path}", "store")
    asyncio.run(_copy(path, args.destination))
    print_result(
        {"store": args.store, "backup": _SCHEME + args.destination},
        f"copied {args.store} to {args.destination}; use it with --store {_SCHEME}{args.destination}",
        as_json=args.json,
    )
    return OK


def _ask_server(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        path = client.back_up()
    print_result(
        {"backup": _SCHEME + path},
        f"the server copied its store to {path}; use it with --store {_SCHEME}{path}",
        as_json=args.json,
    )
    return OK


async def _copy(path: str, destination: str) -> None:
    store = RocksdbStore(path)
    try:
        await store.backup(destination)
    finally:
        await store.close()
