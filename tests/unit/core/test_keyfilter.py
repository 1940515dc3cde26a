"""The Bloom filter of keys: never a wrong "no", and few wrong "perhaps"."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everbell.core.keyfilter import GrowingKeyFilter, KeyFilter

names = st.tuples(st.text(max_size=10), st.text(max_size=10))


@given(st.lists(names, max_size=50))
def test_an_added_key_is_never_denied(keys: list[tuple[str, str]]) -> None:
    seen = KeyFilter(64)
    for key in keys:
        seen.add(*key)

    assert all(seen.perhaps(*key) for key in keys)


@given(names)
def test_an_empty_filter_denies_everything(key: tuple[str, str]) -> None:
    assert not KeyFilter(64).perhaps(*key)


def test_other_keys_are_mostly_denied() -> None:
    seen = KeyFilter(32_768)
    for number in range(1_000):
        seen.add("shop", f"order-{number}")

    wrong = sum(seen.perhaps("shop", f"order-{number}") for number in range(1_000, 11_000))

    assert wrong < 10_000 * 0.02


def test_the_same_key_of_another_tenant_is_another_key() -> None:
    seen = KeyFilter(32_768)
    seen.add("shop", "order-1")

    assert not seen.perhaps("bank", "order-1")


@given(st.sets(st.text(max_size=8), max_size=500))
def test_a_filter_that_grows_forgets_nothing(keys: set[str]) -> None:
    growing = GrowingKeyFilter()
    for key in keys:
        growing.add("t", key)
    assert all(growing.perhaps("t", key) for key in keys)


def test_a_filter_that_grows_is_seldom_wrong_however_many_there_are() -> None:
    growing = GrowingKeyFilter()
    wrong = []
    for thousands in (1, 10, 20):
        for number in range(thousands * 1_000):
            growing.add("shop", f"order-{number}")
        wrong.append(sum(growing.perhaps("shop", f"other-{number}") for number in range(10_000)))
    assert max(wrong) <= 20, wrong
