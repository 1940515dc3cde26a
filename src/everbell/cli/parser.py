"""The parser of all commands: help that teaches, and complaints of one line that say what to do.

A module of commands has `register(commands)`. It adds a command with `add_command`, gives it options, and sets `run`:
a function from the parsed arguments to the exit code.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = """\
exit codes:
  0  done
  1  refused, or it failed
  2  the command line is wrong
  3  the server cannot be reached"""

TIMES = """\
times and durations:
  a time is RFC 3339 with an offset: 2026-11-20T10:00:00Z, 2026-11-20T10:00:00+02:00
  a duration is 250ms, 90s, 20m, 1h30m, 7d, or ISO 8601: PT20M"""

# argparse forgets that commands are indented further than options.
_NAME_ROOM = 14

# What argparse takes for a number below nothing, and so for a value and not for an option: also with a unit, -20m.
_BELOW_NOTHING = re.compile(r"-\d[\w.]*$", re.ASCII)

Run = Callable[[argparse.Namespace], int]


class Misuse(Exception):
    """The command line is wrong in a way that only the command itself can see."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Examples stay as they are written, and names of commands have room."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = _NAME_ROOM


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors fit on one line."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, **arguments)
        self._negative_number_matcher = _BELOW_NOTHING

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(USAGE)


def add_command(
    commands: argparse._SubParsersAction[Parser], name: str, summary: str, description: str, notes: str, run: Run
) -> Parser:
    """Add a command. `notes` follow the options in its help: examples first, then what they do not say."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=notes,
    )
    parser.set_defaults(run=run)
    return parser
