"""The last check before the engine: which tenants may schedule events, and for which topics."""

from __future__ import annotations

import pytest

from everbell.clock import SystemClock
from everbell.core.batch_item import ItemSpec
from everbell.core.kafka_targets import KafkaTargets
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import ChangeSpec, EventSpec, PlainSpec
from everbell.core.tenant import Tenant, Tenants
from everbell.edge.drafting import Edge
from everbell.errors import InvalidInput


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
