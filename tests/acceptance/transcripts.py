"""The consoles of the documentation: commands with their output, read from a page and run again.

Times, durations, generated ids, cursors and the like differ from run to run, so both sides are compared without them.
Commands use the tokens of this run in place of those on the page, as a reader would use their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from tests.acceptance.processes import PATIENCE_S, quiet_environment

SHOWN_URL = "http://127.0.0.1:8420"

_PART = re.compile(r"^## ([^\n]+)$|^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r'"lease":"([^"]+)"')
_WHILE = r"(\d+(d|h|m|s|ms)\b ?)+"
_VARYING = [
    (r"\r", ""),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.]\d+)?( UTC|Z|[+-]\d\d:\d\d)", "TIME"),
    (r"\bev_[\w-]+", "ID"),
    (r'"cursor":"[^"]+"', '"cursor":"…"'),
    (r'"(duration_ms|due|overdue)":\d+', r'"\1":0'),
    (r'"oldest_overdue":"[^"]+"', '"oldest_overdue":"…"'),
    (r"content-length: \d+", "content-length: 0"),
    (rf"\bin {_WHILE}|{_WHILE}ago|\bnow\b", "THEN "),
    (r"(?<=TIME) +\d+ms\b", " WHILE"),
    (r" +", " "),
]


class Step(Struct):
    """A command, the output that the page shows, and the heading above it."""

    heading: str
    command: str
    shown: str


class Mismatch(AssertionError):
    """A command printed a different output than the page shows."""


def steps(page: Path) -> Iterator[Step]:
    """Every command of a page, in order."""
    heading = ""
    for title, console in _PART.findall(page.read_text()):
        heading = title or heading
        for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
            command, _, shown = re.sub(r"\\\n\s*", "", part).partition("\n")
            yield Step(heading, command, shown)


class Shell:
    """A shell in which `everbell` is the version under test, and the server of the page is the given one."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._tokens: dict[str, str] = {}
        (folder / ".curlrc").write_text("silent\n")
        everbell = folder / "everbell"
        everbell.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m everbell "$@"\n')
        everbell.chmod(0o755)
        self._environment = quiet_environment() | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "CURL_HOME": str(folder),
            "EVERBELL_SERVER": url,
            "T": f"{url}/v1/tenants/shop",
        }

    def run(self, step: Step) -> str:
        """The output of the command. A file that the page shows is created with the shown content."""
        if step.command.startswith("cat "):
            (self._folder / step.command.split()[1]).write_text(step.shown)
        done = subprocess.run(
            ["bash", "-c", self._now(step.command)],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self._tokens |= zip(_TOKEN.findall(step.shown), _TOKEN.findall(done.stdout), strict=False)
        return done.stdout

    def check(self, step: Step) -> None:
        """Run the command, and raise `Mismatch` if its output differs from the page."""
        printed = self.run(step)
        if plain(printed) != plain(self._now(step.shown)):
            raise Mismatch(f"$ {step.command}\nshown:\n{step.shown}\nprinted:\n{printed}")

    def _now(self, text: str) -> str:
        """The text with the address and the tokens of this run in place of those on the page."""
        text = text.replace(SHOWN_URL, self._url)
        for shown, token in self._tokens.items():
            text = text.replace(f'"{shown}"', f'"{token}"')
        return text


def plain(text: str) -> str:
    """A text without the parts that differ from run to run."""
    for pattern, replacement in _VARYING:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.strip() for line in text.splitlines()).strip()
