"""The last check before the engine: which tenants may schedule events."""

from __future__ import annotations

import pytest

from everbell.clock import SystemClock
from everbell.core.batch_item import ItemSpec
from everbell.core.spec import ChangeSpec
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
