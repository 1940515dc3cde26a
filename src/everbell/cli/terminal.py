"""Output for a terminal: colours where it has them, aligned tables, and a progress bar for long operations.

Text from other programs is made harmless first: a receiver writes the reason of a failure, and must not be able to
control the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
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
    return clean if length_max is None or len(clean) <= length_max else clean[: length_max - 1] + "…"


class Table:
    """Rows in columns. The first rows decide how wide the columns are; later ones line up as far as they can."""

    def __init__(self, headings: Sequence[str], paint: Paint) -> None:
        self._headings = headings
        self._paint = paint
        self._widths: list[int] | None = None

    def print(self, rows: Sequence[Sequence[str]], status_column: int | None = None) -> None:
        """Print some rows, after the headings if they are the first."""
        if self._widths is None:
            columns = zip(self._headings, *rows, strict=True)
            self._widths = [max(map(len, column)) for column in columns]
            print(self._paint(self._line(self._headings), "bold"))
        for row in rows:
            print(self._line(row, status_column))

    def _line(self, cells: Sequence[str], status_column: int | None = None) -> str:
        assert self._widths is not None
        padded = [cell.ljust(size) for cell, size in zip(cells, self._widths, strict=True)]
        if status_column is not None:
            padded[status_column] = self._paint.status(padded[status_column])
        return _GAP.join(padded).rstrip()


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
