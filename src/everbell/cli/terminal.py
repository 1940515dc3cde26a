"""Output for a terminal: colours where it has them, aligned tables, and a progress bar for long operations.

A terminal gets lines that fit into it. A pipe or a file gets everything, uncut, because a program reads it.
Text from other programs is made harmless first: a receiver writes the reason of a failure, and must not be able to
control the terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from textwrap import wrap
from typing import TextIO

from everbell.clock import Clock

_COLOURS = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}
_STATUS_COLOURS = {
    "scheduled": "cyan",
    "waiting": "dim",
    "paused": "dim",
    "retrying": "yellow",
    "delivering": "blue",
    "delivered": "green",
    "dead": "red",
    "cancelled": "dim",
    "expired": "dim",
}
_GAP = "  "
_NARROWEST = 10
"""A column is not made narrower than this."""
_BAR_CELLS = 24
_REDRAW_MS = 100


def has_colours(stream: TextIO) -> bool:
    """Whether to use colours: on a terminal that is not dumb, unless NO_COLOR is set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Paint:
    """Colours text for a stream, or leaves it alone."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._on = has_colours(stream or sys.stdout)

    def __call__(self, text: str, colour: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._on and text else text

    def status(self, text: str) -> str:
        """A status, or a cell that holds one."""
        return self(text, _STATUS_COLOURS.get(text.strip(), "bold"))


def harmless(text: str, length_max: int | None = None) -> str:
    """The text without anything that a terminal would obey, on one line, cut where it is too long."""
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(text.split()))
    return clean if length_max is None else _cut(clean, length_max)


def _cut(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def columns_of(stream: TextIO) -> int | None:
    """How many characters fit into a line; None where there is no terminal, and so no limit."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def folded(text: str, columns: int | None, indent: int) -> str:
    """Text that begins after `indent` characters of its line, continued below itself where the line is full."""
    if columns is None or indent + len(text) <= columns:
        return text
    lines = wrap(text, max(columns - indent, _NARROWEST), break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join(lines)


class Table:
    """Rows in columns. The first rows decide how wide the columns are; later ones line up as far as they can.

    On a terminal that is too narrow, the `flexible` columns are cut, in this order. The last column is folded.
    """

    def __init__(self, headings: Sequence[str], paint: Paint, flexible: Sequence[int] = ()) -> None:
        self._headings = headings
        self._paint = paint
        self._flexible = flexible
        self._columns = columns_of(sys.stdout)
        self._widths: list[int] | None = None

    def print(self, rows: Sequence[Sequence[str]], status_column: int | None = None) -> None:
        """Print some rows, after the headings if they are the first."""
        if self._widths is None:
            columns = zip(self._headings, *rows, strict=True)
            self._widths = self._fit([max(map(len, column)) for column in columns])
            print(self._paint(self._line(self._headings), "bold"))
        for row in rows:
            print(self._line(row, status_column))

    def _line(self, cells: Sequence[str], status_column: int | None = None) -> str:
        assert self._widths is not None
        shown = list(cells)
        if self._columns is not None:
            for column in self._flexible:
                shown[column] = _cut(shown[column], self._widths[column])
            shown[-1] = folded(shown[-1], self._columns, sum(self._widths[:-1]) + len(_GAP) * (len(shown) - 1))
        padded = [cell.ljust(size) for cell, size in zip(shown, self._widths, strict=True)]
        if status_column is not None:
            padded[status_column] = self._paint.status(padded[status_column])
        return _GAP.join(padded).rstrip()

    def _fit(self, widths: list[int]) -> list[int]:
        for column in self._flexible if self._columns is not None else ():
            excess = sum(widths) + len(_GAP) * (len(widths) - 1) - (self._columns or 0)
            if excess > 0:
                widths[column] = max(widths[column] - excess, min(widths[column], _NARROWEST))
        return widths


class Progress:
    """A progress bar on stderr, if that is a terminal."""

    def __init__(self, total: int | None, clock: Clock, stream: TextIO | None = None) -> None:
        """`total` is the final value of `done`, if it is known."""
        self._stream = stream or sys.stderr
        self._on = self._stream.isatty()
        self._total = total
        self._clock = clock
        self._began_at = clock.now()
        self._drawn_at = 0

    def show(self, done: int, events: int) -> None:
        """Show the progress: `done` of the total, and the number of events."""
        now = self._clock.now()
        if not self._on or now - self._drawn_at < _REDRAW_MS:
            return
        self._drawn_at = now
        rate = events * 1_000 // max(now - self._began_at, 1)
        bar = ""
        if self._total:
            share = min(done / self._total, 1.0)
            filled = int(share * _BAR_CELLS)
            bar = f"{'█' * filled}{'░' * (_BAR_CELLS - filled)} {share:4.0%}  "
        self._stream.write(f"\r\x1b[K{bar}{events:,} events, {rate:,}/s")
        self._stream.flush()

    def clear(self) -> None:
        """Take the bar away, if it is there; it comes back with the next `show`."""
        if self._on and self._drawn_at:
            self._drawn_at = 0
            self._stream.write("\r\x1b[K")
            self._stream.flush()
