"""The settings of one engine."""

from __future__ import annotations

from msgspec import Struct


class EngineSettings(Struct, frozen=True):
    """The caps of one engine."""

    memory_bytes: int = 128 * 1024 * 1024
    """The bytes that events in memory may use: the near future, due events and attempts in flight."""
    lookahead_ms: int = 5_000
    """How far ahead the loader reads."""
    page_events: int = 500
    in_flight: int = 4_096
    """The number of attempts in flight at a time, over all targets."""
    watch_clock_s: float = 5.0
    """The longest time between two reads of the wall clock, to notice that it was set."""
    handler_check_s: float = 5.0
    """How often to look for a handler that events wait for. A handler that is registered on the engine's loop is found
    at once."""
    drain_s: float = 10.0
    """How long a stop waits for attempts in flight."""
