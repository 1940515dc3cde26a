"""The checks of epochs and of the cluster, for all stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everbell.errors import Fenced, StoreUnusable
from everbell.stores.port import Add, Change, Finish, Move, PreparedRows


def partitions_of(changes: Sequence[Change]) -> set[int]:
    found: set[int] = set()
    for change in changes:
        if isinstance(change, Add):
            found.add(change.event.partition)
        elif isinstance(change, (Finish, Move)):
            found.add(change.before.partition)
        elif isinstance(change, PreparedRows):
            found.update(run.partition for run in change.runs)
        else:
            found.add(change.partition)
    return found


def tenant_of(change: Change) -> str:
    if isinstance(change, Add):
        return change.event.tenant
    return change.before.tenant if isinstance(change, (Move, Finish)) else change.tenant


def check_fence(changes: Sequence[Change], claimed: Mapping[int, int], in_force: Mapping[int, int]) -> None:
    """Raise `Fenced` unless the epochs that a writer claims are in force for every partition that it writes to."""
    if claimed != in_force:
        raise_if_fenced(sorted(p for p in partitions_of(changes) if claimed.get(p) != in_force.get(p)))


def check_claim(owner: str, cluster: str) -> None:
    """Raise `StoreUnusable` unless the store belongs to this cluster."""
    if owner != cluster:
        raise StoreUnusable(
            "the store belongs to another cluster than the one that the log describes: check --store and --log"
        )


def check_raise(wanted: Mapping[int, int], in_force: Mapping[int, int]) -> None:
    """Raise `Fenced` unless every wanted epoch is higher than the one in force."""
    raise_if_fenced(sorted(p for p, epoch in wanted.items() if epoch <= in_force.get(p, 0)))


def raise_if_fenced(partitions: Sequence[int]) -> None:
    """Raise `Fenced` for these partitions, if there are any."""
    if partitions:
        named = ", ".join(map(str, partitions[:5])) + (" …" if len(partitions) > 5 else "")
        raise Fenced(f"another node owns partition {named} now: this node no longer writes to it", tuple(partitions))
