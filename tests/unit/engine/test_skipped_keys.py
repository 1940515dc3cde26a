"""The keys of skipped events: none is forgotten, their first time is known, and hardly any other is taken for one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everbell.engine.skipped_keys import EXACT_MAX, SkippedKeys

names = st.tuples(st.sampled_from(["shop", "bank"]), st.text(max_size=5))


@given(st.lists(st.tuples(names, st.integers(1, 1 << 47)), max_size=300))
def test_every_key_is_known_with_its_first_time(left: list[tuple[tuple[str, str], int]]) -> None:
    keys = SkippedKeys()
    first: dict[tuple[str, str], int] = {}
    for name, run_at in left:
        keys.add(*name, run_at)
        first[name] = min(run_at, first.get(name, run_at))
    assert {name: keys.first_at(*name) for name in first} == first
    assert keys.first_at("third", "key") is None


def test_beyond_a_limit_keys_are_known_without_their_time() -> None:
    keys = SkippedKeys()
    for number in range(EXACT_MAX + 1_000):
        keys.add("shop", f"order-{number}", 7)
    times = [keys.first_at("shop", f"order-{number}") for number in range(EXACT_MAX + 1_000)]
    assert times[:EXACT_MAX] == [7] * EXACT_MAX
    assert set(times[EXACT_MAX:]) == {0}


def test_others_are_hardly_ever_taken_for_one() -> None:
    keys = SkippedKeys()
    for number in range(EXACT_MAX):
        keys.add("shop", f"order-{number}", 7)
    assert [key for key in (f"other-{number}" for number in range(100_000)) if keys.first_at("shop", key)] == []
