"""Tenants: names, and the policy behind a name."""

from __future__ import annotations

import pytest

from everbell.core.tenant import Tenant, Tenants, check_tenant_name
from everbell.errors import InvalidInput


@pytest.mark.parametrize("name", ["a", "shop", "Shop.eu-1_b", "0", "x" * 64])
def test_names_that_fit_into_a_url(name: str) -> None:
    assert check_tenant_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "-a", "_a", "a b", "a/b", "é", "x" * 65, "a\n"])
def test_names_that_do_not(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_tenant_name(name)


def test_a_name_without_a_policy_gets_the_default_one() -> None:
    tenants = Tenants(Tenant(in_flight=7), (Tenant("shop", in_flight=3),))

    assert tenants.policy("shop").in_flight == 3
    assert tenants.policy("anybody").in_flight == 7
    assert tenants.policy("anybody").name == "anybody"


def test_tenants_may_have_to_be_registered() -> None:
    tenants = Tenants(Tenant(), (Tenant("shop"),), are_required=True)
    assert tenants.registered("shop").name == "shop"
    with pytest.raises(InvalidInput, match="there is no tenant 'bank'"):
        tenants.registered("bank")
    tenants.override("bank", Tenant("bank"))
    assert tenants.registered("bank").name == "bank"
    tenants.override("bank", None)
    with pytest.raises(InvalidInput):
        tenants.registered("bank")
    assert Tenants().registered("bank").name == "bank"


def test_made_up_names_do_not_fill_memory() -> None:
    tenants = Tenants()
    for number in range(5_000):
        tenants.policy(f"t{number}")

    assert tenants._unnamed.cache_info().currsize <= 1_024
