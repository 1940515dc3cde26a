"""The dialogue between the processes of a benchmark: lines of JSON, plans down and results up.

Every process ends when its standard input does, so none outlives its parent.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec

from everbell.errors import EverbellError

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long a process may be silent before a measurement is given up."""


class BenchFailed(EverbellError):
    """A measurement failed."""


def say(thing: object) -> None:
    """Send a result to the parent process."""
    sys.stdout.buffer.write(msgspec.json.encode(thing) + b"\n")
    sys.stdout.buffer.flush()


def plan_told(kind: type[T]) -> T:
    """The plan: the first line of standard input. Later lines are left for `lines_told`."""
    with open(0, "rb", buffering=0, closefd=False) as told:
        return msgspec.json.decode(told.readline(), type=kind)


async def lines_told() -> AsyncIterator[bytes]:
    """The lines that follow on standard input, until it ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


class Partner:
    """A process of the benchmark: `module` runs with the plan as its first line."""

    def __init__(self, module: str, plan: object) -> None:
        self._module = module
        self._rest = b""
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter with a module of ours: no shell, no user's words
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C goes to the parent only, which ends this process.
        )
        self.tell(plan)

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, thing: object) -> None:
        """Send a line to the process."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(thing) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed(f"{self._module} ended before it had read everything") from None

    def hear(
        self, on_progress: Callable[[int], None] = lambda done: None, patience_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The next line that is not about progress. Raises `BenchFailed` if no line comes within `patience_s`."""
        while True:
            heard: dict[str, Any] = msgspec.json.decode(self._line(patience_s))
            if heard.keys() != {"done"}:
                return heard
            on_progress(heard["done"])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _line(self, patience_s: float) -> bytes:
        assert self.process.stdout is not None
        reading = self.process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([reading], [], [], patience_s)[0]:
                raise BenchFailed(f"{self._module} was silent for {patience_s:g} s")
            piece = os.read(reading, 1 << 16)
            if not piece:
                raise BenchFailed(f"{self._module} ended with code {self.process.wait()}; its messages are above")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line
