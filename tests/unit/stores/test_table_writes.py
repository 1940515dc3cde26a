"""The rows of `TableWrites`. The conformance suite checks that they are right; these tests, that none is redundant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everbell.core.time import HOUR_MS
from everbell.stores.port import Add, Block, Change, Finish, Move, Refusal, Unblock
from everbell.stores.table_writes import KnownIds, TableWrites, entry_of, place_of
from everbell.stores.write_path import WritePath
from tests.conformance.stores import NOW, event, finish, record


def path_of(
    *changes: Change, known: KnownIds | None = None, guarded: Mapping[Any, Any] | None = None
) -> WritePath[TableWrites]:
    path = WritePath(changes, TableWrites(known or {}, guarded or {}))
    path.make(0, len(changes))
    return path


def writes_of(*changes: Change) -> TableWrites:
    return path_of(*changes).layout


def test_an_event_with_a_made_id_is_one_row() -> None:
    one = event(1)
    writes = writes_of(Add(one))
    assert list(writes.scheduled.rows) == [(one.partition, one.run_at, 1)]
    assert (writes.scheduled.gone, writes.claims, writes.entries, writes.records) == (set(), {}, {}, {})
    assert writes.counts == {"shop": [1, 0, 0, 0, 0]}


def test_finishing_it_removes_one_row_and_adds_a_record() -> None:
    one = event(1)
    writes = writes_of(finish(one))
    assert writes.scheduled.gone == {(one.partition, one.run_at, 1)}
    assert list(writes.records) == [(NOW // HOUR_MS + 1, "shop", one.id, 0)]
    assert (writes.scheduled.rows, writes.claims, writes.entries) == ({}, {}, {})
    assert writes.counts == {"shop": [-1, 0, 1, 0, 0]}


def test_finishing_it_twice_adds_one_record() -> None:
    one = event(1)
    writes = writes_of(finish(one), finish(one))
    assert list(writes.records) == [(NOW // HOUR_MS + 1, "shop", one.id, 0)]


def test_a_row_that_is_added_and_removed_is_not_written() -> None:
    one = event(1)
    later = replace(one, run_at=NOW + 9, attempt_count=1)
    writes = writes_of(Add(one), Move(one, later), Finish(later, record(later), NOW))
    assert writes.scheduled.rows == {}
    assert writes.entries == {("shop", one.id): None}
    assert writes.counts == {"shop": [0, 0, 1, 0, 0]}


def test_a_row_that_changes_in_its_place_is_removed_and_added() -> None:
    one = event(1)
    writes = writes_of(Move(one, replace(one, payload=b"[]", version=2)))
    assert writes.scheduled.gone == set(writes.scheduled.rows) == {place_of(one)[1]}
    assert writes.entries == {}


def test_a_client_given_id_is_claimed_with_its_final_place() -> None:
    one = event(1, id="order-1", key="k")
    waiting = replace(one, state="waiting")
    writes = writes_of(Add(one), Move(one, waiting))
    assert writes.claims == {("shop", "order-1"): ("W", one.partition, one.due_at, 1, "k")}
    assert writes.entries == {}


def test_a_taken_id_is_refused_and_an_expired_one_is_replaced() -> None:
    taken, over, lost, new = (event(number, id=f"order-{number}") for number in range(1, 5))
    known: KnownIds = {
        ("shop", "order-1"): (entry_of(taken), taken),
        ("shop", "order-2"): (("H", 0, 999, 0, None), (record(over), NOW)),
        ("shop", "order-3"): (("E", 0, 1, 2, None), None),
    }
    path = path_of(Add(taken), Add(over), Add(lost), Add(new), known=known)
    writes = path.layout
    assert path.refusals == {0: Refusal(taken)}
    assert set(writes.claims) == {("shop", f"order-{number}") for number in (2, 3, 4)}
    assert set(writes.freed) == {("shop", "order-2"), ("shop", "order-3")}


def test_an_id_is_known_after_an_earlier_change_of_the_same_apply() -> None:
    first = event(1, id="order-1")
    again = event(2, id="order-1", created_at=NOW + 1)
    writes = writes_of(finish(first, keep_ms=0), Add(again))
    assert writes.claims == {}
    assert writes.entries == {("shop", "order-1"): entry_of(again)}


def test_a_guarded_change_needs_the_event_that_it_names() -> None:
    one = event(1)
    other = replace(one, version=2)
    assert path_of(Move(one, other, guarded=True)).refusals == {0: Refusal(None)}
    assert path_of(Move(one, other, guarded=True), guarded={place_of(one): other}).refusals == {0: Refusal(None)}
    assert path_of(Move(one, other, guarded=True), guarded={place_of(one): one}).refusals == {}


def test_only_the_last_head_of_a_key_is_written() -> None:
    writes = writes_of(
        Block(1, "shop", "k", 5), Unblock(1, "shop", "k"), Unblock(1, "shop", "j"), Block(1, "shop", "j", 6)
    )
    assert writes.heads == {(1, "shop", "k"): None, (1, "shop", "j"): 6}
