"""File descriptors: the limit of the process, and what each part of it may use.

A store that cannot open its log ends the process. So connections never take the descriptors that the store needs: all
caps follow from the limit. The embedded store uses at most a quarter of the limit (`stores.rocksdb.access`).
"""

from __future__ import annotations

import resource
from typing import NamedTuple

_WANTED = 1 << 20
# Log files, standard streams, pipes to gateways, and connections to other nodes and to databases.
_OTHERS = 128
_STORE_PART = 4
_INBOUND_MAX = 10_000
_TURNED_AWAY_MAX = 256
_OUTBOUND_MAX = 16_384
_LEAST = 16


class FileShares(NamedTuple):
    """The number of sockets for each purpose."""

    inbound: int
    turned_away: int
    """For connections over the cap, which are answered before they are closed."""
    outbound: int


def raise_file_limit() -> int:
    """Raise the soft limit as far as the process may. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _WANTED if hard == unlimited else min(hard, _WANTED)
    if soft == unlimited or soft >= wanted:
        return _WANTED if soft == unlimited else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # Some systems allow less than the hard limit that they report.
        return soft
    return wanted


def node_shares(limit: int) -> FileShares:
    """The shares of a node, whose process also has the store and delivers."""
    sockets = max(limit - limit // _STORE_PART - _OTHERS, 2 * _LEAST)
    return FileShares(*_inbound(sockets // 2), min(sockets // 2, _OUTBOUND_MAX))


def gateway_shares(limit: int) -> FileShares:
    """The shares of a gateway, which only accepts connections."""
    return FileShares(*_inbound(max(limit - _OTHERS, _LEAST)), 0)


def _inbound(sockets: int) -> tuple[int, int]:
    turned_away = max(min(sockets // 9, _TURNED_AWAY_MAX), 1)
    return min(sockets - turned_away, _INBOUND_MAX), turned_away
