"""The size of an event in a page is never underestimated, so the byte limit of a page holds for any content."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from everbell.api.views import event_view
from everbell.core.event import Attempt, Event, Record, Repeat
from everbell.engine.seen import Seen
from everbell.stores.searching import shown_bytes

anything = st.text(max_size=60) | st.text(st.sampled_from('\x00\x1f"\\\\\u20ac\U0001f600a'), max_size=60)
attempts = st.lists(
    st.builds(
        Attempt,
        st.integers(1, 1 << 40),
        st.integers(0, 1 << 45),
        st.integers(0, 1 << 40),
        st.sampled_from(["failed", "refused", "lost", "delivered"]),
        st.none() | anything,
        st.none() | st.integers(100, 999),
    ),
    max_size=10,
).map(tuple)
words = st.lists(anything, max_size=5).map(tuple)


@given(
    anything,
    anything,
    st.none() | anything,
    words,
    st.lists(st.tuples(anything, anything), max_size=5).map(tuple),
    attempts,
    st.binary(max_size=300),
    st.none() | anything,
    st.booleans(),
)
def test_an_event_is_no_larger_in_an_answer_than_it_counts(
    event_id: str,
    to: str,
    key: str | None,
    tags: tuple[str, ...],
    headers: tuple[tuple[str, str], ...],
    tried: tuple[Attempt, ...],
    payload: bytes,
    reason: str | None,
    repeats: bool,
) -> None:
    event = Event(
        event_id,
        "t" * 64,
        0,
        1,
        1 << 45,
        1 << 45,
        to,
        payload,
        1 << 45,
        key,
        attempts=tried,
        content_type="x/y",
        headers=tuple({name: (name, value) for name, value in headers}.values()),
        tags=tags,
        repeat=Repeat(60_000, 1 << 40) if repeats else None,
        reason=reason,
    )
    record = Record(event_id, "t" * 64, "delivered", 0, 1, to, 0, key, attempts=tried, tags=tags, reason=reason)
    for each in (event, record):
        shown = len(msgspec.json.encode(event_view(Seen.of(each, "delivered"), hidden=False)))
        assert shown <= shown_bytes(each)
