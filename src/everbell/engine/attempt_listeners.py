"""The functions that the dispatcher calls about attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from everbell.core.retry import Outcome
from everbell.core.verdict import OccurrenceEnded, SentOff
from everbell.engine.entry import Entry
from everbell.engine.flow import Flow


class AttemptListeners(NamedTuple):
    """The functions that the dispatcher calls about attempts. The defaults do nothing."""

    settled: Callable[[Sequence[Entry], Outcome], None] = lambda entries, outcome: None
    expired: Callable[[Entry, OccurrenceEnded | SentOff], bool] = lambda entry, instead: True
    """Called instead of an attempt when the entry is no longer worth delivering, with what happens to the event.
    Returns False if the attempt shall start all the same.
    """
    unfit: Callable[[Entry, Exception], None] = lambda entry, fault: None
    """Called instead of an attempt when a look at the event raised an exception."""
    given_back: Callable[[Entry], bool] = lambda entry: True
    """Called when an attempt did not take place. Returns whether this node shall attempt the entry again."""
    started: Callable[[Flow, int, int], None] = lambda flow, late_ms, count: None
    """Called with the flow and the lateness of first attempts, and the number of attempts that started with it."""
    recall: Callable[[Entry], bool] = lambda entry: False
    """Takes an entry back from a channel in which it waits for a worker. Returns False if it does not wait there."""
    postponed: Callable[[Entry, int], bool] | None = None
    """Returns whether it is another node's turn now; then the entry is out of the dispatcher. None: it never is."""
    begun: Callable[[Sequence[Entry]], None] | None = None
    """Called with the attempts that have started."""
