"""BigBen: names of tenants that can be turned back, and times as Java writes and reads them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.bigben import bigben_tenant, event_time, full_event, native_tenant, parse_event_time
from everbell.core.event import Event
from everbell.core.tenant import is_tenant_name
from everbell.core.time import INSTANT_MAX, parse_instant
from everbell.errors import InvalidInput


@given(st.text(min_size=1, max_size=5))
def test_every_name_can_be_turned_back(name: str) -> None:
    native = native_tenant(name)
    assert is_tenant_name(native)
    assert bigben_tenant(native) == name


def test_names_that_are_no_tenants_of_bigben() -> None:
    assert bigben_tenant("shop") is None
    assert bigben_tenant("bb._FF") is None
    for name in ("", "x" * 62, "日" * 7, "\ud800"):
        with pytest.raises(InvalidInput):
            native_tenant(name)
    assert native_tenant("A/B/C") == "bb.A_2FB_2FC"


@given(st.integers(0, INSTANT_MAX))
def test_times_can_be_read_back(at: int) -> None:
    assert parse_event_time(event_time(at)) == at


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2026-11-18T10:17Z", "2026-11-18T10:17:00Z"),
        ("2026-11-18T10:17+01:00[Europe/Paris]", "2026-11-18T09:17:00Z"),
        ("2026-11-18T10:17:01.5Z[UTC]", "2026-11-18T10:17:01.500Z"),
        (" 2026-11-18T10:17:01-05:30", "2026-11-18T15:47:01Z"),
    ],
)
def test_the_ways_to_write_a_time(written: str, meant: str) -> None:
    assert parse_event_time(written) == parse_instant(meant)


def test_a_full_event_has_everything_that_a_receiver_of_bigben_reads() -> None:
    event = Event("x", "bb.a_2Fb", 0, 1, 120_000, 120_000, "http://h/", b"P", 1, "x", content_type="text/plain")
    assert msgspec.json.decode(full_event(event, 121_500)) == {
        "id": "x",
        "eventTime": "1970-01-01T00:02Z",
        "tenant": "a/b",
        "mode": "UPSERT",
        "payload": "P",
        "deliveryOption": "FULL_EVENT",
        "eventId": "x",
        "triggeredAt": "1970-01-01T00:02:01.500Z",
        "eventStatus": "TRIGGERED",
        "error": None,
    }
