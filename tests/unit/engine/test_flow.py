"""Shares of memory, and the skips that remember events without room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everbell.channels.nowhere import NowhereChannel
from everbell.clock import SystemClock
from everbell.core.event import Event
from everbell.core.tenant import Tenant
from everbell.engine.account import Account, Budget
from everbell.engine.attempt_listeners import AttemptListeners
from everbell.engine.dispatcher import Dispatcher
from everbell.engine.entry import entry_of
from everbell.engine.flow import EVENT_OVERHEAD_BYTES, Flow, Skip
from everbell.engine.supervisor import Supervisor

EVENT = Event("e", "shop", 0, 5, 1_000, 1_000, "https://a.example", b"x" * 50, 1, "k")


def flow(tenant: Tenant | None = None) -> Flow:
    return Flow(tenant or Tenant("shop"), "https://a.example:443", NowhereChannel(), Account("shop"))


def test_an_event_costs_its_payload_and_a_little_more() -> None:
    assert (
        entry_of(EVENT, flow(), Dispatcher(SystemClock(), {}, 1, AttemptListeners(), Supervisor(print))).cost
        == EVENT_OVERHEAD_BYTES + 50
    )


def test_one_flow_alone_may_use_half_of_the_memory() -> None:
    budget, alone = Budget(1_000), flow()
    while budget.allows(alone, 10):
        budget.take(alone, 10)

    assert alone.held_bytes == 500


@given(st.integers(1, 12))
def test_stuck_flows_leave_room_for_another(stuck: int) -> None:
    budget = Budget(1_000_000)
    for _ in range(stuck):
        greedy = flow()
        while budget.allows(greedy, 10):
            budget.take(greedy, 10)

    assert budget.free_bytes >= 0
    assert budget.allows(flow(), 10)


@given(st.lists(st.integers(1, 200), max_size=50))
def test_bytes_that_are_given_back_are_free_again(costs: list[int]) -> None:
    budget, one = Budget(10_000), flow()
    taken = []
    for cost in costs:
        if budget.allows(one, cost):
            budget.take(one, cost)
            taken.append(cost)
    for cost in taken:
        budget.give_back(one, cost)

    assert (budget.free_bytes, one.held_bytes) == (10_000, 0)


def test_going_back_pays_when_there_is_room_for_about_as_much_again() -> None:
    budget, one = Budget(1_000), flow()
    budget.take(one, 400)
    assert not budget.has_room_again(one)
    budget.give_back(one, 200)
    assert budget.has_room_again(one)
    one.skipped_bytes = 900
    assert not budget.has_room_again(one)


def test_the_cap_of_a_flow_follows_the_tenants_policy() -> None:
    assert flow(Tenant("shop", in_flight=4)).cap == 4
    assert flow(Tenant("shop", in_flight=4, batch=10)).cap == 40


def test_a_skip_remembers_its_first_position_and_its_keys() -> None:
    skip = Skip(EVENT.position)
    skip.add(EVENT)
    earlier = replace(EVENT, run_at=500, sequence=1)
    later = replace(EVENT, run_at=2_000, sequence=9)

    assert skip.concerns(later)
    assert not skip.concerns(earlier)
    assert not skip.concerns(replace(later, key="other"))
    assert not skip.concerns(replace(later, key=None))
    skip.add(earlier)
    assert skip.position == earlier.position
    assert skip.has_key("shop", "k")
    assert not skip.has_key("bank", "k")


def test_a_flow_that_holds_nothing_can_be_forgotten() -> None:
    one = flow()
    assert one.idle
    Budget(1_000).take(one, 10)
    assert not one.idle
