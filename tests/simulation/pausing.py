"""An operator who pauses tenants, keys and targets of a simulated world now and then, and resumes them.

The pauses are kept outside the engine, as the log of a cluster keeps them: a starting engine gets them before it owns
any partition.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from everbell.core.pause import Pause, What
from everbell.engine.engine import Engine
from everbell.testing import VirtualClock
from tests.checker import Checker, Paused

_LONGEST_S = 30.0


class Planned(NamedTuple):
    """A planned pause or its end. Times are in seconds from the beginning."""

    at_s: float
    thing: tuple[str, What, str]
    for_s: float | None
    """None: the operator resumes it."""
    resumes: bool


def planned(dice: random.Random, count: int, whole_s: float, keys: int, hosts: Sequence[str]) -> list[Planned]:
    """`count` pauses, and their ends, in the order of their times. The pauses of one thing may overlap."""
    plan: list[Planned] = []
    for _ in range(count):
        tenant = dice.choice(("default", "parking"))
        what: What = dice.choice(("tenant", "key", "key", "target", "target"))
        name = {"tenant": "", "key": f"{tenant}-{dice.randrange(keys)}", "target": dice.choice(hosts)}[what]
        from_s, length_s = dice.uniform(0, whole_s), dice.uniform(0.1, _LONGEST_S)
        ends = dice.random() < 0.5
        plan.append(Planned(from_s, (tenant, what, name), length_s if ends else None, False))
        if not ends:
            plan.append(Planned(from_s + length_s, (tenant, what, name), None, True))
    return sorted(plan)


class Pausing:
    """The current pauses, and the reports about them to the checker."""

    def __init__(self, clock: VirtualClock, checker: Checker, plan: list[Planned]) -> None:
        self.plan = plan
        self._clock = clock
        self._checker = checker
        self._on: dict[tuple[str, What, str], tuple[Pause, Paused]] = {}

    def tell(self, engine: Engine | None) -> None:
        """Tell an engine the current pauses; None if no engine runs at the moment."""
        if engine is not None:
            engine.pauses.follow(pause for pause, _ in self._on.values())

    def act(self, planned: Planned, engine: Engine | None) -> None:
        """Pause or resume, and record the acknowledgement when the engine knows."""
        now = self._clock.now()
        before = self._on.pop(planned.thing, None)
        if before is not None:
            before[1].until_at = min(now, before[1].until_at)
        if not planned.resumes:
            until_at = None if planned.for_s is None else now + int(planned.for_s * 1_000)
            tenant, what, name = planned.thing
            paused = Paused(tenant, what, name, now)
            if until_at is not None:
                paused.until_at = until_at
            self._on[planned.thing] = (Pause(tenant, what, name, now, "nobody", None, until_at), paused)
            self._checker.pauses.append(paused)
        self.tell(engine)

    def end(self, engine: Engine) -> None:
        """End all pauses."""
        for _, paused in self._on.values():
            paused.until_at = min(self._clock.now(), paused.until_at)
        self._on.clear()
        self.plan.clear()
        self.tell(engine)
