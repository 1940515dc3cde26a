"""The network between nodes, the log and the store: it delays, reorders, loses, and can be cut in one direction.

A single link can also be bad without being cut: it loses or delays messages. No link between nodes repeats a message,
because TCP removes repeated packets.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from everbell.errors import EverbellError, Overloaded
from tests.simulation.processes import Process, ProcessLoop

T = TypeVar("T")

Fault = Callable[[], EverbellError]

NEVER_S = 1e9
_REPEATED_S = 10.0


@dataclass(frozen=True)
class BadLink:
    """The state of the link from one machine to another, for a while."""

    until_s: float
    loss: float = 0.0
    delay_s: float = 0.0
    """The mean of what is added to the delay of each message."""


class Network:
    """Carries requests and answers. A sender without an answer gets an error after a while."""

    def __init__(self, loop: ProcessLoop, dice: random.Random) -> None:
        self.loss = 0.0
        self.twice = 0.0
        """How often a request to a process arrives a second time, later."""
        self.repeated = 0
        self.lost = 0
        """The number of messages that did not arrive."""
        self.lost_replies = 0
        """The number of lost replies to operations that were done and must not be done twice."""
        self._loop = loop
        self._dice = dice
        self._cuts: dict[tuple[str, str], float] = {}
        self._storm_until_s = 0.0
        self._bad: dict[tuple[str, str], BadLink] = {}

    def degrade(self, sender: str, receiver: str, seconds: float, loss: float = 0.0, delay_s: float = 0.0) -> None:
        """Make the link bad in this direction for a while. It stays usable, so it is never noticed as cut."""
        self._bad[sender, receiver] = BadLink(self._loop.true_s + seconds, loss, delay_s)

    def cut(self, sender: str, receiver: str, seconds: float = NEVER_S) -> None:
        """Drop all messages in this direction for a while."""
        until_s = self._loop.true_s + seconds
        self._cuts[sender, receiver] = max(until_s, self._cuts.get((sender, receiver), 0.0))

    def storm(self, seconds: float) -> None:
        """Make all messages slow, and lose many, for a while."""
        self._storm_until_s = self._loop.true_s + seconds

    def heal(self) -> None:
        """Deliver all messages from now on."""
        self._cuts.clear()
        self._bad.clear()
        self._storm_until_s = 0.0
        self.loss = self.twice = 0.0

    def is_cut(self, sender: str, receiver: str) -> bool:
        return self._cuts.get((sender, receiver), 0.0) > self._loop.true_s

    def is_lost(self, sender: str, receiver: str) -> bool:
        """Whether a message that is sent now does not arrive."""
        bad = self._link(sender, receiver)
        loss = max(0.2 if self._is_stormy() else self.loss, 0.0 if bad is None else bad.loss)
        if self.is_cut(sender, receiver) or (loss and self._dice.random() < loss):
            self.lost += 1
            return True
        return False

    def delay_s(self, sender: str, receiver: str) -> float:
        bad = self._link(sender, receiver)
        if bad is not None and bad.delay_s:
            return self._dice.expovariate(1 / bad.delay_s)
        roll = self._dice.random()
        if self.loss and roll < 0.002:
            return self._dice.uniform(0.5, 3.0)
        return self._dice.expovariate(5.0 if self._is_stormy() else 400.0)

    def patience_s(self) -> float:
        """How long it takes until a lost message is noticed."""
        return self._dice.uniform(0.05, 3.0)

    async def call(
        self,
        sender: str,
        receiver: str,
        serve: Callable[[], T],
        *,
        lost: Fault,
        unheard: Fault | None,
        late: Fault | None = None,
    ) -> T:
        """Ask a server. `lost`: the error if the request did not arrive. `unheard`: the error if it arrived and its
        answer was lost; without it, the caller asks for the answer until it comes. `late`: the request may arrive after
        the caller gave it up.
        """
        loop = self._loop
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            try:
                result = serve()
            except EverbellError as refused:
                reply(_fail, refused)
            else:
                reply(_tell, result)

        def reply(how: Callable[[asyncio.Future[T], Any], None], what: Any) -> None:
            if not self.is_lost(receiver, sender):
                loop.after(self.delay_s(receiver, sender), how, answer, what)
            elif unheard is not None:
                loop.after(self.patience_s(), _fail, answer, unheard())
            else:
                self.lost_replies += 1
                loop.after(self.patience_s(), reply, how, what)

        if not self.is_lost(sender, receiver):
            loop.after(self.delay_s(sender, receiver), arrive)
        elif late is not None and self._dice.random() < 0.5:
            loop.after(self.patience_s() * 2, serve)
            loop.after(self.patience_s(), _fail, answer, late())
        else:
            loop.after(self.patience_s(), _fail, answer, lost())
        return await answer

    async def ask(
        self,
        sender: str,
        receiver: str,
        find: Callable[[], Process | None],
        work: Callable[[], Awaitable[T]],
        *,
        may_repeat: bool = False,
    ) -> T:
        """Ask a process. Raises `Overloaded` when there is no answer: then the outcome is unknown."""
        loop = self._loop
        answer: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            process = find()
            if process is not None and not process.dead:
                task = process.spawn(_run(work))
                task.add_done_callback(reply, context=loop.outside)

        def reply(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                return
            failed = task.exception()
            if failed is not None and not isinstance(failed, EverbellError):
                loop.call_exception_handler({"message": "a request failed", "exception": failed})
            elif self.is_lost(receiver, sender):
                return
            elif failed is None:
                loop.after(self.delay_s(receiver, sender), _tell, answer, task.result())
            else:
                loop.after(self.delay_s(receiver, sender), _fail, answer, failed)

        if not self.is_lost(sender, receiver):
            loop.after(self.delay_s(sender, receiver), arrive)
            if may_repeat and self.twice and self._dice.random() < self.twice:
                self.repeated += 1
                loop.after(self._dice.uniform(0.0, _REPEATED_S), arrive)
        try:
            async with asyncio.timeout(5 + self.patience_s()):
                return await answer
        except TimeoutError:
            raise Overloaded("there was no answer; what was asked may have been done") from None

    def _link(self, sender: str, receiver: str) -> BadLink | None:
        bad = self._bad.get((sender, receiver))
        return None if bad is None or bad.until_s <= self._loop.true_s else bad

    def _is_stormy(self) -> bool:
        return self._storm_until_s > self._loop.true_s


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _tell(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], failed: EverbellError) -> None:
    if not answer.done():
        answer.set_exception(failed)
