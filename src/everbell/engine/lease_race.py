"""Leases from several places: a worker asks one node, and gets due events of any of them.

The places take turns in being asked first. When none has a due event, the first that gets one answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from everbell.channels.queue import Lease
from everbell.engine.request_routes import ByToken
from everbell.engine.requests import GiveBack, LeaseEvents
from everbell.errors import EverbellError

# How long another place may wait in one request. A request cannot be cancelled, so it is short and is repeated.
_SLICE_MS = 1_000

LeasePlace = Callable[[LeaseEvents], Awaitable[list[Lease]]]


class LeaseRace:
    """Finds leases for workers; `give_back` undoes those that came too late."""

    def __init__(self, give_back: Callable[[ByToken], Awaitable[list[str]]]) -> None:
        self._give_back = give_back
        self._turn = 0
        self._late: set[asyncio.Task[None]] = set()

    async def run(self, places: Sequence[LeasePlace], request: LeaseEvents) -> list[Lease]:
        """The first leases that any of the places gives, within the time of the request."""
        self._turn += 1
        start = self._turn % len(places)
        for place in (*places[start:], *places[:start]):
            if leases := await self._first([place], replace(request, wait_ms=0)):
                return leases
        return await self._first(places, request)

    async def _ask(self, place: LeasePlace, request: LeaseEvents, over: asyncio.Event) -> list[Lease]:
        """Ask one place until it gives leases, the time is over, or another place gave leases."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.wait_ms / 1_000
        while True:
            left_ms = max(int((until_s - loop.time()) * 1_000), 0)
            slice_ms = min(left_ms, _SLICE_MS)
            try:
                leases = await place(replace(request, wait_ms=slice_ms))
            except EverbellError:
                # The node is stopping or gone: the other nodes answer.
                leases = []
                await asyncio.sleep(slice_ms / 1_000)
            if leases or left_ms <= slice_ms or over.is_set():
                return leases

    async def _first(self, places: Sequence[LeasePlace], request: LeaseEvents) -> list[Lease]:
        """The first answer with leases. Leases of later answers are given back."""
        over = asyncio.Event()
        asked = [asyncio.ensure_future(self._ask(place, request, over)) for place in places]
        surplus = list(asked)
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # In the order of the requests, so that runs are reproducible.
                for question in [each for each in asked if each in done]:
                    surplus.remove(question)
                    if leases := question.result():
                        return leases
            return []
        finally:
            over.set()
            for question in surplus:
                self._give_back_late(request, question)

    def _give_back_late(self, request: LeaseEvents, question: asyncio.Future[list[Lease]]) -> None:
        async def give_back() -> None:
            leases = await question
            if leases:
                with suppress(EverbellError):  # Otherwise they expire.
                    await self._give_back(GiveBack(request.tenant, request.queue, [lease.token for lease in leases]))

        task = asyncio.get_running_loop().create_task(give_back())
        self._late.add(task)
        task.add_done_callback(self._late.discard)


async def ask_each(
    request: ByToken, tokens: Mapping[str, Sequence[str]], ask: Callable[[str, ByToken], Awaitable[list[str]]]
) -> list[str]:
    """Ask every place about its own tokens, and return the lost ones.

    Tokens of a place that gives no answer count as lost, because the requests to other places cannot be undone, and a
    worker notices when it gets an event again. If no place answers, this raises the first error.
    """

    async def ask_one(place: str, some: Sequence[str]) -> list[str] | EverbellError:
        try:
            return await ask(place, request.only(some))
        except EverbellError as failed:
            return failed.as_value()

    answers = await asyncio.gather(*(ask_one(place, some) for place, some in tokens.items()))
    failures = [answer for answer in answers if isinstance(answer, EverbellError)]
    if failures and len(failures) == len(answers):
        raise failures[0]
    lost: list[str] = []
    for some, answer in zip(tokens.values(), answers, strict=True):
        lost += some if isinstance(answer, EverbellError) else answer
    return lost
