"""The number of events: enough for steady figures, fewer with `--quick`, or as `--events` says."""

from __future__ import annotations

from msgspec import Struct


class Scale(Struct, frozen=True):
    """Numbers of events for each measurement."""

    ingest: int = 500_000
    whole: int = 250_000
    single: int = 60_000
    pull: int = 200_000
    push: int = 80_000
    push_batch: int = 200_000
    late: int = 100_000
    pending_few: int = 100_000
    pending_many: int = 10_000_000
    herd: int = 1_000_000
    million: int = 1_000_000
    shards: int = 1_000_000
    recurring: int = 1_000_000
    guarded: int = 40_000
    abuse: int = 3_000
    replicas: int = 100_000
    replica_singles: int = 10_000
    replica_late: int = 20_000
    replica_killed: int = 6_000
    replica_few: int = 10_000
    replica_sample: int = 30_000
    replica_resync: int = 500_000
    replica_many: int = 1_000_000
    replica_calm_s: int = 90
    idle_s: float = 5.0
    """How long a loaded server is left alone before its memory is measured again."""


QUICK = Scale(
    ingest=200_000,
    whole=100_000,
    single=20_000,
    pull=100_000,
    push=30_000,
    push_batch=100_000,
    late=30_000,
    pending_many=1_000_000,
    herd=100_000,
    million=100_000,
    shards=100_000,
    recurring=200_000,
    guarded=15_000,
    abuse=2_000,
    replicas=30_000,
    replica_singles=3_000,
    replica_late=6_000,
    replica_killed=3_000,
    replica_few=2_000,
    replica_sample=10_000,
    replica_resync=30_000,
    replica_many=60_000,
    replica_calm_s=30,
    idle_s=2.0,
)


def scale_of(*, quick: bool, events: int | None) -> Scale:
    """The scale for the options; `events` applies to everything."""
    if events is None:
        return QUICK if quick else Scale()
    few = max(events // 10, 1)
    fixed = ("pending_few", "replica_few", "replica_calm_s", "idle_s")
    named = {name: events for name in Scale.__struct_fields__ if name not in fixed}
    return Scale(**named, pending_few=few, replica_few=few, replica_calm_s=10, idle_s=QUICK.idle_s)
