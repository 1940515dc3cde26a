"""Messages to the other replicas: later copies, and attempts in flight.

The messages of one turn of the loop to one node travel together. A node that has a later copy answers with it. If a
node does not answer, its messages are dropped and the node is marked: the resync compares all copies with it when it
answers again. So nothing waits for a node that is away, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from everbell.core.replicas.copies import Copy, for_wire
from everbell.core.replicas.turns import Busy
from everbell.engine.replica_requests import CopyName, HoldCopies, HoldResult, NoteBusy
from everbell.errors import EverbellError
from everbell.replicas.port import Members

_TOGETHER = 500


class _Outgoing:
    """The messages for one node. Of each event only the latest copy is kept."""

    __slots__ = ("busy", "copies", "sending")

    def __init__(self) -> None:
        self.copies: dict[CopyName, Copy] = {}
        self.busy: list[Busy] = []
        self.sending: asyncio.Task[None] | None = None


class Messenger:
    """Sends messages to other nodes, without making any caller wait."""

    def __init__(self, members: Members, on_later: Callable[[Sequence[Copy]], Awaitable[None]]) -> None:
        """`on_later` takes the copies of other nodes that are later than those that were sent."""
        self.behind: dict[str, None] = {}
        """The nodes that missed messages, in the order in which that happened."""
        self._members = members
        self._on_later = on_later
        self._outgoing: dict[str, _Outgoing] = {}

    def tell(self, replicas_of: Callable[[Copy], Iterable[str]], copies: Iterable[Copy]) -> None:
        """Send copies to the other replicas of their events."""
        for copy in copies:
            for name in replicas_of(copy):
                if name != self._members.me:
                    outgoing = self._to(name)
                    outgoing.copies[copy.name] = copy
                    self._send_soon(name, outgoing)

    def tell_busy(self, replicas: Iterable[str], busy: Busy) -> None:
        """Tell the other replicas that this node attempts an event."""
        for name in replicas:
            if name != self._members.me:
                outgoing = self._to(name)
                outgoing.busy.append(busy)
                self._send_soon(name, outgoing)

    def is_idle(self) -> bool:
        return not any(outgoing.sending for outgoing in self._outgoing.values())

    def is_in_sync(self, name: str) -> bool:
        """Whether a node has confirmed all messages to it."""
        outgoing = self._outgoing.get(name)
        return name not in self.behind and (outgoing is None or outgoing.sending is None)

    async def stop(self) -> None:
        """Wait for the messages that are being sent; the caller sets the deadline."""
        await asyncio.gather(*(each.sending for each in self._outgoing.values() if each.sending is not None))

    async def send(self, name: str, copies: Sequence[Copy]) -> Sequence[HoldResult]:
        """Let a node hold copies, and take over those of which it has a later one. Raises `EverbellError`."""
        results = await self._members.ask(name, HoldCopies([for_wire(copy) for copy in copies], False))
        later = [result for result in results if isinstance(result, Copy)]
        if later:
            await self._on_later(later)
        return results

    def _to(self, name: str) -> _Outgoing:
        outgoing = self._outgoing.get(name)
        if outgoing is None:
            outgoing = self._outgoing[name] = _Outgoing()
        return outgoing

    def _send_soon(self, name: str, outgoing: _Outgoing) -> None:
        if outgoing.sending is None:
            outgoing.sending = asyncio.get_running_loop().create_task(self._send(name, outgoing))

    async def _send(self, name: str, outgoing: _Outgoing) -> None:
        try:
            while outgoing.copies or outgoing.busy:
                if outgoing.busy:
                    busy, outgoing.busy = outgoing.busy, []
                    await self._members.ask(name, NoteBusy(busy))
                if outgoing.copies:
                    some = [outgoing.copies.pop(key) for key in list(outgoing.copies)[:_TOGETHER]]
                    await self.send(name, some)
        except EverbellError:
            outgoing.copies.clear()
            outgoing.busy.clear()
            self.behind[name] = None
        finally:
            outgoing.sending = None
