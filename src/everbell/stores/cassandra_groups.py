"""Which changes of an apply are one operation: those that are written at the same levels of consistency.

What users ask for is written at the level that their tenant wants, and refused where that cannot be met. All the rest
has happened already: outcomes, what follows from them in the same unit, and the marks of keys. That is written at the
usual level, and never refused with somebody's wish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everbell.stores.port import Add, Block, Change, Unblock
from everbell.stores.semantics import tenant_of_change

Levels = tuple[str, ...]
Group = tuple[Levels, list[int]]
"""Levels, and the indices of changes."""


def is_asked(change: Change) -> bool:
    """Whether it can be refused: a user waits for it."""
    if isinstance(change, (Block, Unblock)):
        return False
    return not change.follows if isinstance(change, Add) else change.guarded


def groups_of(changes: Sequence[Change], usual: Levels, wanted: Callable[[str], Levels]) -> list[Group]:
    """Changes by the levels at which they are written, those at the usual one first. `wanted` tells what a tenant
    wants.
    """
    groups: dict[Levels, list[int]] = {usual: []}
    for index, change in enumerate(changes):
        levels = wanted(tenant_of_change(change)) if is_asked(change) else usual
        groups.setdefault(levels, []).append(index)
    used = [(levels, own) for levels, own in groups.items() if own]
    if len(used) > 1 and _has_shared_names(changes, used):
        # The order counts, so they stay together, at all levels that are wanted.
        every = tuple(dict.fromkeys(level for levels, _ in used for level in levels))
        return [(every, list(range(len(changes))))]
    return used


def _has_shared_names(changes: Sequence[Change], groups: Sequence[Group]) -> bool:
    """Whether changes of one event, or of one key, are in two groups."""
    seen: dict[tuple[str, str, str], int] = {}
    for number, (_, indices) in enumerate(groups):
        for index in indices:
            change = changes[index]
            if any(seen.setdefault(name, number) != number for name in _names_of(change)):
                return True
    return False


def _names_of(change: Change) -> list[tuple[str, str, str]]:
    """The event, and its key, that a change is about."""
    if isinstance(change, (Block, Unblock)):
        return [("key", change.tenant, change.key)]
    event = change.event if isinstance(change, Add) else change.before
    return [("id", event.tenant, event.id), *([] if event.key is None else [("key", event.tenant, event.key)])]
