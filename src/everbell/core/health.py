"""The health of a server as the API shows it: its state and the state of each part."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class StoreHealth(Struct, frozen=True, omit_defaults=True):
    """Whether the store accepts writes. A full store still delivers its events."""

    state: Literal["ok", "full", "away", "broken"]
    reason: str | None = None
    since: str | None = None


class DiskHealth(Struct, frozen=True, omit_defaults=True):
    """The disk of an embedded store. Below the reserve, new events are refused."""

    ok: bool
    free_bytes: int
    reserve_bytes: int
    reason: str | None = None


class ClusterHealth(Struct, frozen=True, omit_defaults=True):
    """This node's place in the cluster."""

    ok: bool
    is_member: bool
    partitions: int
    """The number of partitions that this node owns."""
    lease_left_ms: int
    log_lag_ms: int
    """How long ago this node saw the end of the log."""
    reason: str | None = None


class BacklogHealth(Struct, frozen=True, omit_defaults=True):
    """Events that are due and have to wait."""

    ok: bool
    overdue_ms: int
    """How long the oldest due event has waited, in memory or in the store."""
    starved_flows: int
    """Targets with due events that were left in the store."""
    in_flight: int
    reason: str | None = None


class QueuesHealth(Struct, frozen=True, omit_defaults=True):
    """Whether workers call for the queues that have due events."""

    ok: bool
    stalled: int
    """The number of queues with due events for which no worker has called for a minute."""
    reason: str | None = None


class KafkaHealth(Struct, frozen=True, omit_defaults=True):
    """Whether the Kafka brokers are reachable. Everything else works without them."""

    ok: bool
    lag_records: int
    """The number of unread records in the partitions that this node reads."""
    reason: str | None = None


class OutboxHealth(Struct, frozen=True, omit_defaults=True):
    """Whether the outboxes of applications can be collected. Everything else works without them."""

    ok: bool
    waiting_rows: int
    """The number of rows that this node has not collected yet."""
    reason: str | None = None


class Health(Struct, frozen=True, omit_defaults=True):
    """The state of a server and of its parts. A broken server must be restarted; every other state needs no action."""

    state: Literal["starting", "ready", "away", "stopping", "broken"]
    """`away`: the store or the cluster cannot be used at the moment."""
    reason: str | None = None
    node: str | None = None
    store: StoreHealth | None = None
    disk: DiskHealth | None = None
    cluster: ClusterHealth | None = None
    backlog: BacklogHealth | None = None
    kafka: KafkaHealth | None = None
    queues: QueuesHealth | None = None
    outbox: OutboxHealth | None = None
