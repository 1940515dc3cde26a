"""Requests of users about events that replicas hold. Any node answers them, and needs neither the log nor a store.

A new event goes to all its replicas at once, and is acknowledged when as many hold it as its `ack` asks for. A request
about an existing event goes to the first of its holders that answers. That holder's engine makes the change, sends the
new copy to the other replicas, and reports how many have it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.event import is_repeated
from everbell.core.replicas.copies import Copy, HybridClock, merge
from everbell.core.replicas.ids import (
    filter_in,
    filter_of,
    make_replica_id,
    matches,
    place_name,
    stem_of,
)
from everbell.core.replicas.turns import rank
from everbell.core.replication import Replication
from everbell.core.request import Request
from everbell.core.spec import Draft, event_of
from everbell.engine.meter import Meter
from everbell.engine.quotas import Quotas
from everbell.engine.replica_requests import AskHolder, DropCopies, HoldCopies, LookForCopy
from everbell.engine.requests import Replace
from everbell.engine.seen import DraftResult, Seen
from everbell.entropy import Entropy
from everbell.errors import Conflict, EverbellError, NotFound, Overloaded, StoreFull, VersionMismatch
from everbell.links.packing import pack_request, unpack_answer
from everbell.replicas.port import Members
from everbell.replicas.seeing import seen_of

if TYPE_CHECKING:
    from everbell.tracing import Tracing

A = TypeVar("A")

_NONCE_BYTES = 9


class _Doubtful(Overloaded):
    """No member holds the event, and some members cannot say that it does not exist."""


class _Doubt(Struct, frozen=True):
    """Why a member that has no copy cannot say that there is no event."""

    reason: str


class _New(Struct):
    """A new event on its way to its replicas."""

    copy: Copy
    replicas: tuple[str, ...]
    held_by: list[str]
    other: Copy | None = None
    is_full: bool = False
    refusal: str = ""


class Coordinator:
    """Creates, reads and changes events wherever they are held."""

    def __init__(
        self,
        members: Members,
        hybrid: HybridClock,
        quotas: Quotas,
        meter: Meter,
        clock: Clock,
        entropy: Entropy,
        tracing: Tracing | None = None,
    ) -> None:
        self._members = members
        self._hybrid = hybrid
        self._quotas = quotas
        self._meter = meter
        self._tracing = tracing
        self._clock = clock
        self._entropy = entropy
        self._late: set[asyncio.Task[None]] = set()

    # New events

    async def schedule(self, tenant: str, drafts: Sequence[Draft]) -> list[DraftResult]:
        """Let replicas hold new events. Returns for each draft the id, the event that has the id, or the error."""
        if not self._quotas.bind(tenant):
            return await self._take_in(tenant, drafts)
        room, refusal = await self._quotas.room(tenant, len(drafts))
        if refusal is None:
            return await self._take_in(tenant, drafts)
        return [*await self._take_in(tenant, drafts[:room]), *[refusal] * (len(drafts) - room)]

    async def _take_in(self, tenant: str, drafts: Sequence[Draft]) -> list[DraftResult]:
        """Schedule the drafts, count them, and make a span for each. The replicas count nothing."""
        if self._tracing is None:
            results = await self._schedule(tenant, drafts)
        else:
            traced, spans = self._tracing.schedule(tenant, drafts)
            results = await self._schedule(tenant, traced)
            self._tracing.scheduled(spans, [each.event if isinstance(each, Seen) else each for each in results])
        self._meter.count_scheduled(tenant, sum(isinstance(result, str) for result in results))
        return results

    async def _schedule(self, tenant: str, drafts: Sequence[Draft]) -> list[DraftResult]:
        nonces = self._entropy.nonces(len(drafts))
        news = [
            self._place(tenant, draft, nonces[index * _NONCE_BYTES : (index + 1) * _NONCE_BYTES])
            for index, draft in enumerate(drafts)
        ]
        by_member: defaultdict[str, list[_New]] = defaultdict(list)
        for new in news:
            for name in new.replicas:
                by_member[name].append(new)
        await asyncio.gather(*(self._hold(name, some) for name, some in by_member.items()))
        for new in news:
            if new.other is not None:
                await self._keep_existing(new)
        results = [self._result(new) for new in news]
        self._drop_refused(new for new, result in zip(news, results, strict=True) if isinstance(result, EverbellError))
        return results

    def _place(self, tenant: str, draft: Draft, nonce: bytes) -> _New:
        replication = draft.replicas or Replication()
        roster, event_id = self._members.roster, draft.id
        if event_id is None:
            replicas = roster.replicas_of(stem_of(draft.due_at, nonce), replication.count)
            event_id = make_replica_id(draft.due_at, nonce, filter_of(replicas))
        else:
            replicas = roster.replicas_of(place_name(event_id), replication.count)
        now = self._clock.now()
        stamp = self._hybrid.stamp(now)
        event = event_of(draft, event_id, tenant, now=now)
        return _New(Copy(event, None, replication, stamp=stamp, touched=stamp), replicas, [])

    async def _hold(self, name: str, news: Sequence[_New]) -> None:
        try:
            results = await self._members.ask(name, HoldCopies([new.copy for new in news], True))
        except EverbellError as failed:
            for new in news:
                new.refusal = str(failed)
            return  # Then it does not hold them, or its answer was lost.
        for new, result in zip(news, results, strict=True):
            if isinstance(result, Copy):
                new.other = result if new.other is None else merge(new.other, result)
            elif result == "full":
                new.is_full = True
            else:
                new.held_by.append(name)

    async def _keep_existing(self, new: _New) -> None:
        """Another event has the id on some nodes. Let all its replicas hold that one, and not the new one.

        It gets a later stamp: so it wins over the new one, and a late message that drops it no longer names it.
        """
        assert new.other is not None, "there is an event with the id"
        self._hybrid.see(new.other.touched)
        existing = new.other = replace(new.other, touched=self._hybrid.stamp(self._clock.now()))
        new.held_by.clear()

        async def hold(name: str) -> None:
            with suppress(EverbellError):
                (result,) = await self._members.ask(name, HoldCopies([existing], False))
                if result != "full":  # It holds this copy, or a later one.
                    new.held_by.append(name)

        await asyncio.gather(*(hold(name) for name in new.replicas))

    def _result(self, new: _New) -> DraftResult:
        copy, replication = new.copy, new.copy.replication
        is_held = bool(new.replicas) and len(new.held_by) >= replication.needed(len(new.replicas))
        if new.other is not None:
            existing = new.other.event or new.other.record
            assert existing is not None, "a copy has an event, or the record of its end"
            assert copy.event is not None, "a new event has not ended"
            if not is_repeated(existing, copy.event):
                return Conflict(f"the id {copy.id!r} is taken by another event; use PUT to replace it")
            if is_held:
                return seen_of(new.other, new.replicas)
        elif is_held:
            return copy.id
        held = f"held by {len(new.held_by)} of {len(new.replicas)} replicas, and {replication.ack} is asked for"
        if new.is_full:
            return StoreFull(f"{held}: the others have no room in memory (--replica-memory); nothing was scheduled")
        why = f" ({new.refusal})" if new.refusal else ""
        return Overloaded(f"{held}{why}: the holders are asked to drop it; try again with the same id")

    def _drop_refused(self, news: Iterable[_New]) -> None:
        """Ask the holders of refused events to drop them. A retry may come at once, so no caller waits for this."""
        by_member: defaultdict[str, list[Copy]] = defaultdict(list)
        for new in news:
            if new.other is None:
                for name in new.replicas:
                    by_member[name].append(new.copy)
        for name, copies in by_member.items():
            task = asyncio.get_running_loop().create_task(self._drop(name, copies))
            self._late.add(task)
            task.add_done_callback(self._late.discard)

    async def _drop(self, name: str, copies: Sequence[Copy]) -> None:
        with suppress(EverbellError):  # Then it may deliver the event, as after any request without an answer.
            await self._members.ask(name, DropCopies(copies))

    # Existing events

    async def get(self, tenant: str, event_id: str) -> Seen:
        """The event as its most advanced holder knows it. Raises `NotFound` only if every member has answered."""
        holders, silent, doubts = await self._holders(tenant, event_id)
        if not holders:
            raise _unknown(event_id, silent, doubts)
        # A holder that is delivering the event knows the most.
        delivering = [seen for _, seen in holders if seen.status == "delivering"]
        latest = max(delivering or [seen for _, seen in holders], key=_progress)
        in_turn = self._in_turn(latest, [name for name, _ in holders])
        return replace(latest, holders=in_turn, unreached=_unreached(holders, silent))

    def _in_turn(self, seen: Seen, holders: Sequence[str]) -> tuple[str, ...]:
        """The holders of an event, in the order of their turns at its next attempt."""
        if seen.live is None:
            return tuple(holders)
        replicas = self._members.roster.replicas_of(place_name(seen.live.id), seen.replicas)
        tried = seen.live.attempt_count
        return tuple(sorted(holders, key=lambda name: rank(name, replicas, tried)))

    async def replace(self, request: Replace) -> Seen:
        """Replace the event, or create it if every member answers that it holds none."""
        try:
            return await self.ask(request.tenant, request.id, request)
        except (NotFound, _Doubtful):
            return await self._create(request)

    async def ask(self, tenant: str, event_id: str, request: Request[A]) -> A:
        """Let a holder of the event answer. Raises `NotFound` only if every member has answered."""
        holders, silent, doubts = await self._holders(tenant, event_id)
        packed = AskHolder(pack_request(request))
        failed: EverbellError | None = None
        for name, _ in holders:
            try:
                answer = unpack_answer(request, await self._members.ask(name, packed))
            except Overloaded as away:
                failed = away  # It did nothing: the next holder may.
                continue
            if isinstance(answer, Seen):
                # The other holders may know of nodes that this one does not know of.
                others = {*answer.unreached, *_unreached(holders, ())}.difference(answer.holders)
                return replace(answer, unreached=tuple(sorted(others)))
            return answer
        raise failed or _unknown(event_id, silent, doubts)

    async def _create(self, request: Replace) -> Seen:
        if request.version is not None:
            raise VersionMismatch(f"there is no event {request.id!r}, so it has no version {request.version}")
        (result,) = await self.schedule(request.tenant, [replace(request.draft, id=request.id)])
        if isinstance(result, EverbellError):
            raise result
        if isinstance(result, Seen):
            return result
        return replace(await self.get(request.tenant, request.id), created=True)

    async def _holders(self, tenant: str, event_id: str) -> tuple[list[tuple[str, Seen]], list[str], list[str]]:
        """The members that hold an event with what they hold, first in line first; the members without an answer; and
        why members without a copy cannot say that there is no event.

        The members that the id names and the present replicas are asked first, then all others.
        """
        names = self._members.roster.names
        bits = filter_in(event_id)
        line = self._members.roster.replicas_of(place_name(event_id), len(names))
        likely = [name for name in line if bits is not None and matches(bits, name)] or list(line[:3])
        found: list[tuple[str, Seen]] = []
        silent: list[str] = []
        doubts: list[str] = []
        for some in (likely, [name for name in line if name not in likely]):
            answers = await asyncio.gather(*(self._look(name, tenant, event_id) for name in some))
            silent += [name for name, answer in zip(some, answers, strict=True) if answer == "silent"]
            doubts += [answer.reason for answer in answers if isinstance(answer, _Doubt)]
            found = [(name, answer) for name, answer in zip(some, answers, strict=True) if isinstance(answer, Seen)]
            if found:
                break
        return found, silent, doubts

    async def _look(self, name: str, tenant: str, event_id: str) -> Seen | _Doubt | Literal["silent"] | None:
        """The event at one member; None if the member holds no copy."""
        try:
            return await self._members.ask(name, LookForCopy(tenant, event_id))
        except Conflict as doubt:
            return _Doubt(str(doubt))
        except EverbellError:
            return "silent"


def _unreached(holders: Sequence[tuple[str, Seen]], silent: Sequence[str]) -> tuple[str, ...]:
    """The nodes that may hold an event in an earlier form, as its holders know."""
    away = {name for _, seen in holders for name in seen.unreached}
    return tuple(sorted({*silent, *away}.difference(name for name, _ in holders)))


def _unknown(event_id: str, silent: Sequence[str], doubts: Sequence[str]) -> NotFound | Overloaded:
    if silent:
        return Overloaded(f"{', '.join(silent)} may hold the event {event_id!r}, and cannot be asked; try again")
    if doubts:
        return _Doubtful(f"no member holds the event {event_id!r}, but {'; '.join(sorted(set(doubts)))}; try again")
    return NotFound(f"there is no event {event_id!r}, or it ended longer ago than the nodes remember")


def _progress(seen: Seen) -> tuple[int, int, bool, int]:
    event = seen.event
    return event.version, event.occurrence, seen.live is None, event.attempt_count
