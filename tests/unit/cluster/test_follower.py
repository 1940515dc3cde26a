"""Policies that change while everything runs."""

from __future__ import annotations

import logging

import pytest

from everbell.cluster.follower import PolicyFollower
from everbell.core.cluster import Policy
from everbell.core.tenant import Tenant, Tenants


def test_documents_override_the_settings_and_give_way_to_them_again() -> None:
    tenants = Tenants(Tenant(batch=3), (Tenant("shop", batch=5),))
    changed: list[str] = []
    follower = PolicyFollower(tenants, changed.append)

    follower.follow({"shop": Policy(7, b'{"timeout": "20s"}'), "new": Policy(8, b"{}"), "/keys/x": Policy(9, b"?")})
    assert (tenants.policy("shop").timeout_ms, tenants.policy("shop").batch) == (20_000, 5)
    assert tenants.policy("new").batch == 3
    assert sorted(changed) == ["new", "shop"]

    follower.follow({"new": Policy(8, b"{}")})
    assert tenants.policy("shop") == Tenant("shop", batch=5)
    assert changed[2:] == ["shop"], "only changed tenants are reported"
    assert tenants.sending_max_ms == 20_000, "requests under the old policy may still be in flight"

    follower.follow({})
    assert tenants.policy("new") == Tenant("new", batch=3)


def test_a_document_of_a_newer_version_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tenants = Tenants()
    follower = PolicyFollower(tenants)
    follower.follow({"shop": Policy(7, b'{"batch": 5}')})

    with caplog.at_level(logging.ERROR):
        follower.follow({"shop": Policy(8, b'{"batch": 6, "shininess": 3}')})

    assert tenants.policy("shop").batch == 5
    assert "tenant shop keeps the policy it had" in caplog.text
