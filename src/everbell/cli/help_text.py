"""Help that fits the terminal: notes are written for 120 columns, and folded here for fewer.

Three kinds of lines are folded differently, so that each stays useful:

- Prose is filled again, paragraph by paragraph.
- An example with an explanation keeps its command, and the explanation moves to the next line.
- A command that is too long continues after a backslash, so that a shell still accepts it when it is copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import fill

_EXPLAINED = re.compile(r"(?P<command> *\S.*?) {2,}(?P<explanation>\S.*)")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_KEPT = "\0"  # Stands for a space inside quotes, where a command must not be folded.
_HANGING = "      "


def fitted(text: str, columns: int) -> str:
    """The text with no line longer than `columns`, as far as its words allow."""
    return "\n".join(line for block in _blocks(text) for line in _fold(block, columns))


def _blocks(text: str) -> Iterator[list[str]]:
    """Lines that belong together: a paragraph of prose, or one line of any other kind."""
    prose: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(" ") and not line.endswith(":"):
            prose.append(line)
            continue
        if prose:
            yield prose
            prose = []
        yield [line]
    if prose:
        yield prose


def _fold(block: list[str], columns: int) -> list[str]:
    if all(len(line) <= columns for line in block):
        return block
    line = block[0]
    if not line.startswith(" "):
        return fill(" ".join(block), columns, break_long_words=False, break_on_hyphens=False).split("\n")
    explained = _EXPLAINED.fullmatch(line)
    if explained is not None:
        explanation = _filled(explained["explanation"], columns, _HANGING, _HANGING)
        return [*_fold([explained["command"]], columns), *explanation]
    indent = line[: len(line) - len(line.lstrip())]
    if line.lstrip().startswith("everbell "):
        joined = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", _KEPT), line.strip())
        lines = _filled(joined, columns - len(" \\"), indent, indent + "    ")
        return [each.replace(_KEPT, " ") for each in (*(each + " \\" for each in lines[:-1]), lines[-1])]
    return _filled(line.strip(), columns, indent, indent + "  ")


def _filled(text: str, columns: int, first: str, rest: str) -> list[str]:
    return fill(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ).split("\n")
