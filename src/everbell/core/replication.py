"""How many nodes hold an event in memory, and when their answers are enough: the settings of `durability: replicas`."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from everbell.core.time import HOUR_MS, Duration, format_duration, parse_duration
from everbell.errors import InvalidInput

REPLICAS_MAX = 7

Ack = Literal["one", "majority", "all"]
ACKS: tuple[Ack, ...] = get_args(Ack)
Durability = Literal["store", "replicas"]
DURABILITIES: tuple[Durability, ...] = get_args(Durability)


class Replication(Struct, frozen=True, array_like=True, gc=False):
    """The replicas of one event. The order of fields is a stored format, as in `Event`."""

    count: int = 3
    skew_ms: int = 2_000
    """How much longer each replica waits than the replica before it."""
    ack: Ack = "majority"

    def needed(self, held_by: int) -> int:
        """How many of the nodes that shall hold an event must confirm it before it is acknowledged."""
        if self.ack == "one":
            return 1
        # The majority of the replicas asked for. A cluster with fewer members cannot hold as many.
        return held_by if self.ack == "all" else min(self.count // 2 + 1, held_by)


class ReplicasSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The replicas of an event as a user writes them."""

    count: Annotated[int, Meta(description=f"1 to {REPLICAS_MAX} nodes that hold the event")] = 3
    skew: Annotated[Duration, Meta(description="how much longer each next replica waits")] = "2s"
    ack: Annotated[str, Meta(description="how many must hold it: one, majority or all")] = "majority"


def replication_of(spec: ReplicasSpec) -> Replication:
    """Check the settings of replicas. Raises `InvalidInput` naming the field."""
    if not 1 <= spec.count <= REPLICAS_MAX:
        raise InvalidInput(f"an event has 1 to {REPLICAS_MAX} replicas", "replicas.count")
    skew_ms = parse_duration(spec.skew, "replicas.skew")
    if not 0 < skew_ms <= HOUR_MS:
        raise InvalidInput("must be longer than nothing, and one hour at most", "replicas.skew")
    for ack in ACKS:
        if spec.ack == ack:
            return Replication(spec.count, skew_ms, ack)
    raise InvalidInput(f"is one of {', '.join(ACKS)}", "replicas.ack")


def chosen_replication(
    durability: str, spec: ReplicasSpec | None, usual: Replication, key: str | None
) -> Replication | None:
    """The replicas of an event; None if it goes to the store. Raises `InvalidInput` naming the field."""
    if durability not in DURABILITIES:
        raise InvalidInput(f"is one of {', '.join(DURABILITIES)}", "durability")
    if durability == "replicas":
        if key is not None:
            raise InvalidInput("needs durability store: the order of a key needs one owner, replicas have none", "key")
        return usual if spec is None else replication_of(spec)
    if spec is not None:
        raise InvalidInput("goes with durability replicas", "replicas")
    return None


def spec_of(replication: Replication) -> ReplicasSpec:
    """The settings as people would write them."""
    return ReplicasSpec(replication.count, format_duration(replication.skew_ms), replication.ack)
