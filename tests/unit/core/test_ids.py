"""Made ids: they contain their place, sort by it, and differ from every other text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.ids import NONCE_BYTES, SEQUENCE_MAX, is_made, make_id, make_ids, partition_of, place_in
from everbell.core.time import INSTANT_MAX

places = st.tuples(st.integers(0, INSTANT_MAX), st.integers(0, SEQUENCE_MAX), st.integers(0, 65_535))
nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)


@given(places, nonces)
def test_a_made_id_carries_its_place(place: tuple[int, int, int], nonce: bytes) -> None:
    event_id = make_id(*place, nonce)

    assert place_in(event_id) == place
    assert is_made(event_id)


@given(places, places, nonces, nonces)
def test_ids_sort_by_time_then_acceptance(
    one: tuple[int, int, int], other: tuple[int, int, int], nonce: bytes, other_nonce: bytes
) -> None:
    if one != other:
        assert (make_id(*one, nonce) < make_id(*other, other_nonce)) == (one < other)


@given(places, nonces)
def test_a_made_id_needs_no_escaping_in_a_url(place: tuple[int, int, int], nonce: bytes) -> None:
    event_id = make_id(*place, nonce)

    assert event_id.startswith("ev_")
    assert event_id.replace("-", "").replace("_", "").isalnum()
    assert event_id.isascii()


@given(places, nonces, nonces)
def test_the_nonce_tells_ids_apart(place: tuple[int, int, int], nonce: bytes, other: bytes) -> None:
    assert (make_id(*place, nonce) == make_id(*place, other)) == (nonce == other)


@pytest.mark.parametrize(
    "text",
    ["", "ev_", "order-17", "ev_" + "0" * 31, "ev_" + "0" * 33, "ev_" + "é" * 32, "ev_" + "=" * 32, "xx_" + "0" * 32],
)
def test_other_texts_carry_no_place(text: str) -> None:
    assert place_in(text) is None


@given(st.text(max_size=40))
def test_any_text_may_be_asked_for_its_place(text: str) -> None:
    place_in(text)
    place_in("ev_" + text)


# Stored events rely on these numbers: a change would make them unfindable.
@pytest.mark.parametrize(
    ("tenant", "name", "partition"), [("default", "order-17", 253), ("shop", "order-17", 37), ("shop", "クーポン", 48)]
)
def test_the_partition_of_a_name_never_changes(tenant: str, name: str, partition: int) -> None:
    assert partition_of(tenant, name, 256) == partition


@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 65_536))
def test_every_name_has_a_partition(tenant: str, name: str, partitions: int) -> None:
    assert 0 <= partition_of(tenant, name, partitions) < partitions


@given(st.lists(st.integers(0, INSTANT_MAX), max_size=60), st.integers(1, SEQUENCE_MAX - 60), st.data())
def test_many_ids_are_the_same_as_each_alone(dues: list[int], first: int, data: st.DataObject) -> None:
    partitions = data.draw(st.lists(st.integers(0, 65_535), min_size=len(dues), max_size=len(dues)))
    fresh = data.draw(st.lists(nonces, min_size=len(dues), max_size=len(dues)))
    assert make_ids(dues, first, partitions, b"".join(fresh)) == [
        make_id(due_at, first + i, partitions[i], fresh[i]) for i, due_at in enumerate(dues)
    ]
