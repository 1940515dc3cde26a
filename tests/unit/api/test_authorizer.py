"""The authorizer: its decisions, and that a change of the keys clears its cache."""

from __future__ import annotations

import pytest

from everbell.api.authorizer import NOBODY, Authorizer
from everbell.core.access import AccessKey, Keyring, new_key
from everbell.errors import Forbidden, Unauthorized
from everbell.http.message import HttpRequest


class Ring:
    """Keys that a test changes."""

    def __init__(self) -> None:
        self.ring = Keyring()
        self.asked = 0

    def add(self, tenant: str, *scopes: str) -> tuple[AccessKey, HttpRequest]:
        key, text = new_key(bytes([len(self.ring.keys)]) * 36, tenant, scopes, 1_000)
        self.ring = Keyring([*self.ring.keys, key])
        return key, HttpRequest("GET", "/", {"authorization": f"Bearer {text}"})

    def __call__(self) -> Keyring:
        self.asked += 1
        return self.ring


def test_it_returns_the_caller() -> None:
    ring = Ring()
    key, request = ring.add("shop", "read")
    authorizer = Authorizer(ring, may_be_open=True)

    assert authorizer.admit(request, "read", "shop") == key.id
    assert authorizer.admit(request, "read", "shop") == key.id
    assert authorizer.admit(request, "any", None) == key.id
    assert authorizer.admit(HttpRequest("GET", "/"), "open", None) == NOBODY


def test_a_revoked_key_is_out_at_once_although_it_was_known() -> None:
    ring = Ring()
    _, request = ring.add("shop", "read")
    authorizer = Authorizer(ring)
    authorizer.admit(request, "read", "shop")

    ring.ring = Keyring([AccessKey("other", bytes(32), "shop", ("read",), 1_000)])

    with pytest.raises(Unauthorized):
        authorizer.admit(request, "read", "shop")


def test_the_first_key_requires_keys_from_then_on() -> None:
    ring = Ring()
    authorizer = Authorizer(ring, may_be_open=True)
    assert authorizer.admit(HttpRequest("GET", "/"), "admin", None) == NOBODY

    ring.add("*", "admin")

    with pytest.raises(Unauthorized):
        authorizer.admit(HttpRequest("GET", "/"), "admin", None)


def test_keys_that_were_all_revoked_do_not_open_it_again() -> None:
    ring = Ring()
    ring.ring = Keyring([AccessKey("old", bytes(32), "*", ("admin",), 1_000, revoked_at=2_000)])

    with pytest.raises(Unauthorized):
        Authorizer(ring, may_be_open=True).admit(HttpRequest("GET", "/"), "read", "shop")


def test_a_decision_holds_for_one_scope_and_tenant_only() -> None:
    ring = Ring()
    key, request = ring.add("shop", "read")
    authorizer = Authorizer(ring)
    authorizer.admit(request, "read", "shop")

    with pytest.raises(Forbidden) as refused:
        authorizer.admit(request, "schedule", "shop")
    assert refused.value.who == key.id
    for tenant in ("bank", None):
        with pytest.raises(Forbidden):
            authorizer.admit(request, "read", tenant)


def test_the_number_of_remembered_decisions_is_bounded() -> None:
    ring = Ring()
    _, request = ring.add("*", "read")
    authorizer = Authorizer(ring)
    for number in range(10_000):
        authorizer.admit(request, "read", f"tenant-{number}")
        with pytest.raises(Unauthorized):
            authorizer.admit(HttpRequest("GET", "/", {"authorization": f"Bearer {number}"}), "read", "shop")

    assert len(authorizer._decided) <= 4_096


def test_the_admin_of_a_tenant_is_no_operator() -> None:
    ring = Ring()
    _, tenants_own = ring.add("shop", "admin")
    operator, request = ring.add("*", "admin")
    authorizer = Authorizer(ring)

    assert authorizer.admit(request, "operator", "shop") == operator.id
    with pytest.raises(Forbidden):
        authorizer.admit(tenants_own, "operator", "shop")
