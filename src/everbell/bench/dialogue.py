"""How the processes of a benchmark talk: lines of JSON, plans going down, results coming up.

Every process ends when its standard input does, so none outlives whoever started it.
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


class BenchFailed(EverbellError):
    """A measurement could not be made."""


def say(thing: object) -> None:
    """Send a result to whoever started this process."""
    sys.stdout.buffer.write(msgspec.json.encode(thing) + b"\n")
    sys.stdout.buffer.flush()


def plan_told(kind: type[T]) -> T:
    """The plan: the first line of standard input. Nothing behind it is read, for that is for `lines_told`."""
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
    """A process of the benchmark: `module` is run with the plan as its first line."""

    def __init__(self, module: str, plan: object) -> None:
        self._module = module
        self._rest = b""
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter with a module of ours: no shell, no user's words
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for whoever started it, and ends it from there.
        )
        self.tell(plan)

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, thing: object) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(thing) + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchFailed(f"{self._module} ended before it was told everything") from None

    def hear(self, patience_s: float, on_progress: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
        """Its next line that is not about progress. Raises `BenchFailed` when none comes for so long."""
        while True:
            heard: dict[str, Any] = msgspec.json.decode(self._line(patience_s))
            if heard.keys() != {"done"}:
                return heard
            on_progress(heard["done"])

    def end(self) -> None:
        """End it. It has nothing to lose."""
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
                raise BenchFailed(f"{self._module} said nothing for {patience_s:g} s")
            piece = os.read(reading, 1 << 16)
            if not piece:
                raise BenchFailed(f"{self._module} ended with code {self.process.wait()}; what it said is above")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line
