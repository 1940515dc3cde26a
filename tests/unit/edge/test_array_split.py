"""Arrays are split as the decoder would split them, in bounded steps."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from everbell.edge.array_split import is_array, split_array
from everbell.errors import InvalidInput, TooLarge

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(values, max_size=8), st.sampled_from([None, 1]), st.sampled_from(["", " ", "\n\t "]))
def test_as_the_decoder_does(items: list[object], indent: int | None, space: str) -> None:
    body = f"{space}{json.dumps(items, indent=indent)}{space}".encode()
    texts = msgspec.json.decode(body, type=list[Raw])
    assert [text.strip() for text in split_array(body, 1_000)] == [bytes(text).strip() for text in texts]


@given(st.text(st.sampled_from('[]{},:"01 a\\tn'), max_size=14))
def test_what_the_decoder_refuses_is_refused(text: str) -> None:
    body = f"[{text}".encode()
    try:
        expected = len(msgspec.json.decode(body, type=list[Raw]))
    except msgspec.DecodeError:
        with pytest.raises((msgspec.DecodeError, InvalidInput)):
            list(split_array(body, 1_000))
    else:
        assert len(list(split_array(body, 1_000))) == expected


@pytest.mark.parametrize("size", [1, 2_046, 2_047, 2_048, 2_049, 8_192, 10_000])
def test_long_elements(size: int) -> None:
    for element in (b"1" * size, b'"' + b"x" * size + b'"'):
        body = b"[%b , %b]" % (element, element)
        assert [text.strip() for text in split_array(body, 20_000)] == [element, element]


def test_an_element_that_is_too_large_is_not_looked_at_further() -> None:
    with pytest.raises(TooLarge):
        list(split_array(b"[1," + b"[" + b"0," * 1_000_000 + b"0]]", 50_000))


def test_only_the_white_space_of_json_may_come_first() -> None:
    assert is_array(b" \t\r\n[]")
    assert not is_array(b"\x0b[]")
    assert not is_array(b"x[]")
    assert not is_array(b"  ")
