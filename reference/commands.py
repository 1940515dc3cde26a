"""Every command with its arguments, options and examples, made from the parsers of the command line."""

from __future__ import annotations

import argparse

from everbell.cli.main import all_commands, parser_of
from everbell.cli.options import SERVER_GROUP
from everbell.cli.parser import Parser
from reference.markdown import block, code, page, table

_INTRO = """\
All commands with all of their options, as `everbell COMMAND --help` shows them. [Command line](cli.md) shows what they
print, and their exit codes."""

_SERVER = "Those that talk to a server have these options, too."


def commands_page() -> str:
    """The page."""
    known = all_commands()
    _, commands = parser_of(known.values())
    contents = table(("command", "purpose"), [(f"[{name}](#{name})", each.summary) for name, each in known.items()])
    told = [_command(name, commands.choices[name]) for name in known]
    shared = next(group for name in known for group in _groups(commands.choices[name], SERVER_GROUP))
    return page("Command reference", _INTRO, contents, "## Options for the server", _SERVER, _options(shared), *told)


def _command(name: str, parser: Parser) -> str:
    parts = [f"## {name}", code(" ".join([parser.prog, *_places(parser)])), parser.description or ""]
    for group in parser._action_groups:
        if group.title == SERVER_GROUP:
            parts.append("[Options for the server](#options-for-the-server)")
        else:
            parts.append(_options(group))
    parts.append(block(parser.epilog or ""))
    return "\n\n".join(part for part in parts if part)


def _places(parser: Parser) -> list[str]:
    """The arguments that are known by their place, and that there are options."""
    places = [action for action in parser._actions if not action.option_strings]
    return [_place(action) for action in places] + ["[OPTIONS]"]


def _place(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    return {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), name)


def _groups(parser: Parser, title: str) -> list[argparse._ArgumentGroup]:
    return [group for group in parser._action_groups if group.title == title]


def _options(group: argparse._ArgumentGroup) -> str:
    actions = [action for action in group._group_actions if "--help" not in action.option_strings]
    title = {"positional arguments": "argument", "options": "option"}.get(str(group.title), str(group.title))
    return table((title, "meaning"), [(code(_spelled(action)), action.help or "") for action in actions])


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return _place(action)
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    return f"{names} {value}"
