"""Events of replicas on one node: the holder, the coordinator and the resync, and the requests that they answer.

Requests about stored events go on to the cluster's router. An id that Everbell made tells which of the two is meant. A
client-given id may be either: the mode that the tenant's policy names is asked first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from everbell.channels.port import Channel
from everbell.clock import Clock
from everbell.core.cluster.view import ReplicasView
from everbell.core.ids import is_made
from everbell.core.replicas.ids import is_replica_id
from everbell.core.replicas.sightings import Sightings
from everbell.core.request import Ask, Handler, Handlers, Request
from everbell.core.retry import Outcome
from everbell.core.tenant import Tenants
from everbell.engine.bulk import cancel_matching, redrive_matching
from everbell.engine.engine import Engine
from everbell.engine.notices import Notices
from everbell.engine.quotas import Quotas
from everbell.engine.replica_requests import (
    AskHolder,
    Beacon,
    ChangeCopies,
    CompareCopies,
    ConfirmCopies,
    DropCopies,
    HoldCopies,
    LookForCopy,
    NodeBeacon,
    NoteBusy,
)
from everbell.engine.request_routes import ByEventId
from everbell.engine.requests import (
    CancelMatching,
    CountEvents,
    Find,
    Get,
    GetForecast,
    RedriveMatching,
    Replace,
    TryOut,
)
from everbell.engine.seen import Explained, Seen
from everbell.engine.settings import EngineSettings
from everbell.engine.view_requests import Explain
from everbell.entropy import Entropy
from everbell.errors import NotFound
from everbell.links.packing import answer_packed
from everbell.replicas.batches import HeldBatches, no_store
from everbell.replicas.beacons import Beacons
from everbell.replicas.comparison import Comparison
from everbell.replicas.coordinator import Coordinator
from everbell.replicas.holder import Holder
from everbell.replicas.holder_answers import HolderAnswers
from everbell.replicas.lent_channel import LentChannel
from everbell.replicas.messenger import Messenger
from everbell.replicas.port import Members
from everbell.replicas.queries import Queries
from everbell.replicas.queues import HeldQueues
from everbell.replicas.resync import Resync
from everbell.replicas.store import CopyStore

if TYPE_CHECKING:
    from everbell.tracing import Tracing

A = TypeVar("A")


class Replicas:
    """The copies of this node, and answers about all events of replicas in the cluster."""

    def __init__(
        self,
        members: Members,
        store: CopyStore,
        messenger: Messenger,
        holder: Holder,
        sightings: Sightings,
        tenants: Tenants,
        clock: Clock,
        entropy: Entropy,
        stored: Ask,
        tracing: Tracing | None = None,
        *,
        has_store: bool,
    ) -> None:
        self.store = store
        self.holder = holder
        self.members = members
        self.resync = Resync(holder, members, messenger, clock)
        boot = int.from_bytes(entropy.nonces(1)[:6])
        self.beacons = Beacons(sightings, holder, self.resync, members, messenger, clock, boot)
        self._messenger = messenger
        self._tenants = tenants
        self._clock = clock
        self._stored = stored
        self._has_store = has_store
        queries = Queries(members, holder, clock, stored)
        quotas = Quotas(tenants, clock, queries.pending, Notices(clock))
        meter = holder.engine.meter
        self._coordinator = Coordinator(members, store.hybrid, quotas, meter, clock, entropy, tracing)
        batches = HeldBatches(self._coordinator, tenants, stored, self.ask, has_store=has_store)
        queues = HeldQueues(members, holder.engine.ask, stored, has_store=has_store)
        self._answers = answers = HolderAnswers(members, holder, sightings, self.beacons, messenger, clock)
        comparison = Comparison(store, members)
        self.peer_handlers: tuple[Handler, ...] = (
            HoldCopies.by(holder.hold),
            DropCopies.by(holder.drop),
            NoteBusy.by(holder.note_busy),
            ChangeCopies.by(holder.change),
            ConfirmCopies.by(comparison.confirm),
            Beacon.by(self.beacons.hear_previous),
            NodeBeacon.by(self.beacons.hear),
            CompareCopies.by(comparison.compare),
            AskHolder.by(lambda request: answer_packed(request.request, answers.answer)),
            LookForCopy.by(answers.look),
            *queries.peer_handlers(),
            *queues.peer_handlers(),
        )
        """The requests of other nodes."""
        self._handlers = Handlers(
            *batches.handlers(),
            Get.by(self._get),
            Explain.by(self._explain),
            Replace.by(self._replace),
            ByEventId.by(self._by_event_id),
            TryOut.by(self._try_out),
            Find.by(queries.find),
            CountEvents.by(queries.count),
            GetForecast.by(queries.forecast),
            CancelMatching.by(partial(cancel_matching, self.ask)),
            RedriveMatching.by(partial(redrive_matching, self.ask, clock)),
            *queues.handlers(),
            otherwise=stored,
        )

    @classmethod
    async def start(
        cls,
        members: Members,
        channels: Mapping[str, Channel],
        tenants: Tenants,
        clock: Clock,
        entropy: Entropy,
        settings: EngineSettings,
        cap_bytes: int,
        stored: Ask,
        on_broken: Callable[[BaseException], None],
        tracing: Tracing | None = None,
        *,
        has_store: bool = True,
    ) -> Replicas:
        """Start to hold copies. `stored` answers requests about stored events, `channels` stay open after `stop`."""
        messenger = Messenger(members, lambda copies: holder.take(copies))
        sightings = Sightings()
        store = CopyStore(
            clock, members.me, cap_bytes, lambda news: messenger.tell(holder.replicas_of, news), sightings
        )
        holder = Holder(store, members, messenger, clock)
        lent = {scheme: LentChannel(channel) for scheme, channel in channels.items()}
        holder.use(
            await Engine.start(store, lent, tenants, clock, entropy, settings, on_broken, tracing=tracing, turns=holder)
        )
        parts = (members, store, messenger, holder, sightings, tenants, clock, entropy, stored, tracing)
        return cls(*parts, has_store=has_store)

    @property
    def engine(self) -> Engine:
        return self.holder.engine

    def ask(self, request: Request[A], /) -> Awaitable[A]:
        """Answer a request about events, wherever they are held or stored."""
        return self._handlers.ask(request)

    def view(self) -> ReplicasView:
        """The copies on this node, for people."""
        holder, store, resync = self.holder, self.store, self.resync
        started_at = resync.started_at
        return ReplicasView(
            held=store.pending + store.dead,
            held_by_rank=holder.held_by_rank(),
            started_by_rank=dict(sorted(holder.started_by_rank.items())),
            duplicates=holder.duplicates,
            tombstones=store.tombstones,
            forgotten_early=store.forgotten_early,
            held_bytes=store.held_bytes,
            cap_bytes=store.cap_bytes,
            resync_left=resync.left,
            resync_ms=0 if started_at is None else self._clock.now() - started_at,
            resync_sent=resync.sent,
            given_away=resync.given_away,
            behind=tuple(self._messenger.behind),
            settled=resync.is_settled,
            refilled=self._answers.is_refilled(),
        )

    def begin(self) -> None:
        """Begin to agree with the other nodes."""
        self.resync.start()
        self.beacons.start()

    async def stop(self, timeout_s: float) -> bool:
        """Hand all copies over to the other members, and stop. False: some copies end with this node."""
        await self.resync.stop()
        await self.beacons.stop()
        handed_over = await self.resync.hand_over(timeout_s)
        await self.engine.stop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._messenger.stop()
        except TimeoutError:
            handed_over = False
        if handed_over:
            await self.beacons.leave()
        return handed_over

    async def _by_event_id(self, request: ByEventId[A]) -> A:
        ask = self._coordinator.ask
        return await self._where(request, request, lambda: ask(request.tenant, request.id, request))

    async def _get(self, request: Get) -> Seen:
        return await self._where(request, request, lambda: self._coordinator.get(request.tenant, request.id))

    async def _explain(self, request: Explain) -> Explained:
        async def ask_holders() -> Explained:
            seen = await self._coordinator.get(request.tenant, request.id)
            if seen.live is None:
                return Explained(seen, None)
            explained = await self._coordinator.ask(request.tenant, request.id, request)
            return Explained(seen, explained.why)

        return await self._where(request, request, ask_holders)

    async def _try_out(self, request: TryOut) -> Outcome:
        ask = self._coordinator.ask
        return await self._where(request, request, lambda: ask(request.tenant, request.id, request))

    async def _replace(self, request: Replace) -> Seen:
        is_held = is_replica_id(request.id) or request.draft.replicas is not None
        if is_made(request.id) or not is_held:
            if not self._has_store:
                raise no_store()
            return await self._stored(request)
        return await self._coordinator.replace(request)

    async def _where(
        self, event: ByEventId[Any] | TryOut, request: Request[A], ask_holders: Callable[[], Awaitable[A]]
    ) -> A:
        """Ask the mode that the id names. For a client-given id: the tenant's usual mode, then the other one."""
        if is_replica_id(event.id):
            return await ask_holders()
        if is_made(event.id):
            return await self._stored(request)

        def ask_owner() -> Awaitable[A]:
            return self._stored(request)

        first, second = ask_owner, ask_holders
        if self._tenants.policy(event.tenant).durability == "replicas":
            first, second = ask_holders, ask_owner
        try:
            return await first()
        except NotFound as unknown:
            try:
                return await second()
            except NotFound:
                raise unknown from None
