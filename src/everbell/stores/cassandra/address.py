"""The address of a store or log in Cassandra.

    cassandra://user:password@host:9042,host:9042/keyspace?datacenter=dc1&replication=dc1:3,dc2:3&store=everbell

- `datacenter`: the datacentre that this node talks to. Not needed if there is only one.
- `replication`: how many copies each datacentre keeps. Only used to create the keyspace.
- `store`: the name of the store, because one keyspace can have several.
- `serial`: which replicas agree on the fence and the log. `SERIAL`: a majority of all replicas in all datacentres.
  `LOCAL_SERIAL`: a majority in this datacentre, for clusters with all nodes in one datacentre.
- `shard_events`: how many events lie under one partition key of Cassandra.
- `tls=on`: TLS without a check of certificates. `ca=FILE`: TLS only with servers that these certificates have signed.
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
_COPIES = r"[A-Za-z0-9_.-]{1,64}:[1-9][0-9]?"
# By option: the pattern of its value, and the words of the message about another value.
_RULES = {
    "store": (r"[A-Za-z0-9_.-]{1,64}", "has 1 to 64 letters, digits, dots, dashes or underscores"),
    "replication": (rf"({_COPIES}(,{_COPIES})*)?", "names datacentres and copies, as in dc1:3,dc2:3"),
    "serial": (r"(?i:(LOCAL_)?SERIAL)", "is SERIAL or LOCAL_SERIAL"),
    "shard_events": (r"0*([1-9][0-9]{0,4}|100000)", "is a number from 1 to 100000"),
}
_OPTIONS = frozenset({*_RULES, "datacenter", "tls", "ca"})


@dataclass(frozen=True)
class CassandraAddress:
    """Messages show only the `name`."""

    hosts: tuple[str, ...]
    port: int
    keyspace: str
    store: str = "everbell"
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    datacenter: str = ""
    replication: Mapping[str, int] = field(default_factory=dict)
    is_local: bool = False  # Whether the replicas of this datacentre decide alone (`serial`).
    shard_events: int = SHARD_EVENTS
    tls: bool = False
    ca: str = ""

    @property
    def name(self) -> str:
        return f"Cassandra at {','.join(self.hosts)}:{self.port}, keyspace {self.keyspace}"


def read_address(url: str) -> CassandraAddress:
    """Raises `StoreUnusable`, without the URL in the message: it may contain a password."""
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
        # A password with a / in it ends up here, so the message does not repeat it.
        raise StoreUnusable(
            f"the URL of Cassandra names no keyspace of lower-case letters, digits and _: write it like {_EXAMPLE}"
        )
    if unknown := sorted(set(options) - _OPTIONS):
        raise StoreUnusable(
            f"the URL of Cassandra has the option {unknown[0][:40]!r}: there are {', '.join(sorted(_OPTIONS))}"
        )
    for name, (pattern, rule) in _RULES.items():
        if name in options and not re.fullmatch(pattern, options[name]):
            raise StoreUnusable(f"{name}= in the URL of Cassandra {rule}")
    copies = [part.split(":") for part in options.get("replication", "").split(",") if part]
    return CassandraAddress(
        hosts,
        port,
        keyspace,
        options.get("store", "everbell"),
        unquote(user),
        unquote(password),
        options.get("datacenter", ""),
        {datacenter: int(count) for datacenter, count in copies},
        options.get("serial", "").upper() == "LOCAL_SERIAL",
        int(options.get("shard_events", SHARD_EVENTS)),
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
