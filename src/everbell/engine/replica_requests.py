"""Requests between the nodes that hold copies of events. Only these nodes ask them, and no owner is needed.

Other nodes may run the previous version: they do not know these requests, say so, and hold no copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from everbell.core.replicas.copies import REPLICA_FORMAT, Copy, Order
from everbell.core.replicas.turns import Busy
from everbell.core.request import Request
from everbell.engine.forecast import Forecast
from everbell.engine.request_routes import A_co
from everbell.engine.seen import Seen
from everbell.stores.port import Counts, Filter

CopyName = tuple[str, str]
"""The tenant and the id of an event."""
HoldResult = Copy | Literal["held", "full"]
"""`held`: the node holds this copy. A copy: it has a later one, or another event has the id. `full`: it has no room."""


class ReplicaRequest(Request[A_co], frozen=True):
    """Asked by one holder of copies of another."""

    for_peers = True


class HoldCopies(ReplicaRequest[Sequence[HoldResult]], frozen=True):
    """Hold these copies, or merge them into those that are held. With `is_new` they are new events of users."""

    tag = "replicas_hold"
    copies: Sequence[Copy]
    is_new: bool
    format: int = REPLICA_FORMAT


class ChangeCopies(ReplicaRequest[Sequence[bool]], frozen=True):
    """Hold these copies, which a user has changed. True: the node holds the copy, and knows the members that the sender
    knows, so it has given no copy to others.
    """

    tag = "replicas_change"
    copies: Sequence[Copy]
    roster: int
    """The digest of the members that the sender knows."""


class ConfirmCopies(ReplicaRequest[Sequence[int]], frozen=True):
    """The sender is about to drop its copies of these events, in these orders. Answered by the indexes of those that
    the receiver holds in this order or a later one. A node that knows other members than the sender confirms nothing:
    it may be about to give its copies to the sender.
    """

    tag = "replicas_confirm"
    names: Sequence[CopyName]
    orders: Sequence[Order]
    roster: int


class DropCopies(ReplicaRequest[None], frozen=True):
    """Drop copies of events that were refused, because too few nodes could hold them. A changed copy stays."""

    tag = "replicas_drop"
    copies: Sequence[Copy]


class NoteBusy(ReplicaRequest[None], frozen=True):
    """The sender attempts these events now."""

    tag = "replicas_busy"
    busy: Sequence[Busy]


class Beacon(ReplicaRequest[None], frozen=True):
    """How the sender is doing, for nodes that do not know `NodeBeacon`."""

    tag = "replicas_beacon"
    sender: str
    boot: int
    """Differs between two processes of one name."""
    roster: int
    """The digest of the members that the sender knows."""
    is_settled: bool
    """All replicas have every copy of the sender, and it holds no other copies."""
    is_leaving: bool
    """The sender has given all its copies away, and stops."""
    flows: Sequence[tuple[str, str]]
    """The tenants and targets of which due events wait in line at the sender."""


class NodeBeacon(ReplicaRequest[None], frozen=True):
    """How the sender is doing; sent every few seconds. The fields of `Beacon`, and two more."""

    tag = "replicas_node_beacon"
    sender: str
    boot: int
    roster: int
    is_settled: bool
    is_leaving: bool
    flows: Sequence[tuple[str, str]]
    knows_boot: int
    """The `boot` of the receiver as the sender knows it: an agreement with an earlier process does not count."""
    away: Sequence[tuple[str, int]]
    """Nodes that are not members, and may hold copies; and since how long (ms)."""


class CompareCopies(ReplicaRequest[Sequence[int]], frozen=True):
    """The sender holds these events in these orders. Answered by the indexes of those that the receiver lacks, and by
    `~index` for those of which the receiver has a later copy.
    """

    tag = "replicas_compare"
    names: Sequence[CopyName]
    orders: Sequence[Order]


class AskHolder(ReplicaRequest[bytes], frozen=True):
    """A request of a user, encoded as for a link, to the events that the node holds. The answer is encoded too."""

    tag = "replicas_ask"
    request: bytes


class AskQueues(ReplicaRequest[bytes], frozen=True):
    """A request of a worker, encoded as for a link, to the queues of events that the node holds. So is the answer."""

    tag = "replicas_queues"
    request: bytes


class LookForCopy(ReplicaRequest[Seen | None], frozen=True):
    """The event, if the node holds a copy of it."""

    tag = "replicas_look"
    tenant: str
    id: str


class FindHeld(ReplicaRequest[tuple[list[Seen], str | None]], frozen=True):
    """One page of the events that the node lists: those of which it is the first holder among the nodes `among`."""

    tag = "replicas_find"
    filter: Filter
    cursor: str | None
    limit: int
    among: Sequence[str]


class CountHeld(ReplicaRequest[dict[str, Counts]], frozen=True):
    """The number of events that the node lists, by tenant."""

    tag = "replicas_count"
    among: Sequence[str]


class ForecastHeld(ReplicaRequest[Forecast], frozen=True):
    """The forecast of the events that the node lists."""

    tag = "replicas_forecast"
    tenant: str | None
    per_ms: int
    count: int
    among: Sequence[str]
