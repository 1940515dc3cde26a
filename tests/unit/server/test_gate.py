"""The gate: what it decides, and that it forgets what it decided when the keys change."""

from __future__ import annotations

import pytest

from everbell.core.access import AccessKey, Keyring, new_key
from everbell.errors import Forbidden, Unauthorized
from everbell.server.gate import NOBODY, Gate
from everbell.server.message import Request


class Ring:
    """Keys that a test changes."""

    def __init__(self) -> None:
        self.ring = Keyring()
        self.asked = 0

    def add(self, tenant: str, *scopes: str) -> tuple[AccessKey, Request]:
        key, text = new_key(bytes([len(self.ring.keys)]) * 36, tenant, scopes, 1_000)
        self.ring = Keyring([*self.ring.keys, key])
        return key, Request("GET", "/", {"authorization": f"Bearer {text}"})

    def __call__(self) -> Keyring:
        self.asked += 1
        return self.ring


def test_it_says_who_asks() -> None:
    ring = Ring()
    key, request = ring.add("shop", "read")
    gate = Gate(ring, may_be_open=True)

    assert gate.admit(request, "read", "shop") == key.id
    assert gate.admit(request, "read", "shop") == key.id
    assert gate.admit(request, "any", None) == key.id
    assert gate.admit(Request("GET", "/"), "open", None) == NOBODY


def test_a_revoked_key_is_out_at_once_although_it_was_known() -> None:
    ring = Ring()
    _, request = ring.add("shop", "read")
    gate = Gate(ring)
    gate.admit(request, "read", "shop")

    ring.ring = Keyring([AccessKey("other", bytes(32), "shop", ("read",), 1_000)])

    with pytest.raises(Unauthorized):
        gate.admit(request, "read", "shop")


def test_the_first_key_closes_the_gate() -> None:
    ring = Ring()
    gate = Gate(ring, may_be_open=True)
    assert gate.admit(Request("GET", "/"), "admin", None) == NOBODY

    ring.add("*", "admin")

    with pytest.raises(Unauthorized):
        gate.admit(Request("GET", "/"), "admin", None)


def test_keys_that_were_all_revoked_do_not_open_it_again() -> None:
    ring = Ring()
    ring.ring = Keyring([AccessKey("old", bytes(32), "*", ("admin",), 1_000, revoked_at=2_000)])

    with pytest.raises(Unauthorized):
        Gate(ring, may_be_open=True).admit(Request("GET", "/"), "read", "shop")


def test_what_one_scope_and_tenant_may_says_nothing_about_others() -> None:
    ring = Ring()
    key, request = ring.add("shop", "read")
    gate = Gate(ring)
    gate.admit(request, "read", "shop")

    with pytest.raises(Forbidden) as refused:
        gate.admit(request, "schedule", "shop")
    assert refused.value.who == key.id
    for tenant in ("bank", None):
        with pytest.raises(Forbidden):
            gate.admit(request, "read", tenant)


def test_what_is_kept_is_bounded() -> None:
    ring = Ring()
    _, request = ring.add("*", "read")
    gate = Gate(ring)
    for number in range(10_000):
        gate.admit(request, "read", f"tenant-{number}")
        with pytest.raises(Unauthorized):
            gate.admit(Request("GET", "/", {"authorization": f"Bearer {number}"}), "read", "shop")

    assert len(gate._decided) <= 4_096


def test_what_is_for_operators_is_not_for_the_admin_of_a_tenant() -> None:
    ring = Ring()
    _, tenants_own = ring.add("shop", "admin")
    operator, request = ring.add("*", "admin")
    gate = Gate(ring)

    assert gate.admit(request, "operator", "shop") == operator.id
    with pytest.raises(Forbidden):
        gate.admit(tenants_own, "operator", "shop")
