"""Commands on their way into the log, one after the other, each for as long as it takes.

An append whose answer was lost is repeated: every command can be in the log twice without harm. Releases that wait for
their turn become one: partitions that have something under way are let go of one by one, and a log takes milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from everbell.cluster.vital import OnHalt, begin
from everbell.core.cluster import Command, Release, encode_command
from everbell.errors import LogBroken, LogError
from everbell.logs.port import Log

_AGAIN_S = 0.2
_RELEASED_AT_ONCE = 8_192
"""How many partitions one release names at most: an entry of the log has a size that it may not pass."""


class Appender:
    """Appends in the order in which it was told to."""

    def __init__(self, log: Log, on_halt: OnHalt) -> None:
        self._log = log
        self._on_halt = on_halt
        self._commands: deque[Command] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = begin(self._run(), "everbell-appender", self._on_halt)

    def append(self, *commands: Command) -> None:
        """Append these, after everything before them."""
        for command in commands:
            # The first one may be on its way already.
            joint = _joint(self._commands[-1], command) if len(self._commands) > 1 else None
            if joint is None:
                self._commands.append(command)
            else:
                self._commands[-1] = joint
        self._wake.set()

    def forget(self) -> None:
        """Append nothing of what is still waiting: whoever wanted it is gone."""
        self._commands.clear()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            while self._commands:
                command = self._commands[0]
                try:
                    await self._log.append(encode_command(command))
                except LogBroken:
                    raise
                except LogError:
                    await asyncio.sleep(_AGAIN_S)
                else:
                    if self._commands and self._commands[0] is command:
                        self._commands.popleft()
            self._wake.clear()
            await self._wake.wait()


def releases(owner: str, epochs: Mapping[int, int]) -> list[Release]:
    """What says that partitions were let go of, in as many entries as it takes."""
    let_go = list(epochs.items())
    starts = range(0, len(let_go), _RELEASED_AT_ONCE)
    return [Release(owner, dict(let_go[start : start + _RELEASED_AT_ONCE])) for start in starts]


def _joint(one: Command, other: Command) -> Release | None:
    """Two releases as one; None if they are to stay two."""
    if not isinstance(one, Release) or not isinstance(other, Release) or one.owner != other.owner:
        return None
    epochs = one.epochs | other.epochs
    fits = len(epochs) == len(one.epochs) + len(other.epochs) <= _RELEASED_AT_ONCE
    return Release(one.owner, epochs) if fits else None
