"""Events in records: tenants, keys, ids and times, and poison records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.batch_item import BatchItem
from everbell.core.kafka_targets import KafkaTargets
from everbell.core.spec import Draft
from everbell.core.tenant import Limits, Tenant, Tenants
from everbell.core.time import MINUTE_MS
from everbell.edge.drafting import Edge
from everbell.http.address_guard import Guard
from everbell.kafka import record as record_module
from everbell.kafka.record import Asked, KafkaRecord, PoisonRecord, RecordReader
from everbell.kafka.settings import KafkaTopic
from tests.turns import turns_beside

NOW = 1_767_225_600_000
WRITTEN_AT = NOW - 7_200_000
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class FixedClock:
    def now(self) -> int:
        return NOW

    def elapsed_ms(self) -> int:
        return 0


EDGE = Edge(Tenants(), FixedClock(), allows_handlers=False, kafka=KafkaTargets(frozenset({""})))


def reader(value_bytes_max: int = 10_000) -> RecordReader:
    clock = FixedClock()
    tenants = Tenants(named=(Tenant("small", limits=Limits(payload_bytes=10, batch_events=3)),))
    topics = (KafkaTopic("orders", "shop"), KafkaTopic("any"), KafkaTopic("little", "small"))
    return RecordReader(
        topics, Edge(tenants, clock, allows_handlers=False, kafka=KafkaTargets(frozenset({""}))), clock, value_bytes_max
    )


def record(
    value: object, topic: str = "any", key: bytes | None = None, at: int = WRITTEN_AT, **headers: str | bytes
) -> KafkaRecord:
    text = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    named = {name.replace("_", "-"): content for name, content in headers.items()}
    encoded = [(name, content if isinstance(content, bytes) else content.encode()) for name, content in named.items()]
    return KafkaRecord(topic, 3, 1_234, at, key, text, encoded or None)


def event(**fields: Any) -> dict[str, Any]:
    return {"to": "queue:work", "in": 0, **fields}


def read(record: KafkaRecord, by: RecordReader | None = None) -> tuple[Sequence[Asked], Sequence[PoisonRecord]]:
    return asyncio.run((by or reader()).read(record))


def asked(record: KafkaRecord) -> list[Asked]:
    events, poisons = read(record)
    assert not poisons
    return list(events)


def one(record: KafkaRecord) -> Asked:
    (event,) = asked(record)
    return event


def draft_of(asked: Asked) -> Draft:
    assert asked.item.draft is not None
    return asked.item.draft


def poison(record: KafkaRecord, **options: int) -> PoisonRecord:
    events, poisons = read(record, reader(**options))
    (only,) = poisons
    assert not events
    return only


def test_a_record_is_an_event_of_the_http_api() -> None:
    found = one(record(event(id="o-1", key="k", payload={"a": [1]}, tags=["x"])))

    assert (found.tenant, draft_of(found).id, draft_of(found).key) == ("default", "o-1", "k")
    assert (draft_of(found).to, draft_of(found).payload, draft_of(found).tags) == ("queue:work", b'{"a": [1]}', ("x",))


def test_an_event_without_an_id_gets_one_from_the_place_of_its_record() -> None:
    assert draft_of(one(record(event()))).id == "kafka:any:3:1234"
    assert draft_of(one(record(event(), everbell_id="own"))).id == "own"
    assert draft_of(one(record(event(id="own"), everbell_id="own"))).id == "own"

    batch = asked(record([event(), event(id="own"), event()]))
    assert [draft_of(each).id for each in batch] == ["kafka:any:3:1234:0", "own", "kafka:any:3:1234:2"]
    batch = asked(record([event(), event()], everbell_id="o"))
    assert [draft_of(each).id for each in batch] == ["o:0", "o:1"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        (None, None),
        (b"", None),
        (b"order-17", "order-17"),
        ("größe".encode(), "größe"),
        (b"\x00\x00\x00\x11", "0x00000011"),
        (b"\xff", "0xff"),
        (b"two\nlines", "0x74776f0a6c696e6573"),
    ],
)
def test_the_key_of_a_record_is_the_key_of_events_that_name_none(key: bytes | None, meant: str | None) -> None:
    assert draft_of(one(record(event(), key=key))).key == meant
    assert draft_of(one(record(event(key="own"), key=key))).key == "own"


def test_a_record_may_replace_or_cancel_an_event() -> None:
    put = one(record(event(mode="put", id="o-1"), key=b"k"))
    assert (put.item.mode, put.item.id, draft_of(put).key) == ("put", "o-1", "k")
    assert one(record({"mode": "cancel", "id": "o-1"}, key=b"k")).item == BatchItem("cancel", "o-1")
    assert one(record({"mode": "cancel"}, key=b"k", everbell_id="o-1")).item == BatchItem("cancel", "o-1")
    batch = asked(record([event(mode="put", id="a"), {"mode": "cancel", "id": "a"}, event()], key=b"k"))
    assert [(each.item.mode, each.item.id) for each in batch] == [
        ("put", "a"),
        ("cancel", "a"),
        ("create", "kafka:any:3:1234:2"),
    ]
    assert "is needed to put" in poison(record(event(mode="put"))).reason
    assert "is needed to cancel" in poison(record({"mode": "cancel"})).reason


def test_the_tenant_is_the_topic_s_or_the_header_s_or_the_default() -> None:
    assert one(record(event())).tenant == "default"
    assert one(record(event(), everbell_tenant="blue")).tenant == "blue"
    assert one(record(event(), topic="orders")).tenant == "shop"
    assert one(record(event(), topic="orders", everbell_tenant="shop")).tenant == "shop"


def test_a_duration_counts_from_the_time_of_the_record_not_from_when_it_is_read() -> None:
    assert draft_of(one(record(event(**{"in": "1m"})))).due_at == WRITTEN_AT + MINUTE_MS


def test_a_record_from_the_future_or_without_a_time_counts_from_now() -> None:
    assert draft_of(one(record(event(**{"in": "1m"}), at=NOW + 5_000))).due_at == NOW + MINUTE_MS
    assert draft_of(one(record(event(**{"in": "1m"}), at=0))).due_at == NOW + MINUTE_MS


def test_a_trace_in_the_headers_is_taken_along_and_a_wrong_one_is_not() -> None:
    assert draft_of(one(record(event(), traceparent=TRACE))).traceparent == TRACE
    assert draft_of(one(record(event(), traceparent="nonsense"))).traceparent is None


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (record(b"{nonsense"), "malformed"),
        (record(b'{"to": "queue:work", "in": 0, "payload": "\xff"}'), "UTF-8"),
        (record(b""), "no value"),
        (record(None), "no value"),
        (record(b"17"), "object"),
        (record(b"[]"), "empty"),
        (record({"to": "queue:work"}), "at: give at"),
        (record({"in": 0}), "to: is missing"),
        (record(event(to="kafka://far/orders")), "no Kafka cluster 'far'"),
        (record(event(to="handler:work")), "no handlers"),
        (record(event(colour="red")), "colour"),
        (record(event(), everbell_tenant="-"), "a tenant's name"),
        (record(event(), everbell_tenant=b"\xff"), "not UTF-8"),
        (record(event(), topic="orders", everbell_tenant="blue"), "for the events of 'shop', not of 'blue'"),
        (record(event(id="one"), everbell_id="other"), "id: differs from the header"),
        (record(event(id="ev_1")), "made by Everbell"),
        (record(event(), key=b"k" * 600), "key: is longer than 512 bytes"),
        (record(event(payload="x" * 20), topic="little"), "payload"),
        (record([event()] * 4, topic="little"), "more than 3 events"),
    ],
)
def test_an_invalid_record_is_poison_with_the_reason(refused: KafkaRecord, reason: str) -> None:
    assert reason in poison(refused).reason


def test_a_record_with_a_closed_address_is_poison() -> None:
    guarded = Edge(Tenants(), FixedClock(), allows_handlers=False, guard=Guard())
    by = RecordReader((KafkaTopic("any"),), guarded, FixedClock(), 10_000)
    _, (refused,) = asyncio.run(by.read(record(event(to="http://10.0.0.1/"))))
    assert "--allow-targets" in refused.reason


def test_a_record_that_is_too_large_is_poison() -> None:
    assert "more than 100 bytes" in poison(record(event(payload="x" * 100)), value_bytes_max=100).reason


def test_a_record_with_an_unforeseen_error_is_poison_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(Edge, "checked", fail)
    events, (poison,) = read(record(event()))
    assert not events
    assert "a bug" in poison.reason
    assert "any:3:1234" in caplog.text


def test_only_invalid_events_of_an_array_are_poison_and_are_kept_unchanged() -> None:
    events, poisons = read(record(b'[{"to":"queue:a","in":0}, {"to" : "nix", "in":0}, 17]'))

    assert [draft_of(each).to for each in events] == ["queue:a"]
    assert [(each.index, each.value) for each in poisons] == [(1, b'{"to" : "nix", "in":0}'), (2, b"17")]
    assert "is not a target" in poisons[0].reason


@given(
    st.binary(max_size=200), st.binary(max_size=20), st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=20)))
)
def test_any_record_is_taken_or_poison(value: bytes, key: bytes, headers: list[tuple[str, bytes]]) -> None:
    events, poisons = read(KafkaRecord("any", 0, 0, 0, key, value, headers))

    assert bool(events) or bool(poisons)


@given(
    st.lists(
        st.one_of(
            st.builds(lambda payload: event(payload=payload), st.integers() | st.text(max_size=5)),
            st.integers(),
            st.just({}),
        ),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_a_record_read_again_yields_the_same_events(elements: list[object], is_array: bool) -> None:
    asking = record(elements if is_array else elements[0], key=b"k")
    first, again = read(asking), read(asking)

    assert first == again
    assert len(first[0]) + len(first[1]) == (len(elements) if is_array else 1)
    ids = [draft_of(each).id for each in first[0]]
    assert len(set(ids)) == len(ids)


def test_a_record_with_unreadable_headers_is_poison() -> None:
    events, (poison,) = read(KafkaRecord("any", 3, 1_234, NOW, None, b"{}", None, "the name of a header is wrong"))

    assert not events
    assert poison.reason == "the name of a header is wrong"


def test_an_array_is_split_once_for_all_its_refused_events() -> None:
    """However many there are: an array that is decoded for each of them takes time that grows with their square."""
    refused = [event(to=f"nowhere:{number}") for number in range(2_000)]
    _, poisons = read(record(refused), RecordReader((KafkaTopic("any"),), EDGE, FixedClock(), 10_000_000))
    decoded = record_module._elements.cache_info().misses

    assert [json.loads(poison.value or b"") for poison in poisons] == refused
    assert record_module._elements.cache_info().misses == decoded + 1


def test_other_tasks_run_while_an_array_is_read() -> None:
    patient = RecordReader((KafkaTopic("any"),), EDGE, FixedClock(), 10_000_000)
    for element in (b'{"a":1}', b'{"to":"nowhere:1","in":0}'):
        array = record(b"[" + b",".join([element] * 5_000) + b"]")
        (_, poisons), turns = asyncio.run(turns_beside(patient.read(array)))
        assert len(poisons) == 5_000
        assert turns >= 100
