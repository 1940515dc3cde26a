"""Appends commands to the log, one after the other, and retries each until it succeeds.

An append is repeated when its answer was lost: every command may be in the log twice without harm. Waiting releases are
merged into one command: the node releases partitions with attempts in flight one by one, and an append takes
milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from everbell.cluster.supervised_task import OnHalt, begin
from everbell.core.cluster import Command, Release, encode_command
from everbell.errors import LogBroken, LogError
from everbell.logs.port import Log

_AGAIN_S = 0.2
_RELEASED_AT_ONCE = 8_192
"""How many partitions one release names at most: the size of a log entry is limited."""


class Appender:
    """Appends commands in the order of the calls."""

    def __init__(self, log: Log, on_halt: OnHalt) -> None:
        self._log = log
        self._on_halt = on_halt
        self._commands: deque[Command] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = begin(self._run(), "everbell-appender", self._on_halt)

    def append(self, *commands: Command) -> None:
        """Append these after all earlier commands."""
        for command in commands:
            # The first command may be in flight already.
            joint = _joint(self._commands[-1], command) if len(self._commands) > 1 else None
            if joint is None:
                self._commands.append(command)
            else:
                self._commands[-1] = joint
        self._wake.set()

    def forget(self) -> None:
        """Drop all waiting commands: they belong to an incarnation that has ended."""
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
    """The commands that release partitions, each small enough for one log entry."""
    let_go = list(epochs.items())
    starts = range(0, len(let_go), _RELEASED_AT_ONCE)
    return [Release(owner, dict(let_go[start : start + _RELEASED_AT_ONCE])) for start in starts]


def _joint(one: Command, other: Command) -> Release | None:
    """Two releases merged into one; None if they cannot be merged."""
    if not isinstance(one, Release) or not isinstance(other, Release) or one.owner != other.owner:
        return None
    epochs = one.epochs | other.epochs
    fits = len(epochs) == len(one.epochs) + len(other.epochs) <= _RELEASED_AT_ONCE
    return Release(one.owner, epochs) if fits else None
