"""The recent past of a node: what happened in each of the last spans of time, in bounded memory.

There are two rings: 15 minutes in spans of ten seconds, and a day in spans of five minutes. All nodes cut time at the
same instants, so the spans of several nodes can be added. Each tenant that has a tally of its own has its rings; one
more pair of rings has the sum of all tenants.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.time import MINUTE_MS
from everbell.engine.tally import DURATIONS, SAMPLE_MS, Tallies
from everbell.stores.port import Counts

PastSpan = Literal["minutes", "hours"]

STEPS_MS: dict[PastSpan, int] = {"minutes": SAMPLE_MS, "hours": 5 * MINUTE_MS}
KEPT: dict[PastSpan, int] = {"minutes": 90, "hours": 288}

_NOTHING = (0,) * DURATIONS
_NO_COUNTS = Counts()


class Gauges(Struct, frozen=True, array_like=True, gc=False):
    """How things stand at one moment."""

    waiting: int = 0
    """The number of due events in memory that have not started."""
    in_flight: int = 0
    oldest_ms: int = 0
    """How long the oldest of them has been due."""
    pending: int = 0
    """The number of events in the store that are neither finished nor dead."""
    dead: int = 0
    held_pending: int = 0
    """The same of events that replicas hold, each counted by about one node."""
    held_dead: int = 0

    def plus(self, other: Gauges) -> Gauges:
        """The gauges of two nodes. Both count the same store, where their counts may be of different moments."""
        return Gauges(
            self.waiting + other.waiting,
            self.in_flight + other.in_flight,
            max(self.oldest_ms, other.oldest_ms),
            max(self.pending, other.pending),
            max(self.dead, other.dead),
            self.held_pending + other.held_pending,
            self.held_dead + other.held_dead,
        )

    def as_held(self, share: float) -> Gauges:
        """The gauges of an engine of replicas, of which this share of the events is counted here."""
        held = (round(self.pending * share), round(self.dead * share))
        return Gauges(self.waiting, self.in_flight, self.oldest_ms, 0, 0, *held)


class Sample(Struct, frozen=True, array_like=True, gc=False):
    """One span of time: its beginning, what was counted in it, and how things stood at its end."""

    at: int
    counts: tuple[int, ...]
    """The counters of a `TargetTally` up to the lateness of first attempts."""
    end: Gauges

    def plus(self, other: Sample) -> Sample:
        """The same span of two nodes."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return Sample(self.at, counts, self.end.plus(other.end))


class Past(Struct, frozen=True):
    """The last spans of time, the oldest first, and how things stand now."""

    step_ms: int
    samples: list[Sample]
    now: Gauges
    unheard: tuple[str, ...] = ()
    """The nodes that did not answer."""


class History:
    """Takes a sample whenever a span ends."""

    def __init__(self, clock: Clock, tallies: Tallies, gauges: Callable[[], Mapping[str, Gauges]]) -> None:
        """`gauges` returns how things stand, by tenant, without the counts of the store."""
        self.counts: Mapping[str, Counts] = {}
        """The number of events of each tenant in the store, some seconds old."""
        self._clock = clock
        self._tallies = tallies
        self._gauges = gauges
        self._rings: dict[str | None, dict[PastSpan, deque[Sample]]] = defaultdict(_rings)
        self.due_at = _next(clock.now(), SAMPLE_MS)
        """The end of the current span."""
        self.is_quiet = True
        """Whether nothing happened in the last span, so that the end of the current one need not be met exactly."""

    def sample(self) -> None:
        """Close the current span. The caller does so soon after `due_at`."""
        self.due_at = _next(self._clock.now(), SAMPLE_MS)
        at = self.due_at - 2 * SAMPLE_MS
        news, gauges = self._tallies.sample(), self._gauges()
        self.is_quiet = not news
        tenants = {tenant for tenant, _, _ in self._tallies.items()}
        for tenant in [name for name in self._rings if name is not None and name not in tenants]:
            del self._rings[tenant]  # Its tally made room for another tenant.
        for tenant in tenants:
            self._add(tenant, Sample(at, _counted([news.get(tenant, ())]), self._standing(tenant, gauges)))
        self._add(None, Sample(at, _counted(news.values()), self._total(gauges)))

    def past(self, tenant: str | None, span: PastSpan) -> Past:
        """The last spans of one tenant, or of all tenants together."""
        gauges = self._gauges()
        now = self._total(gauges) if tenant is None else self._standing(tenant, gauges)
        samples = self._rings[tenant][span] if tenant in self._rings else ()
        return Past(STEPS_MS[span], list(samples), now)

    def _add(self, tenant: str | None, sample: Sample) -> None:
        rings = self._rings[tenant]
        minutes, hours = rings["minutes"], rings["hours"]
        step_ms = STEPS_MS["hours"]
        # The ring of minutes is longer than one span of hours, so the longer span is the sum of the shorter ones.
        if minutes and minutes[-1].at // step_ms != sample.at // step_ms:
            hours.append(_joined(minutes, step_ms))
        minutes.append(sample)

    def _standing(self, tenant: str, gauges: Mapping[str, Gauges]) -> Gauges:
        stored = self.counts.get(tenant, _NO_COUNTS)
        return replace(gauges.get(tenant, Gauges()), pending=stored.pending, dead=stored.dead)

    def _total(self, gauges: Mapping[str, Gauges]) -> Gauges:
        total = Gauges()
        for each in gauges.values():
            total = total.plus(each)
        stored = self.counts.values()
        return replace(total, pending=sum(one.pending for one in stored), dead=sum(one.dead for one in stored))


def merged_past(pasts: Sequence[Past], unheard: Sequence[str]) -> Past:
    """The past of all nodes together."""
    samples: dict[int, Sample] = {}
    now = Gauges()
    for past in pasts:
        now = now.plus(past.now)
        for sample in past.samples:
            known = samples.get(sample.at)
            samples[sample.at] = sample if known is None else known.plus(sample)
    return Past(pasts[0].step_ms, [samples[at] for at in sorted(samples)], now, tuple(unheard))


def _rings() -> dict[PastSpan, deque[Sample]]:
    return {"minutes": deque(maxlen=KEPT["minutes"]), "hours": deque(maxlen=KEPT["hours"])}


def _joined(minutes: deque[Sample], step_ms: int) -> Sample:
    """The last whole span of hours, from its samples of the ring of minutes."""
    last = minutes[-1]
    at = last.at - last.at % step_ms
    parts = takewhile(lambda sample: sample.at >= at, reversed(minutes))
    return Sample(at, _counted([part.counts for part in parts]), last.end)


def _counted(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The sum of rows of counters, without the durations of attempts. Spans without news share one row."""
    some = [row for row in rows if row]
    return tuple(map(sum, zip(*(row[:DURATIONS] for row in some), strict=True))) if some else _NOTHING


def _next(now: int, step_ms: int) -> int:
    return now - now % step_ms + step_ms
