"""Tenants share memory first, and the flows of a tenant share what their tenant may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.channels.nowhere import NowhereChannel
from everbell.core.tenant import Tenant
from everbell.engine import account as account_module
from everbell.engine.account import FLOW_BYTES, Account, Budget, Starved
from everbell.engine.flow import Flow

COST = 1_000


def flow_of(account: Account, group: str = "https://a.example:443") -> Flow:
    return Flow(Tenant(account.name), group, NowhereChannel(), account)


def fill(budget: Budget, account: Account, flows: int) -> list[Flow]:
    """Let this many flows of a tenant hold one event after the other, in turns, until none has room."""
    made = [flow_of(account, f"https://host{number}.example:443") for number in range(flows)]
    while taking := [flow for flow in made if budget.allows(flow, COST)]:
        for flow in taking:
            if budget.allows(flow, COST):
                budget.take(flow, COST)
    return made


@given(st.integers(1, 300))
def test_a_tenant_leaves_a_fifth_of_the_memory_with_any_number_of_flows(flows: int) -> None:
    budget = Budget(1_000 * COST)
    greedy = Account("greedy")
    fill(budget, greedy, flows)

    assert greedy.held_bytes <= 800 * COST
    # Another tenant holds more than any flow of the greedy tenant, however many flows that has.
    other = Account("other")
    fill(budget, other, 1)
    assert other.held_bytes >= 80 * COST


@given(st.integers(1, 12), st.integers(1, 20))
def test_tenants_that_grow_together_leave_room_for_the_next(tenants: int, flows: int) -> None:
    budget = Budget(1_000 * COST)
    made = [flow_of(Account(f"greedy{number}")) for number in range(tenants)]
    made += [flow_of(one.account) for one in made for _ in range(flows - 1)]
    while taking := [flow for flow in made if budget.allows(flow, COST)]:
        budget.take(min(taking, key=lambda flow: flow.account.held_bytes), COST)

    assert budget.free_bytes >= budget.total_bytes // (4 * tenants + 1) - COST
    assert budget.allows(flow_of(Account("next")), COST)


def test_flows_beyond_the_first_are_paid_for_while_they_hold_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_module, "FLOWS_FREE", 2)
    budget, account = Budget(100 * COST), Account("shop")
    flows = [flow_of(account) for _ in range(4)]
    for flow in flows:
        budget.take(flow, COST)
        budget.take(flow, COST)

    assert account.held_bytes == 8 * COST + 2 * FLOW_BYTES
    assert budget.free_bytes == budget.total_bytes - account.held_bytes
    for flow in flows:
        budget.give_back(flow, COST)
        assert flow.held_bytes == COST + flow.own_bytes
        budget.give_back(flow, COST)
    assert (account.held_bytes, budget.flows) == (0, 0)
    assert budget.free_bytes == budget.total_bytes


def test_a_tenant_without_memory_for_a_flow_may_not_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_module, "FLOWS_FREE", 0)
    budget, account = Budget(100 * COST), Account("shop")
    while budget.allows_flow(account, COST):
        budget.take(flow_of(account), COST)

    assert account.held_bytes <= 80 * COST
    assert budget.allows_flow(Account("other"), COST)


def test_starved_tenants_take_turns_and_so_do_their_flows() -> None:
    starved, greedy, modest = Starved(), Account("greedy"), Account("modest")
    many = [flow_of(greedy) for _ in range(3)]
    one = flow_of(modest)
    for flow in (*many, one, many[0]):
        starved.add(flow)

    assert len(starved) == 4
    assert [starved.next() for _ in range(6)] == [many[0], one, many[1], one, many[2], one]
    starved.discard(one)
    starved.discard(one)
    assert [*starved] == many
    assert starved.next() is many[0]
