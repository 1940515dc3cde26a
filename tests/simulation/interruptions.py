"""Users and operators act while a component of the engine awaits the store.

`HeldStore` stands in front of a simulated store. By chance it holds a single call, before the call is made or while its
answer is in flight, and meanwhile `Interruptions` lets users and operators act. They act on the events of that call:
those of the page, those of the changes, and those of the same key that are due soon.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from everbell.core.event import Event, Record
from everbell.core.pause import What
from everbell.errors import StoreError, StoreFull, StoreUnavailable
from everbell.stores.port import Add, Block, Change, Filter, Finish, Move, Page, PreparedRows, Refusal, Store, Unblock
from everbell.testing import VirtualClock
from tests.checker import Asked

K = TypeVar("K")
T = TypeVar("T")

Edit = Literal["touch", "move", "cancel", "redrive"]
Action = Literal["touch", "move", "cancel", "redrive", "pause", "resume", "disconnect", "refuse"]
_EDITS: tuple[Edit, ...] = ("touch", "move", "cancel", "redrive")
ACTIONS: tuple[Action, ...] = ("touch", "move", "cancel", "redrive", "pause", "resume", "disconnect", "refuse")

_OFTEN: Mapping[Action, int] = {"touch": 6, "pause": 3, "disconnect": 3, "resume": 2}
"""Moves and cancels are rarer: the checker knows less about a moved or cancelled event."""
_NEAR_MS = 2_000
"""The longest time until an event is due for which a call is held. Longer holds would be outages of the store."""
_BEGUN_MS = 10
"""About how long it takes until the store begins to write a change."""
_SOONEST = 8
_RECENT = 20
_EDITS_MAX = 3
"""The maximum number of changes in flight because of interruptions: each makes calls that can be interrupted again."""
_RARE = 3
_RARE_MAX = 0.6
"""Rare calls, the reads of the loader and of lanes, are held more often: by this factor, and with this probability at
most. Writes of changes are always held with that probability."""


@dataclass(frozen=True)
class Known:
    """An event that was acknowledged."""

    id: str
    asked: Asked


class Users(Protocol):
    """The users and operators that act."""

    def edit(self, edit: Edit, known: Known) -> asyncio.Task[None] | None:
        """Ask the engine for a change of the event. None: the engine is down."""
        ...

    def pause(self, thing: tuple[str, What, str], for_s: float | None) -> None:
        """Pause a tenant, a key or a target; None: resume it."""
        ...


class Interruptions:
    """Decides which calls are held, for how long, and which actions happen meanwhile."""

    def __init__(
        self, dice: random.Random, clock: VirtualClock, users: Users, holds: float, actions: Sequence[Action]
    ) -> None:
        self.count: Counter[tuple[str, Action]] = Counter()
        """The number of actions of each kind, by the call that was awaited meanwhile."""
        self._dice = dice
        self._clock = clock
        self._users = users
        self._holds = holds
        self._actions = [action for action in actions for _ in range(_OFTEN.get(action, 1))]
        self._by_name: dict[str, Known] = {}
        self._by_key: dict[tuple[str, str], list[Known]] = {}
        self._callers: dict[asyncio.Task[None], Known | None] = {}
        self._edits: dict[asyncio.Task[None], Known] = {}
        self._paused: list[tuple[str, What, str]] = []

    def learn(self, known: Known) -> None:
        """Remember an acknowledged event."""
        asked = known.asked
        self._by_name[asked.id] = known
        if asked.key is not None:
            self._by_key.setdefault((asked.tenant, asked.key), []).append(known)

    def follow(self, task: asyncio.Task[None], known: Known | None) -> None:
        """Remember a caller that waits for a change of the event, or for a new event if None. It may disconnect."""
        _keep(self._callers, task, known)

    def stop(self) -> None:
        """Interrupt no call from now on."""
        self._holds = 0.0

    def of_events(self, events: Sequence[Event | Record]) -> list[Known]:
        """The known events among stored events. A payload is the name of an event in the simulation."""
        names = (event.payload.decode() for event in events if isinstance(event, Event))
        return [self._by_name[name] for name in names if name in self._by_name]

    def of_keys(self, keys: Sequence[tuple[str, str]]) -> list[Known]:
        """The events of some keys."""
        return [known for key in keys for known in self._by_key.get(key, ())]

    async def interrupt(
        self, call: str, subjects: Sequence[Known], *, is_rare: bool = True, until_due: bool = False
    ) -> None:
        """Hold a call about these events, perhaps, and let users act on them meanwhile.

        `until_due`: the hold may last until one of them is due. Other calls are held for a moment only, so that changes
        begin before their event is due. Raises `StoreError` when the call has to fail.
        """
        dice = self._dice
        chance = min(self._holds * _RARE, _RARE_MAX) if is_rare else self._holds
        if not self._holds or dice.random() >= (_RARE_MAX if until_due else chance):
            return
        for _ in range(dice.choice((1, 1, 2, 3))):
            action = dice.choice(self._actions)
            aim = self._aim(subjects, near=0.7 if action in _EDITS else 0.2)
            if aim is not None:
                self._act(call, action, aim)
            if action == "disconnect" and dice.random() < 0.5:
                return  # The engine gets the answer in the loop iteration in which the caller leaves.
            await self._hold(dice.choice(subjects) if subjects and until_due else None)

    async def _hold(self, subject: Known | None) -> None:
        """Hold a call for some iterations of the loop, for a while, or until one of its events is due."""
        dice = self._dice
        left_ms = 0 if subject is None else subject.asked.due_at - self._clock.now()
        roll = dice.random()
        if roll < 0.8 and 0 < left_ms < _NEAR_MS:
            await asyncio.sleep((left_ms + dice.randrange(5)) / 1_000)
        elif roll < 0.4:
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(dice.expovariate(1 / dice.choice((0.005, 0.02, 0.2))))

    def _aim(self, subjects: Sequence[Known], near: float) -> Known | None:
        """One of the call's events or, with probability `near`, one that is due soon, of the same key if possible."""
        dice = self._dice
        subject = dice.choice(subjects) if subjects else None
        if subject is not None and dice.random() >= near:
            return subject
        key = None if subject is None or subject.asked.key is None else (subject.asked.tenant, subject.asked.key)
        others = list(self._by_name.values()) if key is None else self._by_key[key]
        now = self._clock.now()
        soon = sorted((each for each in others if now + _BEGUN_MS <= each.asked.due_at < now + _NEAR_MS), key=_due_at)
        return dice.choice(soon[:_SOONEST] or others[-_RECENT:] or [None])

    def _act(self, call: str, action: Action, aim: Known) -> None:
        if action == "refuse":
            if not call.endswith("answer"):
                self.count[call, action] += 1
                raise self._refusal(call)
            return
        elif action == "pause":
            self._pause(aim.asked)
        elif action == "resume":
            if not self._paused:
                return
            self._users.pause(self._paused.pop(), None)
        elif action == "disconnect":
            if not self._disconnect(aim):
                return
        elif not self._edit(action, aim):
            return
        self.count[call, action] += 1

    def _edit(self, edit: Edit, aim: Known) -> bool:
        task = self._users.edit(edit, aim) if len(self._edits) < _EDITS_MAX else None
        if task is None:
            return False
        _keep(self._edits, task, aim)
        self.follow(task, aim)
        return True

    def _refusal(self, call: str) -> StoreError:
        if call == "apply" and self._dice.random() < 0.7:
            return StoreFull("the simulated disk is full for a moment")
        return StoreUnavailable("the simulated store is away for a moment")

    def _pause(self, asked: Asked) -> None:
        things: list[tuple[str, What, str]] = [(asked.tenant, "tenant", "")]
        for _ in range(3):
            things.append((asked.tenant, "target", asked.target))
            if asked.key is not None:
                things.append((asked.tenant, "key", asked.key))
        thing = self._dice.choice(things)
        self._paused.append(thing)
        self._users.pause(thing, self._dice.expovariate(1 / self._dice.choice((0.02, 0.3, 3))))

    def _disconnect(self, aim: Known) -> bool:
        """Cancel a caller, if possible one that waits for this event, now or after an iteration of the loop."""
        callers = [task for task, known in self._edits.items() if known is aim]
        callers = callers or [task for task, known in self._callers.items() if known is aim] or list(self._callers)
        if not callers:
            return False
        caller = self._dice.choice(callers)
        if self._dice.random() < 0.5:
            caller.cancel()
        else:
            # A call that returns now is answered before its caller is cancelled.
            asyncio.get_running_loop().call_soon(caller.cancel)
        return True


class HeldStore:
    """A store in front of another one, with calls that can be interrupted."""

    def __init__(self, inner: Store, interruptions: Interruptions) -> None:
        self._inner = inner
        self._interruptions = interruptions

    async def apply(self, changes: Sequence[Change], epochs: Mapping[int, int]) -> Mapping[int, Refusal]:
        asked = [change for change in changes if isinstance(change, (Move, Finish)) and change.guarded]
        is_asked = bool(asked)
        writes: Sequence[Change] = asked or changes
        subjects = self._interruptions.of_events([event for change in writes for event in _events_of(change)])
        await self._interruptions.interrupt("apply", subjects, is_rare=is_asked, until_due=is_asked)
        refused = await self._inner.apply(changes, epochs)
        await self._interruptions.interrupt("apply answer", subjects, is_rare=is_asked, until_due=is_asked)
        return refused

    async def page(
        self, partition: int, after: int, until_at: int, limit: int, without: Collection[tuple[str, str]] = ()
    ) -> Page:
        await self._interruptions.interrupt("page", ())
        page = await self._inner.page(partition, after, until_at, limit, without)
        await self._interruptions.interrupt("page answer", self._interruptions.of_events(page.events))
        return page

    async def waiting(self, partition: int, tenant: str, key: str, after: int, limit: int) -> Page:
        subjects = self._interruptions.of_keys([(tenant, key)])
        return await self._held("waiting", subjects, lambda: self._inner.waiting(partition, tenant, key, after, limit))

    async def heads(self, partition: int, keys: Sequence[tuple[str, str]]) -> Sequence[int | None]:
        subjects = self._interruptions.of_keys(keys)
        return await self._held("heads", subjects, lambda: self._inner.heads(partition, keys))

    async def get(self, tenant: str, event_id: str) -> Event | Record | None:
        found = await self._inner.get(tenant, event_id)
        subjects = [] if found is None else self._interruptions.of_events([found])
        await self._interruptions.interrupt("get", subjects, is_rare=False)
        found = await self._inner.get(tenant, event_id)
        await self._interruptions.interrupt("get answer", subjects, is_rare=False)
        return found

    async def get_many(self, tenant: str, event_ids: Sequence[str]) -> Sequence[Event | Record | None]:
        found = await self._inner.get_many(tenant, event_ids)
        subjects = self._interruptions.of_events([event for event in found if event is not None])
        await self._interruptions.interrupt("get_many", subjects, is_rare=False)
        found = await self._inner.get_many(tenant, event_ids)
        await self._interruptions.interrupt("get_many answer", subjects, is_rare=False)
        return found

    async def _held(self, call: str, subjects: Sequence[Known], read: Callable[[], Awaitable[T]]) -> T:
        await self._interruptions.interrupt(call, subjects)
        found = await read()
        await self._interruptions.interrupt(f"{call} answer", subjects)
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


async def dead_of(store: Store, tenant: str, dice: random.Random) -> str | None:
    """The id of a dead event of a tenant, if there is one."""
    found = await store.find(Filter(tenant, "dead"), None, 10)
    return dice.choice(found.events).id if found.events else None


def _events_of(change: Change) -> list[Event]:
    if isinstance(change, (Block, Unblock, PreparedRows)):
        return []
    return [change.event if isinstance(change, Add) else change.before]


def _keep(tasks: dict[asyncio.Task[None], K], task: asyncio.Task[None], known: K) -> None:
    """Remember a task until it is done."""
    tasks[task] = known
    task.add_done_callback(lambda task: tasks.pop(task, None))


def _due_at(known: Known) -> int:
    return known.asked.due_at
