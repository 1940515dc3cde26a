"""The address of a store or log in Cassandra: what its URL says, and how to show it without giving away a password.

    cassandra://user:password@host:9042,host:9042/keyspace?datacenter=dc1&replication=dc1:3,dc2:3&store=everbell

- `datacenter` is the one that this node talks to; none means that there is only one.
- `replication` counts when the keyspace is made, and never after that: it is how many copies each datacentre has.
- `store` tells several stores in one keyspace apart.
- `serial` is where the fence and the log are agreed on: `SERIAL` by a majority of all replicas, in all datacentres;
  `LOCAL_SERIAL` by one of this datacentre, for clusters whose nodes are all in one.
- `shard_events` is how many events lie under one key of Cassandra.
- `tls=on` speaks TLS with whoever answers, `ca=FILE` only with servers whose certificates were signed by these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from everbell.errors import StoreUnusable

PORT = 9042
SHARD_EVENTS = 1_000

_EXAMPLE = "cassandra://user:password@host:9042/keyspace?datacenter=dc1"
_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?")
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_STORE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_COPIES = re.compile(r"([A-Za-z0-9_.-]{1,64}):([1-9][0-9]?)")
_OPTIONS = frozenset({"datacenter", "replication", "store", "serial", "shard_events", "tls", "ca"})


@dataclass(frozen=True)
class Address:
    """Where it is. `password` is never shown; `name` is what to show."""

    hosts: tuple[str, ...]
    port: int
    keyspace: str
    store: str = "everbell"
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    datacenter: str = ""
    replication: Mapping[str, int] = field(default_factory=dict)
    is_local: bool = False
    """Whether what must be agreed on is agreed on in this datacentre alone."""
    shard_events: int = SHARD_EVENTS
    tls: bool = False
    ca: str = ""

    @property
    def name(self) -> str:
        """What to show of it."""
        return f"Cassandra at {','.join(self.hosts)}:{self.port}, keyspace {self.keyspace}"


def read_address(url: str) -> Address:
    """Raises `StoreUnusable`, and does not repeat the URL: it may have a password in it."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        # The original error would quote parts of the URL.
        raise StoreUnusable(f"the URL of Cassandra cannot be read: write it like {_EXAMPLE}") from None
    login, _, place = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    hosts, port = _hosts(place)
    keyspace = parts.path.strip("/")
    if not _KEYSPACE.fullmatch(keyspace):
        # A password with a / in it ends up here, so what was found is not repeated.
        raise StoreUnusable(
            f"the URL of Cassandra names no keyspace of small letters, digits and _: write it like {_EXAMPLE}"
        )
    if unknown := sorted(set(options) - _OPTIONS):
        raise StoreUnusable(
            f"the URL of Cassandra has the option {unknown[0][:40]!r}: there are {', '.join(sorted(_OPTIONS))}"
        )
    return Address(
        hosts,
        port,
        keyspace,
        _store(options.get("store", "everbell")),
        unquote(user),
        unquote(password),
        options.get("datacenter", ""),
        _replication(options.get("replication", "")),
        _is_local(options.get("serial", "SERIAL")),
        _shard_events(options.get("shard_events", str(SHARD_EVENTS))),
        options.get("tls", "off") == "on" or "ca" in options,
        options.get("ca", ""),
    )


def _hosts(place: str) -> tuple[tuple[str, ...], int]:
    found = [_HOST.fullmatch(host) for host in place.split(",")]
    if not all(found):
        raise StoreUnusable(f"the URL of Cassandra has no host, or one that cannot be read: write it like {_EXAMPLE}")
    ports = {int(match[2]) if match[2] else PORT for match in found if match}
    if len(ports) > 1 or not 0 < min(ports) < 1 << 16:
        raise StoreUnusable("all nodes of Cassandra are reached at one port: give each host the same")
    return tuple(match[1].strip("[]") for match in found if match), ports.pop()


def _store(name: str) -> str:
    if not _STORE.fullmatch(name):
        raise StoreUnusable("store= in the URL of Cassandra has 1 to 64 letters, digits, dots, dashes or underscores")
    return name


def _replication(text: str) -> Mapping[str, int]:
    found = [_COPIES.fullmatch(part) for part in text.split(",")] if text else []
    if not all(found):
        raise StoreUnusable("replication= in the URL of Cassandra names datacentres and copies, as in dc1:3,dc2:3")
    return {match[1]: int(match[2]) for match in found if match}


def _is_local(serial: str) -> bool:
    if serial.upper() not in ("SERIAL", "LOCAL_SERIAL"):
        raise StoreUnusable("serial= in the URL of Cassandra is SERIAL or LOCAL_SERIAL")
    return serial.upper() == "LOCAL_SERIAL"


def _shard_events(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise StoreUnusable("shard_events= in the URL of Cassandra is a number from 1 to 100000")
    return int(text)
