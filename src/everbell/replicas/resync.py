"""The resync: every holder brings the other replicas up to date, page by page, and gives away copies that moved.

It runs after a change of the members, and for nodes that missed messages. A page of copies is compared first, so only
copies that the other node lacks are sent. A node that is no longer a replica of an event drops its copy after all
replicas have confirmed theirs. The earliest due events come first: a node that starts again has its events back before
they are due, if it can. A pause after each page bounds the rate, so that deliveries do not suffer (`ResyncPace`).

A resync ends: it walks once over the copies that were there at its start. Later changes are sent as they happen.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from everbell.clock import Clock
from everbell.core.replicas.copies import Copy
from everbell.core.replicas.pace import ResyncPace
from everbell.core.replicas.placement import Roster
from everbell.engine.replica_requests import CompareCopies, ConfirmCopies, CopyName, NoteBusy
from everbell.errors import EverbellError
from everbell.replicas.holder import Holder
from everbell.replicas.messenger import Messenger
from everbell.replicas.port import Members

_TICK_S = 0.5
# A change of the members is rarely alone: a node that restarts leaves and joins.
_QUIET_S = 1.0
_PAGE = 400
# Nodes that walk at the same time bring different pages to a third one, and find each other's copies there later.
_TURNS = 3
# How long a resync waits before it tries again to give away copies for which the others have no room.
_AGAIN_S = 10.0


class Resync:
    """Runs until it is stopped."""

    def __init__(self, holder: Holder, members: Members, messenger: Messenger, clock: Clock) -> None:
        self.left = 0
        """The number of copies that the present walk has not reached."""
        self.sent = 0
        """The number of copies that were sent because the other node lacked them."""
        self.given_away = 0
        self.started_at: int | None = None
        """When the present walk began."""
        self._holder = holder
        self._members = members
        self._messenger = messenger
        self._clock = clock
        self._synced: Roster | None = None
        # Whether the present walk found copies that other members do not confirm yet.
        self._is_unsure = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_walked(self) -> bool:
        """Whether this node has compared its copies with the present members."""
        return self._synced is self._members.roster and self.started_at is None

    @property
    def is_settled(self) -> bool:
        """Whether all replicas have the copies of this node, and it has no others, as far as it knows."""
        return self.is_walked and not self._holder.strays and not self._messenger.behind and self._messenger.is_idle()

    def begin_again(self) -> None:
        """Compare all copies once more, soon."""
        self._synced = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="everbell-resync")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        self._synced = self._members.roster
        while True:
            await asyncio.sleep(_TICK_S)
            roster = self._members.roster
            if not self.is_walked:
                await asyncio.sleep(_QUIET_S)
                if roster is self._members.roster and not await self._walk_all(roster):
                    await asyncio.sleep(_AGAIN_S)
            elif self._messenger.behind:
                behind = set(self._messenger.behind)
                self._messenger.behind.clear()
                if not await self.walk(behind):
                    self.begin_again()
            elif self._holder.strays:
                names = list(self._holder.strays)
                self._holder.strays.clear()
                if not await self.walk(None, names):
                    self._holder.strays.update(dict.fromkeys(names))
                    await asyncio.sleep(_QUIET_S)

    async def _walk_all(self, roster: Roster) -> bool:
        """Compare all copies. Returns whether that was done, or has to begin again at once."""
        # A node that starts anew meanwhile makes this walk count for nothing.
        self._synced = roster
        self._is_unsure = False
        self._holder.strays.clear()
        has_all = await self.walk(None)
        if has_all:
            return True
        self.begin_again()
        return self._is_unsure or roster is not self._members.roster

    async def hand_over(self, timeout_s: float) -> bool:
        """Give all copies to the members that stay. Returns False if that took too long or none can take them."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(True for _ in self._holder.store.live()):
                    if self._members.me in self._members.roster.names:
                        return False  # There is no other node.
                    await self.walk(None)
                    await asyncio.sleep(_TICK_S / 10)
        except TimeoutError:
            return False
        return True

    async def walk(self, only: Collection[str] | None, names: Sequence[CopyName] | None = None) -> bool:
        """Compare all copies, or those of `names`, with the other replicas, or with some of them. A member that does
        not answer is left out, and stays behind. False: the members changed meanwhile, some had no room, or copies that
        belong to others could not be given away.
        """
        roster = self._members.roster
        silent: set[str] = set()
        has_all = True
        store = self._holder.store
        self.left = len(store.copies) if names is None else len(names)
        turn = roster.names.index(self._members.me) % _TURNS if self._members.me in roster.names else 0
        pages = store.pages(_PAGE, turn, _TURNS) if names is None else _pages_of(names)
        self.started_at = self._clock.now()
        pace = ResyncPace()
        try:
            for page in pages:
                if roster is not self._members.roster:
                    return False
                if only is not None and silent.issuperset(only):
                    break
                began_ms = self._clock.elapsed_ms()
                has_all &= await self._page(roster, page, only, silent)
                ended_ms = self._clock.elapsed_ms()
                rest_ms = pace.rest_ms(len(page), ended_ms - began_ms)
                await asyncio.sleep(rest_ms / 1_000)
                pace.note_rest(self._clock.elapsed_ms() - ended_ms)
                self.left = max(self.left - len(page), 1)
        finally:
            self.left, self.started_at = 0, None
        return has_all

    async def _page(
        self, roster: Roster, names: Sequence[CopyName], only: Collection[str] | None, silent: set[str]
    ) -> bool:
        """Returns False if a member had no room for some copies, or some could not be given away."""
        me = self._members.me
        copies = [copy for name in names if (copy := self._holder.store.copies.get(name)) is not None]
        by_member: defaultdict[str, list[Copy]] = defaultdict(list)
        former: list[tuple[Copy, tuple[str, ...]]] = []
        for copy in copies:
            replicas = self._holder.holders_of(copy)
            if me not in replicas and copy.event is not None:
                former.append((copy, replicas))
            for name in replicas:
                if name != me and name not in silent and (only is None or name in only or me not in replicas):
                    by_member[name].append(copy)
        brought = await asyncio.gather(*(self._bring(*each) for each in by_member.items()))
        silent.update(name for name, has_all in zip(by_member, brought, strict=True) if has_all is None)
        gave_all = not former or await self._give_away(roster, former, silent)
        return gave_all and False not in brought

    async def _bring(self, member: str, copies: Sequence[Copy]) -> bool | None:
        """Bring one member up to date. False: it had no room for some copies. None: it did not answer."""
        names = [copy.name for copy in copies]
        try:
            wanted = await self._members.ask(member, CompareCopies(names, [copy.order for copy in copies]))
            if not wanted:
                return True
            # Of some copies the member has a later one, and answers with it.
            missing = [copies[index if index >= 0 else ~index] for index in wanted]
            if busy := self._holder.in_flight_of(missing):
                await self._members.ask(member, NoteBusy(busy))
            results = await self._messenger.send(member, missing)
            self.sent += sum(result == "held" for result in results)
            return "full" not in results
        except EverbellError:
            self._messenger.behind[member] = None
            return None

    async def _give_away(
        self, roster: Roster, former: Sequence[tuple[Copy, tuple[str, ...]]], silent: Collection[str]
    ) -> bool:
        """Drop copies that belong to other members, if all of those confirm that they hold them. Returns whether."""
        by_member: defaultdict[str, list[Copy]] = defaultdict(list)
        for copy, replicas in former:
            for name in replicas:
                by_member[name].append(copy)
        asked = [(name, copies) for name, copies in by_member.items() if name not in silent]
        answers = await asyncio.gather(*(self._confirmed(roster, *each) for each in asked))
        confirmed = {name: has for (name, _), has in zip(asked, answers, strict=True)}
        gave_all = True
        for copy, replicas in former:
            if self._members.is_inside and all(copy.name in confirmed.get(name, ()) for name in replicas):
                self.given_away += await self._holder.forget(copy.name, copy, roster)
            gave_all &= copy.name not in self._holder.store.copies
        self._is_unsure |= not gave_all
        return gave_all

    async def _confirmed(self, roster: Roster, member: str, copies: Sequence[Copy]) -> set[CopyName]:
        """The names of the copies that a member holds, and will not give back."""
        request = ConfirmCopies([copy.name for copy in copies], [copy.order for copy in copies], roster.digest)
        try:
            return {copies[index].name for index in await self._members.ask(member, request)}
        except EverbellError:
            return set()


def _pages_of(names: Sequence[CopyName]) -> Iterator[Sequence[CopyName]]:
    return (names[start : start + _PAGE] for start in range(0, len(names), _PAGE))
