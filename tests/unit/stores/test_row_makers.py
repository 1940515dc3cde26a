"""The rows that a row maker prepares are the rows that the engine itself would write."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.allotment import Allotment
from everbell.core.event import Event
from everbell.core.ids import NONCE_BYTES, SEQUENCE_MAX, make_id
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import event_of
from everbell.core.time import INSTANT_MAX
from everbell.stores.memory.row_maker import MemoryRowMaker
from everbell.stores.port import PreparedRows, RowMaker
from everbell.stores.rocksdb.keys import event_key
from everbell.stores.rocksdb.row_maker import RocksdbRowMaker
from everbell.stores.row_makers import row_maker
from everbell.stores.rows import HEAD_BYTES, labelled_row

TARGETS = st.sampled_from(["queue:q", "https://shop.example/" + "x" * 300, "handler:é", "kafka://topic"])
PAYLOADS = st.sampled_from([b"null", b"x" * 255, b"x" * 256, b"x" * 65_535, b"x" * 65_536, b"\x00\xff"])
EVENTS = st.lists(st.tuples(st.integers(0, INSTANT_MAX), TARGETS, PAYLOADS), min_size=1, max_size=40)
PARTITIONS = st.lists(st.integers(0, 65_535), min_size=1, max_size=4, unique=True).map(tuple)


@given(EVENTS, st.integers(1, SEQUENCE_MAX - 100), PARTITIONS, st.sampled_from(["shop", "t" * 64]), st.data())
def test_prepared_rows_keys_and_ids_equal_those_of_the_engine(
    events: list[tuple[int, str, bytes]], first: int, partitions: tuple[int, ...], tenant: str, data: st.DataObject
) -> None:
    batch = SimpleBatch(*map(list, zip(*events, strict=True)))
    nonces = data.draw(st.binary(min_size=NONCE_BYTES * len(events), max_size=NONCE_BYTES * len(events)))
    allotment = Allotment(first, len(events), partitions, "rocksdb")
    maker = RocksdbRowMaker()

    made, ids = maker.make(tenant, batch, allotment, nonces, 1_767_225_600_000)

    places = [partition for partition, share in allotment.runs() for _ in range(share)]
    expected = []
    for index, (draft, partition) in enumerate(zip(batch.drafts(), places, strict=True)):
        nonce = nonces[NONCE_BYTES * index : NONCE_BYTES * (index + 1)]
        event_id = make_id(draft.due_at, first + index, partition, nonce)
        expected.append(event_of(draft, event_id, tenant, partition, first + index, 1_767_225_600_000))
    assert maker.events(made) == expected
    assert ids == [event.id for event in expected]
    keys, rows = made.body
    assert keys == list(map(event_key, expected))
    assert [row[:HEAD_BYTES] for row in rows] == [labelled_row(event)[:HEAD_BYTES] for event in expected]
    assert made.last_sequence == expected[-1].sequence
    start = 0
    for run in made.runs:
        own = expected[start : start + run.count]
        assert {event.partition for event in own} == {run.partition}
        assert (min(e.run_at for e in own), max(e.run_at for e in own)) == (run.first_at, run.last_at)
        start += run.count
    assert start == made.count
    assert SimpleBatch.of(maker.events(made)) == batch
    others, other_ids = MemoryRowMaker().make(tenant, batch, allotment, nonces, 1_767_225_600_000)
    assert (MemoryRowMaker().events(others), other_ids) == (expected, ids)


@pytest.mark.parametrize("maker", [MemoryRowMaker(), RocksdbRowMaker()])
def test_prepared_rows_travel_unchanged(maker: RowMaker) -> None:
    allotment = Allotment(1, 1, (2,), maker.format)
    rows, _ = maker.make("shop", SimpleBatch([5], ["queue:q"], [b"{}"]), allotment, bytes(NONCE_BYTES), 3)

    received = msgspec.msgpack.decode(msgspec.msgpack.encode(rows), type=PreparedRows)

    assert received == rows
    assert row_maker(allotment.row_format).events(received) == maker.events(rows)


def test_the_fields_that_are_stamped_are_the_first_of_an_event() -> None:
    stamped = ("id", "tenant", "partition", "sequence", "due_at", "run_at", "to", "payload", "created_at")

    assert Event.__struct_fields__[: len(stamped)] == stamped
    assert len(Event.__struct_defaults__) == len(Event.__struct_fields__) - len(stamped)
