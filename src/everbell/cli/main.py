"""`everbell`: finds the command, runs it, and turns whatever happens into an exit code and at most one line on stderr.

Only the module of the command that is asked for is imported, so that a quick command is quick. A command whose module
is not there does not exist; one whose module cannot be imported is a fault, and says so. A locale that cannot say what
is printed is no fault: what it lacks becomes a question mark.
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
from importlib.util import find_spec
from io import TextIOWrapper

from everbell.cli.parser import BROKEN_PIPE, EXIT_CODES, FAILED, INTERRUPTED, OK, UNREACHABLE, USAGE, Misuse, Parser
from everbell.cli.reporting import complain
from everbell.errors import EverbellError, Unauthorized, Unreachable

COMMANDS = {
    "serve": "everbell.cli.serve",
    "schedule": "everbell.cli.schedule",
    "list": "everbell.cli.look",
    "show": "everbell.cli.look",
    "cancel": "everbell.cli.change",
    "reschedule": "everbell.cli.change",
    "deliver": "everbell.cli.deliver",
    "redrive": "everbell.cli.change",
    "discard": "everbell.cli.change",
    "unblock": "everbell.cli.change",
    "forecast": "everbell.cli.forecast",
    "export": "everbell.cli.export",
    "preview": "everbell.cli.recurring",
    "backfill": "everbell.cli.recurring",
    "pause": "everbell.cli.pausing",
    "resume": "everbell.cli.pausing",
    "pauses": "everbell.cli.pausing",
    "status": "everbell.cli.status",
    "top": "everbell.cli.top",
    "drain": "everbell.cli.status",
    "undrain": "everbell.cli.status",
    "strategy": "everbell.cli.strategy",
    "worker": "everbell.cli.worker",
    "keys": "everbell.cli.keys",
    "tenants": "everbell.cli.tenants",
    "backup": "everbell.cli.backup",
    "bench": "everbell.cli.bench",
    "demo": "everbell.cli.demo",
}
"""Each command and the module that registers it, in the order of the help."""

_KEY_HINT = "; here that is --token, or better EVERBELL_TOKEN"

SHORT_HELP = """\
Everbell delivers events at their time.

  everbell demo                                        see it at work, in a minute
  everbell serve                                       start a server on 127.0.0.1:8420
  everbell schedule '{"user": 7}' --in 20m --to https://example.com/hook
  everbell list                                        what is to come
  everbell --help                                      all commands
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
    name = arguments[0]
    if garbled := next((argument for argument in arguments if not _is_text(argument)), None):
        encoding = sys.getfilesystemencoding()
        print(f"everbell: the argument {garbled!r} is no text in {encoding}, as this locale wants it", file=sys.stderr)
        return USAGE
    if not name.startswith("-") and not _exists(name):
        return _unknown(name)
    parser, commands = parser_of([name] if name in COMMANDS else () if name == "--version" else COMMANDS)
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


def parser_of(names: Iterable[str]) -> tuple[Parser, argparse._SubParsersAction[Parser]]:
    """The parser with the commands of these names, as far as they exist."""
    parser = Parser(
        prog="everbell",
        description="Everbell delivers events at their time. Each command explains itself: everbell schedule --help",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"everbell {version('everbell')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in dict.fromkeys(COMMANDS[name] for name in names if _exists(name)):
        import_module(module).register(commands)
    return parser, commands


def _exists(name: str) -> bool:
    return name in COMMANDS and find_spec(COMMANDS[name]) is not None


def _is_text(argument: str) -> bool:
    """Whether a server can be told. Bytes that Python could not read come as halves of surrogate pairs."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unknown(name: str) -> int:
    near = get_close_matches(name, [known for known in COMMANDS if _exists(known)], 1)
    advice = f"did you mean {near[0]}?" if near else "see everbell --help"
    print(f"everbell: there is no command {name!r}; {advice}", file=sys.stderr)
    return USAGE


def _too_much(argument: str, parser: Parser) -> str:
    if not argument.startswith("-"):
        return f"{argument!r} is one argument too many"
    known = re.findall(r"--[a-z][a-z-]*", parser.format_usage())
    near = get_close_matches(argument.partition("=")[0], known, 1)
    return f"there is no option {argument}" + (f", did you mean {near[0]}?" if near else "")


def _abandon_stdout() -> None:
    """Whoever read our output is gone; what is left in the buffer goes nowhere, without a complaint at the exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
