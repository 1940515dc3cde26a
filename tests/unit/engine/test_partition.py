"""A partition: how far it was read, and which events were skipped."""

from __future__ import annotations

from msgspec.structs import replace

from everbell.channels.nowhere import NowhereChannel
from everbell.core.event import Event, position
from everbell.core.ids import SEQUENCE_MAX
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.account import Account
from everbell.engine.agenda import NEVER
from everbell.engine.flow import Flow
from everbell.engine.partition import Partition

EVENT = Event("e", "shop", 0, 5, 1_000, 1_000, "https://a.example", b"", 1, "k")
LATER = replace(EVENT, sequence=6, run_at=2_000, due_at=2_000)


def flow(tenant: str = "shop") -> Flow:
    return Flow(Tenant(tenant), "https://a.example:443", NowhereChannel(), Account(tenant))


def test_nothing_was_read_in_the_beginning() -> None:
    partition = Partition(0, Tenants())
    partition.take(1, now=0, elapsed_ms=0, quiet_ms_max=0)
    assert (partition.checkpoint, partition.next_at) == (-1, 0)


def test_a_partition_that_is_owned_elsewhere_takes_nothing_in() -> None:
    partition = Partition(0, Tenants())
    assert not partition.covers(EVENT, near_at=NEVER)
    partition.take(1, now=0, elapsed_ms=0, quiet_ms_max=0)
    partition.read_to(NEVER, None)
    assert partition.covers(EVENT, near_at=0)
    partition.lose()
    assert not partition.covers(EVENT, near_at=NEVER)


def test_a_read_covers_everything_up_to_its_time() -> None:
    partition = Partition(0, Tenants())
    partition.read_to(1_000, None)

    assert partition.checkpoint == position(1_000, SEQUENCE_MAX)
    assert partition.next_at == NEVER
    partition.read_to(1_500, 9_000)
    assert partition.next_at == 9_000


def test_later_events_of_a_flow_stay_behind_its_skip() -> None:
    partition, stuck = Partition(0, Tenants()), flow()
    partition.skip(EVENT, stuck)

    assert partition.skip_for(LATER, stuck) is stuck.skips[0]
    assert partition.skip_for(replace(EVENT, run_at=500), stuck) is None


def test_others_stay_behind_a_skip_only_for_the_sake_of_a_key() -> None:
    partition, stuck, other = Partition(0, Tenants()), flow(), flow()
    partition.skip(EVENT, stuck)

    assert partition.skip_for(LATER, other) is not None
    assert partition.skip_for(LATER, other, besides=stuck) is None
    assert partition.skip_for(replace(LATER, key="other"), other) is None
    assert partition.skip_for(replace(LATER, key=None), other) is None
    assert partition.skip_for(replace(LATER, tenant="bank"), flow("bank")) is None


def test_a_flow_with_nothing_left_behind_has_no_skip() -> None:
    partition, stuck = Partition(0, Tenants()), flow()
    partition.skip(EVENT, stuck)
    partition.unskip(stuck)

    assert not partition.has_skips
    assert stuck.idle
