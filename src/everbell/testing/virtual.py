"""An event loop on virtual time: when there is nothing to do now, the clock jumps to the next timer.

A week of scheduling runs in seconds, and the same way every time. There is no I/O, and there are no threads. A loop
with nothing to do and no timer has deadlocked, and raises instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, TypeVar

from everbell.client.event_json import instant_text
from everbell.clock import SystemClock
from everbell.core.time import parse_instant

T = TypeVar("T")

VirtualStart = datetime | str
"""When virtual time begins: an aware datetime, RFC 3339 text, or `"now"`."""

START_AT = 1_767_225_600_000
"""The start of virtual time by default: 2026-01-01T00:00:00Z."""


_RESOLUTION_S = 1e-6


class Deadlock(Exception):
    """All tasks wait, and no timer is left."""


class _Jump(selectors.BaseSelector):
    """A selector without files: waiting advances the clock."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("all tasks wait, and no timer is left")
        if timeout > 0:
            self._advance(timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop with its time in a number."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Jump(self._advance))
        # Timers count as due within this. The default, a nanosecond, is below the precision of a float of some months.
        self._clock_resolution = _RESOLUTION_S

    def time(self) -> float:
        return self._now_s

    def _advance(self, seconds: float) -> None:
        self._now_s += seconds


class VirtualClock:
    """Wall time that follows a virtual loop; `offset_ms` steps it, as an administrator would."""

    def __init__(self, loop: VirtualLoop, start_at: int = START_AT) -> None:
        self._loop = loop
        self.offset_ms = start_at

    def now(self) -> int:
        # A microsecond is added because a sum of float seconds may end just below its millisecond.
        return self.offset_ms + self.elapsed_ms()

    def elapsed_ms(self) -> int:
        return int((self._loop.time() + _RESOLUTION_S) * 1_000)


def start_at_of(start: VirtualStart) -> int:
    """The instant at which virtual time begins. Raises `InvalidInput`."""
    return SystemClock().now() if start == "now" else parse_instant(instant_text(start, "start"), "start")


def run_virtual(
    main: Callable[[VirtualClock], Coroutine[Any, Any, T]],
    start_at: int = START_AT,
    *,
    start: VirtualStart | None = None,
) -> T:
    """Run a coroutine on virtual time until it returns. `start` is when that time begins: a time, or `"now"`."""
    if start is not None:
        start_at = start_at_of(start)
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main(VirtualClock(loop, start_at)))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
