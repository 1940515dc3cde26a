"""The checker of recurring events: every occurrence was delivered, or was recorded as missed or skipped for a valid
reason.

It knows nothing of the engine. It gets the nominal times of each event, computed in another way; the deliveries that a
receiver saw; and the final counters of the event.

Rules:
    time          a delivery whose number does not belong to its nominal time
  early         a delivery before its nominal time
    order         numbers of one event that go back, or two of its deliveries in flight at once
    late          a delivery that the event's policy forbids: not of the newest occurrence, or beyond its window
    lost          an occurrence that was neither delivered nor recorded as missed or skipped
  account       counters that do not add up to the number of occurrences, or claim more deliveries than there were
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

GRACE_MS = 1_000


@dataclass(frozen=True)
class Recurring:
    """One recurring event that a client asked for, bounded by a count."""

    id: str
    times: tuple[int, ...]
    """Its nominal times, in order."""
    misfire: str = "all"
    catch_up_ms: int | None = None
    overlap: str = "wait"

    @property
    def leaves_nothing_out(self) -> bool:
        return self.misfire == "all" and self.catch_up_ms is None and self.overlap == "wait"


@dataclass(frozen=True)
class Rang:
    """One delivery, as the receiver saw it."""

    id: str
    number: int
    attempt: int
    due_at: int
    began_at: int
    ended_at: int
    epoch: int
    accepted: bool


@dataclass(frozen=True)
class Account:
    """The final counters of an event that has ended."""

    fired: int
    missed: int
    skipped: int


@dataclass
class RecurrenceChecker:
    """Collects the reports, then judges them."""

    attempts_max: int
    """After this number of attempts an occurrence is dead; a redriven occurrence is tried again however late it is."""
    asked: dict[str, Recurring] = field(default_factory=dict)
    rang: list[Rang] = field(default_factory=list)
    accounts: dict[str, Account] = field(default_factory=dict)

    def violations(self) -> list[str]:
        """All broken rules, in words."""
        found: list[str] = []
        for event in self.asked.values():
            deliveries = [rang for rang in self.rang if rang.id == event.id]
            given_up: set[int] = set()
            for rang in deliveries:
                found += _judge_delivery(event, rang, begins=rang.attempt == 1 and rang.number not in given_up)
                if rang.attempt == self.attempts_max and not rang.accepted:
                    given_up.add(rang.number)
            if event.overlap != "allow":
                found += _judge_order(deliveries)
            found += self._judge_account(event, {rang.number for rang in deliveries if rang.accepted})
        return found

    def _judge_account(self, event: Recurring, delivered: set[int]) -> list[str]:
        account = self.accounts.get(event.id)
        if account is None:
            return [f"lost: {event.id} never ended"]
        found = []
        left_out = account.missed + account.skipped
        if account.fired + left_out != len(event.times):
            found.append(f"account: {event.id} had {len(event.times)} occurrences, and says {account}")
        if account.fired > len(delivered):
            found.append(f"account: {event.id} fired {len(delivered)} times, and says {account}")
        if len(event.times) - len(delivered) > left_out:
            found.append(f"lost: {event.id} was delivered {sorted(delivered)}, and says {account}")
        if event.leaves_nothing_out and left_out:
            found.append(f"lost: {event.id} leaves nothing out, and says {account}")
        return found


def _judge_delivery(event: Recurring, rang: Rang, *, begins: bool) -> list[str]:
    name = f"{rang.id}:{rang.number}"
    if not 1 <= rang.number <= len(event.times) or rang.due_at != event.times[rang.number - 1]:
        return [f"time: {name} was due at {rang.due_at}"]
    found = []
    if rang.began_at < rang.due_at:
        found.append(f"early: {name} by {rang.due_at - rang.began_at} ms")
    # If occurrences may overlap, the engine decides when each one starts, and the receiver does not see that time.
    if begins and event.overlap != "allow":
        late_ms = rang.began_at - rang.due_at
        window_ms = GRACE_MS if event.misfire == "skip" and event.catch_up_ms is None else event.catch_up_ms
        if window_ms is not None and late_ms > window_ms:
            found.append(f"late: {name} began {late_ms} ms after its time, beyond {window_ms} ms")
        has_newer = rang.number < len(event.times) and event.times[rang.number] <= rang.began_at
        if event.misfire != "all" and has_newer:
            found.append(f"late: {name} began when a newer one was due")
    return found


def _judge_order(deliveries: list[Rang]) -> list[str]:
    """Between epochs, a delivery of a dead sender may still be in flight; even then, no number may go back."""
    found = []
    for one, other in pairwise(sorted(deliveries, key=lambda rang: (rang.began_at, rang.ended_at))):
        if other.number < one.number:
            found.append(f"order: {other.id}:{other.number} came after {one.number}")
        if other.epoch == one.epoch and other.began_at < one.ended_at:
            found.append(f"order: {one.id}:{one.number} and {other.number} were in flight together")
    return found
