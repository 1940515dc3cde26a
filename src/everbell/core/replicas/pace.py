"""How fast a resync goes: as fast as it may while all nodes are quick, and slower when one of them is busy.

A page of copies keeps the loop of this node and of the receiver busy for some milliseconds. The walk learns from two
times how busy they are: how long the other nodes took for a page, and how much longer than asked for its own rest
lasted. Due events wait as long, so the longer they are, the longer the walk rests.
"""

from __future__ import annotations

PER_S_MAX = 20_000
"""Copies in a second, at most."""
BUSY_MS = 40
"""A page that takes longer than this means a busy node: then the walk takes a quarter of the time, not two thirds."""
REST_MAX_MS = 500
_USUAL_PART = 0.5
_BUSY_PART = 3.0
_OVERSLEPT_PART = 4


class ResyncPace:
    """The rests of one walk."""

    def __init__(self) -> None:
        self._asked_ms = 0.0
        self._overslept_ms = 0.0

    def rest_ms(self, copies: int, took_ms: int) -> float:
        """How long to rest after a page that took so long."""
        part = _USUAL_PART if took_ms <= BUSY_MS else _BUSY_PART
        own_ms = self._overslept_ms * _OVERSLEPT_PART
        self._asked_ms = max(copies * 1_000 / PER_S_MAX, min(max(took_ms * part, own_ms), REST_MAX_MS))
        return self._asked_ms

    def note_rest(self, lasted_ms: int) -> None:
        """The rest lasted so long: longer than asked for if the loop of this node was busy."""
        self._overslept_ms = max(lasted_ms - self._asked_ms, 0.0)
