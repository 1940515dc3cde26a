"""Duplicate keys are refused in every kind of body, and other texts are not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.batch_item import ItemSpec
from everbell.core.spec import EventSpec, PlainSpec
from everbell.edge.batch_body import NotPlain, read_batch, read_plain
from everbell.edge.bodies import Body
from everbell.edge.duplicate_keys import are_plain_unique, check_unique
from everbell.errors import InvalidInput

GOOD = b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":1}'
TWICE = [
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":1,"to":"queue:b"}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","to":"queue:a","payload":1}',
    b'{"at":"2030-01-01T00:00:00Z" , "to" : "queue:a" , "to" : "queue:b" }',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","t\\u006f":"queue:b"}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":1,"payload":2}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":{"a":1},"payload":"' + b"x" * 5_000 + b'"}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":"' + b"x" * 5_000 + b'","payload":null}',
    b'{"at":"","to":"queue:a","at":"2030-01-01T00:00:00Z"}',
]
TWICE_INSIDE = [
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","headers":{"x-a":"1","x-a":"2"}}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","retry":{"backoff":"1s","backoff":"2s"}}',
]
FINE = [
    GOOD,
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":{"to":1,"at":2,"payload":{"to":3}}}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":{"to":1,"to":2}}',
    b'{"at": "2030-01-01T00:00:00Z", "to": "queue:a", "payload": {"a": "b c"}}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":"\\"to\\":\\"to\\":"}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":"caf\\u00e9 \xc3\xa9 \\ud83d\\ude00"}',
    b'{"at":"2030-01-01T00:00:00Z","to":"queue:a","payload":{"to":"' + b"x" * 5_000 + b'"}}',
]


@pytest.mark.parametrize("text", TWICE + TWICE_INSIDE)
def test_a_key_that_is_there_twice_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="more than once"):
        Body(EventSpec).parse(text)
    [error] = read_batch(text, 10)
    assert "more than once" in str(error)
    [first, second, third] = read_batch(b"[%b,%b,%b]" % (GOOD, text, GOOD), 10)
    assert "more than once" in str(second)
    assert isinstance(first, ItemSpec)
    assert isinstance(third, ItemSpec)
    lines = list(read_batch(b"%b\n%b\n\n%b\n" % (GOOD, text, GOOD), 10))
    assert [isinstance(line, ItemSpec) for line in lines] == [True, False, True]
    with pytest.raises(NotPlain):
        list(read_plain(b"%b\n%b\n" % (GOOD, text)))


@pytest.mark.parametrize("text", FINE)
def test_everything_else_is_accepted(text: bytes) -> None:
    assert Body(EventSpec).parse(text).to == "queue:a"
    assert [event.to for event in read_batch(text, 10) if isinstance(event, ItemSpec)] == ["queue:a"]
    assert [event.to for _, events in read_plain(b"%b\n%b" % (text, GOOD)) for event in events] == ["queue:a"] * 2


def test_a_line_has_one_event() -> None:
    [error] = read_batch(GOOD * 3, 10)
    assert isinstance(error, InvalidInput)


def test_usual_batches_need_no_closer_look() -> None:
    for separators in ((",", ":"), (", ", ": ")):
        event = {"at": "2030-01-01T00:00:00Z", "to": "https://shop.example/", "payload": {"a": "b c", "d": [1, 2]}}
        lines = (json.dumps(event, separators=separators) + "\n").encode() * 20
        specs = msgspec.json.Decoder(PlainSpec).decode_lines(lines)
        assert are_plain_unique(lines, specs)
        assert are_plain_unique(lines[:-1], specs)


pairs = st.lists(
    st.tuples(
        st.sampled_from(["at", "to", "payload"]),
        st.text(st.sampled_from(' "\\:,{}atopyld\t\u00e9'), max_size=8)
        | st.none()
        | st.dictionaries(st.just("to"), st.none()),
    ),
    max_size=5,
)


@given(st.lists(pairs, min_size=1, max_size=4), st.sampled_from([",", ", ", " ,", "\t,"]), st.sampled_from([":", ": "]))
def test_the_quick_look_misses_nothing(events: list[list[tuple[str, Any]]], comma: str, colon: str) -> None:
    def text_of(event: list[tuple[str, Any]]) -> bytes:
        return (
            "{" + comma.join(f"{json.dumps(name)}{colon}{json.dumps(value)}" for name, value in event) + "}"
        ).encode()

    texts = [text_of(event) for event in events]
    has_twice = any(len({name for name, _ in event}) < len(event) for event in events)
    lines = b"\n".join(texts)
    try:
        specs = msgspec.json.Decoder(PlainSpec).decode_lines(lines)
    except msgspec.DecodeError:
        return
    if are_plain_unique(lines, specs):
        assert not has_twice
    try:
        for text, spec in zip(texts, specs, strict=True):
            check_unique(text, spec.payload)
        is_refused = False
    except InvalidInput:
        is_refused = True
    assert is_refused == has_twice
