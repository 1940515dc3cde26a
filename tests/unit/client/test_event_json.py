"""Python values become the JSON of an event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from everbell.client.event_json import duration_text, encode_change, encode_event, instant_text
from everbell.core.spec import EventSpec, draft
from everbell.core.tenant import Tenant
from everbell.core.time import parse_duration, parse_instant
from everbell.errors import InvalidInput


@dataclass
class Order:
    number: int


def encoded(**fields: Any) -> Any:
    return msgspec.json.decode(encode_event(fields))


def test_none_is_left_out_but_for_the_payload() -> None:
    assert encoded(payload=None, to=None, in_="5s") == {"payload": None, "in": "5s"}


def test_the_server_reads_all_fields() -> None:
    body = encode_event(
        {
            "payload": {"order": Order(17)},
            "to": "queue:mail",
            "at": datetime(2026, 11, 20, 10, tzinfo=UTC),
            "id": "order-17",
            "key": "k",
            "headers": {"x-team": "orders"},
            "tags": ["a", "b"],
            "retry": {"max_attempts": 3, "backoff": timedelta(seconds=2)},
            "repeat": {"every": timedelta(seconds=30), "count": 6, "until": datetime(2027, 1, 1, tzinfo=UTC)},
            "expires": timedelta(hours=2),
        }
    )
    checked = draft(msgspec.json.decode(body, type=EventSpec), Tenant(), 0)
    assert checked.payload == b'{"order":{"number":17}}'
    assert checked.due_at == parse_instant("2026-11-20T10:00:00Z")
    assert checked.repeat is not None
    assert (checked.repeat.every_ms, checked.repeat.count) == (30_000, 6)
    assert checked.retry is not None
    assert checked.retry.backoff_ms == 2_000
    assert checked.expires_ms == 7_200_000


def test_bytes_travel_as_base64() -> None:
    assert encoded(payload=b"\x00\xff") == {"payload_base64": "AP8=", "content_type": "application/octet-stream"}
    assert encoded(payload=b"<a/>", content_type="text/xml")["content_type"] == "text/xml"


def test_a_datetime_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"has no time zone.*datetime.now.UTC") as raised:
        encode_event({"at": datetime(2026, 11, 20, 10)})  # noqa: DTZ001 - that is the mistake
    assert raised.value.field == "at"


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(2026, 11, 20, 10, tzinfo=ZoneInfo("Europe/Berlin")), "2026-11-20T09:00:00Z"),
        (datetime(2026, 11, 20, 10, 0, 0, 1_500, tzinfo=UTC), "2026-11-20T10:00:00.001500Z"),
        (datetime(2026, 11, 20, 10, tzinfo=timezone(timedelta(minutes=19, seconds=32))), "2026-11-20T09:40:28Z"),
        ("2026-11-20T10:00:00+01:00", "2026-11-20T10:00:00+01:00"),
    ],
)
def test_times_are_written_so_that_the_server_reads_the_same_moment(at: datetime | str, text: str) -> None:
    assert instant_text(at, "at") == text
    parse_instant(text)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_000)))
def test_a_duration_never_gets_shorter_on_the_way(duration: timedelta) -> None:
    sent = timedelta(milliseconds=parse_duration(duration_text(duration)))
    assert duration <= sent < duration + timedelta(milliseconds=1)


def test_values_without_json_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="payload: cannot be written as JSON"):
        encode_event({"payload": object()})


def test_a_change_keeps_none_and_leaves_out_absent_fields() -> None:
    body = encode_change({"tags": None, "to": UNSET, "in_": 5, "id": "x"}, without=("id",))
    assert msgspec.json.decode(body) == {"tags": None, "in": 5}


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (float("nan"), "payload"),
        ({"lines": [{"price": 1.5}, {"price": float("inf")}]}, "payload.lines.1.price"),
        ([None, float("-inf")], "payload.1"),
    ],
)
def test_a_number_that_json_does_not_have_is_refused_with_its_field(payload: object, field: str) -> None:
    with pytest.raises(InvalidInput, match="neither infinite nor NaN") as caught:
        encode_event({"payload": payload})
    assert caught.value.field == field
