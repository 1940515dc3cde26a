"""A drawing of the figures. It needs matplotlib: `pip install everbell[bench]`."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.bench.figures import Figure
from everbell.errors import EverbellError


class NoPlot(EverbellError):
    """There are no rates to draw, or matplotlib is missing."""


def draw(figures: Sequence[Figure], path: str) -> None:
    """Draw the rates beside their goals and the bare work, as .png or .svg by the suffix. Raises `NoPlot`."""
    rates = [figure for figure in figures if figure.goal.unit == "events/s"]
    if not rates:
        raise NoPlot("none of the measurements was of a rate: measure more, or leave --plot out")
    try:
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        raise NoPlot("drawing needs matplotlib: pip install 'everbell[bench]'") from None
    drawing = Drawing(figsize=(10, 1.2 + 0.6 * len(rates)), layout="constrained")
    axes = drawing.subplots()
    places = range(len(rates), 0, -1)
    bare = [figure.baselines[0].value if figure.baselines else 0 for figure in rates]
    axes.barh([place + 0.18 for place in places], [figure.value for figure in rates], 0.34, label="everbell")
    axes.barh([place - 0.18 for place in places], bare, 0.34, label="bare", color="lightgrey")
    for marker, label, wanted in (("|", "at least", "at_least"), (">", "aim", "aim")):
        goals = [(getattr(figure.goal, wanted), place) for figure, place in zip(rates, places, strict=True)]
        known = [(value, place + 0.18) for value, place in goals if value is not None]
        if known:
            axes.scatter(*zip(*known, strict=True), marker=marker, color="black", label=label, zorder=3)
    axes.set_yticks(list(places), [figure.goal.work for figure in rates])
    axes.set_xscale("log")
    axes.set_xlabel("events a second")
    axes.legend()
    try:
        drawing.savefig(path)
    except (OSError, ValueError) as error:
        raise NoPlot(f"{path} cannot be drawn: {error}") from None
