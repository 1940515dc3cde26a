"""The address of a log in ZooKeeper: its URL, and a name for messages that contains no password.

    zookeeper://user:password@host:2181,host:2181/path

With a user, only that user can access the nodes (ZooKeeper's digest scheme).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from everbell.errors import LogUnusable

_EXAMPLE = "zookeeper://host:2181,host:2181/everbell"
_URL = re.compile(r"zookeeper://(?:(?P<user>[^@/]*)@)?(?P<hosts>[^@/?#]+)(?P<path>/[^?#]*)?")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]{1,5})?", re.ASCII)
_PATH = re.compile(r"(/[\w-][\w.-]*)*/?", re.ASCII)


@dataclass(frozen=True)
class ZookeeperAddress:
    """The parts of the URL. `user` contains a password, so messages show only `name`."""

    hosts: str
    root: str
    name: str
    user: tuple[str, str] | None = field(repr=False, default=None)


def read_address(url: str) -> ZookeeperAddress:
    """Parse a URL. Raises `LogUnusable` without repeating the URL, which may contain a password."""
    match = _URL.fullmatch(url)
    if match is None or not all(_HOST.fullmatch(host) for host in match["hosts"].split(",")):
        raise LogUnusable(f"the URL of the log cannot be read: write it like {_EXAMPLE}")
    path = match["path"] or ""
    if not _PATH.fullmatch(path):
        raise LogUnusable(f"the path in the URL of the log has to be of letters, digits, - and _: as in {_EXAMPLE}")
    root = path.rstrip("/") or "/everbell"
    return ZookeeperAddress(
        match["hosts"], root, f"ZooKeeper at {match['hosts']}, path {root}", _read_user(match["user"])
    )


def _read_user(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    user, _, password = text.partition(":")
    if not user or not password:
        raise LogUnusable("the URL of the log names a user without a password, or the other way round: give both")
    return unquote(user), unquote(password)
