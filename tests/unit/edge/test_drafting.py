"""The last check before the engine: which tenants may schedule events, for which topics, and to which addresses."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from everbell.clock import SystemClock
from everbell.core.batch_item import ItemSpec
from everbell.core.kafka_targets import KafkaTargets
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import ChangeSpec, EventSpec, PlainSpec
from everbell.core.tenant import Tenant, Tenants
from everbell.edge.drafting import Edge
from everbell.errors import InvalidInput
from everbell.http.address_guard import Guard, RefusedAddress


def test_only_registered_tenants_schedule_where_that_is_required() -> None:
    edge = Edge(Tenants(named=(Tenant("shop"),), are_required=True), SystemClock(), allows_handlers=False)
    spec = ItemSpec(to="queue:a", in_="1s")

    assert edge.draft(spec, "shop").to == "queue:a"
    with pytest.raises(InvalidInput, match="PUT /v1/tenants/bank"):
        edge.draft(spec, "bank")
    with pytest.raises(InvalidInput, match="PUT /v1/tenants/bank"):
        edge.policy("bank")
    # Events that a tenant scheduled before can still be changed.
    assert edge.amendment(ChangeSpec(to="queue:b"), "bank").to == "queue:b"


def test_the_topics_of_a_policy_hold_for_new_changed_and_simple_events() -> None:
    shop = Tenant("shop", topics=("orders",))
    kafka = KafkaTargets(frozenset({""}), frozenset({("", "intake")}))
    edge = Edge(Tenants(named=(shop,)), SystemClock(), allows_handlers=False, kafka=kafka)
    at = "2030-01-01T00:00:00Z"
    assert edge.draft(EventSpec(at=at, to="kafka://orders"), "shop").to == "kafka://orders"
    assert edge.draft(EventSpec(at=at, to="kafka://payments"), "bank").to == "kafka://payments"
    for tenant, topic in (("shop", "payments"), ("shop", "intake"), ("bank", "intake")):
        to = f"kafka://{topic}"
        with pytest.raises(InvalidInput, match="topic"):
            edge.draft(EventSpec(at=at, to=to), tenant)
        with pytest.raises(InvalidInput, match="topic"):
            edge.amendment(ChangeSpec(to=to), tenant)
        plain = SimpleBatch([], [], [])
        assert not edge.add_simple(plain, b"{}", [PlainSpec(at=at, to=to)], edge.policy(tenant))


AT = "2030-01-01T00:00:00Z"
CLOSED = ("http://10.0.0.1/hook", "https://169.254.169.254", "http://[::1]:8080/", "http://[::ffff:10.0.0.1]/")


@pytest.mark.parametrize("to", CLOSED)
def test_a_target_that_names_a_closed_address_is_refused_before_it_is_due(to: str) -> None:
    edge = Edge(Tenants(), SystemClock(), allows_handlers=False, guard=Guard())
    for _ in range(2):
        with pytest.raises(RefusedAddress, match="--allow-targets") as refused:
            edge.draft(EventSpec(at=AT, to=to), "shop")
        assert refused.value.field == "to"
    with pytest.raises(RefusedAddress):
        edge.amendment(ChangeSpec(to=to), "shop")
    assert not edge.add_simple(SimpleBatch([], [], []), b"{}", [PlainSpec(at=AT, to=to)], edge.policy("shop"))
    assert edge.draft(EventSpec(at=AT, to="http://10.example/hook"), "shop").to == "http://10.example/hook"
    opened = Guard([ip_network(each) for each in ("10.0.0.0/8", "169.254.0.0/16", "::1/128")])
    edge = Edge(Tenants(), SystemClock(), allows_handlers=False, guard=opened)
    assert edge.draft(EventSpec(at=AT, to=to), "shop").to == to


def test_loopback_is_judged_anew_for_every_event() -> None:
    is_open = True
    edge = Edge(Tenants(), SystemClock(), allows_handlers=False, guard=Guard((), lambda: is_open))
    spec = EventSpec(at=AT, to="http://127.0.0.1:9000/hook")
    assert edge.draft(spec, "shop").to == spec.to
    is_open = False
    with pytest.raises(RefusedAddress, match="loopback"):
        edge.draft(spec, "shop")
