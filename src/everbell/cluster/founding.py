"""The first node founds the cluster; every node checks that log and store belong together."""

from __future__ import annotations

from base64 import urlsafe_b64encode

from everbell.clock import Clock
from everbell.cluster.player import Player
from everbell.core.cluster import FoundCluster, encode_command
from everbell.core.time import format_duration
from everbell.entropy import Entropy
from everbell.errors import ClusterError
from everbell.logs.port import Log
from everbell.stores.port import Store

CLOCK_OFF_MS_MAX = 60_000
"""How far a node's clock may be from the log's. Seconds only shift due times; minutes are a mistake."""


async def find_or_found(log: Log, clock: Clock, player: Player, store: Store, entropy: Entropy) -> int:
    """Play the log to its end, and found the cluster if there is none yet.

    Returns the difference between the store's epochs and the log's. Raises `ClusterError`, `LogError`, `StoreError`.
    """
    _check_clock(await log.now(), clock.now())
    await player.catch_up()
    while not player.value.cluster:
        # Several nodes may do this at once: the first entry counts, all nodes ignore the others.
        await log.append(encode_command(FoundCluster(token(entropy), store.partitions)))
        await player.catch_up()
    if len(player.value.partitions) != store.partitions:
        raise ClusterError(
            f"the cluster has {len(player.value.partitions)} partitions and the store {store.partitions}: they do not"
            " belong together; check --store and --log"
        )
    return await store.claim(player.value.cluster)


def _check_clock(there: int | None, here: int) -> None:
    if there is not None and abs(there - here) > CLOCK_OFF_MS_MAX:
        way = "ahead of" if here > there else "behind"
        raise ClusterError(
            f"this machine's clock is {format_duration(abs(here - there))} {way} the clock where the log is kept:"
            " events would ring at the wrong time; set it right, for example with NTP"
        )


def token(entropy: Entropy) -> str:
    """A random name that cannot be guessed."""
    return urlsafe_b64encode(entropy.nonce() + entropy.nonce()).decode().rstrip("=")
