"""The occurrence that handlers and workers receive."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from everbell.core.event import Event, Repeat
from everbell.core.occurrence import occurrence_of

EVENT = Event(
    "order-17", "shop", 3, 17, 1_767_225_600_250, 1_767_225_600_250, "queue:work", b'{"order": 17}', 1, "order-17"
)


def test_an_occurrence_tells_which_attempt_of_which_occurrence_it_is() -> None:
    occurrence = occurrence_of(replace(EVENT, repeat=Repeat(1_000), occurrence=4), attempt=2, epoch=9, attempts_max=2)

    assert (occurrence.id, occurrence.number, occurrence.attempt, occurrence.epoch) == ("order-17", 4, 2, 9)
    assert (occurrence.tenant, occurrence.key) == ("shop", "order-17")


def test_a_detached_occurrence_has_the_name_of_the_recurring_event() -> None:
    occurrence = occurrence_of(replace(EVENT, id="ev_x", origin="order-17", occurrence=4), 1, 1, None)

    assert (occurrence.id, occurrence.number) == ("order-17", 4)


def test_a_json_payload_is_decoded_and_bytes_stay_bytes() -> None:
    assert occurrence_of(EVENT, 1, 1, None).payload == {"order": 17}
    assert occurrence_of(replace(EVENT, payload=b"\x00", content_type="image/png"), 1, 1, None).payload == b"\x00"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"1e400", inf),
        (b'{"order": 17, "least": [-1e400], "name": "\xc3\xa9"}', {"order": 17, "least": [-inf], "name": "é"}),
        (b"9" * 5_000, inf),
        (b"[-" + b"9" * 5_000 + b", 1e-400]", [-inf, 0.0]),
    ],
)
def test_a_number_that_python_cannot_read_is_infinite(written: bytes, read: Any) -> None:
    assert occurrence_of(replace(EVENT, payload=written), 1, 1, None).payload == read


def test_the_due_time_is_given_as_a_datetime_too() -> None:
    assert occurrence_of(EVENT, 1, 1, None).due == datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)
