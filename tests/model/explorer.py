"""Explores all states that can be reached, breadth first, and checks that every run without new faults ends well.

States are known by a digest of 16 bytes. The edges between them are kept as numbers, for the questions about runs:

- *no deadlock*: a state without any further move is good;
- *no livelock*: moves that do not wait for a random pause never form a circle, so each such run ends;
- *a way out*: a good state can be reached from every state without a fault. Pauses are random, so no run avoids it for
  ever.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from everbell.errors import BrokenInvariant
from tests.model.moves import CHANCES, FAULTS, Moves, Unsafe, is_good
from tests.model.state import State
from tests.model.values import Values

_ENCODE = msgspec.msgpack.Encoder(order="deterministic").encode


class Report(NamedTuple):
    """The result of an exploration."""

    states: int
    steps: int
    """Moves between them, faults included."""
    depth: int
    seconds: float
    is_complete: bool
    fault: str = ""
    """The first broken rule, with the way to it; empty if there is none."""


class Explorer:
    """One exploration from one state."""

    def __init__(self, values: Values, start: State) -> None:
        self._values = values
        self._moves = Moves(values)
        self._numbers: dict[bytes, int] = {}
        self._parents = array("q")
        self._labels: list[str] = []
        self._depths = array("i")
        self._good = bytearray()
        self._from, self._to, self._is_chance = array("I"), array("I"), bytearray()
        self._frontier: deque[tuple[int, State]] = deque()
        self._steps = 0
        self._add(start, -1, "")

    def run(self, states_max: int) -> Report:
        """Explore until all states are known, a rule is broken, or there are too many."""
        began_s = time.perf_counter()
        fault, is_complete = "", True
        while self._frontier and not fault:
            if len(self._numbers) > states_max:
                is_complete = False
                break
            number, state = self._frontier.popleft()
            try:
                fault = self._expand(number, state)
            except (Unsafe, BrokenInvariant) as broken:
                fault = self._told(number, f"{type(broken).__name__}: {broken}")
        if is_complete and not fault:
            fault = self._circle() or self._dead_end()
        seconds = time.perf_counter() - began_s
        return Report(len(self._numbers), self._steps, max(self._depths), seconds, is_complete, fault)

    def _expand(self, number: int, state: State) -> str:
        moves = self._moves.all(state)
        self._steps += len(moves)
        for move in moves:
            target = self._add(move.state, number, f"{move.kind} {move.name}")
            if move.kind not in FAULTS and target != number:
                self._from.append(number)
                self._to.append(target)
                self._is_chance.append(move.kind in CHANCES)
        if all(move.kind in FAULTS for move in moves) and not self._good[number]:
            return self._told(number, f"Nothing can happen any more, and the cluster is not whole: {state}")
        return ""

    def _add(self, state: State, parent: int, label: str) -> int:
        digest = blake2b(_ENCODE(state), digest_size=16).digest()
        number = self._numbers.setdefault(digest, len(self._parents))
        if number == len(self._parents):
            self._parents.append(parent)
            self._labels.append(label)
            self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
            self._good.append(is_good(self._values, state))
            self._frontier.append((number, state))
        return number

    def _circle(self) -> str:
        """A state on a circle of moves that wait for nothing."""
        incoming = array("I", bytes(4 * len(self._parents)))
        nexts: dict[int, list[int]] = {}
        for source, target, is_chance in zip(self._from, self._to, self._is_chance, strict=True):
            if not is_chance:
                incoming[target] += 1
                nexts.setdefault(source, []).append(target)
        ready = [number for number, count in enumerate(incoming) if not count]
        left = len(incoming)
        while ready:
            left -= 1
            for target in nexts.get(ready.pop(), ()):
                incoming[target] -= 1
                if not incoming[target]:
                    ready.append(target)
        if not left:
            return ""
        return self._told(next(number for number, count in enumerate(incoming) if count), "The cluster goes in circles")

    def _dead_end(self) -> str:
        """A state from which no good state can be reached without a fault."""
        sources: dict[int, list[int]] = {}
        for source, target in zip(self._from, self._to, strict=True):
            sources.setdefault(target, []).append(source)
        reached = bytearray(self._good)
        ready = [number for number, is_reached in enumerate(reached) if is_reached]
        while ready:
            for source in sources.get(ready.pop(), ()):
                if not reached[source]:
                    reached[source] = 1
                    ready.append(source)
        lost = reached.find(0)
        return "" if lost < 0 else self._told(lost, "No good state can be reached from here")

    def _told(self, number: int, rule: str) -> str:
        """A broken rule, and the moves that lead to it."""
        way: list[str] = []
        while number >= 0 and self._labels[number]:
            way.append(self._labels[number])
            number = self._parents[number]
        return f"{rule}\nafter: {', '.join(reversed(way)) or 'nothing'}"
