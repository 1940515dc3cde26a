"""The last transitions of the value, for people and for `effects`.

An entry that changes something, or that is refused, adds one transition. At most `TRANSITIONS_MAX` are kept, because
the value must not grow with the log.
"""

from __future__ import annotations

from msgspec.structs import replace

from everbell.core.cluster.value import TRANSITIONS_MAX, Transition, Value


def noted(value: Value, kind: str, what: str, reason: str = "", by: str = "") -> Value:
    """The value with one more transition, at its index."""
    transition = Transition(value.index, kind, what, reason, by)
    return replace(value, transitions=(*value.transitions, transition)[-TRANSITIONS_MAX:])


def latest(before: Value, after: Value) -> Transition | None:
    """The transition of the entry between these two values, if any."""
    if after.transitions and after.index == after.transitions[-1].index > before.index:
        return after.transitions[-1]
    return None
