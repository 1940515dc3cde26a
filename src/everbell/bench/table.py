"""Figures as an aligned table: each beside its goal and beside the bare work of the same run."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.bench.figures import Figure, Lateness
from everbell.bench.run import Machine

HEADINGS = ("WORK", "MEASURED", "AT LEAST", "AIM", "", "BARE", "RATIO", "CPU µs", "RSS MB", "LATE ms p50/p99/max")
_GAP = "  "
_TEXT_COLUMNS = (0, 4)


def lines_of(figures: Sequence[Figure]) -> list[str]:
    """The table, then the notes on single rows."""
    rows = [HEADINGS, *(row_of(figure) for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [*(_line(row, widths) for row in rows), "", *_notes(figures)]


def machine_line(machine: Machine) -> str:
    return (
        f"{machine.cores} cores of {machine.processor}, load average {machine.load_average:.1f} before; "
        f"{machine.system}; Python {machine.python}, everbell {machine.everbell}, rocksdict {machine.rocksdict}"
    )


def row_of(figure: Figure) -> tuple[str, ...]:
    """The cells of a figure, under `HEADINGS`."""
    goal = figure.goal
    bare = figure.baselines[0].value if figure.baselines else None
    return (
        goal.work,
        f"{number(figure.value)} {goal.unit}",
        number(goal.at_least),
        number(goal.aim),
        goal.verdict(figure.value),
        number(bare),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if figure.cpu_us is None else f"{figure.cpu_us:.1f}",
        "" if figure.rss_mb is None else f"{figure.rss_mb:.0f}",
        _late(figure.lateness),
    )


def number(value: float | None) -> str:
    """The value with its significant digits."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return (f"{value:.1f}" if value >= 10 else f"{value:.2f}").rstrip("0").rstrip(".")


def _late(lateness: Lateness | None) -> str:
    if lateness is None:
        return ""
    return " / ".join(number(value) for value in (lateness.p50_ms, lateness.p99_ms, lateness.max_ms))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if column in _TEXT_COLUMNS else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return _GAP.join(padded).rstrip()


def _notes(figures: Sequence[Figure]) -> list[str]:
    lines = []
    for figure in figures:
        facts = [f"bare: {bare.what}, {number(bare.value)} {figure.goal.unit}" for bare in figure.baselines]
        if figure.rounds:
            facts.insert(0, f"the best of {', '.join(map(number, figure.rounds))} {figure.goal.unit}")
        if facts or figure.notes:
            lines.append(f"{figure.goal.work}:")
            lines.extend(f"  {fact}" for fact in (*facts, *figure.notes))
    return lines
