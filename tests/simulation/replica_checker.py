"""The checker of a world of replicas. It knows the clients' requests, the receivers' calls and which processes died.

lost        an acknowledged occurrence that was never delivered, although fewer holders died than had acknowledged it,
            or although a living process held the event all the time
stuck       an event that a healed cluster does not deliver
unexpected  a delivery that no client asked for, or of a payload that no client sent
early       an attempt before its due time on the clock of the node that made it
cancelled   an attempt that began after a cancel that all replicas had confirmed
split       a side of a split that held a due event, was healthy, and did not attempt it
duplicate   a second delivery of an occurrence whose first attempt began after all nodes were healed
again       an attempt, after all nodes were healed, of an occurrence that a living process had delivered before
unknown     an event that "does not exist" for a client, and is delivered later
differ      holders that have different copies of an event after all nodes were healed
memory      a node that holds anything after all events have ended and are forgotten
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.simulation.receivers import Attempt


@dataclass
class Wanted:
    """One event that a client asked for."""

    name: str
    due_at: int
    """The earliest time that any client asked for."""
    needed: int
    """How many nodes had to hold it before it was acknowledged."""
    occurrences: int = 1
    every_ms: int = 0
    payloads: set[str] = field(default_factory=set)
    acknowledged_ms: int | None = None
    cancelled_ms: int | None = None
    """When all replicas had confirmed its cancel."""
    maybe_cancelled: bool = False
    cancelled_by: frozenset[str] = frozenset()
    """The processes that had its cancel when it was answered."""
    cancel_answered_ms: int = 0
    changed: bool = False
    missed_ms: int | None = None
    """When a client was told that it does not exist."""


@dataclass(frozen=True)
class Side:
    """One side of a split: its nodes, the time, and the events that it held."""

    titles: frozenset[str]
    from_ms: int
    until_ms: int
    held: dict[str, int]
    """By name, with the time by which the side has to attempt each."""


@dataclass
class Custody:
    """How often holders of an event died since it was last held by enough nodes, and whether the last copy died."""

    deaths: int = 0
    is_gone: bool = False


class ReplicaChecker:
    """Collects the reports, then judges them."""

    def __init__(self, clocks_agree: bool) -> None:
        self.wanted: dict[str, Wanted] = {}
        self.broken: list[str] = []
        self.sides: list[Side] = []
        self.mended_ms: list[int] = []
        """When splits ended early: all nodes were healed, or a node started that reaches both sides."""
        self.troubles: list[tuple[int, str]] = []
        """When a process (by its title) died, or was paused, stopped or cut off."""
        self.duplicates: Counter[str] = Counter()
        """Second deliveries, by their causes."""
        self.calm_ms = 1 << 60
        """From then on all nodes were healthy."""
        self.ended: dict[str, int] = {}
        """When processes ended, by their titles."""
        self.forgot_early = False
        """Whether a node had to forget ends of events before all other nodes knew of them."""
        self._clocks_agree = clocks_agree
        self._custody: defaultdict[str, Custody] = defaultdict(Custody)

    def left(self, held: Iterable[tuple[str, int]], held_elsewhere: Counter[str], alive: int) -> None:
        """A process that held these events has stopped, and has given them away. If too few nodes hold an event now,
        that is no better than a death.
        """
        for name, count in held:
            if 0 < held_elsewhere[name] < max(min(count, alive), self.wanted[name].needed):
                self._custody[name].deaths += 1

    def died(self, held: Iterable[tuple[str, int]], held_elsewhere: Counter[str], alive: int) -> None:
        """A process died that held these events, each with its number of replicas. `alive` other processes live."""
        for name, count in held:
            custody, others = self._custody[name], held_elsewhere[name]
            # All processes that live held it. If they are fewer than acknowledged it, the earlier deaths still count.
            if others + 1 >= max(min(count, alive + 1), self.wanted[name].needed):
                custody.deaths = 0
            custody.deaths += 1
            if not others and custody.deaths >= self.wanted[name].needed:
                custody.is_gone = True

    def trouble(self, now_ms: int, title: str) -> None:
        self.troubles.append((now_ms, title))

    def violations(self, attempts: Collection[Attempt], ended: Collection[str]) -> list[str]:
        """`ended`: the events that were dead at the end."""
        by_name: defaultdict[str, list[Attempt]] = defaultdict(list)
        found = list(self.broken)
        for attempt in attempts:
            by_name[attempt.name.partition("/")[0]].append(attempt)
        strangers = sorted(by_name.keys() - self.wanted.keys())
        found += [f"unexpected: {name} was delivered, but no client asked for it" for name in strangers]
        for name, wanted in self.wanted.items():
            mine = by_name[name]
            found += self._judge_attempts(wanted, mine)
            if name not in ended:
                found += self._judge_loss(wanted, mine)
            found += self._judge_duplicates(wanted, mine)
            if not self.forgot_early:
                found += self._judge_revival(wanted, mine)
            if wanted.missed_ms is not None and any(each.began_ms > wanted.missed_ms for each in mine):
                found.append(f"unknown: {name} did not exist for a client, and was delivered later")
        for side in self.sides:
            found += self._judge_side(side, by_name)
        return found

    def _judge_attempts(self, wanted: Wanted, attempts: Iterable[Attempt]) -> list[str]:
        found = []
        for attempt in attempts:
            if attempt.name not in wanted.payloads:
                found.append(f"unexpected: the payload {attempt.name} was never sent")
            due_at = wanted.due_at + (attempt.occurrence - 1) * wanted.every_ms
            if attempt.clock_at < due_at:
                found.append(f"early: {attempt.name}:{attempt.occurrence} by {due_at - attempt.clock_at} ms")
            if wanted.cancelled_ms is not None and attempt.began_ms > wanted.cancelled_ms and not self.forgot_early:
                late_ms = attempt.began_ms - wanted.cancelled_ms
                found.append(f"cancelled: {attempt.name} of {attempt.sender} began {late_ms} ms after its cancel")
        return found

    def _judge_loss(self, wanted: Wanted, attempts: Iterable[Attempt]) -> list[str]:
        if wanted.acknowledged_ms is None or wanted.maybe_cancelled or self._custody[wanted.name].is_gone:
            return []
        accepted = {attempt.occurrence for attempt in attempts if attempt.accepted}
        return [
            f"lost: {wanted.name}:{occurrence}, {self._custody[wanted.name].deaths} deaths, {wanted.needed} needed"
            for occurrence in range(1, wanted.occurrences + 1)
            if occurrence not in accepted
        ]

    def _judge_duplicates(self, wanted: Wanted, attempts: Iterable[Attempt]) -> list[str]:
        found = []
        by_occurrence: defaultdict[int, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            by_occurrence[attempt.occurrence].append(attempt)
        for occurrence, some in by_occurrence.items():
            accepted = [attempt for attempt in some if attempt.accepted]
            for first, second in pairwise(accepted):
                self.duplicates[self._cause(wanted, first, second)] += 1
            is_calm = min(attempt.began_ms for attempt in some) >= self.calm_ms
            if is_calm and self._clocks_agree and len(accepted) > 1:
                senders = ", ".join(f"{each.sender} at {each.began_ms}" for each in accepted)
                found.append(f"duplicate: {wanted.name}:{occurrence} was delivered by {senders}")
        return found

    def _judge_revival(self, wanted: Wanted, attempts: Collection[Attempt]) -> list[str]:
        """After the nodes have found together, an end that a living process knows of counts on all of them."""
        late = [attempt for attempt in attempts if attempt.began_ms > self.calm_ms]
        if not late:
            return []
        found = []
        if wanted.cancelled_by - self.ended.keys():
            found += [
                f"cancelled: {each.name} was attempted after its cancel, when all nodes were healed"
                for each in late
                if each.began_ms > wanted.cancel_answered_ms
            ]
        if wanted.changed:
            return found  # A change made it another event.
        delivered = {
            each.occurrence: each
            for each in attempts
            if each.heard and (each.ended_ms or 0) < self.calm_ms - 60_000 and each.sender not in self.ended
        }
        return found + [
            f"again: {each.name}:{each.occurrence} by {each.sender}, after {delivered[each.occurrence].sender} had it"
            for each in late
            if each.occurrence in delivered
        ]

    def _cause(self, wanted: Wanted, first: Attempt, second: Attempt) -> str:
        if not first.heard:
            return "an answer was lost"
        if wanted.changed:
            return "a client changed it"
        for at_ms, title in self.troubles:
            if title in (first.sender, second.sender) and first.began_ms - 60_000 <= at_ms <= second.began_ms:
                return "a node died, paused or was cut off"
        if not self._clocks_agree:
            return "clocks were wrong"
        return "a message was late or lost"

    def _judge_side(self, side: Side, by_name: dict[str, list[Attempt]]) -> list[str]:
        until_ms = min([side.until_ms, *(at_ms for at_ms in self.mended_ms if at_ms >= side.from_ms)])
        if any(title in side.titles and side.from_ms <= at_ms <= until_ms for at_ms, title in self.troubles):
            return []
        return [
            f"split: {name} was due, and {', '.join(sorted(side.titles))} did not attempt it on their side"
            for name, by_ms in side.held.items()
            if by_ms <= until_ms
            and not (self.wanted[name].maybe_cancelled or self.wanted[name].changed)
            and not any(
                (each.sender in side.titles and each.began_ms <= until_ms) or each.began_ms < side.from_ms
                for each in by_name[name]
            )
        ]
