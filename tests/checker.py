"""The independent checker: compares the requests, the acknowledgements and the deliveries, and lists the broken
promises.

It knows nothing of the engine. The client reports its requests and the receiver reports the calls it got. After a full
drain, `violations` compares the two.

Rules (K acknowledged, A attempted, D delivered):
  lost          an event in K that was neither delivered nor ended in another recorded way
    unexpected    a delivery of an event that no client asked for, or that was definitely refused
  early         a delivery before its due time
    altered       a body that differs from the body that was sent
  order         first deliveries of a key that are not in (due time, acceptance) order
    overlap       two events of one key in flight at once
  cancelled     an attempt that began after its cancel was acknowledged
  paused        an attempt that began while its tenant, key or target was paused
  duplicate     a second delivery that no unknown outcome explains
  number        one (id, occurrence) under two names, or an attempt number that does not grow
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

NEVER = 1 << 62


@dataclass
class Asked:
    """One event that a client asked for."""

    id: str
    due_at: int
    body: bytes
    key: str | None
    index: int
    occurrences: int = 1
    every_ms: int = 0
    acknowledged_at: int | None = None
    refused: bool = False
    cancelled_at: int | None = None
    cancel_unknown: bool = False
    moved: bool = False
    """The due time was changed, so the checker no longer knows the event's place in the order."""
    tenant: str = ""
    target: str = ""


@dataclass(frozen=True)
class Seen:
    """One delivery, as the receiver saw it."""

    id: str
    occurrence: int
    attempt: int
    epoch: int
    body: bytes
    began_at: int
    ended_at: int
    accepted: bool
    """Whether the receiver acknowledged the delivery."""
    answer_lost: bool = False
    """The receiver acknowledged, but the acknowledgement cannot have reached the sender."""
    clock_at: int | None = None
    """The sender's clock when the attempt began, if it differs from the receiver's clock."""


@dataclass
class Paused:
    """A tenant, key or target of which no attempt may begin during a time."""

    tenant: str
    what: str
    """`tenant`, `key` or `target`."""
    name: str
    from_at: int
    until_at: int = NEVER

    def holds(self, asked: Asked, began_at: int) -> bool:
        if asked.tenant != self.tenant or not self.from_at < began_at < self.until_at:
            return False
        return self.name == {"tenant": "", "key": asked.key, "target": asked.target}[self.what]


@dataclass
class Checker:
    """Collects the reports, then judges them."""

    asked: dict[str, Asked] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    """Other recorded ends: id to dead, expired or cancelled."""
    restarts: int = 0
    pauses: list[Paused] = field(default_factory=list)

    def ask(self, asked: Asked) -> None:
        self.asked[asked.id] = asked

    def see(self, seen: Seen) -> None:
        self.seen.append(seen)

    def violations(self) -> list[str]:
        """All broken promises, in words; empty when every promise was kept."""
        found: list[str] = []
        accepted: dict[tuple[str, int], list[Seen]] = {}
        for seen in self.seen:
            found += self._judge_delivery(seen)
            if seen.accepted:
                accepted.setdefault((seen.id, seen.occurrence), []).append(seen)
        for asked in self.asked.values():
            found += self._judge_event(asked, accepted)
        found += self._judge_duplicates(accepted)
        found += self._judge_keys()
        return found

    def _judge_delivery(self, seen: Seen) -> list[str]:
        asked = self.asked.get(seen.id)
        if asked is None:
            return [f"unexpected: {seen.id} was delivered, but no client asked for it"]
        found = []
        if asked.refused:
            found.append(f"unexpected: {seen.id} was refused, but delivered")
        due_at = asked.due_at + (seen.occurrence - 1) * asked.every_ms
        began_at = seen.began_at if seen.clock_at is None else seen.clock_at
        if began_at < due_at:
            found.append(f"early: {seen.id}:{seen.occurrence} by {due_at - began_at} ms")
        if seen.body != asked.body:
            found.append(f"altered: {seen.id} arrived as {seen.body[:40]!r}")
        if asked.cancelled_at is not None and seen.began_at > asked.cancelled_at:
            found.append(f"cancelled: {seen.id} began {seen.began_at - asked.cancelled_at} ms after its cancel")
        for paused in self.pauses:
            if paused.holds(asked, seen.began_at):
                after_ms = seen.began_at - paused.from_at
                found.append(f"paused: {seen.id} began {after_ms} ms after {paused.what} {paused.name} was paused")
        return found

    def _judge_event(self, asked: Asked, accepted: dict[tuple[str, int], list[Seen]]) -> list[str]:
        if asked.acknowledged_at is None or asked.cancelled_at is not None or asked.cancel_unknown:
            return []
        if asked.id in self.ended:
            return []
        return [
            f"lost: {asked.id}:{occurrence} (due {asked.due_at}, key {asked.key})"
            for occurrence in range(1, asked.occurrences + 1)
            if (asked.id, occurrence) not in accepted
        ]

    def _judge_duplicates(self, accepted: dict[tuple[str, int], list[Seen]]) -> list[str]:
        """Within one epoch, a lost answer has to explain a second delivery; between epochs, a restart explains one."""
        found = []
        for (event_id, occurrence), deliveries in accepted.items():
            by_epoch: dict[int, list[Seen]] = {}
            for seen in deliveries:
                by_epoch.setdefault(seen.epoch, []).append(seen)
            for epoch, same in by_epoch.items():
                unexplained = len(same) - 1 - sum(seen.answer_lost for seen in same[:-1])
                if unexplained > 0:
                    found.append(f"duplicate: {event_id}:{occurrence} {len(same)} times in epoch {epoch}")
            if len(by_epoch) - 1 > self.restarts:
                found.append(f"duplicate: {event_id}:{occurrence} in {len(by_epoch)} epochs")
        return found

    def _judge_keys(self) -> list[str]:
        found: list[str] = []
        keys: dict[str, list[Seen]] = {}
        for seen in self.seen:
            asked = self.asked.get(seen.id)
            if asked is not None and asked.key is not None:
                keys.setdefault(asked.key, []).append(seen)
        for key, deliveries in keys.items():
            found += self._judge_order(key, deliveries)
            found += self._judge_overlap(key, deliveries)
        return found

    def _judge_order(self, key: str, deliveries: list[Seen]) -> list[str]:
        """First deliveries are in order. An event that was accepted after its due time has no defined place in the
        order.
        """
        found = []
        first: dict[tuple[str, int], Seen] = {}
        for seen in sorted(deliveries, key=lambda seen: seen.began_at):
            first.setdefault((seen.id, seen.occurrence), seen)
        latest: tuple[int, int] = (-1, -1)
        for seen in first.values():
            asked = self.asked[seen.id]
            if asked.moved or asked.acknowledged_at is None or asked.acknowledged_at >= asked.due_at:
                continue
            place = (asked.due_at + (seen.occurrence - 1) * asked.every_ms, asked.index)
            if place < latest:
                found.append(f"order: {seen.id}:{seen.occurrence} of key {key} came after a later one")
            latest = max(latest, place)
        return found

    def _judge_overlap(self, key: str, deliveries: list[Seen]) -> list[str]:
        found = []
        ordered = sorted(deliveries, key=lambda seen: (seen.began_at, seen.ended_at))
        for one, other in pairwise(ordered):
            if one.epoch == other.epoch and other.began_at < one.ended_at:
                found.append(f"overlap: {one.id} and {other.id} of key {key} were in flight together")
        return found
