"""The rows of a parcel are those that the engine itself would have written."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.allotment import Allotment
from everbell.core.event import Event
from everbell.core.ids import NONCE_BYTES, SEQUENCE_MAX, make_id
from everbell.core.plain import Plain
from everbell.core.spec import event_of
from everbell.core.time import INSTANT_MAX
from everbell.stores.parcel import Parcel, parcel_of
from everbell.stores.rocksdb_keys import event_key
from everbell.stores.rows import HEAD_BYTES, labelled_row

TARGETS = st.sampled_from(["queue:q", "https://shop.example/" + "x" * 300, "handler:é", "kafka://topic"])
PAYLOADS = st.sampled_from([b"null", b"x" * 255, b"x" * 256, b"x" * 65_535, b"x" * 65_536, b"\x00\xff"])
EVENTS = st.lists(st.tuples(st.integers(0, INSTANT_MAX), TARGETS, PAYLOADS), min_size=1, max_size=40)
PARTITIONS = st.lists(st.integers(0, 65_535), min_size=1, max_size=4, unique=True).map(tuple)


@given(EVENTS, st.integers(1, SEQUENCE_MAX - 100), PARTITIONS, st.sampled_from(["shop", "t" * 64]), st.data())
def test_rows_keys_and_ids_are_the_engines_own(
    events: list[tuple[int, str, bytes]], first: int, partitions: tuple[int, ...], tenant: str, data: st.DataObject
) -> None:
    plain = Plain(*map(list, zip(*events, strict=True)))
    nonces = data.draw(st.binary(min_size=NONCE_BYTES * len(events), max_size=NONCE_BYTES * len(events)))
    allotment = Allotment(first, len(events), partitions)

    parcel, ids = parcel_of(tenant, plain, allotment, nonces, 1_767_225_600_000)

    places = [partition for partition, share in allotment.runs() for _ in range(share)]
    expected = []
    for index, (draft, partition) in enumerate(zip(plain.drafts(), places, strict=True)):
        nonce = nonces[NONCE_BYTES * index : NONCE_BYTES * (index + 1)]
        event_id = make_id(draft.due_at, first + index, partition, nonce)
        expected.append(event_of(draft, event_id, tenant, partition, first + index, 1_767_225_600_000))
    assert parcel.events() == expected
    assert ids == [event.id for event in expected]
    assert parcel.keys == list(map(event_key, expected))
    assert [row[:HEAD_BYTES] for row in parcel.rows] == [labelled_row(event)[:HEAD_BYTES] for event in expected]
    assert parcel.last_sequence == expected[-1].sequence
    start = 0
    for run in parcel.runs:
        own = expected[start : start + run.count]
        assert {event.partition for event in own} == {run.partition}
        assert (min(e.run_at for e in own), max(e.run_at for e in own)) == (run.first_at, run.last_at)
        start += run.count
    assert start == len(parcel)
    assert parcel.plain() == plain


def test_a_parcel_travels_unchanged() -> None:
    parcel, _ = parcel_of("shop", Plain([5], ["queue:q"], [b"{}"]), Allotment(1, 1, (2,)), bytes(NONCE_BYTES), 3)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(parcel), type=Parcel) == parcel


def test_the_fields_that_are_stamped_are_the_first_of_an_event() -> None:
    stamped = ("id", "tenant", "partition", "sequence", "due_at", "run_at", "to", "payload", "created_at")

    assert Event.__struct_fields__[: len(stamped)] == stamped
    assert len(Event.__struct_defaults__) == len(Event.__struct_fields__) - len(stamped)
