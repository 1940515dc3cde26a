"""The few forms that the pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MADE = "<!-- Made from the code by `make reference`; changes made here are lost. -->"


def page(title: str, *parts: str) -> str:
    """A whole page."""
    return "\n\n".join([f"# {title}", MADE, *(part for part in parts if part)]) + "\n"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; nothing where it would be empty."""
    lines = [_row(row) for row in rows]
    return "\n".join([_row(titles), "|" + "---|" * len(titles), *lines]) if lines else ""


def code(text: str) -> str:
    """A few words as code."""
    return f"`{text}`"


def block(text: str, language: str = "") -> str:
    """Lines that stay as they are."""
    return f"```{language}\n{text.strip()}\n```"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
