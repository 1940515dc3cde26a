"""The health of a server as it tells it: its state, and that of each of its parts."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class StoreHealth(Struct, frozen=True, omit_defaults=True):
    """Whether the store takes what it is given. One that is full still gives out what it has."""

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
    """How many are owned here."""
    lease_left_ms: int
    log_lag_ms: int
    """How long ago the end of the log was seen."""
    reason: str | None = None


class BacklogHealth(Struct, frozen=True, omit_defaults=True):
    """What is due and has to wait."""

    ok: bool
    overdue_ms: int
    """How long the oldest has been waiting for its turn, or in the store for room."""
    starved_flows: int
    """Targets with due events that were left in the store."""
    in_flight: int
    reason: str | None = None


class KafkaHealth(Struct, frozen=True, omit_defaults=True):
    """Whether its brokers can be reached. Everything else goes on without them."""

    ok: bool
    lag_records: int
    """How many records are not read yet, of the partitions that are read here."""
    reason: str | None = None


class Health(Struct, frozen=True, omit_defaults=True):
    """The state of a server, and of its parts. A broken one must be restarted; all others must only be left alone."""

    state: Literal["starting", "ready", "away", "stopping", "broken"]
    """`away`: its store, or its place in the cluster, cannot be used for the moment."""
    reason: str | None = None
    node: str | None = None
    store: StoreHealth | None = None
    disk: DiskHealth | None = None
    cluster: ClusterHealth | None = None
    backlog: BacklogHealth | None = None
    kafka: KafkaHealth | None = None
