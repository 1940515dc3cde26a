"""Sorted positions in short lists, so that an insertion costs the same with a thousand positions and with millions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

_SPLIT = 1_024


class Positions:
    """A sorted set of integers."""

    __slots__ = ("_lasts", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[int]] = []
        self._lasts: list[int] = []  # The last position of each run.

    def add(self, place: int) -> None:
        runs, lasts = self._runs, self._lasts
        if not runs:
            runs.append([place])
            lasts.append(place)
            return
        index = bisect_left(lasts, place)
        if index == len(runs):
            index -= 1
            lasts[index] = place
        run = runs[index]
        insort(run, place)
        if len(run) > _SPLIT:
            half = len(run) // 2
            runs.insert(index + 1, run[half:])
            lasts.insert(index, run[half - 1])
            del run[half:]

    def discard(self, place: int) -> None:
        """Remove a position, if it is there."""
        index = bisect_left(self._lasts, place)
        if index == len(self._runs):
            return
        run = self._runs[index]
        at = bisect_left(run, place)
        if run[at] != place:
            return
        del run[at]
        if run:
            self._lasts[index] = run[-1]
        else:
            del self._runs[index], self._lasts[index]

    def after(self, place: int) -> Iterator[int]:
        """The positions above this one, in order. The set must not change meanwhile."""
        index = bisect_right(self._lasts, place)
        if index < len(self._runs):
            run = self._runs[index]
            yield from run[bisect_right(run, place) :]
            for later in self._runs[index + 1 :]:
                yield from later

    @property
    def last(self) -> int:
        """The highest position; -1 if there is none."""
        return self._lasts[-1] if self._lasts else -1

    def __len__(self) -> int:
        return sum(map(len, self._runs))
