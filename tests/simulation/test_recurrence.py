"""Recurring events under faults: each occurrence is delivered, or recorded as missed or skipped.

And the reverse: without one rule of the engine, the checker notices.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from everbell.core import recurrence, verdict
from everbell.core.event import Course, Event
from everbell.core.recurrence import Jump
from everbell.engine import dispatcher
from tests.simulation.recurring_world import simulate_recurring

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", range(40))
def test_every_occurrence_is_delivered_or_recorded_as_left_out(seed: int) -> None:
    assert simulate_recurring(seed).broken == []


def test_the_worlds_have_faults() -> None:
    worlds = [simulate_recurring(seed) for seed in range(5)]
    accounts = [account for world in worlds for account in world.checker.accounts.values()]
    assert sum(account.missed for account in accounts) > 100
    assert sum(account.skipped for account in accounts) > 20
    assert sum(account.fired for account in accounts) > 200
    assert sum(not rang.accepted for world in worlds for rang in world.checker.rang) > 50


def nothing_is_late(patch: Patch) -> None:
    """Every missed occurrence is delivered late."""
    patch.setattr(dispatcher, "instead", lambda event, now: None)


def jumps_are_not_counted(patch: Patch) -> None:
    """Skipped occurrences are not recorded."""
    proceed = recurrence.proceed

    def forgetful(event: Event, ahead: Jump, course: Course) -> Event | None:
        return proceed(event, ahead, replace(course, late=0, overlapped=0))

    patch.setattr(recurrence, "proceed", forgetful)
    patch.setattr(verdict, "proceed", forgetful)


def numbers_are_given_by_rings(patch: Patch) -> None:
    """An occurrence is numbered by the number of deliveries of the event."""
    proceed = recurrence.proceed

    def recounting(event: Event, ahead: Jump, course: Course) -> Event | None:
        comes = proceed(event, ahead, course)
        return None if comes is None else replace(comes, occurrence=event.occurrence + 1)

    patch.setattr(recurrence, "proceed", recounting)
    patch.setattr(verdict, "proceed", recounting)


@pytest.mark.parametrize("sabotage", [nothing_is_late, jumps_are_not_counted, numbers_are_given_by_rings])
def test_without_a_rule_the_checker_notices(sabotage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    sabotage(monkeypatch)
    assert any(simulate_recurring(seed).broken for seed in range(5))
