"""The helpers check input with the code of the API, before the database is asked."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from everbell import AsyncOutbox, Outbox
from everbell.errors import InvalidInput


class Untouched:
    """A connection that no call may reach."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("bad input reached the database")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"to": "mail", "in_": "1s"}, "to: 'mail' is not a target"),
        ({"to": "queue:a"}, "at: give at (a time) or in (a duration from now)"),
        ({"to": "queue:a", "at": datetime(2030, 1, 1)}, "at: 2030-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
        ({"to": "queue:a", "repeat": {"cron": "61 * * * *"}}, "repeat.cron: '61' is not a minute (0 to 59)"),
        ({"to": "queue:a", "in_": "1s", "id": "ev_1"}, "id: may not begin with ev_"),
    ],
)
def test_bad_events_leave_the_transaction_alone(event: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Outbox(Untouched()).schedule(1, **event)
    assert str(refused.value).startswith(message)


def test_bad_changes_leave_the_transaction_alone() -> None:
    outbox = Outbox(Untouched())
    with pytest.raises(InvalidInput, match=r"at: give at"):
        outbox.reschedule("a")
    with pytest.raises(InvalidInput, match=r"by: must be longer than nothing"):
        outbox.reschedule("a", by="0s")
    with pytest.raises(InvalidInput, match=r"id: expected"):
        outbox.cancel("")
    with pytest.raises(InvalidInput, match=r"tenant"):
        AsyncOutbox(Untouched(), "no tenant")


def test_what_only_a_policy_forbids_is_left_to_the_server() -> None:
    with pytest.raises(AssertionError, match="reached the database"):
        Outbox(Untouched()).schedule("x" * 1_000_000, in_=timedelta(days=9_000))
