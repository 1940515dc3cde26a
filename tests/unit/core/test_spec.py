"""The JSON form of events: every field, every limit, and refusals that name the field."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.amendment import Amendment, amended
from everbell.core.delivery_form import FORM_HEADER
from everbell.core.event import Repeat
from everbell.core.json_limits import depth_of
from everbell.core.retry import Outcome, RetryPolicy, may_retry, pause_ms
from everbell.core.simple_batch import may_be_simple
from everbell.core.spec import (
    ChangeSpec,
    Draft,
    EventSpec,
    amendment_of,
    check_name,
    draft,
    event_of,
)
from everbell.core.tenant import Limits, Tenant
from everbell.core.time import format_instant
from everbell.errors import InvalidInput, TooLarge

NOW = 1_767_225_600_000
TENANT = Tenant(limits=Limits(payload_bytes=100, headers=2, header_bytes=40, tags=2, depth=3, horizon_ms=3_600_000))


def read(tenant: Tenant = TENANT, **fields: Any) -> Draft:
    """The draft of an event in JSON; by default due in a second, to a queue."""
    written = {"to": "queue:work", **fields}
    if "at" not in fields and "in" not in fields:
        written["in"] = "1s"
    return draft(msgspec.json.decode(msgspec.json.encode(written), type=EventSpec), tenant, NOW)


def change(**fields: Any) -> Amendment:
    """The changes of a patch that is written as JSON."""
    return amendment_of(msgspec.json.decode(msgspec.json.encode(fields), type=ChangeSpec), TENANT, NOW)


def test_the_smallest_event() -> None:
    assert read() == Draft(NOW + 1_000, "queue:work", b"null")


def test_every_field() -> None:
    made = read(
        at="2026-01-01T00:30:00Z",
        id="order-17",
        key="order",
        payload={"a": [1]},
        headers={"X-Team": " orders "},
        tags=["b", "a"],
        retry={"max_attempts": 3, "backoff": "1s"},
        repeat={"every": "30s", "count": 6, "until": "2026-01-01T00:31:00Z"},
        expires="2h",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )

    assert made.due_at == NOW + 1_800_000
    assert (made.id, made.key, made.payload) == ("order-17", "order", b'{"a":[1]}')
    assert (made.headers, made.tags) == ((("x-team", "orders"),), ("b", "a"))
    assert made.retry == RetryPolicy(3, 1_000, 600_000)
    assert made.repeat == Repeat(30_000, 6, NOW + 1_860_000)
    assert made.expires_ms == 7_200_000


def test_json_is_kept_as_it_came() -> None:
    spec = msgspec.json.decode(b'{"in": 1, "to": "queue:q", "payload": {"b" : 1.0,  "a":1e2}}', type=EventSpec)

    assert draft(spec, TENANT, NOW).payload == b'{"b" : 1.0,  "a":1e2}'


def test_bytes_come_with_their_content_type() -> None:
    made = read(payload_base64=b64encode(b"\x00\xff").decode(), content_type="image/png")

    assert (made.payload, made.content_type) == (b"\x00\xff", "image/png")


def test_the_tenants_target_takes_the_place_of_a_missing_one() -> None:
    assert read(Tenant(to="queue:home"), to=None).to == "queue:home"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"to": None}, "to"),
        ({"to": "nowhere"}, "to"),
        ({"at": "2026-01-01T00:30:00Z", "in": "1s"}, "in"),
        ({"in": None}, "at"),
        ({"in": "1 fortnight"}, "in"),
        ({"in": "61m"}, "in"),
        ({"at": "2026-01-01T01:00:00.001Z"}, "at"),
        ({"at": "2026-01-01"}, "at"),
        ({"id": "ev_mine"}, "id"),
        ({"id": "a\nb"}, "id"),
        ({"id": "a\u200bb"}, "id"),
        ({"id": "é" * 257}, "id"),
        ({"key": "a\x00"}, "key"),
        ({"payload": {"a": {"b": {"c": {}}}}}, "payload"),
        ({"payload": "x" * 100}, "payload"),
        ({"payload": 1, "payload_base64": "AA==", "content_type": "image/png"}, "payload_base64"),
        ({"payload_base64": "AA=="}, "content_type"),
        ({"payload_base64": "AA==", "content_type": "png"}, "content_type"),
        ({"payload_base64": "A", "content_type": "image/png"}, "payload_base64"),
        ({"payload_base64": "A" * 200, "content_type": "image/png"}, "payload_base64"),
        ({"content_type": "image/png"}, "content_type"),
        ({"headers": {"a": "1", "b": "2", "c": "3"}}, "headers"),
        ({"headers": {"a b": "1"}}, "headers"),
        ({"headers": {"x": "1" * 40}}, "headers"),
        ({"headers": {"X-a": "1", "x-A": "2"}}, "headers"),
        ({"headers": {"x": "a\r\nb"}}, "headers.x"),
        ({"headers": {"x": "é"}}, "headers.x"),
        ({"headers": {"Host": "evil"}}, "headers.Host"),
        ({"headers": {"webhook-id": "1"}}, "headers.webhook-id"),
        ({"headers": {"ce-id": "1"}}, "headers.ce-id"),
        ({"tags": ["a", "b", "c"]}, "tags"),
        ({"tags": ["a\n"]}, "tags"),
        ({"retry": {"backoff": "1m", "max_backoff": "1s"}}, "retry.max_backoff"),
        ({"repeat": {"every": "9ms"}}, "repeat.every"),
        ({"repeat": {"every": "1s", "until": "2026-01-01T00:00:00Z"}}, "repeat.until"),
        ({"expires": 0}, "expires"),
        ({"traceparent": "00-xyz"}, "traceparent"),
    ],
)
def test_an_invalid_field_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(**fields)

    assert refused.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {"pay_load": 1},
        {"id": ""},
        {"id": 7},
        {"key": "k" * 513},
        {"tags": [""]},
        {"retry": {"max_attempts": 0}},
        {"repeat": {"every": "1s", "misfire": "perhaps"}},
        {"headers": {"x": 1}},
    ],
)
def test_an_event_of_wrong_types_is_not_decoded(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(**fields)


def test_input_that_is_too_large_has_its_own_error() -> None:
    for fields in ({"payload": "x" * 100}, {"tags": ["a", "b", "c"]}, {"headers": {"x": "1" * 40}}):
        with pytest.raises(TooLarge):
            read(**fields)


json_values = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('[]{}"\\ ab', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"', max_size=2), inner, max_size=3),
    max_leaves=10,
)


def depth_by_walking(value: object) -> int:
    """How deep a decoded value is nested, the slow way."""
    if isinstance(value, dict):
        return 1 + max(map(depth_by_walking, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_by_walking, value), default=0)
    return 0


@given(json_values)
def test_depth_does_not_count_brackets_in_strings(value: object) -> None:
    assert depth_of(msgspec.json.encode(value)) == depth_by_walking(value)


@given(st.text(max_size=30))
def test_any_name_is_taken_or_refused(name: str) -> None:
    for field in ("id", "key"):
        try:
            check_name(name, field)
        except InvalidInput:
            continue
        assert not any(ord(character) < 32 for character in name)


def test_a_change_has_only_the_fields_it_changes() -> None:
    assert change() == Amendment()
    assert change(at="2026-01-01T00:30:00Z") == Amendment(due_at=NOW + 1_800_000)
    assert change(**{"in": "1s"}) == Amendment(due_at=NOW + 1_000)
    assert change(to="queue:b", payload=[1]) == Amendment(to="queue:b", payload=b"[1]", content_type=None)


def test_a_tag_given_twice_counts_once() -> None:
    assert read(Tenant(), tags=["b", "a", "b"]).tags == ("b", "a")


def test_null_removes_an_optional_field() -> None:
    assert change(headers=None, tags=None, retry=None, repeat=None, expires=None) == Amendment(
        headers=(),
        tags=(),
        retry=None,
        repeat=None,
        expires_ms=None,
    )


def test_a_change_is_checked_like_an_event() -> None:
    assert change(expires="1m", retry={}, repeat={"every": 60}, tags=["a"], headers={"x-a": "b"}) == Amendment(
        headers=(("x-a", "b"),),
        tags=("a",),
        retry=RetryPolicy(),
        repeat=Repeat(60_000),
        expires_ms=60_000,
    )
    for wrong in ({"to": "nowhere"}, {"at": "x", "in": 1}, {"payload": "x" * 200}, {"expires": 0}, {"tags": ["\n"]}):
        with pytest.raises(InvalidInput):
            change(**wrong)


def test_an_event_may_choose_the_form_of_its_deliveries() -> None:
    assert read(headers={"X-A": "1"}, delivery="payload").headers == (("x-a", "1"), (FORM_HEADER, "payload"))
    with pytest.raises(InvalidInput, match="batch"):
        read(Tenant(batch=5), delivery="payload")
    with pytest.raises(InvalidInput, match="set by Everbell"):
        read(headers={FORM_HEADER: "payload"})


def test_a_change_of_headers_keeps_the_form() -> None:
    event = event_of(read(delivery="structured"), "a", "shop")
    assert amended(event, Amendment(headers=(("x", "1"),)), NOW).headers == (("x", "1"), (FORM_HEADER, "structured"))


def test_attempts_may_be_without_a_limit() -> None:
    retry = read(retry={"max_attempts": None}).retry
    assert retry is not None
    assert retry.limit is None
    assert may_retry(retry, 1_000_000, Outcome("failed"))
    assert pause_ms(retry, 1_000_000, 0.0) == retry.max_backoff_ms


def test_a_tenant_may_refuse_times_in_the_past() -> None:
    strict = Tenant(past="reject", past_grace_ms=10_000)
    late = format_instant(NOW - 10_001)
    assert read(Tenant(), at=late).due_at == NOW - 10_001
    assert read(strict, at=format_instant(NOW - 10_000)).due_at == NOW - 10_000
    with pytest.raises(InvalidInput, match="lies in the past"):
        read(strict, at=late)
    with pytest.raises(InvalidInput, match="lies in the past"):
        amendment_of(ChangeSpec(at=late), strict, NOW)
    assert not may_be_simple(strict)
