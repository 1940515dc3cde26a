"""Queues: workers lease due events in batches by long poll, and acknowledge, extend or fail them.

A due event waits here until a worker asks for it; only then does its attempt begin. A lease is an attempt in flight
with a deadline. When the deadline passes, the attempt counts as lost and the event is retried by its policy. A lease
is named by an unguessable token (the event's partition, the owner's epoch and a nonce), so a worker with an expired
lease cannot settle another worker's attempt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from msgspec import Struct

from everbell.channels.port import Delivery, Keeper
from everbell.channels.queue_contacts import QueueContacts
from everbell.clock import Clock
from everbell.core.occurrence import Occurrence, occurrence_of
from everbell.core.retry import DELIVERED, Outcome
from everbell.entropy import Entropy
from everbell.errors import Stopping

LEASE_EVENTS_MAX = 1_000
WAIT_MS_MAX = 60_000
_SWEEP_S = 0.05
_WATCHED_SPARE = 10_000  # The tolerated number of tokens of ended leases in `_deadlines`.


class Lease(Struct, frozen=True, gc=False):
    """An occurrence that a worker holds until `until_at`."""

    token: str
    until_at: int
    occurrence: Occurrence


class LeaseFollower(Protocol):
    """Follows the leases of events that other nodes hold as well, and makes their tokens."""

    def make_token(self, nonce: str) -> str:
        """The token of a new lease. Any node finds the node that gave the lease by it."""
        ...

    def leased(self, deliveries: Sequence[Delivery], until_at: int) -> None:
        """Workers hold these events until then. Called again when leases are extended or given back."""
        ...


def partition_in(token: str) -> int | None:
    """The partition in a lease's token; None for any other text."""
    try:
        return int(token.partition(".")[0], 16)
    except ValueError:
        return None


class _LeasedDelivery(Struct, eq=False):
    """The delivery behind a lease."""

    delivery: Delivery
    queue: tuple[str, str]
    until_at: int


class QueueChannel:
    """All queues of a node, by (tenant, name)."""

    holds = True
    together = 1

    def __init__(self, clock: Clock, entropy: Entropy, keeper: Keeper, follower: LeaseFollower | None = None) -> None:
        self._clock = clock
        self._nonce = entropy.nonce
        self._keeper = keeper
        self._follower = follower
        self.contacts = QueueContacts(clock)
        self._ready: dict[tuple[str, str], deque[Delivery]] = {}
        self._waiting: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}
        self._held: dict[str, _LeasedDelivery] = {}
        # The tokens to check at a time; those of one batch share an entry.
        self._deadlines: list[tuple[int, list[str]]] = []
        self._watched = 0  # The number of tokens in `_deadlines`, including those of ended leases.
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            queue = (delivery.event.tenant, delivery.event.to.partition(":")[2])
            ready = self._ready.get(queue)
            if ready is None:
                ready = self._ready[queue] = deque()
                self.contacts.begin_wait(queue)
            ready.append(delivery)
            if queue in self._waiting:
                self._wake(queue)

    async def lease(self, tenant: str, name: str, limit: int, wait_ms: int, lease_ms: int | None) -> list[Lease]:
        """Up to `limit` due events. If there are none, wait for some up to `wait_ms`."""
        queue = (tenant, name)
        self.contacts.note(queue)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_ms / 1_000
        while True:
            if self._closed:
                raise Stopping("Everbell is stopping")
            with self._keeper.critical():
                leases = self._take(queue, limit, lease_ms)
            left_s = end_s - loop.time()
            if leases or left_s <= 0:
                return leases
            await self._until_ready(queue, left_s)

    def settle(self, tenant: str, name: str, outcomes: Mapping[str, Outcome | None]) -> list[str]:
        """End the leases named by token; None means delivered. Returns the tokens that are not (or no longer) held."""
        lost = []
        self.contacts.note((tenant, name))
        done: list[Delivery] = []
        with self._keeper.critical():
            for token, outcome in outcomes.items():
                held = self._release(tenant, name, token)
                if held is None:
                    lost.append(token)
                elif outcome is None:
                    done.append(held.delivery)
                else:
                    held.delivery.settle(outcome)
            if done:
                done[0].desk.settle_all(done, DELIVERED)
        return lost

    def extend(self, tenant: str, name: str, tokens: Sequence[str], lease_ms: int) -> list[str]:
        """Extend the leases to `lease_ms` from now. Returns the tokens that are not (or no longer) held."""
        lost = []
        extended: dict[str, Delivery] = {}
        self.contacts.note((tenant, name))
        until_at = self._clock.now() + lease_ms
        for token in tokens:
            held = self._held.get(token)
            if held is None or held.queue != (tenant, name):
                lost.append(token)
            else:
                held.until_at = until_at
                extended[token] = held.delivery
        with self._keeper.critical():
            self._watch(until_at, list(extended))
            self._tell(list(extended.values()), until_at)
        return lost

    def give_back(self, tenant: str, name: str, tokens: Sequence[str]) -> list[str]:
        """Undo the leases: no attempt took place. Returns the tokens that are not (or no longer) held."""
        lost = []
        given: list[Delivery] = []
        with self._keeper.critical():
            for token in tokens:
                held = self._release(tenant, name, token)
                if held is None:
                    lost.append(token)
                else:
                    given.append(held.delivery)
            self._tell(given, self._clock.now())
            for delivery in given:
                delivery.give_back()
        return lost

    def recall(self, tenant: str, name: str, sequence: int | None = None) -> list[int]:
        """Withdraw deliveries that wait for a worker, all or those of one event; returns their sequences in order."""
        queue = (tenant, name)
        ready = self._ready.pop(queue, ())
        kept = deque(delivery for delivery in ready if sequence is not None and delivery.event.sequence != sequence)
        if kept:
            self._ready[queue] = kept
        else:
            self.contacts.end_wait(queue)
        return [delivery.event.sequence for delivery in ready if sequence in (None, delivery.event.sequence)]

    def depth(self, tenant: str, name: str) -> int:
        """The number of due events of the queue that are in memory and wait for a worker."""
        return len(self._ready.get((tenant, name), ()))

    def oldest_at(self, tenant: str, name: str) -> int | None:
        """The time of the first event of the queue that is in memory and waits for a worker; None if none waits."""
        ready = self._ready.get((tenant, name))
        return ready[0].event.run_at if ready else None

    def waiting(self) -> list[tuple[str, str]]:
        """The queues with events in memory that wait for a worker, as (tenant, name)."""
        return list(self._ready)

    def prune(self, is_wanted: Callable[[Delivery], bool]) -> None:
        """Forget deliveries that need no worker any more, because their events were cancelled or changed."""
        for queue, ready in list(self._ready.items()):
            # In place: `_take` may be working on the same deque, when a lost lease is noticed while attempts begin.
            kept = list(filter(is_wanted, ready))
            ready.clear()
            ready.extend(kept)
            if not kept:
                del self._ready[queue]
                self.contacts.end_wait(queue)

    def lose(self, partitions: Container[int]) -> None:
        """Other nodes own these partitions now: workers learn that their leases are lost when they acknowledge."""
        self.prune(lambda delivery: delivery.event.partition not in partitions)
        for token in [token for token, held in self._held.items() if held.delivery.event.partition in partitions]:
            self._held.pop(token).delivery.settle(Outcome("lost", "the partition moved to another node"))

    async def close(self) -> None:
        """Drop the leases; their events are stored and will be offered again."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for queue in list(self._waiting):
            self._wake(queue, all_workers=True)

    def _take(self, queue: tuple[str, str], limit: int, lease_ms: int | None) -> list[Lease]:
        ready = self._ready.get(queue)
        leases: list[Lease] = []
        if not ready:
            return leases
        lease_ms = ready[0].tenant.lease_ms if lease_ms is None else lease_ms
        until_at = self._clock.now() + lease_ms
        tokens: list[str] = []
        while ready and len(leases) < limit:
            some = [ready.popleft() for _ in range(min(limit - len(leases), len(ready)))]
            begun = some[0].desk.begin_all(some)
            self._tell(begun, until_at)
            for delivery in begun:
                event, epoch = delivery.event, delivery.epoch
                token = self._token_of(delivery)
                self._held[token] = _LeasedDelivery(delivery, queue, until_at)
                tokens.append(token)
                attempts_max = (event.retry or delivery.tenant.retry).max_attempts
                occurrence = occurrence_of(event, delivery.attempt, epoch, attempts_max)
                leases.append(Lease(token, until_at, occurrence))
        if not ready and self._ready.get(queue) is ready:
            del self._ready[queue]
            self.contacts.end_wait(queue)
        self._watch(until_at, tokens)
        return leases

    def _token_of(self, delivery: Delivery) -> str:
        nonce = self._nonce().hex()
        if self._follower is not None:
            return self._follower.make_token(nonce)
        # Nodes of all versions find the owner by the partition at the beginning.
        return f"{delivery.event.partition:x}.{delivery.epoch:x}.{nonce}"

    def _tell(self, deliveries: Sequence[Delivery], until_at: int) -> None:
        if self._follower is not None and deliveries:
            self._follower.leased(deliveries, until_at)

    def _watch(self, until_at: int, tokens: list[str]) -> None:
        """Check these leases when their time is over."""
        if tokens:
            heappush(self._deadlines, (until_at, tokens))
            self._watched += len(tokens)
            if self._watched > 2 * len(self._held) + _WATCHED_SPARE:
                self._watch_anew()
            if self._sweeper is None:
                self._sweeper = self._keeper.call_later(_SWEEP_S, self._sweep)

    def _watch_anew(self) -> None:
        """Drop the tokens of ended leases: leases may be long, and most are acknowledged soon."""
        by_end: dict[int, list[str]] = {}
        for token, held in self._held.items():
            by_end.setdefault(held.until_at, []).append(token)
        self._deadlines = list(by_end.items())
        heapify(self._deadlines)
        self._watched = len(self._held)

    async def _until_ready(self, queue: tuple[str, str], timeout_s: float) -> None:
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(queue, deque())
        waiting.append(waker)
        try:
            # Not `wait_for`, which may swallow a cancellation that coincides with the wake-up.
            async with asyncio.timeout(timeout_s):
                await waker
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if waker.done():
                self._wake(queue)  # The event that it was woken for goes to another worker.
            raise
        finally:
            if waker in waiting:
                waiting.remove(waker)
            if not waiting and self._waiting.get(queue) is waiting:
                del self._waiting[queue]

    def _wake(self, queue: tuple[str, str], *, all_workers: bool = False) -> None:
        waiting = self._waiting.get(queue)
        while waiting:
            waker = waiting.popleft()
            if not waker.done():
                waker.set_result(None)
                if not all_workers:
                    return

    def _release(self, tenant: str, name: str, token: str) -> _LeasedDelivery | None:
        held = self._held.get(token)
        if held is None or held.queue != (tenant, name):
            return None
        del self._held[token]
        return held

    def _sweep(self) -> None:
        """End the leases that have timed out."""
        self._sweeper = None
        now = self._clock.now()
        while self._deadlines and self._deadlines[0][0] <= now:
            tokens = heappop(self._deadlines)[1]
            self._watched -= len(tokens)
            for token in tokens:
                held = self._held.get(token)
                if held is not None and held.until_at <= now:
                    del self._held[token]
                    held.delivery.settle(Outcome("lost", "the worker's lease ran out"))
        if self._held:
            self._sweeper = self._keeper.call_later(_SWEEP_S, self._sweep)
        else:
            self._deadlines.clear()
            self._watched = 0
