"""Which row numbers of an outbox may still appear: the pure part of collecting, with no connection in it.

Rows are read in the order of their numbers, but transactions commit in any order: a row may appear below rows that were
read long ago. So the collector remembers the ranges of numbers that it has not seen, and looks into them again.

A range is forgotten when no transaction can fill it any more. A transaction gets its own id before it takes a number
(`outbox_add` in outbox.sql), and a range is known because a higher number was seen. So every transaction that may fill
the range has a smaller id than a transaction of the collector that begins afterwards: that id is the range's limit.
When PostgreSQL says that all transactions below the limit have ended, the range stays empty for ever. Numbers of
transactions that were rolled back end that way.

A long transaction of the application therefore costs a few ranges to look into, and delays no row of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NUMBER_MAX = 2**63 - 1
RANGES_MAX = 1_000
"""Beyond this, neighbouring ranges are joined: rows in between are gone, so looking there again finds nothing."""


class Range(NamedTuple):
    """Numbers that were not seen, and the transaction id below which all transactions must have ended."""

    low: int
    high: int
    limit: int | None = None


class Unseen:
    """All numbers at the beginning; then those that were not seen."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []
        self._next = 0
        """Every number from here on is unseen."""

    @property
    def ranges(self) -> list[Range]:
        """Where to look, in order. The last range has no end."""
        return [*self._ranges, Range(self._next, NUMBER_MAX)]

    @property
    def lowest(self) -> int:
        """No row can appear below this number."""
        return self._ranges[0].low if self._ranges else self._next

    @property
    def needs_limit(self) -> bool:
        """Whether some ranges wait for a call of `put_limit`."""
        return any(each.limit is None for each in self._ranges)

    def put_limit(self, transaction: int) -> None:
        """Give all new ranges a limit: the id of a transaction that began after they were found."""
        self._ranges = [each if each.limit is not None else each._replace(limit=transaction) for each in self._ranges]

    def see(self, numbers: Sequence[int], running: int) -> None:
        """Note the result of a look: the first numbers in the ranges, ascending, or none if all ranges are empty.

        `running` is the smallest id of a transaction that still ran at that moment.
        """
        end = numbers[-1] if numbers else NUMBER_MAX
        looked = [each for each in self._ranges if each.high <= end]
        left = [each for each in _without(looked, numbers) if each.limit is None or each.limit > running]
        left += _without([each for each in self._ranges if each.high > end], numbers)
        if numbers and end >= self._next:
            left += _without([Range(self._next, end)], numbers)
            self._next = end + 1
        self._ranges = _joined(left)

    def look_again(self, low: int) -> None:
        """Take all numbers from `low` on that were seen for unseen."""
        if low < self._next:
            kept = [each for each in self._ranges if each.low < low]
            if kept and kept[-1].high >= low:
                low = kept.pop().low
            self._ranges = [*kept, Range(low, self._next - 1)]


def _without(ranges: Sequence[Range], numbers: Sequence[int]) -> list[Range]:
    """The ranges without some numbers; both ascend."""
    left: list[Range] = []
    place = 0
    for low, high, limit in ranges:
        while place < len(numbers) and numbers[place] < low:
            place += 1
        while place < len(numbers) and numbers[place] <= high:
            if numbers[place] > low:
                left.append(Range(low, numbers[place] - 1, limit))
            low = numbers[place] + 1
            place += 1
        if low <= high:
            left.append(Range(low, high, limit))
    return left


def _joined(ranges: list[Range]) -> list[Range]:
    if len(ranges) <= RANGES_MAX:
        return ranges
    some = ranges[: len(ranges) - RANGES_MAX // 2]
    limits = [each.limit for each in some]
    limit = None if None in limits else max(filter(None, limits))
    return [Range(some[0].low, some[-1].high, limit), *ranges[len(some) :]]
