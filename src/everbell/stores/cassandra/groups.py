"""The changes of an apply, grouped into operations by their levels of consistency.

Changes of users are written at the level that their tenant wants, and refused if that cannot be met. All other changes
have already happened: outcomes, the events that follow from them, and the heads of keys. They are written at the usual
level, and are not refused together with changes of users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everbell.stores.fence_checks import tenant_of
from everbell.stores.port import Add, Block, Change, PreparedRows, Unblock

Levels = tuple[str, ...]
LevelGroup = tuple[Levels, list[int]]  # Levels, and the indices of changes.


def is_asked(change: Change) -> bool:
    """Whether a user waits for the change, so that it can be refused."""
    if isinstance(change, (Block, Unblock)):
        return False
    assert not isinstance(change, PreparedRows), "Cassandra has no row maker"
    return not change.follows if isinstance(change, Add) else change.guarded


def groups_of(changes: Sequence[Change], usual: Levels, wanted: Callable[[str], Levels]) -> list[LevelGroup]:
    """The changes by their levels, those of the usual level first. `wanted` has the levels of a tenant."""
    groups: dict[Levels, list[int]] = {usual: []}
    for index, change in enumerate(changes):
        levels = wanted(tenant_of(change)) if is_asked(change) else usual
        groups.setdefault(levels, []).append(index)
    used = [(levels, own) for levels, own in groups.items() if own]
    if len(used) > 1 and _has_shared_names(changes, used):
        # Their order counts, so they stay together, at all the levels.
        every = tuple(dict.fromkeys(level for levels, _ in used for level in levels))
        return [(every, list(range(len(changes))))]
    return used


def _has_shared_names(changes: Sequence[Change], groups: Sequence[LevelGroup]) -> bool:
    """Whether two groups have changes of the same event or key."""
    seen: dict[tuple[str, str, str], int] = {}
    for number, (_, indices) in enumerate(groups):
        for index in indices:
            change = changes[index]
            if any(seen.setdefault(name, number) != number for name in _names_of(change)):
                return True
    return False


def _names_of(change: Change) -> list[tuple[str, str, str]]:
    """The names of the event and the key that a change concerns."""
    if isinstance(change, (Block, Unblock)):
        return [("key", change.tenant, change.key)]
    assert not isinstance(change, PreparedRows), "Cassandra has no row maker"
    event = change.event if isinstance(change, Add) else change.before
    return [("id", event.tenant, event.id), *([] if event.key is None else [("key", event.tenant, event.key)])]
