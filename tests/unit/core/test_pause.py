"""Pauses: their forms, their documents, and the events that a set of pauses holds up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.cluster import Policy
from everbell.core.pause import (
    Pause,
    PauseSpec,
    What,
    encode_pause,
    held_by,
    label_of,
    pause_of,
    pauses_in,
    place_of,
    thing_of,
)
from everbell.core.target import group_of
from everbell.errors import InvalidInput

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("what", "name", "kept"),
    [
        ("tenant", None, ("tenant", "")),
        ("key", "order/17 ✓", ("key", "order/17 ✓")),
        ("queue", "mail", ("queue", "mail")),
        ("target", "queue:mail", ("queue", "mail")),
        ("target", "handler:remind", ("target", "handler:remind")),
        ("target", "https://Shop.Example", ("target", "https://shop.example")),
        ("target", "https://shop.example:443/", ("target", "https://shop.example")),
        ("target", "http://[::1]:8080", ("target", "http://[::1]:8080")),
        ("target", "kafka://", ("target", "kafka://")),
        ("target", "kafka://east/", ("target", "kafka://east/")),
    ],
)
def test_a_thing_is_written_in_one_way(what: What, name: str | None, kept: tuple[What, str]) -> None:
    assert thing_of(what, name) == kept
    assert thing_of(kept[0], kept[1] or None) == kept, "as it is shown, it can be given again"


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({"what": "tenant", "name": "shop"}, "name", "in the path"),
        ({"what": "key"}, "name", "say which key"),
        ({"what": "queue", "name": ""}, "name", "say which queue"),
        ({"what": "key", "name": "a\nb"}, "name", "control characters"),
        ({"what": "key", "name": "k" * 513}, "name", "longer than 512 bytes"),
        ({"what": "queue", "name": "no such/name"}, "name", "is not a queue name"),
        ({"what": "target", "name": "ftp://shop.example"}, "name", "is not a target"),
        ({"what": "target", "name": "https://shop.example/a?b"}, "name", "write https://shop.example"),
        ({"what": "target", "name": "kafka://orders"}, "name", "write kafka://"),
        ({"what": "target", "name": "kafka://east/orders"}, "name", "write kafka://east/"),
        ({"what": "target", "name": "kafka://no name/"}, "name", "is not the name of a Kafka cluster"),
        ({"what": "tenant", "note": "a\x00b"}, "note", "control characters"),
        ({"what": "tenant", "until": "2026-11-20T10:00:00Z"}, "until", "is over"),
        ({"what": "tenant", "until": "tomorrow"}, "until", "RFC 3339"),
        ({"what": "tenant", "for_": 0}, "for", "is over"),
        ({"what": "tenant", "for_": "soon"}, "for", "is not a duration"),
        ({"what": "tenant", "for_": "9000d", "until": "2126-11-20T10:00:00Z"}, "for", "not both"),
    ],
)
def test_an_invalid_pause_is_explained(spec: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        pause_of("shop", PauseSpec(**spec), "me", NOW)
    assert refused.value.field == field
    assert says in refused.value.reason


def test_a_pause_ends_at_its_time_and_not_before() -> None:
    endless = pause_of("shop", PauseSpec("tenant", note="why not"), "me", NOW)
    assert (endless.note, endless.by, endless.since_at, endless.until_at) == ("why not", "me", NOW, None)
    assert endless.is_on(1 << 60)
    short = pause_of("shop", PauseSpec("key", "k", for_="2s"), "me", NOW)
    assert [short.is_on(NOW + after_ms) for after_ms in (0, 1_999, 2_000)] == [True, True, False]
    dated = pause_of("shop", PauseSpec("key", "k", until="2126-11-20T10:00:00Z"), "me", NOW)
    assert dated.until_at == 4_950_842_400_000


def test_pauses_hold_up_their_events() -> None:
    held = held_by(
        [
            Pause("shop", "tenant", "", 1, "me"),
            Pause("bank", "key", "k", 1, "me"),
            Pause("bank", "target", "https://bank.example", 1, "me"),
            Pause("bank", "queue", "mail", 1, "me"),
            Pause("bank", "target", "kafka://", 1, "me"),
            Pause("bank", "target", "kafka://east/", 1, "me"),
        ]
    )
    assert held.holds("shop", "anything")
    assert held.holds("bank", "https://bank.example:443")
    assert held.holds("bank", "queue:mail")
    assert held.holds("bank", group_of("kafka://orders"))
    assert held.holds("bank", group_of("kafka://east/orders"))
    assert not held.holds("bank", group_of("kafka://west/orders"))
    assert not held.holds("bank", "queue:other")
    assert not held.holds("third", "queue:mail")
    assert held.keys == {("bank", "k")}


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@given(st.sets(st.tuples(st.sampled_from(["a", "a.b"]), st.sampled_from(["key", "queue"]), names), max_size=20))
def test_every_thing_has_a_place_of_its_own_and_is_read_as_it_was_written(things: set[tuple[str, What, str]]) -> None:
    pauses = [Pause(*thing, number, "me") for number, thing in enumerate(sorted(things))]
    documents = {pause.place: Policy(1, encode_pause(pause)) for pause in pauses}
    assert len(documents) == len(pauses)
    assert pauses_in({**documents, "shop": Policy(1, b"{}"), "/keys/x": Policy(2, b"?")}) == (pauses, [])


def test_a_pause_of_a_newer_version_is_named() -> None:
    place = place_of("shop", "key", "k")
    assert pauses_in({place: Policy(1, b'{"what": "phase of the moon"}')}) == ([], [place])
    elsewhere = Pause("shop", "target", "carrier-pigeon://roof", 5, "nobody")
    assert pauses_in({elsewhere.place: Policy(1, encode_pause(elsewhere))}) == ([], [elsewhere.place])


def test_labels() -> None:
    assert label_of("shop", "key", "k") == "key 'k'"
    assert Pause("shop", "tenant", "", 1, "me").label == "tenant 'shop'"
