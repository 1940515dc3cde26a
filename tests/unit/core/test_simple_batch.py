"""Simple events are the ones that `core.spec.draft` accepts unchanged, and no others."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.simple_batch import SimpleBatch, add_simple, may_be_simple
from everbell.core.spec import Draft, EventSpec, PlainSpec, draft
from everbell.core.target import group_of
from everbell.core.tenant import Limits, Tenant
from everbell.errors import InvalidInput

NOW = 1_767_225_600_000
TENANTS = [
    Tenant(limits=Limits(payload_bytes=100, depth=3)),
    Tenant(to="queue:else", limits=Limits(payload_bytes=100, depth=3)),
    Tenant(limits=Limits(payload_bytes=1_000, depth=3)),
    Tenant(limits=Limits(payload_bytes=100, depth=64)),
]
EVENTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "payload": st.sampled_from([None, 7, "x", "{", [1], [[1]], {"a": {}}, [[[[]]]], "x" * 120, {"a": "[" * 9}]),
        "to": st.sampled_from(["queue:work", "https://shop.example/", "nowhere", ""]),
        "at": st.sampled_from(
            [
                "2026-01-01T00:30:00Z",
                "2026-01-01T00:30:00.250Z",
                "2027-01-01T00:00:00+01:00",
                "2026-01-01T00:30:00",
                "x",
            ]
        ),
    },
)


@given(st.lists(EVENTS, min_size=1, max_size=4), st.sampled_from(TENANTS))
def test_only_valid_batches_are_plain(written: list[dict[str, Any]], tenant: Tenant) -> None:
    lines = b"\n".join(map(msgspec.json.encode, written))
    plain = SimpleBatch([], [], [])

    is_plain = add_simple(plain, lines, msgspec.json.Decoder(PlainSpec).decode_lines(lines), tenant, group_of)

    expected = _checked_one_by_one(lines, tenant)
    assert is_plain == (expected is not None)
    assert not is_plain or plain.drafts() == expected


def _checked_one_by_one(lines: bytes, tenant: Tenant) -> list[Draft] | None:
    try:
        return [draft(spec, tenant, NOW) for spec in msgspec.json.Decoder(EventSpec).decode_lines(lines)]
    except InvalidInput:
        return None


def test_events_of_a_tenant_with_a_horizon_or_a_quota_are_checked_one_by_one() -> None:
    assert may_be_simple(Tenant())
    assert not may_be_simple(Tenant(limits=Limits(horizon_ms=1)))
    assert not may_be_simple(Tenant(limits=Limits(rate=1)))
    assert not may_be_simple(Tenant(limits=Limits(pending=1)))


@given(st.integers(1, 20), st.integers(1, 9))
def test_parts_are_the_whole_in_order(count: int, size: int) -> None:
    plain = SimpleBatch(list(range(count)), [f"queue:q{i}" for i in range(count)], [b"%d" % i for i in range(count)])

    parts = plain.cut(size)

    assert [draft for part in parts for draft in part.drafts()] == plain.drafts()
    assert all(0 < len(part) <= size for part in parts)
