"""The copies of this node, compared with those of another one."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.engine.replica_requests import CompareCopies, ConfirmCopies
from everbell.replicas.port import Members
from everbell.replicas.store import CopyStore


class Comparison:
    """Answers other nodes that bring this one up to date, or are about to drop their copies."""

    def __init__(self, store: CopyStore, members: Members) -> None:
        self._store = store
        self._members = members

    async def compare(self, request: CompareCopies) -> Sequence[int]:
        copies = self._store.copies
        wanted: list[int] = []
        for index, (name, order) in enumerate(zip(request.names, request.orders, strict=True)):
            own = copies.get(name)
            if own is None or own.order < order:
                wanted.append(index)
            elif own.order > order:
                wanted.append(~index)
        return wanted

    async def confirm(self, request: ConfirmCopies) -> Sequence[int]:
        if request.roster != self._members.roster.digest:
            return []
        copies = self._store.copies
        return [
            index
            for index, (name, order) in enumerate(zip(request.names, request.orders, strict=True))
            if (own := copies.get(name)) is not None and own.order >= order
        ]
