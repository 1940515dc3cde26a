"""A tenant's policy as people write it."""

from __future__ import annotations

from base64 import b64encode

import pytest

from everbell.core.policy import BreakerSpec, LimitsSpec, TenantSpec, parse_size, spec_of, tenant_of
from everbell.core.retry import RetryPolicy
from everbell.core.spec import RetrySpec
from everbell.core.tenant import Tenant
from everbell.errors import InvalidInput

SECRET = "whsec_" + b64encode(b"s" * 24).decode()


def test_the_defaults_of_both_forms_agree() -> None:
    assert tenant_of("default", TenantSpec()) == Tenant()


def test_every_policy_can_be_written_and_read_again() -> None:
    spec = TenantSpec(
        retry=RetrySpec(None),
        headers={"Accept": "*/*"},
        sequence_header="X-Sequence-Number",
        done=(200,),
        permanent=("4xx", "!429", 501),
        past="reject",
        past_grace="1m",
    )
    tenant = tenant_of("shop", spec)
    assert (tenant.headers, tenant.sequence_header) == ((("accept", "*/*"),), "x-sequence-number")
    assert (tenant.done, len(tenant.permanent), tenant.past_grace_ms) == (frozenset({200}), 100, 60_000)
    assert spec_of(tenant).retry.max_attempts is None
    assert tenant_of("shop", spec_of(tenant)) == tenant
    assert spec_of(Tenant()) == TenantSpec(done=("2xx",), permanent=("4xx", "!408", "!409", "!425", "!429"))


def test_words_become_numbers() -> None:
    tenant = tenant_of(
        "shop",
        TenantSpec(
            to="queue:work",
            retry=RetrySpec(5, "1s", "1m"),
            retention="2d",
            timeout=2.5,
            lease="1m30s",
            secrets=(SECRET,),
            limits=LimitsSpec(payload="1MiB", horizon="1w"),
        ),
    )

    assert tenant.retry == RetryPolicy(5, 1_000, 60_000)
    assert (tenant.retention_ms, tenant.timeout_ms, tenant.lease_ms) == (172_800_000, 2_500, 90_000)
    assert (tenant.limits.payload_bytes, tenant.limits.horizon_ms) == (1_048_576, 604_800_000)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (TenantSpec(headers={"host": "x"}), "headers.host"),
        (TenantSpec(sequence_header="ce-id"), "sequence_header"),
        (TenantSpec(done=(20,)), "done"),
        (TenantSpec(permanent=("6xx",)), "permanent"),
        (TenantSpec(to="nowhere"), "to"),
        (TenantSpec(timeout="0s"), "timeout"),
        (TenantSpec(lease=0), "lease"),
        (TenantSpec(breaker=BreakerSpec(pause="0s")), "breaker.pause"),
        (TenantSpec(batch=2, mode="payload"), "mode"),
        (TenantSpec(retention="a while"), "retention"),
        (TenantSpec(retry=RetrySpec(backoff="1m", max_backoff="1s")), "retry.max_backoff"),
        (TenantSpec(limits=LimitsSpec(payload="much")), "limits.payload"),
        (TenantSpec(limits=LimitsSpec(horizon="-1s")), "limits.horizon"),
        (TenantSpec(secrets=("hush",)), "secrets"),
        (TenantSpec(secrets=("whsec_" + b64encode(b"short").decode(),)), "secrets"),
        (TenantSpec(secrets=("whsec_not base64!",)), "secrets"),
    ],
)
def test_a_wrong_field_is_named(spec: TenantSpec, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tenant_of("shop", spec)

    assert refused.value.field == field


@pytest.mark.parametrize(
    ("value", "size"),
    [(0, 0), ("17", 17), ("200kB", 200_000), ("1 KiB", 1_024), ("64MiB", 67_108_864), ("2gb", 2_000_000_000)],
)
def test_sizes(value: str | int, size: int) -> None:
    assert parse_size(value, "memory") == size


@pytest.mark.parametrize("value", ["", "MiB", "-1", -1, "1.5MiB", "1TB", "1 000"])
def test_an_invalid_size_is_refused(value: str | int) -> None:
    with pytest.raises(InvalidInput):
        parse_size(value, "memory")
