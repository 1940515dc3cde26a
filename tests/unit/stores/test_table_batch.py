"""What remains of the changes of one apply. That it is right is shown by the suite that runs on every store; here, that
it is no more than it has to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everbell.core.time import HOUR_MS
from everbell.stores.port import Add, Block, Change, Finish, Move, Refusal, Unblock
from everbell.stores.table_batch import Batch, Looked, entry_of, spot_of
from tests.conformance.stores import NOW, event, finish, record


def batch_of(*changes: Change, looked: Looked | None = None, guarded: Mapping[Any, Any] | None = None) -> Batch:
    batch = Batch(changes, looked or {}, guarded or {})
    batch.fill(0, len(changes))
    return batch


def test_an_event_with_a_made_id_is_one_row() -> None:
    one = event(1)
    batch = batch_of(Add(one))
    assert list(batch.scheduled.rows) == [(one.partition, one.run_at, 1)]
    assert (batch.scheduled.gone, batch.claims, batch.entries, batch.records) == (set(), {}, {}, {})
    assert batch.counts == {"shop": [1, 0, 0, 0, 0]}


def test_its_end_is_one_row_less_and_a_record() -> None:
    one = event(1)
    batch = batch_of(finish(one))
    assert batch.scheduled.gone == {(one.partition, one.run_at, 1)}
    assert [end[:4] for end in batch.ends] == [(NOW // HOUR_MS + 1, "shop", one.id, 0)]
    assert (batch.scheduled.rows, batch.records, batch.claims, batch.entries) == ({}, {}, {}, {})
    assert batch.counts == {"shop": [-1, 0, 1, 0, 0]}


def test_an_end_that_is_there_twice_is_one_record() -> None:
    one = event(1)
    batch = batch_of(finish(one), finish(one))
    assert (batch.ends, list(batch.records)) == ([], [(NOW // HOUR_MS + 1, "shop", one.id, 0)])


def test_what_comes_and_goes_is_not_written() -> None:
    one = event(1)
    later = replace(one, run_at=NOW + 9, attempt_count=1)
    batch = batch_of(Add(one), Move(one, later), Finish(later, record(later), NOW))
    assert batch.scheduled.rows == {}
    assert batch.entries == {("shop", one.id): None}
    assert batch.counts == {"shop": [0, 0, 1, 0, 0]}


def test_a_row_that_stays_in_its_place_goes_and_comes() -> None:
    one = event(1)
    batch = batch_of(Move(one, replace(one, payload=b"[]", version=2)))
    assert batch.scheduled.gone == set(batch.scheduled.rows) == {spot_of(one)[1]}
    assert batch.entries == {}


def test_a_client_given_id_is_claimed_with_the_place_where_it_ends_up() -> None:
    one = event(1, id="order-1", key="k")
    waiting = replace(one, state="waiting")
    batch = batch_of(Add(one), Move(one, waiting))
    assert batch.claims == {("shop", "order-1"): ("W", one.partition, one.due_at, 1, "k")}
    assert batch.entries == {}


def test_an_id_that_is_taken_is_refused_and_one_whose_record_is_over_replaced() -> None:
    taken, over, lost, new = (event(number, id=f"order-{number}") for number in range(1, 5))
    looked: Looked = {
        ("shop", "order-1"): (entry_of(taken), taken),
        ("shop", "order-2"): (("H", 0, 999, 0, None), (record(over), NOW)),
        ("shop", "order-3"): (("E", 0, 1, 2, None), None),
    }
    batch = batch_of(Add(taken), Add(over), Add(lost), Add(new), looked=looked)
    assert batch.refusals == {0: Refusal(taken)}
    assert set(batch.claims) == {("shop", f"order-{number}") for number in (2, 3, 4)}
    assert set(batch.freed) == {("shop", "order-2"), ("shop", "order-3")}


def test_an_id_is_ours_after_an_earlier_change_of_the_same_apply() -> None:
    first = event(1, id="order-1")
    again = event(2, id="order-1", created_at=NOW + 1)
    batch = batch_of(finish(first, keep_ms=0), Add(again))
    assert batch.claims == {}
    assert batch.entries == {("shop", "order-1"): entry_of(again)}


def test_a_guarded_change_needs_what_it_names() -> None:
    one = event(1)
    other = replace(one, version=2)
    assert batch_of(Move(one, other, guarded=True)).refusals == {0: Refusal(None)}
    assert batch_of(Move(one, other, guarded=True), guarded={spot_of(one): other}).refusals == {0: Refusal(None)}
    assert batch_of(Move(one, other, guarded=True), guarded={spot_of(one): one}).refusals == {}


def test_only_the_last_word_about_a_key_counts() -> None:
    batch = batch_of(
        Block(1, "shop", "k", 5), Unblock(1, "shop", "k"), Unblock(1, "shop", "j"), Block(1, "shop", "j", 6)
    )
    assert batch.heads == {(1, "shop", "k"): None, (1, "shop", "j"): 6}
