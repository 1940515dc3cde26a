"""How plain the prose is: how often it uses words that hide the subject of a sentence.

"Whoever has it tells what is there" can be true of anything. "The owner returns the stored version" is true of one
thing. So the words in `VAGUE` are counted, per 1,000 words, in comments and docstrings and in hand-written pages. Code
is not prose: fenced blocks, names between backticks and the transcripts in docstrings do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VAGUE = (
    *("what", "who", "whoever", "whose", "whosever", "whom", "whomever", "whatever"),
    *("nobody", "somebody", "everybody", "anybody"),
    *("so many", "so much", "so few"),
)
"""The words of `house.md`: each can nearly always be replaced by the noun that it stands for."""

_VAGUE = re.compile(rf"\b(?:{'|'.join(VAGUE)})\b", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][\w'’-]*")
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"``?[^`\n]+``?")
# The formatter puts two spaces before a comment. A tokenizer would be exact, and takes twenty times as long.
_COMMENT = re.compile(r"^(?:.*?  | *)#[:!]? (.*)$", re.MULTILINE)
_LINK_TARGET = re.compile(r"\]\([^)\s]*\)")
_INDENTED = re.compile(r"^(?: {4,}|\t| *>>> | *\$ ).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plainness:
    """How many words a text has, and how many of them are vague."""

    words: int = 0
    vague: int = 0

    def __add__(self, other: Plainness) -> Plainness:
        return Plainness(self.words + other.words, self.vague + other.vague)

    @property
    def rate(self) -> float:
        """Vague words per 1,000 words."""
        return 1_000 * self.vague / self.words if self.words else 0.0


def of_text(text: str) -> Plainness:
    """Judge prose, without code between backticks and without the targets of links."""
    prose = _LINK_TARGET.sub("] ", _CODE.sub(" ", text))
    return Plainness(len(_WORD.findall(prose)), len(_VAGUE.findall(prose)))


def of_page(path: Path) -> Plainness:
    """Judge a page in Markdown, without its blocks of code."""
    return of_text(_FENCE.sub("", path.read_text()))


def of_module(path: Path) -> Plainness:
    """Judge the comments and docstrings of a module."""
    return of_text(prose_of(path.read_text()))


def prose_of(source: str) -> str:
    """The comments and docstrings of a module, one after the other."""
    comments = _COMMENT.findall(source)
    # A string that stands by itself documents the function or the constant before it.
    docstrings = [
        _INDENTED.sub("", _FENCE.sub("", _dedented(statement.value.value)))
        for statement in _statements(ast.parse(source))
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]
    return "\n".join([*comments, *docstrings])


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """All statements. This is several times faster than `ast.walk`, which visits every expression, too."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, block, None)
            if isinstance(inner, list):
                waiting.extend(inner)


def _dedented(docstring: str) -> str:
    """The text without the margin that it has in the source."""
    first, _, rest = docstring.partition("\n")
    lines = rest.splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join([first, *(line[margin:] for line in lines)])
