"""The members of a simulated cluster of replicas, as a log would have them, and as one node last saw them.

A node renews its entry twice a second. Each node watches the others: one whose entry was not renewed for a lease is
removed. While the log cannot be reached, a node keeps the members that it saw last.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from everbell.core.cluster import Member, Value
from everbell.errors import LogError, LogUnavailable
from tests.simulation.network import Network
from tests.simulation.processes import ProcessLoop
from tests.simulation.rough_log import LOG

_RENEW_S = 0.5
_LEASE_S = 2.5


class Enrolled(Struct, frozen=True):
    """One member in the log."""

    member: Member
    renewals: int = 0


class Registry:
    """The log's side."""

    def __init__(self) -> None:
        self.enrolled: dict[str, Enrolled] = {}
        """By name."""
        self._joins = 0

    def renew(self, member: Member, lapsed: list[tuple[str, int]]) -> dict[str, Enrolled]:
        """Enrol or renew a member, remove members that another one saw lapse, and return all."""
        for name, renewals in lapsed:
            if name in self.enrolled and self.enrolled[name].renewals == renewals and name != member.name:
                del self.enrolled[name]
        before = self.enrolled.get(member.name)
        if before is None or before.member.addresses != member.addresses:
            self._joins += 1
            before = Enrolled(replace(member, incarnation=f"{member.name}.{self._joins}"))
        now = replace(before.member, draining=member.draining)
        self.enrolled[member.name] = Enrolled(now, before.renewals + 1)
        return dict(self.enrolled)

    def leave(self, member: Member) -> None:
        if member.name in self.enrolled and self.enrolled[member.name].member.addresses == member.addresses:
            del self.enrolled[member.name]


class Membership:
    """One node's side. It has what `ClusterMembers` needs of a node: the value, and whether it is a member."""

    def __init__(
        self, loop: ProcessLoop, network: Network, registry: Registry, name: str, boot: int, zone: str
    ) -> None:
        self.value = Value()
        self.met: set[str] = set()
        """The members that the log has named since this process started."""
        self.joined = asyncio.Event()
        self._loop = loop
        self._network = network
        self._registry = registry
        self._member = Member(name, "", (f"{name}#{boot}",), zone)
        self._watched: dict[str, tuple[int, float]] = {}
        self._renewed_s = -1e9

    @property
    def is_member(self) -> bool:
        return self._loop.time() - self._renewed_s < _LEASE_S

    async def run(self) -> None:
        """Renew until the process ends."""
        while True:
            await self.renew()
            await asyncio.sleep(_RENEW_S)

    async def renew(self, *, draining: bool = False) -> bool:
        """Renew once. Returns whether the log could be reached."""
        if draining:
            self._member = replace(self._member, draining=True)
        began_s = self._loop.time()
        lapsed = [
            (name, renewals) for name, (renewals, since_s) in self._watched.items() if began_s - since_s > _LEASE_S
        ]
        try:
            enrolled = await self._network.call(
                self._member.name,
                LOG,
                lambda: self._registry.renew(self._member, lapsed),
                lost=_away,
                unheard=_away,
            )
        except LogError:
            return False
        if began_s - self._renewed_s > _LEASE_S:
            self._watched.clear()  # The others may have been cut off from the log as well.
        self._renewed_s = began_s
        self._see(enrolled)
        return True

    def _see(self, enrolled: dict[str, Enrolled]) -> None:
        now_s = self._loop.time()
        for name, each in enrolled.items():
            if self._watched.get(name, (-1, 0.0))[0] != each.renewals:
                self._watched[name] = (each.renewals, now_s)
        for name in self._watched.keys() - enrolled.keys():
            del self._watched[name]
        self.met.update(enrolled)
        members = {each.member.incarnation: each.member for each in enrolled.values()}
        if members != self.value.members:
            self.value = Value(index=self.value.index + 1, members=members)
        self.joined.set()

    async def leave(self) -> None:
        with suppress(LogError):  # Then the others remove it.
            await self._network.call(
                self._member.name, LOG, lambda: self._registry.leave(self._member), lost=_away, unheard=_away
            )


def _away() -> LogUnavailable:
    return LogUnavailable("the simulated log cannot be reached")
