"""`everbell`: finds the command, runs it, and turns its outcome into an exit code and at most one line on stderr.

A character that the locale cannot print becomes a question mark.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper

from everbell.cli.parser import (
    BROKEN_PIPE,
    EXIT_CODES,
    FAILED,
    INTERRUPTED,
    OK,
    UNREACHABLE,
    USAGE,
    Misuse,
    Parser,
    Subcommand,
)
from everbell.cli.reporting import complain
from everbell.errors import EverbellError, Unauthorized, Unreachable

MODULES = (
    "everbell.cli.serve",
    "everbell.cli.schedule",
    "everbell.cli.look",
    "everbell.cli.change",
    "everbell.cli.stuck",
    "everbell.cli.forecast",
    "everbell.cli.export",
    "everbell.cli.recurring",
    "everbell.cli.pausing",
    "everbell.cli.killing",
    "everbell.cli.queues",
    "everbell.cli.status",
    "everbell.cli.top",
    "everbell.cli.strategy",
    "everbell.cli.worker",
    "everbell.cli.keys",
    "everbell.cli.tenants",
    "everbell.cli.outbox",
    "everbell.cli.backup",
    "everbell.cli.bench",
    "everbell.cli.demo",
    "everbell.cli.completion",
)
"""The modules that have commands, in the order of the help."""
SHARED = (
    "everbell.cli.look",
    "everbell.cli.change",
    "everbell.cli.stuck",
    "everbell.cli.recurring",
    "everbell.cli.pausing",
    "everbell.cli.killing",
    "everbell.cli.queues",
    "everbell.cli.status",
)
"""The modules that have several commands. Any other has one, of its own name."""

_KEY_HINT = "; here that is --token, or better EVERBELL_TOKEN"

SHORT_HELP = """\
Everbell delivers events at their time.

  everbell demo                                        see it at work, in a minute
  everbell serve                                       start a server on 127.0.0.1:8420
  everbell schedule '{"user": 7}' --in 20m --to https://example.com/hook
  everbell list                                        events that are still to come
  everbell help                                        all commands
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return BROKEN_PIPE
    return code


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(SHORT_HELP, end="")
        return OK
    if arguments[0] == "help":
        arguments = [*arguments[1:2], "--help"]
    name = arguments[0]
    if garbled := next((argument for argument in arguments if not _is_text(argument)), None):
        encoding = sys.getfilesystemencoding()
        print(f"everbell: the argument {garbled!r} is no text in {encoding}, as this locale wants it", file=sys.stderr)
        return USAGE
    asked = find_command(name)
    if asked is None and not name.startswith("-"):
        return _unknown(name)
    parser, commands = parser_of([asked] if asked else () if name == "--version" else all_commands().values())
    try:
        args, unknown = parser.parse_known_args(arguments)
    except SystemExit as end:  # The help was printed, or a complaint.
        return end.code if isinstance(end.code, int) else USAGE
    try:
        if unknown:
            raise Misuse(_too_much(unknown[0], commands.choices[name]))
        code: int = args.run(args)
    except Misuse as misuse:
        complain(name, f"{misuse}; see everbell {name} --help")
        return USAGE
    except EverbellError as error:
        complain(name, str(error) + (_KEY_HINT if isinstance(error, Unauthorized) else ""))
        return UNREACHABLE if isinstance(error, Unreachable) else FAILED
    return code


def parser_of(subcommands: Iterable[Subcommand]) -> tuple[Parser, argparse._SubParsersAction[Parser]]:
    parser = Parser(
        prog="everbell",
        description="Everbell delivers events at their time. Each command explains itself: everbell help schedule",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"everbell {version('everbell')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for subcommand in subcommands:
        subcommand.add_to(commands)
    return parser, commands


def find_command(name: str) -> Subcommand | None:
    """The command of this name. Imports few modules to find it, so that a quick command is quick."""
    modules = [module for module in MODULES if module == f"everbell.cli.{name}"] or SHARED
    return _commands_in(modules).get(name)


def all_commands() -> dict[str, Subcommand]:
    """All commands by name, in the order of the help."""
    return _commands_in(MODULES)


def _commands_in(modules: Iterable[str]) -> dict[str, Subcommand]:
    members = [member for name in modules for member in vars(import_module(name)).values()]
    return {member.name: member for member in members if isinstance(member, Subcommand)}


def _is_text(argument: str) -> bool:
    """Whether an argument can be sent. Bytes that Python could not decode arrive as halves of surrogate pairs."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unknown(name: str) -> int:
    near = get_close_matches(name, all_commands(), 1)
    advice = f"did you mean {near[0]}?" if near else "see everbell help"
    print(f"everbell: there is no command {name!r}; {advice}", file=sys.stderr)
    return USAGE


def _too_much(argument: str, parser: Parser) -> str:
    if not argument.startswith("-"):
        return f"{argument!r} is one argument too many"
    known = re.findall(r"--[a-z][a-z-]*", parser.format_usage())
    near = get_close_matches(argument.partition("=")[0], known, 1)
    return f"there is no option {argument}" + (f", did you mean {near[0]}?" if near else "")


def _abandon_stdout() -> None:
    """The reader of the output is gone: discard the rest of the buffer, without an error at the exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
