"""The parser of all commands: help with examples, and error messages of one line with advice.

A command is a function from the parsed arguments to the exit code, under `@command(...)`, which declares its help and
its options.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from everbell.cli.help_text import fitted

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

# argparse takes text of this form for a negative number, so for a value and not for an option: also with a unit, -20m.
_NEGATIVE = re.compile(r"-\d[\w.]*$", re.ASCII)

Run = Callable[[argparse.Namespace], int]
Container = argparse._ActionsContainer
AddOption = Callable[[Any], None]
"""Adds an option, or several, to a parser or a group of options."""


class Misuse(Exception):
    """The command line is wrong in a way that only the command can check."""


class _Formatter(argparse.HelpFormatter):
    """Examples keep their lines where the terminal has room for them, and names of commands have room."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = _NAME_ROOM

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fitted(text, width)


class Parser(argparse.ArgumentParser):
    """An argument parser with errors of one line."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, **arguments)
        self._negative_number_matcher = _NEGATIVE

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(USAGE)


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command of `everbell`: its help, its options and its function. `everbell.cli.main` finds it in its module."""

    name: str
    summary: str
    description: str
    notes: str
    """They follow the options in the help: examples first, then details."""
    options: tuple[AddOption, ...]
    run: Run

    def add_to(self, commands: argparse._SubParsersAction[Parser]) -> None:
        """Add the parser of this command."""
        parser = commands.add_parser(self.name, help=self.summary, description=self.description, epilog=self.notes)
        for add_option in self.options:
            add_option(parser)
        parser.set_defaults(run=self.run)


def command(name: str, summary: str, description: str, notes: str, *options: AddOption) -> Callable[[Run], Subcommand]:
    """Make a command of the function below, which returns the exit code."""
    return lambda run: Subcommand(name, summary, description, notes, options, run)


def argument(*names: str, **settings: Any) -> AddOption:
    """An argument or option; the parameters are those of `ArgumentParser.add_argument`."""

    def add(parser: Container) -> None:
        parser.add_argument(*names, **settings)

    return add


def one_of(*options: AddOption) -> AddOption:
    """Options of which at most one may be given."""

    def add(parser: Container) -> None:
        group = parser.add_mutually_exclusive_group()
        for add_option in options:
            add_option(group)

    return add
