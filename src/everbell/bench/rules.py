"""The time that one look at a recurring event takes: for any start, zone and expression, microseconds.

This is the arithmetic alone, in this process. The first look at a zone and an expression fills caches, so it is
reported by itself.
"""

from __future__ import annotations

from time import perf_counter

from everbell.bench.figures import Figure, percentile
from everbell.bench.goals import RULES, RULES_FIRST
from everbell.bench.scene import Scene, now_ms
from everbell.core.event import Event, Misfire, Repeat
from everbell.core.verdict import instead

_STARTS = ("1970", "2000", "2026")
_STARTS_AT = {"1970": 0, "2000": 946_684_800_000, "2026": 1_767_225_600_000}
_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca")
_CRONS = (
    "* * * * * *",
    "* * * * *",
    "*/7 3 * * MON-FRI",
    "0 0 29 2 *",
    "30 2 L * *",
    "0 8 * * MON#2",
    "59 23 31 12 SUN",
)
_MISFIRES: tuple[Misfire, ...] = ("skip", "latest")
_REPEATED = 20


def rules(scene: Scene) -> list[Figure]:
    """Look at an event that has been due since its start, as after a long outage."""
    tell = scene.progress("looking at rules", len(_CRONS))
    first_us: dict[str, float] = {}
    then_us: dict[str, float] = {}
    for done, cron in enumerate(_CRONS, 1):
        for zone in _ZONES:
            for start in _STARTS:
                for misfire in _MISFIRES:
                    took = [_look_us(cron, zone, _STARTS_AT[start], misfire) for _ in range(_REPEATED)]
                    name = f"{cron} in {zone} since {start}, {misfire}"
                    first_us[name], then_us[name] = took[0], percentile(sorted(took[1:]), 0.5)
        tell(done)
    return [
        Figure(RULES, max(then_us.values()), notes=_slowest(then_us)),
        Figure(RULES_FIRST, max(first_us.values()), notes=_slowest(first_us)),
    ]


def _look_us(cron: str, zone: str, start_at: int, misfire: Misfire) -> float:
    repeat = Repeat(0, 1 << 40, cron=cron, tz=zone, misfire=misfire)
    event = Event("e", "bench", 0, 1, start_at, start_at, "queue:a", b"1", start_at, repeat=repeat)
    now = now_ms()
    started_s = perf_counter()
    instead(event, now)
    return (perf_counter() - started_s) * 1e6


def _slowest(took_us: dict[str, float]) -> tuple[str, ...]:
    slowest = sorted(took_us.items(), key=lambda item: -item[1])[:3]
    return tuple(f"{name}: {us:,.0f} µs" for name, us in slowest)
