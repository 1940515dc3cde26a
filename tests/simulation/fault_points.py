"""Raises an exception at one call of the engine's code.

A point is a call by a function of `everbell/engine`: of another function of the engine, a callback, a store, a channel,
a clock, the policies or the pure core. Python's tracing finds all of them, so no port or callback can be forgotten in a
list.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import everbell
import everbell.engine

ENGINE = str(Path(everbell.engine.__file__).parent)
PACKAGE = str(Path(everbell.__file__).parent)
TESTS = str(Path(__file__).parents[1])
# Functions that catch faults, or run after one. The harness raises one fault at a time, and none in front of the net.
NET = frozenset({"begin_all", "settle_all", "end", "_fail_callers", "_broke", "fail", "_give_up"})

Place = tuple[str, str]
"""The calling function, and the called one."""
Point = tuple[str, str, int]
"""A place, and the number of its call, from 1."""


class Injected(Exception):
    """The fault that is raised."""


class FaultPoints:
    """Counts calls, and raises at the point that it was given, if any."""

    def __init__(self, chosen: Point | None = None) -> None:
        self.seen: Counter[Place] = Counter()
        self.is_raised = False
        self._chosen = chosen

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch calls in this thread."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        caller = frame.f_back
        if caller is None or not caller.f_code.co_filename.startswith(ENGINE):
            return
        code = frame.f_code
        if not code.co_filename.startswith((PACKAGE, TESTS)) or code.co_name in NET or code.co_name[0] == "<":
            return
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR) and frame.f_lineno != code.co_firstlineno:
            return  # A coroutine goes on after an await.
        place = _name(caller.f_code), _name(code)
        self.seen[place] += 1
        if self._chosen is not None and (*place, self.seen[place]) == self._chosen:
            self.is_raised = True
            raise Injected(f"{place[0]} calls {place[1]}")


def _name(code: CodeType) -> str:
    path = code.co_filename.removeprefix(PACKAGE).removeprefix(TESTS)
    return f"{path[1:]}:{code.co_qualname}"
