"""Policy documents: the fields they override, the fields they leave alone, and hidden secrets."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest

from everbell.core.document import hidden, merged, policy_over, restored, sources
from everbell.core.policy import TenantSpec, format_size, parse_size, spec_of, tenant_of
from everbell.core.retry import RetryPolicy
from everbell.core.tenant import Limits, Tenant
from everbell.errors import InvalidInput

SECRET = "whsec_" + b64encode(b"s" * 24).decode()
OTHER = "whsec_" + b64encode(b"t" * 25).decode()
BASE = Tenant("shop", to="queue:work", retry=RetryPolicy(5, 1_000, 60_000), limits=Limits(payload_bytes=1_000, rate=7))


def test_every_field_survives_formatting_and_parsing() -> None:
    for tenant in (Tenant(), BASE, Tenant(secrets=(SECRET,), limits=Limits(horizon_ms=90_000, pending=3))):
        assert tenant_of(tenant.name, spec_of(tenant)) == tenant
        assert policy_over(tenant, {}) == tenant


def test_a_document_overrides_field_by_field() -> None:
    policy = policy_over(BASE, {"retry": {"max_attempts": 9}, "limits": {"payload": "2kB"}, "timeout": "1s"})

    assert policy.retry == RetryPolicy(9, 1_000, 60_000)
    assert (policy.limits.payload_bytes, policy.limits.rate) == (2_000, 7)
    assert (policy.timeout_ms, policy.to, policy.name) == (1_000, "queue:work", "shop")
    assert policy_over(BASE, {"to": None}).to is None


def test_the_source_of_each_field_is_reported() -> None:
    told = sources(BASE, {"timeout": "1s"})

    assert (told["timeout"], told["to"], told["batch"]) == ("document", "settings", "default")
    assert set(told) == {field.name for field in msgspec.structs.fields(TenantSpec)}


@pytest.mark.parametrize("document", [{"retries": 3}, {"limits": {"size": 3}}, {"batch": 0}, {"to": "nowhere"}])
def test_an_invalid_document_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        policy_over(BASE, document)


def test_secrets_are_shown_by_their_end_and_kept_by_it() -> None:
    policy = policy_over(BASE, {"secrets": [SECRET, OTHER]})
    shown = hidden(policy).secrets

    assert shown == (f"whsec_…{SECRET[-4:]}", f"whsec_…{OTHER[-4:]}")
    assert restored({"secrets": [shown[1]], "batch": 2}, policy.secrets) == {"secrets": [OTHER], "batch": 2}
    with pytest.raises(InvalidInput, match="none of the tenant's secrets"):
        restored({"secrets": ["whsec_…nope"]}, policy.secrets)


def test_tables_are_merged_inside_too() -> None:
    assert merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}, "e": 5}) == {"a": 1, "b": {"c": 4, "d": 3}, "e": 5}


@pytest.mark.parametrize("size", [0, 1, 1_000, 1_024, 256 << 10, 3 << 20, (3 << 20) + 1, 1 << 30])
def test_sizes_come_back_from_their_words(size: int) -> None:
    assert parse_size(format_size(size), "size") == size


def test_no_field_of_a_policy_is_forgotten_by_its_words() -> None:
    """A field that only one of the two forms has would be dropped silently from documents."""
    written = msgspec.to_builtins(spec_of(Tenant()))
    assert set(written) == {field.name for field in msgspec.structs.fields(TenantSpec)}
    for name, value in {"dead_letter_to": "queue:dead", "mode": "structured", "rate": 2.5, "on_dead": "park"}.items():
        policy = policy_over(BASE, {name: value})
        assert getattr(spec_of(policy), name) == value, name
